"""Whatever an author's habit is, the script is resumed bit for bit or refused with the line in the way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.checkpoint.habits import MODULES, NAMES, SCRIPTS, Kind, StoppedScript, unexpected
from tests.checkpoint.ranks import Warm, one_warm_process

REFUSED: Final[dict[str, str]] = {
    "csv_log": "before the loop csv_log.py line 21 truncates it: done again, that would destroy it",
    "endless_loader": "line 29: `main().weights` is a cycle half way, which a new process cannot make",
    "log_file": "before the loop log_file.py line 20 truncates it: done again, that would destroy it",
    "manual_sgd": "no optimizer has made a step",
    "minibatches": "nothing says in which turn the loop over `iterate_minibatches(X, Y, 8)` is",
    "persistent_workers": "the workers of a loader live longer than an epoch, and what they keep is theirs",
    "teacher_copied": "line 28: `pairs` is a zip half way, which a new process cannot make",
}
"""By script: the piece of the refusal that says what is in the way. All others are exact."""
SEEDS: Final[dict[str, int]] = {"active_learning": 2}
"""Of stops that have found something; the others have seed 0. `python -m tests.checkpoint.habits --seed N`
tries others."""


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    yield from one_warm_process(MODULES)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_exact_or_refused_and_never_silently_different(warm: Warm, tmp_path: Path, name: str) -> None:
    seed = SEEDS.get(name, 0)
    assert not unexpected(warm, tmp_path, name, seed, scripts=SCRIPTS, refused=REFUSED)


class FixedDraw(random.Random):
    """Draws what it was told."""

    def __init__(self, *stops: int) -> None:
        super().__init__(0)
        self._stops = stops

    def sample(self, *_: Any, **__: Any) -> Any:
        return list(self._stops)


def test_steps_are_counted_of_an_optimizer_whose_class_was_made_again_alone(
    warm: Warm, tmp_path: Path
) -> None:
    """Torch has the steps of a class be heard of when its first object is made."""
    script = StoppedScript(warm, tmp_path, SCRIPTS / "optimizer_anew.py", FixedDraw(25, 35, 45))
    outcome = script.outcome()
    assert (outcome.kind, outcome.stops) == (Kind.EXACT, (25, 35, 45)), outcome


def test_every_expectation_is_about_a_script() -> None:
    assert (REFUSED.keys() | SEEDS.keys()) - set(NAMES) == set()
