"""Does a script follow the plain pattern, and what does its loop carry from one step to the next?

Rule: the plain pattern is one `for NAME in range(...)` over epochs with one loop over a loader's batches in
it, or in a function of the script that it calls, or in a method of the class that has the loop. What the loop
carries in variables and attributes must be named here, or a resumed run would start with the values of the
first step; when in doubt a name counts as carried. Whoever is refused hears the line that is in the way.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cotenant.checkpoint.carried import carried_by_batches, carried_by_epochs, stored

_NO_LOOP = (
    "no loop over range(...) with a training loop over batches in it was found in the script: no line of it "
    "calls backward() and step(), so its loop may be in another module"
)


@dataclass(frozen=True)
class LoopPlan:
    """Where the loops of a script are, and what they need. `self.NAME` is an attribute of the object whose
    method has the loops."""

    epoch_lines: tuple[int, int]
    """First and last line of the head of `for NAME in range(...)`."""
    batch_lines: tuple[int, int]
    """Those of the loop over batches."""
    carried: tuple[str, ...]
    """Names of the epoch loop's function whose values outlive a step, and attributes that the loop sets."""
    used: tuple[str, ...]
    """Names that the epoch loop reads, or the script's functions that it calls: what it works with."""
    changed: tuple[str, ...]
    """Those of them that are changed in place: an item or attribute set, a method like `add_` called."""
    owner: str = ""
    """The name of that object; empty: the loops are in no method."""
    lines: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By name: the first line that mentions it."""


class NotPlain(Exception):
    """The script does something else; the text says what."""


@dataclass(frozen=True)
class _Scope:
    """What the calls in a loop mean: functions of the script, and methods of the class that has the loop."""

    functions: Mapping[str, ast.FunctionDef]
    methods: Mapping[str, ast.FunctionDef]
    owner: str

    def called(self, node: ast.AST) -> ast.FunctionDef | None:
        """The function that a name or attribute stands for, if it is the script's."""
        if isinstance(node, ast.Name):
            return self.functions.get(node.id)
        return self.methods.get(node.attr) if self.is_own(node) else None  # type: ignore[attr-defined]

    def is_own(self, node: ast.AST) -> bool:
        """`self.NAME`."""
        return (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == self.owner
        )

    def followed(self, top: ast.AST) -> list[ast.AST]:
        """It and the script's functions that it names, and those that these name."""
        found: list[ast.AST] = [top]
        for node in found:
            for each in ast.walk(node):
                function = self.called(each)
                if function is not None and not any(function is known for known in found):
                    found.append(function)
        return found

    def trains(self, node: ast.AST) -> bool:
        """A loop over something that calls something's `backward` and something's `step`."""
        if not isinstance(node, ast.For):
            return False
        names = {
            call.func.attr
            for part in self.followed(node)
            for call in ast.walk(part)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        }
        return {"backward", "step"} <= names


def plan_of(source: str) -> LoopPlan:
    """Raises NotPlain."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise NotPlain(f"the script cannot be read: {error}") from None
    for node in ast.walk(tree):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            raise NotPlain(f"line {node.lineno}: {', '.join(node.names)} can change from anywhere")
    plans = [_plan(loop, scope) for scope, top in _scopes(tree) for loop in _ranges(top)]
    found = [plan for plan in plans if plan is not None]
    if not found:
        raise NotPlain(_why_none(tree))
    if len(found) > 1:
        lines = " and ".join(str(plan.epoch_lines[0]) for plan in found)
        raise NotPlain(f"there is more than one training loop (lines {lines})")
    return found[0]


def _scopes(tree: ast.Module) -> Iterator[tuple[_Scope, list[ast.AST]]]:
    """Each method of a class by itself, and everything that is in no class."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    functions = {node.name: node for node in _outside_classes(tree) if isinstance(node, ast.FunctionDef)}
    yield _Scope(functions, {}, ""), list(_outside_classes(tree))
    for each in classes:
        methods = {node.name: node for node in each.body if isinstance(node, ast.FunctionDef)}
        for method in methods.values():
            owner = method.args.args[0].arg if method.args.args else ""
            yield _Scope(functions, methods, owner), list(ast.walk(method))


def _outside_classes(top: ast.AST) -> Iterator[ast.AST]:
    yield top
    for node in ast.iter_child_nodes(top):
        if not isinstance(node, ast.ClassDef):
            yield from _outside_classes(node)


def _ranges(nodes: list[ast.AST]) -> Iterator[ast.For]:
    for node in nodes:
        call = node.iter if isinstance(node, ast.For) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range":
            assert isinstance(node, ast.For)
            yield node


