"""Does a script follow the plain pattern, and what does its loop carry from one step to the next?

Rule: the plain pattern is one `for NAME in range(...)` over epochs with one loop over a loader's batches in
it, or in a function of the script that it calls. What the loop carries in variables must be named here, or a
resumed run would start with the values of the first step; when in doubt a name counts as carried.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Union

NO_LOOP = "no loop over range(...) with a training loop over batches in it was found in the script"
_Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]


@dataclass(frozen=True)
class LoopPlan:
    """Where the loops of a script are, and what they need."""

    epoch_lines: tuple[int, int]
    """First and last line of the head of `for NAME in range(...)`."""
    batch_lines: tuple[int, int]
    """Those of the loop over batches."""
    carried: tuple[str, ...]
    """Names of the epoch loop's function whose values outlive a step."""
    used: tuple[str, ...]
    """Names that the epoch loop reads, or the script's functions that it calls: what it works with."""
    changed: tuple[str, ...]
    """Those of them that are changed in place: an item or attribute set, a method like `add_` called."""


class NotPlain(Exception):
    """The script does something else; the text says what."""


def plan_of(source: str) -> LoopPlan:
    """Raises NotPlain."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise NotPlain(f"the script cannot be read: {error}") from None
    for node in ast.walk(tree):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            raise NotPlain(f"line {node.lineno}: {', '.join(node.names)} can change from anywhere")
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    plans = [
        _plan(loop, functions) for loop in ast.walk(tree) if isinstance(loop, ast.For) and _is_range(loop)
    ]
    found = [plan for plan in plans if plan is not None]
    if not found:
        raise NotPlain(NO_LOOP)
    if len(found) > 1:
        lines = " and ".join(str(plan.epoch_lines[0]) for plan in found)
        raise NotPlain(f"there is more than one training loop (lines {lines})")
    return found[0]


def _plan(epochs: ast.For, functions: dict[str, ast.FunctionDef]) -> LoopPlan | None:
    """The plan of a loop over a range, None if no training loop is in it."""
    if not isinstance(epochs.target, ast.Name):
        return None
    inner = [node for node in epochs.body if isinstance(node, ast.For) and _trains(node)]
    if len(inner) == 1:
        return _made(epochs, inner[0], _carried(epochs, inner[0]), functions)
    called = [
        functions[node.func.id]
        for statement in epochs.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions
    ]
    training = [each for each in called if any(_is_training_loop(node) for node in each.body)]
    if inner or len(training) != 1:
        return None
    batches = next(node for node in training[0].body if _is_training_loop(node))
    assert isinstance(batches, ast.For)
    _refuse_lost(batches, training[0])
    return _made(epochs, batches, _carried(epochs, None), functions)


def _made(
    epochs: ast.For, batches: ast.For, carried: tuple[str, ...], functions: dict[str, ast.FunctionDef]
) -> LoopPlan:
    _check_batches(batches)
    used = _loaded(epochs)
    nodes: list[ast.AST] = [epochs]
    waiting = [name for name in used if name in functions]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        function = functions[name]
        nodes.append(function)
        own = {arg.arg for arg in ast.walk(function) if isinstance(arg, ast.arg)} | _stored(function.body)
        free = _loaded(function) - own
        used |= free
        waiting += [each for each in free if each in functions]
    changed = {name for node in nodes for name in _changed(node)}
    return LoopPlan(
        epoch_lines=_head(epochs),
        batch_lines=_head(batches),
        carried=carried,
        used=tuple(sorted(used)),
        changed=tuple(sorted(changed)),
    )


def _head(loop: ast.For) -> tuple[int, int]:
    return loop.lineno, loop.iter.end_lineno or loop.lineno


def _refuse_lost(batches: ast.For, function: ast.FunctionDef) -> None:
    lost = _carried_by_batches(batches, function)
    if lost:
        raise NotPlain(
            f"{function.name}() carries {', '.join(lost)} from step to step, which only it could restore"
        )


def _is_range(loop: ast.For) -> bool:
    call = loop.iter
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"


def _is_training_loop(node: ast.stmt) -> bool:
    return isinstance(node, ast.For) and _trains(node)


def _trains(loop: ast.For) -> bool:
    """It calls something's `backward` and something's `step`."""
    called = {
        node.func.attr
        for node in ast.walk(loop)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    return {"backward", "step"} <= called


def _check_batches(batches: ast.For) -> None:
    """`loader`, `enumerate(loader)`, `tqdm(loader)`; and it ends when the loader does."""
    expression: ast.expr = batches.iter
    if isinstance(expression, ast.Call) and expression.args:
        expression = expression.args[0]
    if not isinstance(expression, ast.Name):
        raise NotPlain(f"line {batches.lineno}: the loop over batches is not over a loader with a name")
    if _jumps_out(batches):
        raise NotPlain(f"line {batches.lineno}: the loop over batches can be left before its end")


def _jumps_out(loop: ast.For) -> bool:
    """It has a `break` of its own, or a `return`: where the epoch ends depends on more than its batches."""

    def walk(statements: Sequence[ast.stmt], own: bool) -> Iterator[bool]:
        for statement in statements:
            if isinstance(statement, ast.Return) or (own and isinstance(statement, ast.Break)):
                yield True
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            inside = own and not isinstance(statement, (ast.For, ast.While))
            for field in ("body", "orelse", "finalbody"):
                yield from walk(getattr(statement, field, []), inside)
            for handler in getattr(statement, "handlers", []):
                yield from walk(handler.body, inside)

    return any(walk(loop.body, True))


# What outlives a step.


def _carried(epochs: ast.For, batches: ast.For | None) -> tuple[str, ...]:
    """Names bound in the epoch loop that may be read before they are bound again, from a step boundary on."""
    bound = _stored(epochs.body) - {epochs.target.id if isinstance(epochs.target, ast.Name) else ""}
    carried = set()
    if batches is None:
        order: list[Sequence[ast.stmt]] = [epochs.body]
    else:
        at = epochs.body.index(batches)
        before, after = epochs.body[:at], epochs.body[at + 1 :]
        order = [batches.body, after, before]
        bound -= _target_names(batches)
    for name in bound:
        first = next((found for found in (_first(part, name) for part in order) if found), "")
        if first != "bound":
            carried.add(name)
    return tuple(sorted(carried))


def _carried_by_batches(batches: ast.For, function: _Function) -> tuple[str, ...]:
    """The same for a loop over batches in a function of its own."""
    after = function.body[function.body.index(batches) + 1 :]
    bound = _stored(batches.body) - _target_names(batches)
    lost = set()
    for name in bound:
        first = next((found for found in (_first(part, name) for part in (batches.body, after)) if found), "")
        if first == "read":
            lost.add(name)
    return tuple(sorted(lost))


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


def _stored(statements: Sequence[ast.stmt]) -> set[str]:
    return {
        node.id
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del))
    }


def _target_names(loop: ast.For) -> set[str]:
    return {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}


def _loaded(top: ast.AST) -> set[str]:
    return {
        node.id for node in ast.walk(top) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _changed(top: ast.AST) -> Iterator[str]:
    """Names whose object is changed in place where it can be seen."""
    for node in ast.walk(top):
        if not isinstance(node, (ast.Attribute, ast.Subscript)) or not isinstance(node.value, ast.Name):
            continue
        in_place = isinstance(node, ast.Attribute) and node.attr.endswith("_") and node.attr[-2:] != "__"
        if in_place or isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node.value.id
