"""A name means one thing: no public class of ours is defined twice; no module has a name that was given
up."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("agent", "checkpoint", "controller", "gradaccum", "mps", "profiler")
# fmt: off
GIVEN_UP = frozenset((
    "absent", "desk", "door", "doubts", "guests", "heir", "links", "looks", "marks", "places", "roll_call",
    "rooms", "roster", "soon", "stretches", "thinking", "tongues", "turns", "waking",
))
# fmt: on
"""As names of modules; `docs/words.md` has what replaced them."""


def files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def test_no_public_class_is_defined_twice() -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for path in files():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in where.items() if len(found) > 1} == {}


def test_names_that_were_given_up_do_not_come_back() -> None:
    assert [str(path.relative_to(ROOT)) for path in files() if {path.stem, path.parent.name} & GIVEN_UP] == []
