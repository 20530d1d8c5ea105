"""How attempts end: one line per way to end, with the words that programs really print."""

from __future__ import annotations

import re
import signal
from typing import Any

import msgspec
import pytest

from cotenant.agent.ipc.records import ContainerRuntime, Durable, MpsClient
from cotenant.agent.supervisor.core.exit_classifier import _TOLD_TO_END, DETAIL_CHARS, decide, error_line
from cotenant.agent.supervisor.core.exit_rules import ROWS
from cotenant.agent.supervisor.core.exits import Exit, StartProblem
from cotenant.controller.domain import CUDA_NOT_STARTED, JobWords, Launch
from tests.building.endings import ending_of
from tests.building.orders import changed


def traceback(*lines: str, frames: str = '  File "train.py", line 3, in <module>\n    main()\n') -> str:
    return "epoch 1\nTraceback (most recent call last):\n" + frames + "\n".join(lines) + "\n"


COUNT = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
    "NumCudaDevices() that might have already set an error? "
)


def python_error(text: str, rank: int = 0) -> tuple[Exit, dict[int, str]]:
    return Exit(rank=rank, exit_code=1), {rank: traceback(text)}


LOADER_KILLED = (
    traceback("RuntimeError: DataLoader worker (pid 812) is killed by signal: Killed. ")
    + "\nThe above exception was the direct cause of the following exception:\n\n"
    + traceback("RuntimeError: DataLoader worker (pid(s) 812) exited unexpectedly").removeprefix("epoch 1\n")
)
LOADER_GONE = traceback(
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    frames='  File "/venv/lib/torch/utils/data/dataloader.py", line 1291, in _try_get_data\n'
    '  File "/usr/lib/python3.11/multiprocessing/resource_sharer.py", line 86, in get_connection\n',
)
TORCHRUN_KILLED = """E1122 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 9668) of binary: python
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
TORCHRUN = (
    traceback("ValueError: bad batch")
    + """E0312 12:00:00 api.py:869] failed (exitcode: 1) local_rank: 0
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
"""
)

NOTHING_TO_READ = (
    "it read standard input, which had nothing (more) for it; it has a terminal with `run --pty`, and only "
    "`cotenant run` passes on a pipe or a file, to one rank (`cotenant run --help`): "
)

BY_THEMSELVES: dict[str, tuple[int | str, str, str, str, str]] = {
    # name: (exit code or signal, log, row, outcome, detail)
    "an exit code": (3, "done what I could\n", "exit code", "user-failed", "exit code 3: done what I could"),
    "an exception": (1, traceback("KeyError: 1"), "exit code", "user-failed", "exit code 1: KeyError: 1"),
    "a batch that must not be split": (
        1, traceback("ValueError: caught") + "cotenant.gradaccum.Refused: its rows depend\nbye\n",
        "exit code", "user-failed", "exit code 1: cotenant.gradaccum.Refused: its rows depend",
    ),
    "a batch that must not be split, under a launcher": (
        1, "cotenant.gradaccum.Refused: it draws random numbers\n" + TORCHRUN,
        "exit code", "user-failed", "exit code 1: cotenant.gradaccum.Refused: it draws random numbers",
    ),
    "a question to nobody": (
        1, traceback("EOFError: EOF when reading a line"), "standard input", "user-failed",
        NOTHING_TO_READ + "EOFError: EOF when reading a line",
    ),
    "a breakpoint": (
        1, traceback("bdb.BdbQuit"), "standard input", "user-failed",
        NOTHING_TO_READ + "bdb.BdbQuit",
    ),
    "an import": (
        1, traceback("ModuleNotFoundError: No module named 'einops'"), "import", "user-failed",
        "an import failed: ModuleNotFoundError: No module named 'einops'",
    ),
    "a script that is not there": (
        2, "python: can't open file '/home/ada/tain.py': [Errno 2] No such file or directory\n",
        "no such script", "user-failed",
        "python: can't open file '/home/ada/tain.py': [Errno 2] No such file or directory",
    ),
    "a command that a shell does not find": (
        127, "sh: 1: trian: not found\n", "command not found", "user-failed",
        "command not found (exit code 127): sh: 1: trian: not found",
    ),
    "a command that a shell may not execute": (
        126, "sh: 1: ./run: Permission denied\n", "not executable", "user-failed",
        "not executable (exit code 126): sh: 1: ./run: Permission denied",
    ),
    "device memory": (
        1, traceback("torch.OutOfMemoryError: CUDA out of memory."),
        "device memory", "user-failed", "out of device memory: torch.OutOfMemoryError: CUDA out of memory.",
    ),
    "host memory": (
        1, traceback("RuntimeError: DefaultCPUAllocator: can't allocate memory"),
        "host memory", "user-failed",
        "out of host memory: RuntimeError: DefaultCPUAllocator: can't allocate memory",
    ),
    "a port that is taken": (
        1, traceback("torch.distributed.DistNetworkError: The server socket has failed to listen on "
                     "any network address. port: 29511, code: -98, name: EADDRINUSE, message: in use"),
        "address in use", "infra-failed", "an address is already in use (port 29511 is the job's own): torch",
    ),
    "ranks that do not meet": (
        1, traceback("torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients."),
        "rendezvous", "infra-failed", "the ranks did not find each other: torch.distributed.DistStoreError",
    ),
    "a peer that is gone": (
        1, traceback("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] "
                     "Connection closed by peer [127.0.0.1]:43210"),
        "lost peer", "infra-failed", "lost the connection to another rank: RuntimeError",
    ),
    "a refused connection of the user's own": (
        1, traceback("ConnectionRefusedError: [Errno 111] Connection refused"), "exit code", "user-failed",
        "exit code 1: ConnectionRefusedError: [Errno 111] Connection refused",
    ),
    "NCCL": (
        1, traceback("torch.distributed.DistBackendError: NCCL error in: NCCL.cpp:77, unhandled cuda"),
        "NCCL", "infra-failed", "NCCL failure: torch.distributed.DistBackendError",
    ),
    "a collective that hangs": (
        "SIGABRT", "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(9)\nterminate called\n",
        "collective time-out", "infra-failed", "a collective operation did not complete: terminate called",
    ),
    "two ranks on one GPU": (
        1, traceback("torch.distributed.DistBackendError: ncclInvalidUsage: Duplicate GPU detected"),
        "NCCL usage", "user-failed", "NCCL refused the configuration",
    ),
    "a broken GPU": (
        1, traceback("RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        "GPU fault", "infra-failed",
        "GPU failure: RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ),
    "a partition that is gone": (
        1, traceback("RuntimeError: CUDA error: invalid resource configuration"),
        "GPU fault", "infra-failed",
        "GPU failure: RuntimeError: CUDA error: invalid resource configuration",
    ),
    "a GPU that somebody keeps to himself": (
        1, traceback("torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
        "GPU unavailable", "infra-failed", "GPU failure: torch.AcceleratorError",
    ),
    "CUDA without a fabric manager": (
        1, traceback("RuntimeError: " + COUNT + "Error 802: system not yet initialized"),
        CUDA_NOT_STARTED, "infra-failed", "CUDA did not start: RuntimeError: Unexpected error",
    ),
    "CUDA of another time than its driver": (
        1, traceback("RuntimeError: The NVIDIA driver on your system is too old (found version 12020)."),
        "driver too old", "user-failed", "its CUDA is newer than this host's driver: install a build for an",
    ),
    "CUDA code for other GPUs": (
        1, traceback("torch.AcceleratorError: CUDA error: no kernel image is available for execution"),
        "built for other GPUs", "user-failed", "its CUDA code is not built for this type of GPU",
    ),
    "a UUID taken for a number": (
        1, traceback("ValueError: invalid literal for int() with base 10: 'GPU-52a3a85d-3c55-ca3a'"),
        "devices by number", "user-failed",
        "it reads CUDA_VISIBLE_DEVICES as numbers, and has UUIDs there (numbers: --devices-as index): Value",
    ),
    "multicast that cannot be bound": (
        1, traceback("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled",
                     "ncclUnhandledCudaError: Call to CUDA function failed.", "Last error:",
                     "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401"),
        "NCCL multicast", "infra-failed",
        "NCCL failure in NVLink multicast; set NCCL_NVLS_ENABLE=0 (--env) to do without it: torch",
    ),
    "a wrong index on the GPU": (
        1, traceback("RuntimeError: CUDA error: device-side assert triggered"), "kernel error", "user-failed",
        "CUDA error in the program: RuntimeError: CUDA error: device-side assert triggered",
    ),
    "too little /dev/shm": (
        1, traceback("RuntimeError: DataLoader worker is killed: insufficient shared memory"),
        "shared memory", "infra-failed", "no shared memory left on the host (/dev/shm)",
    ),
    "SIGKILL": ("SIGKILL", "9\n", "killed", "user-failed", "killed by SIGKILL, not for memory"),
    "a data loader that was killed": (
        1, traceback("RuntimeError: DataLoader worker (pid 812) is killed by signal: Killed. "),
        "a process killed", "user-failed",
        "one of its processes was killed, not for memory (the kernel has no record of it): RuntimeError",
    ),
    "a data loader, said in a second error": (
        1, LOADER_KILLED, "a process killed", "user-failed",
        "one of its processes was killed, not for memory (the kernel has no record of it): RuntimeError",
    ),
    "a data loader that was killed while its batch was fetched": (
        1, LOADER_GONE, "a process killed", "user-failed", "one of its processes was killed",
    ),
    "a data loader that was asked to end": (
        1, traceback("RuntimeError: DataLoader worker (pid 812) is killed by signal: Terminated. "),
        "exit code", "user-failed", "exit code 1: RuntimeError: DataLoader worker (pid 812) is killed by",
    ),
    "a data loader that crashed": (
        1, traceback("RuntimeError: DataLoader worker (pid 812) is killed by signal: Segmentation fault. "),
        "exit code", "user-failed", "exit code 1: RuntimeError: DataLoader worker (pid 812) is killed",
    ),
    "a killed loader that the job got over": (
        1, LOADER_KILLED + "again\n" + traceback("ValueError: x"), "exit code", "user-failed",
        "exit code 1: ValueError: x",
    ),
    "a process of a process": (
        1, traceback("subprocess.CalledProcessError: Command 'x' died with <Signals.SIGKILL: 9>.",
                     frames='  File "train.py", line 3\n'),
        "a process killed", "user-failed", "one of its processes was killed, not for memory",
    ),
    "a worker of torchrun's": (
        1, TORCHRUN_KILLED, "a process killed", "user-failed", "one of its processes was killed",
    ),
    "SIGKILL seen through a shell": (137, "", "killed", "user-failed", "killed by SIGKILL, not for memory"),
    "a watchdog of its own": (
        "SIGTERM", "step 9\n", "asked to end", "user-failed",
        "ended with SIGTERM, the job's own: nothing beside it was signalled: step 9",
    ),
    "a KeyboardInterrupt of its own": (
        "SIGINT", traceback("KeyboardInterrupt"), "asked to end", "user-failed",
        "ended with SIGINT, the job's own: nothing beside it was signalled: KeyboardInterrupt",
    ),
    "SIGHUP": ("SIGHUP", "", "asked to end", "user-failed", "ended with SIGHUP, the job's own"),
    "SIGQUIT": ("SIGQUIT", "", "asked to end", "user-failed", "ended with SIGQUIT, the job's own"),
    "an exit code like a signal's": (
        143, "", "asked to end", "user-failed", "ended with exit code 143, the job's own",
    ),
    "such a code, whatever its log says of others": (
        130, traceback("RuntimeError: gloo: Connection closed by peer [10.0.0.1]:1"), "asked to end",
        "user-failed", "ended with exit code 130, the job's own",
    ),
    "a code between those": (133, "", "exit code", "user-failed", "exit code 133"),
    "a worker of torchrun's that was asked to end": (
        1, TORCHRUN_KILLED.replace("-9", "-15"), "exit code", "user-failed", "exit code 1: E1122 api.py",
    ),
    "a process of a process that was asked to end": (
        1, traceback("subprocess.CalledProcessError: Command 'x' died with <Signals.SIGTERM: 15>."),
        "exit code", "user-failed", "exit code 1",
    ),
    "a crash": (
        "SIGSEGV", "step 9\n", "crash", "user-failed", "crashed with SIGSEGV: step 9"
    ),
    "another signal": ("SIGALRM", "", "signal", "user-failed", "ended by SIGALRM"),
    "no words at all": (5, "", "exit code", "user-failed", "exit code 5"),
    "torchrun, whose own traceback explains nothing": (
        1, TORCHRUN, "exit code", "user-failed", "exit code 1: ValueError: bad batch",
    ),
    "an error after one that was handled": (
        1, traceback("OSError: [Errno 98] Address already in use") + "again\n" + traceback("ValueError: x"),
        "exit code", "user-failed", "exit code 1: ValueError: x",
    ),
    "a message of more lines, with torch's prefix": (
        1, traceback("[rank0]: RuntimeError: first line", "[rank0]: second line", frames="[rank0]:   x()\n"),
        "exit code", "user-failed", "exit code 1: RuntimeError: first line",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("how", "log", "row", "outcome", "detail"), BY_THEMSELVES.values(), ids=BY_THEMSELVES.keys()
)
def test_ends_by_themselves(how: int | str, log: str, row: str, outcome: str, detail: str) -> None:
    exit_ = (
        Exit(rank=0, exit_code=how)
        if isinstance(how, int)
        else Exit(rank=0, signal=int(getattr(signal, how)))
    )
    verdict = decide(ending_of(exit_, gone={"tails": {0: log}}))
    assert verdict.detail.startswith(detail)
    assert not error_line(log) or error_line(log) not in verdict.ours
    assert verdict.said[1], "there is something for everybody"
    assert verdict.outcome == outcome
    assert verdict.exit_code == exit_.shell_code
    assert next(each for each in ROWS if each.name == row).outcome == outcome


@pytest.mark.parametrize("line", [line for line in BY_THEMSELVES.values() if line[3] != "finished"])
def test_who_has_a_terminal_ends_it_whatever_was_on_it(line: tuple[int | str, str, str, str, str]) -> None:
    how, log, *_ = line
    exit_ = Exit(rank=0, exit_code=how) if isinstance(how, int) else Exit(rank=0, signal=getattr(signal, how))
    verdict = decide(ending_of(exit_, gone={"tails": {0: log}}, terminal=True))
    assert verdict.outcome == "user-failed"
    assert verdict.exit_code == exit_.shell_code
    assert not verdict.out_of_memory and not verdict.cuda_fault


NO_RANK = traceback("ValueError: Error initializing torch.distributed using env:// rendezvous: environment "
                    "variable RANK expected, but not set")  # fmt: skip
NO_KEY = traceback("KeyError: 'LOCAL_RANK'")
NO_GROUP = traceback(
    "ValueError: Default process group has not been initialized, please make sure to call it"
)
NO_GPUS = traceback("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!")
ONE_GPU = traceback(
    "torch.distributed.DistBackendError: NCCL error: ncclInvalidUsage: Duplicate GPU detected"
)
WORKER, PROCESS = "--launch worker starts it once per GPU", "--launch process starts it once, without"


@pytest.mark.parametrize(
    ("mode", "ranked_alone", "log", "hint"),
    [
        ("process", True, NO_RANK, WORKER),
        ("process", True, NO_KEY, WORKER),
        ("process", True, NO_GROUP, WORKER),
        ("process", True, traceback("KeyError: 'lr'"), ""),
        ("process", True, NO_RANK + "again\n" + traceback("ValueError: x"), ""),
        ("process", True, NO_GPUS, ""),
        ("worker", False, NO_RANK, WORKER),
        ("worker", True, NO_RANK, ""),
        ("worker", True, NO_GPUS, PROCESS),
        ("worker", True, ONE_GPU, PROCESS),
        ("host", True, NO_RANK, ""),
    ],
)
def test_who_ends_for_a_rank_too_few_or_too_many_is_told_of_launch(
    mode: Any, ranked_alone: bool, log: str, hint: str
) -> None:
    ended = ending_of(Exit(rank=0, exit_code=1), gone={"tails": {0: log}})
    launch = msgspec.structs.replace(ended.order.launch, mode=mode, ranked_alone=ranked_alone)
    verdict = decide(msgspec.structs.replace(ended, order=changed(ended.order, launch=launch)))
    assert hint in verdict.detail and ("--launch" in verdict.detail) == bool(hint)
    assert len(verdict.detail) <= DETAIL_CHARS


def test_every_row_of_the_table_has_a_line_here() -> None:
    elsewhere = {"own memory limit", "host out of memory"}
    elsewhere |= {"a process over its memory limit", "a process that the host had no memory for"}
    elsewhere |= {"a process killed on a host without memory", "container", "ended from outside"}
    elsewhere |= {"container without queues", "CUDA did not start in its container", "MPS memory limit"}
    assert {row.name for row in ROWS} - {line[2] for line in BY_THEMSELVES.values()} == elsewhere


@pytest.mark.parametrize(
    ("said", "what_to_do"),
    [
        ("Error: statfs /x: no such file", "; `cotenant doctor` on gpu07 tries one"),
        (
            "Error: statfs /dev/mqueue: no such file or directory",
            ": as root on gpu07: mkdir -p /dev/mqueue && mount -t mqueue mqueue /dev/mqueue",
        ),
    ],
)
def test_a_container_that_could_not_be_started_is_tried_again(said: str, what_to_do: str) -> None:
    ended = ending_of(Exit(rank=0, exit_code=125), gone={"tails": {0: said}})
    runtime = ContainerRuntime(name="podman", program="podman")
    contained = msgspec.structs.replace(ended, order=msgspec.structs.replace(ended.order, runtime=runtime))
    assert decide(ended).outcome == "user-failed"
    assert (decide(contained).outcome, decide(contained).detail) == (
        "infra-failed",
        f"its container could not be started: {said}{what_to_do}",
    )


@pytest.mark.parametrize(
    ("exit_", "status"),
    [
        (Exit(rank=0, signal=15), "SIGTERM"),
        (Exit(rank=0, exit_code=143), "exit code 143"),
        (Exit(rank=0, exit_code=1), "exit code 1"),
    ],
)
def test_a_signal_that_the_supervisor_got_from_outside_explains_an_end(exit_: Exit, status: str) -> None:
    verdict = decide(ending_of(exit_, outside=15, gone={"tails": {0: "saving\n"}}))
    assert (verdict.outcome, verdict.exit_code, verdict.rule) == ("infra-failed", exit_.shell_code, "")
    assert verdict.detail == (
        "SIGTERM was sent to its supervisor too, from outside of the job (a shutdown of the host?); it ended "
        f"with {status}: saving"
    )


def test_all_zero_is_finished() -> None:
    verdict = decide(ending_of(Exit(rank=0, exit_code=0), Exit(rank=1, exit_code=0)))
    assert (verdict.outcome, verdict.exit_code, verdict.detail) == ("finished", 0, "")


# --- A gang ----------------------------------------------------------------------------------------


def test_a_lost_peer_is_not_the_explanation_if_there_is_a_better_one() -> None:
    lost, lost_log = python_error("RuntimeError: gloo: Connection closed by peer [10.0.0.1]:1", rank=0)
    real, real_log = python_error("ValueError: bad label 11", rank=1)
    verdict = decide(ending_of(lost, real, gone={"tails": lost_log | real_log}))
    assert (verdict.outcome, verdict.detail) == (
        "user-failed",
        "rank 1: exit code 1: ValueError: bad label 11",
    )


def test_of_equal_failures_the_first_counts() -> None:
    first, second = Exit(rank=1, exit_code=4), Exit(rank=0, exit_code=5)
    assert decide(ending_of(first, second)).exit_code == 4


def test_what_ended_because_we_ended_it_explains_nothing() -> None:
    told = Exit(rank=0, exit_code=1, was_told=True)
    real = Exit(rank=1, exit_code=7)
    assert decide(ending_of(told, real, cause="peer")).exit_code == 7


# --- Memory ----------------------------------------------------------------------------------------


def test_over_its_own_limit_is_the_users_failure_with_the_number() -> None:
    verdict = decide(
        ending_of(Exit(rank=0, signal=9), start={"host_memory_mib": 2048}, gone={"oom_kills": 1})
    )
    assert verdict.outcome == "user-failed"
    assert "2048 MiB" in verdict.detail


def test_a_host_without_memory_is_not_the_users_failure() -> None:
    verdict = decide(
        ending_of(Exit(rank=0, signal=9), start={"host_memory_mib": 2048}, gone={"host_oom_kills": 1})
    )
    assert verdict.outcome == "infra-failed"
    assert "the host ran out of memory" in verdict.detail


@pytest.mark.parametrize(
    ("exit_", "log"),
    [
        (Exit(rank=0, exit_code=1), LOADER_KILLED),
        (Exit(rank=0, exit_code=3), "make: *** [train] Killed\n"),
        (Exit(rank=0, exit_code=1), traceback("ConnectionResetError: [Errno 104] Connection reset by peer")),
    ],
    ids=["loader", "grandchild", "nobody says why"],
)
def test_a_kill_for_memory_explains_the_end_whichever_process_it_hit(exit_: Exit, log: str) -> None:
    at_limit = decide(
        ending_of(
            exit_,
            start={"host_memory_mib": 2048},
            gone={"tails": {0: log}, "oom_kills": 1, "counts_oom": True},
        )
    )
    assert (at_limit.outcome, at_limit.exit_code) == ("user-failed", exit_.exit_code)
    assert at_limit.detail.startswith(
        "one of its processes was killed for using more host memory than the 2048"
    )
    by_host = decide(ending_of(exit_, gone={"tails": {0: log}, "host_oom_kills": 1, "counts_oom": True}))
    assert by_host.outcome == "infra-failed"
    assert by_host.detail.startswith("one of its processes was killed: the host ran out of memory")


def test_a_loader_that_is_killed_while_the_host_lacks_memory_is_not_the_users_failure() -> None:
    """Without a control group the kernel counts anybody's processes; the log says that ours was hit."""
    exit_ = Exit(rank=0, exit_code=1)
    verdict = decide(
        ending_of(exit_, gone={"tails": {0: LOADER_KILLED}, "host_oom_kills": 1, "counts_oom": False})
    )
    assert verdict.outcome == "infra-failed"
    assert verdict.detail.startswith("one of its processes was killed, and the host ran out of memory")


