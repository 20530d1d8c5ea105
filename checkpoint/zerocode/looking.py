"""The picture at the loop's begin: taken when the loop that will train is reached, before its first turn.

Rule: a script cannot tell. From the first optimizer that is made until the first step is done, Python's own
tracing says when a line is reached at which a loop begins; after that nothing of it is left. Which loops may
train is guessed from the text, so that no picture is taken for the others; whether the right one was met is
seen at the first step.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import linecache
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from cotenant.checkpoint import guard, lookups, namespaces, ownership
from cotenant.checkpoint.picture import Picture, PictureTooLarge, process_roots
from cotenant.checkpoint.picture.kinds import FrameVariables, release_variables
from cotenant.checkpoint.progress.loops import Loop, loops_at
from cotenant.checkpoint.zerocode.sites import CallSite, calls_in, head_lines, script_frames
from cotenant.checkpoint.zerocode.tracing import end_trace, trace, tracer

TRAINS: Final = frozenset(("backward", "step", "manual_backward"))
"""A loop that calls none of these, nor a function of the script that does, is no training loop."""
ENDS: Final = frozenset(("atexit.register", "atexit.unregister", "atexit._clear"))
SOURCE_LINES_MAX: Final = 50_000
LATE: Final = "torch._dynamo"
"""Imported while the first optimizer is made: it makes a million calls, and none of them is a script's."""


def roots_of(frames: list[types.FrameType]) -> list[tuple[str, Any]]:
    """Everything that the running functions of a script can reach, by the names that a person would use."""
    roots: list[tuple[str, Any]] = []
    prefix = ""
    for frame in frames:
        if frame.f_locals is not frame.f_globals:
            prefix += f"{frame.f_code.co_name}()."
            roots.append((prefix, FrameVariables(frame)))
    return [*process_roots(), *roots]


class FirstLook:
    """Waits for the loop that trains, and takes the picture."""

    def __init__(self) -> None:
        self.picture: Picture | None = None
        self.opaque: dict[str, int | None] = {}
        """What was told of opaque objects when they were looked into first, by their paths; grows."""
        self.began: list[CallSite] = []
        """The script's way to the loop at which the picture was taken."""
        self._at: tuple[types.FrameType, int] | None = None
        self._under_way: set[tuple[int, int]] | None = None
        """The loops that began before the first optimizer was made, each by its frame and line."""
        self.why_not = "no loop that trains was met between its optimizer and its first step"
        self.when_taken: list[Callable[[], None]] = []
        self._heads: dict[str, dict[int, Loop]] = {}
        self._is_over = False
        self._is_paused = False
        self._looked: lookups.LookedUp | None = None

    def begin(self, startup: Any) -> None:
        """Wait for the first optimizer."""
        optimizer = sys.modules["torch.optim.optimizer"].Optimizer

        def look(_: Any, frame: types.FrameType) -> None:
            self._arm(frame)

        # Of what an optimizer looks up while it is made, the first thing.
        self._looked = lookups.LookedUp(optimizer, "_patch_step_function", guard.SAVING, look)
        startup.call_before_import(LATE, lambda: guard.SAVING.run(self._pause))
        startup.when_imported(LATE, lambda _: guard.SAVING.run(self._go_on))

    def end(self) -> None:
        """The first step is done: nothing is left of this."""
        if not self._is_over:
            self._is_over = True
            self.stop()
            _parsed.cache_clear()
            release_variables(script_frames(sys._getframe(1)))
            if self.picture is not None:
                self.picture.let_go()
            self._at = None

    def stop(self) -> None:
        """Look at nothing more. What was copied of variables stays until the first step is done: a trace
        function, in which this may be called, writes it back."""
        if self._looked is not None:
            self._looked.end()
        end_trace(self._called)
        for frame in script_frames(sys._getframe(1)):
            if frame.f_trace == self._line:
                del frame.f_trace

    def take(self, picture: Picture, began: list[CallSite]) -> None:
        """The picture that somebody else has taken at the loop's begin."""
        self.picture, self.began, self._is_over = picture, began, True
        self.opaque = picture.tell_opaque()

    def _arm(self, frame: types.FrameType) -> None:
        if self._is_over or tracer() is not None:
            if not self._is_over and tracer() != self._called:
                self.why_not = "another tracer (a debugger, coverage) runs in it"
            return
        frames = script_frames(frame)
        if not all(map(namespaces.has_plain_names, frames)):
            self.why_not = "code of it runs in a mapping of its own (`exec`, `__prepare__`)"
            return
        self._heads = training_loops()
        if self._under_way is None:
            self._under_way = {(id(each), loop.lineno) for each in frames for loop in loops_at(each)}
        if not any(self._heads.values()):
            self.why_not = "no loop of the script calls backward() or step()"
            return
        trace(self._called)
        for each in frames:
            if self._heads.get(each.f_code.co_filename):
                each.f_trace = self._line

    def _pause(self) -> None:
        if not self._is_over and tracer() == self._called:
            self._is_paused = True
            end_trace(self._called)

    def _go_on(self) -> None:
        if self._is_paused and not self._is_over and tracer() is None:
            trace(self._called)
        self._is_paused = False

    @guard.door
    def _called(self, frame: types.FrameType, event: str, _: Any, is_ending: Any = sys.is_finalizing) -> Any:
        """An interpreter at its end takes modules apart, this one too, and calls functions meanwhile."""
        return None if is_ending() else guard.SAVING.run(self._tracer_of, frame)

    def _tracer_of(self, frame: types.FrameType) -> Any:
        """What is to trace a function that is called; None: it has no loop that trains."""
        heads = self._heads.get(frame.f_code.co_filename)
        if not heads:
            return None
        code = frame.f_code
        last = max((line for _, line in dis.findlinestarts(code) if line), default=0)
        return self._line if any(code.co_firstlineno <= line <= last for line in heads) else None

    @guard.door
    def _line(self, frame: types.FrameType, event: str, _: Any, is_ending: Any = sys.is_finalizing) -> Any:
        if is_ending():
            return None
        if event == "line" and not self._is_over:
            loop = self._heads.get(frame.f_code.co_filename, {}).get(frame.f_lineno)
            if loop is not None:
                guard.SAVING.run(self._look, frame, loop)
        return None if guard.SAVING.why else self._line

    def _look(self, frame: types.FrameType, loop: Loop) -> None:
        """A loop is reached that may train: if it is the outermost one, this is the loop's begin."""
        if self._at is not None and self._at[0] is frame and self._at[1] == loop.lineno:
            return  # One of its turns.
        frames = script_frames(frame)
        if any(self._is_later(each, around) for each in frames for around in loops_at(each)):
            return
        self._at, self.began = (frame, loop.lineno), calls_in(frames, loop.lineno)
        self._take(frames)

    def look_at(self, frames: list[types.FrameType]) -> None:
        """The loop that trains begins here: in a framework, whose lines nobody traces."""
        self.stop()
        self._is_over, self.began = True, []
        self._take(frames)
        _parsed.cache_clear()
        if self.picture is not None:
            self.picture.let_go()

    def _take(self, frames: list[types.FrameType]) -> None:
        try:
            self.picture = Picture(roots_of(frames), digests=True)
            self.opaque = self.picture.tell_opaque()
        except PictureTooLarge as error:
            self.picture, self.why_not = None, str(error)
            return
        for tell in self.when_taken:
            tell()

    def _is_later(self, frame: types.FrameType, loop: Loop) -> bool:
        """Whether a loop may train, and began after the first optimizer was made."""
        began_before = (id(frame), loop.lineno) in (self._under_way or ())
        return not began_before and loop.lineno in self._heads.get(frame.f_code.co_filename, ())


