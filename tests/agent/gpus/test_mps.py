"""MPS in the agent: which devices, what the loop hears of their daemons, who is a client and who is not.

The control program is the stub of tests/mps, on PATH like the real one; nothing here proves anything of
a GPU.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec
import pytest

from cotenant.agent import __main__ as agent
from cotenant.agent.daemon.core.edge import (
    AnyAgentEvent,
    ClientsCounted,
    DevicesChanged,
    GpuFault,
    Say,
    TroubleNoticed,
)
from cotenant.agent.daemon.core.remembered import Attempt
from cotenant.agent.daemon.core.state import AgentState
from cotenant.agent.daemon.core.tenants import Live
from cotenant.agent.gpus import mps_edge, mps_rules
from cotenant.agent.gpus.mps_edge import MpsEdge
from cotenant.agent.gpus.mps_rules import Setup, mark_shared, number_devices, plan
from cotenant.agent.gpus.mps_watch import (
    ELSEWHERE,
    LOOKS_MAX,
    GpuUse,
    MpsWatch,
    client_of,
    look_for,
    verdict,
)
from cotenant.agent.ipc.files import write_record
from cotenant.agent.ipc.records import ORDER, MpsClient, Order, RankOrder, attempt_folder, job_socket
from cotenant.checkpoint.talk.protocol import ENV_SOCKET
from cotenant.controller.domain import AttemptNo, CommandId, Device, HostId, JobId, sharing_in_words
from cotenant.controller.domain import events as ev
from cotenant.controller.system.sections import MpsSettings
from cotenant.mps import process
from cotenant.mps.detection import DetectedHost
from cotenant.mps.environment import NOT_A_CLIENT, PIPE_DIRECTORY, host_daemon, pipe_directory
from cotenant.profiler.driver.facts import COMPUTE_EXCLUSIVE_PROCESS, GpuFacts
from tests.agent.daemon import test_edge_parts, test_state
from tests.building import hosts
from tests.building.hosts import agent_config
from tests.building.orders import gang
from tests.mps.conftest import Place, host, make_place, stub_in
from tests.processes import await_shown

HOST = HostId("h1")
Mode = Literal["auto", "per-device"]
A, B, C = (f"GPU-{digit * 8}-2222-3333-4444-555555555555" for digit in "abc")
DAEMON_WELL = {A: "", B: ""}


def gpu_device(uuid: str, **other: Any) -> Device:
    return hosts.gpu(f"h1/gpu-{uuid[4]}", uuid, **{"memory_mib": 9, **other})


def gpu(uuid: str, **other: Any) -> GpuFacts:
    plain: dict[str, Any] = {"memory_mib": 9, "capability": (9, 0), "compute_mode": 0}
    return GpuFacts(index=0, uuid=uuid, **{**plain, **other})


def planned(
    settings: MpsSettings, *, where: DetectedHost | None = None, one_uid: bool = True, **gpus: Any
) -> Setup:
    devices = (gpu_device(A), gpu_device(B))
    known = (gpu(A), gpu(B, **gpus))
    return plan(settings, where or host(), devices, known, logs=Path("/s"), owner="t", one_uid=one_uid)


# --- The plan --------------------------------------------------------------------------------------


RUNTIME = PurePosixPath("/run/cotenant")


def test_one_daemon_serves_all_gpus_in_a_short_place() -> None:
    setup = planned(MpsSettings(active_thread_percentage=50.0))
    (spec,) = setup.specs
    assert (spec.devices, spec.percentage) == ((A, B), 50.0)
    assert spec.pipe_directory == pipe_directory(RUNTIME, host_daemon(1000, one_uid=True))
    assert (setup.runtime, setup.host_devices, setup.why_not) == ("/run/cotenant", (A, B), {})
    assert setup.spec_of_user(1000) is None, "all jobs are of one user"


def test_where_several_users_have_jobs_each_has_a_daemon_for_all_gpus() -> None:
    setup = planned(MpsSettings(), where=host(uid=0), one_uid=False)
    root, one, other = setup.specs[0], setup.spec_of_user(1001), setup.spec_of_user(1002)
    assert one is not None
    assert other is not None
    assert setup.spec_of_user(0) == root
    assert {spec.devices for spec in (root, one, other)} == {(A, B)}
    assert len({spec.pipe_directory for spec in (root, one, other)}) == 3
    assert len({spec.log_directory for spec in (root, one, other)}) == 3
    assert one.pipe_directory == pipe_directory(RUNTIME, host_daemon(1001, one_uid=False))
    assert [spec.client_uid for spec in (root, one, other)] == [0, 1001, 1002]


@pytest.mark.parametrize("one_uid", [True, False])
def test_each_gpu_gets_a_daemon_of_its_own_where_that_is_asked_for(one_uid: bool) -> None:
    setup = planned(MpsSettings(mode="per-device"), one_uid=one_uid)
    assert [spec.devices for spec in setup.specs] == [(A,), (B,)]
    assert setup.specs[0].pipe_directory == pipe_directory(RUNTIME, A)
    assert (setup.host_devices, setup.spec_of_user(1001)) == ((), None)


@pytest.mark.parametrize(
    ("mode", "one_uid", "groups"),
    [("auto", False, [(A,)]), ("auto", True, [(A, B)]), ("per-device", False, [(A,), (B,)])],
)
def test_in_exclusive_process_mode_no_user_gets_a_daemon_of_their_own(
    mode: Mode, one_uid: bool, groups: list[tuple[str, ...]]
) -> None:
    """One user's idle server would keep the others out: such a GPU has one tenant."""
    setup = planned(MpsSettings(mode=mode), one_uid=one_uid, compute_mode=COMPUTE_EXCLUSIVE_PROCESS)
    assert [spec.devices for spec in setup.specs] == groups
    second = mark_shared((gpu_device(A), gpu_device(B, max_tenants=1)), setup, DAEMON_WELL)[1]
    is_refused = mode == "auto" and not one_uid
    assert second.sharing == ("time-slicing" if is_refused else "mps")
    assert ("EXCLUSIVE_PROCESS" in second.sharing_note) == is_refused