def test_a_kill_for_memory_that_may_have_been_of_somebody_else_s_process_explains_no_exit_code() -> None:
    exit_, log = python_error("ValueError: bad label 11")
    verdict = decide(ending_of(exit_, gone={"tails": log, "host_oom_kills": 1, "counts_oom": False}))
    assert (verdict.outcome, verdict.detail) == ("user-failed", "exit code 1: ValueError: bad label 11")


def test_only_the_host_s_own_failures_count_against_it_for_certain() -> None:
    broken = StartProblem(rank=0, stage="process", code=5, text="Input/output error")
    assert decide(ending_of(problem=broken)).host_fault
    fork = StartProblem(rank=0, stage="process", code=11, text="Resource temporarily unavailable")
    assert not decide(ending_of(problem=fork)).host_fault, "one user's jobs may have all processes"
    assert not decide(ending_of(Exit(rank=0, signal=9))).host_fault
    folder = StartProblem(rank=0, stage="workdir", code=2, text="No such file or directory")
    assert not decide(ending_of(problem=folder)).host_fault


def test_an_end_without_its_output_says_so() -> None:
    lost = "its output could not be written to /nowhere/x: No space left on device"
    verdict = decide(ending_of(Exit(rank=0, exit_code=0), status={"words": JobWords(lost=lost)}))
    assert (verdict.outcome, verdict.exit_code, verdict.detail) == ("finished", 0, lost)


