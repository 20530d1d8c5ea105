"""The formats of every read command: table, wide, json, jsonl, id; of some lists csv.

Rule: every JSON object says what it is (`"schema": "<noun>/1"`), and a field that ends in a unit is in
that unit. Tables are for people and may change; scripts read JSON.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from cotenant.controller.cli.frame.command import Made, option
from cotenant.controller.domain import texts
from cotenant.controller.present import screen
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.tables import Column
from cotenant.controller.submission.flags import value_of
from cotenant.controller.submission.quantities import count

T = TypeVar("T")

Format = Literal["table", "wide", "json", "jsonl", "id", "csv", "parquet"]
Printed = msgspec.Struct | dict[str, Any]
"""What is printed as JSON: a view from the controller, or an object that has its schema."""
FORMATS: Final[tuple[Format, ...]] = ("table", "wide", "json", "jsonl", "id")
DEL: Final = b"\x7f"
"""The one hidden character of ASCII that JSON leaves as it is."""
LIST_FORMATS: Final[tuple[Format, ...]] = (*FORMATS, "csv")

JsonFlag = Annotated[bool, option("--json", help="The same as -o json.")]
EndpointFlag = Annotated[
    str | None,
    option("--endpoint", metavar="URL", help="Another controller: ipc:///PATH or tcp://HOST:PORT."),
]


def chosen_format(output: str | None, as_json: bool, formats: Sequence[Format]) -> Format:
    """The format asked for.

    Raises:
        Problem: there is no such format, or two were asked for.
    """
    if as_json and output not in (None, "json"):
        raise Problem("usage", f"--json and -o {output} contradict each other", "leave one out")
    if as_json:
        return "json"
    for known in formats:
        if output == known:
            return known
    if output is not None:
        raise Problem("usage", f"there is no format {output!r}", f"formats are {', '.join(formats)}")
    return "table"


def output_flag(formats: Sequence[Format]) -> Any:
    def complete(incomplete: str) -> list[str]:
        return [each for each in formats if each.startswith(incomplete)]

    more = {"metavar": "|".join(formats), "help": "Format.", "complete": complete}
    return Annotated[str | None, option("-o", "--output", **more)]


def _made_of(formats: Sequence[Format]) -> Made:
    make = partial(chosen_format, formats=formats)
    return Made(make, {"output": (output_flag(formats), None), "as_json": (JsonFlag, False)})


FormFlag = Annotated[Format, _made_of(FORMATS)]
ListFormFlag = Annotated[Format, _made_of(LIST_FORMATS)]
"""-o FORMAT, and --json for one of them."""


def whole_number(flag: str, text: str, at_most: int) -> int:
    """The whole number that the text of a flag states, `at_most` if it is larger. Raises Problem."""
    return min(value_of(flag, text, count), at_most)


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """How things of one kind are listed, in every format; and those that are."""

    noun: str
    """Singular; the schema of each item is `noun/1`."""
    plural: str = ""
    """If it is not `nouns`; the whole has this key, and the schema `nouns/1`."""
    as_json: Callable[[Any], dict[str, Any]] | None = None
    """A row as JSON, without its schema. None: rows are views from the controller, printed as they came."""
    identity: Callable[[Any], str]
    columns: Sequence[Column] = ()
    wide_columns: Sequence[Column] = ()
    nothing: str = ""
    """What a person reads where there are no rows."""
    rows: Sequence[Any] = ()
    extra: dict[str, Any] = {}
    """Further fields of the whole."""

    def fill(self, rows: Sequence[Any], *, nothing: str = "", **extra: Any) -> Listing:
        return msgspec.structs.replace(self, rows=rows, nothing=nothing or self.nothing, extra=extra)


def show_listing(listing: Listing, form: Format) -> None:
    show_pages(iter((listing,)), form)


def show_pages(pages: Iterator[Listing], form: Format) -> None:
    """Shows one listing that comes in parts, one of which is in memory at a time; the first decides the
    columns."""
    first = next(pages)
    parts = chain((first,), pages)
    if form == "id":
        for part in parts:
            write_lines([texts.one_line(part.identity(row)) for row in part.rows])
    elif form == "jsonl":
        for part in parts:
            write_lines([json_text(item(part, row)) for row in part.rows])
    elif form == "json":
        _write_json_pages(first, parts)
    elif form == "csv":
        _write_csv_pages(parts)
    elif not first.rows:
        screen.tell(first.nothing or f"no {several(first)}")
    else:
        wide = form == "wide"
        columns = (wide and first.wide_columns) or first.columns
        table = screen.Table(columns, None if wide else screen.terminal_width())
        for part in parts:
            screen.say("\n".join(table.lines(part.rows)), flush=True)


def _write_json_pages(first: Listing, parts: Iterable[Listing]) -> None:
    """The bytes of one `write_json` of it all."""
    use_utf_8()
    head = msgspec.json.format(
        json_text({"schema": f"{several(first)}/1", **first.extra, several(first): []})
    )
    before = head.removesuffix("[]\n}") + "["
    for part in parts:
        items = [msgspec.json.format(json_text(item(part, row)), indent=2) for row in part.rows]
        for text in items:
            sys.stdout.write(before + "\n    " + text.replace("\n", "\n    "))
            before = ","
    print(before + "]\n}" if before != "," else "\n  ]\n}")


def _write_csv_pages(parts: Iterable[Listing]) -> None:
    """The JSON's fields as columns; a list of words becomes words between spaces, nested values stay JSON."""

    from cotenant.controller.domain import csv_cells  # Few verbs need it.

    def cell(value: Any) -> str:
        if isinstance(value, list | tuple) and all(isinstance(each, str | int | float) for each in value):
            return texts.one_line(" ".join(map(str, value)))
        if value is None or isinstance(value, str):
            return texts.one_line(value or "")
        return csv_cells.Figure(json_text(value))

    use_utf_8()
    rows = (msgspec.to_builtins(item(part, row)) for part in parts for row in part.rows)
    for first in rows:
        following = (map(cell, row.values()) for row in chain((first,), rows))
        csv_cells.write_rows(sys.stdout, chain((first,), following))


