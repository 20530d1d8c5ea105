"""Evictions: how often spot jobs had to leave for hp jobs, where and when; and how many were let finish.

Source: sections 3.3.2 (e and l of the past H hours), 3.4.2 (eq. 15: evictions of a node; F and G of eq. 18).
Departs from the paper: the waits of jobs that still wait count in l.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from cotenant.controller import domain

SHORT_S = 3600.0
LONG_S = 86_400.0
KEPT_MAX = 50_000


class Evictions(msgspec.Struct, kw_only=True):
    """Times of evictions and runs in seconds; the last is the newest."""

    evicted_s: list[float] = []
    finished_s: list[float] = []
    started: list[tuple[float, float]] = []
    """When spot jobs started, and how long they had waited."""
    on_host: dict[domain.HostId, list[float]] = {}
    evicted: int = 0
    """F, since the beginning."""
    finished: int = 0
    """G."""

    def evict(self, now_s: float, hosts: Iterable[domain.HostId]) -> None:
        self.evicted += 1
        self.evicted_s.append(now_s)
        for host_id in hosts:
            times_s = self.on_host.setdefault(host_id, [])
            times_s.append(now_s)
            del times_s[: bisect_right(times_s, now_s - LONG_S)]

    def finish(self, now_s: float) -> None:
        self.finished += 1
        self.finished_s.append(now_s)

    def start(self, now_s: float, waited_s: float) -> None:
        self.started.append((now_s, waited_s))

    def forget(self, before_s: float) -> None:
        """Forgets what lies before this time; nobody asks for it any more."""
        for times_s in (self.evicted_s, self.finished_s):
            del times_s[: max(bisect_right(times_s, before_s), len(times_s) - KEPT_MAX)]
        while self.started and (self.started[0][0] <= before_s or len(self.started) > KEPT_MAX):
            del self.started[0]
        for host_id, times_s in list(self.on_host.items()):
            if times_s[-1] <= before_s - LONG_S:
                del self.on_host[host_id]

    def rate(self, since_s: float) -> float:
        """The eviction rate e since `since_s`: evictions / runs that ended; 0 where no run ended."""
        evicted = len(self.evicted_s) - bisect_right(self.evicted_s, since_s)
        finished = len(self.finished_s) - bisect_right(self.finished_s, since_s)
        return evicted / (evicted + finished) if evicted + finished else 0.0

    def longest_wait_s(self, since_s: float) -> float:
        return max((waited_s for at_s, waited_s in self.started if at_s > since_s), default=0.0)

    def host_rate(self, host_id: domain.HostId, now_s: float, gamma: float, long_h: float) -> float:
        """The weighted rate of evictions on a host (eq. 15)."""
        times_s = self.on_host.get(host_id)
        if not times_s:
            return 0.0
        short = len(times_s) - bisect_right(times_s, now_s - SHORT_S)
        long = len(times_s) - bisect_right(times_s, now_s - LONG_S)
        return gamma * short + (1.0 - gamma) * long / long_h
