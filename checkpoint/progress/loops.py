"""The loops that stand around an optimizer step, as the script's frames and its source have them.

Rule: from the step outwards through the script's own functions, every loop must say how long it is and where
it stands, or the length is not seen. A `while`, or a loop over batches that can be left in the middle, is
longer or shorter than anybody can tell; an outer loop with a `break` is as long as it says at most.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Union

from cotenant.checkpoint.namespaces import module_of
from cotenant.checkpoint.progress.expressions import Counted, Names, NotSeen
from cotenant.checkpoint.progress.lengths import MISSING, attribute_there

__all__ = ["Loaders", "NotSeen", "Turns", "frames_from", "loops_at", "turns_in"]

FRAMES_MAX: Final = 64
SOURCE_LINES_MAX: Final = 20_000
Loop = Union[ast.For, ast.While, ast.AsyncFor]
_Function = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LIBRARY: Final = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})
_PACKAGES: Final = tuple(os.sep + name + os.sep for name in ("site-packages", "dist-packages"))
"""Also packages of the environment that a virtual environment was made from."""
_STANDARD: Final = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True)
class Turns:
    """The turns of the innermost loop, over all turns of those around it."""

    key: tuple[tuple[str, int], ...]
    """Which loops: file and line, from the inside out."""
    done: int
    """That have begun."""
    all: int
    text: str
    counts: tuple[int, ...]
    """Of each loop, from the outside in: its turns."""


class Loaders:
    """The newest iterator of each loader."""

    def __init__(self) -> None:
        self._newest: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()

    def began(self, loader: Any, batches: Any) -> None:
        self._newest[loader] = weakref.ref(batches)

    def count_given(self, loader: Any) -> int | None:
        """Batches that it has given in this pass; None if it does not say."""
        if not any(kind.__name__.startswith("DataLoader") for kind in type(loader).__mro__):
            return None
        inner = attribute_there(loader, "base_dataloader")
        """Accelerate's, which looks one batch ahead to know the last one."""
        ahead = inner is not MISSING and attribute_there(loader, "end_of_dataloader") is False
        known = self._newest.get(loader if inner is MISSING else inner)
        batches = known() if known is not None else None
        given = MISSING if batches is None else attribute_there(batches, "_num_yielded")
        return given - ahead if isinstance(given, int) and given > 0 else None


