"""A program that makes the GPU fault on purpose: `python -m hwtests.crash`. For `--allow-faults` only.

Rule: it writes to an address that was never allocated, which is Xid 31 for its own context; under MPS that
hits every client. It says when it launches and what it meets. CUDA's driver library is called as it is,
with no compiler and no torch, so that nothing else can be what failed.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry fault()
{
    .reg .u64 %address;
    .reg .u32 %value;
    mov.u64 %address, 4096;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
\x00"""


class CudaError(Exception):
    """A call failed; the text has its name and CUDA's number."""


def call(cuda: Any, name: str, *arguments: Any) -> None:
    """Raises CudaError."""
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise CudaError(f"{name}: {code}")


def fault(cuda: Any) -> None:
    """Raises CudaError, as it must: 700 (illegal address) where all is as expected."""
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    device = ctypes.c_int()
    call(cuda, "cuInit", 0)
    call(cuda, "cuDeviceGet", ctypes.byref(device), 0)
    call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call(cuda, "cuCtxSetCurrent", context)
    call(cuda, "cuModuleLoadData", ctypes.byref(module), PTX)
    call(cuda, "cuModuleGetFunction", ctypes.byref(function), module, b"fault")
    print(json.dumps({"launched_s": time.monotonic()}), flush=True)
    call(cuda, "cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    call(cuda, "cuCtxSynchronize")


def main() -> int:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as problem:
        print(json.dumps({"error": f"no CUDA driver library: {problem}"}), flush=True)
        return 2
    try:
        fault(cuda)
    except CudaError as problem:
        print(json.dumps({"error": str(problem), "at_s": time.monotonic()}), flush=True)
        return 3
    print(json.dumps({"error": "", "at_s": time.monotonic()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
