"""Answers of a limited size.

Rule: whatever does not fit is counted: `left_out` in the answer names each place and how much more there is,
and how to ask for less. Only fields without a value go without a word.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from cotenant.controller.cli.frame.output import json_text

CHARS_MAX: Final = 24_000
"""Of an answer as JSON: some 8,000 tokens."""
ITEMS_MAX: Final = 400
FIELDS_MAX: Final = 120
"""An object has at least so many while any are shown: fields of a row are told before further rows."""
TEXT_MAX: Final = 2_000
PLACES_MAX: Final = 8
LEFT_OUT: Final = "left_out"
EMPTY: Final[tuple[Any, ...]] = (None, "", [], (), {})

Document = dict[str, Any]


def bound_answer(answer: Document, narrow: str, chars_max: int = CHARS_MAX) -> Document:
    """The answer in at most `chars_max` characters (1,000 or more) of JSON. `narrow`: with what a narrower
    question is asked; `left_out` of the answer may have lines already."""
    items_max, text_max = ITEMS_MAX, TEXT_MAX
    while True:
        more: Counter[str] = Counter()
        whole = {key: value for key, value in answer.items() if key != LEFT_OUT}
        kept: Document = _shorten(whole, "", items_max, text_max, more)
        more = +more
        rest = more.total() - sum(count for _, count in more.most_common(PLACES_MAX))
        lines = [f"{place[-60:]}: {count} more" for place, count in more.most_common(PLACES_MAX)]
        lines = [*answer.get(LEFT_OUT, ()), *lines, *([f"elsewhere: {rest} more"] if rest else [])]
        if lines:
            kept[LEFT_OUT] = [*lines, f"narrow with {narrow}"]
        if len(json_text(kept)) <= chars_max:
            return kept
        assert items_max, "an answer without fields is short enough"
        items_max, text_max = items_max * 3 // 4, text_max * 7 // 8


def _shorten(value: Any, place: str, items_max: int, text_max: int, more: Counter[str]) -> Any:
    """Shortens lists, objects and texts, and counts what it leaves out, by place."""
    if isinstance(value, str) and len(value) > text_max:
        more[f"{place}, characters"] += len(value) - text_max
        return f"{value[:text_max]}…"
    if isinstance(value, list | tuple):
        more[place] += max(0, len(value) - items_max)
        return [_shorten(each, place, items_max, text_max, more) for each in value[:items_max]]
    if not isinstance(value, dict):
        return value
    said = [(k, v) for k, v in value.items() if v not in EMPTY or (isinstance(v, list | tuple) and not place)]
    fields_max = items_max and max(items_max, FIELDS_MAX)
    more[f"{place}, fields".lstrip(", ")] += max(0, len(said) - fields_max)
    kept = said[:fields_max]
    return {k: _shorten(v, f"{place}.{k}".lstrip("."), items_max, text_max, more) for k, v in kept}
