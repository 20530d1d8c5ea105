"""A private controller and agent for one run of the demo, as two processes on a Unix socket; and what changes
there while they work, each line with its reason.

Rule: it ends what it has started, by pid, whatever happens.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType

from cotenant.controller.cli.frame import daemons
from cotenant.controller.cli.frame.daemons import DaemonProcess
from cotenant.controller.client.connection import Client, Refusal, Unreachable
from cotenant.controller.domain import ENDED, JobId, Phase
from cotenant.controller.wire import clients as wire

READY_TIMEOUT_S = 30.0
ASK_WITHIN_S = 5.0
JOBS_END_WITHIN_S = 20.0

POLL_S = 0.25


class ProcessStartFailed(Exception):
    """A process did not come up; the text has its last words and where its log is."""


class PrivateCluster:
    """A controller and an agent in a folder of their own."""

    def __init__(
        self,
        folder: Path,
        devices: str,
        slot_memory_mib: int = 0,
        stop_deadline_s: float = 30.0,
        profile_s: float = 0.0,
    ) -> None:
        """`devices` and `slot_memory_mib` as in the agent's settings (`cpu:2`, `cuda:0`, `auto`).

        Args:
            profile_s: of each job; 0: none is profiled, as where all come with their profiles.
        """
        self.folder = folder
        self.endpoint = f"ipc://{folder / 'c.sock'}"
        self.checkpoints = folder / "checkpoints"
        self.profile_s = profile_s
        self._devices, self._slot_memory_mib = devices, slot_memory_mib
        self._stop_deadline_s = stop_deadline_s
        self._daemons: list[DaemonProcess] = []

    def __enter__(self) -> PrivateCluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            for_controller = {
                "controller.endpoint": self.endpoint,
                "policy.stop_deadline_s": self._stop_deadline_s,
                "profiler.seconds": self.profile_s,
                # Nobody asks when jobs end here, and working it out would take time from them.
                "controller.eta_share": 0,
            }
            self._start("controller", for_controller)
            for_agent = {
                "agent.controller": self.endpoint,
                "agent.devices": self._devices,
                "agent.slot_memory_mib": self._slot_memory_mib,
                "agent.heartbeat_s": 0.5,
                "checkpoint.root": self.checkpoints,
            }
            self._start("agent", for_agent)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                self._end_jobs()
        finally:
            self.close()

    def check_devices(self, wanted: int) -> None:
        """Raises ProcessStartFailed if so many are not this cluster's to use, naming who has them."""
        with Client(self.endpoint, timeout_s=ASK_WITHIN_S) as client:
            nodes = client.ask(wire.ListNodes()).nodes
        devices = [device for node in nodes for device in node.devices]
        taken = [f"{device.device_id}: {device.note}" for device in devices if not device.healthy]
        if taken or len(devices) < wanted:
            raise ProcessStartFailed(
                f"{wanted} free devices are needed; {'; '.join(taken) or f'there are {len(devices)}'}. "
                "End that agent (your own: `cotenant down`) and try again"
            )

    def _end_jobs(self) -> None:
        """Ends the jobs: they would outlive their agent, with no controller to end them."""
        with (
            contextlib.suppress(Refusal, Unreachable),
            Client(self.endpoint, timeout_s=ASK_WITHIN_S) as client,
        ):
            jobs = client.ask(wire.ListJobs()).jobs
            left = tuple(job.job_id for job in jobs if job.phase not in ENDED)
            if left:
                client.ask(wire.ChangeJobs(verb="cancel", job_ids=left))
                client.ask(wire.WaitJobs(job_ids=left, timeout_s=JOBS_END_WITHIN_S))

    def _start(self, part: str, flags: Mapping[str, object]) -> None:
        log_path = self.folder / f"{part}.log"
        own = {f"{part}.state_dir": self.folder / part, **flags}
        with log_path.open("wb") as log:
            daemon = DaemonProcess(daemons.command_line(f"cotenant.{part}", own), log=log)
        self._daemons.append(daemon)

        def is_decided() -> bool:
            return daemon.is_ready or daemon.process.poll() is not None

        if not daemons.wait_until(is_decided, READY_TIMEOUT_S):
            late = f"the {part} was not ready after {READY_TIMEOUT_S:.0f} s; see {log_path}"
            raise ProcessStartFailed(late)
        if not daemon.is_ready:
            tail = log_path.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise ProcessStartFailed(f"the {part} ended at once; the last it said: {tail[0]}")

    def close(self) -> None:
        """Agent first, controller last; it kills what does not leave in time."""
        for daemon in reversed(self._daemons):
            daemon.end()
        self._daemons.clear()


