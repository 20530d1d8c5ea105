"""GPUs under watch: real children that ask a library of ours, killed when they hang."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.agent.daemon.core.edge import EnergyRead, GpuFault, TroubleNoticed, UnusedGpus
from cotenant.agent.daemon.core.remembered import Attempt, AttemptKey
from cotenant.agent.gpus.causes import UNASKED
from cotenant.agent.gpus.device_states import DeviceStateStore, NotedCause, PastStates
from cotenant.agent.gpus.gpu_watch import MARKS, GpuWatch, offer_devices
from cotenant.agent.gpus.health import DeviceCondition
from cotenant.agent.gpus.owners import Owners
from cotenant.agent.gpus.probe_results import AnyWatchLine, ProbeResult, XidSeen
from cotenant.agent.gpus.watchers import GpuWatcher, Timing
from cotenant.agent.host.cgroups import group_tag
from cotenant.agent.host.devices import cuda_devices
from cotenant.agent.host.locks import DeviceLocks, LockFolders
from cotenant.agent.host.process_identity import boot_id, own_identity
from cotenant.agent.ipc.records import SUPERVISOR, attempt_folder, job_socket
from cotenant.checkpoint.talk.protocol import ENV_ATTEMPT, ENV_JOB, ENV_SOCKET
from cotenant.controller.domain import AttemptNo, CommandId, HostId, JobId
from cotenant.profiler.driver.facts import GpuFacts
from tests.agent.mock_gpus import ONE, TWO, MockGpus
from tests.building.hosts import agent_config
from tests.building.limits import within_s
from tests.processes import await_shown, own_program

HOST = HostId("h")
KEY: AttemptKey = (JobId("7"), AttemptNo(1))
QUICK = Timing(probe_s=0.1, start_s=20.0, silent_s=1.0, retry_s=0.05, retry_s_max=0.2, reap_s=1.0)


async def until(what: Callable[[], Any]) -> None:
    """Raises TimeoutError."""
    async with asyncio.timeout(within_s(120)):
        while True:
            if what():
                return
            await asyncio.sleep(0.02)


class Ears:
    """Listens to watchers."""

    def __init__(self, tmp_path: Path, *, log: str = "/dev/null", program: Sequence[str] = ()) -> None:
        self._program = program
        self.lines: list[AnyWatchLine] = []
        self.unanswered: list[tuple[str, str]] = []
        self._options = ["--period-s", "0.1", "--attempts", str(tmp_path / "none"), "--kernel-log", log]
        self.watchers: list[GpuWatcher] = []

    def start(self, *uuids: str) -> None:
        self.watchers = [
            GpuWatcher(
                uuid,
                self.command,
                heard=self.lines.append,
                unanswered=lambda uuid, why: self.unanswered.append((uuid, why)),
                timing=QUICK,
            )
            for uuid in uuids
        ]

    def close(self) -> None:
        for watcher in self.watchers:
            watcher.close()
            watcher.wait()
        assert [watcher.stuck for watcher in self.watchers] == [None] * len(self.watchers)

    def command(self, uuid: str) -> list[str]:
        if self._program:
            return list(self._program)
        return [sys.executable, "-m", "cotenant.agent.gpus.nvml_watch", *self._options, "--gpu", uuid]

    def probes(self, uuid: str) -> list[ProbeResult]:
        return [line for line in self.lines if isinstance(line, ProbeResult) and line.uuid == uuid]

    def recoveries(self) -> list[tuple[str, int | None]]:
        return [(x.uuid, x.recovery) for x in self.lines if isinstance(x, XidSeen) and x.xid == 154]

    def xids(self) -> list[tuple[str, int, int | None]]:
        return [(x.uuid, x.xid, x.pid) for x in self.lines if isinstance(x, XidSeen)]


def test_a_watcher_tells_of_memory_processes_and_xids(gpus: MockGpus, tmp_path: Path) -> None:
    """From NVML's events, and from the kernel's log, which knows the process."""
    log = tmp_path / "kmsg"
    log.touch()
    writer = os.open(log, os.O_WRONLY | os.O_APPEND)

    async def story() -> None:
        ears = Ears(tmp_path, log=str(log))
        ears.start(ONE, TWO)
        await until(lambda: ears.probes(ONE) and ears.probes(TWO))
        gpus.say("gpu 0 used 5000", f"process 0 {os.getpid()} 4000 C", "gpu 1 ecc 3", "gpu 1 remap 0 0 1 0")
        await until(lambda: ears.probes(ONE)[-1].processes and ears.probes(TWO)[-1].remap_pending)
        probe = ears.probes(ONE)[-1]
        assert (probe.used_mib, probe.processes[0].pid, probe.processes[0].used_mib) == (
            5000,
            os.getpid(),
            4000,
        )
        assert probe.processes[0].owner.kind == "foreign"
        assert own_program() in probe.processes[0].owner.command
        assert ears.probes(TWO)[-1].ecc_uncorrected == 3
        gpus.say("xid 1 79")
        await until(lambda: ears.xids() == [(TWO, 79, None)])
        os.write(writer, b"4,1,2,-;NVRM: Xid (PCI:0000:01:00): 31, pid=77, name=python\n")
        await until(lambda: ears.xids()[1:] == [(ONE, 31, 77)])
        gpus.say("gpu 1 recovery 1", "xid 1 154")
        await until(lambda: ears.recoveries() == [(TWO, 1)])
        said = b"Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)"
        os.write(writer, b"4,2,3,-;NVRM: " + said + b"\n")
        await until(lambda: ears.recoveries()[1:] == [(ONE, 0)])
        ears.close()

    asyncio.run(story())
    os.close(writer)


def test_of_a_mig_instance_memory_is_its_own_and_errors_are_its_gpus(gpus: MockGpus, tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.touch()
    writer = os.open(log, os.O_WRONLY | os.O_APPEND)
    gpus.say("gpu 1 mig 1", "gpu 1 instance MIG-77aa part", "gpu 1 instance MIG-78aa part", "gpu 1 ecc 3")
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / f"MIG-78aa.{os.getpid()}.4000").write_text("C")
    gpus.say(f"claims {tmp_path / 'claims'}")

    async def story() -> None:
        ears = Ears(tmp_path, log=str(log))
        ears.start("MIG-77aa", "MIG-78aa")
        await until(lambda: ears.probes("MIG-77aa") and ears.probes("MIG-78aa"))
        one, two = ears.probes("MIG-77aa")[-1], ears.probes("MIG-78aa")[-1]
        assert (one.used_mib, one.processes, one.ecc_uncorrected) == (20, (), 3)
        assert (two.used_mib, [each.pid for each in two.processes]) == (4020, [os.getpid()])
        gpus.say("xid 1 31 2")
        await until(lambda: ears.xids() == [("MIG-78aa", 31, None)])
        gpus.say("xid 1 48")
        await until(lambda: sorted(ears.xids()[1:]) == [("MIG-77aa", 48, None), ("MIG-78aa", 48, None)])
        os.write(writer, b"4,1,2,-;NVRM: Xid (PCI:0000:02:00 GPU-I:01 GPU-CI:00): 13, pid=77, name=python\n")
        await until(lambda: ears.xids()[3:] == [("MIG-77aa", 13, 77)])
        gpus.unsay("gpu 1 instance MIG-77aa")  # The other one moves to its place.
        await until(lambda: ears.probes("MIG-77aa")[-1].code)
        assert ears.probes("MIG-77aa")[-1].problem.startswith("the MIG instance is gone: restart the agent")
        ears.close()

    asyncio.run(story())
    os.close(writer)


def test_a_gpu_that_is_divided_while_it_is_watched_says_so(gpus: MockGpus, tmp_path: Path) -> None:
    async def story() -> None:
        ears = Ears(tmp_path)
        ears.start(ONE, TWO)
        await until(lambda: ears.probes(TWO))
        gpus.say("gpu 1 mig 1")
        await until(lambda: ears.probes(TWO)[-1].code)
        assert ears.probes(TWO)[-1].problem.startswith("it is in MIG mode now: restart the agent")
        seen = len(ears.probes(ONE))
        await until(lambda: len(ears.probes(ONE)) > seen)
        assert not ears.probes(ONE)[-1].code
        ears.close()

    asyncio.run(story())


def test_a_gpu_that_hangs_takes_nobody_with_it(gpus: MockGpus, tmp_path: Path) -> None:
    async def story() -> None:
        ears = Ears(tmp_path)
        ears.start(ONE, TWO)
        await until(lambda: ears.probes(ONE) and ears.probes(TWO))
        gpus.say("hang nvmlDeviceGetMemoryInfo 1")
        await until(lambda: (TWO, "NVML does not answer when it is asked about it") in ears.unanswered)
        seen = len(ears.probes(ONE))
        await until(lambda: len(ears.probes(ONE)) > seen + 2)
        gpus.unsay("hang")
        seen = len(ears.probes(TWO))
        await until(lambda: len(ears.probes(TWO)) > seen)
        ears.close()

    asyncio.run(story())


def test_a_gpu_that_is_lost_is_let_go_and_asked_anew(gpus: MockGpus, tmp_path: Path) -> None:
    async def story() -> None:
        ears = Ears(tmp_path)
        ears.start(ONE, TWO)
        await until(lambda: ears.probes(ONE) and ears.probes(TWO))
        gpus.say("gpu 1 rc 15")
        await until(lambda: any(probe.code == 15 for probe in ears.probes(TWO)))
        gpus.say("gpu 1 rc 0")
        await until(lambda: ears.probes(TWO)[-1].code == 0)
        seen = len(ears.probes(ONE))
        await until(lambda: len(ears.probes(ONE)) > seen)
        ears.close()

    asyncio.run(story())


@pytest.mark.parametrize("code", [3, 15, 999])
def test_where_nvml_refuses_to_wait_for_events_each_gpu_is_looked_at_all_the_same(
    gpus: MockGpus, tmp_path: Path, code: int
) -> None:
    """As it does for all of them where one is lost."""

    async def story() -> None:
        ears = Ears(tmp_path)
        gpus.say(f"fail nvmlEventSetWait_v2 {code}", "gpu 1 rc 15")
        ears.start(ONE, TWO)
        await until(lambda: len(ears.probes(ONE)) > 3 and ears.probes(TWO))
        assert {probe.code for probe in ears.probes(ONE)} == {0}
        assert {probe.code for probe in ears.probes(TWO)} == {15}
        assert ears.unanswered == []
        ears.close()

    asyncio.run(story())


@pytest.mark.parametrize("kind", ["Graphics", "Compute"])
def test_a_list_that_the_driver_does_not_have_is_missing_and_no_fault(
    gpus: MockGpus, tmp_path: Path, kind: str
) -> None:
    async def story() -> None:
        ears = Ears(tmp_path)
        gpus.say(f"fail nvmlDeviceGet{kind}RunningProcesses_v3 3", f"process 0 {os.getpid()} 4000 C")
        ears.start(ONE)
        await until(lambda: len(ears.probes(ONE)) > 2)
        for probe in ears.probes(ONE):
            assert (probe.code, probe.lists_computing) == (0, kind == "Graphics")
            assert len(probe.processes) == (kind == "Graphics")
        ears.close()

    asyncio.run(story())


def test_a_driver_that_is_unloaded_is_a_reason_and_may_come_back(gpus: MockGpus, tmp_path: Path) -> None:
    async def story() -> None:
        ears = Ears(tmp_path)
        gpus.say("init 9")
        ears.start(ONE)
        await until(lambda: ears.unanswered)
        assert "the NVIDIA driver is not loaded" in ears.unanswered[0][1]
        gpus.unsay("init")
        await until(lambda: ears.probes(ONE))
        ears.close()

    asyncio.run(story())


def test_a_watcher_that_talks_nonsense_is_ended(tmp_path: Path) -> None:
    async def story() -> None:
        ears = Ears(tmp_path, program=("/bin/sh", "-c", "echo hello; exec sleep 1000"))
        ears.start(ONE)
        await until(lambda: ears.unanswered)
        assert ears.unanswered[0] == (ONE, "its watcher talks nonsense")
        ears.close()

    asyncio.run(story())


# --- Whose a process is ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "kind"),
    [("/cotenant/7-a2-{tag}/ranks/libpod-1.scope", "attempt"), ("/cotenant/7-a2-00000000/ranks", "foreign")],
)
def test_a_process_in_the_group_of_an_attempt_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, kind: str
) -> None:
    """Whatever became of its environment and its session. The group's name holds a hash of the folder."""
    text = f"0::{group.format(tag=group_tag(attempt_folder(tmp_path, '7', 2)))}\n"
    plain = Path.read_text
    read = lambda path, **more: text if path.name == "cgroup" else plain(path, **more)  # noqa: E731
    monkeypatch.setattr(Path, "read_text", read)
    owner = Owners(tmp_path).owner(os.getpid())
    assert (owner.kind, bool(owner.since)) == (kind, kind == "foreign")


