"""The user's command: how it is started, and whether it can be.

Rule: it refuses a command that will visibly fail, before the user waits in a queue. On a
cluster the hosts may have what this machine has not, so there the same finding is only a note. A script that
starts its own workers with `torch.multiprocessing.spawn` is seen from its text and started once per host, as
one under torchrun is: started once per GPU, each of its processes would start as many workers again. Where
the call depends on a condition only its author knows, and `submit` names the flag.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.domain import LaunchMode
from cotenant.controller.present.problem import nearest, suggestion
from cotenant.controller.submission.options import CONTAINERS, BadSubmission

CONTAINER_PROGRAMS: Final = ("docker", "podman", "apptainer", "singularity", "enroot", "nerdctl", "ch-run")
HOST_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_PYTHON: Final = re.compile(r"(.*/)?python(3(\.[0-9]+)?)?")
_PYTHON_WITH_VALUE: Final = ("-W", "-X")

SPAWN_MODULE = "torch.multiprocessing"
SPAWN_CALLS = ("spawn", "start_processes")
SCRIPT_BYTES_MAX = 1 << 20
_ANY_PYTHON = re.compile(r"(.*/)?python[0-9.]*")


def launch_mode(argv: Sequence[str]) -> LaunchMode:
    """`host` for commands that start the ranks themselves (torchrun, accelerate, deepspeed)."""
    program = os.path.basename(argv[0])
    if program in ("torchrun", "deepspeed") or (program == "accelerate" and "launch" in argv[1:2]):
        return "host"
    if _PYTHON.fullmatch(argv[0]):
        for flag, module in itertools.pairwise(argv[1:]):
            if flag == "-m":
                return "host" if module in HOST_MODULES else "worker"
            if not flag.startswith("-"):
                break
    return "worker"


def refuse_container(argv: Sequence[str]) -> None:
    """Raises BadSubmission for a command that starts a container."""
    if os.path.basename(argv[0]) in CONTAINER_PROGRAMS or argv[:2] == ["srun", "--container-image"]:
        raise BadSubmission(f"{argv[0]}: {CONTAINERS}")


def workdir_doubt(workdir: Path) -> BadSubmission | None:
    """Why the working directory cannot be used, as seen from this machine."""
    if workdir.is_dir():
        return None
    return BadSubmission(f"working directory {workdir} does not exist", "give another with --workdir DIR")


def doubt_of(argv: Sequence[str], workdir: Path, path: str) -> BadSubmission | None:
    """Why this command would fail on this machine, or None. `path` is the job's PATH."""
    if doubt := workdir_doubt(workdir):
        return doubt
    program = argv[0]
    if "/" in program:
        found = _file(program, workdir)
        if found is not None:
            return found
    elif shutil.which(program, path=path) is None:
        return _not_on_path(program, workdir, path)
    return _missing_script(argv, workdir)


def output_doubt(output: str) -> BadSubmission | None:
    """Why `--output` could not be opened here; a folder with a placeholder in its name is not looked at."""
    folder = os.path.dirname(output)
    if not output or "%" in folder or os.path.isdir(folder):
        return None
    return BadSubmission(
        f"the folder of --output, {folder}, does not exist", f"mkdir -p {shlex.quote(folder)}"
    )


def _file(program: str, workdir: Path) -> BadSubmission | None:
    file = workdir / program
    if file.is_dir():
        return BadSubmission(f"{program} is a folder, not a command")
    if not file.exists():
        return BadSubmission(f"{program} does not exist in {workdir}", near_file(program, workdir))
    if not os.access(file, os.X_OK):
        with file.open("rb") as opened:
            runner = "python" if file.suffix == ".py" else "bash"
            hint = f"chmod +x {program}" if opened.read(2) == b"#!" else f"start it with {runner} {program}"
        return BadSubmission(f"{program} is not executable", hint)
    interpreter = _interpreter(file)
    if interpreter and not os.path.exists(interpreter):
        message = f"the first line of {program} names {interpreter}, which does not exist"
        return BadSubmission(message, "correct it, or start the script with an interpreter")
    return None


