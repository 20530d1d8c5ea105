"""What the job-side libraries cost per training step: the protocol, and accumulation with s = 1.

    python bench/job_side.py [--steps 20000] [--blocks 15] [--json FILE]

Two measurements. Bare: a loop whose body does nothing, without and with a session, gives microseconds
per step. Real: a training step of a few milliseconds, run in alternating blocks without and with both
libraries, gives the share; block after block so that the machine's mood hits both. A supervisor process
reads the datagrams, as in a cluster.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import machine
import torch
from torch import Tensor, nn

from cotenant import gradaccum
from cotenant.checkpoint import Session
from cotenant.checkpoint.progress.loops import Loaders
from cotenant.checkpoint.progress.steps import StepReporter

AIM_RATIO = 0.01
STEP_S = 0.005
READER = """
import socket, sys
inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
inbox.bind(sys.argv[1])
print("ready", flush=True)
while inbox.recv(8192) != b"end":
    pass
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20000, help="of the empty loop, per block")
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)  # as in a CPU slot of one core
    keep_freed_memory()
    with tempfile.TemporaryDirectory(prefix="cotenant-bench-") as folder, supervisor(Path(folder)) as env:
        bare = {
            "steps counted for a script": counted_us(options.steps, options.blocks, env),
            **bare_us(options.steps, options.blocks, env),
            "accumulation, s = 1": split_us(options.blocks),
        }
        real = real_steps(options.blocks, env)
    result = {
        "machine": machine.facts(torch=torch.__version__, threads=str(torch.get_num_threads())),
        "aim_ratio": AIM_RATIO,
        "bare_us_per_step": bare,
        "real": real,
    }
    show(result)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def keep_freed_memory() -> None:
    """Have the C library reuse freed blocks. Otherwise it returns activations to the system or not depending
    on which small object lies behind them, which changes a step by one per cent for no reason of interest.
    """
    m_trim_threshold, m_mmap_max = -1, -4
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


