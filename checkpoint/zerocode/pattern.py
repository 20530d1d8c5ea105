"""Does a script follow the plain pattern, and which of its variables does its loop work with?

Rule: the plain pattern is one `for NAME in range(...)` that trains: over epochs, with one loop over the
batches of a loader in it, or in a function of the script that it calls, or in a method of the class that has
the loop; or over steps, without such a loop. What the loop works with must be named here, or a resumed run
would start with the values of the first step; when in doubt a name counts. Whoever is refused hears the line
that is in the way.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cotenant.checkpoint.carried import carried_by_epochs, is_read, stored_names, target_names
from cotenant.checkpoint.zerocode.changes import BEGINNINGS, stored_attributes
from cotenant.checkpoint.zerocode.refusals import (
    WRAPPERS,
    NotPlain,
    called_name,
    holds,
    range_in,
    refuse_called_again,
    refuse_caught_exits,
    refuse_entropy,
    refuse_made,
    refuse_never_cleared,
    refuse_rewritten,
    refuse_written_again,
)

_NO_LOOP = (
    "no loop over range(...) with a training loop over batches in it was found in the script: no line of it "
    "calls backward() and step(), so its loop may be in another module"
)


@dataclass(frozen=True)
class LoopPlan:
    """Where the loops of a script are, and what they need."""

    epoch_lines: tuple[int, int]
    """First and last line of the head of `for NAME in range(...)`."""
    batch_lines: tuple[int, int] | None
    """Those of the loop over batches; None: the range is one over steps."""
    names: tuple[str, ...]
    """Of the epoch loop's function, and global ones: what the loop works with, or leaves for a next step."""
    inner: tuple[str, ...] = ()
    """Names of the function that has the loop over batches, if it is another one."""
    function: str = ""
    """The name of that function."""
    over_range: bool = False
    """The loop over batches is over a range."""
    stored: frozenset[str] = frozenset()
    """Attributes that the loop sets, of whatever object."""
    keeps_gradients: bool = False
    """They may last from one step to the next."""
    lines: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By name, or `name.attribute`: the first line that mentions it."""

    def line_of(self, path: str) -> int | None:
        """The line of the longest beginning of a path of names that is in the script."""
        parts = path.split("[")[0].split(".")
        found = (self.lines.get(".".join(parts[:count])) for count in range(len(parts), 0, -1))
        return next((line for line in found if line is not None), None)


@dataclass(frozen=True)
class _Scope:
    """What the calls in a loop mean: functions of the script, and methods of the class that has the loop."""

    functions: Mapping[str, ast.FunctionDef]
    methods: Mapping[str, ast.FunctionDef]
    owner: str
    tree: ast.Module
    behind: Sequence[ast.AST]
    """Code that may run in a loop although it does not name it: methods of other classes, lambdas, and
    functions that are handed on."""

    def find_called(self, node: ast.AST) -> ast.FunctionDef | None:
        """The function that a name or attribute stands for, if it is the script's."""
        if isinstance(node, ast.Name):
            return self.functions.get(node.id)
        is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if is_own and node.value.id == self.owner:  # type: ignore[attr-defined]
            return self.methods.get(node.attr)  # type: ignore[attr-defined]
        return None

    def follow_calls(self, *tops: ast.AST) -> list[ast.AST]:
        """The nodes `tops` and the script's functions that they name, and those that these name."""
        found: list[ast.AST] = list(tops)
        for node in found:
            for each in ast.walk(node):
                function = self.find_called(each)
                if function is not None and not any(function is known for known in found):
                    found.append(function)
        return found

    def trains(self, node: ast.AST) -> bool:
        """A loop over something that calls something's `backward` and something's `step`."""
        return isinstance(node, ast.For) and {"backward", "step"} <= self.calls(node)

    def calls(self, node: ast.AST) -> set[str]:
        """The names of all methods that are called in it."""
        return {
            call.func.attr
            for part in self.follow_calls(node)
            for call in ast.walk(part)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        }


def plan_of(source: str) -> LoopPlan:
    """The plan of the script's training loop, read from its source. Raises NotPlain."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise NotPlain(f"the script cannot be read: {error}") from None
    refuse_entropy(tree)
    refuse_caught_exits(tree)
    plans = [_plan(loop, scope) for scope, top in _scopes(tree) for loop in _ranges(top)]
    found = [plan for plan in plans if plan is not None]
    inner = {plan.batch_lines for plan in found}
    found = [plan for plan in found if plan.epoch_lines not in inner]
    if not found:
        raise NotPlain(_why_none(tree))
    if len(found) > 1:
        lines = " and ".join(str(plan.epoch_lines[0]) for plan in found)
        raise NotPlain(f"there is more than one training loop (lines {lines})")
    return found[0]


def _scopes(tree: ast.Module) -> Iterator[tuple[_Scope, list[ast.AST]]]:
    """The scopes of a script: each method of a class by itself, and everything that is in no class."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    functions = {node.name: node for node in _outside_classes(tree) if isinstance(node, ast.FunctionDef)}
    behind = list(_handed_on(tree, functions))
    yield _Scope(functions, {}, "", tree, [*behind, *_methods(classes)]), list(_outside_classes(tree))
    for each in classes:
        methods = {node.name: node for node in each.body if isinstance(node, ast.FunctionDef)}
        others = [*behind, *_methods([other for other in classes if other is not each])]
        for method in methods.values():
            owner = method.args.args[0].arg if method.args.args else ""
            yield _Scope(functions, methods, owner, tree, others), list(ast.walk(method))


