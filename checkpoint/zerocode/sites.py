"""Which loops stand around a training step: in the script's own frames, from the outermost to the innermost.

Rule: where a loop stands is read from its variables and its loader, and nothing of the script runs. A loop
that does not say in which turn it is cannot be left and taken up again.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import types
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, NoReturn

from cotenant.checkpoint.namespaces import module_of, names_of
from cotenant.checkpoint.ownership import is_scripts_own
from cotenant.checkpoint.picture.atoms import PLAIN
from cotenant.checkpoint.progress.expressions import RANGES, WRAPPERS, Names, NotSeen, called_name
from cotenant.checkpoint.progress.loops import OURS, Loaders, Loop, loops_at
from cotenant.checkpoint.zerocode.refusals import NotResumable

FRAMES_MAX: Final = 200
GIVEN: Final = -2
"""In the place of a turn's number: as far as the loop's only loader has given its batches."""
HELD: Final = -3
"""In the place of a turn's number: the loop goes over an iterator that the script holds."""


class LoopSite(NamedTuple):
    """One loop. `passed`: how many items it had been given before its present turn; of a `while`, -1; or
    `GIVEN`, `HELD`."""

    file: str
    function: str
    line: int
    depth: int
    """Of the script's frames, the outermost is 0."""
    passed: int = -1

    @property
    def place(self) -> str:
        return f"{os.path.basename(self.file)} line {self.line}"


class CallSite(NamedTuple):
    """A function of the script that runs, and the line at which it is."""

    file: str
    function: str
    line: int


def calls_in(frames: list[types.FrameType], line: int) -> list[CallSite]:
    """The script's way from its outermost function to this line of its innermost one."""
    codes = [each.f_code for each in frames]
    lines = [*(each.f_lineno for each in frames[:-1]), line]
    return [CallSite(code.co_filename, code.co_name, at) for code, at in zip(codes, lines)]


class LoopStanding(NamedTuple):
    """Where a step is made: the frames of the script, and the loops in them, with the frame of each."""

    frames: list[types.FrameType]
    sites: list[LoopSite]
    owners: list[types.FrameType]
    loops: list[Loop]
    passes: list[list[Any]]
    """Through loaders, of each of the loops."""

    def heads(self) -> dict[int, set[int]]:
        """The lines of the heads, by the identity of their frame."""
        found: dict[int, set[int]] = {}
        for owner, loop in zip(self.owners, self.loops):
            found.setdefault(id(owner), set()).update(head_lines(loop))
        return found

    def locate(self, reason: str) -> str:
        """A reason that begins with an object's path, after the line at which a loop first names its
        variable; else after the line of the outermost loop."""
        path = re.match(r"`(?:\w+\(\)\.)*(\w+)", reason)
        if path is None:
            return reason
        uses = (
            f"{os.path.basename(site.file)} line {each.lineno}: {reason}"
            for site, loop in zip(self.sites, self.loops)
            for each in sorted(_names_in(loop), key=lambda name: name.lineno)
            if each.id == path[1]
        )
        return next(uses, f"{self.sites[0].place}: {reason}")


def script_frames(frame: types.FrameType | None, also: str = "") -> list[types.FrameType]:
    """The frames of the script's own code, the outermost first. The script begins at `__main__`: who runs it
    there is none of it. `also`: a module whose functions count as well."""
    found = []
    for _ in range(FRAMES_MAX):
        if frame is None:
            break
        is_ours = frame.f_code.co_filename.startswith(OURS)
        name = module_of(frame)
        if not is_ours and (name == also or is_scripts_own(name)):
            found.append(frame)
        frame = frame.f_back
    names = names_of("__main__")
    first = next((number for number, each in enumerate(reversed(found)) if each.f_globals is names), 0)
    return found[::-1][first:]


def head_lines(loop: Loop) -> set[int]:
    """The lines at which a new turn begins. The test of an endless loop is no instruction: its turns begin at
    its first statement."""
    lines = {loop.lineno}
    if isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant):
        lines.add(loop.body[0].lineno)
    return lines


def stand_at(
    frame: types.FrameType, loaders: Loaders, passes_of: Callable[[types.FrameType, set[int], Any], list[Any]]
) -> LoopStanding:
    """Where a step is made whose optimizer is called in this frame. `passes_of(frame, lines, source)`: the
    passes through loaders of the loop at these lines, which goes over a source that a variable holds.

    Raises:
        NotResumable: a loop does not say where it is, or there is none.
    """
    standing = LoopStanding(script_frames(frame), [], [], [], [])
    for depth, each in enumerate(standing.frames):
        for loop in reversed(loops_at(each)):
            names = Names(each)
            source = _held_source(loop, names)
            passes = passes_of(each, head_lines(loop), source)
            place = f"{os.path.basename(each.f_code.co_filename)} line {loop.lineno}"
            try:
                passed = _passed(loop, names, loaders)
            except NotSeen as error:
                if len(passes) != 1 or _goes_round(loop):
                    raise NotResumable(f"{place}: {error}") from None
                passed = GIVEN
            finally:
                names.release()
            code = each.f_code
            standing.sites.append(LoopSite(code.co_filename, code.co_name, loop.lineno, depth, passed))
            standing.owners.append(each)
            standing.loops.append(loop)
            standing.passes.append(passes)
    if not standing.sites:
        raise NotResumable("no loop of the script stands around its steps")
    return standing