def _interpreter(file: Path) -> str:
    """The absolute path in a script's first line; empty for anything else."""
    try:
        with file.open("rb") as opened:
            first = opened.readline(256)
    except OSError:  # Executable, but not for reading: nothing to say.
        return ""
    words = first[2:].split() if first.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words and words[0].startswith(b"/") else ""


def _not_on_path(program: str, workdir: Path, path: str) -> BadSubmission:
    message = f"there is no command {program!r} on your PATH"
    if (workdir / program).is_file():
        runner = "python " if program.endswith(".py") else "./"
        return BadSubmission(message, f"did you mean {runner}{program}?")
    near = suggestion(program, _programs(path), cutoff=0.75)
    return BadSubmission(message, near or "is its environment activated?")


def _programs(path: str) -> list[str]:
    names: set[str] = set()
    for folder in path.split(os.pathsep)[:64]:
        with suppress(OSError):  # Not there, no folder, not to be read.
            names.update(entry.name for entry in os.scandir(folder))
    return sorted(names)


def _missing_script(argv: Sequence[str], workdir: Path) -> BadSubmission | None:
    """The problem of a command such as `python trian.py`: the file that Python is asked to run does not
    exist."""
    if not _PYTHON.fullmatch(argv[0]):
        return None
    words = iter(argv[1:])
    for word in words:
        if word in ("-m", "-c", "-"):
            return None
        if word in _PYTHON_WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            if (workdir / word).exists():
                return None
            return BadSubmission(f"{word} does not exist in {workdir}", near_file(word, workdir))
    return BadSubmission(f"{argv[0]} alone has nothing to run", "give it a file: python train.py")


def near_file(name: str, workdir: Path) -> str:
    """A hint with the file that was probably meant."""
    try:
        names = sorted(entry.name for entry in os.scandir((workdir / name).parent))
    except OSError:
        return "check the path"
    near = nearest(os.path.basename(name), names, cutoff=0.6)
    return f"did you mean {os.path.join(os.path.dirname(name), near)}?" if near else "check the path"


class Spawning(msgspec.Struct, frozen=True, kw_only=True):
    line: int
    certain: bool
    """The call depends on no condition but `__name__ == "__main__"`."""

    def note(self, script: str) -> str:
        what = f"{script}, line {self.line}: it starts its workers itself ({SPAWN_MODULE})"
        if self.certain:
            return f"{what}, so it is started once per host and can use one only (--launch worker: per GPU)"
        return f"{what} under a condition: give --launch host where it does"


def spawning(argv: Sequence[str], workdir: Path) -> tuple[str, Spawning] | None:
    """Which script of a Python command does so, and where; None: none, or it cannot be read from here."""
    script = next((word for word in argv if word.endswith(".py")), "")
    before = argv[: argv.index(script)] if script else ()
    if not script or {"-m", "-c"} & {*before} or (before and not _ANY_PYTHON.fullmatch(before[0])):
        return None
    try:
        with (workdir / script).open("rb") as file:
            tree = ast.parse(file.read(SCRIPT_BYTES_MAX))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    found = sorted(_calls(tree, _names(tree), certain=True), key=lambda each: (not each.certain, each.line))
    return (script, found[0]) if found else None


def _names(tree: ast.AST) -> set[str]:
    """Names under which the script calls the module's functions."""
    found = {f"{SPAWN_MODULE}.{call}" for call in SPAWN_CALLS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases = [alias.asname for alias in node.names if alias.name == SPAWN_MODULE and alias.asname]
            found |= {f"{alias}.{call}" for alias in aliases for call in SPAWN_CALLS}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name
                if f"{node.module}.{alias.name}" == SPAWN_MODULE:
                    found |= {f"{name}.{call}" for call in SPAWN_CALLS}
                elif node.module == SPAWN_MODULE and alias.name in SPAWN_CALLS:
                    found.add(name)
    return found


def _calls(node: ast.AST, names: set[str], *, certain: bool) -> Iterator[Spawning]:
    if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
        yield Spawning(line=node.lineno, certain=certain)
    is_choice = isinstance(node, (ast.If, ast.IfExp, ast.Try, ast.Match))
    if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
        is_choice = False
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, names, certain=certain and not is_choice)