def _methods(classes: Sequence[ast.ClassDef]) -> list[ast.AST]:
    """All but what runs when an object is made."""
    methods = [node for each in classes for node in each.body if isinstance(node, ast.FunctionDef)]
    return [method for method in methods if method.name not in BEGINNINGS]


def _handed_on(tree: ast.Module, functions: Mapping[str, ast.FunctionDef]) -> Iterator[ast.AST]:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            yield node
        elif isinstance(node, ast.Name) and node.id in functions and id(node) not in called:
            yield functions[node.id]


def _outside_classes(top: ast.AST) -> Iterator[ast.AST]:
    yield top
    for node in ast.iter_child_nodes(top):
        if not isinstance(node, ast.ClassDef):
            yield from _outside_classes(node)


def _ranges(nodes: list[ast.AST]) -> Iterator[ast.For]:
    for node in nodes:
        if isinstance(node, ast.For) and range_in(node.iter) is not None:
            yield node


def _why_none(tree: ast.Module) -> str:
    """Says why there is no training loop, with the line of the step that is in no such loop."""
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and called_name(node) == "backward"
    ]
    if not calls:
        return _NO_LOOP
    line = min(call.lineno for call in calls)
    loops = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.While)) and holds(node, line)]
    if not loops:
        return f"line {line}: backward() is in no loop over batches within a loop over range(...)"
    outer = min(loops, key=lambda loop: loop.lineno)
    return (
        f"line {outer.lineno}: the loop around backward() is none over range(...) with one over batches in it"
    )


def _plan(epochs: ast.For, scope: _Scope) -> LoopPlan | None:
    """The plan of a loop over a range, None if it does not train, or is part of another one that does."""
    if not isinstance(epochs.target, ast.Name) or not scope.trains(epochs):
        return None
    inner = [node for node in epochs.body if scope.trains(node)]
    if len(inner) == 1:
        assert isinstance(inner[0], ast.For)
        return _make_plan(epochs, inner[0], None, scope)
    called = [
        function
        for statement in epochs.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and (function := scope.find_called(node.func)) is not None
    ]
    training = [each for each in called if any(scope.trains(node) for node in ast.walk(each))]
    if inner or len(training) > 1:
        return None
    if not training:
        return _plan_steps(epochs, scope)
    loops = [node for node in training[0].body if scope.trains(node)]
    if len(loops) != 1:
        raise NotPlain(
            f"line {training[0].lineno}: the loop over batches in {training[0].name}() is not its own"
        )
    assert isinstance(loops[0], ast.For)
    return _make_plan(epochs, loops[0], training[0], scope)


def _plan_steps(epochs: ast.For, scope: _Scope) -> LoopPlan:
    nodes = scope.follow_calls(epochs)
    for loop in (node for top in nodes for node in ast.walk(top) if isinstance(node, (ast.For, ast.While))):
        calls = scope.calls(loop)
        if loop is not epochs and "backward" in calls and "step" in calls:
            raise NotPlain(f"line {loop.lineno}: this loop trains within another, and is none over batches")
    return _make_plan(epochs, None, None, scope)


def _make_plan(
    epochs: ast.For, batches: ast.For | None, function: ast.FunctionDef | None, scope: _Scope
) -> LoopPlan:
    tree = scope.tree
    if batches is not None:
        _check_batches(batches)
        if any(scope.trains(node) for part in scope.follow_calls(*batches.body) for node in ast.walk(part)):
            raise NotPlain(f"line {epochs.lineno}: within this loop there are two around each step")
    core = scope.follow_calls(epochs)
    nodes = scope.follow_calls(epochs, *scope.behind)
    refuse_never_cleared(epochs, nodes)
    refuse_made(core)
    refuse_rewritten(tree, nodes)
    refuse_called_again(tree, epochs)
    names = set().union(*(_free(node) for node in nodes)) - stored_names(epochs.body)
    names |= set(carried_by_epochs(epochs, batches if function is None else None))
    names |= {name for top in nodes for each in ast.walk(top) for name in _outer_names(each)}
    if scope.owner:
        names.add(scope.owner)
    names.discard(epochs.target.id)  # type: ignore[attr-defined]
    refuse_written_again(_nodes_before_batches(epochs, batches, function, scope))
    return LoopPlan(
        epoch_lines=_head(epochs),
        batch_lines=None if batches is None else _head(batches),
        names=tuple(sorted(names)),
        inner=_kept_names(batches, function) if function is not None and batches is not None else (),
        function="" if function is None else function.name,
        stored=frozenset(stored_attributes(nodes)),
        keeps_gradients=not _is_always_cleared(epochs if batches is None else batches, core, scope),
        over_range=batches is not None and range_in(_unwrap_iterable(batches.iter)) is not None,
        lines=_lines(core) | _lines(nodes) | _lines(core),
    )


