"""Faults of a GPU host, out of a seed: which, where, when, and for how long.

A time is a number of looks at the jobs, never of seconds; a fault that needs somebody on a GPU waits for
them. What was done is written down, and so is whom it may be held against: the checks of `test_gpu_chaos.py`
read that.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.live.cluster import Cluster, kill_if
from tests.live.gpu_host import LOST, RESET_REQUIRED, UUIDS, GpuHost
from tests.live.gpu_job import living

HOST = "h1"
Undo = Callable[[], None]
PROGRAM, SUSPECT, DRAIN, GONE = (31, 13, 43), (9999, 56), (63, 74, 154), (79, 119)
BREAKS = (48, 95, 79, 120)
"""Errors of the device that end everybody."""
CALLS = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlEventSetWait_v2",
)


@dataclass(frozen=True, kw_only=True)
class Blow:
    kind: str
    gpu: int
    looks: int
    """How long until it is taken back, where it can be."""
    pause: int
    """Looks before the next one."""
    order: str
    """News before, at or after a death."""
    sources: tuple[bool, bool]
    """Told by an event of NVML, by the kernel's log."""
    pick: int
    """Chooses among what there is to choose from."""


@dataclass(kw_only=True)
class Crash:
    """A rank that was made to die of a CUDA error."""

    beside: tuple[str, ...]
    """Jobs that were clients of the same daemon then."""
    by_device: bool
    """The device had failed."""


@dataclass(kw_only=True)
class Deeds:
    """What was done to whom."""

    crashed: dict[tuple[str, int], Crash] = field(default_factory=dict)
    killed: set[tuple[str, int]] = field(default_factory=set)
    struck: set[int] = field(default_factory=set)
    told: list[str] = field(default_factory=list)


def schedule(rng: random.Random, kinds: tuple[str, ...], count: int) -> list[Blow]:
    """Each kind comes up before one comes up again."""
    deck: list[str] = []
    while len(deck) < count:
        deck += rng.sample(kinds, len(kinds))
    return [
        Blow(
            kind=kind,
            gpu=rng.randrange(len(UUIDS)),
            looks=rng.randint(1, 25),
            pause=rng.randint(0, 6),
            order=rng.choice(("before", "at", "after")),
            sources=rng.choice(((False, True), (True, True))),
            pick=rng.randrange(1 << 16),
        )
        for kind in deck[:count]
    ]


