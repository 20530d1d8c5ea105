"""Bytes of a file to columns of text and numbers, each error with its line and column.

Rule: no other exception than `TraceProblem` leaves this module, whatever the bytes; every reader of a text
format is built from these few functions.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.domain import csv_cells
from cotenant.controller.sim.traces.trace import Floats, TraceProblem, nearest, show_value

MAX_NUMBER = 1e15
"""30 million years in seconds: beyond it, sums and differences lose what they are for."""
MAX_BYTES = 1 << 30
"""Of the unpacked text: the largest public job table we know has a fifth of it."""
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, kw_only=True, slots=True)
class TextTable:
    """Columns of text by name; `lines[i]` is the line of row i in `file`."""

    file: str
    columns: dict[str, tuple[str, ...]]
    lines: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lines)

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def text(self, column: str) -> tuple[str, ...]:
        """Empty texts where the file lacks the column."""
        return tuple(map(csv_cells.as_read, self.columns.get(column) or ("",) * len(self)))

    def numbers(self, column: str, *, negative: bool = True) -> Floats:
        """The numbers of a column, shape (n,); an empty field is NaN.

        Raises:
            TraceProblem: not a finite number, absurdly large, or below 0 where `negative` is False.
        """
        texts = self.columns[column]
        try:
            values = np.array([float(text) if text else math.nan for text in texts])
        except ValueError:
            values = None
        given = np.fromiter(map(bool, texts), np.bool_, len(texts))
        if values is None or bool(np.any(given & ~np.isfinite(values))) or not all(map(_is_plain, texts)):
            raise self._not_a_number(column)
        if bool(np.any(large := np.abs(values) > MAX_NUMBER)):
            row = int(np.argmax(large))
            raise self.problem(row, column, f"{show_value(texts[row])} is too large")
        if not negative and bool(np.any(below := values < 0.0)):
            row = int(np.argmax(below))
            raise self.problem(row, column, f"{show_value(texts[row])} is negative", "it must be 0 or more")
        return values

    def parse_column(self, column: str, parse: Callable[[str], float], what: str) -> Floats:
        """Like `numbers`, by a function that raises ValueError for what it cannot read; `what` it expects."""
        texts = self.columns[column]
        seen: dict[str, float] = {}
        for row, text in enumerate(texts):
            if text not in seen:
                try:
                    seen[text] = parse(text)
                except (ValueError, OverflowError):
                    raise self.problem(row, column, f"{show_value(text)} is not {what}") from None
        return np.fromiter((seen[text] for text in texts), np.float64, len(texts))

    def problem(self, row: int, column: str, what: str, hint: str = "") -> TraceProblem:
        return TraceProblem(what, file=self.file, line=int(self.lines[row]), column=column, hint=hint)

    def _not_a_number(self, column: str) -> TraceProblem:
        for row, text in enumerate(self.columns[column]):
            if text and not _is_number(text):
                hint = "an unknown value is an empty field" if text.strip().lower() in _ABSENT else ""
                return self.problem(row, column, f"{show_value(text)} is not a number", hint)
        raise AssertionError("a column without a wrong number was refused")

    def unique(self, column: str) -> tuple[str, ...]:
        """The column's texts, all different.

        Raises:
            TraceProblem: two rows have the same.
        """
        texts = self.text(column)
        if len(set(texts)) != len(texts):
            first: dict[str, int] = {}
            for row, text in enumerate(texts):
                if text in first:
                    what = f"{show_value(text)} is there twice, first in line {self.lines[first[text]]}"
                    raise self.problem(row, column, what, "each job needs its own; or leave the column out")
                first[text] = row
        return texts


_ABSENT = frozenset(("nan", "na", "n/a", "none", "null", "-", "inf", "-inf", "infinity", "?"))


def _is_plain(text: str) -> bool:
    """Python reads underscores, and digits of every script, as well."""
    return text.isascii() and "_" not in text


def _is_number(text: str) -> bool:
    try:
        return _is_plain(text) and math.isfinite(float(text))
    except ValueError:
        return False


def content(path: Path, bytes_max: int = MAX_BYTES) -> bytes:
    """The file's bytes, unpacked if they are gzip.

    Raises:
        TraceProblem: it cannot be read, is empty, larger than `bytes_max`, or broken gzip.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(bytes_max + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise TraceProblem(f"cannot be read: {reason}", file=str(path)) from None
    except ValueError as error:
        raise TraceProblem(f"is no file name: {error}", file=repr(str(path))) from None
    if path.suffix == ".gz" and packed and not packed.startswith(GZIP_MAGIC):
        hint = "rename it without .gz if it is plain text"
        raise TraceProblem("is named .gz but does not hold gzip data", file=str(path), hint=hint)
    data = unpack_gzip(packed, str(path), bytes_max) if packed.startswith(GZIP_MAGIC) else packed
    if len(data) > bytes_max:
        raise TraceProblem(f"is larger than {bytes_max >> 20} MiB", file=str(path), hint="cut it into parts")
    if not data.strip():
        raise TraceProblem("is empty", file=str(path))
    return data


def unpack_gzip(packed: bytes, file: str, bytes_max: int = MAX_BYTES) -> bytes:
    """Unpacks at most `bytes_max` + 1 bytes of gzip data: a small file may unpack to more than there is
    memory."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
            return stream.read(bytes_max + 1)
    except EOFError:
        raise TraceProblem("ends in the middle of its gzip data", file=file, hint="fetch it again") from None
    except (OSError, zlib.error) as error:
        raise TraceProblem(f"is broken gzip data: {error}", file=file, hint="fetch it again") from None


def decode_utf_8(data: bytes, file: str) -> str:
    """UTF-8 text, without a byte order mark.

    Raises:
        TraceProblem: other bytes.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        what = "is UTF-16 text" if utf16 else f"byte 0x{data[error.start]:02x} is not UTF-8"
        hint = f"convert it: iconv -f {'UTF-16' if utf16 else 'LATIN1'} -t UTF-8"
        raise TraceProblem(what, file=file, line=line, hint=hint) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise TraceProblem("holds a NUL byte: it is no text file", file=file, line=line)
    return text


def table(
    text: str,
    file: str,
    *,
    wanted: Sequence[str] | None = None,
    required: Sequence[str] = (),
    otherwise: str = "",
    delimiter: str = "",
    header: Sequence[str] | None = None,
    quotes: bool = True,
) -> TextTable:
    """Delimited text with a header row (or the given `header`), only the `wanted` columns (None = all).
    `otherwise`: what to do where required columns are missing. No `delimiter`: as in the first line.

    Raises:
        TraceProblem: a required column is missing, a row has another number of fields, or broken quotes.
    """
    source = io.StringIO(text, newline="")
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    reader = csv.reader(source, delimiter=delimiter or separator_of(text), quoting=quoting)
    rows: list[tuple[str, ...]] = []
    lines: list[int] = []
    try:
        names = [name.strip() for name in (next(reader, []) if header is None else header)]
        check_header(names, file, required, otherwise)
        kept = [n for n, name in enumerate(names) if wanted is None or name in wanted]
        pick: Callable[[list[str]], tuple[str, ...]] = (
            itemgetter(*kept) if len(kept) > 1 else lambda row: tuple(row[n] for n in kept)
        )
        width = len(names)
        for row in reader:
            if len(row) != width:
                if not row or row == [""]:
                    continue
                raise _field_count_problem(file, reader.line_num, len(row), width)
            rows.append(pick(row))
            lines.append(reader.line_num)
    except csv.Error as error:
        raise TraceProblem(f"is not CSV: {error}", file=file, line=reader.line_num) from None
    columns = list(zip(*rows, strict=True)) or [()] * len(kept)
    picked = {names[n]: tuple(columns[place]) for place, n in enumerate(kept)}
    return TextTable(file=file, columns=picked, lines=np.array(lines, np.int64))


def separator_of(text: str) -> str:
    """What stands between the fields of the first line; a comma where nothing does."""
    first = text.lstrip().partition("\n")[0]
    return max((",", ";", "\t", "|"), key=first.count)


def check_header(names: Sequence[str], file: str, required: Sequence[str], otherwise: str = "") -> None:
    """Raises TraceProblem where required columns are missing (all are named), or a name is there twice."""
    missing = [name for name in required if name not in names]
    if missing:
        near = {name: nearest(name, names).removeprefix("did you mean ").rstrip("?") for name in missing}
        meant = [f"{found} for {name}" if missing[1:] else found for name, found in near.items() if found]
        hints = [f"did you mean {', '.join(meant)}?" if meant else ""]
        if not all(near.values()):
            hints.append(f"it has {', '.join(map(show_value, names[:24])) or 'no columns'}")
        what = f"has no column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        raise TraceProblem(what, file=file, line=1, hint="; ".join(filter(None, (*hints, otherwise))))
    twice = [name for name in dict.fromkeys(names) if name and names.count(name) > 1]
    if twice:
        raise TraceProblem(f"has two columns {show_value(twice[0])}", file=file, line=1)


def _field_count_problem(file: str, line: int, found: int, wanted: int) -> TraceProblem:
    hint = "is the file cut off?" if found < wanted else "a field that holds the separator needs quotes"
    return TraceProblem(f"has {found} fields, the header has {wanted}", file=file, line=line, hint=hint)
