"""Which texts and numbers of a job belong to those who may read its log, its owner and admins; and how the
values of its secrets are kept out of them.

Rule: whatever comes from a job's output, or from its own library, has one of these types wherever it is kept
or sent; the one exit of answers withholds fields by their types (`controller/api/withholding.py`). Command
lines and values of grids are withheld as `[privacy] commands` says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from cotenant.controller.domain import texts

T = TypeVar("T")
Whose = Literal["owner", "command"]

WHOSE: Final = "whose"
"""The key of the mark in a type's `Meta`."""
ForOwner = Annotated[T, msgspec.Meta(extra={WHOSE: "owner"})]
"""Of the owner and admins."""
OfCommand = Annotated[T, msgspec.Meta(extra={WHOSE: "command"})]
"""Of a command: of everybody only where `[privacy] commands` is everyone."""
OwnersText = ForOwner[str]
UNTOLD: Final = "its owner can read why"
"""For everybody, in place of a text that is its owner's."""


HIDDEN: Final = "[secret]"
LINE_CHARS_MIN: Final = 4
"""Shorter lines of a value, such as the brackets of a JSON file, are no secrets."""


class SecretValues:
    """The values of a job's secrets, to be looked for in what it says: each as it is, as Python, JSON, shells
    and web addresses quote it, and each line of one that has several. Cut up or encoded it is not found."""

    def __init__(self, values: Iterable[str]) -> None:
        parts = {part for value in values for part in (value, value.strip()) if part.strip()}
        lines = {line for value in parts for line in value.splitlines()}
        plain = parts | {line for line in lines if len(line.strip()) >= LINE_CHARS_MIN}
        quoted = {form for part in plain for form in _quoted(part)}
        self._parts = sorted(plain | quoted, key=len, reverse=True)

    def hide(self, text: str) -> str:
        """The text with a mark in place of each of them."""
        for part in self._parts:
            text = text.replace(part, HIDDEN)
        return text


def _quoted(part: str) -> tuple[str, ...]:
    import json

    web = (_percent(part, "/"), _percent(part, ""), _percent(part, " ").replace(" ", "+"))
    shell = part.replace("'", "'\"'\"'")
    return (texts.one_line(part), repr(part)[1:-1], json.dumps(part)[1:-1], shell, *web)


def _percent(part: str, safe: str) -> str:
    """The text as a web address has it."""
    return re.sub(rf"[^\w.~{safe}-]", _percent_of, part, flags=re.ASCII)


def _percent_of(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="replace"))
