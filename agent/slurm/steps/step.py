"""What a step of a script is: the words of an `srun` line, read as `srun` reads them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

NAMES = {
    "-n": "ntasks",
    "-N": "nodes",
    "-w": "nodelist",
    "-x": "exclude",
    "-o": "output",
    "-e": "error",
    "-D": "chdir",
    "-G": "gpus",
    "-c": "cpus-per-task",
    "-l": "label",
    "-J": "job-name",
    "-K": "kill-on-bad-exit",
    "--tasks-per-node": "ntasks-per-node",
    "--gpus-per-node": "gres",
}
"""Short names, and others for the same thing."""
SWITCHES = frozenset(
    (
        "label",
        "unbuffered",
        "exclusive",
        "exact",
        "overlap",
        "oversubscribe",
        "overcommit",
        "quiet",
        "verbose",
        "pty",
        "preserve-env",
        "no-kill",
        "immediate",
        "kill-on-bad-exit",
        "disable-status",
    )
)
SHORT_SWITCHES = "luQvsOEkIK"
VALUES = frozenset((
    "ntasks", "nodes", "nodelist", "exclude", "output", "error", "input", "chdir", "gpus", "gres",
    "cpus-per-task", "job-name", "ntasks-per-node", "gpus-per-task", "export", "time", "mem", "mem-per-cpu",
    "mem-per-gpu", "cpus-per-gpu", "cpu-bind", "gpu-bind", "mem-bind", "mpi", "account", "partition", "qos",
    "distribution", "relative", "constraint", "wait", "comment", "threads-per-core", "hint", "jobid",
    "signal", "ntasks-per-gpu", "ntasks-per-socket", "cores-per-socket", "reservation",
))  # fmt: skip
REFUSED = {
    "multi-prog": "start each program with an srun of its own",
    "container-image": "containers are not supported yet: install the environment on the hosts instead",
}


class BadStep(Exception):
    """The words are no step that can be started here."""


class Step(NamedTuple):
    """A step as it was asked for."""

    flags: dict[str, str]
    """By long name; a switch is `yes`."""
    command: list[str]

    def number(self, name: str) -> int | None:
        text = self.flags.get(name)
        if text is None:
            return None
        match = re.match(r"^([0-9]+)(-[0-9]+)?$", text)
        if match is None:
            raise BadStep(f"--{name}: {text!r} is no number")
        return int(match[1])

    def gpus(self, name: str) -> int | None:
        """`4`, `a100:4`, `gpu:4`, `gpu:a100:4`, `none`."""
        text = self.flags.get(name)
        if text is None:
            return None
        last = text.split(":")[-1]
        if text == "none":
            return 0
        if not (last.isascii() and last.isdigit()):
            if text.startswith("gpu"):
                return 1
            raise BadStep(f"--{name}: {text!r} is no number of GPUs")
        return int(last)


def read(words: Sequence[str]) -> Step:
    """The flags, and the command behind them.

    Raises:
        BadStep: no command, or a flag that changes what would be started.
    """
    flags: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = NAMES.get("--" + name, name)
            takes = name not in SWITCHES
            if takes and not equals and name not in VALUES and name not in REFUSED:
                raise BadStep(f"{word} is not known here: leave it out, or write {word}=VALUE")
        else:
            name, value = NAMES.get(word[:2], word[1]), word[2:]
            equals, takes = value, word[1] not in SHORT_SWITCHES
            if not takes and value and not value.isdigit():  # `-lu` is two of them.
                rest.insert(0, "-" + value)
                value = equals = ""
        if name in REFUSED:
            raise BadStep(f"--{name} is not possible here: {REFUSED[name]}")
        if takes and not equals:
            if not rest:
                raise BadStep(f"{word} needs a value")
            value = rest.pop(0)
        flags[name] = value if takes or equals else "yes"
    command = rest[1:] if rest[:1] == ["--"] else rest
    if not command:
        raise BadStep("no command was given")
    return Step(flags, command)