def test_the_cap_of_a_shared_device_is_named() -> None:
    exit_, log = python_error("torch.OutOfMemoryError: CUDA out of memory.")
    assert (
        "(its part of the device is 4000 MiB)"
        in decide(ending_of(exit_, start={"memory_cap_mib": 4000}, gone={"tails": log})).detail
    )


def test_the_last_words_of_a_log_are_one_visible_line() -> None:
    exit_, log = python_error("ValueError: a\x1b[2J\x9b\u202eb")
    detail = decide(ending_of(exit_, gone={"tails": log})).detail
    assert detail == "exit code 1: ValueError: a\\x1b[2J\\x9b\\u202eb"


# --- What is certain -------------------------------------------------------------------------------


def test_the_jobs_own_word_wins() -> None:
    exits = (Exit(rank=0, exit_code=1), Exit(rank=1, signal=15))
    verdict = decide(
        ending_of(*exits, has_stopped=True, status={"stop_step": 120}, gone={"tails": {0: TORCHRUN}})
    )
    assert (verdict.outcome, verdict.detail) == ("stopped", "saved and stopped at step 120")


@pytest.mark.parametrize(
    ("stage", "code", "outcome", "exit_code", "text"),
    [
        ("workdir", 2, "infra-failed", None, "working directory /home/ada/run cannot be used on gpu07"),
        ("command", 2, "user-failed", 127, "command not found on gpu07: python"),
        ("command", 13, "user-failed", 126, "cannot execute python on gpu07"),
        ("user", 1, "infra-failed", None, "could not start a process on gpu07 (user)"),
        ("process", 11, "infra-failed", None, "could not start a process on gpu07 (process)"),
    ],
)
def test_what_never_ran(stage: Any, code: int, outcome: str, exit_code: int | None, text: str) -> None:
    problem = StartProblem(rank=0, stage=stage, code=code, text="why")
    verdict = decide(ending_of(problem=problem))
    assert (verdict.outcome, verdict.exit_code) == (outcome, exit_code)
    assert verdict.detail.startswith(text)
    assert verdict.workdir_missing is (stage == "workdir")


