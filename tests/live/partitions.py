"""A switch, and a network namespace for each of several hosts on it, whose pairs are cut each way; for root.

Rule: a cut drops what one host sends to another, and tells nobody: the sender addresses its frames to a card
that does not exist (a permanent neighbour). Names carry this run's own tag, and `close` removes everything.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress

from tests.live.network import NoNetwork, free_net, ip

UP = "up0"
NOBODY = "02:00:00:00:00:01"
"""A card that does not exist."""
OUTSIDE = "outside"
"""The namespace of whoever runs this: it has the first address."""


class Partitions:
    def __init__(self, hosts: Sequence[str]) -> None:
        """Raises NoNetwork."""
        if os.geteuid() != 0:
            raise NoNetwork("needs root: gives each host a network namespace")
        missing = [tool for tool in ("ip", "nsenter") if shutil.which(tool) is None]
        if missing:
            raise NoNetwork(f"needs {', '.join(missing)} (iproute2, util-linux)")
        self._tag = uuid.uuid4().hex[:6]
        self._net = free_net()
        self._hosts = tuple(hosts)
        self._cut: set[tuple[str, str]] = set()
        try:
            self._build()
        except subprocess.CalledProcessError as error:
            self.close()
            raise NoNetwork(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from None

    def address(self, host: str) -> str:
        return f"{self._net}.{1 if host == OUTSIDE else 2 + self._hosts.index(host)}"

    def inside(self, host: str) -> tuple[str, ...]:
        """Words in front of a command that runs it on that host."""
        return ("nsenter", f"--net=/run/netns/{self._space(host)}", "--")

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """From now on nothing that the first of a pair sends arrives at the second."""
        for sender, receiver in pairs:
            self._neighbour(sender, "replace", receiver, "lladdr", NOBODY, "nud", "permanent")
            self._cut.add((sender, receiver))

    def heal(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """Those pairs, or all of them."""
        for sender, receiver in sorted(self._cut if pairs is None else set(pairs) & self._cut):
            self._neighbour(sender, "del", receiver)
            self._cut.discard((sender, receiver))

    def close(self) -> None:
        """Whatever was built, also half of it."""
        for host in (*self._hosts, "switch"):
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", self._space(host))
        with suppress(subprocess.CalledProcessError):
            ip("link", "del", self._cable)

    @property
    def _cable(self) -> str:
        """Our own end of a cable to the switch."""
        return f"co{self._tag}"

    def _space(self, host: str) -> str:
        return f"cotenant-{self._tag}-{host}"

    def _neighbour(self, sender: str, verb: str, receiver: str, *more: str) -> None:
        where = () if sender == OUTSIDE else ("-n", self._space(sender))
        cable = self._cable if sender == OUTSIDE else UP
        ip(*where, "neigh", verb, self.address(receiver), "dev", cable, *more)

    def _build(self) -> None:
        switch = self._space("switch")
        for host in (*self._hosts, "switch"):
            ip("netns", "add", self._space(host))
            ip("-n", self._space(host), "link", "set", "lo", "up")
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for number, host in enumerate(self._hosts):
            space, port = self._space(host), f"port{number}"
            ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", UP, "netns", space)
            self._plug(port)
            ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", UP)
            ip("-n", space, "link", "set", UP, "up")
        ip("link", "add", self._cable, "type", "veth", "peer", "name", "outside", "netns", switch)
        self._plug("outside")
        ip("addr", "add", f"{self.address(OUTSIDE)}/24", "dev", self._cable)
        ip("link", "set", self._cable, "up")

    def _plug(self, port: str) -> None:
        ip("-n", self._space("switch"), "link", "set", port, "master", "bridge", "up")


def both_ways(ones: Iterable[str], others: Iterable[str]) -> list[tuple[str, str]]:
    """All pairs of two groups of hosts, each way."""
    pairs = [(one, other) for one in ones for other in others if one != other]
    return pairs + [(other, one) for one, other in pairs]
