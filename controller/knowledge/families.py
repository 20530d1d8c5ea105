"""Which jobs are alike, from the narrowest likeness to the widest, and what runs alike are called.

Same command, else the same array or sweep, else the same words with other numbers, else the same program, all
of one user. A number is a word, or the value of `key=value`, that reads as a number, with or without a unit
(`1e-3`, `64`, `10M`, `5%`, `inf`). The program is the script or module behind an interpreter or a launcher.

Rule: a number may set how much memory a program needs. Where memory counts (`plain_words` with
`keeps_sizes`), the number of an option whose name speaks of a size makes another kind, and so does an integer
whose option has no name (`-b 64`, or a bare word).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from cotenant.controller.domain import JobId, JobSpec, array_of
from cotenant.controller.knowledge.pairs import CACHED_CHARACTERS_MAX, signature
from cotenant.controller.knowledge.profiles import SHELLS, StoredProfile, key_of, kind_words
from cotenant.controller.performance import Profile


class Family(NamedTuple):
    """Keys of what is learned of a job and its like, the narrowest first. An empty key has no runs."""

    command: str
    sweep: str = ""
    """Tasks of the same array or grid with the same words."""
    numbers: str = ""
    """The same words with other numbers, on as many devices of the same type."""
    program: str = ""


RUNS_ALIKE: Final = Family(
    command="earlier run{s} of this command",
    sweep="other{s} of this sweep",
    numbers="run{s} of this program with other numbers",
    program="run{s} of this program",
)


def runs_in_words(level: int, runs: int) -> str:
    """The source of an estimate that rests on so many runs: `as 12 others of this sweep`."""
    return f"as {runs} {RUNS_ALIKE[level].format(s='' if runs == 1 else 's')}"


def family_of(spec: JobSpec) -> Family:
    """The family of a job; without a command only jobs that say as little are alike."""
    launch = spec.launch
    part = f":{spec.gpu_fraction}" if spec.gpu_fraction < 1.0 else ""  # It takes longer there.
    command = f"{spec.user}:{signature(spec)}{part}"
    if not launch.argv:
        return Family(command)
    is_short = sum(map(len, launch.argv)) <= CACHED_CHARACTERS_MAX
    numbers, program = (_keys if is_short else _keys.__wrapped__)(launch.argv, launch.workdir)
    numbers = f"{spec.user}#{numbers}:{spec.batch_size}:{spec.gpus_min}:{spec.gpu_type}{part}"
    array = array_of(spec.job_id)
    sweep = f"{array}_{numbers}" if array != spec.job_id else ""
    return Family(command, sweep, numbers, f"{spec.user}@{program}{part}")


@lru_cache(maxsize=4096)
def _keys(argv: tuple[str, ...], workdir: str) -> tuple[str, str]:
    import hashlib

    words, program = "\0".join(plain_words(argv)), program_of(argv)
    if program != argv[0].rpartition("/")[2] and not program.startswith("/"):
        program = f"{workdir}\0{program}"  # Elsewhere the same path is another script.
    found = (hashlib.sha256(text.encode(errors="surrogateescape")) for text in (words, program))
    one, other = (each.hexdigest()[:16] for each in found)
    return one, other


def like_key(spec: JobSpec, hosts: int, device_type: str) -> str:
    """The key of jobs that take equally much memory, as far as their numbers tell; else as `key_of`."""
    return key_of(spec, hosts, device_type, plain_words(spec.launch.argv, keeps_sizes=True))


MEMORY_MARGIN: Final = 1.1
"""Over the largest memory of jobs with other numbers: that of one kind differs by 2 to 3 % between runs."""
OUTGROWN_RATIO: Final = 1.5
"""Where one needed more than was planned for it, so much more is planned for the next."""


def profile_of_like(job_id: JobId, alike: Sequence[StoredProfile], outgrown_mib: int = 0) -> Profile | None:
    """The profile of a job with other numbers than `alike`: that of the one that was used last, with the
    largest memory of all, and a margin. `outgrown_mib`: what was planned for a job of which that was not
    enough. None: no memory is known."""
    sizes = [each.memory_mib or 0.0 for each in alike]
    if not sizes or not sizes[-1]:
        return None
    needs_mib = max(MEMORY_MARGIN * max(sizes), OUTGROWN_RATIO * outgrown_mib)
    is_sweep = array_of(job_id) != job_id and {array_of(each.job_id) for each in alike} == {array_of(job_id)}
    source = runs_in_words(1 if is_sweep else 2, len(alike))
    return alike[-1].profile.scale_memory(needs_mib / sizes[-1], len(alike), source)


_UNIT: Final = r"(?:%|[kKMGTB]|[KMGT]i?B|ms|s|min|m|h)?"
_ONE: Final = rf"[-+]?(?:(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?{_UNIT}|inf(?:inity)?|nan)"
_NUMBERS: Final = re.compile(rf"{_ONE}(?:,{_ONE})*", re.IGNORECASE | re.ASCII)
_INTEGERS: Final = re.compile(r"[-+]?\d[\d_]*(?:[eE]\+?\d+)?[a-zA-Z]*(?:,.*)?")
SIZE_STEMS: Final = (
    "accum", "batch", "beam", "block", "bs", "channel", "context", "crop", "depth", "dim", "emb", "expert",
    "feature", "filter", "frame", "head", "hidden", "image", "img", "layer", "len", "lora", "micro", "model",
    "neuron", "node", "rank", "resol", "row", "seq", "size", "token", "unit", "vocab", "width", "window",
    "worker",
)  # fmt: skip
"""In the names of options that set how large a batch, a row or a model is. An option that has one by chance
costs a measurement, no more."""


def plain_words(argv: Sequence[str], *, keeps_sizes: bool = False) -> tuple[str, ...]:
    """The words of a command's kind with `#` for each number; with those that may be a size, if it keeps
    these."""
    return tuple(_plain(kind_words(argv), keeps_sizes))


def _plain(words: Sequence[str], keeps_sizes: bool) -> Iterator[str]:
    before = ""
    in_shell = bool(words) and words[0].rpartition("/")[2] in SHELLS
    for place, word in enumerate(words):
        key, is_set, value = word.partition("=")
        if in_shell and before == "-c":
            yield " ".join(_plain(_split(word), keeps_sizes))
        elif place and is_set and _NUMBERS.fullmatch(value):
            yield word if keeps_sizes and _may_be_size(f"{key}=", value) else f"{key}=#"
        elif place and _NUMBERS.fullmatch(word):
            yield word if keeps_sizes and _may_be_size(before, word) else "#"
        else:
            yield word
        before = word


def _may_be_size(key: str, value: str) -> bool:
    name, is_integer = key.strip("-+=").lower(), _INTEGERS.fullmatch(value) is not None
    if len(name) < 2 or not ("=" in key or key.startswith("--")):
        return is_integer
    last = name if is_integer else name.rpartition(".")[2]  # `model.layers=2`, but not `model.dropout=.1`.
    return any(stem in last for stem in SIZE_STEMS)


def _split(text: str) -> list[str]:
    """The words of a line for a shell; one that is no plain list of words is a single word."""
    import shlex

    try:
        return shlex.split(text)
    except ValueError:
        return [text]


_SCRIPT: Final = re.compile(r"[^-=][^=]*\.(?:py|sh|bash|jl|R|lua|pl|rb|js)")
LAUNCHER_PACKAGES: Final = ("torch", "accelerate", "deepspeed", "lightning")
"""Modules of these, after `-m`, start the program that follows."""


def program_of(argv: Sequence[str]) -> str:
    """The script or module that a command runs, whatever interpreter or launcher it names before; else its
    first word. A line for a shell that names none is a program by itself, whatever its numbers."""
    if not argv:
        return ""
    name = argv[0].rpartition("/")[2]
    if name in SHELLS and "-c" in argv[:-1]:
        line = _split(argv[argv.index("-c") + 1])
        found = program_of(line) if line else ""
        return found if line and found != line[0].rpartition("/")[2] else " ".join(_plain(line, False))
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
        if word == "-m" and following and following.partition(".")[0] not in LAUNCHER_PACKAGES:
            return following
        if word == "-c" and name.startswith("python"):
            return following
        if _SCRIPT.fullmatch(word):
            return word
    return name