def _names_in(loop: Loop) -> Iterator[ast.Name]:
    return (each for each in ast.walk(loop) if isinstance(each, ast.Name))


def _held_source(loop: Loop, names: Names) -> Any:
    """What a loop goes over, where a variable holds it."""
    if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Name):
        with contextlib.suppress(NotSeen):
            return names.value(loop.iter)
    return None


def _goes_round(loop: Loop) -> bool:
    """Whether a loop takes from its loader what was given already."""
    calls = (
        [each for each in ast.walk(loop.iter) if isinstance(each, ast.Call)]
        if isinstance(loop, ast.For)
        else []
    )
    return any(called_name(each) in ("cycle", "repeat", "chain", "tee") for each in calls)


def _passed(loop: Loop, names: Names, loaders: Loaders) -> int:
    if isinstance(loop, ast.While):
        return -1
    if not isinstance(loop, ast.For):
        raise NotSeen("the loop is asynchronous")
    return _turn(loop, loop.iter, loop.target, names, loaders)


def _turn(loop: ast.For, items: ast.expr, target: ast.expr, names: Names, loaders: Loaders) -> int:
    """The number of the present turn of a loop over these items, from 0."""
    if isinstance(items, ast.Call):
        word = called_name(items)
        if not names.is_known(items):
            _unknown(items)
        if word in RANGES:
            return _place_in(range(*(names.number(each) for each in items.args[:3])), loop, target, names)
        if word == "count":
            return _place_in_count(items, loop, target, names)
        if word == "enumerate" and isinstance(target, (ast.Tuple, ast.List)) and target.elts:
            starts = [*items.args[1:2], *(each.value for each in items.keywords if each.arg == "start")]
            _check_kept(loop, target.elts[0])
            return names.number(target.elts[0]) - (names.number(starts[0]) if starts else 0)
        if word == "reversed" and len(items.args) == 1:
            count = names.count_loop(items.args[0]).count
            return count - 1 - _turn(loop, items.args[0], target, names, loaders)
        if word == "sorted":
            _unknown(items)
        if word in WRAPPERS or word in ("zip", "islice"):
            inner = target.elts[0] if word == "zip" and isinstance(target, ast.Tuple) else target
            if not items.args:
                _unknown(items)
            return _turn(loop, items.args[0], inner, names, loaders)
    value = names.source(items)
    if issubclass(type(value), range):
        return _place_in(value, loop, target, names)
    if type(value) in (list, tuple):
        _check_kept(loop, target)
        places = [at for at, each in enumerate(value) if _is_bound(each, target, names)]
        return places[0] if len(places) == 1 else _unknown(items)
    if hasattr(type(value), "__next__"):
        return HELD if isinstance(items, ast.Name) and names.value(items) is value else _unknown(items)
    given = loaders.count_given(value)
    return _unknown(items) if given is None else given - 1


def _is_bound(item: Any, target: ast.expr, names: Names) -> bool:
    """Whether the loop's variables hold this item."""
    if isinstance(target, ast.Name):
        value = names.value(target)
        return value is item or (type(value) in PLAIN and type(value) is type(item) and value == item)
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    if type(item) not in (list, tuple) or not parts or len(parts) != len(item):
        return False
    return all(_is_bound(each, part, names) for each, part in zip(item, parts))


def _unknown(items: ast.expr) -> NoReturn:
    raise NotSeen(f"nothing says in which turn the loop over `{ast.unparse(items)}` is")


def _place_in(numbers: range, loop: ast.For, target: ast.expr, names: Names) -> int:
    _check_kept(loop, target)
    value = names.value(target) if isinstance(target, ast.Name) else None
    if type(value) is int and value in numbers:
        return numbers.index(value)
    raise NotSeen(f"nothing says in which turn the loop over {numbers} is")


def _place_in_count(items: ast.Call, loop: ast.For, target: ast.expr, names: Names) -> int:
    """In the numbers of `itertools.count`, which do not end."""
    given = {name: names.number(each) for name, each in zip(("start", "step"), items.args)}
    given |= {each.arg: names.number(each.value) for each in items.keywords if each.arg}
    start, step = given.get("start", 0), given.get("step", 1)
    _check_kept(loop, target)
    value = names.value(target) if isinstance(target, ast.Name) else None
    if type(value) is int and step and (value - start) % step == 0 and (value - start) // step >= 0:
        return (value - start) // step
    _unknown(items)


def _check_kept(loop: ast.For, target: ast.expr) -> None:
    """What counts the turns must not be set in the loop."""
    counts = {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
    for statement in loop.body:
        for each in _own_nodes(statement):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each.id in counts:
                raise NotSeen(f"`{each.id}` counts the turns of this loop, and is set in it")


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A statement, without functions and comprehensions in it, whose names are their own."""
    own = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.comprehension)
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, own):
            continue
        yield each
        waiting.extend(ast.iter_child_nodes(each))
