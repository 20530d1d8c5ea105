"""How many small faults in some files their tests notice: the judge of whether a test or a layer may go.

    python -m tests.mutants --of controller/policies/ordered.py --by tests/controller/policies --count 300

A mutant is a copy of the tree with one change: a comparison turned, `and` for `or`, a condition denied, a
number one greater, a sum for a difference, nothing returned, a statement that is left out. Sites are drawn
from the seed over all the files. A mutant is killed where the tests fail, or take ten times as long as
without it. What survived is listed: some change nothing that anybody could see.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = (".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", ".typing", ".nvidia-mps")
PACKAGES: Final = ("agent", "checkpoint", "controller", "gradaccum", "mps", "profiler")
TURNED: Final = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
OTHER: Final = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "+"}


class Mutant(NamedTuple):
    """One change: the bytes from `begin` to `end` of a file are `text` instead."""

    file: str
    line: int
    begin: int
    end: int
    text: str
    before: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {' '.join(self.before.split())[:60]!r} -> {self.text[:60]!r}"


class Source:
    """A file, and where its nodes lie in its bytes."""

    def __init__(self, name: str) -> None:
        self.name, self.data = name, (ROOT / name).read_bytes()
        self._starts = [0]
        for line in self.data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(self, node: ast.expr | ast.stmt) -> str:
        begin, end = self.span(node)
        return self.data[begin:end].decode()

    def replace(self, node: ast.expr | ast.stmt, text: str) -> Mutant:
        return Mutant(self.name, node.lineno, *self.span(node), text, self.text(node))

    def mutants(self) -> Iterator[Mutant]:
        """All changes of this file, none inside an f-string, whose parts have no places of their own."""
        tree = ast.parse(self.data)
        hidden = {
            id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)
        }
        for node in ast.walk(tree):
            if id(node) not in hidden:
                yield from self._changes(node)

    def _changes(self, node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.Compare(left=left, ops=[turned], comparators=[right]) if type(turned) in TURNED:
                yield self.replace(node, f"({self.text(left)} {TURNED[type(turned)]} {self.text(right)})")
            case ast.BoolOp(op=op, values=values):
                word = " or " if isinstance(op, ast.And) else " and "
                yield self.replace(node, f"({word.join(f'({self.text(each)})' for each in values)})")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OTHER:
                yield self.replace(node, f"(({self.text(left)}) {OTHER[type(op)]} ({self.text(right)}))")
            case ast.If(test=test) | ast.IfExp(test=test):
                yield self.replace(test, f"(not ({self.text(test)}))")
            case ast.Constant(value=bool() as value):
                yield self.replace(node, str(not value))
            case ast.Constant(value=int() | float() as value):
                yield self.replace(node, f"({value!r} + 1)")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield self.replace(value, "None")
            case ast.Expr(value=ast.Call()) | ast.AugAssign():
                yield self.replace(node, "pass")


class Judge:
    """Copies of the tree, in each of which one mutant at a time is tried."""

    def __init__(self, folder: Path, tests: Sequence[str], copies: int) -> None:
        self._tests, self._free = tests, SimpleQueue[Path]()
        for copy in (folder / str(number) for number in range(copies)):
            shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
            packages = copy / "packages" / "cotenant"
            packages.mkdir(parents=True)
            (packages / "__init__.py").symlink_to(copy / "controller/python/face/__init__.py")
            for name in PACKAGES:  # Found before the installation that maps them to folders of this tree.
                (packages / name).symlink_to(copy / name)
            self._free.put(copy)
        begun_s = time.monotonic()
        self.limit_s = 600.0
        assert self._passes(folder / "0"), "without any change the tests fail in a copy of the tree"
        self.limit_s = max(30.0, 10 * (time.monotonic() - begun_s))

    def survives(self, mutant: Mutant) -> bool:
        copy = self._free.get()
        path = copy / mutant.file
        data = path.read_bytes()
        try:
            path.write_bytes(data[: mutant.begin] + mutant.text.encode() + data[mutant.end :])
            return self._passes(copy)
        finally:
            path.write_bytes(data)
            self._free.put(copy)

    def _passes(self, copy: Path) -> bool:
        words = (sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *self._tests)
        process = subprocess.Popen(
            words,
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy / "packages")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(self.limit_s) == 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--of", nargs="+", required=True, help="files whose faults are to be noticed")
    parser.add_argument("--by", nargs="+", required=True, help="the tests that are to notice them")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    found = [mutant for name in options.of for mutant in Source(name).mutants()]
    chosen = random.Random(options.seed).sample(found, min(options.count, len(found)))
    with tempfile.TemporaryDirectory(prefix="cotenant-mutants-") as folder:
        judge = Judge(Path(folder), options.by, options.at_once)
        print(
            f"{len(chosen)} of {len(found)} mutants, seed {options.seed}, at most {judge.limit_s:.0f} s each"
        )
        killed = 0
        with ThreadPoolExecutor(options.at_once) as pool:
            for number, (mutant, survived) in enumerate(
                zip(chosen, pool.map(judge.survives, chosen), strict=True), 1
            ):
                killed += not survived
                if survived:
                    print(f"survived: {mutant}", flush=True)
                elif number % 20 == 0:
                    print(f"{number} tried, {killed} killed", flush=True)
    print(f"killed {killed} of {len(chosen)}: {killed / max(1, len(chosen)):.1%}")


if __name__ == "__main__":
    main()
