"""How a value is said on a command line: what stands beside its type in `Annotated`.

Rule: plain data, so that a value says it where the value is defined, and what defines values knows of no
command line. `cli/frame/command.py` makes options and arguments of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

Completer = Callable[[str], Sequence[str] | Sequence[tuple[str, str]]]
"""From what was typed so far to words, or to words and what each means."""


class Declared(NamedTuple):
    """What stands beside a type in `Annotated`; without `flags` it is an argument."""

    flags: tuple[str, ...] = ()
    metavar: str | None = None
    help: str = ""
    min: float | None = None
    max: float | None = None
    show_default: bool | str | None = None
    """A text is shown in place of the default; False: no default is shown."""
    hidden: bool = False
    complete: Completer | None = None
