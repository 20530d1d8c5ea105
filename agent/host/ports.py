"""The ports on which an agent's gangs meet, a block that no other agent of this machine has.

Rule: several agents may live on one machine (ten users, each with `cotenant run`), and none knows of the
others. The controller counts ports from each agent's first one in the same way, so two agents with the same
first port would clash at every job. So each holds the locks of its range, as it does those of its devices.
Only where hosts must find each other is the range fixed, and nobody locks it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

FIXED_FIRST: Final = 29_500
"""Torch's own habit; firewalls of clusters are opened for it."""
LOWEST: Final = 1_024
HIGHEST: Final = 65_535
OWN_FIRST: Final = 20_000
OWN_END: Final = 32_768
"""From here on Linux gives ports to clients, unless told otherwise."""


BLOCK: Final = 200
"""Ports that go together under one lock, whatever `agent.port_count` is."""

Take = Callable[[Iterable[str]], str]
"""Holds locks by their names; returns who is in the way, empty where nobody is."""


class BadPorts(ValueError):
    """A range that no gang could meet on, in one line."""


def first_port(
    wanted: int, count: int, *, alone: bool, uid: int, folder: Path, take: Take = lambda names: ""
) -> int:
    """The first of `count` ports.

    `wanted` if it is set (not 0). Else, where the controller and all gangs are on this machine (`alone`), one
    of the ranges between OWN_FIRST and OWN_END, drawn by whose agent this is and where its state lies: the
    same after every restart, unless another agent holds it by then; then the next that nobody holds. Where
    all are held it is the drawn one: a port in use is an infrastructure failure, and tried again elsewhere.

    Raises:
        BadPorts: the range is not between 1024 and 65535.
    """
    if wanted and not (wanted >= LOWEST and wanted + count - 1 <= HIGHEST):
        raise BadPorts(
            f"agent.port_first = {wanted} with agent.port_count = {count} is no range between {LOWEST} and "
            f"{HIGHEST}"
        )
    if wanted:
        return wanted
    if count > OWN_END - OWN_FIRST:
        raise BadPorts(
            f"agent.port_count = {count} is above {OWN_END - OWN_FIRST}; set agent.port_first as well"
        )
    if not alone:
        return FIXED_FIRST
    ranges = (OWN_END - OWN_FIRST) // count
    drawn = zlib.crc32(f"{uid}:{folder.absolute()}".encode()) % ranges
    firsts = [OWN_FIRST + (drawn + step) % ranges * count for step in range(ranges)]
    return next((first for first in firsts if not take(_locks(first, count))), firsts[0])


def _locks(first: int, count: int) -> list[str]:
    return [f"ports-{block * BLOCK}" for block in range(first // BLOCK, (first + count - 1) // BLOCK + 1)]
