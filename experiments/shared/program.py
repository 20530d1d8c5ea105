"""A function with the product's flags as a program of its own: `python -m experiments.rltune.train`.

Rule: it reads, speaks and fails as a verb of `cotenant` does: the same help page, errors and exit codes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import click

from cotenant.controller.cli.frame.command import command
from cotenant.controller.cli.main import asks_for_json, invoke, run_guarded
from cotenant.controller.present.interruption import listening


def run(act: Callable[..., int | None] | click.Command, name: str, words: Sequence[str] | None = None) -> int:
    """Runs `act` on a command line and returns its exit code. `name`: what people call it by."""
    given = list(sys.argv[1:] if words is None else words)
    made = act if isinstance(act, click.Command) else command(act, name)
    with listening():
        return run_guarded(lambda: invoke(made, name, given), as_json=asks_for_json(given))