WHY_NOT = {
    "switched off": ({"where": host(allowed=False)}, "switched off"),
    "no control program": ({"where": host(control_path=None)}, "is not on PATH"),
    "a GPU before Volta": ({"capability": (6, 1)}, "6.1"),
    "a GPU that NVML says nothing of": ({"capability": None}, "unknown"),
    "MIG": ({"mig": True}, "MIG"),
}


@pytest.mark.parametrize(("changes", "why"), WHY_NOT.values(), ids=WHY_NOT.keys())
def test_a_gpu_without_mps_says_why(changes: dict[str, Any], why: str) -> None:
    setup = planned(MpsSettings(), **changes)
    assert why in setup.why_not[B]
    second = mark_shared((gpu_device(A), gpu_device(B)), setup, DAEMON_WELL)[1]
    assert second.sharing == "time-slicing"
    assert why in sharing_in_words(second)
    assert B not in {uuid for spec in setup.specs for uuid in spec.devices}


# --- How devices are shared ------------------------------------------------------------------------


def test_a_gpu_is_shared_through_mps_once_its_daemon_was_seen_to_work() -> None:
    setup = planned(MpsSettings())
    devices = (gpu_device(A), gpu_device(B), test_state.device(0))
    unseen = mark_shared(devices, setup, {})
    assert [device.sharing_note for device in unseen] == [mps_rules.NOT_SEEN, mps_rules.NOT_SEEN, ""]
    ready = mark_shared(unseen, setup, {A: "", B: "it does not answer"})
    assert [device.sharing for device in ready] == ["mps", "time-slicing", "time-slicing"]
    assert [device.sharing_note for device in ready] == ["", "it does not answer", ""]