def several(listing: Listing) -> str:
    return listing.plural or f"{listing.noun}s"


def item(listing: Listing, row: Any) -> Any:
    return row if listing.as_json is None else {"schema": f"{listing.noun}/1", **listing.as_json(row)}


def show_one(form: Format, value: Printed, identity: str, of: T, page: Callable[[T], str]) -> None:
    """Shows one thing in the chosen form. The page gets texts that are one line each: it alone makes
    lines."""
    if form == "id":
        write_lines([texts.one_line(identity)])
    elif form == "jsonl":
        write_lines([json_text(value)])
    elif form == "json":
        write_json(value)
    else:
        screen.say(page(texts.escape_texts(of)))


def show_change(
    verb: str, asked: dict[str, Any], lines: Sequence[str], otherwise: str, as_json: bool
) -> None:
    """Show what the controller says about a change that was asked for."""
    if as_json:
        write_json({"schema": "change/1", "verb": verb, **asked, "lines": list(lines)})
        return
    for line in lines or (otherwise,):
        screen.say(texts.one_line(line))


def json_text(value: Any) -> str:
    """JSON in which also what JSON itself lets through (C1, directions of writing) stands as an escape."""
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:  # Half of a character, as in a file's name that is no UTF-8.
        encoded = msgspec.json.encode(texts.escape_texts(value))
    text = encoded.decode()
    return text if encoded.isascii() and DEL not in encoded else texts.HIDDEN.sub(_json_escape, text)


def _json_escape(match: re.Match[str]) -> str:
    halves = match[0].encode("utf-16-be")
    return "".join(f"\\u{halves[at : at + 2].hex()}" for at in range(0, len(halves), 2))


def write_json(value: Printed) -> None:
    use_utf_8()
    print(msgspec.json.format(json_text(value), indent=2))


def use_utf_8() -> None:
    """What scripts read is UTF-8 in every locale, as JSON has to be."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")


def write_lines(lines: Sequence[str]) -> None:
    if lines:
        use_utf_8()
        sys.stdout.write("\n".join(lines) + "\n")
