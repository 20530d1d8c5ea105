"""Static partitions of a device's multiprocessors: what the daemon says of them, and how a device is divided.

Pure. Rule: a partition exists when `lspart` lists it; what `sm_partition add` said is a claim. In a daemon
that was started for partitions (`-S`, driver 590 and newer) every client needs one: a process without cannot
initialise CUDA, so a device is divided completely before anybody is sent there.

Two spellings of each answer are taken, since documents and programs differ: with and without a column of
dashes, and a bare name or a sentence around it. A name is `<GPU UUID>/<identifier>`, and the identifier may
hold slashes itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cotenant.mps.replies import Rejected, unknown_command

SWITCHES = ("-S", "--static-partitioning")
"""Of the control program: the first is given, either is recognised."""
NOT_KNOWN = "the MPS daemon does not know static partitions"

_NAME = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/[A-Za-z0-9+/=_-]{4,128}")
_IDENTIFIER = re.compile(r"[A-Za-z0-9+/=_-]{4,128}")
_PREFIX = re.compile(r"GPU-[0-9a-f-]+", re.IGNORECASE)
_NONE = "-"
_IN_USE = {"yes": True, "no": False, _NONE: False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    name: str
    """What a client says to get it: `<GPU UUID>/<identifier>`."""
    chunks: int
    multiprocessors: int
    in_use: bool
    """It has clients."""

    @property
    def identifier(self) -> str:
        return self.name.partition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One device."""

    free_chunks: int
    partitions: tuple[Partition, ...] = ()
    """The one with the most multiprocessors first: what is left of an incomplete chunk is in one of them."""


def name_is_valid(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def layouts(answer: str, uuids: Iterable[str]) -> dict[str, Layout]:
    """`lspart`, by the UUID of each of these devices that it lists.

    Raises:
        Rejected: it is no such table, or the daemon does not know the word.
    """
    if unknown_command(answer):
        raise Rejected(NOT_KNOWN)
    known = tuple(uuids)
    free: dict[str, int] = {}
    found: dict[str, list[Partition]] = {}
    for line in answer.splitlines():
        words = line.split()
        if not words or not _PREFIX.fullmatch(words[0]):
            continue  # The two lines of the header.
        uuid = next((each for each in known if each.lower().startswith(words[0].lower())), None)
        if uuid is None:
            continue
        numbers = [int(word) for word in words[1:] if word.isdecimal()]
        if words[1:2] == [_NONE] or words[1].isdecimal():
            free[uuid] = _exactly(4, numbers, line)[0]
        else:
            found.setdefault(uuid, []).append(_partition(uuid, words, line))
    if not free:
        raise Rejected(f"expected a table of partitions, got {answer.strip()[:200]!r}")
    return {
        uuid: Layout(
            free_chunks=chunks,
            partitions=tuple(
                sorted(found.get(uuid, ()), key=lambda each: (-each.multiprocessors, each.name))
            ),
        )
        for uuid, chunks in free.items()
    }


def _partition(uuid: str, words: Sequence[str], line: str) -> Partition:
    if not _IDENTIFIER.fullmatch(words[1]):
        raise Rejected(f"expected a partition, got {line.strip()[:200]!r}")
    chunks, multiprocessors = _exactly(2, [int(word) for word in words[2:] if word.isdecimal()], line)
    return Partition(
        name=f"{uuid}/{words[1]}",
        chunks=chunks,
        multiprocessors=multiprocessors,
        in_use=_IN_USE.get(words[-1].lower(), True),  # An unknown word is not taken for free.
    )


def _exactly(count: int, numbers: list[int], line: str) -> list[int]:
    if len(numbers) != count:
        raise Rejected(f"expected {count} numbers, got {line.strip()[:200]!r}")
    return numbers


def created(answer: str) -> str:
    """The name that `sm_partition add` gives.

    Raises:
        Rejected: it made none; with its own words.
    """
    if unknown_command(answer):
        raise Rejected(NOT_KNOWN)
    match = _NAME.search(answer)
    if match is None:
        raise Rejected(
            " / ".join(answer.split("\n")).strip(" /")[:200] or "no partition was made, and no word"
        )
    return match[0]


def shares(chunks: int, parts: int) -> tuple[int, ...]:
    """As equal as chunks permit, the larger ones first; none is left over, for nobody could use it.

    Raises:
        Rejected: there is less than one for each.
    """
    if chunks < parts:
        raise Rejected(
            f"the device has {chunks} free chunks of multiprocessors, and {parts} parts are wanted"
        )
    each, left = divmod(chunks, parts)
    return tuple(each + (no < left) for no in range(parts))


def in_words(partitions: Sequence[Partition]) -> str:
    """For `nodes`."""
    sizes = " + ".join(str(each.multiprocessors) for each in partitions)
    return f"static partitions of {sizes} multiprocessors"


def names(partitions: Mapping[str, Sequence[Partition]]) -> dict[str, tuple[str, ...]]:
    """By device."""
    return {uuid: tuple(each.name for each in of_it) for uuid, of_it in partitions.items()}
