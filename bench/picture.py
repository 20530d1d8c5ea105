"""What it costs to look at everything that a script can reach: at its loop's begin, and when it must leave.

    python bench/picture.py [--runs 5] [--write PAGE]

A transformer of 100 million parameters with AdamW that has made a step, beside data of a million items, once as
a list of pairs of a text and a number and once as tensors. Between two pictures a step is made.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import machine
import torch
from torch import nn

from cotenant.checkpoint.picture import Picture

ITEMS: Final = 1_000_000
WIDTH, LAYERS, WORDS = 768, 12, 20_000
AIM_S: Final = 1.0
DATA: Final[dict[str, Callable[[], Any]]] = {
    "a list of pairs": lambda: [(f"text {number}", number % 10) for number in range(ITEMS)],
    "two tensors": lambda: (torch.randn(ITEMS, 16), torch.randint(0, 10, (ITEMS,))),
}


class Training:
    """What a script holds in its loop."""

    def __init__(self, items: Any) -> None:
        self.items = items
        blocks = [
            nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, batch_first=True, dropout=0.0)
            for _ in range(LAYERS)
        ]
        self.model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, nn.Linear(WIDTH, 10))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=False)
        self.losses: list[float] = []

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.model(torch.randint(0, WORDS, (2, 8))).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def roots(self) -> list[tuple[str, Any]]:
        return list(vars(self).items())


def costs(training: Training) -> Iterator[tuple[str, float]]:
    """How long each part takes, with what it is."""
    began_s = perf_counter()
    picture = Picture(training.roots(), digests=True)
    yield f"a picture of {len(picture.nodes):,} objects", perf_counter() - began_s
    picture.let_go()
    training.step()
    began_s = perf_counter()
    with picture.hold():
        changed = list(picture.changed_nodes())
    yield f"what has changed since: {len(changed):,} objects", perf_counter() - began_s
    began_s = perf_counter()
    picture.digests()
    yield "a number for each variable's content", perf_counter() - began_s


def rows(runs: int) -> Iterator[str]:
    for data, make in DATA.items():
        training = Training(make())
        training.step()
        every = [list(costs(training)) for _ in range(runs)]
        for found in zip(*every, strict=True):
            seconds = sorted(s for _, s in found)
            middle = statistics.median(seconds)
            yield f"| {data} | {found[0][0]} | {middle:.2f} s ({seconds[0]:.2f} to {seconds[-1]:.2f}) |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", type=Path, default=None, help="a page for experiments/results")
    options = parser.parse_args()
    torch.manual_seed(0)
    text = "\n".join([
        "# What a picture of a script costs",
        "",
        f"Medians of {options.runs} runs, and the shortest and the longest. The aim is {AIM_S:.0f} s for a picture.",
        "",
        "| a million items as | | |",
        "| --- | --- | ---: |",
        *rows(options.runs),
        "",
        f"Command: `python bench/picture.py --runs {options.runs}`",
        machine.sentences(torch=str(torch.__version__)),
        "",
    ])  # fmt: skip
    print(text)
    if options.write is not None:
        options.write.write_text(text)


if __name__ == "__main__":
    main()
