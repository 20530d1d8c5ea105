"""What the words of a command start: a launcher of workers, a program for Python. Pure.

Rule: the first program in a command is what the command is taken for; a word that comes after a script or a
shell is an argument of the user's, whatever it looks like.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

_PYTHON: Final = re.compile(r"python[\d.]*t?")
_WITH_VALUE: Final = ("-W", "-X", "--check-hash-based-pycs")
_MODULES: Final = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
SHELLS: Final = ("sh", "bash", "dash", "zsh", "ksh", "fish")


class PythonProgram(NamedTuple):
    """What a Python interpreter is told to run."""

    kind: Literal["script", "module", "text"]
    word: str
    """The script's path, the module's name, or the text behind `-c`."""

    @property
    def title(self) -> str:
        return "the text behind -c" if self.kind == "text" else self.word


def program_name(word: str) -> str:
    return word.rpartition("/")[2]


def is_python(word: str) -> bool:
    return _PYTHON.fullmatch(program_name(word)) is not None


def python_program(argv: Sequence[str]) -> PythonProgram | None:
    """What `python ...` runs; None: it is no such command, or nothing that has a name (`python -`)."""
    if not argv or not is_python(argv[0]):
        return None
    words = iter(argv[1:])
    for word in words:
        if word in ("-m", "-c"):
            named = next(words, "")
            return PythonProgram("module" if word == "-m" else "text", named) if named else None
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return PythonProgram("script", word)
        elif word == "-":
            return None
    return None


def launcher_of(argv: Sequence[str]) -> str:
    """`torchrun`, `accelerate`, `deepspeed`, or empty for anything else."""
    program = program_name(argv[0]) if argv else ""
    if program == "accelerate":
        return program if [*argv[1:2]] == ["launch"] else ""
    if program in ("torchrun", "deepspeed"):
        return program
    named = python_program(argv)
    return _MODULES.get(named.word, "") if named is not None and named.kind == "module" else ""


def own_command(argv: Sequence[str]) -> Sequence[str]:
    """The command without programs that only wrap it, as `env A=1` or `uv run` do: from its launcher, its
    interpreter or its shell on; the whole of it where none of these is in it."""
    for at, word in enumerate(argv):
        if program_name(word) in SHELLS or is_python(word) or launcher_of(argv[at : at + 2]):
            return argv[at:]
        if word.endswith((".py", ".sh")):
            break
    return argv