def test_a_gpu_goes_back_to_mps_only_when_no_job_without_it_is_left() -> None:
    setup = planned(MpsSettings())
    sliced = mark_shared((gpu_device(A),), setup, {A: "wedged"})
    still = mark_shared(sliced, setup, {A: ""}, plain=frozenset((A,)))
    assert (still[0].sharing, still[0].sharing_note) == (
        "time-slicing",
        "a job that was started without MPS runs on it",
    )
    assert mark_shared(still, setup, {A: ""})[0].sharing == "mps"
    assert (
        mark_shared((gpu_device(A, sharing="mps"),), setup, {A: ""}, plain=frozenset((A,)))[0].sharing
        == "mps"
    )


# --- Attached or not -------------------------------------------------------------------------------


SLEEP = ("sleep", "1000")


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = make_place(stub_in(tmp_path_factory.mktemp("bin")))
    monkeypatch.setenv("MPS_STUB_WORLD", str(made.world))
    monkeypatch.setenv("PATH", f"{Path(made.program).parent}:{os.environ['PATH']}")
    yield made
    made.clear()


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEP, env={ENV_SOCKET: "/a/b/cotenant.sock"}) as process:
        try:
            await_shown(process.pid, *SLEEP)
            yield process
        finally:
            process.kill()


def order(workdir: Path, pipe: Path | None, *, whole: bool = False) -> Order:
    """`whole`: of a daemon for all devices."""
    uuid = "" if whole else A
    client = () if pipe is None else (MpsClient(pipe_directory=str(pipe), device_uuid=uuid),)
    return msgspec.structs.replace(test_edge_parts.order(workdir), mps=client)


def test_a_client_is_known_by_its_own_socket(place: Place, worker: subprocess.Popen[bytes]) -> None:
    place.start()
    place.tell(gpu=True, clients=[worker.pid])
    mine = client_of(order(place.base, place.pipe), "/a/b/cotenant.sock")
    others = client_of(order(place.base, place.pipe), "/a/c/cotenant.sock")
    assert mine is not None
    assert others is not None
    assert look_for(mine) == 1
    assert look_for(others) == 0
    nowhere = msgspec.structs.replace(mine, pipe_directories=(str(place.pipe), "/nowhere/x"))
    assert look_for(nowhere) is None
    assert client_of(order(place.base, None), "/a/b/cotenant.sock") is None


def test_one_look_is_no_proof_and_the_last_one_is_said() -> None:
    assert verdict(1, 1) == ""
    assert verdict(LOOKS_MAX - 1, 0) is None
    assert "time-slices" in (verdict(LOOKS_MAX, 0) or "")
    assert "could not be found out" in (verdict(LOOKS_MAX, None) or "")


def test_what_was_noticed_of_an_attempt_is_reported_once() -> None:
    state = AgentState(test_state.config())
    state.memory.attempts[JobId("7"), AttemptNo(1)] = Attempt(
        job_id=JobId("7"), attempt=AttemptNo(1), command_id=CommandId(1)
    )
    state._attempts._live[JobId("7"), AttemptNo(1)] = Live()
    noticed = TroubleNoticed(job_id=JobId("7"), attempt=AttemptNo(1), what="MPS: it did not attach")
    said = [effect for effect in state.handle(noticed, 1.0) if isinstance(effect, Say)]
    assert len(said) == 1
    reported = [event for event in state.memory.pending.values() if isinstance(event, ev.TroubleSeen)]
    assert [event.what for event in reported] == ["MPS: it did not attach"]
    assert state.handle(noticed, 2.0) == []


# --- The edge --------------------------------------------------------------------------------------


MODES: tuple[Mode, ...] = ("auto", "per-device")


