"""What the head of a script's loop says, worked out without running any of the script.

Rule: names, attributes that are there, entries of plain dicts, numbers, `len`, `range` and the sizes of
tensors and arrays: nothing else is read. What would call the script's own code is not known.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cotenant.checkpoint.namespaces import has_plain_names
from cotenant.checkpoint.progress.lengths import MISSING, OPTIONS, attribute_there, length_of, shape_of

_PLAIN: Final = (bool, int, type(None))
RANGES: Final = frozenset(("range", "trange", "tnrange", "prange"))
WRAPPERS: Final = frozenset(
    ("enumerate", "tqdm", "tqdm_notebook", "track", "iter", "list", "tuple", "reversed", "sorted", "batches")
)
"""They give what they were given, one by one; `batches` is a Session's."""


_KNOWN: Final = ("builtins", "itertools", "tqdm", "rich", "fastprogress")
"""Whose `enumerate`, `zip`, `islice` and progress bars do what everybody knows."""


class NotSeen(Exception):
    """The text says what is not known."""


@dataclass(frozen=True)
class Counted:
    """The thing that a loop goes over. `items`: a range, a loader, a list."""

    items: Any
    count: int
    enumerated_from: int | None = None
    """The loop's first name counts its turns, from here."""


class Names:
    """The variables of a running frame. `release` lets go of what reading them has copied."""

    _depth = 0

    def __init__(self, frame: types.FrameType) -> None:
        self._frame = frame
        is_plain = has_plain_names(frame)
        self.local: Mapping[str, Any] = frame.f_locals if is_plain else {}
        self.shared: Mapping[str, Any] = frame.f_globals if is_plain else {}

    def release(self) -> None:
        """Before Python 3.13 the copy would stay with the frame, and keep the script's tensors alive."""
        if sys.version_info < (3, 13) and self._frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            assert isinstance(self.local, dict)
            self.local.clear()

    def value(self, node: ast.expr) -> Any:
        """The value of an expression. Raises NotSeen."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.value(each) for each in node.elts]
        if isinstance(node, ast.Name):
            found = self.local.get(node.id, self.shared.get(node.id, MISSING))
        elif isinstance(node, ast.Attribute):
            found = attribute_there(self.value(node.value), node.attr)
        elif isinstance(node, ast.Subscript):
            found = _entry(self.value(node.value), self.value(node.slice))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            found = -self.number(node.operand)
        elif isinstance(node, ast.BinOp):
            found = _arithmetic(node.op, self.number(node.left), self.number(node.right))
        elif isinstance(node, ast.Call) and called_name(node) in ("len", "int") and len(node.args) == 1:
            value = self.value(node.args[0])
            found = (
                self.length(value)
                if called_name(node) == "len"
                else int(value)
                if _is_number(value)
                else MISSING
            )
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size":
            found = self._size(node.func.value, node)
        else:
            found = MISSING
        if found is MISSING:
            raise NotSeen(f"`{ast.unparse(node)}` is not known")
        return found

    def _size(self, owner: ast.expr, call: ast.Call) -> Any:
        """What a tensor's `size()` or `size(0)` says."""
        value = self.value(owner)
        if type(value).__module__.partition(".")[0] != "torch" or call.keywords or len(call.args) > 1:
            return MISSING
        shape = shape_of(value)
        return shape if shape is MISSING or not call.args else _entry(shape, self.value(call.args[0]))

    def number(self, node: ast.expr) -> int:
        value = self.value(node)
        if not _is_number(value) or int(value) != value:
            raise NotSeen(f"`{ast.unparse(node)}` is no whole number")
        return int(value)

    def count_loop(self, node: ast.expr) -> Counted:
        """What is between `in` and `:`. Raises NotSeen."""
        if not isinstance(node, ast.Call):
            return self._count_object(self.value(node), node)
        name = called_name(node)
        if name in RANGES and 1 <= len(node.args) <= 3:
            numbers = range(*(self.number(each) for each in node.args))
            return Counted(numbers, len(numbers))
        if name == "epochs" and len(node.args) == 1:  # A Session's.
            numbers = range(self.number(node.args[0]))
            return Counted(numbers, len(numbers))
        if name in WRAPPERS and node.args:
            inner = self.count_loop(node.args[0])
            if name != "enumerate":
                return inner if name not in ("reversed", "sorted") else Counted(None, inner.count)
            starts = [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "start")]
            return Counted(inner.items, inner.count, self.number(starts[0]) if starts else 0)
        if name == "zip" and node.args:
            parts = [self.count_loop(each) for each in node.args]
            return Counted(parts[0].items, min(part.count for part in parts))
        if name == "islice" and len(node.args) == 2:
            inner = self.count_loop(node.args[0])
            return Counted(inner.items, min(inner.count, self.number(node.args[1])))
        raise NotSeen(f"`{ast.unparse(node)}` does not say its length")

    def length(self, value: Any) -> Any:
        """How many items a thing has; MISSING: nobody knows."""
        return length_of(value, _value_within, self._depth)

    def _count_object(self, value: Any, node: ast.expr) -> Counted:
        """A loader, a list, a progress bar around one of them."""
        value = _unwrap_bar(value)
        can_be_counted = hasattr(type(value), "__iter__") and not issubclass(type(value), str)
        count = self.length(value) if can_be_counted else MISSING
        if not isinstance(count, int):
            raise NotSeen(f"`{ast.unparse(node)}` does not say its length")
        return Counted(value, count)

    def is_known(self, node: ast.Call) -> bool:
        """Whether what is called is what its name says, and nothing of the script's own by that name."""
        function = node.func
        try:
            called = self.value(function)
        except NotSeen:
            called = getattr(builtins, function.id, None) if isinstance(function, ast.Name) else None
        module = getattr(called, "__module__", None)
        return isinstance(module, str) and module.partition(".")[0] in _KNOWN

    def source(self, node: ast.expr) -> Any:
        """What gives a loop its items, whether or not it says its length. Raises NotSeen."""
        while isinstance(node, ast.Call) and node.args and called_name(node) in (*WRAPPERS, "islice"):
            node = node.args[0]
        return _unwrap_bar(self.value(node))

    def is_off(self, test: ast.expr) -> bool:
        """Whether a condition is an option of the script that is not set, and stays so."""
        if not isinstance(test, ast.Attribute):
            return False
        try:
            owner, value = self.value(test.value), self.value(test)
        except NotSeen:
            return False
        return type(owner).__module__.partition(".")[0] in OPTIONS and type(value) in _PLAIN and not value