@pytest.mark.parametrize(
    ("cause", "outcome", "text"),
    [
        ("stop", "stopped", "ended on request (cancelled by ada)"),
        ("deadline", "stopped", "did not save and stop within 60 s after the request; goes back to step 40"),
        ("no-agreement", "stopped", "its ranks could not agree on a step to stop at; goes back to step 40"),
        (
            "lease",
            "stopped",
            "ended because the controller was out of reach for too long; goes back to step 40",
        ),
        ("start-deadline", "user-failed", "no first step within 60 s after the start: it hangs"),
        ("memory", "user-failed", "used 300 MiB of host memory; it may use 200 MiB"),
    ],
)
def test_what_we_ended_ourselves(cause: Any, outcome: str, text: str) -> None:
    verdict = decide(
        ending_of(
            Exit(rank=0, signal=9, was_told=True),
            cause=cause,
            reason="cancelled by ada",
            over_mib=300.0,
            start={"host_memory_mib": 200},
            status={
                "durable": (
                    Durable(step=20, name="a1-s20", exact=True),
                    Durable(step=40, name="a1-s40", exact=True),
                )
            },
        )
    )
    assert verdict.outcome == outcome
    assert verdict.detail.startswith(text)


def test_a_host_that_hears_of_no_save_does_not_deny_that_there_is_one() -> None:
    """Rank 0 says what is durable, to its own supervisor; a gang's other hosts do not know."""
    verdict = decide(ending_of(Exit(rank=1, signal=9, was_told=True), cause="lease", host_no=1))
    assert verdict.detail.endswith("goes back to its newest checkpoint, if there is one")


