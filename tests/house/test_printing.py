"""Verbs print through `frame/` alone: there, and only there, what others wrote becomes visible lines. What
stays, or runs inside a user's script, says what it has to say where that cannot fail."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLI = ROOT / "controller" / "cli"
FRAME = CLI / "frame"
DEMO = CLI / "demo"
"""What it prints, it made."""
STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")
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
            if isinstance(stream, ast.Attribute) and stream.attr in STREAMS:
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


STAYS = (
    "agent", "checkpoint", "gradaccum", "controller/api", "controller/domain", "controller/engine",
    "controller/executors", "controller/history", "controller/notices", "controller/store",
    "controller/system", "controller/workers", "controller/__main__.py", "controller/engine_settings.py",
    "controller/loop.py", "controller/redirecting.py", "controller/router.py", "controller/server.py",
    "controller/standby.py",
)  # fmt: skip
"""Programs that must outlive a full disk under their logs, and what runs inside users' scripts."""
ANSWERS = {
    "controller/system/diagnostics.py": "writes for all others",
    "controller/__main__.py": "`--replay` prints what it has compared, and ends",
    "controller/system/notice_sender.py": "an answer to its parent",
    "controller/system/metrics/table.py": "prints its table for the pages",
    "agent/slurm/steps/scontrol.py": "answers a script, and ends",
    "agent/slurm/steps/srun.py": "answers a script, and ends",
}


def says_by_itself(tree: ast.AST) -> list[int]:
    """Lines that write for people in a way that can fail."""
    found = prints(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "traceback" and node.attr.startswith("print"):
                found.append(node.lineno)
            if node.value.id == "logging" and node.attr == "StreamHandler":
                found.append(node.lineno)
    return found


def test_what_must_not_end_for_a_full_disk_says_all_in_one_place() -> None:
    files = [
        path
        for each in STAYS
        for path in ([ROOT / each] if each.endswith(".py") else (ROOT / each).rglob("*.py"))
    ]
    assert len(files) > 300
    wrong = [
        f"{path}:{line}"
        for path in files
        if str(path.relative_to(ROOT)) not in ANSWERS
        for line in says_by_itself(ast.parse(path.read_text()))
    ]
    assert not wrong, "use `say` of `controller.system.diagnostics`; in users' scripts `checkpoint.guard`"
