"""From a start to the environment of MPS clients and of NCCL: tables of placements and what follows."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from cotenant.agent.daemon.core.edge import (
    AgentConfig,
    ClientsCounted,
    EndCame,
    MemoryFree,
    StartSupervisor,
)
from cotenant.agent.daemon.core.orders import (
    CUDA_PROCESSES,
    MPS_LIMIT_MIB_MIN,
    cuda_processes,
    objection,
    order_for,
)
from cotenant.agent.ipc.files import read_record, write_record
from cotenant.agent.ipc.records import Order, WatchRule
from cotenant.agent.supervisor.processes.environment import Account, environment_of
from cotenant.checkpoint.device_limit import share_of
from cotenant.checkpoint.talk.protocol import JobEnvironment
from cotenant.controller.domain import (
    AttemptNo,
    CommandId,
    Device,
    HostId,
    JobId,
    Launch,
    SharingMode,
    StartAttempt,
)
from cotenant.mps.environment import NOT_A_CLIENT, host_daemon, pipe_directory
from tests.agent.daemon import test_state
from tests.agent.daemon.test_state import only, welcomed
from tests.building import hosts
from tests.building.hosts import agent_config, cpu, host
from tests.building.orders import gang
from tests.building.results import result

HOST = HostId("h")
UUIDS = tuple(f"GPU-{no:08x}-0000-0000-0000-000000000000" for no in range(4))
PIPES = {uuid: f"/run/c/mps/{pipe_directory(PurePosixPath('/run/c'), uuid).name}" for uuid in (*UUIDS, "")}
MPS_NAMES = {
    "pipe": "CUDA_MPS_PIPE_DIRECTORY",
    "percentage": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "limit": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
}


def gpu(no: int, sharing: SharingMode = "mps", **fields: Any) -> Device:
    return hosts.gpu(f"h/gpu{no}", UUIDS[no], sharing=sharing, **fields)


def config(*devices: Device, **fields: Any) -> AgentConfig:
    return agent_config(devices or (gpu(0), gpu(1)), **{"mps_runtime": "/run/c", **fields})


def start(*argv: str, devices: int = 2, env: dict[str, str] | None = None, **fields: Any) -> StartAttempt:
    mode, uid = fields.pop("mode", "worker"), fields.pop("uid", 1000)
    watchdog_s = fields.pop("watchdog_s", None)
    launch = Launch(argv=argv or ("python", "t.py"), mode=mode, env=env or {}, uid=uid, watchdog_s=watchdog_s)
    on = gang([f"h/gpu{no}" for no in range(devices)])
    changes: dict[str, Any] = {"host_id": HOST, "launch": launch, "gang": on, **fields}
    return msgspec.structs.replace(test_state.start(), **changes)


def order_of(command: StartAttempt, settings: AgentConfig | None = None) -> Order:
    return order_for(command, {}, settings or config(), "/ckpt/j/7", None)


@pytest.mark.parametrize(
    ("own", "of_host", "by_index", "on_mig"),
    [
        ("", "uuid", False, "by UUID"),
        ("index", "uuid", True, "refused"),
        ("", "index", True, "by UUID"),
        ("uuid", "index", False, "by UUID"),
    ],
)
def test_devices_are_given_as_the_job_says_or_its_host_sets(
    own: str, of_host: str, by_index: bool, on_mig: str
) -> None:
    command = start(devices=1)
    command = msgspec.structs.replace(command, launch=msgspec.structs.replace(command.launch, devices_as=own))
    order = order_of(command, config(mps_host_devices=UUIDS, devices_as=of_host))
    assert (order.numbers_devices, bool(order.mps)) == (by_index, not by_index), "MPS would renumber them"
    assert all("numbers them anew" in note for note in order.notes) and bool(order.notes) == by_index
    part = gpu(0, "time-slicing", max_tenants=1, type="MIG-1g.10gb", parent=UUIDS[1])
    settings = config(part, devices_as=of_host)
    why = objection(command, settings, ())
    assert (on_mig == "refused") == ("which has no index" in why) == bool(why)
    assert why or not order_of(command, settings).numbers_devices


def env_of(order: Order, no: int = 0) -> dict[str, str]:
    return environment_of(order, order.ranks[no], Path("/a/s.sock"), Account())


def mps_of(order: Order, no: int = 0) -> dict[str, str]:
    env = env_of(order, no)
    return {word: env[name] for word, name in MPS_NAMES.items() if name in env}


# --- Who sees which devices, and is whose client ----------------------------------------------------


def test_with_a_daemon_per_device_each_worker_sees_its_own_device_is_local_rank_0_and_says_so() -> None:
    order = order_of(start())
    for no in (0, 1):
        env = env_of(order, no)
        assert env["CUDA_VISIBLE_DEVICES"] == UUIDS[no]
        assert (env["RANK"], env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == (str(no), "0", "2")
        assert mps_of(order, no) == {"pipe": PIPES[UUIDS[no]]}
    (note,) = order.notes
    assert "mps.mode = per-device" in note
    assert "LOCAL_RANK 0" in note
    assert "NCCL" in note
    assert order_of(start(devices=1)).notes == ()


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        pytest.param(config(mps_host_devices=UUIDS), start(), id="one daemon for the host"),
        pytest.param(config(mps_runtime=""), start(), id="no MPS here"),
        pytest.param(config(gpu(0, "time-slicing"), gpu(1, "time-slicing")), start(), id="no daemons"),
    ],
)
def test_everywhere_else_all_devices_are_visible_and_the_local_rank_is_the_true_one(
    settings: AgentConfig, command: StartAttempt
) -> None:
    order = order_of(command, settings)
    for no in (0, 1):
        env = env_of(order, no)
        assert (env["CUDA_VISIBLE_DEVICES"], env["LOCAL_RANK"]) == (",".join(UUIDS[:2]), str(no))


@pytest.mark.parametrize(
    ("name", "command", "settings", "why"),
    [
        ("a worker each", start(), config(), ""),
        ("one worker", start(devices=1), config(), ""),
        ("torchrun with one worker here", start("torchrun", "t.py", mode="host", devices=1), config(), ""),
        (
            "torchrun with two",
            start("torchrun", "t.py", mode="host"),
            config(),
            "its one process here has 2 devices",
        ),
        (
            "a process with two",
            start(mode="process"),
            config(),
            "its one process here has 2 devices",
        ),
        (
            "torchrun with two, one daemon",
            start("torchrun", "t.py", mode="host"),
            config(mps_host_devices=UUIDS),
            "",
        ),
        ("one without", start(), config(gpu(0), gpu(1, "time-slicing")), "h/gpu1 has no MPS daemon"),
        ("a path that no socket fits", start(), config(mps_runtime="/" + "x" * 90), "at most 87"),
    ],
)
def test_an_attempt_is_wholly_a_client_or_says_why_not(
    name: str, command: StartAttempt, settings: AgentConfig, why: str
) -> None:
    order = order_of(command, settings)
    assert bool(order.mps) == (not why), name
    sliced = [note for note in order.notes if note.startswith("time-slicing, not MPS: ")]
    assert len(sliced) == (1 if why else 0)
    assert all(why in note for note in sliced)
    assert (mps_of(order) == {"pipe": NOWHERE}) == bool(why), "what is no client is kept from /tmp/nvidia-mps"


def test_one_daemon_for_the_host_serves_every_worker() -> None:
    order = order_of(start(memory_cap_mib=20_000), config(mps_host_devices=UUIDS))
    expected = {"pipe": PIPES[""], "limit": "0=20000M,1=20000M"}
    assert (mps_of(order, 0), mps_of(order, 1)) == (expected, expected)
    assert order.notes == ()


def test_a_limit_holds_however_a_daemon_for_all_devices_and_its_client_count_them() -> None:
    """The gang's are the daemon's third and fourth, and the first two that the workers see."""
    settings = config(gpu(2), gpu(3), mps_host_devices=UUIDS)
    order = order_of(start(memory_cap_mib=20_000, gang=gang(("h/gpu2", "h/gpu3"))), settings)
    assert env_of(order)["CUDA_VISIBLE_DEVICES"] == ",".join(UUIDS[2:])
    client = msgspec.structs.replace(order.mps[0], device_numbers=(2, 3))
    numbered = msgspec.structs.replace(order, mps=(client,))
    assert mps_of(numbered)["limit"] == "0=20000M,1=20000M,2=20000M,3=20000M"


def test_where_each_user_has_a_daemon_a_job_is_the_client_of_its_users() -> None:
    settings = config(uid=0, mps_host_devices=UUIDS)
    pipes = {uid: mps_of(order_of(start(uid=uid), settings))["pipe"] for uid in (0, 1000, 1001)}
    assert pipes == {
        uid: str(pipe_directory(PurePosixPath("/run/c"), host_daemon(uid, one_uid=False))) for uid in pipes
    }
    assert len(set(pipes.values())) == 3


# --- Static partitions ------------------------------------------------------------------------------


def of_job(no: int, attempt: int = 1) -> dict[str, Any]:
    return {"job_id": JobId(str(no)), "attempt": AttemptNo(attempt)}


# --- Limits ----------------------------------------------------------------------------------------


def test_the_planned_part_is_each_clients_limit_on_the_device_that_it_sees() -> None:
    order = order_of(start(memory_cap_mib=30_000))
    assert [mps_of(order, no)["limit"] for no in (0, 1)] == ["0=30000M", "0=30000M"]
    assert order.torch_limit_mib == 30_000, "nothing tells whether the daemon enforces it"


def test_a_worker_that_opens_the_gpu_in_several_processes_has_its_part_divided_among_them() -> None:
    order = order_of(start(memory_cap_mib=30_000, env={CUDA_PROCESSES: "4"}))
    assert mps_of(order)["limit"] == "0=7500M"


@pytest.mark.parametrize(("cap_mib", "is_client"), [(4 * MPS_LIMIT_MIB_MIN, True), (4_000, False)])
def test_with_less_than_cuda_needs_to_start_as_a_client_it_takes_turns(cap_mib: int, is_client: bool) -> None:
    order = order_of(start(memory_cap_mib=cap_mib, env={CUDA_PROCESSES: "4"}))
    assert bool(order.mps) == is_client
    assert is_client or "each process may take 1000 MiB of device memory" in order.notes[0]


def test_what_an_earlier_attempt_was_seen_to_open_counts_as_well() -> None:
    agent = welcomed(report=host(HOST, gpu(0)), mps_runtime="/run/c", uid=1000)
    limits = []
    for no in (1, 2):
        number: dict[str, Any] = {"command_id": CommandId(no), "attempt": AttemptNo(no)}
        effects = agent.obey(start(devices=1, memory_cap_mib=30_000, **number))
        limits += [mps_of(each.order)["limit"] for each in only(StartSupervisor, effects)]
        of_it: dict[str, Any] = {"job_id": JobId("7"), "attempt": AttemptNo(no)}
        gone = result(attempt=no)
        agent.say(ClientsCounted(**of_it, processes=3), EndCame(result=gone), MemoryFree(**of_it))
    assert limits == ["0=30000M", "0=10000M"]


@given(st.text(max_size=6))
def test_whatever_is_said_of_processes_there_is_at_least_one_and_not_too_many(text: str) -> None:
    assert 1 <= cuda_processes({CUDA_PROCESSES: text}) <= 64


@pytest.mark.parametrize(
    "settings",
    [
        config(),
        config(mps_host_devices=UUIDS),
        config(mps_runtime=""),
        config(gpu(0), gpu(1, "time-slicing")),
    ],
    ids=("clients", "one daemon", "no MPS", "no client"),
)
@pytest.mark.parametrize(
    ("argv", "mode"),
    [
        (("python", "t.py"), "worker"),
        (("python", "parallel.py"), "host"),
        (("torchrun", "t.py"), "host"),
        (("accelerate", "launch", "t.py"), "host"),
        (("deepspeed", "t.py"), "host"),
    ],
    ids=" ".join,
)
def test_torch_is_told_what_was_planned_however_a_job_is_launched(
    argv: tuple[str, ...], mode: str, settings: AgentConfig
) -> None:
    """In MiB: devices differ in size, and torch wants a fraction of each."""
    order = order_of(start(*argv, mode=mode, memory_cap_mib=20_000), settings)
    for no in range(len(order.ranks)):
        assert env_of(order, no)["COTENANT_MEMORY_MIB"] == "20000"


SIZES = st.sampled_from([24_000, 40_000, 80_000, 141_000])
LAUNCHES = st.sampled_from(
    [("python", "worker"), ("python", "host"), ("torchrun", "host"), ("deepspeed", "host")]
)


@hypothesis_settings(max_examples=60)
@given(
    sizes=st.tuples(SIZES, SIZES),
    reserves=st.tuples(st.integers(0, 2_000), st.integers(0, 2_000)),
    sharing=st.tuples(*[st.sampled_from(["mps", "time-slicing"])] * 2),
    per_host=st.booleans(),
    launches=st.tuples(LAUNCHES, LAUNCHES),
    processes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    seen=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    share=st.floats(0.001, 0.999),
)
def test_what_the_tenants_of_a_device_may_take_together_is_never_more_than_it_has(
    sizes: tuple[int, int],
    reserves: tuple[int, int],
    sharing: tuple[SharingMode, SharingMode],
    per_host: bool,
    launches: tuple[tuple[str, Any], tuple[str, Any]],
    processes: tuple[int, int],
    seen: tuple[int, int],
    share: float,
) -> None:
    """From plans that fit, by what each process really finds in its environment, on each device by itself."""
    devices = tuple(
        gpu(no, how, memory_mib=size, reserve_mib=reserve)
        for no, (how, size, reserve) in enumerate(zip(sharing, sizes, reserves, strict=True))
    )
    room = min(device.usable_mib for device in devices)
    caps = (max(1, int(room * share)), room - max(1, int(room * share)))
    taken = [device.reserve_mib for device in devices]
    for cap, (program, mode), said, counted in zip(caps, launches, processes, seen, strict=True):
        command = start(program, "t.py", mode=mode, memory_cap_mib=cap, env={CUDA_PROCESSES: str(said)})
        order = order_for(
            command,
            {},
            config(*devices, mps_host_devices=UUIDS if per_host else ()),
            "/c",
            None,
            cuda_processes=counted,
        )
        for no, device in enumerate(devices):
            rank = order.ranks[min(no, len(order.ranks) - 1)]
            assert device.local in rank.cuda_uuids
            env = environment_of(order, rank, Path("/a/s.sock"), Account())
            share_mib = share_of(JobEnvironment.read(env), env)
            assert share_mib is not None
            each_mib = share_mib.fraction_of(device.memory_mib << 20) * device.memory_mib
            limits = [int(part) for part in re.findall(r"=(\d+)M", env.get(MPS_NAMES["limit"], ""))]
            assert all(limit == pytest.approx(each_mib) for limit in limits), "the same, whoever enforces it"
            taken[no] += round(each_mib) * max(said, counted)
    for device, mib in zip(devices, taken, strict=True):
        assert mib <= device.memory_mib


def test_the_percentage_is_the_settings() -> None:
    assert mps_of(order_of(start(), config(mps_percentage=62.5)))["percentage"] == "62.5"
    assert "percentage" not in mps_of(order_of(start()))


NOWHERE = NOT_A_CLIENT["CUDA_MPS_PIPE_DIRECTORY"]
LEAKS = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps", "CUDA_MPS_SM_PARTITION": "x", "KEPT": "1"}


@pytest.mark.parametrize("settings", [config(), config(mps_runtime="")], ids=("client", "none"))
def test_no_mps_variable_of_the_submitters_shell_gets_through(settings: AgentConfig) -> None:
    order = msgspec.structs.replace(order_of(start(env=LEAKS), settings), secrets=LEAKS)
    env = env_of(order)
    assert env["KEPT"] == "1"
    pipe = PIPES[UUIDS[0]] if order.mps else NOWHERE
    assert {value for name, value in env.items() if name.startswith("CUDA_MPS_")} == {pipe}


def test_how_it_is_a_client_survives_on_disk(tmp_path: Path) -> None:
    order = order_of(start(memory_cap_mib=30_000, job_class="spot", watchdog_s=90.0))
    write_record(tmp_path / "order.json", order)
    assert read_record(tmp_path / "order.json", Order) == order
    assert len(order.mps) == 2 and order.watch == WatchRule(floor_s=90.0)


# --- NCCL and time limits ---------------------------------------------------------------------------


def test_clients_of_several_daemons_do_not_use_cuda_ipc_unless_the_user_says_so() -> None:
    assert env_of(order_of(start()))["NCCL_P2P_DISABLE"] == "1"
    assert env_of(order_of(start()))["NCCL_NVLS_ENABLE"] == "0"
    assert env_of(order_of(start(env={"NCCL_P2P_DISABLE": "0"})))["NCCL_P2P_DISABLE"] == "0"
    both = {"NCCL_P2P_DISABLE", "NCCL_NVLS_ENABLE"}
    for settings in (config(mps_host_devices=UUIDS), config(mps_runtime="")):
        assert not both & env_of(order_of(start(), settings)).keys()
    assert not both & env_of(order_of(start(devices=1))).keys()


def test_what_torch_records_of_its_collectives_is_kept_per_attempt_beside_the_checkpoints() -> None:
    env = env_of(order_of(start(attempt=AttemptNo(2))))
    assert env["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert int(env["TORCH_FR_BUFFER_SIZE"]) > 0
    assert env["TORCH_FR_DUMP_TEMP_FILE"] == "/ckpt/j/7/nccl-trace-a2-rank-"
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in env, "its default tears down what hangs"


def test_time_limits_are_longer_where_devices_may_be_shared() -> None:
    shared, alone = (env_of(order_of(start(devices=1), config(gpu(0, max_tenants=n)))) for n in (2, 1))
    assert shared["COTENANT_COLLECTIVE_SCALE"] == "2.0"
    assert shared["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "1200"
    assert not {"COTENANT_COLLECTIVE_SCALE", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"} & alone.keys()


def test_a_job_without_gpus_hears_nothing_of_nccl() -> None:
    env = env_of(order_of(start(devices=1), config(cpu("h/gpu0"))))
    assert not {name for name in env if "NCCL" in name}


@pytest.mark.parametrize(
    ("watchdog_s", "floor_s", "rule"),
    [
        (None, 600.0, WatchRule(floor_s=600.0, multiple=20.0)),
        (None, 0.0, None),
        (90.0, 600.0, WatchRule(floor_s=90.0)),
        (90.0, 0.0, WatchRule(floor_s=90.0)),
        (0.0, 600.0, None),
        (float("nan"), 600.0, None),
    ],
)
def test_a_jobs_own_word_on_the_watchdog_wins(
    watchdog_s: float | None, floor_s: float, rule: WatchRule | None
) -> None:
    order = order_of(start(watchdog_s=watchdog_s), config(watchdog_floor_s=floor_s))
    assert order.watch == rule
    assert ("COTENANT_STACKS_SIGNAL" in env_of(order)) == (rule is not None)


# --- What this host never does ----------------------------------------------------------------------


@pytest.mark.parametrize(("saves", "words"), [(True, ("leave", "progress")), (False, ("progress",))])
def test_a_host_whose_scripts_are_never_saved_leaves_the_word_out(
    saves: bool, words: tuple[str, ...]
) -> None:
    command = start()
    launch = msgspec.structs.replace(command.launch, zero_code=("leave", "progress"))
    command = msgspec.structs.replace(command, launch=launch)
    assert order_of(command, config(saves_scripts=saves)).start.launch.zero_code == words