def test_processes_are_known_by_their_socket_or_their_session(tmp_path: Path) -> None:
    async def story() -> None:
        owners = Owners(tmp_path)
        folder = attempt_folder(tmp_path, "7", 2)
        folder.mkdir()
        own = {ENV_SOCKET: str(job_socket(folder))}  # All that the kernel shows of a rank started warm.
        other = {ENV_JOB: "7", ENV_ATTEMPT: "2", ENV_SOCKET: "/another/agents/cotenant.sock"}
        started = [
            await asyncio.create_subprocess_exec("sleep", "1000", env={"PATH": os.environ["PATH"], **env})
            for env in (own, other)
        ]
        try:
            mine, theirs = (owners.owner(await_shown(each.pid, "sleep", "1000")) for each in started)
            assert (mine.kind, mine.job_id, mine.attempt, mine.command) == ("attempt", "7", 2, "sleep 1000")
            assert theirs.kind == "foreign", "the number of a job is no proof"
            leader = msgspec.structs.replace(own_identity(), pid=os.getsid(0), start_ticks=0)
            (folder / SUPERVISOR).write_bytes(msgspec.json.encode(leader))
            assert Owners(tmp_path).owner(started[1].pid).kind == "attempt", "our supervisor led its session"
            parent = msgspec.structs.replace(own_identity(), start_ticks=0)
            (folder / SUPERVISOR).write_bytes(msgspec.json.encode(parent))
            left = await asyncio.create_subprocess_exec("sleep", "1000", env={}, start_new_session=True)
            started.append(left)
            assert Owners(tmp_path).owner(left.pid).kind == "attempt", "our supervisor is its parent"
            (folder / SUPERVISOR).unlink()
            assert Owners(tmp_path).owner(left.pid).kind == "foreign"
        finally:
            for process in started:
                process.kill()
                await process.wait()
        assert Owners(tmp_path).owner(started[0].pid).kind == "hidden"
        assert owners.owner(started[0].pid) == mine, "an error may name a process that it has ended"

    asyncio.run(story())


