"""Policies by name, and what is wrong with a trace, a policy or a number, as one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cotenant.controller import sim
from cotenant.controller.present.problem import Problem


def chosen_policies(text: str) -> tuple[sim.PolicyChoice, ...]:
    """Modules of one's own (`MODULE:NAME`) are looked for in this folder as well, after all others.

    Raises:
        Problem: a policy or a parameter that there is not.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        return sim.policies_named(text)
    except sim.BadChoice as error:
        raise Problem(_code(str(error)), str(error), error.hint) from None


def _code(message: str) -> str:
    """The code that every verb uses for a missing file, or for one that holds something else."""
    return "not-found" if "there is no such file" in message else "usage"


@contextmanager
def convert_errors() -> Iterator[None]:
    """What is wrong with a trace, a table of pairs or a number, as one line."""
    try:
        yield
    except sim.TraceProblem as error:
        raise Problem(_code(error.message), error.message, error.hint) from None
    except MemoryError:
        raise Problem("failed", "out of memory", "take fewer jobs with --jobs") from None
    except ValueError as error:
        code = "not-found" if isinstance(error, sim.NoPairTable) else "usage"
        raise Problem(code, str(error), "`cotenant sim compare --help` has examples") from None