def training_loops() -> dict[str, dict[int, Loop]]:
    """The loops of the script's own modules that may train, by file and by the line where one is reached."""
    trees = dict(own_sources())
    trains = _leading_to(TRAINS, trees.values())
    found: dict[str, dict[int, Loop]] = {}
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.For, ast.While)) and _called_in(node) & trains:
                for line in head_lines(node):
                    found.setdefault(file, {}).setdefault(line, node)
    return found


def registers_for_the_end(loops: Iterable[Loop]) -> bool:
    """Whether these loops, or functions that they call, tell the interpreter what to do at its end: it does
    not say what it was told."""
    registers = _leading_to(ENDS, [tree for _, tree in own_sources()])
    return any(_called_in(each) & registers for each in loops)


def _leading_to(words: frozenset[str], trees: Iterable[ast.Module]) -> set[str]:
    """These names, and those of the script's functions that call one of them."""
    calls = {
        node.name: _called_in(node)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    found = set(words)
    while more := {name for name, names in calls.items() if name not in found and names & found}:
        found |= more
    return found


def own_sources() -> Iterator[tuple[str, ast.Module]]:
    """The files of the script's own modules with their text, read."""
    lines_left = SOURCE_LINES_MAX
    for name in ownership.own_modules():
        file = namespaces.names_of(name).get("__file__")
        if not isinstance(file, str) or not ownership.is_scripts_own(name):
            continue
        lines = linecache.getlines(file)
        lines_left -= len(lines)
        if lines and lines_left > 0:
            with contextlib.suppress(SyntaxError, ValueError, RecursionError):
                yield file, _parsed("".join(lines))


@functools.cache
def _parsed(text: str) -> ast.Module:
    """Read more than once until the first step is done."""
    return ast.parse(text)


def _called_in(node: ast.AST) -> set[str]:
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            function = each.func
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                found.add(f"{function.value.id}.{function.attr}")
            found.add(function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", ""))
    return found