def _why_none(tree: ast.Module) -> str:
    """With the line of the step that is in no such loop."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "backward"
    ]
    if not calls:
        return _NO_LOOP
    line = min(call.lineno for call in calls)
    loops = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.While)) and _holds(node, line)]
    if not loops:
        return f"line {line}: backward() is in no loop over batches within a loop over range(...)"
    outer = min(loops, key=lambda loop: loop.lineno)
    return (
        f"line {outer.lineno}: the loop around backward() is none over range(...) with one over batches in it"
    )


def _holds(loop: ast.For | ast.While, line: int) -> bool:
    return loop.lineno <= line <= (loop.end_lineno or line)


def _plan(epochs: ast.For, scope: _Scope) -> LoopPlan | None:
    """The plan of a loop over a range, None if no training loop is in it."""
    if not isinstance(epochs.target, ast.Name):
        return None
    inner = [node for node in epochs.body if scope.trains(node)]
    if len(inner) == 1:
        assert isinstance(inner[0], ast.For)
        return _made(epochs, inner[0], carried_by_epochs(epochs, inner[0]), scope)
    called = [
        function
        for statement in epochs.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and (function := scope.called(node.func)) is not None
    ]
    training = [each for each in called if any(scope.trains(node) for node in each.body)]
    if inner or len(training) != 1:
        return None
    batches = next(node for node in training[0].body if scope.trains(node))
    assert isinstance(batches, ast.For)
    _refuse_lost(batches, training[0])
    return _made(epochs, batches, carried_by_epochs(epochs, None), scope)


def _made(epochs: ast.For, batches: ast.For, carried: tuple[str, ...], scope: _Scope) -> LoopPlan:
    _check_batches(batches, scope)
    nodes = scope.followed(epochs)
    used = set().union(*(_free(node) for node in nodes)) - {scope.owner}
    own = [each for node in nodes for each in ast.walk(node) if scope.is_own(each)]
    if scope.owner:
        _refuse_handed_on(nodes, scope.owner)
        names = {_name(each) for each in own if scope.called(each) is None}
        used |= names
        carried += tuple(sorted({_name(each) for each in own if isinstance(each.ctx, (ast.Store, ast.Del))}))  # type: ignore[attr-defined]
    changed = {name for node in nodes for name in _changed(node, scope)}
    lines: dict[str, int] = {}
    for node in nodes:
        for each in ast.walk(node):
            if isinstance(each, ast.Name) or scope.is_own(each):
                name, line = _name(each), each.lineno  # type: ignore[attr-defined]
                lines[name] = min(line, lines.get(name, line))
    return LoopPlan(
        epoch_lines=_head(epochs),
        batch_lines=_head(batches),
        carried=carried,
        used=tuple(sorted(used)),
        changed=tuple(sorted(changed)),
        owner=scope.owner,
        lines=lines,
    )


def _free(node: ast.AST) -> set[str]:
    """Names that a loop reads, or a function from outside itself."""
    loaded = {
        each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }
    if not isinstance(node, ast.FunctionDef):
        return loaded
    return loaded - {arg.arg for arg in ast.walk(node) if isinstance(arg, ast.arg)} - stored(node.body)


def _name(node: ast.AST) -> str:
    """Of a name, or of an attribute of one."""
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    assert isinstance(node, ast.Name)
    return node.id


def _refuse_handed_on(nodes: list[ast.AST], owner: str) -> None:
    """What becomes of the object's attributes must be in the methods that are read."""
    for top in nodes:
        attributes = {id(node.value) for node in ast.walk(top) if isinstance(node, ast.Attribute)}
        for node in ast.walk(top):
            if isinstance(node, ast.Name) and node.id in (owner, "super") and id(node) not in attributes:
                raise NotPlain(
                    f"line {node.lineno}: {node.id} is handed on, so its attributes may change anywhere"
                )


def _head(loop: ast.For) -> tuple[int, int]:
    return loop.lineno, loop.iter.end_lineno or loop.lineno


def _refuse_lost(batches: ast.For, function: ast.FunctionDef) -> None:
    lost = carried_by_batches(batches, function)
    if lost:
        raise NotPlain(
            f"line {batches.lineno}: {function.name}() carries {', '.join(lost)} from step to step, which "
            "only it could restore"
        )


def _check_batches(batches: ast.For, scope: _Scope) -> None:
    """`loader`, `enumerate(loader)`, `tqdm(loader)`, also `self.loader`; and it ends when the loader does."""
    expression: ast.expr = batches.iter
    if isinstance(expression, ast.Call) and expression.args:
        expression = expression.args[0]
    if not isinstance(expression, ast.Name) and not scope.is_own(expression):
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


def _changed(top: ast.AST, scope: _Scope) -> Iterator[str]:
    """Names whose object is changed in place where it can be seen."""
    for node in ast.walk(top):
        if not isinstance(node, (ast.Attribute, ast.Subscript)):
            continue
        if not (isinstance(node.value, ast.Name) and node.value.id != scope.owner) and not scope.is_own(
            node.value
        ):
            continue
        in_place = isinstance(node, ast.Attribute) and node.attr.endswith("_") and node.attr[-2:] != "__"
        if in_place or isinstance(node.ctx, (ast.Store, ast.Del)):
            yield _name(node.value)
