"""Verbs print through `frame/` alone: there, and only there, what others wrote becomes visible lines."""

from __future__ import annotations

import ast
from pathlib import Path

CLI = Path(__file__).resolve().parents[2] / "controller" / "cli"
FRAME = CLI / "frame"
DEMO = CLI / "demo"
"""What it prints, it made."""
MAY_PRINT = (CLI / "main.py",)
"""Our own help, and a `Problem`, which is one line."""


def prints(tree: ast.AST) -> list[int]:
    """Lines that write to a standard stream by themselves; to flush one is not to write."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            found.append(node.lineno)
        if isinstance(node, ast.Attribute) and node.attr in ("write", "writelines", "buffer"):
            stream = node.value
            if isinstance(stream, ast.Attribute) and stream.attr in ("stdout", "stderr"):
                found.append(node.lineno)
    return found


def test_only_the_frame_prints() -> None:
    files = [
        path for path in CLI.rglob("*.py") if not {FRAME, DEMO} & {*path.parents} and path not in MAY_PRINT
    ]
    assert len(files) > 20, "these are the verbs"
    wrong = [f"{path}:{line}" for path in files for line in prints(ast.parse(path.read_text()))]
    assert not wrong, "use `screen.say`, `screen.tell`, `show_one`, `show_listing` or `JobOutput`"


def test_what_prints_is_found() -> None:
    assert prints(ast.parse("import sys\nprint(1)\nsys.stdout.write('x')\nsys.stdout.buffer.write(b'')")) == [
        2, 3, 4,
    ]  # fmt: skip
    assert not prints(ast.parse("import sys\nsys.stdout.flush()\nfile.write('x')"))
