"""How the blows of a storm are struck: kill -9, SIGSTOP, frozen hosts, moved wall clocks, users' wishes.

Rule: the storm does to processes and clocks what machines and people do, and asks for nothing that a user or
an administrator could not ask for. On one host one thing at a time stands still: with its agent and a
supervisor both stopped while their ranks run on, nobody is left who could keep the lease.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from cotenant.controller.domain import ENDED, HostState, Phase
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.live.cluster import carries, kill_if
from tests.live.storm_plan import HOSTS, POLICIES, STOPS, WISHES, Blow
from tests.live.storm_processes import loaders, members, supervisors, whole_host
from tests.live.storm_world import Stopped, World
from tests.live.wall_clock import WallClocks

LONG_LEASES_MAX = 3
"""What is frozen until its host is lost is continued at last, also if nobody is there to call it lost."""
WAIT_S = within_s(30.0)
"""For somebody whom a blow can hit."""


class Striker:
    def __init__(self, world: World, clocks: WallClocks | None, lease_s: float) -> None:
        self._world, self._cluster, self._clocks, self._lease_s = world, world.cluster, clocks, lease_s
        self._sign = os.fsencode(world.cluster.folder)

    def strike(self, blow: Blow, look: Callable[[], None]) -> None:
        """As soon as somebody is there whom it can hit; if nobody comes it is written down as missed."""
        act = getattr(self, f"_{blow.kind.partition('_')[0]}")
        until_s = time.monotonic() + (0.0 if blow.kind in WISHES else WAIT_S)
        while not (struck := act(blow)) and time.monotonic() < until_s:
            look()
        (self._world.deeds.struck if struck else self._world.deeds.missed)[blow.kind] += 1
        self._world.say(f"{blow}{': ' + struck if struck else ': nobody there'}")

    def _victims(self, who: str, host: str) -> list[int]:
        """Those on that host (the controller is on none) whom a blow may hit."""
        match who:
            case "controller" | "agent":
                return [self._world.daemons["controller" if who == "controller" else host].pid]
            case "supervisor":
                return supervisors(self._cluster, host)
            case "rank":
                return [member.pid for member in members(self._cluster, host)]
            case _:
                return [pid for _, pid in loaders(self._cluster, host)]

    def _first(self, blow: Blow) -> tuple[str, int] | None:
        """One victim, and its host: that of the blow, or the other if nobody is there."""
        who = blow.kind.partition("_")[2]
        for host in (blow.host, *(each for each in HOSTS if each != blow.host)):
            where = "" if who == "controller" else host
            found = self._victims(who, host)
            if found and not (blow.kind in STOPS and self._world.stands_still(where)):
                return where, found[blow.pick % len(found)]
        return None

    def _kill(self, blow: Blow) -> str:
        who = blow.kind.partition("_")[2]
        if who == "saving":
            return self._kill_saving(blow)
        if who in ("controller", "agent"):
            return self._kill_daemon(who, blow.host)
        victim = self._first(blow)
        if victim is None:
            return ""
        host, pid = victim
        pairs = loaders(self._cluster, host) + [(each, each.pid) for each in members(self._cluster, host)]
        self._world.deeds.bereft |= {(each.job_id, each.attempt) for each, it in pairs if it == pid}
        return f"process {pid} of {host}" if kill_if(pid, self._sign) else ""

    def _kill_daemon(self, who: str, host: str) -> str:
        """Started again at once, as a service manager would."""
        if who == "agent" and self._world.stands_still(host, "freeze_host"):
            return ""
        self._world.kill(self._world.daemons["controller" if who == "controller" else host])
        return "dead, and started again"

    def _kill_saving(self, blow: Blow) -> str:
        """A job is asked to save and leave, and somebody whom that needs dies at once."""
        running = {
            job.job_id for job in self._world.jobs.values() if job.phase is Phase.RUNNING and job.resumable
        }
        there = [each for each in members(self._cluster, blow.host) if each.job_id in running]
        if not there:
            return ""
        member = there[blow.pick % len(there)]
        if not self._world.ask(wire.ChangeJobs(verb="preempt", job_ids=(member.job_id,))):
            return ""
        who = ("controller", "agent", "supervisor", "rank")[blow.pick % 4]
        if who in ("controller", "agent"):
            return f"job {member.job_id}, {who}: {self._kill_daemon(who, blow.host)}"
        self._world.deeds.bereft.add((member.job_id, member.attempt))
        supervisor = self._cluster.supervisor(blow.host, member.job_id, member.attempt)
        kill_if(member.pid if who == "rank" or supervisor is None else supervisor, self._sign)
        return f"job {member.job_id}, its {who}"

    def _stop(self, blow: Blow) -> str:
        victim = self._first(blow)
        if victim is None:
            return ""
        host, pid = victim
        try:
            process = psutil.Process(pid)
            if not carries(pid, self._sign):
                return ""
            process.suspend()
        except psutil.NoSuchProcess:
            return ""
        return self._keep_stopped(blow, host, [process])

    def _freeze(self, blow: Blow) -> str:
        """Every process of a host, those too that are being started meanwhile."""
        if self._world.stands_still(blow.host):
            return ""
        frozen: dict[int, psutil.Process] = {}
        while fresh := [e for e in whole_host(self._cluster, blow.host) if e.pid not in frozen]:
            for each in fresh:
                frozen[each.pid] = each
                with suppress(psutil.NoSuchProcess):
                    each.suspend()
        return self._keep_stopped(blow, blow.host, list(frozen.values()))

    def _keep_stopped(self, blow: Blow, host: str, processes: list[psutil.Process]) -> str:
        if not processes:
            return ""
        due = self._until(blow, host)
        self._world.stop(Stopped(what=blow.kind, host=host, processes=processes, due=due))
        return f"{len(processes)} of {host or 'the controller'} stand still"

    def _until(self, blow: Blow, host: str) -> Callable[[], bool]:
        """When it is over: a part of the lease later, or as long after the lease or the loss of the host."""
        waits_for_loss = blow.lasts == "long" and blow.kind in ("stop_agent", "freeze_host")
        least_s = blow.share * self._lease_s
        if blow.lasts == "long" and not waits_for_loss:
            least_s += self._lease_s
        counts_from_s = time.monotonic()
        latest_s = counts_from_s + LONG_LEASES_MAX * self._lease_s

        def due() -> bool:
            nonlocal counts_from_s
            now_s = time.monotonic()
            is_lost = self._world.states.get(host) is HostState.LOST
            if waits_for_loss and not is_lost and now_s < latest_s:
                counts_from_s = now_s
            return now_s >= counts_from_s + least_s

        return due

    def _clock(self, blow: Blow) -> str:
        if self._clocks is None:
            return ""
        name = {"clock_of_host": blow.host, "clock_of_jobs": "jobs"}.get(blow.kind, "controller")
        if blow.kind == "clock_over_restart":
            clocks = self._clocks
            self._world.kill(self._world.daemons[name], lambda: clocks.jump(name, blow.jump_s))
        else:
            self._clocks.jump(name, blow.jump_s)
        return f"now {self._clocks.shift_s(name):+.0f} s"

    def _preempt(self, blow: Blow) -> str:
        return self._wish(blow, (Phase.RUNNING, Phase.LOADING))

    def _checkpoint(self, blow: Blow) -> str:
        return self._wish(blow, (Phase.RUNNING,))

    def _hold(self, blow: Blow) -> str:
        return self._wish(blow, (Phase.QUEUED, Phase.BLOCKED, Phase.RESERVED))

    def _cancel(self, blow: Blow) -> str:
        return self._wish(blow, tuple(set(Phase) - ENDED))

    def _wish(self, blow: Blow, phases: Sequence[Phase]) -> str:
        found = sorted(job.job_id for job in self._world.jobs.values() if job.phase in phases)
        if not found:
            return ""
        job_id = found[blow.pick % len(found)]
        if blow.kind == "cancel":
            self._world.deeds.cancelled.add(job_id)
        self._world.ask(wire.ChangeJobs(verb=blow.kind, job_ids=(job_id,)))  # type: ignore[arg-type]
        return f"job {job_id}"

    def _set(self, blow: Blow) -> str:
        name = POLICIES[blow.pick % len(POLICIES)]
        self._world.ask(wire.SetPolicy(name=name))
        return name