# --- All of it together ----------------------------------------------------------------------------


class Agent:
    """What the runtime is to the watch."""

    def __init__(
        self,
        tmp_path: Path,
        *,
        log: Path | None = None,
        probe_s: float = QUICK.probe_s,
        patience_s: float = within_s(60.0),
        tries_cuda: bool = False,
        busy: Sequence[str] = (),
        **of_the_second: Any,
    ) -> None:
        self.faults: list[GpuFault] = []
        self.counters: dict[str, int] = {}
        self.troubles: list[tuple[str, str]] = []
        self.said: list[str] = []
        self.running: list[Attempt] = []
        found = [
            GpuFacts(index=i, uuid=u, memory_mib=80_000, taken_mib=600) for i, u in enumerate((ONE, TWO))
        ]
        one, two = cuda_devices(found, HOST)
        self.devices = (one, msgspec.structs.replace(two, **of_the_second))
        self.config = agent_config(self.devices)
        self.told: list[dict[str, DeviceCondition]] = []
        self.watch = GpuWatch(
            self.devices,
            state_dir=tmp_path,
            attempts=tmp_path,
            log=self.said.append,
            timing=msgspec.structs.replace(QUICK, probe_s=probe_s, silent_s=QUICK.silent_s + probe_s),
            tries_cuda=tries_cuda,
            busy=busy,
            patience_s=patience_s,
            kernel_log=str(log) if log is not None else "/dev/null",
        )

    def start(self) -> None:
        self.watch.start(
            post=self._take,
            changed=lambda: self.told.append(self.watch.conditions()),
            look_around=lambda: (self.config, self.running),
            log=self.said.append,
        )

    def _take(self, said: GpuFault | EnergyRead | TroubleNoticed | UnusedGpus) -> None:
        if isinstance(said, GpuFault):
            self.faults.append(said)
        elif isinstance(said, TroubleNoticed):
            self.troubles.append((said.job_id, said.what))
        elif isinstance(said, EnergyRead):
            self.counters[said.uuid] = said.counter_mj

    def probed(self, uuid: str) -> bool:
        return self.watch.health.gpus[uuid].probe is not None

    def note(self, uuid: str) -> str:
        return self.watch.conditions()[uuid].note


