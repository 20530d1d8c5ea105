"""How processes end by themselves: the table behind `exit_classifier.decide`.

Rule: rows are tried from top to bottom, so the more telling one stands higher: a text in the log before
an exit status, a status before "anything else". A new way to end is a new row here, with its line in the
test's table. Words of libraries are matched as they print them; where a program of the user's might
print the same for reasons of its own (a refused connection), the context is asked for as well.
"""

from __future__ import annotations

from typing import Final, Literal

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

ROWS: Final[tuple[ExitRule, ...]] = (
    ExitRule(
        name="own memory limit",
        outcome="user-failed",
        signals=(9,),
        need="own-oom",
        text="killed for using more host memory than the {host_memory_mib} MiB it may (see --host-mem)",
    ),
    # A loader, or a process of a process: whatever its rank made of the loss, this is where it came from.
    ExitRule(
        name="a process over its memory limit",
        outcome="user-failed",
        need="own-oom",
        text="one of its processes was killed for using more host memory than the {host_memory_mib} MiB it "
        "may (see --host-mem); then exit code {code}: {error}",
    ),
    ExitRule(
        name="host out of memory",
        outcome="infra-failed",
        signals=(9,),
        need="host-oom",
        text="killed: the host ran out of memory (it asked for {host_memory_mib} MiB; see --host-mem)",
    ),
    ExitRule(
        name="a process that the host had no memory for",
        outcome="infra-failed",
        need="oom-here",
        text="one of its processes was killed: the host ran out of memory (it asked for {host_memory_mib} "
        "MiB; see --host-mem); then exit code {code}: {error}",
    ),
    ExitRule(
        name="a process killed on a host without memory",
        outcome="infra-failed",
        pattern=_KILLED_PROCESS,
        need="host-oom",
        chained=True,
        text="one of its processes was killed, and the host ran out of memory (it asked for "
        "{host_memory_mib} MiB; see --host-mem): {error}",
    ),
    # A host that shuts down, or a person who ends all of an account: the only kind that leaves evidence. A
    # signal to the job alone may be its watchdog's, and a job that is run again does its work twice.
    ExitRule(
        name="ended from outside",
        outcome="infra-failed",
        need="outside",
        text="{outside} was sent to its supervisor too, from outside of the job (a shutdown of the host?); "
        "it ended with {status}: {error}",
    ),
    # By its command, a person or a guard against lack of memory in user space: nobody signs a SIGKILL. What
    # the kernel has no record of is tried again as often as --retries says.
    ExitRule(
        name="killed",
        outcome="user-failed",
        signals=(9,),
        text="killed by SIGKILL, not for memory: the kernel has no record of that",
    ),
    ExitRule(
        name="a process killed",
        outcome="user-failed",
        pattern=_KILLED_PROCESS,
        chained=True,
        text="one of its processes was killed, not for memory (the kernel has no record of it): {error}",
    ),
    ExitRule(
        name="asked to end",
        outcome="user-failed",
        signals=ASKS_TO_END,
        text="ended with {status}, the job's own: nothing beside it was signalled: {error}",
    ),
    ExitRule(
        name="address in use",
        outcome="infra-failed",
        pattern=r"EADDRINUSE|[Aa]ddress already in use",
        text="an address is already in use (port {port} is the job's own): {error}",
    ),
    ExitRule(
        name="device memory",
        outcome="user-failed",
        pattern=r"CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
        r"|CUDA error: out of memory|CU(BLAS|DNN)_STATUS_ALLOC_FAILED",
        text="out of device memory{cap}: {error}",
        memory="device",
    ),
    # Error 46, which CUDA gives under too small a limit in place of 2 (k8s-device-plugin #1118).
    ExitRule(
        name="MPS memory limit",
        outcome="user-failed",
        need="mps-limit",
        pattern=r"CUDA-capable device\(s\) is/are busy|CUDA-capable devices are busy"
        r"|CUDA_ERROR_DEVICE_UNAVAILABLE",
        text="too little device memory: CUDA starts no more within the MPS limit of {mps_limit_mib} MiB: "
        "{error}",
        memory="device",
    ),
    ExitRule(
        name="GPU fault",
        outcome="infra-failed",
        pattern=r"uncorrectable ECC|GPU is lost|fallen off the bus|GPU requires reset|\bXid\b|NVLink error"
        r"|CUDA error: [^\n]*resource configuration|CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
        r"|CUDA error: (unknown error|all CUDA-capable devices are busy|system not yet initialized"
        r"|no CUDA-capable device|initialization error)|CUDA_ERROR_(DEVICE_UNAVAILABLE|SYSTEM_NOT_READY"
        r"|ECC_UNCORRECTABLE|NOT_INITIALIZED|NO_DEVICE|MPS_\w+)|MPS (server|client|daemon|RPC)",
        text="GPU failure: {error}",
    ),
    # As CUDA 13's runtime words them (46, 226, 803, 809 and 915); older ones say less of some.
    ExitRule(
        name="GPU unavailable",
        outcome="infra-failed",
        pattern=r"CUDA-capable device\(s\) is/are busy|peer GPU memory over nvlink or a hardware error"
        r"|unsupported display driver / cuda driver|support device connections have been exhausted"
        r"|resources are insufficient or non-applicable for the operation",
        text="GPU failure: {error}",
    ),
    ExitRule(
        name=CUDA_NOT_STARTED,
        outcome="infra-failed",
        need="cuda",
        pattern=_CUDA_DOES_NOT_START,
        text="CUDA did not start: {error}",
    ),
    # What CUDA does outside of a container says nothing of what it does in there.
    ExitRule(
        name="CUDA did not start in its container",
        outcome="infra-failed",
        need="cuda-image",
        pattern=_CUDA_DOES_NOT_START,
        text="CUDA did not start in its container (a `systemctl daemon-reload` meanwhile takes GPUs from "
        "containers of old toolkits): {error}",
    ),
    ExitRule(
        name="driver too old",
        outcome="user-failed",
        pattern=r"NVIDIA driver on your system is too old|driver version is insufficient",
        text="its CUDA is newer than this host's driver: install a build for an older CUDA, or ask for a newer "
        "driver: {error}",
    ),
    ExitRule(
        name="built for other GPUs",
        outcome="user-failed",
        pattern=r"no kernel image is available",
        text="its CUDA code is not built for this type of GPU: install a build that is, or ask for another type "
        "(--gpu-type): {error}",
    ),
    ExitRule(
        name="devices by number",
        outcome="user-failed",
        pattern=r"invalid literal for int\(\) with base 10: '(GPU|MIG)-",
        text="it reads CUDA_VISIBLE_DEVICES as numbers, and has UUIDs there (numbers: --devices-as index): "
        "{error}",
    ),
    # All after which a context is of no use: 700, 702, 710 and 714 to 719. Whole phrases, because torch adds
    # advice to every CUDA error, with "device-side assertions" in it.
    ExitRule(
        name="kernel error",
        outcome="user-failed",
        is_cuda_fault=True,
        pattern=r"device-side assert triggered|illegal memory access|misaligned address"
        r"|illegal instruction was encountered|unspecified launch failure"
        r"|CUDA error: (hardware stack error|invalid program counter|the launch timed out and was terminated"
        r"|operation not supported on global/shared address space)"
        r"|CUDA_ERROR_(ILLEGAL_ADDRESS|LAUNCH_TIMEOUT|ASSERT|HARDWARE_STACK_ERROR|ILLEGAL_INSTRUCTION"
        r"|MISALIGNED_ADDRESS|INVALID_ADDRESS_SPACE|INVALID_PC|LAUNCH_FAILED)",
        text="CUDA error in the program: {error}",
    ),
    # Binding or making multicast memory fails with codes 401 and 802 (pytorch #177472, nccl #1788).
    ExitRule(
        name="NCCL multicast",
        outcome="infra-failed",
        pattern=r"\bNVLS\b|NVLink SHARP|cuMulticast",
        text="NCCL failure in NVLink multicast; set NCCL_NVLS_ENABLE=0 (--env) to do without it: {error}",
    ),
    ExitRule(
        name="collective time-out",
        outcome="infra-failed",
        is_symptom=True,
        pattern=r"Watchdog caught collective operation timeout|ncclRemoteError"
        r"|Some NCCL operations have failed",
        text="a collective operation did not complete: {error}",
    ),
    ExitRule(
        name="NCCL usage",
        outcome="user-failed",
        pattern=r"Duplicate GPU detected|ncclInvalid(Usage|Argument)",
        text="NCCL refused the configuration: {error}",
    ),
    ExitRule(
        name="NCCL",
        outcome="infra-failed",
        pattern=r"NCCL [Ee]rror|nccl(System|Internal|UnhandledCuda)Error"
        r"|NCCL communicator was aborted|ncclCommInit\w* failed",
        text="NCCL failure: {error}",
    ),
    ExitRule(
        name="rendezvous",
        outcome="infra-failed",
        is_symptom=True,
        pattern=r"Rendezvous\w*Error|DistStoreError|DistNetworkError"
        r"|client socket has (timed out|failed to connect)|waiting for clients",
        text="the ranks did not find each other: {error}",
    ),
    ExitRule(
        name="lost peer",
        outcome="infra-failed",
        is_symptom=True,
        pattern=_DISTRIBUTED
        + r"([Cc]onnection (closed|reset|refused|was)|Connect timeout|[Tt]imed out|Socket closed"
        r"|Broken pipe|Software caused connection abort)",
        text="lost the connection to another rank: {error}",
    ),
    ExitRule(
        name="shared memory",
        outcome="infra-failed",
        pattern=r"insufficient shared memory|No space left on device.*/dev/shm",
        text="no shared memory left on the host (/dev/shm): {error}",
    ),
    ExitRule(
        name="host memory",
        outcome="user-failed",
        pattern=r"\bMemoryError\b|DefaultCPUAllocator: (can't|not enough)"
        r"|Cannot allocate memory",
        text="out of host memory: {error}",
        memory="host",
    ),
    ExitRule(
        name="standard input",
        outcome="user-failed",
        pattern=r"EOFError: EOF when reading a line|\bBdbQuit\b",
        text="it read standard input, which had nothing (more) for it; it has a terminal with `run --pty`, "
        "and only `cotenant run` passes on a pipe or a file, to one rank (`cotenant run --help`): {error}",
    ),
    ExitRule(
        name="import",
        outcome="user-failed",
        pattern=r"ModuleNotFoundError|\bImportError\b",
        text="an import failed: {error}",
    ),
    ExitRule(
        name="no such script",
        outcome="user-failed",
        pattern=r"can't open file .*No such file or directory",
        text="{error}",
    ),
    ExitRule(
        name="container without queues",
        outcome="infra-failed",
        codes=(125,),
        need="container",
        pattern=r"/dev/mqueue",
        text="its container could not be started: {error}: as root on {host}: mkdir -p /dev/mqueue && "
        "mount -t mqueue mqueue /dev/mqueue",
    ),
    ExitRule(
        name="container",
        outcome="infra-failed",
        codes=(125,),
        need="container",
        text="its container could not be started: {error}; `cotenant doctor` on {host} tries one",
    ),
    ExitRule(
        name="command not found",
        outcome="user-failed",
        codes=(127,),
        text="command not found (exit code 127): {error}",
    ),
    ExitRule(
        name="not executable",
        outcome="user-failed",
        codes=(126,),
        text="not executable (exit code 126): {error}",
    ),
    ExitRule(
        name="crash",
        outcome="user-failed",
        signals=(4, 5, 6, 7, 8, 11, 31),
        text="crashed with {signal}: {error}",
    ),
    ExitRule(name="signal", outcome="user-failed", signals=tuple(range(1, 65)), text="ended by {signal}"),
    ExitRule(name="exit code", outcome="user-failed", text="exit code {code}: {error}"),
)