class _Within(Names):
    """The variables of a method that does not run."""

    def __init__(self, local: Mapping[str, Any], shared: Mapping[str, Any], depth: int) -> None:
        self.local, self.shared, self._depth = local, shared, depth


def _value_within(node: ast.expr, local: Mapping[str, Any], shared: Mapping[str, Any], depth: int) -> Any:
    try:
        return _Within(local, shared, depth).value(node)
    except NotSeen:
        return MISSING


def called_name(node: ast.Call) -> str:
    """The last part of the called name."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _entry(owner: Any, key: Any) -> Any:
    if type(owner) is dict or type(owner).__module__.partition(".")[0] in OPTIONS:
        return owner.get(key, MISSING)
    if type(owner) is tuple and type(key) is int and -len(owner) <= key < len(owner):
        return owner[key]
    return MISSING


def _is_number(value: Any) -> bool:
    return issubclass(type(value), (int, float)) and not issubclass(type(value), bool)


def _arithmetic(operator: ast.operator, left: int, right: int) -> Any:
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.FloorDiv) and right:
        return left // right
    return MISSING


def _unwrap_bar(value: Any) -> Any:
    """What a progress bar goes over; anything else as it is."""
    is_bar = any(kind.__name__ == "tqdm" for kind in type(value).__mro__)
    return vars(value).get("iterable") if is_bar else value