def test_energy_is_told_of_whole_gpus_alone(gpus: MockGpus, tmp_path: Path) -> None:
    """The counter that NVML has for a MIG instance is its whole GPU's."""

    async def story() -> None:
        agent = Agent(tmp_path, parent="GPU-whole", type="MIG-1g.10gb", max_tenants=1)
        gpus.say("gpu 0 energy 7000", "gpu 1 energy 9000")
        agent.start()
        await until(lambda: agent.probed(ONE) and agent.probed(TWO))
        assert agent.counters == {ONE: 7000}
        agent.watch.close()

    asyncio.run(story())


def test_foreign_processes_and_lost_gpus_come_and_go_and_marks_stay(gpus: MockGpus, tmp_path: Path) -> None:
    async def story() -> None:
        agent = Agent(tmp_path)
        agent.running = [
            Attempt(
                job_id=JobId("7"), attempt=AttemptNo(1), command_id=CommandId(1),
                devices=(agent.devices[1].device_id,),
            )
        ]  # fmt: skip
        agent.start()
        gpus.say(f"process 0 {os.getpid()} 4000 C", "gpu 0 used 4600")
        await until(lambda: agent.note(ONE).startswith(f"in use by pid {os.getpid()}"))
        gpus.unsay("process 0")
        gpus.say("gpu 0 used 600")
        await until(lambda: not agent.note(ONE))
        gpus.say("gpu 0 used 9600")
        await until(lambda: agent.watch.held == {ONE})
        gpus.say("gpu 0 used 600")
        await until(lambda: not agent.watch.held and agent.probed(TWO))
        gpus.say("xid 1 79")
        await until(lambda: agent.faults)
        [fault] = agent.faults
        assert (fault.uuids, fault.xid, fault.device_failed) == ((TWO,), 79, True)
        assert agent.told[-1][TWO].state == "lost", "nobody is told to end before the device is out"
        agent.watch.close()
        again = Agent(tmp_path)
        assert again.watch.conditions()[TWO].state == "lost"
        kept = (tmp_path / MARKS).read_text()
        present = msgspec.json.decode(kept)["boot_id"]
        (tmp_path / MARKS).write_text(kept.replace(present, "another boot"))
        booted = Agent(tmp_path).watch.conditions()
        assert booted[TWO].note.startswith("suspect: the host was booted after: Xid 79")
        assert booted[ONE] == DeviceCondition()

    asyncio.run(story())


