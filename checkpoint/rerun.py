"""`python -m cotenant.checkpoint.rerun SCRIPT ARGS`: a script that goes on from a checkpoint.

Rule: standard library only; this runs before the script's torch. The script is compiled from its own source,
with two calls put in at each of the loops that it was left in: one before the loop, one around what it goes
over. Lines, names, arguments and `__main__` are those of `python SCRIPT ARGS`. A script that begins at its
beginning never comes by here.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from cotenant.checkpoint.disk import layout
from cotenant.checkpoint.disk.layout import CheckpointError
from cotenant.checkpoint.talk.protocol import RESUME_NONE, JobEnvironment

LOOPS: Final = "loops"
"""Among the facts of a manifest: file and line of each loop in which the script was left."""
FOLDERS: Final = "folders"
"""Among them: the folders that were made before the loop."""
BEFORE: Final = "__cotenant_before__"
ITEMS: Final = "__cotenant_items__"
ENV_RERUN: Final = "COTENANT_RERUN"
"""Set for the process that is started anew, so that this happens once."""


Marks = dict[str, set[int]]
"""By file, the lines of the loops in which a script was left."""


def _facts_of_all() -> Iterator[Mapping[str, Any]]:
    """The facts of all checkpoints that this attempt may go on from, the newest first."""
    env = JobEnvironment.read(os.environ)
    if env.root is None or env.resume == RESUME_NONE:
        return
    for name in layout.names_newest_first(env.root, env.attempt):
        try:
            yield layout.read_manifest(env.root / name).facts
        except CheckpointError:
            continue  # Whoever reads it says what is wrong with it.


def marks_of_newest() -> Marks:
    """The loops that this attempt may have to take up; empty where there are none."""
    marks: Marks = {}
    for facts in _facts_of_all():
        for file, line in facts.get(LOOPS) or ():
            marks.setdefault(file, set()).add(line)
    return marks


def folders_of_newest() -> set[str]:
    """The folders that earlier attempts made before their loops."""
    return {each for facts in _facts_of_all() for each in facts.get(FOLDERS) or ()}


class _Marks(ast.NodeTransformer):
    def __init__(self, lines: set[int]) -> None:
        self._lines = lines

    def visit_For(self, node: ast.For) -> Any:
        self.generic_visit(node)
        if node.lineno not in self._lines:
            return node
        node.iter = ast.copy_location(_call(ITEMS, node.lineno, node.iter), node.iter)
        return [_before(node), node]

    def visit_While(self, node: ast.While) -> Any:
        self.generic_visit(node)
        return [_before(node), node] if node.lineno in self._lines else node


def _before(loop: ast.stmt) -> ast.stmt:
    return ast.copy_location(ast.Expr(_call(BEFORE, loop.lineno)), loop)


def _call(name: str, line: int, *more: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [ast.Constant(line), *more], [])


class MarkedImports(importlib.abc.MetaPathFinder):
    """Compiles the modules of a script that have loops in which it was left."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                is_file = isinstance(spec.loader, importlib.machinery.SourceFileLoader)
                if is_file and str(spec.origin) in self._marks:
                    spec.loader = _MarkedLoader(spec.loader.name, str(spec.origin), self._marks)
                return spec
        return None


class _MarkedLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, marks: Marks) -> None:
        super().__init__(name, path)
        self._marks = marks

    def get_code(self, fullname: str) -> Any:
        return compile_marked(self.get_data(self.path), self.path, self._marks)


def mark_script() -> Callable[[bytes, str], Any] | None:
    """Mark the loops that this attempt is to take up: in modules as they are imported, and in the script
    itself by starting this interpreter anew. Where a script is run by a process that was there before, the
    function that makes its code; None, if there is nothing to mark."""
    marks = marks_of_newest()
    if not marks:
        return None
    if os.environ.pop(ENV_RERUN, ""):
        return None
    sys.meta_path.insert(0, MarkedImports(marks))
    if hasattr(sys.modules.get("__main__"), "__file__"):
        return lambda source, file: compile_marked(source, file, marks)
    words = _original_words()
    at = None if words is None else _first_of_script(words)
    if words is not None and at is not None and os.path.abspath(words[at]) in marks:
        os.environ[ENV_RERUN] = "1"
        here = [sys.executable, *words[1:at], "-m", "cotenant.checkpoint.rerun", *words[at:]]
        os.execv(sys.executable, here)
    return None


def compile_marked(source: bytes, file: str, marks: Marks) -> Any:
    """The code of a file, with its marks if it has any."""
    lines = marks.get(file)
    if not lines:
        return compile(source, file, "exec", dont_inherit=True)
    tree = _Marks(lines).visit(ast.parse(source, file))
    return compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)


def _original_words() -> list[str] | None:
    """The command that started this interpreter."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            words = [os.fsdecode(each) for each in file.read().split(b"\0")[:-1]]
    except OSError:
        return None
    return words


def _first_of_script(words: Sequence[str]) -> int | None:
    """Where a script begins among the words of an interpreter's command; None: it runs a module or text."""
    at = 1
    while at < len(words):
        word = words[at]
        if word == "-m":
            return None
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            at += 2
        elif word.startswith("-") and word != "-":
            if "c" in word and not word.startswith("--"):
                return None
            at += 1
        else:
            return at if word != "-" else None
    return None


def run(words: Sequence[str], marks: Marks) -> None:
    """Run the script as `__main__`."""
    sys.meta_path.insert(0, MarkedImports(marks))
    file = os.path.abspath(words[0])
    sys.argv = list(words)
    sys.path[0] = os.path.dirname(os.path.realpath(file))
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=file, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    with open(file, "rb") as source:
        code = compile_marked(source.read(), file, marks)
    exec(code, main.__dict__)


if __name__ == "__main__":
    from cotenant.checkpoint import rerun

    rerun.run(sys.argv[1:], rerun.marks_of_newest())
