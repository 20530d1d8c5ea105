"""Why an attempt starts cold: one row per reason, in words for `show`.

Rule: a start is warm only if no row applies; every row has a test. Some are seen before a server is asked
(`objection`), some by the server when it is ready to serve (`forkserver/safety.py`), some when an attempt
comes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

import msgspec

SEEN_BEFORE: Final = {
    "off": "warm starts are switched off on this host (launch.warm)",
    "asked": "it was submitted with --cold, or has a terminal",
    "container": "containers start cold: each has an interpreter of its own",
    "command": "only `python SCRIPT`, `python -m MODULE` and `torchrun` start warm",
    "options": "the interpreter has other options than -u",
    "preloaded-library": "LD_PRELOAD or LD_AUDIT changes every process",
    "relative-path": "PYTHONPATH has entries that depend on the working directory",
    "interpreter": "its interpreter was not found",
    "mps": "workers of its launcher are clients of an MPS daemon: we must end each of these ourselves",
    "ranks": "it has more ranks on this host than one request holds",
}
"""By the agent, from the order alone."""
SEEN_BY_SERVER: Final = {
    "wrapper": "the interpreter is started by a program in its place",
    "customizing": "the environment has a sitecustomize or usercustomize of its own",
    "pth": "a .pth file of the environment runs code that we do not know",
    "import-ends": "an import wanted to end the process",
    "user-code": "a package imports code that is not of the environment",
    "late-variable": "an import reads a variable that differs from rank to rank",
    "environment": "an import changes a variable",
    "handler": "an import installs a signal handler",
    "cuda": "an import opens a GPU",
    "dry-fork": "a fork of the server did not end",
    "threads": "an import leaves threads behind",
}
"""Once its packages are imported: it ends, and none of its kind is started again before the agent is."""
SEEN_AT_START: Final = {
    "first": "no server for its environment yet: one starts once this has made a step",
    "coming": "the server for its environment is not ready yet",
    "memory": "servers have all of the memory that they may use (launch.warm_memory_percent)",
    "stale": "the environment has changed since the server imported it",
    "shadowed": "its folder has a module of the name of a package that is imported already",
    "rank": "a rank could not be made from the server",
    "silent": "the server or a rank did not answer in time",
    "gone": "the server has ended",
}
REFUSALS: Final[Mapping[str, str]] = {**SEEN_BEFORE, **SEEN_BY_SERVER, **SEEN_AT_START}

DETAIL_CHARS_MAX: Final = 160


def sentence(code: str, detail: str = "") -> str:
    """The refusal as a sentence for a person."""
    text = REFUSALS.get(code, code)
    return f"{text}: {detail[:DETAIL_CHARS_MAX]}" if detail else text


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A command that is `python SCRIPT ...` or `python -m MODULE ...`."""

    python: str
    """As it was written."""
    options: tuple[str, ...] = ()
    script: str = ""
    module: str = ""
    words: tuple[str, ...] = ()
    """After the script, or the module."""
    is_on_path: bool = False
    """The script is looked for in PATH, and must be one of this interpreter's."""


class WarmRefused(Exception):
    """A row of the table."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(sentence(code, detail))
        self.code, self.detail = code, detail


_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?")
_PLAIN: Final = frozenset(("-u",))


def program_of(argv: tuple[str, ...]) -> Program:
    """Reads which program a command runs. Raises WarmRefused."""
    if argv and argv[0] == "torchrun":  # A script of the environment; the rank looks whose it is.
        return Program(python="python", script=argv[0], words=argv[1:], is_on_path=True)
    if not argv or not _PYTHON.fullmatch(PurePath(argv[0]).name):
        raise WarmRefused("command")
    at = 1
    while at < len(argv) and argv[at] in _PLAIN:
        at += 1
    options, rest = argv[1:at], argv[at:]
    if not rest or rest[0] in ("-", "-c"):
        raise WarmRefused("command")
    if rest[0] == "-m" and len(rest) > 1:
        return Program(python=argv[0], options=options, module=rest[1], words=rest[2:])
    if rest[0].startswith("-"):
        raise WarmRefused("options", rest[0])
    return Program(python=argv[0], options=options, script=rest[0], words=rest[1:])


def check_environment(env: Mapping[str, str]) -> None:
    """Checks that the environment lets a job start warm. Raises WarmRefused."""
    for name in ("LD_PRELOAD", "LD_AUDIT"):
        if env.get(name):
            raise WarmRefused("preloaded-library", name)
    entries = env["PYTHONPATH"].split(":") if env.get("PYTHONPATH") else []
    if any(not entry.startswith("/") for entry in entries):
        raise WarmRefused("relative-path")
