"""Only the ledger assigns to a `Job`: everybody else reads one, or tells the ledger a fact.

Rule: outside the ledger nobody assigns to an attribute that has the name of a field of `Job`, deletes it or
calls what changes its value, unless the object is visibly something else: `self`, a parameter with another
annotation (mypy holds it to that), or in `OTHERS`. A line there that nothing needs fails.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ("controller/domain/job.py", "controller/domain/job_parts.py")
PARTS = ("Job", "CurrentAttempt", "JobProgress", "JobMeasurements", "JobEstimate", "TimeSpent", "JobCounters")
LEDGER = ("controller/engine/state/phases.py", "controller/engine/state/records.py")
MOVES_NOTHING = {
    "controller/engine/state/dispatch.py": ["allowed_s", "resize_to", "sent_sigint", "waits_for"],
    "controller/engine/state/estimating.py": [
        *("crowded", "curve", "load_s", "outgrown", "pause_s", "total_steps", "uncompared"),
    ],
}
"""By module of the ledger: the facts that it writes itself, by which no job moves in the queue."""
OTHERS: dict[str, dict[str, str]] = {
    "controller/cli/main.py": {"sys": "the module"},
    "controller/knowledge/profiles.py": {"known": "StoredProfile"},
    "controller/domain/texts.py": {"copied": "a copy that nobody else has seen yet"},
    "controller/history/history.py": dict.fromkeys(("attempt_record", "mine", "theirs"), "AttemptRecord"),
    "controller/engine/events/hosts.py": {"host": "Host"},
    "controller/executors/agents/delivery.py": {"pending": "Pending"},
    "controller/sim/eta/futures.py": {"run": "JobRun"},
    "controller/system/metrics/sheet.py": {"other": "Histogram"},
    "controller/sim/world/world.py": dict.fromkeys(("run", "other"), "JobRun"),
}
"""By file: what is assigned to there, and of which class it is."""
CHANGING = frozenset(
    ("add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "reverse")
) | {"setdefault", "sort", "update"}
SETTERS = frozenset(("setattr", "delattr", "__setattr__", "__delattr__", "force_setattr"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def fields() -> frozenset[str]:
    """The fields of a job and of its parts."""
    found: set[str] = set()
    classes: set[str] = set()
    for node in (each for path in RECORDS for each in ast.walk(ast.parse((ROOT / path).read_text()))):
        if isinstance(node, ast.ClassDef) and node.name in PARTS:
            classes.add(node.name)
            named = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
            found |= {target.id for target in named if isinstance(target, ast.Name)}
    assert classes == set(PARTS), f"not in {RECORDS}: {set(PARTS) - classes}"
    return frozenset(found)


FIELDS = fields()


def changes(source: str) -> Iterator[tuple[int, str, str]]:
    """(line, object, field): what is changed in the source and may be a job."""
    yield from _changes(ast.parse(source), frozenset({"self"}))


def _changes(node: ast.AST, others: frozenset[str]) -> Iterator[tuple[int, str, str]]:
    if isinstance(node, Function):
        others = frozenset({"self", *_others(node)})
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if name in SETTERS and node.args and ast.unparse(node.args[0]) != "self":
            yield node.lineno, ast.unparse(node.args[0]), ""
        if isinstance(node.func, ast.Attribute) and name in CHANGING:
            yield from _job(node.func.value, others)
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
        yield from _job(node, others)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        yield from _job(node.value, others)
    for child in ast.iter_child_nodes(node):
        yield from _changes(child, others)


def _job(node: ast.expr, others: frozenset[str]) -> Iterator[tuple[int, str, str]]:
    """The object of which this is a field, if that may be a job."""
    if isinstance(node, ast.Attribute) and node.attr in FIELDS:
        of = ast.unparse(node.value)
        if of not in others:
            yield node.lineno, of, node.attr


def _others(function: Function) -> Iterator[str]:
    """Parameters that are no job, by their annotations."""
    for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
        if each.annotation is not None and not re.search(r"\bJob\b", ast.unparse(each.annotation)):
            yield each.arg


def found(path: Path) -> set[str]:
    return {name for _, name, _ in changes(path.read_text())}


def test_nobody_but_the_ledger_assigns_to_a_job() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "controller").rglob("*.py"))
        if (file := str(path.relative_to(ROOT))) not in LEDGER
        for line, name, field in changes(path.read_text())
        if name not in OTHERS.get(file, {}) and field not in MOVES_NOTHING.get(file, ())
    ]
    assert wrong == [], "tell the ledger (controller/engine/state/records.py), or say in OTHERS what it is"


@pytest.mark.parametrize("file", [*OTHERS, *MOVES_NOTHING])
def test_each_line_is_needed(file: str) -> None:
    fields = {field for *_, field in changes((ROOT / file).read_text())}
    assert (
        set(OTHERS.get(file, ())) - found(ROOT / file) == set(MOVES_NOTHING.get(file, ())) - fields == set()
    )


@pytest.mark.parametrize("file", LEDGER)
def test_the_ledger_is_seen_to_assign(file: str) -> None:
    assert "job" in found(ROOT / file)


BAD = {
    "assigned": "job.reason = why",
    "one of several": "job.step, other.wait_s = 1, 2.0",
    "added to": "job.preemptions += 1",
    "annotated": "job.step: int = 1",
    "deleted": "del job.placement",
    "in a dict of it": "job.uncompared[other] = pace",
    "taken out of it": "del job.uncompared[other]",
    "called": "ledger.jobs[one].uncompared.clear()",
    "by name": "setattr(job, name, value)",
    "past a frozen class": "object.__setattr__(job, 'step', 1)",
    "in a loop": "for job.step in steps: pass",
    "a parameter": "def f(one: Job | None) -> None:\n    one.step = 1",
    "a parameter whose class is of a module": "def f(one: domain.Job) -> None:\n    one.step = 1",
    "of no known class": "def f(one) -> None:\n    one.step = 1",
}
GOOD = {
    "another field": "job_like.colour = 1",
    "its own": "class A:\n    def f(self) -> None:\n        self.step = 1",
    "a host": "def f(host: Host) -> None:\n    host.reason = None",
    "read": "step = job.step",
    "counted": "job.checkpoints.count(1)",
}


@pytest.mark.parametrize("source", BAD.values(), ids=BAD.keys())
def test_a_change_is_seen(source: str) -> None:
    assert list(changes(source))


@pytest.mark.parametrize("source", GOOD.values(), ids=GOOD.keys())
def test_what_changes_no_job_passes(source: str) -> None:
    assert list(changes(source)) == []


def test_who_reads_the_engines_ledger_changes_nothing_in_it() -> None:
    """`engine.ledger` is there to be read: outside the engine nothing that is reached by it is assigned to,
    deleted, told a fact or asked to change."""
    changed = []
    for path in sorted((ROOT / "controller").rglob("*.py")):
        if path.is_relative_to(ROOT / "controller/engine"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute() | ast.Subscript() if isinstance(node.ctx, ast.Store | ast.Del):
                    reached = ast.unparse(node.value)
                case ast.Call(func=ast.Attribute(attr=attr, value=value)):
                    told = ast.unparse(value)
                    reached = told if attr in CHANGING or told.endswith(".ledger.records") else ""
                case _:
                    continue
            if re.search(r"\.ledger\b", reached):
                changed.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not changed
