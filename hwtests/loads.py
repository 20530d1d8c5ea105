"""Known loads for a GPU, each a program of its own: `python -m hwtests.loads matmul --seconds 5`.

Rule: prints one line of JSON about itself when its context stands, then one every 0.2 s with what it did
since the line before. It ends at SIGTERM, after `--seconds`, or when its standard input is closed, so that a
test that dies leaves no load behind.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any, Final

SIDE: Final = 4096
COPY_MIB: Final = 256
REPORT_S: Final = 0.2
SECONDS: Final = 900.0
"""At most. Longer than any test: what ends a load is its test, or the end of its test."""
AT_ONCE: Final = 16
"""So much is sent to the device before it is waited for, or it would idle while the host thinks."""
MIB: Final = 2**20

Work = Callable[[], float]
"""Does a little, and says how much: TFLOP, or GiB."""


def matmul(torch: Any, device: str, dtype: Any, side: int) -> Work:
    a = torch.randn(side, side, device=device).to(dtype)
    out = torch.empty_like(a)

    def once() -> float:
        torch.matmul(a, a, out=out)
        return 2 * side**3 / 1e12

    return once


def through(torch: Any, device: str) -> Work:
    """`d2d`: every byte is read and written, by the multiprocessors; it counts once. A plain copy may be done
    by a copy engine, which the counters of compute engines do not see.
    """
    source = torch.zeros(COPY_MIB * MIB // 4, dtype=torch.int32, device=device)
    target = torch.empty_like(source)

    def once() -> float:
        torch.bitwise_not(source, out=target)
        return COPY_MIB / 1024

    return once


def copies(torch: Any, device: str, kind: str) -> Work:
    """`h2d` or `d2h`, between the device and pinned memory."""
    here = torch.empty(COPY_MIB * MIB, dtype=torch.uint8, device=device)
    other = torch.empty(here.shape, dtype=torch.uint8)
    if device != "cpu":
        other = other.pin_memory()
    target, source = (other, here) if kind == "d2h" else (here, other)

    def once() -> float:
        target.copy_(source, non_blocking=True)
        return COPY_MIB / 1024

    return once


def idle() -> float:
    time.sleep(0.05)
    return 0.0


def built(torch: Any, kind: str, device: str) -> tuple[Work, str]:
    """The work, and the unit of what it says."""
    if kind == "idle":
        torch.zeros(1, device=device)
        return idle, ""
    if kind == "d2d":
        return through(torch, device), "GiB"
    if kind in ("h2d", "d2h"):
        return copies(torch, device, kind), "GiB"
    types = {"matmul": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
    torch.backends.cuda.matmul.allow_tf32 = False
    side = SIDE if device == "cuda" else 256
    return matmul(torch, device, types[kind], side), "TFLOP"


KINDS: Final = ("matmul", "fp32", "fp64", "d2d", "h2d", "d2h", "idle", "hold", "all-reduce")


def hold(torch: Any, device: str, most_mib: int) -> dict[str, Any]:
    """Take memory in pieces of 64 MiB until there is no more, or `most_mib`; what was said at the end."""
    pieces: list[Any] = []
    error = ""
    try:
        while len(pieces) * 64 < most_mib:
            pieces.append(torch.empty(64 * MIB, dtype=torch.uint8, device=device))
    except RuntimeError as problem:  # torch.OutOfMemoryError, and what drivers say otherwise.
        error = f"{type(problem).__name__}: {str(problem).splitlines()[0]}"
    free, total = torch.cuda.mem_get_info() if device == "cuda" else (0, 0)
    KEPT.extend(pieces)
    return {"held_mib": len(pieces) * 64, "free_mib": free // MIB, "total_mib": total // MIB, "error": error}


def all_reduce(torch: Any, device: str, seconds: float) -> None:
    """One rank of a gang, by the variables that torch reads. What it says is NCCL's bus bandwidth: 2 (n - 1)
    / n of each tensor cross the slowest link. All ranks leave after the same round, when one is asked to."""
    began_s = time.monotonic()
    distributed, local = torch.distributed, int(os.environ["LOCAL_RANK"])
    if device == "cuda":
        torch.cuda.set_device(local)
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    world = distributed.get_world_size()
    size_mib = COPY_MIB if device == "cuda" else 4
    data = torch.zeros(size_mib * MIB // 4, device=device)
    ends = torch.zeros(1, device=device)
    distributed.all_reduce(data)
    finish(torch, device)
    say(ready=os.getpid(), load_s=time.monotonic() - began_s, unit="GiB", **memory(torch, device))
    until_s = time.monotonic() + seconds
    while not ends.item():
        since_s = time.monotonic()
        for _ in range(AT_ONCE):
            distributed.all_reduce(data)
        finish(torch, device)
        elapsed_s = time.monotonic() - since_s
        done = AT_ONCE * size_mib / 1024 * 2 * (world - 1) / world
        say(done=done, elapsed_s=elapsed_s, per_s=done / elapsed_s)
        ends.fill_(time.monotonic() >= until_s or bool(select.select([sys.stdin], [], [], 0)[0]))
        distributed.all_reduce(ends)
    distributed.destroy_process_group()


KEPT: Final[list[Any]] = []
"""What `hold` took, until the program ends."""


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def run(kind: str, device: str, seconds: float, most_mib: int) -> None:
    began_s = time.monotonic()
    import torch

    if kind == "all-reduce":
        all_reduce(torch, device, seconds)
        return
    if kind == "hold":
        torch.zeros(1, device=device)
        say(ready=os.getpid(), load_s=time.monotonic() - began_s, **memory(torch, device))
        say(**hold(torch, device, most_mib))
        select.select([sys.stdin], [], [], seconds)
        return
    work, unit = built(torch, kind, device)
    work()
    finish(torch, device)
    say(ready=os.getpid(), load_s=time.monotonic() - began_s, unit=unit, **memory(torch, device))
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s and not select.select([sys.stdin], [], [], 0)[0]:
        done, since_s = 0.0, time.monotonic()
        while time.monotonic() - since_s < REPORT_S:
            done += sum(work() for _ in range(AT_ONCE))
            finish(torch, device)
        elapsed_s = time.monotonic() - since_s
        say(done=done, elapsed_s=elapsed_s, per_s=done / elapsed_s)


def finish(torch: Any, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def memory(torch: Any, device: str) -> dict[str, int]:
    """What the driver says of this process's device: a limit shows here, or it does not."""
    if device != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info()
    shown = torch.cuda.get_device_properties(0).multi_processor_count
    return {"free_mib": free // MIB, "total_mib": total // MIB, "multiprocessors": shown}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--most-mib", type=int, default=1 << 20)
    options = parser.parse_args()
    try:
        run(options.kind, options.device, options.seconds, options.most_mib)
    except (
        RuntimeError
    ) as error:  # CUDA's errors: a co-tenant's fault, a limit, a client that was terminated.
        say(error=f"{type(error).__name__}: {str(error).splitlines()[0]}", at_s=time.monotonic())
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
