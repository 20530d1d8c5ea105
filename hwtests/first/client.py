"""A CUDA program without torch: `python -c THIS WORD...`, each word done in turn, each answered with a line.

    open       cuInit, the GPUs that it sees, a context on the first
    info       what the driver says of memory and multiprocessors
    take:MIB   that much device memory
    fill:MIB   device memory in pieces of 64 MiB until it is refused, at most so much
    busy:N     kernels of N blocks, one after another, until standard input ends; a line every 0.1 s
    stay       until standard input ends
    fault      a kernel that writes to an address that was never allocated

Rule: the standard library and libcuda alone, in one file: it is handed over as text, for accounts that may
not read the folder that it is in. It ends at its first error, with CUDA's number in its last line.
"""

import ctypes
import json
import select
import sys
import time
from typing import Any

MIB = 2**20
PIECE_MIB = 64
MULTIPROCESSORS = 16
SPIN_CYCLES = 2_000_000
REPORT_S = 0.1
PTX = b"""
.version 6.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 cycles)
{
    .reg .u64 %from, %now, %most;
    .reg .pred %more;
    ld.param.u64 %most, [cycles];
    mov.u64 %from, %clock64;
AGAIN:
    mov.u64 %now, %clock64;
    sub.u64 %now, %now, %from;
    setp.lt.u64 %more, %now, %most;
    @%more bra AGAIN;
    ret;
}
.visible .entry fault(.param .u64 unused)
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
    """A call failed."""


class Client:
    def __init__(self) -> None:
        self.cuda: Any = ctypes.CDLL("libcuda.so.1")
        self.device = ctypes.c_int()
        self.functions: dict[str, Any] = {}
        self.context, self.module = ctypes.c_void_p(), ctypes.c_void_p()

    def call(self, name: str, *arguments: Any) -> None:
        """Raises CudaError."""
        code = getattr(self.cuda, name)(*arguments)
        if code:
            said = ctypes.c_char_p()
            self.cuda.cuGetErrorName(code, ctypes.byref(said))
            text = (said.value or b"").decode()
            say(error=f"{name}: {code} {text}", stage=name, code=code)
            raise CudaError(name)

    def open(self, _: str) -> None:
        began_s = time.monotonic()
        self.call("cuInit", 0)
        init_s = time.monotonic() - began_s
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        say(
            sees=count.value,
            uuids=[self.uuid(number) for number in range(count.value)],
            init_s=round(init_s, 4),
        )
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.call("cuCtxSetCurrent", self.context)
        say(opened=True, context_s=round(time.monotonic() - began_s, 4))

    def uuid(self, number: int) -> str:
        device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGet", ctypes.byref(device), number)
        self.call("cuDeviceGetUuid", raw, device)
        text = bytes(raw).hex()
        return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def info(self, _: str) -> None:
        free, total, count = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_int()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        self.call("cuDeviceGetAttribute", ctypes.byref(count), MULTIPROCESSORS, self.device)
        say(free_mib=free.value // MIB, total_mib=total.value // MIB, multiprocessors=count.value)

    def take(self, mib: str) -> None:
        self.call("cuMemAlloc_v2", ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(int(mib) * MIB))
        say(taken_mib=int(mib))

    def fill(self, most_mib: str) -> None:
        held_mib = 0
        while held_mib < int(most_mib):
            space = ctypes.c_void_p()
            code = self.cuda.cuMemAlloc_v2(ctypes.byref(space), ctypes.c_size_t(PIECE_MIB * MIB))
            if code:
                say(held_mib=held_mib, refused=code)
                return
            held_mib += PIECE_MIB
        say(held_mib=held_mib, refused=0)

    def launch(self, name: str, blocks: int) -> None:
        if not self.module.value:
            self.call("cuModuleLoadData", ctypes.byref(self.module), PTX)
        if name not in self.functions:
            function = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(function), self.module, name.encode())
            self.functions[name] = function
        cycles = ctypes.c_ulonglong(SPIN_CYCLES)
        words = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(cycles), ctypes.c_void_p))
        self.call("cuLaunchKernel", self.functions[name], blocks, 1, 1, 32, 1, 1, 0, None, words, None)

    def busy(self, blocks: str) -> None:
        rounds, since_s = 0, time.monotonic()
        while not select.select([sys.stdin], [], [], 0)[0]:
            self.launch("spin", int(blocks))
            self.call("cuCtxSynchronize")
            rounds, now_s = rounds + 1, time.monotonic()
            if now_s - since_s >= REPORT_S:
                say(per_s=round(rounds / (now_s - since_s), 1))
                rounds, since_s = 0, now_s

    def stay(self, _: str) -> None:
        select.select([sys.stdin], [], [])

    def fault(self, _: str) -> None:
        say(launched=True)
        self.launch("fault", 1)
        self.call("cuCtxSynchronize")


def say(**values: Any) -> None:
    print(json.dumps({**values, "at_s": time.monotonic()}), flush=True)


def main() -> int:
    try:
        client = Client()
    except OSError as problem:
        say(error=f"no CUDA driver library: {problem}", stage="load", code=-1)
        return 2
    try:
        for word in sys.argv[1:]:
            name, _, argument = word.partition(":")
            getattr(client, name)(argument)
    except CudaError:
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
