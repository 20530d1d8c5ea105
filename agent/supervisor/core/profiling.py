"""The supervisor's part in the profile in place: passes on what the ranks say, and reports the measurements.

Rule: pure, and only the gang's first host measures: its ranks stand for all. Nothing here ever asks, stops,
fails or delays a job; where words are lost there is less of a profile.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from math import inf
from typing import Final

import msgspec

from cotenant.agent.ipc.records import Order
from cotenant.agent.supervisor.core.coordination import Coordination
from cotenant.agent.supervisor.core.progress import RankProgress
from cotenant.agent.supervisor.core.rank_messages import MemorySeen, StepDone
from cotenant.checkpoint.talk import protocol
from cotenant.controller import domain, performance
from cotenant.profiler.indicators.sources import Timed
from cotenant.profiler.inplace import BLIND_AFTER_S, InPlace

LOOK_PERIOD_S: Final = 0.25
"""How often it is looked whether there is something to tell, if nothing else happens."""


class Profiling:
    """The profiling of one attempt; idle where none was asked for."""

    def __init__(self, order: Order, progress: RankProgress, coordination: Coordination) -> None:
        self._order = order
        self._progress = progress
        self._coordination = coordination
        self._inplace: InPlace | None = None
        self._started_s = inf
        self._clock_s = -inf
        self._first_step_s: float | None = None
        self._others_mib = 0.0
        self._was_alone = True
        self._told_first = self._told_complete = False
        self._is_wanted = order.start.profile_s > 0 and order.is_first_host

    def begin(self, now_s: float) -> None:
        """Begins the profile that was asked for, now that the processes run."""
        self._started_s = now_s
        if self._is_wanted:
            start = self._order.start
            batch = None if start.sub_batch is None else start.sub_batch * start.accumulation_steps
            self._inplace = InPlace(
                budget_s=start.profile_s,
                visits=_visits_of(self._order),
                batch_size=batch,
                started_s=now_s,
            )

    @property
    def is_sampling(self) -> bool:
        """Whether indicators are wanted, now or soon."""
        return self._inplace is not None and not self._inplace.is_complete

    @property
    def next_alarm_s(self) -> float:
        """Always ahead of the last `advance`."""
        inplace = self._inplace
        if inplace is None or inplace.is_complete:
            return inf
        return self._clock_s + LOOK_PERIOD_S if inplace.is_watching else self._blind_s

    @property
    def _blind_s(self) -> float:
        """From when on a job whose ranks say nothing (more) is watched from outside."""
        since_s = self._started_s if self._first_step_s is None else self._first_step_s
        return inf if self._progress.hellos else since_s + BLIND_AFTER_S

    # --- What is heard --------------------------------------------------------------------------------

    def first_step(self, now_s: float) -> None:
        if self._first_step_s is None:
            self._first_step_s = now_s

    def note_step(self, word: StepDone, now_s: float) -> None:
        if self._inplace is not None and word.rank == min(self._progress.steps):
            self._inplace.note_step(
                step=word.step, count=word.count, elapsed_s=word.elapsed_s, s=word.s, now_s=now_s
            )

    def note_memory(self, word: MemorySeen, now_s: float) -> None:
        slots = self._order.slots_each
        if self._inplace is not None:
            self._inplace.note_memory(
                first=word.first,
                step=word.step,
                s=word.s,
                memory_mib=None if word.memory_mib is None else word.memory_mib / slots,
                static_mib=None if word.static_mib is None else word.static_mib / slots,
                now_s=now_s,
            )

    def note_samples(self, samples: Iterable[Timed], others_mib: float) -> None:
        self._others_mib = max(self._others_mib, others_mib)
        if self._inplace is not None:
            for sample in samples:
                self._inplace.note_sample(sample)

    # --- What follows ---------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Lets time pass."""
        if self._inplace is None:
            return
        self._clock_s = now_s
        self._inplace.learn_batch(self._progress.status.batch.rows)
        if now_s >= self._blind_s:
            self._inplace.watch_from_outside()
        self._inplace.clock(now_s, alone=self._coordination.is_alone)

    def take_result(self, *, is_over: bool = False) -> performance.Profile | None:
        """The profile where there is something new to tell: enough was measured for a first result, all is
        complete, the job has a co-tenant, or its attempt is over."""
        inplace = self._inplace
        if inplace is None or self._told_complete:
            return None
        lost_co_tenants = self._was_alone and not self._coordination.is_alone
        self._was_alone = self._coordination.is_alone
        complete = inplace.is_complete
        first = inplace.has_first and not self._told_first
        if not (complete or first or lost_co_tenants or is_over) or not (inplace.take_news() or complete):
            return None
        self._told_first, self._told_complete = inplace.has_first, complete
        status = self._progress.status
        found = inplace.profile(
            load_s=None if self._first_step_s is None else self._first_step_s - self._started_s,
            peak_mib=status.memory_mib,
            others_mib=self._others_mib,
        )
        batch = performance.SeenBatch() if status.batch.rows is None else status.batch
        return msgspec.structs.replace(
            found,
            total_steps=status.length.steps,
            batch=batch,
            accumulates=_may_be_split(status.capabilities),
        )

    @property
    def is_complete(self) -> bool:
        return self._inplace is not None and self._inplace.is_complete


def _visits_of(order: Order) -> tuple[performance.Visit, ...]:
    """The s that the job visits: its own, or several where it is there to be measured."""
    env = order.launch.env
    if env.get(protocol.ENV_PROFILING) == "1":
        with suppress(ValueError):  # The script has the same text, and will say what is wrong with it.
            return performance.parse_schedule(env.get(protocol.ENV_ACCUMULATION_SCHEDULE, ""))
    return (performance.Visit(0, inf, order.start.accumulation_steps),)


def _may_be_split(can: domain.Capabilities) -> bool | None:
    """What the job's library has said; None: nothing."""
    return True if can.accumulates else False if can.refuses_to_split else None