def test_a_detail_is_one_line_of_bounded_length() -> None:
    exit_, log = python_error("ValueError: " + "x" * 10_000)
    assert len(decide(ending_of(exit_, gone={"tails": log})).detail) <= DETAIL_CHARS
    problem = StartProblem(rank=0, stage="process", code=1, text="a\nb")
    assert "\n" not in decide(ending_of(problem=problem)).detail


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", ""),
        ("\n\n", ""),
        ("one\ntwo\n\n", "two"),
        (traceback("ValueError"), "ValueError"),
        (traceback("mypackage.errors.Bad: x", "  more"), "mypackage.errors.Bad: x"),
        (traceback(), "    main()"),
    ],
)
def test_the_line_that_a_person_reads(log: str, line: str) -> None:
    assert error_line(log) == line


CUDA_SAYS = {
    "an illegal memory access was encountered": "kernel error",
    "the launch timed out and was terminated": "kernel error",
    "device-side assert triggered": "kernel error",
    "hardware stack error": "kernel error",
    "an illegal instruction was encountered": "kernel error",
    "misaligned address": "kernel error",
    "operation not supported on global/shared address space": "kernel error",
    "invalid program counter": "kernel error",
    "unspecified launch failure": "kernel error",
    "uncorrectable ECC error encountered": "GPU fault",
    "uncorrectable NVLink error detected during the execution": "GPU fault",
    "Invalid access of peer GPU memory over nvlink or a hardware error": "GPU unavailable",
    "CUDA-capable device(s) is/are busy or unavailable": "GPU unavailable",
    "system not yet initialized": "GPU fault",
    "system has unsupported display driver / cuda driver combination": "GPU unavailable",
    "MPS client failed to connect to the MPS control daemon or the MPS server": "GPU fault",
    "the remote procedural call between the MPS server and the MPS client failed": "GPU fault",
    "MPS server is not ready to accept new MPS client requests": "GPU fault",
    "the hardware resources required to create MPS client have been exhausted": "GPU fault",
    "the hardware resources required to support device connections have been exhausted": "GPU unavailable",
    "the MPS client has been terminated by the server": "GPU fault",
    "one or more resources are insufficient or non-applicable for the operation": "GPU unavailable",
    "out of memory": "device memory",
    "unknown error": "GPU fault",
}
"""As the runtime of CUDA 13.0 words its errors."""


