"""What code changes in place: attributes that a loop sets, and objects that change while they work."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final

from cotenant.checkpoint.zerocode.refusals import NotPlain, called_name

BEGINNINGS: Final = frozenset(("__init__", "__post_init__", "reset_parameters", "_init_weights", "setup"))
"""Methods that run when an object is made, and not again."""
_IN_PLACE: Final = frozenset((
    "append", "appendleft", "extend", "add", "update", "pop", "popleft", "popitem", "insert", "remove",
    "discard", "clear", "setdefault", "sort", "reverse", "shuffle",
))  # fmt: skip


def stored_attributes(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in (each for top in nodes for each in ast.walk(top)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
            if isinstance(node.value, (ast.Attribute, ast.Name)):
                yield _last_name(node.value)
        elif isinstance(node, ast.Call) and called_name(node) in _IN_PLACE:
            for each in (getattr(node.func, "value", None), *node.args[:1]):
                if isinstance(each, ast.Attribute):
                    yield each.attr


def _last_name(node: ast.Attribute | ast.Name) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id


@functools.cache
def changed_attributes(kind: type) -> frozenset[str]:
    """Attributes that methods of a class set or change in place, other than those that run when an object is
    made. Raises NotPlain: its source is not there."""
    found: set[str] = set()
    for base in kind.__mro__:
        if base.__module__ == kind.__module__ or base.__module__ == "__main__":
            found |= _changed_by(base)
    return frozenset(found)


def _changed_by(kind: type) -> set[str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        raise NotPlain(f"the source of {kind.__name__} cannot be read") from None
    methods = [node for node in tree.body[0].body if isinstance(node, ast.FunctionDef)]  # type: ignore[attr-defined]
    return {
        name
        for method in methods
        if method.name not in BEGINNINGS and method.args.args
        for node in ast.walk(method)
        if (name := _changes(node, method.args.args[0].arg))
    }


def _changes(node: Any, owner: str) -> str:
    """The attribute of `owner` that a statement or expression changes; empty: none."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _IN_PLACE:
        node = node.func.value
    elif isinstance(node, ast.Call) and called_name(node) in _IN_PLACE and node.args:
        node = node.args[0]
    elif not isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
        return ""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == owner:
            return node.attr
        node = node.value
    return ""
