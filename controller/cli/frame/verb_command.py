"""A verb of the table as a command of the library that parses command lines."""

from __future__ import annotations

from typing import Any, Final

from cotenant.controller.cli.verbs import Verb

PROGRAM: Final = "cotenant"
COMPLETE_VARIABLE: Final = "_COTENANT_COMPLETE"
"""Set by the shell's completion script."""


def as_command(verb: Verb) -> Any:
    """The verb's function (or, for a verb with parts, its app) as a command."""
    import importlib

    import typer

    found = getattr(importlib.import_module(f"cotenant.controller.cli.{verb.module}"), verb.name)
    from cotenant.controller.cli.frame.help_page import polish
    from cotenant.controller.cli.frame.plain import PlainCommand

    if isinstance(found, typer.Typer):
        return polish(typer.main.get_command(found))

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = {"help_option_names": ["-h", "--help"], "allow_interspersed_args": not verb.passes_words}
    help_text = with_examples(found.__doc__)
    app.command(name=verb.name, cls=PlainCommand, help=help_text, context_settings=settings)(found)
    return polish(typer.main.get_command(app))


def with_examples(doc: str) -> str:
    """Indented paragraphs of a docstring keep their lines (the `\\b` is the library's mark for that)."""
    import inspect

    paragraphs = inspect.cleandoc(doc).split("\n\n")
    return "\n\n".join(f"\b\n{each}" if each.startswith("  ") else each for each in paragraphs)
