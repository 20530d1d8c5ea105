"""Marks in the source of a script that goes on from a checkpoint: where its loops begin, and what on the way
from the outermost one to the innermost was done already.

Rule: standard library only. Lines and names stay those of the script. Whether a mark does anything is decided
when the script comes by it; when the script has been taken up, all of it runs as it is written.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

BEFORE: Final = "__cotenant_before__"
"""`(line)`: a loop on the way begins."""
ITEMS: Final = "__cotenant_items__"
"""`(line, items)`: what such a loop goes over."""
TURN: Final = "__cotenant_turn__"
"""`(line)`: whether a `while` loop on the way asks its test."""
RUNS: Final = "__cotenant_runs__"
"""`(first, last, *names)`: whether the statement at these lines runs, which sets these names."""
TAKES: Final = "__cotenant_takes__"
"""`(first, last, end)`: whether an `if` takes the branch at the first two lines; None: its test says so."""
PASSED_OVER: Final = "__cotenant_passed_over__"
"""Raised where a script was on its first way, to go on elsewhere."""
GOES_ON: Final = "__cotenant_goes_on__"
"""`(first, last)`: returns where the block at these lines is left for that; else raises it again."""
_ALWAYS_RUN: Final = (
    ast.Import,
    ast.ImportFrom,
    ast.Global,
    ast.Nonlocal,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
)
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class SourceMarks(NamedTuple):
    """Where a script was left, and where its first loop began, in one file."""

    loops: frozenset[int]
    """The lines of the loops in which it was."""
    calls: frozenset[int]
    """The lines of the calls in progress."""


Marks = dict[str, SourceMarks]
"""By file."""


def compile_marked(source: bytes, file: str, marks: Marks) -> Any:
    """The code of a file, with its marks if it has any."""
    place = marks.get(file)
    if place is None:
        return compile(source, file, "exec", dont_inherit=True)
    tree = ast.parse(source, file)
    _Marking(place).mark_block(tree.body)
    return compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)


class _Marking:
    """Marks one file in place."""

    def __init__(self, place: SourceMarks) -> None:
        self._loops, self._lines = place.loops, place.loops | place.calls

    def mark_block(self, block: list[ast.stmt]) -> None:
        """Beside what leads on, nothing in a block runs while the script is taken up."""
        is_on_the_way = any(map(self._leads_on, block))
        first, last = block[0].lineno, _lines_of(block[-1])[1]
        for number, each in reversed(list(enumerate(block))):
            leads_on = self._leads_on(each)
            marked = self._mark_statement(each) if leads_on else [each]
            for inner in _blocks(each):
                self.mark_block(inner)
            if leads_on:
                goes_on = _like(each, ast.Expr(_call(GOES_ON, first, last)))
                handler = ast.ExceptHandler(ast.Name(PASSED_OVER, ast.Load()), None, [goes_on])
                marked = [_like(each, ast.Try(marked, [_like(each, handler)], [], []))]
            if is_on_the_way and not isinstance(each, _ALWAYS_RUN) and not _is_text(each):
                names = [ast.Constant(name) for name in _names_set(each)]
                marked = [_like(each, ast.If(_call(RUNS, *_lines_of(each), *names), marked, []))]
            block[number : number + 1] = marked

    def _mark_statement(self, statement: Any) -> list[ast.stmt]:
        """One that leads to an innermost loop."""
        line = statement.lineno
        if isinstance(statement, ast.If):
            last = statement.body[-1].end_lineno or 0
            takes = _call(TAKES, statement.body[0].lineno, last, statement.end_lineno or 0)
            is_open = ast.Compare(takes, [ast.Is()], [ast.Constant(None)])
            statement.test = _like(statement.test, ast.IfExp(is_open, statement.test, takes))
        if line not in self._loops or not isinstance(statement, (ast.For, ast.While)):
            return [statement]
        if isinstance(statement, ast.For):
            statement.iter = _like(statement.iter, _call(ITEMS, line, statement.iter))
        else:
            asks = ast.BoolOp(ast.And(), [_call(TURN, line), statement.test])
            statement.test = _like(statement.test, asks)
        return [_like(statement, ast.Expr(_call(BEFORE, line))), statement]

    def _leads_on(self, statement: ast.stmt) -> bool:
        if isinstance(statement, _SCOPES):
            return False
        first, last = _lines_of(statement)
        return any(first <= line <= last for line in self._lines)


def _lines_of(statement: ast.stmt) -> tuple[int, int]:
    return statement.lineno, statement.end_lineno or statement.lineno


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    inner = [getattr(statement, word, None) for word in ("body", "orelse", "finalbody")]
    inner += [each.body for word in ("handlers", "cases") for each in getattr(statement, word, ())]
    return [each for each in inner if isinstance(each, list) and each]


def _names_set(statement: ast.stmt) -> list[str]:
    """The variables that an assignment sets."""
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return []
    return sorted(
        {
            each.id
            for each in ast.walk(statement)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        }
    )


def _call(name: str, *arguments: int | ast.expr) -> ast.Call:
    given = [ast.Constant(each) if isinstance(each, int) else each for each in arguments]
    return ast.Call(ast.Name(name, ast.Load()), given, [])


def _like(old: Any, new: Any) -> Any:
    """The new node at the place of the old one."""
    return ast.copy_location(new, old)


class MarkedImports(importlib.abc.MetaPathFinder):
    """Compiles the modules of a script in which it was left."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        later = iter(tuple(sys.meta_path))
        any(each is self for each in later)  # Others of ours ask as well: only those that come after them.
        for finder in later:
            if not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                loader: Any = spec.loader
                is_file = isinstance(loader, importlib.machinery.SourceFileLoader)
                if is_file and str(spec.origin) in self._marks:
                    spec.loader = _MarkedLoader(loader.name, str(spec.origin), self._marks)
                return spec
        return None


class _MarkedLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, marks: Marks) -> None:
        super().__init__(name, path)
        self._marks = marks

    def get_code(self, fullname: str) -> Any:
        return compile_marked(self.get_data(self.path), self.path, self._marks)
