"""What a change touches, as `docs/architecture.md` says: an example of each is followed through the code.

Rule: a file in which the example's name stands is a file that such a change touches. The page names these, no
more and no fewer, and there are no more than `files_max`: a copied field or a second table shows here. The
`__init__` that exports a name is not counted: a line of it is the same for every change.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("agent", "checkpoint", "controller", "gradaccum", "mps", "profiler")


class Change(NamedTuple):
    shown_as: str
    """In the page's second column."""
    pattern: str
    files_max: int
    besides: tuple[str, ...] = ()
    """On the page, and not of this example."""
    beyond: tuple[str, ...] = ()
    """Where it has arrived, or what does without a controller: beginnings of paths."""


CHANGES = (
    Change(
        "zero_code",
        r'\b(ENV_ZERO_CODE|_?zero_code)\b|Option\(\s*"accumulate"',
        5,
        besides=("checkpoint/talk/protocol.py",),
        beyond=("checkpoint/", "gradaccum/", "controller/cli/jobs/attempt.py"),
    ),
    Change("accumulates_note", r"\baccumulates_note\b", 7),
    Change("TroubleSeen", r"\bTroubleSeen\b", 4),
    Change("lucid", r'\bLucid\b|"lucid"', 2),
    Change(
        "cotenant_queue_oldest_seconds",
        r"\bcotenant_queue_oldest_seconds\b",
        2,
        besides=("agent/daemon/metrics.py",),
    ),
    Change("pairs", r'\b(ListPairs|PairView)\b|"cluster\.pairs"', 4),
)


def mentioning(change: Change) -> set[str]:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("[!_]*.py")]
    found = {str(path.relative_to(ROOT)) for path in paths if re.search(change.pattern, path.read_text())}
    return {each for each in found if not each.startswith(change.beyond)}


def rows() -> dict[str, set[str]]:
    """The page's table: example -> files."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("## What a change touches\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| [^|]+ \| `([^`]+)` \| (.*) \|$", section, re.MULTILINE)
    return {example: set(re.findall(r"`([\w/.-]+\.py)`", files)) for example, files in found}


def test_every_row_is_followed() -> None:
    assert set(rows()) == {change.shown_as for change in CHANGES}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.shown_as)
def test_a_change_touches_the_files_that_the_page_names(change: Change) -> None:
    assert rows()[change.shown_as] - set(change.besides) == mentioning(change)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.shown_as)
def test_a_way_through_the_code_does_not_grow(change: Change) -> None:
    assert len(mentioning(change)) <= change.files_max
