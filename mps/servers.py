"""The servers of an MPS daemon, one per user: which are there, and what the loss of one means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cotenant.mps.answers import ServerState
from cotenant.mps.process import MpsProcessIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An MPS server as its daemon described it last."""

    identity: MpsProcessIdentity
    state: ServerState | None = None
    """None: the daemon cannot say (drivers up to 535)."""
    clients: tuple[MpsProcessIdentity, ...] = ()
    """Those whose pids are known in our pid namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStatus:
    """What the owner of a daemon knows after a look."""

    shares: bool
    """Whether new jobs can be its clients now."""
    why_not: str = ""
    daemon: MpsProcessIdentity | None = None
    servers: tuple[Server, ...] = ()
    serves: tuple[str, ...] = ()
    """UUIDs of its devices, by its own numbers."""
    said: tuple[str, ...] = ()
    """What was done or noticed, for the log; each once."""
    losses: tuple[str, ...] = ()
    """Servers that went away under their clients since the look before; each once."""

    @property
    def in_fault(self) -> bool:
        return any(server.state is ServerState.FAULT for server in self.servers)


IN_FAULT = "its MPS server is in FAULT"


def losses(before: Sequence[Server], alive: Iterable[MpsProcessIdentity]) -> list[str]:
    """Servers that went away under their clients: a line for a person each. A server that ended after its
    clients is none of these.
    """
    living = set(alive)
    found = []
    for server in before:
        left = [client for client in server.clients if client in living]
        if server.identity not in living and left:
            found.append(f"its MPS server (pid {server.identity.pid}) went away under {len(left)} clients")
    return found