@pytest.mark.parametrize("words", CUDA_SAYS)
def test_what_cudas_runtime_says(words: str) -> None:
    line = f"torch.AcceleratorError: CUDA error: {words}"
    row = next(row for row in ROWS if row.pattern and not row.need and re.search(row.pattern, line))
    assert row.name == CUDA_SAYS[words]
    assert row.is_cuda_fault is (row.name == "kernel error")


ADVICE = (
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
)
"""What torch (up to 2.8) puts behind every CUDA error."""


@pytest.mark.parametrize(
    ("words", "row"),
    [
        ("no kernel image is available for execution on the device", "built for other GPUs"),
        ("invalid device ordinal", "exit code"),
        ("invalid argument", "exit code"),
        ("an illegal memory access was encountered", "kernel error"),
    ],
)
def test_the_advice_behind_a_cuda_error_is_no_fault_of_the_device(words: str, row: str) -> None:
    """One would be taken for a fault of all clients of an MPS server, and end them."""
    tail = traceback(f"RuntimeError: CUDA error: {words}", *ADVICE)
    found = next(
        each
        for each in ROWS
        if not (each.codes or each.signals or each.need) and re.search(each.pattern, tail)
    )
    assert found.name == row and found.is_cuda_fault is (row == "kernel error")


# --- For everybody ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["workdir", "command", "output", "fork"])
@pytest.mark.parametrize("code", [2, 13])
def test_what_everybody_reads_of_a_start_has_no_path_and_no_argument(stage: Any, code: int) -> None:
    problem = StartProblem(rank=0, stage=stage, code=code, text="Marker: no such file")
    ended = ending_of(problem=problem)
    launch = Launch(argv=("/home/Marker/bin/train", "--token", "Marker"), workdir="/home/Marker")
    verdict = decide(msgspec.structs.replace(ended, order=changed(ended.order, launch=launch)))
    assert "Marker" in verdict.detail and verdict.ours
    assert "Marker" not in verdict.ours


