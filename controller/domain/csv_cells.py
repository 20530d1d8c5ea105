"""CSV that we write, and what we read of it again.

Rule: a spreadsheet computes a cell that begins with one of = + - @, a tab or the end of a line. Such a text
is written with an apostrophe before it (also one that begins so after apostrophes, so that `as_read` gives
back each text as it was). Numbers stay numbers: values that are no texts, and `Figure`s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import IO, Any, Final

_COMPUTED: Final = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_QUOTED: Final = re.compile('[",\r\n]')
"""Python's own writer lets a carriage return stand, and what follows it is a row to other readers."""


class Figure(str):
    """A number that is written already, and so no text of anybody's."""

    __slots__ = ()


def write_rows(file: IO[str], rows: Iterable[Iterable[Any]]) -> None:
    file.writelines((",".join(map(_as_written, row)) or '""') + "\n" for row in rows)


def as_read(cell: str) -> str:
    """The text of a cell that `write_rows` wrote."""
    return cell[1:] if cell[:1] == "'" and _COMPUTED.match(cell) else cell


def _as_written(value: Any) -> str:
    text = "" if value is None else str(value)
    if isinstance(value, str) and not isinstance(value, Figure) and _COMPUTED.match(text):
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text