class Scene:
    """An agent's loop with GPUs (one, unless said otherwise), jobs on them, and daemons of the stub's."""

    def __init__(
        self,
        place: Place,
        *,
        client: bool = True,
        mode: Mode = "auto",
        uuids: tuple[str, ...] = (A,),
        one_uid: bool = True,
    ) -> None:
        self.place = place
        runtime = PurePosixPath(place.base)
        self.setup = plan(
            MpsSettings(mode=mode),
            host(control_path=place.program, runtime=runtime, version=(13, 1), uid=1000 if one_uid else 0),
            tuple(map(gpu_device, uuids)),
            tuple(map(gpu, uuids)),
            logs=place.base,
            owner="agent-7",
            one_uid=one_uid,
        )
        self.pipe = Path(self.setup.specs[0].pipe_directory)
        device = mark_shared(tuple(map(gpu_device, uuids)), self.setup, dict.fromkeys(uuids, ""))
        self.state = AgentState(agent_config(device, uid=os.getuid()))
        self.events: list[AnyAgentEvent] = []
        self.lines: list[str] = []
        self.folder = place.base / "attempts"
        self.mps = mps_edge.Mps(setup=self.setup, watch=MpsWatch(self.setup.specs), devices=device, said=())
        self.edge = MpsEdge(
            self.mps,
            self.state,
            folder=lambda job, number: attempt_folder(self.folder, job, number),
            post=self.post,
            log=self.lines.append,
        )
        self.client = client

    def post(self, event: AnyAgentEvent) -> None:
        self.events.append(event)
        self.state.handle(event, float(len(self.events)))

    def run_job(self, number: str = "7", uuids: tuple[str, ...] = (A,)) -> Path:
        """A job on the GPU, after its first step; the path of its socket."""
        key = JobId(number), AttemptNo(1)
        folder = attempt_folder(self.folder, *key)
        folder.mkdir(parents=True)
        devices = tuple(gpu_device(uuid).device_id for uuid in uuids)
        made = order(folder, self.pipe if self.client else None, whole=bool(self.setup.host_devices))
        start = msgspec.structs.replace(made.start, gang=gang(devices), host_id=HOST, job_id=key[0])
        write_record(folder / ORDER, msgspec.structs.replace(made, start=start))
        self.state.memory.attempts[key] = Attempt(
            job_id=key[0], attempt=key[1], command_id=CommandId(1), devices=devices, first_step=True
        )
        self.state._attempts._live[key] = Live()
        return job_socket(folder)

    def end_job(self, number: str = "7") -> None:
        del self.state._attempts._live[JobId(number), AttemptNo(1)]

    @property
    def device(self) -> Device:
        return self.state.config.report.devices[0]

    def daemon(self) -> process.FoundProcess:
        (found,) = [each for each in process.look_around().daemons if each.pipe_directory == str(self.pipe)]
        return found

    def clear(self) -> None:
        """The daemon is not in the place's own directory."""
        for found in (*process.look_around().daemons, *process.look_around().servers):
            if found.pipe_directory == str(self.pipe):
                process.end(found.identity, 10)


@pytest.fixture(params=MODES)
def scene(place: Place, request: pytest.FixtureRequest) -> Iterator[Scene]:
    made = Scene(place, mode=request.param)
    yield made
    made.clear()


def test_a_daemon_that_died_is_started_again_and_said_and_an_idle_agent_ends_it(scene: Scene) -> None:
    async def play() -> None:
        await scene.edge.look()
        first = scene.daemon()
        assert process.end(first.identity, 10)
        scene.edge._watch._daemons[scene.setup.specs[0]]._start_at_s = 0.0
        await scene.edge.look()
        assert scene.daemon().identity != first.identity
        assert "started again, since no daemon runs" in scene.lines[-1]
        assert scene.events == []
        await scene.edge.leave()

    asyncio.run(play())
    assert [each for each in process.look_around().daemons if each.pipe_directory == str(scene.pipe)] == []


