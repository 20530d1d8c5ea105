"""The words of a command line as Slurm's programs read them. Pure.

Rule: an option that is not known is refused by name, never left out in silence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from cotenant.controller.domain import JobWord, read_job_words, split_words
from cotenant.controller.present.problem import Problem, suggestion
from cotenant.controller.slurm.sbatch import LONG, SWITCHES

LISTS: Final = ("--jobs", "--user", "--name", "--states", "--state")
"""Given twice, both count."""
INSTEAD: Final = {
    ("squeue", "--start"): "cotenant eta JOB and cotenant explain JOB say it",
    ("squeue", "-i"): "cotenant queue --watch",
    ("squeue", "--iterate"): "cotenant queue --watch",
    ("squeue", "--json"): "cotenant queue -o json",
    ("sacct", "--json"): "cotenant history -o json",
    ("sinfo", "--json"): "cotenant nodes -o json",
}
"""What has another name here."""

_STEPS: Final = r"[0-9]+|batch|extern|interactive"
_SHARED_STEPS: Final = ("", "batch", "extern", "0")
"""Steps are not kept: those that every job has are answered with the job, others with nothing."""


def jobs_and_steps(program: str, texts: Sequence[str]) -> list[JobWord]:
    """The jobs of words such as `12_[1-3]`, `12,14` and `12.batch`. Raises Problem: one is neither job nor
    step."""
    found: list[JobWord] = []
    for each in (each for text in texts for each in split_words(text) or [text]):
        job, dot, step = each.partition(".")
        try:
            if dot and not re.fullmatch(_STEPS, step):
                raise ValueError(f"{each!r} names no job and no step")
            words = read_job_words([job])
        except ValueError as error:
            raise Problem("usage", f"{program}: {error}") from None
        found += words if step in _SHARED_STEPS else ()
    return found


class Flags(NamedTuple):
    """A program's options, each as `-s --long --other`; the first long name is its key."""

    values: tuple[str, ...]
    switches: tuple[str, ...]
    left_out: tuple[str, ...]
    left_out_switches: tuple[str, ...]


class GivenWords(NamedTuple):
    flags: dict[str, str]
    rest: list[str]
    """Words that are no options."""


def read_words(program: str, words: Sequence[str], known: Flags) -> GivenWords:
    """Reads the words of a command line by the flags that a program knows; long names may be cut where they
    stay clear. Raises Problem: an option that is not known."""
    takes = {name: _long(each) for each in (*known.values, *known.left_out) for name in each.split()}
    alone = {
        name: _long(each) for each in (*known.switches, *known.left_out_switches) for name in each.split()
    }
    flags: dict[str, str] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-") or word == "-":
            rest.append(word)
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        name = _whole(name, {**takes, **alone})
        if name in alone:
            flags[alone[name]] = "yes"
            if equals and not word.startswith("--"):  # `-hP` is two of them.
                left.insert(0, f"-{value}")
        elif name in takes:
            if not equals and not left:
                raise Problem("usage", f"{program}: {name} needs a value")
            key, value = takes[name], value if equals else left.pop(0)
            flags[key] = f"{flags[key]},{value}" if key in LISTS and key in flags else value
        else:
            near = INSTEAD.get((program, name)) or suggestion(name, [*takes, *alone])
            raise Problem("usage", f"{program}: the option {name} is not known here", near)
    return GivenWords(flags, rest)


def _whole(name: str, known: Mapping[str, str]) -> str:
    """The long option that this is the beginning of, if it is that of one."""
    found = [each for each in known if each.startswith(name)]
    is_one = name.startswith("--") and len({known[each] for each in found}) == 1
    return found[0] if is_one and name not in known else name


def _long(names: str) -> str:
    return next(name for name in names.split() if name.startswith("--"))


def sbatch_words(words: Sequence[str]) -> tuple[list[str], list[str], str | None]:
    """Options, the script with its arguments, and what `--wrap` says."""
    rest = list(words)
    options: list[str] = []
    wrapped: str | None = None
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--wrap" or word.startswith("--wrap="):
            wrapped = word[7:] if "=" in word else rest.pop(0) if rest else ""
            continue
        if word == "--":
            break
        options.append(word)
        has_value = "=" in word or (not word.startswith("--") and len(word) > 2)
        if not has_value and LONG.get(word, word) not in SWITCHES and word != "--pty" and rest:
            options.append(rest.pop(0))
    return options, rest, wrapped
