"""The house does not grow: no figure passes its limit in `size.toml`, and every limit holds something."""

from __future__ import annotations

import pytest

from tests.house import size

FIGURES = list(size.figures())
MOST = size.limits()


@pytest.mark.parametrize("figure", FIGURES, ids=lambda each: each.what)
def test_no_figure_grows(figure: size.Figure) -> None:
    assert figure.what in MOST, "a figure without a limit: run `python tests/house/size.py lower`"
    assert not figure.problem(MOST[figure.what])


def test_no_limit_is_of_a_figure_that_is_gone() -> None:
    assert {each.what for each in FIGURES} == MOST.keys()


@pytest.mark.parametrize(("found", "says"), [(1001, "at most"), (1000, ""), (985, ""), (970, "lower")])
def test_a_figure_is_held_from_both_sides(found: int, says: str) -> None:
    problem = size.Figure("lines", found).problem(1000)
    assert says in problem and bool(says) == bool(problem)
