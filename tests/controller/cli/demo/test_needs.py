"""`cotenant demo` on a machine without torch says what to install, before it starts anything."""

from __future__ import annotations

import sys

from cotenant.controller.cli.setup.demo import cannot_train


def test_it_names_what_is_missing_and_the_command_that_installs_it() -> None:
    problem = cannot_train(lambda module: None)
    assert problem is not None
    assert "need torch and scikit-learn" in str(problem)
    assert f"{sys.executable} -m pip install torch scikit-learn" in str(problem)
    alone = cannot_train(lambda module: None if module == "torch" else object())
    assert alone is not None
    assert str(alone).rstrip("`").endswith("pip install torch")


def test_with_both_there_is_no_problem() -> None:
    assert cannot_train(lambda module: object()) is None
