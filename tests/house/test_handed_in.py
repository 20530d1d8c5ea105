"""What a test replaces is handed in, and what it waits for has a limit that knows the machine.

Rule: nothing of ours is patched: a constructor or function takes the path, clock, limit or maker, with a
default at the edge only. Modules of others (the kernel's, torch's, a library that is not installed) may be
patched where they are the edge, under their own name, so that it can be seen here. And no time limit is a
bare number: `within_s` of `tests/building/limits.py` stretches it on a slow machine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
THEIRS = frozenset((
    "Path", "builtins", "importlib", "os", "psutil", "sys", "tempfile", "tomllib", "torch", "DataLoader",
    "botorch",
))  # fmt: skip
"""What stands first in the name of whatever is patched."""
LIMITS = frozenset(("timeout",))


def files(*words: str) -> list[tuple[str, ast.Module]]:
    """Tests that have one of these words, by name."""
    texts = ((path, path.read_text()) for path in sorted((ROOT / "tests").rglob("*.py")))
    return [
        (str(path.relative_to(ROOT)), ast.parse(text))
        for path, text in texts
        if any(word in text for word in words)
    ]


def patched(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, first name) of what `setattr` of a patch replaces."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "setattr"
        ):
            yield node.lineno, first_name(node.args[0])


def first_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Constant):
        return str(node.value).partition(".")[0]
    return node.id if isinstance(node, ast.Name) else ""


def bare_limits(tree: ast.Module) -> Iterator[int]:
    """Lines where processes, threads or sockets are waited for with a number that is no `within_s`. What is
    called `settimeout`, or has a keyword `timeout`, waits; other names may be of clocks of ours."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given = [word.value for word in node.keywords if word.arg in LIMITS]
            given += node.args if attribute(node.func) == "settimeout" else []
            if any(map(is_time, given)):
                yield node.lineno
        elif isinstance(node, ast.BinOp) and is_now(node.left) and is_time(node.right):
            yield node.lineno


def attribute(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""


def is_time(node: ast.expr) -> bool:
    """Anything below a second is part of a test, not its limit."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value >= 1


def is_now(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and attribute(node.func) == "monotonic"


def test_nothing_of_ours_is_patched() -> None:
    found = {
        f"{name}:{line}: {what}"
        for name, tree in files("setattr")
        for line, what in patched(tree)
        if what not in THEIRS
    }
    assert found == set(), "hand it in, or say whose it is"


def test_limits_know_the_machine() -> None:
    found = {f"{name}:{line}" for name, tree in files("timeout", "monotonic") for line in bare_limits(tree)}
    assert found == set(), "within_s of tests/building/limits.py"


def test_patches_and_bare_limits_are_seen() -> None:
    source = (
        "patch.setattr(ours, 'X', 1)\npatch.setattr('cotenant.a.X', 1)\npatch.setattr(torch.cuda, 'x', 1)\n"
        "run(timeout=60)\npeer.settimeout(3.0)\nends_s = time.monotonic() + 30\n"
        "run(timeout=within_s(60))\npeer.settimeout(0.1)"
    )
    tree = ast.parse(source)
    assert [name for _, name in patched(tree)] == ["ours", "cotenant", "torch"]
    assert sorted(bare_limits(tree)) == [4, 5, 6]