def test_what_is_wrong_with_a_daemon_is_known_as_long_as_it_is(scene: Scene) -> None:
    async def play() -> None:
        assert scene.edge.wrong == {}, "nothing was seen yet"
        await scene.edge.look()
        assert scene.edge.wrong == {A: ""}
        assert process.end(scene.daemon().identity, 10)
        await scene.edge.look()
        assert scene.edge.wrong[A], "none is started right after another"
        scene.edge._watch._daemons[scene.setup.specs[0]]._start_at_s = 0.0
        await scene.edge.look()
        assert scene.edge.wrong == {A: ""}
        await scene.edge.leave()

    asyncio.run(play())


def test_an_agent_that_leaves_jobs_behind_leaves_their_daemon_and_the_next_goes_on_with_it(
    scene: Scene,
) -> None:
    scene.run_job()

    async def play() -> None:
        await scene.edge.look()
        await scene.edge.leave()

    asyncio.run(play())
    before = scene.daemon()
    again = Scene(scene.place, mode="auto" if scene.setup.host_devices else "per-device")
    asyncio.run(again.edge.look())
    assert again.daemon() == before
    assert "goes on with its MPS daemon" in again.lines[0]


def test_a_fault_reaches_the_state_machine_with_the_devices(
    scene: Scene, worker: subprocess.Popen[bytes]
) -> None:
    scene.place.tell(gpu=True, clients=[worker.pid])
    scene.run_job()

    async def play() -> None:
        await scene.edge.look()
        scene.place.tell(gpu=True, clients=[worker.pid], fault=True)
        scene.edge._watch._daemons[scene.setup.specs[0]]._ask_at_s = 0.0
        await scene.edge.look()

    asyncio.run(play())
    assert GpuFault(uuids=(A,), why="its MPS server is in FAULT", one_server=True) in scene.events
    assert scene.device.sharing == "time-slicing"
    assert "every client has to end first" in scene.device.sharing_note


def test_who_asks_hears_of_a_fault_before_the_answer_though_the_daemon_seems_well(
    scene: Scene, worker: subprocess.Popen[bytes]
) -> None:
    scene.place.tell(gpu=True, clients=[worker.pid])
    scene.run_job()

    async def play() -> None:
        await scene.edge.look()
        scene.place.tell(gpu=True, clients=[worker.pid], fault=True)
        await scene.edge.look()
        assert not any(isinstance(event, GpuFault) for event in scene.events), "it was asked a moment ago"
        running = asyncio.create_task(scene.edge.run())
        await scene.edge.wait_for_look()
        assert GpuFault(uuids=(A,), why="its MPS server is in FAULT", one_server=True) in scene.events
        running.cancel()
        await scene.edge.leave()

    asyncio.run(play())


def test_a_fault_of_a_daemon_for_all_gpus_ends_who_is_connected_with_the_one_that_it_was_on(
    place: Place, worker: subprocess.Popen[bytes]
) -> None:
    scene = Scene(place, uuids=(A, B, C))
    for number, uuids in (("7", (A,)), ("8", (A, B)), ("9", (C,))):
        scene.run_job(number, uuids)

    async def play() -> None:
        place.tell(gpu=True, clients=[worker.pid])
        await scene.edge.look()
        scene.state.handle(GpuFault(uuids=(A,), why="Xid 31", xid=31), 1.0)
        place.tell(gpu=True, clients=[worker.pid], fault=True)
        scene.edge._watch._daemons[scene.setup.specs[0]]._ask_at_s = 0.0
        await scene.edge.look()
        faults = [event.uuids for event in scene.events if isinstance(event, GpuFault)]
        assert faults == [(A, B)], "who is on the third GPU goes on"
        assert {device.sharing for device in scene.state.config.report.devices} == {"time-slicing"}
        scene.end_job("7")
        scene.end_job("8")
        place.tell(gpu=True, clients=[worker.pid])
        await scene.edge.look()
        assert {device.sharing for device in scene.state.config.report.devices} == {"mps"}
        assert [event.uuids for event in scene.events if isinstance(event, GpuFault)] == [(A, B)]

    try:
        asyncio.run(play())
    finally:
        scene.clear()


