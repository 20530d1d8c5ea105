"""How processes end by themselves: the table behind `exit_classifier.decide`.

Rule: rows are tried from top to bottom, so the more telling one stands higher: a text in the log before
an exit status, a status before "anything else". A new way to end is a new row here, with its line in the
test's table. Words of libraries are matched as they print them; where a program of the user's might
print the same for reasons of its own (a refused connection), the context is asked for as well.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from cotenant.controller.domain import CUDA_NOT_STARTED, Outcome


class ExitRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule for one way to end. All conditions that are given must hold; the first row that matches
    counts."""

    name: str
    outcome: Outcome
    text: str
    """Filled with {error}, {signal}, {code} and the words of `exit_classifier`."""
    pattern: str = ""
    """Searched in the last error of the rank's log."""
    codes: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    need: Literal[
        "", "own-oom", "host-oom", "oom-here", "container", "outside", "cuda", "cuda-image", "mps-limit"
    ] = ""
    """own-oom: the kernel killed a process of the attempt at the attempt's own limit. host-oom: one was
    killed on the host for lack of memory meanwhile. oom-here: and the control group says that it was one of
    the attempt's. container: it was to run in one, whose programs keep exit code 125 for themselves. outside:
    the supervisor was signalled at that time as well, by no process of the job's. cuda: it had GPUs, and ran
    in no container; cuda-image: it had, and did. mps-limit: an MPS daemon limited its device memory."""
    chained: bool = False
    """`pattern` is also searched in the errors that the last one came from."""
    is_symptom: bool = False
    is_cuda_fault: bool = False
    """A fatal error of the program's on the device."""
    memory: Literal["", "device", "host"] = ""
    """Which memory there was too little of, if that was it."""


SIGNALS_OF_SHELLS: Final = (1, 2, 3, 6, 9, 11, 15)
"""A shell turns these into the exit code 128 + n often enough to read it that way."""

ASKS_TO_END: Final = (1, 2, 3, 15)
"""SIGHUP, SIGINT, SIGQUIT and SIGTERM: what whoever ends all of an account or of a host sends."""
_KILLED_PROCESS: Final = (
    r"DataLoader worker \(pid[^)]*\) is killed by signal: Killed"
    r"|died with <Signals\.SIGKILL|terminated with signal SIGKILL|failed \(exitcode: -9\)"
    # A loader that is gone while what it has loaded is still being fetched from it.
    r"|(?s:torch/utils/data/.*resource_sharer\.py.*(Connection(Reset|Refused)|EOF|FileNotFound)Error)"
)
"""As torch's DataLoader, subprocess, torch.multiprocessing and torchrun word it."""
_CUDA_DOES_NOT_START: Final = (
    r"Unexpected error from cudaGetDeviceCount|No CUDA GPUs are available|Found no NVIDIA driver"
    r"|CUDA unknown error - this may be due to|CUDA driver initialization failed"
    r"|[Uu]nable to initialize backend 'cuda'|libcuda\.so\.1: cannot open"
    r"|NVMLError_LibRmVersionMismatch|Driver/library version mismatch|Failed to initialize NVML"
)
"""As torch, JAX and pynvml word it (pytorch #35710, dstack #2348, jax #34113), with codes 3, 100, 101, 802,
804 and 999 of CUDA. A script that hides its devices from itself ends with the same."""
_DISTRIBUTED: Final = r"(?s)(?=.*(gloo|c10d|ProcessGroup|torch[./]distributed|torch[./]nn[./]parallel)).*"


def _of_job(name: str, text: str, pattern: str = "", **more: Any) -> ExitRule:
    return ExitRule(name=name, outcome="user-failed", text=text, pattern=pattern, **more)


def _of_host(name: str, text: str, pattern: str = "", **more: Any) -> ExitRule:
    return ExitRule(name=name, outcome="infra-failed", text=text, pattern=pattern, **more)


