"""Which of several optimizers counts the steps of a training."""

from __future__ import annotations

import weakref

import pytest

from cotenant.checkpoint.progress.main_optimizer import OTHERS_MAX, MainOptimizer


class Optimizer:
    """Nothing of one is asked."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No attempt before this one, and no script whose variables we have read."""
    monkeypatch.setattr(MainOptimizer, "of_attempt_before", None)
    monkeypatch.setattr(MainOptimizer, "let_go", None)


def test_the_first_counts_until_it_rests_or_is_gone() -> None:
    main, first, second = MainOptimizer(), Optimizer(), Optimizer()
    assert [main.counts(each) for each in (first, second, first)] == [True, False, True]
    assert [main.counts(second) for _ in range(OTHERS_MAX + 1)] == [False] * OTHERS_MAX + [True]
    del second
    assert main.counts(first)


def test_after_a_resume_the_one_that_counted_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that is trained between two epochs may be the first to step."""
    first, probe = Optimizer(), Optimizer()
    monkeypatch.setattr(MainOptimizer, "of_attempt_before", weakref.ref(first))
    main = MainOptimizer()
    assert [main.counts(each) for each in (probe, first, probe)] == [False, True, False]


def test_what_we_alone_keep_alive_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [Optimizer()]
    main, second = MainOptimizer(), Optimizer()
    assert main.counts(kept[0])
    monkeypatch.setattr(MainOptimizer, "let_go", staticmethod(kept.clear))
    assert main.counts(second)
