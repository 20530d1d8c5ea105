"""Two hosts and the network between them on one machine: a namespace each, for root.

Rule: all names carry this run's own tag, and `close` removes everything; a namespace takes its ends of
the cables with it. Addresses are from 198.18.0.0/15, which is reserved for tests.

    controller, in the namespace of the test          .1            .5
                                                       | up0         | up0
    hosts                                             a .2          b .6
    the gang's own cable                              gang0 .9 --- gang0 .10
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import uuid
from collections.abc import Sequence

from tests.building.limits import within_s

HOSTS = ("a", "b")
UP, GANG = "up0", "gang0"


class NoNetwork(Exception):
    """Why there can be no namespaces here."""


class TwoHosts:
    def __init__(self) -> None:
        """Raises NoNetwork."""
        if os.geteuid() != 0:
            raise NoNetwork("needs root: gives each host a network namespace")
        missing = [tool for tool in ("ip", "nsenter", "taskset") if shutil.which(tool) is None]
        if missing:
            raise NoNetwork(f"needs {', '.join(missing)} (iproute2, util-linux)")
        self._tag = uuid.uuid4().hex[:6]
        self._net = free_net()
        self._cut: set[tuple[str, str]] = set()
        try:
            self._build()
        except subprocess.CalledProcessError as error:
            self.close()
            raise NoNetwork(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from None

    @property
    def controller_address(self) -> str:
        return f"{self._net}.1"

    def gang_address(self, host: str) -> str:
        return f"{self._net}.{9 + HOSTS.index(host)}"

    def inside(self, host: str, cores: Sequence[int]) -> tuple[str, ...]:
        """Words in front of a command that runs it on that host. (`ip netns exec` would hide the cgroups.)"""
        mask = ",".join(map(str, cores))
        return ("nsenter", f"--net=/run/netns/{self._space(host)}", "taskset", "-c", mask)

    def _space(self, host: str) -> str:
        return f"cotenant-{self._tag}-{host}"

    def _build(self) -> None:
        for host in HOSTS:
            ip("netns", "add", self._space(host))
            ip("-n", self._space(host), "link", "set", "lo", "up")
        for host, (near, far) in zip(HOSTS, ((1, 2), (5, 6)), strict=True):
            outside = f"co{self._tag}{host}"
            space = self._space(host)
            ip("link", "add", outside, "type", "veth", "peer", "name", UP, "netns", space)
            ip("addr", "add", f"{self._net}.{near}/30", "dev", outside)
            ip("link", "set", outside, "up")
            ip("-n", space, "addr", "add", f"{self._net}.{far}/30", "dev", UP)
            self._up(host, UP)
        first, second = map(self._space, HOSTS)
        ip("-n", first, "link", "add", GANG, "type", "veth", "peer", "name", GANG, "netns", second)
        for host in HOSTS:
            ip("-n", self._space(host), "addr", "add", f"{self.gang_address(host)}/30", "dev", GANG)
            self._up(host, GANG)

    def _up(self, host: str, cable: str) -> None:
        ip("-n", self._space(host), "link", "set", cable, "up")
        if cable == UP:  # No default route: who asks a name server is told at once that there is none.
            gateway = f"{self._net}.{1 + 4 * HOSTS.index(host)}"
            if gateway != self.controller_address:
                ip("-n", self._space(host), "route", "replace", self.controller_address, "via", gateway)

    def cut(self, host: str, *cables: str) -> None:
        """Pull the host's end of these cables; nobody is told."""
        for cable in cables:
            ip("-n", self._space(host), "link", "set", cable, "down")
            self._cut.add((host, cable))

    def heal(self) -> None:
        for host, cable in sorted(self._cut):
            self._up(host, cable)
        self._cut.clear()

    def close(self) -> None:
        """Whatever was built, also half of it."""
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", self._space(host)], capture_output=True, check=False)
            # Gone with its other end; this is for one whose other end was never moved.
            subprocess.run(["ip", "link", "del", f"co{self._tag}{host}"], capture_output=True, check=False)


def free_net() -> str:
    """The first three numbers of a network that nobody here uses."""
    taken = ip("-o", "-4", "addr")
    while True:
        net = f"198.{random.choice((18, 19))}.{random.randrange(256)}"
        if f" {net}." not in taken:
            return net


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=True, timeout=within_s(30))
    return done.stdout
