"""Which variables of a training loop outlive a step, read from its source.

Rule: when in doubt a name counts as carried. A resumed run that starts with the values of the first step
looks right and is wrong.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator, Sequence

from cotenant.checkpoint.late_log import LateLog

CLOCKS = frozenset(("time", "perf_counter", "monotonic", "process_time", "now", "perf_counter_ns", "time_ns"))


log = LateLog("cotenant.checkpoint")


def warn_of_forgotten(frame: types.FrameType) -> None:
    """Warns of variables of a script whose loop over a Session's epochs begins in this frame: once for all of
    their names."""
    try:
        with open(frame.f_code.co_filename, encoding="utf-8") as file:
            found = forgotten(file.read(), frame.f_lineno)
    except (OSError, UnicodeDecodeError, SyntaxError):
        return  # Typed in, or made on demand: there is nothing to read.
    if found:
        names = ", ".join(f"{name} (line {line})" for name, line in found)
        first = found[0][0]
        log.warning(
            "a resume begins anew with what the loop keeps in its own variables: %s. To keep them, put them "
            'into a dict that the session saves: kept = {"%s": ...}; Session(..., extra=kept); the loop uses '
            'kept["%s"]',
            names,
            first,
            first,
        )


def forgotten(source: str, line: int) -> list[tuple[str, int]]:
    """Names that a loop over a Session's epochs, whose head is on this line, carries from step to step; each
    with the line that changes it."""
    for epochs in ast.walk(ast.parse(source)):
        if not isinstance(epochs, ast.For) or not _is_over(epochs, "epochs"):
            continue
        inner = [node for node in epochs.body if isinstance(node, ast.For) and _is_over(node, "batches")]
        if epochs.lineno <= line <= (epochs.iter.end_lineno or line) and len(inner) == 1:
            changes = {name: _changed_on(epochs, name) for name in carried_by_epochs(epochs, inner[0])}
            return [(name, on) for name, on in changes.items() if on is not None]
    return []


def _is_over(loop: ast.For, name: str) -> bool:
    """`STATE.NAME(...)`, also within `enumerate` or a progress bar."""
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name
        for node in ast.walk(loop.iter)
    )


def _changed_on(loop: ast.For, name: str) -> int | None:
    """The first line that changes the name; None where the name only holds a clock's time, which a resume
    need not restore."""
    lines = list(_changes(loop, name))
    return min(lines) if lines else None


def _changes(loop: ast.For, name: str) -> Iterator[int]:
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and _is_clock(node.value):
            continue
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For, ast.NamedExpr)):
            targets = [node.target]
        elif isinstance(node, ast.With):
            targets = [item.optional_vars for item in node.items if item.optional_vars is not None]
        if any(_binds(target, name) for target in targets):
            assert isinstance(node, (ast.stmt, ast.expr))
            yield node.lineno


def _is_clock(value: ast.expr) -> bool:
    function = value.func if isinstance(value, ast.Call) else None
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return called in CLOCKS


def carried_by_epochs(epochs: ast.For, batches: ast.For | None) -> tuple[str, ...]:
    """Names bound in the epoch loop that may be read before they are bound again, from a step boundary on."""
    bound = stored_names(epochs.body) - {epochs.target.id if isinstance(epochs.target, ast.Name) else ""}
    found = set()
    if batches is None:
        order: list[Sequence[ast.stmt]] = [epochs.body]
    else:
        at = epochs.body.index(batches)
        before, after = epochs.body[:at], epochs.body[at + 1 :]
        order = [batches.body, after, before]
        bound -= target_names(batches)
    for name in bound:
        first = next((each for each in (_first(part, name) for part in order) if each), "")
        if first != "bound":
            found.add(name)
    return tuple(sorted(found))


def _first(statements: Sequence[ast.stmt], name: str) -> str:
    """What happens to a name first: "bound" for certain, "read" perhaps, or nothing (empty)."""
    for statement in statements:
        if isinstance(statement, ast.With):
            for item in statement.items:
                if _mentions(item, name):
                    return "read"
            found = _first(statement.body, name)
            if found:
                return found
            continue
        if not _mentions(statement, name):
            continue
        if isinstance(statement, ast.For) and not _mentions(statement.iter, name):
            # A loop that runs no time at all leaves the name as it was; nothing is done with it then.
            if _binds(statement.target, name):
                return "bound"
            return _first(statement.body, name) or "read"
        if not isinstance(statement, ast.Assign) or _mentions(statement.value, name):
            return "read"
        return "bound" if any(_binds(target, name) for target in statement.targets) else "read"
    return ""


def _binds(target: ast.expr, name: str) -> bool:
    if isinstance(target, ast.Name):
        return target.id == name
    return isinstance(target, (ast.Tuple, ast.List)) and any(_binds(each, name) for each in target.elts)


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))


def stored_names(statements: Sequence[ast.stmt]) -> set[str]:
    return {
        node.id
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del))
    }


def target_names(loop: ast.For) -> set[str]:
    return {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