def test_a_server_that_goes_takes_all_its_clients_and_no_others_with_it(
    place: Place, worker: subprocess.Popen[bytes]
) -> None:
    scene = Scene(place, uuids=(A, B, C))
    scene.run_job("7", (A,))
    scene.run_job("8", (B,))

    async def play() -> None:
        place.tell(gpu=True, clients=[worker.pid])
        await scene.edge.look()
        (server,) = [each for each in process.look_around().servers if each.pipe_directory == str(scene.pipe)]
        place.tell(gpu=False)
        assert process.end(server.identity, 10)
        await scene.edge.look()

    try:
        asyncio.run(play())
    finally:
        scene.clear()
    (fault,) = [event for event in scene.events if isinstance(event, GpuFault)]
    assert fault.uuids == (A, B)
    assert "went away under 1 clients" in fault.why


def test_each_users_daemon_is_there_before_a_first_job_of_theirs_and_goes_after_the_last(
    place: Place,
) -> None:
    scene = Scene(place, uuids=(A, B), one_uid=False)
    place.base.chmod(0o711)
    theirs = scene.setup.spec_of_user(1001)
    assert theirs is not None
    scene.pipe = Path(theirs.pipe_directory)

    async def play() -> None:
        await scene.edge.look()
        made = order(place.base, scene.pipe, whole=True)
        launch = msgspec.structs.replace(made.launch, uid=1001)
        made = msgspec.structs.replace(made, start=msgspec.structs.replace(made.start, launch=launch))
        assert not scene.edge.serves(made)
        key = made.job_id, made.attempt
        scene.state.memory.attempts[key] = Attempt(job_id=key[0], attempt=key[1], command_id=CommandId(1))
        scene.state._attempts._live[key] = Live()
        await scene.edge.serve(made)
        assert scene.edge.serves(made)
        assert (process.environment_of(scene.daemon().identity.pid) or {})[
            "CUDA_VISIBLE_DEVICES"
        ] == f"{A},{B}"
        await scene.edge.look()
        daemon = scene.daemon()
        del scene.state._attempts._live[key]
        await scene.edge.look()
        assert not process.is_alive(daemon.identity)
        assert "its user has no job here" in scene.lines[-1]
        await scene.edge.leave()

    try:
        asyncio.run(play())
    finally:
        scene.clear()


def test_a_client_of_a_daemon_that_serves_its_device_no_more_keeps_it_out(place: Place) -> None:
    """It was started under another `mps.mode`."""
    scene = Scene(place)
    scene.pipe = Path("/run/cotenant/mps/of-before")
    scene.run_job()
    assert scene.edge._plain() == {A}


@pytest.mark.parametrize(
    "changes",
    [{"state": "lost"}, {"state": "draining"}, {"note": "taken: in use by bob"}],
    ids=["lost", "in need of a reset", "another agent's"],
)
def test_a_gpu_that_cannot_be_used_is_in_no_daemon_that_is_started_and_takes_none_with_it(
    place: Place, changes: dict[str, Any]
) -> None:
    """CUDA shows no device behind one that it cannot find: the first one here."""
    scene = Scene(place, uuids=(A, B, C))
    whole = scene.state.config.report.devices
    without = (msgspec.structs.replace(whole[0], healthy=False, **changes), *whole[1:])

    async def look(devices: tuple[Device, ...]) -> tuple[str, tuple[str, ...]]:
        """What the daemon serves, and how the GPUs are shared."""
        scene.post(DevicesChanged(devices=devices))
        await scene.edge.look()
        shared = tuple(device.sharing for device in scene.state.found_devices)
        return ",".join(scene.daemon().devices), shared

    async def play() -> None:
        mps, turns = "mps", "time-slicing"
        assert await look(whole) == (f"{A},{B},{C}", (mps, mps, mps))
        scene.run_job("7", (C,))
        assert await look(without) == (f"{A},{B},{C}", (mps, mps, mps)), "nothing is ended under a job"
        scene.end_job("7")
        scene.edge._watch._daemons[scene.setup.specs[0]]._start_at_s = 0.0
        assert await look(without) == (f"{B},{C}", (turns, mps, mps))
        scene.run_job("8", (C,))
        assert await look(whole) == (f"{B},{C}", (turns, mps, mps)), "and by its own numbers"
        numbered = scene.edge.number(order_on(scene.pipe, (C,)))
        assert numbered.mps[0].device_numbers == (1,)
        assert scene.edge.number(order_on(scene.pipe, (A,))).mps == ()
        scene.end_job("8")
        scene.edge._watch._daemons[scene.setup.specs[0]]._start_at_s = 0.0
        assert await look(whole) == (f"{A},{B},{C}", (mps, mps, mps))

    try:
        asyncio.run(play())
    finally:
        scene.clear()


