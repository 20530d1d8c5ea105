"""Texts of others: which of their characters can change a terminal or a table or mislead a reader, and how
large they are. Rule: we never print a character that is invisible, or that moves what stands around it; we
show its escape (`\\x1b`, `\\n`, `\\u202e`). So no name makes a row of its own, colours a screen or
hides what follows it. Where a text is JSON, its own escapes do that, and nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from enum import Enum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec

T = TypeVar("T")

HIDDEN: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL, C1: a terminal obeys them
    "\u00ad\u061c\u180e\u200b\u200e\u200f"  # nothing to see, or the direction of what follows
    "\u2028-\u202e\u2060-\u206f"  # ends of lines and paragraphs; embeddings, overrides, isolates
    "\ufeff\ufff9-\ufffb"
    "\ud800-\udfff"  # halves of characters, which no stream can write
    "\U000e0000-\U000e007f"  # tags: whole sentences that nobody sees
    "]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


NAME_CHARACTERS_MAX: Final = 128
WORD: Final = re.compile(r"[\w.:+-]+")
"""An organisation, a type of GPU, a feature of a host: what stands in a list without quotes."""


def is_name(text: str) -> bool:
    """Whether people see it as it is, and lists have room for it."""
    return len(text) <= NAME_CHARACTERS_MAX and is_one_line(text)


def is_word(text: str) -> bool:
    """Whether it is one word, or empty: nothing was said."""
    return not text or WORD.fullmatch(text) is not None


def is_whole_number(text: str) -> bool:
    """Whether it is ASCII digits alone: to Python `٣` is a digit as well, and 3."""
    return text.isascii() and text.isdigit()


def is_one_line(text: str) -> bool:
    """Whether it is seen as it is."""
    return HIDDEN.search(text) is None


def duration(seconds: float) -> str:
    """`0s`, `45s`, `3m12s`, `2h05m`, `3d04h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, secs = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{secs:02d}s"
    hours, mins = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{mins:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours:02d}h"


def rough_duration(seconds: float) -> str:
    """`about 20 s`, `about 5 min`, `about 3 h`, `about 4 days`: an expected time, with no more digits than
    are known."""
    if not isfinite(seconds):
        return "an unknown time"
    size_s = abs(seconds)
    sign = "-" if seconds < 0.0 else ""
    if size_s < 1.0:
        return "less than 1 s"
    if size_s < 90.0:
        return f"about {sign}{round(size_s, -1 if size_s >= 19.5 else None):.0f} s"
    if size_s < 5400.0:
        return f"about {sign}{size_s / 60.0:.0f} min"
    if size_s < 172_800.0:
        return f"about {sign}{size_s / 3600.0:.0f} h"
    return f"about {sign}{size_s / 86_400.0:.0f} days"


def one_line(text: str) -> str:
    """Returns the text with an escape in place of whatever would not be seen as it is. Doing it twice changes
    nothing more."""
    return text if text.isprintable() and text.isascii() else HIDDEN.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    short = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return _SHORT.get(match[0], short)


def bytes_in(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def cut_to(text: str, bytes_max: int) -> str:
    """Returns as much of the text's beginning as fits, with a mark if that is not all."""
    if bytes_in(text) <= bytes_max:
        return text
    mark = "…"
    return text.encode(errors="replace")[: bytes_max - len(mark.encode())].decode(errors="ignore") + mark


def escape_texts(value: T) -> T:
    """A whole reply with all its texts in one line each, for what is printed."""
    return change_texts(value, one_line)


def change_texts(value: T, change: Callable[[str], str]) -> T:
    """A whole message with each of its texts changed; words of a fixed list are no texts."""
    return cast(T, _changed(value, change))


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return value if isinstance(value, Enum) else change(value)
    if isinstance(value, msgspec.Struct):
        return replace_texts(
            value, {name: _changed(getattr(value, name), change) for name in text_fields(type(value))}
        )
    if isinstance(value, tuple | list):
        items = [_changed(each, change) for each in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {_changed(key, change): _changed(each, change) for key, each in value.items()}
    return value


S = TypeVar("S", bound=msgspec.Struct)


def replace_texts(value: S, texts: dict[str, Any]) -> S:
    """Returns the value with other texts; the value itself, if no text is another. What is checked where a
    value is born is not checked again: an escape is longer than what it stands for."""
    changed = {name: text for name, text in texts.items() if text is not getattr(value, name)}
    if not changed:
        return value
    copied = copy(value)
    for name, text in changed.items():
        msgspec.structs.force_setattr(copied, name, text)
    return copied


@cache
def text_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Fields of a type of message that are texts or have texts in them; not numbers, switches, and words of a
    fixed list."""
    return tuple(field.name for field in msgspec.structs.fields(kind) if _holds_text(field.type))


def _holds_text(kind: Any) -> bool:
    if kind in (int, float, bool, NoneType, Ellipsis):
        return False
    origin = get_origin(kind)
    if origin is Annotated:
        return _holds_text(get_args(kind)[0])
    if origin is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        return False
    if origin in (Union, UnionType, tuple, list, dict):
        return any(_holds_text(each) for each in get_args(kind))
    supertype = getattr(kind, "__supertype__", None)  # JobId, AttemptNo
    return _holds_text(supertype) if supertype is not None else True
