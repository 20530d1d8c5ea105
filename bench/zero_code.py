"""What the zero-code hook costs: per call of a module, per step at s = 1, per step with a batch in parts.

    python bench/zero_code.py

Each number is the median of repeated measurements of this process's CPU time, on one thread; `plain` is the
same step before the hook was installed, `explicit` the same step with `gradaccum.backward`. A split forward
pass computes (s - 1) / s of the forward pass again, which `explicit` need not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import machine
import torch
from torch import nn

from cotenant import gradaccum
from cotenant.gradaccum import PROGRESS, Schedule, zerocode
from cotenant.gradaccum.schedule import Progress
from cotenant.gradaccum.zerocode.patches import SEARCH_STEPS

ROWS = 256
REPEATS = 9


def median_ms(work: Callable[[], object], rounds: int) -> float:
    work()
    times = []
    for _ in range(REPEATS):
        began_s = time.process_time()
        for _ in range(rounds):
            work()
        times.append((time.process_time() - began_s) / rounds)
    return 1e3 * statistics.median(times)


class Deep(nn.Module):
    """A thousand calls of modules in one."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([*(nn.Identity() for _ in range(1000)), nn.Linear(1, 1)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
        return x


def stepping(width: int, depth: int, explicit: bool = False) -> Callable[[], object]:
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(ROWS, width), torch.randint(0, 10, (ROWS,))

    def loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(inputs), targets)

    def step() -> None:
        optimizer.zero_grad()
        if explicit:
            gradaccum.backward(model, loss, x, y)
        else:
            loss(x, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def at(s: int) -> None:
    PROGRESS.schedule = Schedule(((0, s),))


def main() -> None:
    torch.set_num_threads(1)
    print(machine.sentences(torch=torch.__version__))
    deep = Deep()
    rows = torch.zeros(2, 1)
    call_ms = median_ms(lambda: deep(rows), 10)
    sizes = {"256 wide, 4 deep": (256, 4), "1024 wide, 6 deep": (1024, 6)}
    before: dict[tuple[str, int], float] = {}
    for name, (width, depth) in sizes.items():
        before[name, 1] = median_ms(stepping(width, depth), 3)
        for s in (2, 4, 8):
            at(s)
            before[name, s] = median_ms(stepping(width, depth, explicit=True), 3)
    PROGRESS.__dict__.update(vars(Progress()))
    standing = zerocode.install()
    searching_ms = median_ms(lambda: deep(rows), 10)
    for name, (width, depth) in sizes.items():
        step = stepping(width, depth)
        for s in (1, 2, 4, 8):
            at(s)
            took_ms = median_ms(step, 3)
            assert standing.refused is None, standing.refused
            first, other = before[name, 1], before[name, s]
            kind = "explicit" if s > 1 else "plain"
            print(
                f"{name}, s = {s}: {took_ms:.2f} ms ({took_ms / first:.2f} of plain), {kind} {other:.2f} ms "
                f"({other / first:.2f})"
            )
    at(1)
    after_ms = median_ms(lambda: deep(rows), 10)
    print(f"a call of a module in another, while searching: {searching_ms - call_ms:.2f} us more")
    print(f"the same after {SEARCH_STEPS} steps: {after_ms - call_ms:.2f} us more")


if __name__ == "__main__":
    main()