def frames_from(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    """Outwards, without torch's, Python's and ours. Libraries count until the script's own code begins: what
    they do around it is no loop of the training."""
    own = False
    for _ in range(FRAMES_MAX):
        if frame is None:
            return
        name = frame.f_code.co_filename
        is_library = name.startswith(_LIBRARY) or any(each in name for each in _PACKAGES)
        is_torch = module_of(frame).partition(".")[0] == "torch"
        is_standard = name.startswith(("<frozen", *_STANDARD)) and not is_library
        if not (is_torch or is_standard or name.startswith(OURS)) and not (is_library and own):
            own = own or not is_library
            yield frame
        frame = frame.f_back


def turns_in(frames: Iterable[types.FrameType], loaders: Loaders, session: Any = None) -> Turns:
    """Counts the turns of the loops around a step. session: the Session that drives the loop over batches, if
    one does. Raises NotSeen."""
    found: list[_Seen] = []
    for frame in frames:
        here = loops_at(frame)
        if not here:
            continue
        names = Names(frame)
        try:
            for loop in here:
                found.append(_read_loop(loop, frame, names, loaders, session, is_innermost=not found))
        finally:
            names.release()
    if not found:
        raise NotSeen("no loop stands around its steps")
    done, all_, parts = 0, 1, []
    for each in reversed(found):
        done, all_ = done * each.count + each.at, all_ * each.count
        parts.append(each.text)
    at_most = "; fewer where a loop is left early" if any(each.can_end for each in found) else ""
    keys, counts = tuple(each.key for each in found), tuple(each.count for each in reversed(found))
    return Turns(keys, done + 1, all_, " x ".join(parts) + at_most, counts)


@dataclass(frozen=True)
class _Seen:
    """A loop that was seen; `at`: the number of its present turn, from 0."""

    key: tuple[str, int]
    count: int
    at: int
    text: str
    can_end: bool


def _read_loop(
    loop: Loop, frame: types.FrameType, names: Names, loaders: Loaders, session: Any, *, is_innermost: bool
) -> _Seen:
    file = frame.f_code.co_filename
    where = f"{os.path.basename(file)} line {loop.lineno}"
    if not isinstance(loop, ast.For):
        raise NotSeen(
            f"{where} is a while loop" if isinstance(loop, ast.While) else f"{where} is asynchronous"
        )
    can_end = _can_be_left(loop.body, names)
    if is_innermost and can_end:
        raise NotSeen(f"{where}: the loop over batches can be left before its end")
    try:
        counted = names.count_loop(loop.iter)
    except NotSeen as error:
        raise NotSeen(f"{where}: {error}") from None
    at = _place(loop.target, counted, names, loaders, session)
    if at is None or not 0 <= at < counted.count:
        raise NotSeen(f"{where}: nothing says in which turn it is")
    return _Seen((file, loop.lineno), counted.count, at, _text(counted), can_end)


def _text(counted: Counted) -> str:
    if issubclass(type(counted.items), range):
        return f"range({counted.count})"
    is_loader = any(kind.__name__.startswith("DataLoader") for kind in type(counted.items).__mro__)
    return f"{counted.count} {'batches' if is_loader else 'items'}"


def _place(target: ast.expr, counted: Counted, names: Names, loaders: Loaders, session: Any) -> int | None:
    items = counted.items
    if counted.enumerated_from is not None:
        if isinstance(target, (ast.Tuple, ast.List)) and target.elts:
            return names.number(target.elts[0]) - counted.enumerated_from
        return None
    if issubclass(type(items), range):
        return (names.number(target) - items.start) // items.step if isinstance(target, ast.Name) else None
    if issubclass(type(items), (list, tuple)) and isinstance(target, ast.Name):
        value = names.value(target)
        places = [at for at, item in enumerate(items) if item is value]
        return places[0] if len(places) == 1 else None
    if session is not None and session.drives_batches:
        return int(session.batch)
    given = loaders.count_given(items)
    return None if given is None else given - 1


# --- The source --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scope:
    """A function, or a whole file, without the functions in it."""

    name: str
    first: int
    last: int
    loops: tuple[Loop, ...]


def loops_at(frame: types.FrameType) -> list[Loop]:
    """The loops in whose bodies a frame stands, the innermost first."""
    code, line = frame.f_code, frame.f_lineno
    scopes = _scopes(code.co_filename, id(dict.get(frame.f_globals, "__loader__")))
    here = [s for s in scopes if s.first <= line <= s.last and s.name == code.co_name]
    if not here:
        return []
    scope = max(here, key=lambda each: each.first)
    around = [loop for loop in scope.loops if loop.body[0].lineno <= line <= (loop.body[-1].end_lineno or 0)]
    return sorted(around, key=lambda loop: -loop.body[0].lineno)


@functools.lru_cache(maxsize=64)
def _scopes(file: str, _: int) -> tuple[_Scope, ...]:
    """The scopes of a file; empty where its source cannot be had."""
    lines = linecache.getlines(file)
    if not lines or len(lines) > SOURCE_LINES_MAX:
        return ()
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found = [_Scope("<module>", 1, sys.maxsize, tuple(_loops(tree.body)))]
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append(_Scope(node.name, node.lineno, node.end_lineno or 0, tuple(_loops(node.body))))
    return tuple(found)


def _loops(body: Sequence[ast.AST]) -> Iterator[Loop]:
    for node in body:
        if isinstance(node, _Function):
            continue
        if isinstance(node, (ast.For, ast.While, ast.AsyncFor)):
            yield node
        yield from _loops(list(ast.iter_child_nodes(node)))


def _can_be_left(body: Sequence[ast.stmt], names: Names, own: bool = True) -> bool:
    """Whether a loop can be left by a `break` of its own or a `return`; conditions that are options not set
    do not count."""
    for node in body:
        if isinstance(node, ast.Return) or (own and isinstance(node, ast.Break)):
            return True
        if isinstance(node, _Function):
            continue
        inside = own and not isinstance(node, (ast.For, ast.While, ast.AsyncFor))
        is_off = isinstance(node, ast.If) and names.is_off(node.test)
        for field in ("body", "orelse", "finalbody"):
            if not (is_off and field == "body") and _can_be_left(getattr(node, field, []), names, inside):
                return True
        if any(_can_be_left(handler.body, names, inside) for handler in getattr(node, "handlers", [])):
            return True
    return False