def test_an_ended_attempt_asks_the_watcher_and_hears_of_errors_before_its_answer(
    gpus: MockGpus, tmp_path: Path
) -> None:
    """The kernel's log has the error before the watcher looks; the look is asked for, not waited for."""
    log = tmp_path / "kmsg"
    log.write_text("")

    async def story() -> None:
        agent = Agent(tmp_path, log=log, probe_s=1000.0)
        agent.start()
        await until(lambda: agent.probed(ONE) and agent.probed(TWO))
        gpus.say("gpu 0 used 9600")
        with log.open("a") as kernel:
            kernel.write("4,7,2,-;NVRM: Xid (PCI:0000:01:00): 94, pid=77, name=python\n")
        assert not agent.faults
        waits = asyncio.create_task(agent.watch.given_back(KEY, (ONE, "GPU-unwatched")))
        await until(lambda: agent.faults)
        assert not waits.done(), "the memory is still held"
        gpus.say("gpu 0 used 600")
        agent.watch._watchers[0].probe_now()
        assert await waits == {}
        assert await agent.watch.given_back(KEY, ("GPU-unwatched",)) == {}
        agent.watch.close()

    asyncio.run(story())


def test_memory_that_does_not_come_back_makes_a_suspect_over_restarts_until_it_is_free(
    gpus: MockGpus, tmp_path: Path
) -> None:
    async def story() -> None:
        agent = Agent(tmp_path, patience_s=1.5)
        agent.start()
        gpus.say("gpu 0 used 9600")
        await until(lambda: agent.probed(ONE))
        held = await agent.watch.given_back(KEY, (ONE,))
        assert held == {ONE: "9000 MiB are still held by no process that can be seen here"}
        assert agent.told[-1][ONE].note == f"suspect: {held[ONE]}", "told before the answer"
        agent.watch.close()
        again = Agent(tmp_path)
        again.start()
        assert again.watch.conditions()[ONE].state == "suspect"
        await until(lambda: again.probed(ONE))
        assert again.watch.conditions()[ONE].state == "suspect"
        gpus.say("gpu 0 used 600")
        await until(lambda: again.watch.conditions()[ONE] == DeviceCondition())
        again.watch.close()

    asyncio.run(story())


