"""A function fits a screen: `LINES_MAX` lines with its signature and docstring.

Rule: a longer one is split by what its parts are about. One that is longer and right stands in `EXEMPT` with
the reason; a reason that nothing needs any more fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.building.sources import said

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = (
    "agent", "bench", "checkpoint", "controller", "examples", "experiments", "gradaccum", "hwtests", "mps",
    "profiler", "tests",
)  # fmt: skip
LINES_MAX: Final = 60

EXEMPT: Final[dict[str, str]] = {}
"""`path:name` -> why it is right."""


def too_long(source: str) -> Iterator[str]:
    yield from (name for name, lines in said(source).functions if lines > LINES_MAX)


def test_a_function_fits_a_screen() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{name}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in too_long(path.read_text())
    }
    assert found - EXEMPT.keys() == set(), f"split what is longer than {LINES_MAX} lines"
    assert EXEMPT.keys() - found == set(), "nothing needs these exemptions any more"


def test_a_long_one_is_found() -> None:
    body = "    pass\n" * (LINES_MAX - 1)
    assert list(too_long(f"def fits():\n{body}")) == []
    assert list(too_long(f"class C:\n  async def long():\n{body}    pass\n")) == ["long"]
