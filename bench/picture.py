"""What a picture of everything that a script can reach costs: a model with Adam's state, and its data set.

    python bench/picture.py [--million-parameters 100] [--items 1000000] [--times 5] [--write PAGE]

A picture is taken where the loop begins that trains, and another one when the job must leave; what differs is
what is saved. Both are of the same objects here, and a step of training lies between them. What a picture
keeps from then on, while nobody asks, is measured as memory, and as the time of a full garbage collection.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import machine
import torch
from torch import nn

from cotenant.checkpoint.picture import Picture, PictureTooLarge, process_roots

AIM_S: Final = 1.0
WIDTH: Final = 768
BLOCK_PARAMETERS: Final = 12 * WIDTH * WIDTH
Roots = list[tuple[str, Any]]
DATA: Final[dict[str, Callable[[int], Any]]] = {
    "no data": lambda _: None,
    "tuples (a number, a text, a label)": lambda items: [(n, f"text {n}", n % 7) for n in range(items)],
    "dicts of a text and a label": lambda items: [
        {"text": f"text {n}", "label": n % 7} for n in range(items)
    ],
    "a tenth as many of these dicts": lambda items: [
        {"text": f"text {n}", "label": n % 7} for n in range(items // 10)
    ],
}
PARTS: Final = ("first", "second", "difference", "digests")


class Taken(NamedTuple):
    """Two clocks, in seconds."""

    wall_s: float
    cpu_s: float

    @staticmethod
    def now() -> Taken:
        return Taken(time.perf_counter(), time.process_time())

    def since(self, began: Taken) -> Taken:
        return Taken(self.wall_s - began.wall_s, self.cpu_s - began.cpu_s)


def model_and_optimizer(parameters: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A stack of transformer blocks after their first step, so that Adam has its state."""
    layers = max(1, round(parameters / BLOCK_PARAMETERS))
    block = nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, batch_first=True)
    model = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What a step of training does to the objects, without its computation."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()


def measure_all(name: str, roots: Roots, train: Callable[[], None], times: int) -> str:
    """The row of the page."""
    try:
        kept = keep(roots)
        return row(name, [measure(roots, train) for _ in range(times)], kept)
    except PictureTooLarge as error:
        return f"| {name} | refused: {error} | | | | | | |"


def measure(roots: Roots, train: Callable[[], None]) -> dict[str, Taken]:
    """What each part has taken; and how many objects the picture holds."""
    began = Taken.now()
    before = Picture(roots, digests=True)
    before.let_go()
    first = Taken.now()
    train()
    trained = Taken.now()
    now = Picture(roots, digests=True)
    second = Taken.now()
    with before.hold():
        changes = before.changes()
    compared = Taken.now()
    now.digests()
    digested = Taken.now()
    assert changes, "a step was made"
    return {
        "first": first.since(began),
        "second": second.since(trained),
        "difference": compared.since(second),
        "digests": digested.since(compared),
    }


class Kept(NamedTuple):
    """What a picture keeps while nobody asks: objects, memory, and the time of a collection of garbage."""

    objects: int
    mib: float
    without_s: float
    with_s: float


def keep(roots: Roots) -> Kept:
    without_s, before_mib = collection_s(), resident_mib()
    picture = Picture(roots, digests=True)
    picture.let_go()
    with_s, after_mib = collection_s(), resident_mib()
    return Kept(len(picture.nodes), after_mib - before_mib, without_s, with_s)


def collection_s() -> float:
    gc.collect()
    began_s = time.perf_counter()
    gc.collect()
    return time.perf_counter() - began_s


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def row(name: str, found: list[dict[str, Taken]], kept: Kept) -> str:
    cells = []
    for part in PARTS:
        wall_s, cpu_s = (statistics.median(each) for each in zip(*(one[part] for one in found), strict=True))
        cells.append(f"{wall_s:.2f} s ({cpu_s:.2f})")
    cells += [f"{kept.mib:.0f} MiB", f"{kept.without_s:.2f} s, {kept.with_s:.2f} s"]
    return f"| {name} | {kept.objects:,} | {' | '.join(cells)} |"


def page(rows: list[str], parameters: int, items: int, times: int, words: str) -> str:
    return "\n".join([
        "# What a picture of everything that a script can reach costs",
        "",
        f"A model of {parameters / 1e6:.0f} million parameters with gradients and Adam's state, beside a",
        f"list of {items:,} items. Medians of {times} rounds, in brackets of processor time; the aim is",
        f"{AIM_S:.0f} s for a picture. The first is taken where the loop begins, the second when the job",
        "must leave; the difference is what is saved, and the digests are what the next process is compared",
        "with. Between two pictures nobody looks at anything. What a picture keeps then is memory; the last",
        "column is how long a full collection of garbage takes without and with it.",
        "",
        "| data | objects | first picture | second picture | difference | digests | kept | collection |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *rows,
        "",
        f"Command: `python bench/picture.py {words}`",
        machine.sentences(torch=str(torch.__version__)),
        "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--million-parameters", type=int, default=100)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--write", type=Path, default=None, help="a page for experiments/results")
    options = parser.parse_args()
    model, optimizer = model_and_optimizer(options.million_parameters * 1_000_000)
    parameters, rows = sum(each.numel() for each in model.parameters()), []
    for name, make in DATA.items():
        data = make(options.items)
        roots = [("model", model), ("optimizer", optimizer), ("data", data), *process_roots()]
        rows.append(measure_all(name, roots, lambda: step(model, optimizer), options.times))
        print(rows[-1], flush=True)
        del data, roots
    words = (
        f"--million-parameters {options.million_parameters} --items {options.items} --times {options.times}"
    )
    text = page(rows, parameters, options.items, options.times, words)
    print(text)
    if options.write is not None:
        options.write.write_text(text)


if __name__ == "__main__":
    main()
