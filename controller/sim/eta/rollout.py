"""Roll-outs: copies of the engine go on, each in a simulated world with a future of its own that all its jobs
share.

Rule: a roll-out returns only when jobs started and ended in it. It only reads the engine: each copy begins
from its encoded state, policy included, and decides as production would. A `Compute` request of the policy
fails, as it would if the compute worker died: a roll-out waits for no fit.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Collection
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from cotenant.controller.domain import ENDED, ComputeRequest, JobId, Phase, StartAttempt
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig, MakePolicy, Snapshot
from cotenant.controller.sim.drive import answer_inline, drive, nothing
from cotenant.controller.sim.eta.futures import ENDLESS_S, INSTANT, Drawing, Future
from cotenant.controller.sim.world.devices import Devices
from cotenant.controller.sim.world.physics import Physics
from cotenant.controller.sim.world.world import World
from cotenant.controller.wire import unpack_struct

EVENTS_PER_JOB_MAX: Final = 60
IDLE_EVENTS_MAX: Final = 2_000


class HeldJob(NamedTuple):
    """A job that comes when it is released."""

    job_id: JobId
    at_s: float


Times = dict[JobId, list[float]]
"""Seconds from now, one per roll-out; infinite where it did not happen."""


class RollOuts:
    """When jobs start and end in so many futures, from one state on."""

    def __init__(self, image: bytes, config: EngineConfig, make_policy: MakePolicy) -> None:
        """Keeps the image from which every roll-out starts. `image`: of `engine.image_of`."""
        self._image, self._make_policy = image, make_policy
        self._config = msgspec.structs.replace(config, keep_ended=8)
        self.starts: Times = {}
        self.ends: Times = {}
        self.instant_starts: Times = {}
        self.instant_ends: Times = {}
        """Of one roll-out more, in which nothing takes any time: what the clock fixes."""
        self.endless: frozenset[JobId] = frozenset()
        """Jobs that nothing ends, but perhaps their time limit."""

    def run(
        self,
        past: Drawing,
        seed: int,
        jobs: Collection[JobId] | None = None,
        release: HeldJob | None = None,
    ) -> None:
        """Makes all roll-outs that `past` counts. `jobs`: only these are of interest; a roll-out stops when
        they have ended."""
        for number in (*range(past.count), INSTANT):
            self._run_one(past, seed, number, jobs, release)
        gc.collect()  # An engine is a circle of references, and the collector is off while we simulate.

    def copy(self) -> Engine:
        """A copy of the engine as it was."""
        engine = Engine(self._make_policy, self._config)
        engine.restore(unpack_struct(self._image, Snapshot))
        return engine

    def _run_one(
        self,
        past: Drawing,
        seed: int,
        number: int,
        jobs: Collection[JobId] | None,
        release: HeldJob | None,
    ) -> None:
        engine = self.copy()
        now_s = engine.now_s
        if all(job.phase in ENDED for job in engine.jobs.values()):
            return
        future = Future(engine, past, number, seed)
        self.endless |= future.endless
        limited = {job.job_id for job in future.jobs if job.spec.time_limit_s is not None}
        wanted = [job for job in future.jobs if jobs is None or job.job_id in jobs]
        known_starts = {job.job_id: job.first_start_s for job in wanted}
        started, ended = follow(
            engine, world_of(engine, future), known_starts, future.endless - limited, release
        )
        starts, ends = self.starts, self.ends
        if number == INSTANT:
            starts, ends = self.instant_starts, self.instant_ends
        for job_id, known_s in known_starts.items():
            start_s = known_s if known_s is not None else started.get(job_id, math.inf)
            starts.setdefault(job_id, []).append(start_s - now_s)
            ends.setdefault(job_id, []).append(ended.get(job_id, math.inf) - now_s)


def world_of(engine: Engine, future: Future) -> World:
    """The world in which a future happens, from now on; nothing fails in it."""
    reports = [host.report for host in engine.hosts.values()]
    world = World(
        future.workload,
        future,
        Devices(reports, future.ratios),
        reports,
        Physics(),
        None,
        engine.config.checkpoint_every_s,
    )
    world.take_over(engine.now_s, future.runs, len(future.jobs))
    return world


def follow(
    engine: Engine,
    world: World,
    wanted: dict[JobId, float | None],
    endless: Collection[JobId],
    release: HeldJob | None = None,
) -> tuple[dict[JobId, float], dict[JobId, float]]:
    """Runs until all wanted jobs have started and ended; returns when. Endless jobs only start."""
    started: dict[JobId, float] = {}
    ended: dict[JobId, float] = {}
    pending = {
        job_id
        for job_id, start_s in wanted.items()
        if (engine.jobs[job_id].phase is not Phase.HELD or (release is not None and job_id == release.job_id))
        and not (job_id in endless and start_s is not None)
    }
    if not pending:
        return started, ended
    if release is not None:
        world.tell_at(release.at_s, ev.ReleaseRequested(job_id=release.job_id, by=""))
    steps = drive(engine, world, _refuse, idle_events_max=IDLE_EVENTS_MAX)
    for event, commands in islice(steps, EVENTS_PER_JOB_MAX * (len(engine.jobs) + 100)):
        now_s = world.now_s
        if now_s >= ENDLESS_S:
            break
        for command in commands:
            if type(command) is StartAttempt and command.job_id not in started:
                started[command.job_id] = now_s
                if command.job_id in endless:
                    pending.discard(command.job_id)
        if type(event) is ev.AttemptEnded:
            job = engine.jobs.get(event.job_id)
            if job is None or job.phase in ENDED:
                ended[event.job_id] = now_s
                pending.discard(event.job_id)
        if not pending:
            break
    return started, ended


def _refuse(request: ComputeRequest) -> ev.Computed:
    """Refuses a computation that the policy asked for."""
    return answer_inline(request, nothing)