@contextmanager
def supervisor(folder: Path) -> Iterator[dict[str, str]]:
    """A process that reads datagrams; yields the environment a job would get."""
    path = folder / "s.sock"
    process = subprocess.Popen([sys.executable, "-c", READER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield {
            "COTENANT_PROTOCOL": "1",
            "COTENANT_JOB": "bench",
            "COTENANT_ATTEMPT": "1",
            "COTENANT_CHECKPOINT_ROOT": str(folder / "root"),
            "COTENANT_SOCKET": str(path),
            "COTENANT_RESUME": "none",
        }
    finally:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(b"end", str(path))
        process.wait(10)
        process.stdout.close()


@contextmanager
def environment(env: Mapping[str, str]) -> Iterator[None]:
    os.environ.update(env)
    try:
        yield
    finally:
        for name in env:
            os.environ.pop(name, None)


def bare_us(steps: int, blocks: int, env: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Microseconds that a session adds to a step that does nothing else."""
    batches = [(torch.zeros(8, 4), torch.zeros(8))] * steps
    model = nn.Linear(4, 4)

    def loop(state: Session | None) -> float:
        gc.collect()
        started_s = time.perf_counter()
        for _ in batches if state is None else state.batches(batches):
            pass
        return (time.perf_counter() - started_s) / steps * 1e6

    def added(variables: Mapping[str, str]) -> float:
        with environment(variables):
            state = Session(model)
            next(state.epochs(1))
            without, with_it = loop(None), loop(state)
            state.close()
        return with_it - without

    return {
        "outside cotenant": spread([added({}) for _ in range(blocks)]),
        "with a supervisor": spread([added(env) for _ in range(blocks)]),
    }


def counted_us(steps: int, blocks: int, env: Mapping[str, str]) -> dict[str, float]:
    """Microseconds of the hook that counts the steps of a script that knows nothing of us."""
    hooks: list[Callable[..., None]] = []
    reporter, model = StepReporter(Loaders()), nn.Linear(1, 1)
    reporter.begin(lambda hook: hooks.append(hook))
    (hook,), optimizer = hooks, torch.optim.SGD(model.parameters(), lr=0.1)
    rounds = []
    with environment(env):
        for _ in range(blocks):
            started_s = time.perf_counter()
            for _ in range(steps):
                hook(optimizer, (), {})
            rounds.append((time.perf_counter() - started_s) / steps * 1e6)
    return spread(rounds)


def split_us(blocks: int, steps: int = 1000) -> dict[str, float]:
    """Microseconds that `gradaccum.backward` adds to the smallest forward and backward pass there is."""
    model, x = nn.Linear(1, 1), torch.ones(1, 1)

    def loss(x: Tensor) -> Tensor:
        return model(x).sum()  # type: ignore[no-any-return]

    def plain() -> None:
        loss(x).backward()  # type: ignore[no-untyped-call]

    def ours() -> None:
        gradaccum.backward(model, loss, x)

    def once(call: Callable[[], object]) -> float:
        started_s = time.perf_counter()
        for _ in range(steps):
            call()
        return (time.perf_counter() - started_s) / steps * 1e6

    return spread([once(ours) - once(plain) for _ in range(blocks)])


class Training:
    """A model sized so that one step takes about `STEP_S` on this machine."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.rows = 64
        self.net = nn.Sequential(
            nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.x, self.y = torch.randn(4096, 256), torch.randint(0, 10, (4096,))
        self.plain(20)
        for _ in range(6):
            self.rows = max(8, min(4096, int(self.rows * STEP_S / (self.plain(20)[0] / 20))))

    def batches(self, steps: int) -> list[tuple[Tensor, Tensor]]:
        return [(self.x[: self.rows], self.y[: self.rows])] * steps

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.net(x), y)

    def plain(self, steps: int) -> tuple[float, float]:
        """Wall and CPU seconds of this thread."""
        started = time.perf_counter(), time.thread_time()
        for x, y in self.batches(steps):
            self.optimizer.zero_grad()
            self.loss(x, y).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        return time.perf_counter() - started[0], time.thread_time() - started[1]

    def with_both(self, steps: int, stream: Iterator[tuple[Tensor, Tensor]]) -> tuple[float, float]:
        """The same with both libraries; `stream` is one long epoch."""
        started = time.perf_counter(), time.thread_time()
        for x, y in itertools.islice(stream, steps):
            self.optimizer.zero_grad()
            gradaccum.backward(self.net, self.loss, x, y)
            self.optimizer.step()
        return time.perf_counter() - started[0], time.thread_time() - started[1]


def real_steps(blocks: int, env: Mapping[str, str], steps: int = 10, turns: int = 12) -> dict[str, Any]:
    """Share that both libraries add to a real step: short blocks in turn, a median per round.

    A second series of the plain step shows what this way of measuring can tell apart. CPU time does not
    see what else runs on the machine, wall time does.
    """
    training = Training()
    rounds: dict[str, list[float]] = {}
    with environment(env):
        state = Session(training.net, training.optimizer)
        next(state.epochs(1))
        stream = state.batches(itertools.repeat(training.batches(1)[0]))
        variants: dict[str, Callable[[], tuple[float, float]]] = {
            "plain": lambda: training.plain(steps),
            "libraries": lambda: training.with_both(steps, stream),
            "nothing": lambda: training.plain(steps),
        }
        variants["libraries"]()
        for _ in range(blocks):
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
            for turn in range(turns):
                names = list(variants)
                for name in names[turn % 3 :] + names[: turn % 3]:  # nobody always comes first
                    found[name].append(variants[name]())
            medians = {
                name: [statistics.median(both) for both in zip(*v, strict=True)] for name, v in found.items()
            }
            rounds.setdefault("plain_step_ms", []).append(medians["plain"][0] / steps * 1e3)
            for name in ("libraries", "nothing"):
                for kind, clock in enumerate(("wall", "cpu")):
                    ratio = medians[name][kind] / medians["plain"][kind] - 1
                    rounds.setdefault(f"{name}_{clock}", []).append(ratio)
        state.close()
    return {name: spread(values) for name, values in rounds.items()}


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def show(result: dict[str, Any]) -> None:
    print(result["machine"])
    print("added to a step that does nothing else, microseconds: median (min .. max)")
    for name, value in result["bare_us_per_step"].items():
        share = value["median"] / 1e6 / STEP_S
        print(f"  {name:20} {value['median']:7.2f}  ({value['min']:.2f} .. {value['max']:.2f})"
              f"  = {share:.3%} of a {STEP_S * 1e3:.0f} ms step")  # fmt: skip
    real = result["real"]
    print(f"a real step of {real['plain_step_ms']['median']:.2f} ms, both libraries, s = 1"
          f" (aim: under {AIM_RATIO:.0%}):")  # fmt: skip
    for name in ("libraries_wall", "libraries_cpu", "nothing_wall", "nothing_cpu"):
        added = real[name]
        said = name.replace("_", ", ").replace("nothing", "plain once more")
        print(f"  {said:22} {added['median']:+.2%}  ({added['min']:+.2%} .. {added['max']:+.2%})")


if __name__ == "__main__":
    main()
