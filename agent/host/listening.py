"""Whose a port of this host is: the sockets that listen at it, and those that processes hold."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

LISTENS: Final = "0A"
_REACHED: Final = frozenset(("00000000", "0100007F", "0" * 32, "0000000000000000FFFF00000100007F"))
"""Addresses at which a connection to 127.0.0.1 may arrive, as the kernel of a little-endian machine writes
them: any, 127.0.0.1, and both in IPv6."""
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")


def listeners(
    port: int, tables: Iterable[Path] = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
) -> set[int]:
    """Inodes of the sockets that a connection to 127.0.0.1 and this port may reach."""
    found = set()
    for table in tables:
        with suppress(OSError), table.open(errors="replace") as lines:  # As many as all users have sockets.
            next(lines, "")
            for line in lines:
                words = line.split()
                address, _, number = words[1].partition(":")
                if words[3] == LISTENS and int(number, 16) == port and address in _REACHED:
                    found.add(int(words[9]))
    return found


def sockets_of(pids: Iterable[int]) -> set[int]:
    """Inodes of the sockets that these processes hold."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    held = _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{name}"))
                    found |= {int(held[1])} if held else set()
    return found
