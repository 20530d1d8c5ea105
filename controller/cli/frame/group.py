"""A verb with verbs of its own (`nodes drain`, `sim run`), as all of ours look."""

from __future__ import annotations

from typing import Any, Final

import typer

SETTINGS: Final = {"help_option_names": ["-h", "--help"]}


def group(**more: Any) -> typer.Typer:
    """Help by -h as well, in plain text; completion is the whole program's. `more` is for typer."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=SETTINGS, **more)
