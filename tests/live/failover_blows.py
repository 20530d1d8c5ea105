"""How the blows of a storm over two controllers are struck, and undone.

Rule: who leads is asked of the database before a blow, by its Unix socket; the blow then falls on that host.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import psutil
import psycopg

from cotenant.controller.client.connection import Refusal, Unreachable
from cotenant.controller.wire import clients as wire
from tests.live.cluster import Daemon
from tests.live.failover_plan import AGENTS, CONTROLLERS, Blow
from tests.live.failover_world import ASK_S, DATABASE, FailoverCluster
from tests.live.partitions import OUTSIDE, both_ways


class Striker:
    """`strike` returns when a blow is over and what it stopped goes on."""

    def __init__(self, cluster: FailoverCluster, say: Callable[[str], None]) -> None:
        self._cluster, self._net, self._server = cluster, cluster.net, cluster.server
        self._say = say
        self._leader = CONTROLLERS[0]
        self.struck: Counter[str] = Counter()
        self.ended: list[tuple[str, int, str]] = []
        """Controllers that ended by themselves: name, status, last line."""

    @property
    def leader(self) -> str:
        """Who leads, or led when the database last answered."""
        with suppress(psycopg.Error):
            rows = self._cluster.rows("SELECT endpoint FROM cotenant.leader")
            names = {endpoint: name for name, endpoint in self._cluster.endpoint_of.items()}
            self._leader = names.get(rows[0][0], self._leader)
        return self._leader

    def strike(self, blow: Blow) -> None:
        verb, _, rest = blow.kind.partition("_")
        leader = self.leader
        standby = next(name for name in CONTROLLERS if name != leader)
        who = {"leader": leader, "standby": standby, "agent": AGENTS[blow.pick % len(AGENTS)]}
        self.struck[blow.kind] += 1
        self._say(f"{blow}; {leader} leads")
        undo: Callable[[], None] = getattr(self, f"_{verb}")(blow, rest, who)
        self._pass(blow.lasts_s)
        undo()
        self._say(f"{blow.kind} is over")
        self._pass(blow.rest_s)

    def _pass(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self.look()
            time.sleep(min(0.2, max(0.0, until_s - time.monotonic())))

    def look(self) -> None:
        """A controller that ended by itself is started again, as by a service manager; no agent may end."""
        for name, daemon in self._cluster.controllers.items():
            if daemon.process is not None and (status := daemon.process.poll()) is not None:
                last = daemon.log.read_text(errors="replace").splitlines()[-1:]
                self.ended.append((name, status, "".join(last)))
                self._say(f"{name} ended by itself ({status}): {''.join(last)}")
                daemon.stop()
                daemon.launch()
        for daemon in self._cluster.agents.values():
            status = daemon.process.poll() if daemon.process is not None else None
            assert status is None, f"{daemon.log.name} ended by itself ({status})"

    # --- One method for each verb -------------------------------------------------------------------

    def _kill(self, blow: Blow, what: str, who: dict[str, str]) -> Callable[[], None]:
        if what == "database":
            self._server.kill()
            return self._server.start
        names = CONTROLLERS if what == "both" else (who[what],)
        daemons = [self._daemon(name) for name in names]
        for daemon in daemons:
            daemon.kill()

        def start() -> None:
            for daemon in daemons:
                daemon.launch()

        return start

    def _restart(self, blow: Blow, what: str, who: dict[str, str]) -> Callable[[], None]:
        self._server.restart("fast" if blow.pick % 2 else "immediate")
        return lambda: None

    def _freeze(self, blow: Blow, what: str, who: dict[str, str]) -> Callable[[], None]:
        if what == "database":
            self._server.freeze()
            return self._server.thaw
        process = psutil.Process(self._daemon(who[what]).pid)
        there = [process, *process.children(recursive=True)]
        for each in there:
            each.send_signal(signal.SIGSTOP)

        def go_on() -> None:
            for each in there:
                with suppress(psutil.NoSuchProcess):
                    each.send_signal(signal.SIGCONT)

        return go_on

    def _cut(self, blow: Blow, what: str, who: dict[str, str]) -> Callable[[], None]:
        everybody = (*CONTROLLERS, DATABASE, *AGENTS, OUTSIDE)
        groups = {"agents": AGENTS, "clients": (OUTSIDE,), "database": (DATABASE,), "all": everybody}
        groups |= {name: (host,) for name, host in who.items()}
        words = what.split("_")
        if words[1] == "to":
            pairs = [(one, other) for one in groups[words[0]] for other in groups[words[2]]]
        else:
            pairs = both_ways(groups[words[0]], groups[words[1]])
        self._net.cut(pairs)
        return lambda: self._net.heal(pairs)

    def _fill(self, blow: Blow, what: str, who: dict[str, str]) -> Callable[[], None]:
        file = self._server.data.parent / "full"
        with suppress(OSError), file.open("wb", buffering=0) as opened:
            while opened.write(b"\0" * (1 << 20)):
                pass

        def free() -> None:
            file.unlink()
            if not self._server.is_alive:  # It gives up where it cannot even repair itself.
                self._server.start()

        return free

    def _clock(self, blow: Blow, what: str, who: dict[str, str]) -> Callable[[], None]:
        if self._cluster.clocks is None:
            self.struck[blow.kind] -= 1
        else:
            self._cluster.clocks.jump(who[what], blow.jump_s)
        return lambda: None

    def _hand(self, blow: Blow, what: str, who: dict[str, str]) -> Callable[[], None]:
        with suppress(Unreachable, Refusal):
            self._cluster.client.ask(wire.HandOver(), timeout_s=ASK_S)
        return lambda: None

    def _daemon(self, name: str) -> Daemon:
        return (self._cluster.controllers | self._cluster.agents)[name]