def test_a_watcher_that_hangs_bounds_the_wait_and_a_lost_gpu_ends_it(gpus: MockGpus, tmp_path: Path) -> None:
    async def story() -> None:
        agent = Agent(tmp_path, patience_s=0.5)
        agent.start()
        await until(lambda: agent.probed(ONE) and agent.probed(TWO))
        gpus.say("hang nvmlDeviceGetMemoryInfo 0")
        assert await agent.watch.given_back(KEY, (ONE,)) == {ONE: UNASKED}
        assert agent.watch.conditions()[ONE].state == "suspect"
        gpus.say("gpu 1 rc 15")
        assert await agent.watch.given_back(KEY, (TWO,)) in ({}, {TWO: UNASKED})
        await until(lambda: agent.watch.conditions()[TWO].state == "lost")
        assert await agent.watch.given_back(KEY, (TWO,)) == {}, "nobody waits for what is lost"
        agent.watch.close()

    asyncio.run(story())


def test_a_job_on_another_gpu_than_its_own_is_told_so_once_and_so_is_its_neighbour(
    gpus: MockGpus, tmp_path: Path
) -> None:
    async def story() -> None:
        agent = Agent(tmp_path)
        agent.running = [
            Attempt(
                job_id=JobId(job), attempt=AttemptNo(1), command_id=CommandId(1), devices=(gpu.device_id,)
            )
            for job, gpu in zip("78", agent.devices, strict=True)
        ]
        agent.start()
        await until(lambda: agent.probed(ONE))
        gpus.say(f"process 1 {os.getpid()} 20000 C", "gpu 1 used 20600")
        (folder := attempt_folder(tmp_path, "7", 1)).mkdir()
        leader = msgspec.structs.replace(own_identity(), pid=os.getsid(0), start_ticks=0)
        (folder / SUPERVISOR).write_bytes(msgspec.json.encode(leader))
        name = agent.devices[0].device_id.rpartition("/")[2]
        await until(lambda: agent.note(TWO) == f"job 7 uses it and holds {name}")
        seen = agent.watch.health.gpus[TWO].probed_s
        await until(lambda: agent.watch.health.gpus[TWO].probed_s > seen)
        assert sorted(job for job, _ in agent.troubles) == ["7", "8"]
        assert agent.watch.conditions()[TWO].state == "ok"
        agent.watch.close()

    asyncio.run(story())


# --- Over a restart of the agent -------------------------------------------------------------------


def xid_line(record: int, xid: int, pid: int = 77) -> str:
    return f"4,{record},2,-;NVRM: Xid (PCI:0000:01:00): {xid}, pid={pid}, name=python\n"


