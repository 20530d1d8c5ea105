"""How often a command is started: once, as it was typed, unless something says otherwise.

Rule, the first row that applies (`--launch` stands above all of them):

| the command | is started | is told its rank |
| --- | --- | --- |
| is a launcher (torchrun, accelerate launch, deepspeed), or its shell script has one | once per host | no |
| is a script that starts its workers itself | once, on one host | no |
| is a script that makes a process group | once per device | on one device where it would end without |
| is a script that uses Accelerate, Lightning or a Session | once per device | not on one device |
| is anything else | once | no |

A script's text is a hint (`script_signs.py`). What stands under a condition counts only where the script asks
for its rank, or the condition was typed as an option.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller import domain
from cotenant.controller.submission import script_signs

PROCESS_ONLY: Final = "--launch worker starts one per GPU"
WORKERS_ONLY: Final = "--launch process starts it once"
_INSTALLED: Final = ("site-packages", "dist-packages")


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """How a command is started, and what that was concluded from."""

    mode: domain.LaunchMode
    ranked_alone: bool = True
    """For `Launch.ranked_alone`."""
    why: str = ""
    """For the person who submits it; empty: nobody has to be told."""

    @property
    def has_one_host(self) -> bool:
        """It is started once and no more: the ranks that it makes know of no other host."""
        return self.mode == "process" or (self.mode == "host" and bool(self.why))

    def note(self, gpus: str) -> str:
        """What is said of it where the job has several GPUs; empty: nothing."""
        if not self.why:
            return ""
        if self.mode == "worker":
            return f"{gpus} processes, one per GPU: {self.why} ({WORKERS_ONLY})"
        return f"one process that sees {gpus} GPUs of one host: {self.why} ({PROCESS_ONLY})"


def choose_start(name: str, signs: script_signs.Signs | None) -> Start:
    """The start of a script of that name. `signs`: what its text shows; None: it cannot be read here."""
    if signs is None:
        return Start(mode="process", why=f"{name} cannot be read here")
    spawns, group, library = signs.sign_of("spawns"), signs.sign_of("group"), signs.sign_of("library")
    if spawns is not None:
        return Start(mode="host", why=spawns.text)
    if group is not None and (group.level > script_signs.CHOICE or signs.asks_first):
        alone = group.level == script_signs.SURE or (
            group.level == script_signs.OPEN and not signs.asks_first
        )
        return Start(mode="worker", ranked_alone=alone, why=group.text)
    if library is not None and library.level > script_signs.CHOICE:
        return Start(mode="worker", ranked_alone=False, why=library.text)
    if seen := group or library:
        return Start(mode="process", why=f"{seen.text} under a condition")
    if ranks := signs.sign_of("own-ranks"):
        return Start(mode="host", why=f"{ranks.text} with ranks of its own")
    far = "" if signs.is_whole else ", as far as it was read"
    return Start(mode="process", why=f"{name} makes no process group{far}")


def start_of(argv: Sequence[str], workdir: Path, python_path: str = "") -> Start:
    """How a command is to be started. `python_path`: the job's PYTHONPATH."""
    command = domain.own_command(argv)
    program = domain.python_program(command)
    if program is None and _is_file_for(command[0], workdir, "python"):
        program = domain.PythonProgram("script", command[0])
    if program is not None and not domain.launcher_of(command):
        script = _script_of(program, workdir, python_path.split(":"), command)
        return choose_start(program.title, None if script is None else script_signs.read_signs(script))
    if domain.launcher_of(command) or launchers_in(_shell_text(command, workdir)):
        return Start(mode="host")
    return Start(mode="process", why=f"what {command[0]} runs is not looked into")


def start_of_function(name: str, file: Path | None, text: str, folders: Sequence[str]) -> Start:
    """How a function is to be started that is defined in this file, or else in this text."""
    known = text if file is None else script_signs.read_text(file)
    if not known:
        return choose_start(f"{name}()", None)
    script = script_signs.ScriptText(
        name=name if file is None else file.name,
        text=known,
        file=file,
        folders=(*((file.parent,) if file is not None else ()), *_own_folders(folders)),
        function=name,
    )
    return choose_start(f"{name}()", script_signs.read_signs(script))


def launchers_in(shell_text: str) -> set[str]:
    """The launchers that lines of a shell script start."""
    lines = (line.partition("#")[0] for line in shell_text.splitlines())
    commands = (part.split() for line in lines for part in re.split(r"[;&|()]+", line))
    return {domain.launcher_of(domain.own_command(words)) for words in commands if words} - {""}


# --- Texts ------------------------------------------------------------------------------------------


def _script_of(
    program: domain.PythonProgram, workdir: Path, python_path: Sequence[str], words: Sequence[str]
) -> script_signs.ScriptText | None:
    """The Python text that a command runs, as far as it can be read here."""
    folders, file, text = _own_folders(python_path), None, None
    if program.kind == "text":
        text = program.word
    else:
        is_script = program.kind == "script"
        file = workdir / program.word if is_script else _module_file(program.word, (workdir, *folders))
        text = script_signs.read_text(file) if file is not None else None
    if text is None:
        return None
    beside = file.parent if file is not None and program.kind == "script" else workdir
    typed = (script_signs.option_name(word) for word in words if word.startswith("--") or "=" in word)
    return script_signs.ScriptText(
        name=program.title,
        text=text,
        file=file,
        folders=(beside, *folders),
        options=frozenset(filter(None, typed)),
    )


def _is_file_for(word: str, workdir: Path, interpreter: str) -> bool:
    """Whether a command is a file whose first line names an interpreter."""
    text = script_signs.read_text(workdir / word) if "/" in word or word.endswith((".py", ".sh")) else None
    return text is not None and text.startswith("#!") and interpreter in text.partition("\n")[0]


def _shell_text(command: Sequence[str], workdir: Path) -> str:
    """What a shell is given to run, as far as it can be read here."""
    if domain.program_name(command[0]) not in domain.SHELLS:
        return (
            (script_signs.read_text(workdir / command[0]) or "")
            if _is_file_for(command[0], workdir, "sh")
            else ""
        )
    words = iter(command[1:])
    for word in words:
        if word.startswith("-") and not word.startswith("--") and "c" in word:
            return next(words, "")
        if not word.startswith("-"):
            return script_signs.read_text(workdir / word) or ""
    return ""


def _module_file(name: str, folders: Sequence[Path]) -> Path | None:
    for folder in folders:
        path = folder.joinpath(*name.split("."))
        for file in (path / "__main__.py", path.with_name(f"{path.name}.py")):
            if os.path.isfile(file):
                return file
    return None


def _own_folders(entries: Sequence[str]) -> tuple[Path, ...]:
    """Folders with modules of the user's own."""
    paths = (Path(each) for each in entries if each.startswith("/"))
    return tuple(path for path in paths if not {*_INSTALLED} & {*path.parts})
