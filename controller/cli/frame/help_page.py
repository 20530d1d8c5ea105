"""How help pages read: `JOB`, `[TEXT]`, `FILE...`, and each part of a verb with a whole sentence.

Rule: typer makes pages from signatures. What it adds that says nothing to a person (a Python type, braces
around what is required, a sentence cut in the middle) is taken out here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def polish(command: Any) -> Any:
    """The command, or the verb with parts, with pages as above."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = no_type
            parameter._usage_display_name = in_usage(parameter)
    command.get_short_help_str = first_paragraph(command)
    for part in getattr(command, "commands", {}).values():
        polish(part)
    return command


def no_type(ctx: Any) -> str:
    """Beside an argument's own word (`JOB`) its Python type says nothing to a person."""
    return ""


def in_usage(parameter: Any) -> Callable[[], str]:
    """How an argument stands in the usage line; one whose own word has brackets or dots is left as it is."""

    def name() -> str:
        word: str = parameter.display_name_raw
        several = "..." if parameter.nargs != 1 and not word.endswith("...") else ""
        return f"{word}{several}" if parameter.required or word.startswith("[") else f"[{word}{several}]"

    return name


def first_paragraph(command: Any) -> Callable[..., str]:
    """What a list of parts says of one: lines are folded, so nothing needs to be cut."""

    def short_help(limit: int = 0) -> str:
        text = (command.short_help or command.help or "").strip().partition("\n\n")[0]
        return " ".join(text.split())

    return short_help
