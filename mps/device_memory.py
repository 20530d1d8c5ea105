"""The kernel's own limit on device memory: the `dmem` controller of cgroup v2, in the words of its files.

Pure. Rule: only the hard limit (`dmem.max`) is set, and it counts when it was read back. The guarantee
(`dmem.min`) is never touched: the driver keeps sums of it in the groups above, which a plain write would
falsify. A region is known by its name in `dmem.capacity`, which holds the bus address of its GPU:
`nvidia/00000000:02:00.0/vidmem` with drivers of 615 and newer, on kernels of 6.14 and newer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

CONTROLLER = "dmem"
CAPACITY = "dmem.capacity"
"""In the root group: a line `<region> <bytes>` for each."""
LIMIT = "dmem.max"
"""In every other group: a line `<region> <bytes>` or `<region> max`."""
BYTES_PER_MIB = 1024 * 1024

_REGION = re.compile(r"nvidia/([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])/vidmem\w*")


def regions(capacity: str) -> tuple[tuple[str, str], ...]:
    """Bus address and region of each NVIDIA GPU, in the kernel's spelling; without who has several."""
    found: dict[str, list[str]] = {}
    for line in capacity.splitlines():
        region = line.partition(" ")[0]
        if match := _REGION.fullmatch(region):
            found.setdefault(match[1], []).append(region)
    return tuple((address, names[0]) for address, names in found.items() if len(names) == 1)


def line_for(region: str, limit_mib: int) -> str:
    """The line to be written to `dmem.max`, one region at a time."""
    return f"{region} {limit_mib * BYTES_PER_MIB}\n"


def limits(text: str) -> Mapping[str, int]:
    """The limits that `dmem.max` shows: bytes by region, of those that are limited."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        region, _, value = line.strip().partition(" ")
        if value.isdecimal():  # Else it is `max`: not limited.
            found[region] = int(value)
    return found


def not_in_force(text: str, wanted: Iterable[str], limit_mib: int) -> tuple[str, ...]:
    """The regions, of those wanted, that `dmem.max` does not show with this limit."""
    shown = limits(text)
    return tuple(region for region in wanted if shown.get(region) != limit_mib * BYTES_PER_MIB)
