"""The folder that stands before a job's PYTHONPATH.

Rule: on PYTHONPATH are our two job-side packages and nothing else; beside them, in a folder of its own that
is on nobody's path, is what a fork server runs. A job never sees the rest of cotenant through us, nor the
place where it is installed. The folder is named after its content and never changes: an upgrade makes a new
one, and running jobs keep theirs. It is compiled for the agent's Python: a job may not write there, and would
compile all of it at each start.
"""

from __future__ import annotations

import compileall
import hashlib
import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

PACKAGES: Final = {
    "checkpoint": "cotenant/checkpoint",
    "gradaccum": "cotenant/gradaccum",
    "agent.warm.forkserver": "warm/cotenant_forkserver",
    "agent.slurm.steps": "steps/cotenant_steps",
}
"""Where each goes."""
FACE: Final = "cotenant/__init__.py"
"""Copied as well, or an installed one would hide the folder: it has both on its path, ours first."""
PROGRAMS: Final = {
    "srun": """#!/bin/sh
# Starts the tasks of a step: cotenant's, inside a job that came with #SBATCH lines.
here=${0%/*}/..
for python in PYTHON python3 /usr/bin/python3; do
    command -v "$python" >/dev/null 2>&1 || continue
    exec "$python" -E -s -c 'import sys
sys.path[0] = sys.argv.pop(1)
from cotenant_steps import srun as program
sys.exit(program.main(sys.argv[1:]))' "$here" "$@"
done
echo "srun: there is no python3 here" >&2
exit 127
""",
    "module": """#!/bin/sh
# Where there are environment modules, a shell function of this name comes before this program.
echo "note: module $*: this host has no environment modules; left out" >&2
""",
}
"""What a script with #SBATCH lines finds first on its PATH; PYTHON is the agent's."""
PROGRAMS_FOLDER: Final = "steps/bin"
_SUFFIXES: Final = (".py", ".typed")


class NoJobSide(Exception):
    """The packages are not installed beside the agent."""


def prepare_jobside(base: Path, installed: Callable[[str], Path] | None = None) -> Path:
    """The folder, made if needed, readable for every user. `installed` finds a package; by default ours.

    Raises:
        NoJobSide: a package is missing.
        OSError: the folder cannot be written.
    """
    files = {name: _files((installed or _find_installed)(name)) for name in PACKAGES}
    face = _face()
    programs = _programs()
    target = base / _digest({**files, PROGRAMS_FOLDER: programs, FACE: {Path(): face}})
    if target.is_dir():
        return target
    base.mkdir(parents=True, exist_ok=True)
    base.chmod(0o755)
    fresh = base / f".fresh-{os.getpid()}"
    shutil.rmtree(fresh, ignore_errors=True)
    for name, contents in files.items():
        for relative, data in contents.items():
            path = fresh / PACKAGES[name] / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o644)
    (fresh / FACE).write_bytes(face)
    (fresh / FACE).chmod(0o644)
    (fresh / PROGRAMS_FOLDER).mkdir(parents=True)
    for relative, data in programs.items():
        path = fresh / PROGRAMS_FOLDER / relative
        path.write_bytes(data)
        path.chmod(0o755)
    compileall.compile_dir(fresh, quiet=2, stripdir=str(fresh), prependdir=str(target))
    for path in (fresh, *fresh.rglob("*")):
        if path.is_dir() or path.suffix == ".pyc":
            path.chmod(0o755 if path.is_dir() else 0o644)
    os.rename(fresh, target)
    return target


def remove_other_jobsides(base: Path, in_use: set[Path]) -> None:
    """Remove the folders of versions that no attempt uses any more."""
    for folder in base.iterdir():
        if folder not in in_use:
            shutil.rmtree(folder, ignore_errors=True)


def _find_installed(name: str) -> Path:
    spec = importlib.util.find_spec(f"cotenant.{name}")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise NoJobSide(f"cotenant.{name} is not installed here: install cotenant again")
    return Path(places[0])


def _face() -> bytes:
    """A checkout that is found by its folder's name alone has it where it stands in the sources."""
    spec = importlib.util.find_spec("cotenant")
    beside = _find_installed("controller") / "python" / "face" / "__init__.py"
    return Path((spec.origin if spec is not None else None) or beside).read_bytes()


def _files(folder: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix in _SUFFIXES and path.is_file()
    }


def _programs() -> dict[Path, bytes]:
    texts = {
        **PROGRAMS,
        "scontrol": PROGRAMS["srun"]
        .replace("import srun as", "import scontrol as")
        .replace("srun:", "scontrol:"),
        "ml": PROGRAMS["module"],
    }
    python = shlex.quote(sys.executable)
    return {Path(name): text.replace("PYTHON", python).encode() for name, text in texts.items()}


def _digest(files: dict[str, dict[Path, bytes]]) -> str:
    digest = hashlib.sha256()
    for name, contents in files.items():
        for relative, data in contents.items():
            digest.update(f"{name}/{relative}\0{len(data)}\0".encode())
            digest.update(data)
    return digest.hexdigest()[:16]
