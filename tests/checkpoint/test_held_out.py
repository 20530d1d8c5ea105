"""Loops that a seed has put together are resumed bit for bit or refused, and a difference would be seen."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.checkpoint.habits import MODULES, Kind
from tests.checkpoint.held_out import TRAITS, HeldOut, Judged, judge
from tests.checkpoint.ranks import Warm, one_warm_process
from tests.unchanged.loops import IN_ONE_FUNCTION, generate

SEED: Final = 11
"""`python -m tests.checkpoint.held_out --seed N` tries others."""
SCRIPTS: Final = 24
FORGETFUL: Final = """\
import sys
import threading

import torch
from torch import nn

torch.manual_seed(1)
kept = threading.stack_size()
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
    threading.stack_size(threading.stack_size() + (1 << 20))
print("trained", {})
print(threading.stack_size() >> 20)
torch.save(model.state_dict(), sys.argv[1])
"""
"""What it counts is nowhere in reach, and decides nothing until its end."""


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    yield from one_warm_process(MODULES)


@pytest.mark.parametrize("number", range(SCRIPTS))
def test_a_drawn_loop_is_exact_or_refused(warm: Warm, tmp_path: Path, number: int) -> None:
    judged = judge(warm, tmp_path, SEED, number)
    assert judged.is_fine, f"{judged.outcome}\n{judged.text}"


def test_what_differs_only_in_what_is_printed_at_the_end_is_seen(warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FORGETFUL)
    outcome = HeldOut(warm, tmp_path, tmp_path / "train.py", random.Random(3)).outcome()
    assert (outcome.kind, outcome.said.partition(":")[0]) == (Kind.DIFFERENT, "printed[1]")


def test_a_trait_of_one_function_stands_in_loops_of_one() -> None:
    """What `start` binds is there in the loop."""
    forms = {each.__name__ for each in IN_ONE_FUNCTION}
    local = {each.name for each in TRAITS if "local" in each.code}
    for number in range(200):
        head = generate(0, number, TRAITS).splitlines()[0]
        form, *traits = head.partition(": ")[2].rstrip('."').split(", ")
        assert form in forms or local.isdisjoint(traits), head


def test_what_is_not_judged_is_fine() -> None:
    assert Judged(number=0, text="", outcome=None, why_not="fails by itself").is_fine