def test_an_error_that_nobody_heard_is_read_in_the_kernels_log_and_one_that_was_is_not_told_twice(
    gpus: MockGpus, tmp_path: Path
) -> None:
    """Killed between the event and the write, or not there at all: the same."""
    log = tmp_path / "kmsg"
    log.write_text("6,1,1,-;booting\n" + xid_line(2, 48))

    async def story() -> None:
        agent = Agent(tmp_path, log=log)
        agent.start()
        await until(lambda: agent.probed(ONE))
        assert agent.faults == [], "what was before the first start is not ours"
        with log.open("a") as kernel:
            kernel.write(xid_line(3, 94))
        await until(lambda: agent.faults)
        heard = (tmp_path / MARKS).read_bytes()
        agent.watch.close()
        with log.open("a") as kernel:
            kernel.write(xid_line(4, 79))
        (tmp_path / MARKS).write_bytes(heard)  # As SIGKILL would have left it.
        again = Agent(tmp_path, log=log)
        again.start()
        assert again.watch.conditions()[ONE].state == "draining"
        await until(lambda: again.faults)
        assert [fault.xid for fault in again.faults] == [79]
        assert again.watch.conditions()[ONE].state == "lost"
        again.watch.close()
        third = Agent(tmp_path, log=log)
        third.start()
        await until(lambda: third.probed(ONE))
        assert third.faults == []
        third.watch.close()

    asyncio.run(story())


def test_what_is_known_of_a_device_that_is_not_watched_now_is_kept(gpus: MockGpus, tmp_path: Path) -> None:
    other = NotedCause(uuid="GPU-other", state="draining", why="Xid 48", since_s=1.0)
    (tmp_path / MARKS).write_bytes(msgspec.json.encode(DeviceStateStore(boot_id=boot_id(), marks=(other,))))
    agent = Agent(tmp_path)
    agent.watch.close()
    kept = msgspec.json.decode((tmp_path / MARKS).read_bytes(), type=DeviceStateStore)
    assert [(noted.uuid, noted.state) for noted in kept.marks] == [("GPU-other", "draining")]


def test_a_lost_gpu_is_waited_for_until_its_watcher_has_spoken_in_this_life(
    gpus: MockGpus, tmp_path: Path
) -> None:
    """The agent before may have been killed between the mark and the news: they are read again."""
    log = tmp_path / "kmsg"
    log.write_text("6,1,1,-;booting\n" + xid_line(2, 79))
    noted = NotedCause(uuid=ONE, state="lost", why="Xid 79", since_s=1.0)
    states = DeviceStateStore(boot_id=boot_id(), marks=(noted,), pasts=(PastStates(uuid=ONE, record=1),))
    (tmp_path / MARKS).write_bytes(msgspec.json.encode(states))

    async def story() -> None:
        agent = Agent(tmp_path, log=log)
        agent.start()
        assert await agent.watch.given_back(KEY, (ONE,)) == {}
        assert [fault.xid for fault in agent.faults] == [79], "told before the answer"
        agent.watch.close()

    asyncio.run(story())


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.agent.gpus.test_gpu_watch import ONE, Agent, until

async def story():
    agent = Agent(Path(sys.argv[1]), log=Path(sys.argv[2]))
    agent.start()
    await until(lambda: agent.probed(ONE))
    agent.watch._write()
    agent.watch._write = lambda: os.kill(os.getpid(), signal.SIGKILL)
    print("ready", flush=True)
    await until(lambda: False)