def order_on(pipe: Path, uuids: tuple[str, ...]) -> Order:
    made = order(pipe, pipe, whole=True)
    return msgspec.structs.replace(made, ranks=(RankOrder(rank=0, local_rank=0, cuda_uuids=uuids),))


NUMBERS: dict[str, tuple[dict[str, tuple[str, ...]], tuple[int, ...] | None]] = {
    "in the daemon's order": ({"/p": (C, A, B)}, (2, 0)),
    "of one that began with less": ({"/p": (B, C)}, (0, 1)),
    "a device that it lacks": ({"/p": (A, B)}, None),
    "a daemon that does not work now": ({}, None),
    "another user's": ({"/q": (A, B, C)}, None),
}


@pytest.mark.parametrize(("serving", "numbers"), NUMBERS.values(), ids=NUMBERS.keys())
def test_an_order_has_the_numbers_of_the_daemon_that_runs_or_no_mps(
    serving: dict[str, tuple[str, ...]], numbers: tuple[int, ...] | None
) -> None:
    numbered = number_devices(order_on(Path("/p"), (B, C)), serving)
    assert [client.device_numbers for client in numbered.mps] == ([] if numbers is None else [numbers])
    assert (mps_rules.UNSERVED in numbered.notes) == (numbers is None)


def test_a_host_whose_servers_do_not_start_takes_turns_and_says_why(scene: Scene) -> None:
    scene.place.tell(gpu=False)
    asyncio.run(scene.edge.look())
    assert scene.device.sharing == "time-slicing"
    assert "its MPS server does not start: Failed to start" in sharing_in_words(scene.device)
    assert scene.edge._serving == {}


def test_a_device_whose_daemon_is_not_ours_time_slices_and_its_name_is_told(scene: Scene) -> None:
    scene.pipe.mkdir(parents=True, exist_ok=True)
    stranger = scene.place.run("-d", CUDA_MPS_PIPE_DIRECTORY=str(scene.pipe))
    assert stranger.returncode == 0
    asyncio.run(scene.edge.look())
    (changed,) = scene.events
    assert isinstance(changed, DevicesChanged)
    assert f"pid {scene.daemon().identity.pid} of uid {os.getuid()}" in sharing_in_words(scene.device)
    assert "time-slicing: somebody else's daemon" in scene.lines[-1]


def test_a_job_that_did_not_attach_is_said_to_time_slice_once(scene: Scene) -> None:
    scene.run_job()

    async def play() -> None:
        for _ in range(LOOKS_MAX + 1):
            await scene.edge.look()

    asyncio.run(play())
    assert [event.what for event in scene.events if isinstance(event, TroubleNoticed)] == [ELSEWHERE]
    assert scene.edge.facts().unproven == ()


def test_a_job_that_attached_is_not_talked_about(scene: Scene) -> None:
    socket = scene.run_job()
    with subprocess.Popen(SLEEP, env={ENV_SOCKET: str(socket)}) as client:
        try:
            scene.place.tell(gpu=True, clients=[await_shown(client.pid, *SLEEP)])
            asyncio.run(scene.edge.look())
        finally:
            client.kill()
    assert scene.events == []
    assert scene.edge.facts().unproven == ()


