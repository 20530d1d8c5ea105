"""Which of several optimizers counts the steps of a training."""

from __future__ import annotations

import weakref

from cotenant.checkpoint.progress.main_optimizer import OTHERS_MAX, MainOptimizer


class Optimizer:
    """Nothing of one is asked."""


def test_the_first_counts_until_it_rests_or_is_gone() -> None:
    main, first, second = MainOptimizer(), Optimizer(), Optimizer()
    assert [main.counts(each) for each in (first, second, first)] == [True, False, True]
    assert [main.counts(second) for _ in range(OTHERS_MAX + 1)] == [False] * OTHERS_MAX + [True]
    del second
    assert main.counts(first)


def test_after_a_resume_the_one_that_counted_before_counts() -> None:
    """A probe that is trained between two epochs may be the first to step."""
    first, probe = Optimizer(), Optimizer()
    main = MainOptimizer()
    main.of_attempt_before = weakref.ref(first)
    assert [main.counts(each) for each in (probe, first, probe)] == [False, True, False]


def test_what_we_alone_keep_alive_is_gone() -> None:
    kept = [Optimizer()]
    main, second = MainOptimizer(), Optimizer()
    assert main.counts(kept[0])
    main.let_go = kept.clear
    assert main.counts(second)