def _kept_names(batches: ast.For, function: ast.FunctionDef) -> tuple[str, ...]:
    """What a function that has the loop over batches keeps in variables of its own from step to step."""
    at = function.body.index(batches)
    before, after = function.body[:at], function.body[at + 1 :]
    arguments = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    kept = (
        stored_names(before)
        | stored_names(batches.body) - arguments
        | arguments & stored_names(function.body)
    )
    return tuple(
        name for name in sorted(kept - target_names(batches)) if is_read(name, (batches.body, after))
    )


def _outer_names(node: ast.AST) -> Sequence[str]:
    return node.names if isinstance(node, (ast.Global, ast.Nonlocal)) else ()


def _free(node: ast.AST) -> set[str]:
    """Names that a loop reads, or a function from outside itself."""
    loaded = {
        each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }
    arguments = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
    if isinstance(node, ast.Lambda):
        return loaded - arguments
    return loaded - arguments - stored_names(node.body) if isinstance(node, ast.FunctionDef) else loaded


def _lines(nodes: Sequence[ast.AST]) -> dict[str, int]:
    lines: dict[str, int] = {}
    for each in (each for node in nodes for each in ast.walk(node)):
        name = ""
        if isinstance(each, ast.Name):
            name = each.id
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
            name = f"{each.value.id}.{each.attr}"
        if name:
            lines[name] = min(each.lineno, lines.get(name, each.lineno))  # type: ignore[attr-defined]
    return lines


def _head(loop: ast.For) -> tuple[int, int]:
    return loop.lineno, loop.iter.end_lineno or loop.lineno


def _is_always_cleared(loop: ast.For, nodes: Sequence[ast.AST], scope: _Scope) -> bool:
    """Whether the gradients are cleared each time round, by statements of their own in the loop, or in
    functions that the loop always calls."""
    clears = {
        id(n)
        for top in nodes
        for n in ast.walk(top)
        if isinstance(n, ast.Call) and called_name(n) == "zero_grad"
    }
    always = set[int]()
    bodies: list[Sequence[ast.stmt]] = [loop.body]
    for body in bodies:
        for statement in body:
            if isinstance(statement, ast.With):
                bodies.append(statement.body)
            if not isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)):
                continue
            for call in ast.walk(statement):
                if isinstance(call, ast.Call):
                    if called_name(call) == "zero_grad":
                        always.add(id(call))
                    function = scope.find_called(call.func)
                    if function is not None and function.body not in bodies:
                        bodies.append(function.body)
    return bool(always) and always == clears


def _nodes_before_batches(
    epochs: ast.For, batches: ast.For | None, function: ast.FunctionDef | None, scope: _Scope
) -> list[ast.AST]:
    """What runs again after a resume within an epoch: all that comes before the loop over batches."""
    if batches is None:
        return []
    parts: list[ast.AST] = []
    if function is None:
        parts += epochs.body[: epochs.body.index(batches)]
    else:
        parts += function.body[: function.body.index(batches)]
        calls = [
            any(scope.find_called(n.func) is function for n in ast.walk(s) if isinstance(n, ast.Call))
            for s in epochs.body
        ]
        parts += epochs.body[: calls.index(True)] if True in calls else []
    return scope.follow_calls(*parts)


def _unwrap_iterable(expression: ast.expr) -> ast.expr:
    """What is in `enumerate(...)` and progress bars."""
    while isinstance(expression, ast.Call) and expression.args and called_name(expression) in WRAPPERS:
        expression = expression.args[0]
    return expression


def _check_batches(batches: ast.For) -> None:
    """`loader`, `enumerate(loader)`, `tqdm(loader)`, also `self.loader`."""
    expression = _unwrap_iterable(batches.iter)
    is_range = range_in(expression) is not None
    if isinstance(expression, ast.Call) and not is_range and len(expression.args) == 1:
        expression = expression.args[0]  # Some other bar, or a function that returns its loader.
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    if not isinstance(expression, ast.Name) and not is_range:
        raise NotPlain(f"line {batches.lineno}: the loop over batches is not over a loader with a name")