def test_a_worker_that_opens_the_gpu_in_several_processes_is_counted(scene: Scene) -> None:
    env = {ENV_SOCKET: str(scene.run_job())}
    with subprocess.Popen(SLEEP, env=env) as one, subprocess.Popen(SLEEP, env=env) as two:
        try:
            scene.place.tell(gpu=True, clients=[await_shown(each.pid, *SLEEP) for each in (one, two)])
            asyncio.run(scene.edge.look())
        finally:
            one.kill()
            two.kill()
    (counted,) = scene.events
    assert isinstance(counted, ClientsCounted)
    assert counted.processes == 2


def test_facts_name_what_runs_and_what_is_not_ours(place: Place) -> None:
    scene = Scene(place, client=False)
    scene.run_job()
    mine = frozenset((A,))
    assert scene.edge.facts() == GpuUse(usable=mine), "it is no client: a daemon can be replaced beside it"
    assert scene.edge._plain() == mine
    scene.end_job()
    assert scene.edge.facts() == GpuUse(usable=mine)
    taken = (gpu_device(A, healthy=False, note="taken: in use by bob"),)
    assert mps_edge.usable_gpus(taken) == frozenset()
    assert "can be used now" in MpsWatch(scene.setup.specs).look(GpuUse()).why_not[A]


def test_what_an_agent_starts_is_no_client_of_a_daemon_that_happens_to_be_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PIPE_DIRECTORY, "/tmp/nvidia-mps")
    umask = os.umask(0o022)
    try:
        assert agent.main(["--set", "no.such=1"]) == agent.USAGE
    finally:
        os.umask(umask)
    assert os.environ[PIPE_DIRECTORY] == NOT_A_CLIENT[PIPE_DIRECTORY]


def test_a_host_without_gpus_has_nothing_to_do_with_mps(tmp_path: Path) -> None:
    devices = (test_state.device(0),)
    mps = mps_edge.prepare(MpsSettings(), devices, (), state_dir=tmp_path, attempts=tmp_path, owner="t")
    assert (mps.setup.specs, mps.devices, mps.said) == ((), devices, ())


def test_an_agent_starts_with_working_daemons_and_says_what_it_does(place: Place, tmp_path: Path) -> None:
    settings = MpsSettings(runtime_dir=str(place.base))

    def prepare(settings: MpsSettings) -> mps_edge.Mps:
        devices = (gpu_device(A), gpu_device(B))
        known = (gpu(A), gpu(B))
        return mps_edge.prepare(
            settings, devices, known, state_dir=tmp_path, attempts=tmp_path / "attempts", owner="agent-9"
        )

    mps = prepare(settings)
    assert [device.sharing for device in mps.devices] == ["mps", "mps"]
    assert mps.setup.runtime == str(place.base)
    assert "stand-in for tests" in mps.said[0]
    assert "one daemon" in mps.said[1]
    assert "for all devices" in mps.said[1]
    assert "MPS daemon started" in mps.said[2]
    (found,) = [each for each in process.look_around().daemons if each.owner == "agent-9"]
    mps.watch.release()
    off = prepare(MpsSettings(mode="off", runtime_dir=str(place.base)))
    assert "not needed any more" in off.said[0]
    assert {device.sharing_note for device in off.devices} == {"switched off in the agent's settings"}
    assert not process.is_alive(found.identity)


# --- Static partitions -----------------------------------------------------------------------------


def test_a_mistake_in_the_thread_reaches_the_loop() -> None:
    watch = MpsWatch(())

    def fail() -> str:
        raise ZeroDivisionError

    async def play() -> None:
        with pytest.raises(ZeroDivisionError):
            await watch._run_in_thread(fail)
        await watch.leave(quit_daemons=False)

    asyncio.run(play())
