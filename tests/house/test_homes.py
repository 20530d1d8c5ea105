"""What is easy to get nearly right has one home: files that are whole or not there, locks, who a process is.

Rule: the calls of the table are made in their home. Any other file that makes one says why it stands alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("agent", "checkpoint", "controller", "gradaccum", "mps", "profiler")
ALONE = "stands alone by design"
HOMES: dict[str, dict[str, str]] = {
    "os.replace os.rename path.replace os.fsync": {
        "controller/system/files.py": "home",
        "checkpoint/disk/durable.py": f"{ALONE}: it runs in the user's process",
        "checkpoint/zerocode/proof.py": f"{ALONE}: it runs in the user's process",
        "checkpoint/disk/save.py": "renames folders and a link, not files",
        "controller/store/sqlite.py": "the new file is sqlite's, which writes and flushes it",
        "controller/python/folders.py": "steps from an open folder, also in the user's process",
        "gradaccum/startup/sitecustomize.py": f"{ALONE}: it runs in the user's process, before anything else",
        "agent/daemon/spool.py": "appends to a file that is there",
        "agent/host/jobside.py": "renames a folder",
        "agent/daemon/trees.py": "renames a folder, and flushes a file to look at its disk",
        "agent/host/locks.py": "moves away what another account put in a folder's place",
        "agent/ipc/files.py": "gives a damaged file another name",
        "mps/ownership.py": f"{ALONE}, and writes into the file that it has locked",
    },
    "fcntl.flock": {
        "controller/system/locks.py": "home",
        "mps/ownership.py": ALONE,
        "mps/channel.py": ALONE,
        "agent/slurm/steps/srun.py": "is a program of the job's, and nothing of ours is there",
    },
    "os.pidfd_open": {
        "agent/host/process_identity.py": "home",
        "agent/daemon/supervisors.py": "of its own child, whose pid is nobody else's before it is waited for",
        "agent/supervisor/processes/reaper.py": "asks whose the process is, not which one it is",
        "agent/warm/forkserver/nanny.py": "of its own children, and nothing of ours is there",
        "controller/cli/setup/up.py": "of its own children",
        "mps/process.py": f"{ALONE}: tools of users' own use it without an agent",
    },
}

WORDS = ("replace", *(call.rpartition(".")[2] for line in HOMES for call in line.split()))
"""Without any of them a file need not be parsed."""


@cache
def calls(source: str) -> frozenset[str]:
    return frozenset(found_in(source) if any(word in source for word in WORDS) else ())


def found_in(source: str) -> Iterator[str]:
    """Calls of the table. Any object's `replace` with one argument that is positional is a path's."""
    wanted = {call for line in HOMES for call in line.split()}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if (call := dotted(node.func)) in wanted:
                if not any(keyword.arg == "src_dir_fd" for keyword in node.keywords):
                    yield call
            elif node.func.attr == "replace" and len(node.args) == 1 and not node.keywords:
                yield "path.replace"


def dotted(node: ast.expr) -> str:
    """`os.replace`; empty where it is the method of something else than a name."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


@pytest.mark.parametrize("line", HOMES)
def test_each_has_its_home(line: str) -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if set(line.split()) & calls(path.read_text())
    }
    assert found - set(HOMES[line]) == set(), "use its home, or say here why not"
    assert set(HOMES[line]) - found == set(), "nothing needs these reasons any more"


def test_calls_are_seen() -> None:
    source = "os.fsync(f)\nbeside.replace(path)\nfcntl.flock(f, 1)\ntext.replace('a', 'b')\nos.pidfd_open(1)"
    assert list(found_in(source)) == ["os.fsync", "path.replace", "fcntl.flock", "os.pidfd_open"]
    assert list(found_in("os.rename(a, b, src_dir_fd=f)")) == [], "a step from an open folder"
