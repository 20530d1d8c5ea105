"""Try CUDA on one GPU, as a process of its own: `python -m cotenant.profiler.driver.cuda_probe UUID`.

Rule: that NVML answers does not say that CUDA starts: NVML needs neither the fabric manager of an HGX host,
nor nvidia-uvm, nor a libcuda that fits the driver. So the calls that every CUDA program begins with are made
here, on the one GPU that CUDA_VISIBLE_DEVICES names; any of them may hang or end the process.

It prints one `CudaProbe` as JSON, and ends with 0 if all that was tried worked. With `--beside` it makes no
context, which would take memory from those who use the GPU; nor does it in an exclusive compute mode, where
it could shut out somebody who comes at that moment.
"""

from __future__ import annotations

import argparse
import ctypes
import signal
import sys
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from cotenant.profiler.driver.facts import COMPUTE_DEFAULT
from cotenant.profiler.driver.library import own_output

LIBRARY: Final = "libcuda.so.1"
NO_CODE: Final = -1
"""Stands for a failure that CUDA has no code for: its library cannot be loaded."""
OUT_OF_MEMORY: Final = 2
ENDS_AFTER_S: Final = 300
"""Whoever started it may have been killed while it hung."""
_COMPUTE_MODE: Final = 20
"""CU_DEVICE_ATTRIBUTE_COMPUTE_MODE."""

CudaStage = Literal["library", "init", "device", "context", "allocate", "free", "release"]

# As cuda.h numbers them; the causes are those of public reports (pytorch #35710, dstack #2348, jax #34113).
_NO_UVM: Final = (
    "often nvidia-uvm is not loaded, or the GPU has failed: `nvidia-modprobe -u -c=0` as root, see `dmesg`"
)
CAUSES: Final[dict[int, str]] = {
    NO_CODE: "NVML answers, and CUDA programs cannot start: install the driver's CUDA library (libcuda1); in "
    "a container NVIDIA_DRIVER_CAPABILITIES has to name `compute`",
    3: _NO_UVM,
    34: "a stub of the library stands before the driver's: take `stubs` out of LD_LIBRARY_PATH",
    46: "another process keeps it to itself, or it hangs: see `nvidia-smi` and `dmesg`",
    100: "CUDA sees no such device: check the permissions of /dev/nvidia* and /dev/nvidia-uvm",
    101: "CUDA sees other devices than NVML: restart the agent after a change of GPUs or MIG instances",
    802: "on HGX hosts the fabric manager is not up: `systemctl status nvidia-fabricmanager`, whose version "
    "has to be the driver's",
    803: "the driver was updated and is not loaded anew: reload it, or reboot the host",
    804: "a compatibility package (cuda-compat) stands before the driver's libcuda, and this GPU has no "
    "forward compatibility: take it out of LD_LIBRARY_PATH and /etc/ld.so.conf.d",
    999: _NO_UVM,
}


class CudaProbe(msgspec.Struct, frozen=True, kw_only=True):
    """How far CUDA came on a device."""

    uuid: str
    stage: CudaStage
    """The last one that was tried."""
    code: int = 0
    """What CUDA answered there (CUresult of cuda.h); 0: all is well."""
    text: str = ""
    """The code in CUDA's own words, or the loader's."""

    @property
    def problem(self) -> str:
        """Why CUDA does not work there, and what to do; empty: it works. Too little memory is a matter of
        whoever has it: CUDA came as far as that."""
        if self.code in (0, OUT_OF_MEMORY):
            return ""
        said = self.text if self.code == NO_CODE else f"error {self.code} ({self.text}) at {self.stage}"
        cause = CAUSES.get(self.code, "see `dmesg`")
        return f"CUDA does not start here: {said}: {cause}"


def probe(uuid: str, *, makes_context: bool) -> CudaProbe:
    """What CUDA answers on the first device that this process sees."""
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return CudaProbe(uuid=uuid, stage="library", code=NO_CODE, text=str(error))
    last, words = CudaProbe(uuid=uuid, stage="library"), ctypes.c_char_p()
    for stage, code in _calls(cuda, makes_context=makes_context):
        if code:
            cuda.cuGetErrorString(code, ctypes.byref(words))
            text = (words.value or b"").decode(errors="replace")
            return CudaProbe(uuid=uuid, stage=stage, code=code, text=text)
        last = CudaProbe(uuid=uuid, stage=stage)
    return last


def _calls(cuda: Any, *, makes_context: bool) -> Iterator[tuple[CudaStage, int]]:
    """Makes one call after another: its stage, and the code that it answers."""
    device, mode = ctypes.c_int(), ctypes.c_int()
    yield "init", cuda.cuInit(0)
    yield "device", cuda.cuDeviceGet(ctypes.byref(device), 0)
    yield "device", cuda.cuDeviceGetAttribute(ctypes.byref(mode), _COMPUTE_MODE, device)
    if not makes_context or mode.value != COMPUTE_DEFAULT:
        return
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    yield "context", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    yield "context", cuda.cuCtxSetCurrent(context)
    yield "allocate", cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1024 * 1024))
    yield "free", cuda.cuMemFree_v2(memory)
    yield "release", cuda.cuDevicePrimaryCtxRelease(device)


def main() -> int:
    known = argparse.ArgumentParser(prog="python -m cotenant.profiler.driver.cuda_probe")
    known.add_argument("uuid", metavar="UUID", help="the device, which CUDA_VISIBLE_DEVICES names as well")
    known.add_argument("--beside", action="store_true", help="others use it: make no context")
    wanted = known.parse_args()
    answers = own_output()
    signal.alarm(ENDS_AFTER_S)
    found = probe(wanted.uuid, makes_context=not wanted.beside)
    print(msgspec.json.encode(found).decode(), file=answers, flush=True)
    return 1 if found.problem else 0


if __name__ == "__main__":
    sys.exit(main())
