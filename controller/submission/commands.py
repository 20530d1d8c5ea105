"""The user's command: whether it can be started.

Rule: it refuses a command that will visibly fail, before the user waits in a queue. On a
cluster the hosts may have what this machine has not, so there the same finding is only a note.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from cotenant.controller.domain import SHELLS, is_python, program_name, python_program
from cotenant.controller.present.problem import nearest, suggestion
from cotenant.controller.submission.options import CONTAINERS, BadSubmission
from cotenant.controller.submission.script_text import no_program, unreadable

HEAD_BYTES: Final = 65_536
"""Of a script, looked at before it is queued."""
CONTAINER_PROGRAMS: Final = ("docker", "podman", "apptainer", "singularity", "enroot", "nerdctl", "ch-run")


def refuse_container(argv: Sequence[str]) -> None:
    """Raises BadSubmission for a command that starts a container."""
    if os.path.basename(argv[0]) in CONTAINER_PROGRAMS:
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
        found = _file(program, workdir) or _unreadable_script(argv, workdir)
        if found is not None:
            return found
    elif shutil.which(program, path=path) is None:
        return _not_on_path(program, workdir, path)
    elif program_name(program) in SHELLS and (found := _unreadable_script(argv, workdir)) is not None:
        return found
    return _missing_script(argv, workdir)


def output_doubt(output: str) -> BadSubmission | None:
    """Why `--output` could not be opened here; a folder with a placeholder in its name is not looked at."""
    folder = os.path.dirname(output)
    if not output or "%" in folder:
        return None
    if not os.path.isdir(folder):
        return BadSubmission(
            f"the folder of --output, {folder}, does not exist", f"mkdir -p {shlex.quote(folder)}"
        )
    if os.path.isdir(output):
        return BadSubmission(f"--output {output} is a folder", f"name a file in it: {output}/%j.out")
    written = output if os.path.exists(output) else folder
    if not os.access(written, os.W_OK):
        return BadSubmission(f"--output {output}: you may not write to {written}", "choose another place")
    return None


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


def _unreadable_script(argv: Sequence[str], workdir: Path) -> BadSubmission | None:
    """Why the kernel could not start this program, or a shell not read the script that it is asked to run
    (Python reads DOS line breaks)."""
    is_shell = program_name(argv[0]) in SHELLS
    name = next((word for word in argv[1:] if not word.startswith("-")), "") if is_shell else argv[0]
    try:
        with (workdir / name).open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:  # Nothing of the kind, or not for reading: nothing to say.
        return None
    if not is_shell and (problem := no_program(head, name)) is not None:
        return problem
    starters = map(program_name, os.fsdecode(head.partition(b"\n")[0]).split())
    return unreadable(head, name) if b"\0" not in head and (is_shell or {*SHELLS} & {*starters}) else None


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
    if not is_python(argv[0]):
        return None
    program = python_program(argv)
    if program is None:
        if {"-m", "-c", "-"} & {*argv}:
            return None
        return BadSubmission(f"{argv[0]} alone has nothing to run", "give it a file: python train.py")
    if program.kind != "script" or (workdir / program.word).exists():
        return None
    message = f"{program.word} does not exist in {workdir}"
    return BadSubmission(message, near_file(program.word, workdir))


def near_file(name: str, workdir: Path) -> str:
    """A hint with the file that was probably meant."""
    try:
        names = sorted(entry.name for entry in os.scandir((workdir / name).parent))
    except OSError:
        return "check the path"
    near = nearest(os.path.basename(name), names, cutoff=0.6)
    return f"did you mean {os.path.join(os.path.dirname(name), near)}?" if near else "check the path"