ROWS: Final[tuple[ExitRule, ...]] = (
    _of_job(
        "own memory limit",
        "killed for using more host memory than the {host_memory_mib} MiB it may (see --host-mem)",
        signals=(9,),
        need="own-oom",
    ),
    # A loader, or a process of a process: whatever its rank made of the loss, this is where it came from.
    _of_job(
        "a process over its memory limit",
        "one of its processes was killed for using more host memory than the {host_memory_mib} MiB it "
        "may (see --host-mem); then exit code {code}: {error}",
        need="own-oom",
    ),
    _of_host(
        "host out of memory",
        "killed: the host ran out of memory (it asked for {host_memory_mib} MiB; see --host-mem)",
        signals=(9,),
        need="host-oom",
    ),
    _of_host(
        "a process that the host had no memory for",
        "one of its processes was killed: the host ran out of memory (it asked for {host_memory_mib} "
        "MiB; see --host-mem); then exit code {code}: {error}",
        need="oom-here",
    ),
    _of_host(
        "a process killed on a host without memory",
        "one of its processes was killed, and the host ran out of memory (it asked for "
        "{host_memory_mib} MiB; see --host-mem): {error}",
        _KILLED_PROCESS,
        need="host-oom",
        chained=True,
    ),
    # A host that shuts down, or a person who ends all of an account: the only kind that leaves evidence. A
    # signal to the job alone may be its watchdog's, and a job that is run again does its work twice.
    _of_host(
        "ended from outside",
        "{outside} was sent to its supervisor too, from outside of the job (a shutdown of the host?); "
        "it ended with {status}: {error}",
        need="outside",
    ),
    # By its command, a person or a guard against lack of memory in user space: nobody signs a SIGKILL. What
    # the kernel has no record of is tried again as often as --retries says.
    _of_job("killed", "killed by SIGKILL, not for memory: the kernel has no record of that", signals=(9,)),
    _of_job(
        "a process killed",
        "one of its processes was killed, not for memory (the kernel has no record of it): {error}",
        _KILLED_PROCESS,
        chained=True,
    ),
    _of_job(
        "asked to end",
        "ended with {status}, the job's own: nothing beside it was signalled: {error}",
        signals=ASKS_TO_END,
    ),
    _of_host(
        "address in use",
        "an address is already in use (port {port} is the job's own): {error}",
        r"EADDRINUSE|[Aa]ddress already in use",
    ),
    _of_job(
        "device memory",
        "out of device memory{cap}: {error}",
        r"CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
        r"|CUDA error: out of memory|CU(BLAS|DNN)_STATUS_ALLOC_FAILED",
        memory="device",
    ),
    # Error 46, which CUDA gives under too small a limit in place of 2 (k8s-device-plugin #1118).
    _of_job(
        "MPS memory limit",
        "too little device memory for CUDA to start within the limit of an MPS client{cap}: {error}",
        r"CUDA-capable device\(s\) is/are busy|CUDA-capable devices are busy"
        r"|CUDA_ERROR_DEVICE_UNAVAILABLE",
        need="mps-limit",
        memory="device",
    ),
    _of_host(
        "GPU fault",
        "GPU failure: {error}",
        r"uncorrectable ECC|GPU is lost|fallen off the bus|GPU requires reset|\bXid\b|NVLink error"
        r"|CUDA error: [^\n]*resource configuration|CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
        r"|CUDA error: (unknown error|all CUDA-capable devices are busy|system not yet initialized"
        r"|no CUDA-capable device|initialization error)|CUDA_ERROR_(DEVICE_UNAVAILABLE|SYSTEM_NOT_READY"
        r"|ECC_UNCORRECTABLE|NOT_INITIALIZED|NO_DEVICE|MPS_\w+)|MPS (server|client|daemon|RPC)",
    ),
    # As CUDA 13's runtime words them (46, 226, 803, 809 and 915); older ones say less of some.
    _of_host(
        "GPU unavailable",
        "GPU failure: {error}",
        r"CUDA-capable device\(s\) is/are busy|peer GPU memory over nvlink or a hardware error"
        r"|unsupported display driver / cuda driver|support device connections have been exhausted"
        r"|resources are insufficient or non-applicable for the operation",
    ),
    _of_host(CUDA_NOT_STARTED, "CUDA did not start: {error}", _CUDA_DOES_NOT_START, need="cuda"),
    # What CUDA does outside of a container says nothing of what it does in there.
    _of_host(
        "CUDA did not start in its container",
        "CUDA did not start in its container (a `systemctl daemon-reload` meanwhile takes GPUs from "
        "containers of old toolkits): {error}",
        _CUDA_DOES_NOT_START,
        need="cuda-image",
    ),
    _of_job(
        "driver too old",
        "its CUDA is newer than this host's driver: install a build for an older CUDA, or ask for a newer "
        "driver: {error}",
        r"NVIDIA driver on your system is too old|driver version is insufficient",
    ),
    _of_job(
        "built for other GPUs",
        "its CUDA code is not built for this type of GPU: install a build that is, or ask for another type "
        "(--gpu-type): {error}",
        r"no kernel image is available",
    ),
    _of_job(
        "devices by number",
        "it reads CUDA_VISIBLE_DEVICES as numbers, and has UUIDs there (numbers: --devices-as index): "
        "{error}",
        r"invalid literal for int\(\) with base 10: '(GPU|MIG)-",
    ),
    # All after which a context is of no use: 700, 702, 710 and 714 to 719. Whole phrases, because torch adds
    # advice to every CUDA error, with "device-side assertions" in it.
    _of_job(
        "kernel error",
        "CUDA error in the program: {error}",
        r"device-side assert triggered|illegal memory access|misaligned address"
        r"|illegal instruction was encountered|unspecified launch failure"
        r"|CUDA error: (hardware stack error|invalid program counter|the launch timed out and was terminated"
        r"|operation not supported on global/shared address space)"
        r"|CUDA_ERROR_(ILLEGAL_ADDRESS|LAUNCH_TIMEOUT|ASSERT|HARDWARE_STACK_ERROR|ILLEGAL_INSTRUCTION"
        r"|MISALIGNED_ADDRESS|INVALID_ADDRESS_SPACE|INVALID_PC|LAUNCH_FAILED)",
        is_cuda_fault=True,
    ),
    # Binding or making multicast memory fails with codes 401 and 802 (pytorch #177472, nccl #1788).
    _of_host(
        "NCCL multicast",
        "NCCL failure in NVLink multicast; set NCCL_NVLS_ENABLE=0 (--env) to do without it: {error}",
        r"\bNVLS\b|NVLink SHARP|cuMulticast",
    ),
    _of_host(
        "collective time-out",
        "a collective operation did not complete: {error}",
        r"Watchdog caught collective operation timeout|ncclRemoteError"
        r"|Some NCCL operations have failed",
        is_symptom=True,
    ),
    _of_job(
        "NCCL usage",
        "NCCL refused the configuration: {error}",
        r"Duplicate GPU detected|ncclInvalid(Usage|Argument)",
    ),
    _of_host(
        "NCCL",
        "NCCL failure: {error}",
        r"NCCL [Ee]rror|nccl(System|Internal|UnhandledCuda)Error"
        r"|NCCL communicator was aborted|ncclCommInit\w* failed",
    ),
    _of_host(
        "rendezvous",
        "the ranks did not find each other: {error}",
        r"Rendezvous\w*Error|DistStoreError|DistNetworkError"
        r"|client socket has (timed out|failed to connect)|waiting for clients",
        is_symptom=True,
    ),
    _of_host(
        "lost peer",
        "lost the connection to another rank: {error}",
        _DISTRIBUTED + r"([Cc]onnection (closed|reset|refused|was)|Connect timeout|[Tt]imed out|Socket closed"
        r"|Broken pipe|Software caused connection abort)",
        is_symptom=True,
    ),
    _of_host(
        "shared memory",
        "no shared memory left on the host (/dev/shm): {error}",
        r"insufficient shared memory|No space left on device.*/dev/shm",
    ),
    _of_job(
        "host memory",
        "out of host memory: {error}",
        r"\bMemoryError\b|DefaultCPUAllocator: (can't|not enough)"
        r"|Cannot allocate memory",
        memory="host",
    ),
    _of_job(
        "standard input",
        "it read standard input, which had nothing (more) for it; it has a terminal with `run --pty`, "
        "and only `cotenant run` passes on a pipe or a file, to one rank (`cotenant run --help`): {error}",
        r"EOFError: EOF when reading a line|\bBdbQuit\b",
    ),
    _of_job("import", "an import failed: {error}", r"ModuleNotFoundError|\bImportError\b"),
    _of_job("no such script", "{error}", r"can't open file .*No such file or directory"),
    _of_host(
        "container without queues",
        "its container could not be started: {error}: as root on {host}: mkdir -p /dev/mqueue && "
        "mount -t mqueue mqueue /dev/mqueue",
        r"/dev/mqueue",
        codes=(125,),
        need="container",
    ),
    _of_host(
        "container",
        "its container could not be started: {error}; `cotenant doctor` on {host} tries one",
        codes=(125,),
        need="container",
    ),
    _of_job("command not found", "command not found (exit code 127): {error}", codes=(127,)),
    _of_job("not executable", "not executable (exit code 126): {error}", codes=(126,)),
    _of_job("crash", "crashed with {signal}: {error}", signals=(4, 5, 6, 7, 8, 11, 31)),
    _of_job("signal", "ended by {signal}", signals=tuple(range(1, 65))),
    _of_job("exit code", "exit code {code}: {error}"),
)
