"""A fact has one shape: two records that name the same eight facts are one record, written twice.

Rule: one of the two holds the other, or the pair stands in `EXEMPT` with the reason why a copy is right.
Fields that a record inherits count for the class that names them. A reason that nothing needs any more fails.
A view of `-o json` inherits nothing: the order of its keys stays what it was, and those of a base come first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from tests.building.sources import nodes

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("agent", "checkpoint", "controller", "gradaccum", "mps", "profiler")
SHARED_MAX = 7

EXEMPT = {
    ("JobSpec", "JobView"): "flat: it is the JSON that people read; the spec has more",
    ("JobReport", "JobView"): "the demo's report is a file with a schema of its own, of which it is one row",
    ("Lived", "JobView"): "Lived is made from a journal, without the engine that makes the view",
    ("Lived", "RunResult"): "Outcome has a column for all jobs of a simulation where Lived has a number",
    ("JobView", "RunResult"): "Outcome has a column for all jobs of a simulation where JobView has a number",
    ("HostReport", "NodeView"): "flat: it is the JSON that people read; the report is the agent's message",
    ("Use", "UsageView"): "flat: it is the JSON that people read; the other is a sum that grows",
    ("AttemptRecord", "AttemptView"): "the record is mutable, grows as events come, and is in snapshots",
    ("Device", "DeviceView"): "flat: it is the JSON that people read; the device is in the journal",
    ("Profile", "ProfileView"): "the view has every indicator and no model; the profile is in the journal",
    ("KnownProfile", "Profile"): "as ProfileView",
    ("KnownProfile", "ProfileView"): "flat: it is the JSON that people read, with the keys in this order",
    ("KnownProfile", "StoredProfile"): "flat: it is the JSON that people read; snapshots have the other",
    (
        "AttemptProgress",
        "Status",
    ): "the one is the wire's, told every second; the other is a file of the supervisor's",
}
"""Why each copy is right."""


class Shape(NamedTuple):
    name: str
    fields: frozenset[str]
    held: frozenset[str]
    """All names in its annotations."""


def shapes(source: str) -> Iterator[Shape]:
    for node in nodes(ast.parse(source)) if "class " in source else ():
        if not isinstance(node, ast.ClassDef):
            continue
        named = {
            each.target.id: {name.id for name in ast.walk(each.annotation) if isinstance(name, ast.Name)}
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        fields = frozenset(name for name, held in named.items() if "ClassVar" not in held)
        yield Shape(node.name, fields, frozenset[str]().union(*named.values()))


def copies(found: list[Shape]) -> set[tuple[str, str]]:
    """Pairs of names, in order, that share too many fields and do not nest."""
    return {
        (min(one.name, other.name), max(one.name, other.name))
        for one, other in combinations((each for each in found if len(each.fields) > SHARED_MAX), 2)
        if len(one.fields & other.fields) > SHARED_MAX
        and one.name not in other.held
        and other.name not in one.held
    }


def test_two_records_do_not_name_the_same_facts() -> None:
    found = [
        shape
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for shape in shapes(path.read_text())
    ]
    exempt = {(min(pair), max(pair)) for pair in EXEMPT}
    copied = copies(found)
    assert copied - exempt == set(), "nest one in the other, or say in EXEMPT why not"
    assert exempt - copied == set(), "nothing needs these exemptions any more"


FACTS = "".join(f"    {name}: int\n" for name in "abcdefgh")


def test_a_copy_is_found() -> None:
    found = list(shapes(f"class One:\n{FACTS}\nclass Other:\n{FACTS}    more: str\n"))
    assert copies(found) == {("One", "Other")}
    assert copies(list(shapes(f"class One:\n{FACTS}\nclass Other:\n{FACTS.replace('h:', 'x:')}"))) == set()


def test_one_that_holds_the_other_is_no_copy() -> None:
    for annotation in ("One", "tuple[One, ...] | None"):
        found = list(shapes(f"class One:\n{FACTS}\nclass Other:\n{FACTS}    one: {annotation}\n"))
        assert copies(found) == set(), annotation


def test_what_the_class_itself_has_is_no_fact() -> None:
    facts = FACTS.replace("int", "ClassVar[int]")
    assert copies(list(shapes(f"class One:\n{facts}\nclass Other:\n{facts}"))) == set()