asyncio.run(story())
"""


def test_what_an_agent_had_heard_and_not_written_when_it_was_killed_is_read_again(
    gpus: MockGpus, tmp_path: Path
) -> None:
    """SIGKILL in the very call that would have written the mark."""
    log = tmp_path / "kmsg"
    log.write_text("6,1,1,-;booting\n")
    words = [sys.executable, "-c", KILLED, str(tmp_path), str(log)]
    root = Path(__file__).parents[3]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=root) as killed:
        assert killed.stdout is not None and killed.stdout.readline() == b"ready\n"
        with log.open("a") as kernel:
            kernel.write(xid_line(2, 48))
        assert killed.wait(within_s(60)) == -9
    kept = msgspec.json.decode((tmp_path / MARKS).read_bytes(), type=DeviceStateStore)
    assert kept.marks == ()

    async def story() -> None:
        again = Agent(tmp_path, log=log)
        assert again.watch.conditions()[ONE] == DeviceCondition(), (
            "this is what is lost, until the log is read"
        )
        again.start()
        await until(lambda: again.faults)
        assert again.watch.conditions()[ONE].state == "draining"
        again.watch.close()

    asyncio.run(story())


def test_an_agent_that_dies_between_the_mark_and_the_news_tells_it_again(
    gpus: MockGpus, tmp_path: Path
) -> None:
    log = tmp_path / "kmsg"
    log.write_text("6,1,1,-;booting\n")

    class Killed(BaseException):
        pass

    async def story() -> None:
        agent = Agent(tmp_path, log=log)
        agent.start()
        await until(lambda: agent.probed(ONE))
        agent.watch._write()

        def die(said: object) -> None:
            raise Killed

        agent.watch._post = die
        before = agent.watch.health.pasts
        seen = XidSeen(uuid=ONE, xid=95, record=2)
        with pytest.raises(Killed):
            agent.watch._heard(seen)
        for watcher in agent.watch._watchers:
            watcher.close()
            watcher.wait()
        kept = msgspec.json.decode((tmp_path / MARKS).read_bytes(), type=DeviceStateStore)
        assert [noted.state for noted in kept.marks] == ["draining"], "the device is out before anybody hears"
        assert [past.record for past in kept.pasts] == [past.record for past in before], "and not dealt with"
        log.write_text("6,1,1,-;booting\n" + xid_line(2, 95))
        again = Agent(tmp_path, log=log)
        again.start()
        await until(lambda: again.faults)
        assert again.faults[0].xid == 95
        again.watch.close()

    asyncio.run(story())


def test_the_condition_of_a_gpu_counts_more_than_its_locks_and_passes(tmp_path: Path) -> None:
    locks = DeviceLocks(LockFolders(shared=tmp_path, is_root=False))
    found = GpuFacts(index=0, uuid=ONE, memory_mib=80_000, taken_mib=600, compute_mode=3)
    (device,) = cuda_devices([found], HOST)
    bad = {ONE: DeviceCondition(state="draining", note="draining: Xid 48")}
    (out,) = offer_devices((device,), locks, bad)
    assert (out.state, out.healthy, out.note, out.max_tenants) == ("draining", False, "draining: Xid 48", 1)
    (again,) = offer_devices((out,), locks, {ONE: DeviceCondition()})
    assert (again.state, again.healthy, again.note) == ("ok", True, "")
    (by_mps,) = offer_devices((msgspec.structs.replace(device, sharing="mps"),), locks, {})
    assert by_mps.max_tenants == 2, "the one process that may open it is the MPS server"
    locks.release()


@pytest.mark.parametrize("text", ["{", '{"version": 9, "boot_id": ""}'])
def test_marks_that_cannot_be_read_are_no_marks(tmp_path: Path, text: str) -> None:
    (tmp_path / MARKS).write_text(text)
    assert Agent(tmp_path).watch.conditions()[ONE] == DeviceCondition()


def test_an_error_beside_a_client_whose_daemon_is_in_trouble_is_not_taken_for_one_process_own(
    gpus: MockGpus, tmp_path: Path
) -> None:
    async def story(mps: bool) -> GpuFault:
        agent = Agent(tmp_path)
        there = Attempt(
            job_id=JobId("7"), attempt=AttemptNo(1), command_id=CommandId(1),
            devices=(agent.devices[1].device_id,), mps=mps,
        )  # fmt: skip
        assert agent.devices[1].sharing == "time-slicing"
        agent.running = [there]
        agent.start()
        await until(lambda: agent.probed(TWO))
        gpus.say("xid 1 31")
        await until(lambda: agent.faults)
        agent.watch.close()
        gpus.unsay("xid")
        return agent.faults[0]

    assert asyncio.run(story(mps=True)).ends
    assert not asyncio.run(story(mps=False)).ends
