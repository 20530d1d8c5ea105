"""Whom a server's FAULT concerns, where one MPS daemon serves several devices. Pure.

Rule: NVIDIA's manual says that a fatal fault is contained in the devices that share clients, directly or over
others; that all clients there have to exit before the server takes anybody new, on any of its devices; and
that clients on its other devices go on. A daemon does not say where it happened. So

    all its clients are on devices that are connected     they are ended
    where it was is known (an Xid, a CUDA error)          who is connected with that is ended, others go on
    nobody says where                                     all are ended, after some looks
    those are gone, and the server is still in FAULT      all that are left are ended, after some looks

A job counts as one client of all its devices of this host, for its workers see all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

NEWS_LOOKS: Final = 2
"""For news of where it was."""
RECOVERY_LOOKS: Final = 5
"""For a server to make its contexts anew."""

Group = frozenset[str]
"""UUIDs of devices that share clients."""


@dataclass
class _Fault:
    looks: int = 0
    """Since it began, or since those that were told have gone."""
    told: set[Group] = field(default_factory=set)


class FaultReach:
    def __init__(self) -> None:
        self._faults: dict[str, _Fault] = {}

    def look(
        self,
        in_fault: Collection[str],
        clients: Mapping[str, Collection[Group]],
        known: Collection[str],
        *,
        decide: bool = False,
    ) -> list[Group]:
        """Groups whose clients are to be ended now; each once.

        `in_fault`: pipe directories of daemons whose server is in FAULT. `clients`: by pipe directory, the
        devices of each job that is its client. `known`: devices on which an error is known. `decide`:
        somebody waits for a verdict, and not for news.
        """
        self._faults = {pipe: self._faults.get(pipe) or _Fault() for pipe in in_fault}
        found: list[Group] = []
        for pipe, fault in self._faults.items():
            new = _concerned(fault, connected(clients.get(pipe, ())), known, decide)
            fault.told |= new
            found += sorted(new, key=sorted)
        return found


def _concerned(fault: _Fault, groups: set[Group], known: Collection[str], decide: bool) -> set[Group]:
    leaving = {group for group in groups if any(group <= told for told in fault.told)}
    left = groups - leaving
    named = {group for group in left if not group.isdisjoint(known)}
    if named or leaving:
        fault.looks = 0
        return named
    fault.looks += 1
    if fault.told:
        return left if fault.looks > RECOVERY_LOOKS else set()
    return left if decide or len(left) == 1 or fault.looks > NEWS_LOOKS else set()


def connected(parts: Collection[Group]) -> set[Group]:
    """The devices that share clients, directly or over others, together."""
    found: set[Group] = set()
    for part in parts:
        touched = {group for group in found if not group.isdisjoint(part)}
        found = (found - touched) | {part.union(*touched)}
    return found