@pytest.mark.parametrize("cause", ["", *_TOLD_TO_END])
def test_what_everybody_reads_of_an_end_has_no_word_of_its_ranks(cause: Any) -> None:
    status = {"failed": ("Marker: disk full",), "went_otherwise": "" if cause else "Marker differs"}
    verdict = decide(ending_of(Exit(rank=0, exit_code=1), cause=cause, status=status))
    assert verdict.ours and "Marker" not in verdict.ours


NOT_STARTED = (
    "RuntimeError: " + COUNT + "Error 802: system not yet initialized",
    "RuntimeError: " + COUNT + "Error 804: forward compatibility was attempted on non supported HW",
    "RuntimeError: " + COUNT + "Error 101: invalid device ordinal",
    "RuntimeError: " + COUNT + "Error 3: initialization error",
    "RuntimeError: " + COUNT + "Error 999: unknown error",
    "RuntimeError: No CUDA GPUs are available",
    "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing",
    "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
    "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
    "pynvml.NVMLError_LibRmVersionMismatch: Driver/library version mismatch",
    "RuntimeError: Failed to initialize NVML: Unknown Error",
    "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
)


@pytest.mark.parametrize("text", NOT_STARTED)
def test_words_that_cuda_does_not_start_ask_for_a_try_where_there_is_a_gpu(text: str) -> None:
    exit_, gone = Exit(rank=0, exit_code=1), {"tails": {0: traceback(text)}}
    verdict = decide(ending_of(exit_, gone=gone))
    assert (verdict.rule, verdict.outcome, verdict.asks_cuda) == (CUDA_NOT_STARTED, "infra-failed", True)
    plain = decide(ending_of(exit_, on_cuda=False, gone=gone))
    assert (plain.outcome, plain.asks_cuda) == ("user-failed", False), "on CPU slots there is no GPU to blame"
    ended = ending_of(exit_, gone=gone)
    runtime = ContainerRuntime(name="podman", program="podman")
    contained = decide(msgspec.structs.replace(ended, order=changed(ended.order, runtime=runtime)))
    assert contained.rule == "CUDA did not start in its container" and not contained.asks_cuda


@pytest.mark.parametrize(
    "text",
    [
        "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
    ],
)
def test_error_46_within_an_mps_limit_is_too_little_memory_and_else_a_failure_of_the_gpu(text: str) -> None:
    ended = ending_of(Exit(rank=0, exit_code=1), gone={"tails": {0: traceback(text)}})
    client = MpsClient(pipe_directory="/run/c/mps/1", device_uuid="", memory_limit_mib=700)
    limited = decide(msgspec.structs.replace(ended, order=changed(ended.order, mps=(client,))))
    assert (limited.outcome, limited.out_of_memory) == ("user-failed", True)
    assert limited.detail.startswith("too little device memory for CUDA to start within the limit of an MPS")
    free = msgspec.structs.replace(client, memory_limit_mib=None)
    for clients in ((), (free,)):
        verdict = decide(msgspec.structs.replace(ended, order=changed(ended.order, mps=clients)))
        assert (verdict.outcome, verdict.out_of_memory, verdict.asks_cuda) == ("infra-failed", False, True)
