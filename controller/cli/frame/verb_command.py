"""A verb of the table as a command of click, which parses command lines."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from cotenant.controller.cli.verbs import Verb

if TYPE_CHECKING:
    import click

PROGRAM: Final = "cotenant"
COMPLETE_VARIABLE: Final = "_COTENANT_COMPLETE"
"""Set by the shell's completion script."""


def as_command(verb: Verb) -> click.Command:
    """The verb's function (or, for a verb with parts, its group) as a command."""
    import click

    from cotenant.controller.cli.frame.command import command

    found = getattr(importlib.import_module(f"cotenant.controller.cli.{verb.module}"), verb.name)
    if isinstance(found, click.Command):
        return found
    return command(found, verb.name, passes_words=verb.passes_words)
