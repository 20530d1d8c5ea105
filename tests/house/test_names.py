"""A name means one thing: no public class of ours is defined twice; no module has a name that was given
up."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.building.sources import said

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("agent", "checkpoint", "controller", "gradaccum", "mps", "profiler")
GIVEN_UP = {
    "absent": "missing policy",
    "links": "executor",
    "looks": "probe result",
    "marks": "device state store",
    "places": "paths",
    "soon": "expected release",
    "turns": "accumulation window",
    "waking": "wake-up",
}
"""Names of modules that were given up -> what replaced them. Elsewhere they may mean other things."""
GIVEN_UP_EVERYWHERE = {
    "command seen": "acknowledgement",
    "company": "co-tenant",
    "desk": "API, handler",
    "door": "router",
    "doubts": "quarantine",
    "guest": "tenant, newcomer",
    "guests": "tenants, newcomers",
    "heir": "reaper",
    "opening": "expected release",
    "openings": "expected releases",
    "report seen": "acknowledgement",
    "roll call": "rank tracker",
    "rooms": "shareable slots",
    "roster": "attempts",
    "stretches": "attempt records",
    "think": "compute",
    "thinking": "compute",
    "thorough": "diagnostics",
    "tongue": "peer version",
    "tongues": "peer versions",
}
"""Names of modules, classes, functions, parameters, variables and attributes, or words in such a name, that
were given up -> what replaced them."""
PUBLISHED = {
    "stretches": ("controller/history/history.py", "in snapshots of the journal"),
    "thinking_s": ("controller/sim/", "in the JSON of simulations"),
}
"""Names that others have read, where they stay as they were."""


def files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def test_no_public_class_is_defined_twice() -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for path in files():
        for name in said(path.read_text()).classes:
            if not name.startswith("_"):
                where[name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in where.items() if len(found) > 1} == {}


def test_modules_that_were_given_up_do_not_come_back() -> None:
    found = [path for path in files() if {path.stem, path.parent.name} & GIVEN_UP.keys()]
    assert [str(path.relative_to(ROOT)) for path in found] == []


def given_up_in(name: str) -> set[str]:
    """Which of those stand in it: `_roll_call`, `RollCall` and `roll_call_of` have one."""
    words = " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)).lower()
    return {each for each in GIVEN_UP_EVERYWHERE if re.search(rf"\b{each}\b", words)}


def test_words_that_were_given_up_do_not_come_back() -> None:
    found = []
    for path in files():
        where = str(path.relative_to(ROOT))
        names = {*said(path.read_text()).names, *path.relative_to(ROOT).with_suffix("").parts}
        known = {name for name, (place, _) in PUBLISHED.items() if where.startswith(place)}
        found += [(where, name) for name in sorted(names - known) if given_up_in(name)]
    assert found == []


@pytest.mark.parametrize("name", ["desk", "_roll_call", "RollCall", "CommandSeen", "heir_of", "FRONT_DESK"])
def test_a_word_that_was_given_up_is_found(name: str) -> None:
    assert given_up_in(name)


@pytest.mark.parametrize("name", ["desktop", "outdoor", "called_role", "mushrooms", "rethink"])
def test_a_word_that_only_looks_like_one_is_left_alone(name: str) -> None:
    assert not given_up_in(name)
