"""One policy's run of real jobs that may share: a fresh cluster, the schedule, what the controller saw.

Rule: everything reported comes from the controller's own answers; `idle_class` alone is this process's count
of what others on the machine took meanwhile.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import psutil

from cotenant.agent.host.locks import LOCK_DIR_ENV
from cotenant.controller.cli.demo.cluster import PrivateCluster
from cotenant.controller.client.connection import Client
from cotenant.controller.policies.base import Parameters
from cotenant.controller.timeline import Timeline
from cotenant.controller.wire import clients as wire
from experiments.castor.live_sharing import jobs
from experiments.castor.live_sharing.counted import marks_of
from experiments.castor.live_sharing.picture import picture_of
from experiments.shared.live.run import DEVICES, JobRow, Play, Say, job_row, no_job_left
from experiments.shared.live.schedule import Arrival

CENSUS_S: Final = 0.5
"""Between two counts of what other processes use."""
AUTOGROUP_NICE: Final = "-20"
"""Linux puts each session into a group of its own (autogroup), and groups share the cores by *their*
niceness, whatever the scheduling class of what is in them. The run's own go before all others."""


class CastorRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one run measured. Seconds."""

    policy: str
    parameters: Parameters
    machine: dict[str, str | int | float]
    slot_memory_mib: int
    rows: tuple[JobRow, ...] = ()
    pairs: tuple[wire.PairView, ...] = ()
    """Of kinds; xi as the controller learned it from the jobs' own step times."""
    marks: dict[str, list[tuple[float, int]]] = {}
    """By job id: (second of the journal, steps done) each time that the controller heard of it."""
    kinds: dict[str, str] = {}
    """Job name -> kind."""
    timeline: Timeline | None = None
    others_ratio: float = 0.0
    """Share of the cores' time that processes had which were no part of this run."""
    shared: int = 0
    """Jobs that had a co-tenant."""
    balanced: int = 0
    """Those of them of which it is known whether sharing paid."""
    load_started: float = 0.0
    complete: bool = False

    @property
    def label(self) -> str:
        said = ",".join(f"{key}={str(value).lower()}" for key, value in self.parameters.items())
        return f"{self.policy}:{said}" if said else self.policy


def run_live(
    schedule: Sequence[Arrival],
    measured: Mapping[str, jobs.Measured],
    policy: str,
    parameters: Parameters,
    machine: dict[str, str | int | float],
    keep: Callable[[CastorRun], None],
    say: Say,
) -> CastorRun:
    """The whole run, in a cluster of its own. `keep` is called with what is known so far, each time that jobs
    have ended.

    Raises:
        WentWrong: a job failed, or nothing got on.
    """
    folder = Path(tempfile.mkdtemp(prefix="cotenant-live-"))
    os.environ[LOCK_DIR_ENV] = str(folder / "locks")
    say(f"{policy}: state and logs: {folder}")
    so_far = CastorRun(
        policy=policy,
        parameters=parameters,
        machine=machine,
        slot_memory_mib=jobs.slot_memory_mib(measured),
        kinds={arrival.name: arrival.kind for arrival in schedule},
        load_started=os.getloadavg()[0],
    )
    shown: list[wire.Shown] = []

    def row_of(one: wire.Shown, arrival: Arrival) -> JobRow:
        shown.append(one)
        pace = measured[arrival.kind].pace
        return job_row(one, pace.expected_s(pace.steps(arrival.length_s)), pace)

    with (
        PrivateCluster(folder, f"cpu:{DEVICES}", so_far.slot_memory_mib) as cluster,
        Client(cluster.endpoint) as client,
        no_job_left(client),
        Census(folder) as census,
    ):
        client.ask(wire.SetPolicy(name=policy, parameters=parameters))
        at_s = client.ask(wire.GetStatus()).wall_s
        play = Play(client, folder, schedule, lambda a: jobs.spec_of(a, measured), row_of, say)
        play.play(lambda rows: keep(msgspec.structs.replace(so_far, rows=rows)))
        shown.sort(key=lambda one: one.job.submitted_s)
        changes = [(at_s, so_far.label)]
        drawn = picture_of(shown, client.ask(wire.ListNodes()).nodes, changes, f"{DEVICES} CPU slots")
        pairs = client.ask(wire.ListPairs()).pairs
    done = msgspec.structs.replace(
        so_far,
        rows=play.rows(),
        pairs=pairs,
        timeline=msgspec.structs.replace(drawn, title=so_far.label),
        others_ratio=census.ratio,
        marks=marks_of(folder / "controller"),
        **count_balances(shown),
        complete=True,
    )
    keep(done)
    return done


def count_balances(shown: Sequence[wire.Shown]) -> dict[str, int]:
    """Counts the jobs that had a co-tenant, and those of them of which it is known whether sharing paid."""
    known = [one.job.won_device_s is not None for one in shown if one.job.shared]
    return {"shared": len(known), "balanced": sum(known)}


def go_first(pid: int) -> None:
    """Put a process's session before others, where that is possible."""
    with suppress(OSError):
        (Path("/proc") / str(pid) / "autogroup").write_text(AUTOGROUP_NICE)


@contextmanager
def children_first() -> Iterator[None]:
    """The same for all that this process starts meanwhile."""
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(CENSUS_S):
            for child in psutil.Process().children(recursive=True):
                go_first(child.pid)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Census:
    """Counts, every `CENSUS_S`, the processor time of processes that are no part of a run.

    Part of it are this process and those that name the run's folder in their command or environment. Where
    the kernel lets us, they are put before others.
    """

    def __init__(self, folder: Path) -> None:
        self._sign = os.fsencode(str(folder))
        self._ours: dict[tuple[int, float], bool] = {}
        self._last: dict[tuple[int, float], float] = {}
        self._others_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._began_s = self._ended_s = time.monotonic()

    def __enter__(self) -> Census:
        self._look()
        self._others_s = 0.0
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()
        self._ended_s = time.monotonic()

    @property
    def ratio(self) -> float:
        cores = len(os.sched_getaffinity(0))
        return self._others_s / max(1e-9, cores * (self._ended_s - self._began_s))

    def _count(self) -> None:
        while not self._stop.wait(CENSUS_S):
            self._look()

    def _look(self) -> None:
        for process in psutil.process_iter():
            try:
                key = (process.pid, process.create_time())
                times = process.cpu_times()
                is_ours = self._is_ours(key)
            except (psutil.Error, OSError):
                continue
            used_s = times.user + times.system
            if not is_ours:
                self._others_s += used_s - self._last.get(key, 0.0 if self._last else used_s)
            self._last[key] = used_s

    def _is_ours(self, key: tuple[int, float]) -> bool:
        if key not in self._ours:
            at = Path("/proc") / str(key[0])
            said = (at / "cmdline").read_bytes() + (at / "environ").read_bytes()
            self._ours[key] = key[0] == os.getpid() or self._sign in said
            if self._ours[key]:
                go_first(key[0])
        return self._ours[key]
