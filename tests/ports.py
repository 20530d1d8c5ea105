"""Ports for the processes that tests start.

Rule: nothing here keeps a port. Whoever wants it binds it a while later, so it is drawn at random from below
the range out of which the kernel serves everybody's outgoing connections (32768 and up on Linux), and a
test's gangs get a block of their own: the agent's default is the same for all agents, also for those of
another run of these tests on this machine.
"""

from __future__ import annotations

import random
import socket
from typing import Final

FIRST: Final = 10_000
END: Final = 32_000
BLOCK: Final = 200
"""As many as an agent has by default."""

_random = random.Random()  # Not the tests' own, whose seeds repeat.


def free_port() -> int:
    """One that nobody listens on just now."""
    while True:
        port = _random.randrange(FIRST, END)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def block_of_ports() -> int:
    """The first of a block for an agent's gangs."""
    return _random.randrange(FIRST, END, BLOCK)
