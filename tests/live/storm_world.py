"""A storm's cluster between two blows: what is known of it, who stands still, and what a person has to do.

Rule: nothing waits for a controller for longer than `ASK_S`: it may be the one that stands still.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from cotenant.controller.client.connection import Refusal, Unreachable
from cotenant.controller.domain import ENDED, ON_DEVICES, HostId, HostState, JobId, Phase
from cotenant.controller.wire import clients as wire
from tests.live.cluster import Cluster, Daemon
from tests.live.storm_processes import crowds, members

ASK_S = 3.0
LOOK_S = 0.2


@dataclass(kw_only=True)
class Stopped:
    """Processes that stand still until `due`."""

    what: str
    host: str
    processes: list[psutil.Process]
    due: Callable[[], bool]


@dataclass(kw_only=True)
class Deeds:
    """What was done, for the judges."""

    cancelled: set[JobId] = field(default_factory=set)
    bereft: set[tuple[JobId, int]] = field(default_factory=set)
    """Attempts of which a rank or a loader was killed."""
    struck: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    """Nobody was there."""
    crowds: list[str] = field(default_factory=list)
    """Devices that were seen to hold more jobs than they may."""


class World:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.deeds = Deeds()
        self.jobs: dict[JobId, wire.JobView] = {}
        self.states: dict[str, HostState] = {}
        self._placed: dict[tuple[JobId, int], tuple[str, ...]] = {}
        """The devices of every attempt that was seen."""
        self._stopped: list[Stopped] = []
        self._coming: list[Daemon] = []
        """Started again, and not waited for yet."""
        self._began_s = time.monotonic()

    @property
    def daemons(self) -> dict[str, Daemon]:
        assert self.cluster.controller is not None
        return {"controller": self.cluster.controller, **self.cluster.agents}

    def is_open(self, job_id: JobId) -> bool:
        return job_id not in self.jobs or self.jobs[job_id].phase not in ENDED

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_s:7.1f} s  {text}", flush=True)

    # --- Looking -----------------------------------------------------------------------------------

    def look(self) -> None:
        """One look at everything: what is due is continued, what a person has to do is done."""
        self.pass_time()
        client = self.cluster.client
        try:
            listed = client.ask(wire.ListJobs(include_ended=True), timeout_s=ASK_S).jobs
            nodes = client.ask(wire.ListNodes(), timeout_s=ASK_S).nodes
        except Unreachable:
            return
        self.jobs = {job.job_id: job for job in listed}
        self.states = {node.host: node.state for node in nodes}
        if held := tuple(job.job_id for job in listed if job.phase is Phase.HELD):
            self.ask(wire.ChangeJobs(verb="release", job_ids=held))
        for host, state in self.states.items():
            if state is HostState.SUSPECT:
                self.ask(wire.ChangeNode(verb="resume", host_id=HostId(host)))
        self._placed |= {(job.job_id, job.attempt): job.devices for job in listed if job.phase in ON_DEVICES}
        self.deeds.crowds += crowds(members(self.cluster), self._placed)

    def ask(self, change: wire.ChangeJobs | wire.ChangeNode | wire.SetPolicy) -> bool:
        """False: nobody answered, or it was too late for that."""
        try:
            self.cluster.client.ask(change, timeout_s=ASK_S)
        except (Unreachable, Refusal):
            return False
        return True

    def pass_time(self) -> None:
        """The time of one look, also when nobody can be asked."""
        time.sleep(LOOK_S)
        due = [each for each in self._stopped if each.due()]
        self._stopped = [each for each in self._stopped if each not in due]
        for each in due:
            self._continue(each)
        for daemon in self.daemons.values():
            ended = daemon.process.poll() if daemon.process is not None else None
            assert ended is None, f"{daemon.log.name} ended by itself ({ended})"
        self._coming = [daemon for daemon in self._coming if not daemon.is_ready()]

    # --- Daemons, and who stands still -------------------------------------------------------------

    def kill(self, daemon: Daemon, meanwhile: Callable[[], None] = lambda: None) -> None:
        """And start it again at once, as a service manager would."""
        daemon.kill()
        meanwhile()
        daemon.launch()
        self._coming = [each for each in self._coming if each is not daemon] + [daemon]

    def await_daemons(self) -> None:
        for daemon in self._coming:
            daemon.await_ready()
        self._coming.clear()

    def stop(self, stopped: Stopped) -> None:
        self._stopped.append(stopped)

    def stands_still(self, host: str, what: str = "") -> bool:
        return any(each.host == host and what in each.what for each in self._stopped)

    @property
    def is_anyone_stopped(self) -> bool:
        return bool(self._stopped)

    def release(self) -> None:
        """Nobody stands still any more."""
        for each in self._stopped:
            self._continue(each)
        self._stopped.clear()

    def _continue(self, stopped: Stopped) -> None:
        for each in stopped.processes:
            with suppress(psutil.NoSuchProcess):
                each.resume()
        self.say(f"{stopped.what} {stopped.host} is over")