class TooSlow(Exception):
    """The demo's jobs did not get where they should in time; the text says where they stand."""


class QueueWatcher:
    """Polls the queue and tells of each job's steps on its way."""

    def __init__(
        self,
        client: Client,
        say: Callable[[str], None],
        names: dict[JobId, str],
        looked: Callable[[], None] = lambda: None,
    ) -> None:
        """Creates a watcher that tells what happens in the queue from now on; `looked`: called at each
        round."""
        self._client, self._say, self._names, self._looked = client, say, names, looked
        self._seen: dict[JobId, tuple[Phase, int, bool]] = {}
        self._loaded_s: dict[JobId, float] = {}
        """What a job had loaded in the attempts before its present one."""
        self.jobs: dict[JobId, wire.JobView] = {}
        for job in client.ask(wire.ListJobs(include_ended=True)).jobs:
            self._seen[job.job_id] = (
                job.phase,
                job.attempt,
                job.start_assumed,
            )  # What happened before is no news.

    def look(self) -> wire.Jobs:
        """Does one round: asks, tells what is new, remembers."""
        reply = self._client.ask(wire.ListJobs(include_ended=True))
        self._looked()
        for job in sorted(reply.jobs, key=lambda j: int(j.job_id)):
            before = self.jobs.get(job.job_id, job)
            if before.attempt < job.attempt:
                self._loaded_s[job.job_id] = before.load_s
            self.jobs[job.job_id] = job
            now = (job.phase, job.attempt, job.start_assumed)
            if self._seen.get(job.job_id) != now:
                self._seen[job.job_id] = now
                self._say(self._describe_job(job))
        return reply

    def wait_until(self, true: Callable[[dict[JobId, wire.JobView]], bool], timeout_s: float) -> None:
        """Look until `true` holds.

        Raises:
            TooSlow: it does not hold after `timeout_s`, or a job failed meanwhile.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            self.look()
            failed = [j for j in self.jobs.values() if j.phase in (Phase.FAILED, Phase.CANCELLED, Phase.HELD)]
            if failed:
                raise TooSlow("; ".join(f"job {j.job_id} {j.phase}: {j.reason}" for j in failed))
            if true(self.jobs):
                return
            if time.monotonic() > deadline_s:
                stand = ", ".join(f"{j.job_id} {j.phase}" for j in self.jobs.values())
                raise TooSlow(f"not there after {timeout_s:.0f} s: {stand}")
            time.sleep(POLL_S)

    def _describe_job(self, job: wire.JobView) -> str:
        who, why = (
            f"{self._names.get(job.job_id, job.name)} ({job.job_id})",
            reason_in_names(job.reason, self._names),
        )
        where = " + ".join(device.rpartition("/")[2] for device in job.devices)
        match job.phase:
            case Phase.LOADING:
                again = f", attempt {job.attempt}, from step {job.durable_step}" if job.attempt > 1 else ""
                beside = "".join(f" beside {self._names.get(other, other)}" for other in job.co_tenants)
                split = (
                    f" with its batch in {job.accumulation_steps} parts" if job.accumulation_steps > 1 else ""
                )
                return f"{who} starts on {where}{beside}{split}{again}: {why}"
            case Phase.RUNNING if job.start_assumed:
                return f"{who} counts as running: no steps are seen"
            case Phase.RUNNING:
                load_s = job.load_s - self._loaded_s.get(job.job_id, 0.0)
                return f"{who} trains: first step after {load_s:.1f} s of loading"
            case Phase.CHECKPOINTING:
                return f"{who} saves and leaves: {why}"
            case Phase.DONE:
                return f"{who} is done: {job.run_s:.1f} s of training"
            case Phase.QUEUED | Phase.RESERVED:
                return f"{who} waits: {why}"
            case _:
                return f"{who} is {job.phase}: {why}"


def reason_in_names(reason: str, names: Mapping[JobId, str]) -> str:
    """A reason with the names of jobs in place of their numbers, and without the figures that end it in
    brackets."""
    named = re.sub(r"\bjob (\d+)", lambda found: names.get(JobId(found[1]), found[0]), reason)
    return named.partition(" (sub-batch")[0]


def all_ended(jobs: dict[JobId, wire.JobView], wanted: Iterable[JobId]) -> bool:
    return all(job_id in jobs and jobs[job_id].phase in ENDED for job_id in wanted)
