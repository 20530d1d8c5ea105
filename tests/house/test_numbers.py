"""Numbers of people and of other processes are read as ASCII digits.

Rule: to `str.isdigit`, to `int` and to `\\d` the digits of every script are digits, so `٣` would name job 3;
and `²` is a digit to `isdigit` alone, so `int` raises. `is_whole_number` (`controller/domain/texts.py`) asks
the question; patterns say `[0-9]`, or are ASCII.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.test_imports import ROOT

ASKS = frozenset(("isdigit", "isdecimal", "isnumeric"))
OURS = {
    "controller/domain/texts.py": "the question itself",
    "controller/system/locks.py": "the number of a process, in a file of our own",
    "controller/cli/doctor/host_checks.py": "the version of the kernel",
    "controller/cli/doctor/host_files.py": "/proc/PID/limits",
    "controller/papers/gfs/forecast/model.py": "which error a document of another version gets",
    "controller/models/interference/model_file.py": "which error a document of another version gets",
}
"""Files that read no number of anybody else, and what they read."""
READ_PEOPLE = (
    "controller/submission",
    "controller/slurm",
    "controller/executors",
)


def loose_questions(tree: ast.AST) -> Iterator[int]:
    """Lines that ask for digits where nothing beside it asks for ASCII."""
    sure = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.BoolOp) and "isascii" in set(names_in(node))
        for each in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ASKS and id(node) not in sure:
            yield node.lineno


def names_in(node: ast.AST) -> Iterator[str]:
    return (each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute))


def loose_patterns(tree: ast.AST) -> Iterator[int]:
    """Lines that hand a pattern with `\\d` to `re`, without its flag ASCII."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
            texts = [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
            if any(r"\d" in text for text in texts) and "ASCII" not in names_in(node):
                yield node.lineno


def files(under: str) -> list[Path]:
    found = sorted((ROOT / under).rglob("*.py"))
    assert found, under
    return found


def test_questions_about_digits_are_about_ascii() -> None:
    wrong = [
        f"{path}:{line}"
        for path in files("controller")
        if str(path.relative_to(ROOT)) not in OURS
        for line in loose_questions(ast.parse(path.read_text()))
    ]
    assert not wrong, "ask `is_whole_number`"


def test_the_exceptions_are_needed() -> None:
    for name in OURS:
        assert list(loose_questions(ast.parse((ROOT / name).read_text()))) or "texts" in name, name


@pytest.mark.parametrize("under", READ_PEOPLE)
def test_patterns_for_numbers_are_ascii(under: str) -> None:
    wrong = [
        f"{path}:{line}" for path in files(under) for line in loose_patterns(ast.parse(path.read_text()))
    ]
    assert wrong == [], "write [0-9], or give re.ASCII"


def test_both_are_found() -> None:
    code = "x.isdigit()\nx.isascii() and x.isdigit()\nre.match(r'\\d', x)\nre.match(r'\\d', x, re.ASCII)"
    tree = ast.parse(code)
    assert (list(loose_questions(tree)), list(loose_patterns(tree))) == ([1], [3])