class Storm:
    def __init__(self, cluster: Cluster, host: GpuHost) -> None:
        self._cluster, self._host = cluster, host
        self.deeds = Deeds()
        self.is_coming = False
        """The agent was started again, and has not said that it is ready."""
        self._undo: list[tuple[int, Undo]] = []
        self._looks = 0
        self._later: list[tuple[int, Callable[[], None]]] = []
        self._faults: list[tuple[list[int], Undo]] = []
        """Of MPS servers, and the clients that have to be gone before it is over."""

    @property
    def kinds(self) -> tuple[str, ...]:
        names = [name.removeprefix("_do_") for name in dir(self) if name.startswith("_do_")]
        return tuple(name for name in names if self._host.program != "none" or not name.startswith("mps_"))

    def look(self) -> None:
        """One more look is over: what is due is taken back, or done at last."""
        self._looks += 1
        due = [each for at, each in self._later if at <= self._looks]
        self._later = [(at, each) for at, each in self._later if at > self._looks]
        over = [each for at, each in self._undo if at <= self._looks]
        self._undo = [(at, each) for at, each in self._undo if at > self._looks]
        gone = [undo for pids, undo in self._faults if not any(map(living, pids))]
        self._faults = [each for each in self._faults if any(map(living, each[0]))]
        for each in (*due, *over, *gone):
            each()

    def strike(self, blow: Blow) -> None:
        self.deeds.told.append(f"look {self._looks}: {blow}")
        undo = getattr(self, f"_do_{blow.kind}")(blow)
        if undo is not None:
            self._undo.append((self._looks + blow.looks, undo))

    def calm(self) -> None:
        """Everything that lasts is taken back."""
        for _, each in (*self._later, *self._undo):
            each()
        self._later, self._undo = [], []
        for fact in ("hang", "fail"):
            self._host.facts.unsay(fact)

    # --- NVML --------------------------------------------------------------------------------------

    def _do_nvml_hangs(self, blow: Blow) -> Undo:
        return self._host.say(f"hang {CALLS[blow.pick % len(CALLS)]} {blow.gpu}")

    def _do_nvml_fails(self, blow: Blow) -> Undo:
        return self._host.say(f"fail {CALLS[blow.pick % 2]} {(2, 4, 15, 999)[blow.pick % 4]}")

    def _do_cuda_does_not_start(self, blow: Blow) -> Undo:
        """Whoever asks finds out: an agent that starts, a device that recovers, a job that fails at once."""
        return self._host.say(f"libcuda init {(802, 999, 100)[blow.pick % 3]} {UUIDS[blow.gpu]}")

    def _do_gpu_is_lost(self, blow: Blow) -> Undo:
        self._break(blow.gpu)
        return self._host.say(f"gpu {blow.gpu} rc {LOST}")

    def _do_gpu_wants_reset(self, blow: Blow) -> Undo:
        return self._host.say(f"gpu {blow.gpu} rc {RESET_REQUIRED}")

    def _do_ecc(self, blow: Blow) -> Undo:
        self._host.ecc(blow.gpu)
        return lambda: self._host.reset(blow.gpu)

    def _do_rows_are_remapped(self, blow: Blow) -> Undo:
        self._host.say(f"gpu {blow.gpu} remap 0 1 1 0")
        return lambda: self._host.reset(blow.gpu)

    def _do_memory_is_held(self, blow: Blow) -> Undo:
        """After whoever is there has ended."""
        undo = self._host.say(f"gpu {blow.gpu} used 6600")
        self._kill_rank(blow, UUIDS[blow.gpu])
        return undo

    def _do_stranger(self, blow: Blow) -> Undo:
        return self._host.stranger(UUIDS[blow.gpu])

    # --- Xids --------------------------------------------------------------------------------------

    def _do_xid_of_a_program(self, blow: Blow) -> None:
        """One rank's; under MPS its neighbours, who is connected with them, and their server go with it."""
        there = self._host.tenants(UUIDS[blow.gpu])
        if not there:
            return
        culprit = there[blow.pick % len(there)]
        hit = [culprit]
        if culprit["pipe"]:
            hit = self._host.connected(UUIDS[blow.gpu])
            recovers = self._host.server_fault(UUIDS[blow.gpu])
            self._faults.append(([each["pid"] for each in hit], recovers))
        named = culprit["pid"] if blow.pick % 3 else None
        number = PROGRAM[blow.pick % len(PROGRAM)]
        self._news_and_deaths(blow, number, named, hit, by_device=False)

    def _do_xid_of_the_device(self, blow: Blow) -> Undo:
        self._break(blow.gpu)
        there = self._host.tenants(UUIDS[blow.gpu])
        hit = there[: blow.pick % 3]
        self._news_and_deaths(blow, BREAKS[blow.pick % len(BREAKS)], None, hit, by_device=True)
        return lambda: self._host.reset(blow.gpu)

    def _do_xid_suspect(self, blow: Blow) -> None:
        self._host.xid(blow.gpu, SUSPECT[blow.pick % 2], None, by_event=True, by_log=blow.sources[1])

    def _do_xid_draining(self, blow: Blow) -> Undo:
        self._host.xid(blow.gpu, DRAIN[blow.pick % 3], None, by_event=blow.sources[0], by_log=True)
        return lambda: self._host.reset(blow.gpu)

    def _news_and_deaths(
        self, blow: Blow, number: int, pid: int | None, hit: list[dict[str, Any]], *, by_device: bool
    ) -> None:
        by_event, by_log = blow.sources
        for each in hit:
            clients = self._host.connected(each["gpu"]) if each["pipe"] else []
            beside = tuple(sorted({other["job"] for other in clients} - {each["job"]}))
            self.deeds.crashed[each["job"], each["attempt"]] = Crash(beside=beside, by_device=by_device)

        def news() -> None:
            self._host.xid(blow.gpu, number, pid, by_event=by_event, by_log=by_log)

        def deaths() -> None:
            for each in hit:
                with suppress(ProcessLookupError):
                    os.kill(each["pid"], signal.SIGUSR1)

        first, second = (news, deaths) if blow.order != "after" else (deaths, news)
        first()
        if blow.order == "at":
            second()
        else:
            self._later.append((self._looks + 1 + blow.pick % 4, second))

    def _break(self, gpu: int) -> None:
        self.deeds.struck.add(gpu)

    # --- MPS ---------------------------------------------------------------------------------------

    def _do_mps_daemon_is_killed(self, blow: Blow) -> None:
        self._host.kill_daemon(UUIDS[blow.gpu])

    def _do_mps_daemon_is_wedged(self, blow: Blow) -> Undo:
        return self._host.wedge_daemon(UUIDS[blow.gpu])

    def _do_mps_pipes_are_removed(self, blow: Blow) -> None:
        self._host.remove_pipes(UUIDS[blow.gpu])

    def _do_mps_second_daemon(self, blow: Blow) -> Undo:
        return self._host.second_daemon(UUIDS[blow.gpu])

    def _do_mps_log_disk_is_full(self, blow: Blow) -> Undo:
        return self._host.full_log_disk(UUIDS[blow.gpu])

    def _do_mps_compute_mode_is_refused(self, blow: Blow) -> Undo:
        self._host.kill_daemon(UUIDS[blow.gpu])
        return self._host.say("fail nvmlDeviceSetComputeMode 4")

    # --- Processes ---------------------------------------------------------------------------------

    def _do_agent_dies(self, blow: Blow) -> Undo:
        agent = self._cluster.agents[HOST]
        if agent.process is not None:
            agent.kill()
        return self.agent_back

    def agent_back(self) -> None:
        if self._cluster.agents[HOST].process is None:
            self._cluster.agents[HOST].launch()
            self.is_coming = True

    def _do_controller_dies(self, blow: Blow) -> None:
        assert self._cluster.controller is not None
        self._cluster.controller.kill()
        self._cluster.controller.start()

    def _do_supervisor_dies(self, blow: Blow) -> None:
        there = self._host.tenants()
        if there:
            each = there[blow.pick % len(there)]
            pid = self._cluster.supervisor(HOST, each["job"], each["attempt"])
            self.deeds.killed.add((each["job"], each["attempt"]))
            if pid is not None:
                kill_if(pid, os.fsencode(self._cluster.folder))

    def _do_rank_dies(self, blow: Blow) -> None:
        self._kill_rank(blow, None)

    def _kill_rank(self, blow: Blow, gpu: str | None) -> None:
        there = self._host.tenants(gpu)
        if there:
            each = there[blow.pick % len(there)]
            self.deeds.killed.add((each["job"], each["attempt"]))
            kill_if(each["pid"], os.fsencode(self._cluster.folder))

    def _do_watcher_dies(self, blow: Blow) -> None:
        self._kill_children("nvml_watch")

    def _do_indicators_die(self, blow: Blow) -> None:
        self._kill_children("device_child")

    def _kill_children(self, module: str) -> None:
        agent = self._cluster.agents[HOST]
        if agent.process is not None:
            for pid in self._host.children(agent.pid, module):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
