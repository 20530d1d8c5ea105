"""The supervisor's part in the profile in place: agrees with the ranks on windows, and reports the
measurements.

Rule: pure, and only the gang's first host measures: its ranks stand for all. Nothing here ever stops, fails
or delays a job; where ranks cannot agree, or words are lost, there is less of a profile.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

import msgspec

from cotenant.agent.ipc import Order
from cotenant.agent.supervisor.core.coordination import Coordination, Voice
from cotenant.agent.supervisor.core.progress import RankProgress
from cotenant.agent.supervisor.core.rank_messages import StepDone, ToRank, WindowReport
from cotenant.controller.performance import Profile, SeenBatch
from cotenant.profiler.indicators.sources import Timed
from cotenant.profiler.inplace import BLIND_AFTER_S, AccumulationWindow, InPlace

LOOK_PERIOD_S: Final = 0.25
"""How often it is looked whether the next window is due, if nothing else happens."""


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
        self._window: ToRank | None = None
        self._others_mib = 0.0
        self._was_alone = True
        self._told_first = self._told_complete = False
        self._awaits_hello = order.launch.may_be_split
        """The hook in its processes says hello once the check after the first step is over."""
        self._is_wanted = order.start.profile_s > 0 and order.is_first_host

    def begin(self, now_s: float) -> None:
        """Begins the profile that was asked for, now that the processes run."""
        self._started_s = now_s
        if self._is_wanted:
            start = self._order.start
            batch = None if start.sub_batch is None else start.sub_batch * start.accumulation_steps
            self._inplace = InPlace(
                budget_s=start.profile_s,
                ordered=start.accumulation_steps,
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
        if self._first_step_s is not None or inplace.is_outside:
            return self._clock_s + LOOK_PERIOD_S
        return inf if self._progress.hellos else self._started_s + BLIND_AFTER_S

    # --- What is heard --------------------------------------------------------------------------------

    def first_step(self, now_s: float) -> None:
        if self._first_step_s is None:
            self._first_step_s = now_s
            if self._inplace is not None and not self._progress.hellos and not self._awaits_hello:
                self._inplace.watch_steps()

    def note_step(self, word: StepDone, now_s: float) -> None:
        if self._inplace is not None and word.rank == self._first_rank:
            self._inplace.note_step(
                step=word.step, count=word.count, elapsed_s=word.elapsed_s, s=word.s, now_s=now_s
            )

    def window_over(self, word: WindowReport, now_s: float) -> bool:
        """Whether now is the time for a sample: a window begins or ends."""
        if self._inplace is None:
            return False
        is_first_rank = word.rank == self._first_rank
        memory_mib = None if word.memory_mib is None else word.memory_mib / self._order.slots_each
        self._inplace.window_over(
            first=word.first,
            step=word.step,
            s=word.s,
            memory_mib=memory_mib,
            is_first_rank=is_first_rank,
            now_s=now_s,
        )
        return is_first_rank and not self._inplace.is_complete

    def note_samples(self, samples: Iterable[Timed], others_mib: float) -> None:
        self._others_mib = max(self._others_mib, others_mib)
        if self._inplace is not None:
            for sample in samples:
                self._inplace.note_sample(sample)

    @property
    def _first_rank(self) -> int:
        return min(self._progress.hellos or self._progress.steps, default=-1)

    # --- What follows ---------------------------------------------------------------------------------

    def advance(self, now_s: float, *, may_ask: bool) -> Voice:
        """Let time pass, take in what was agreed, ask for the next window."""
        inplace = self._inplace
        if inplace is None:
            return []
        self._clock_s = now_s
        inplace.learn_batch(self._progress.status.batch.rows)
        hellos = self._progress.hellos
        if hellos:
            inplace.watch_from_inside()
        elif self._awaits_hello and self._first_step_s is not None:
            if not inplace.is_outside and now_s >= self._first_step_s + BLIND_AFTER_S:
                inplace.watch_steps()
        elif self._first_step_s is None and now_s >= self._started_s + BLIND_AFTER_S:
            inplace.watch_from_outside()
        alone = self._coordination.is_alone
        trains = self._first_step_s is not None and (bool(hellos) or not self._awaits_hello)
        inplace.clock(now_s, alone=alone, is_training=trains or inplace.is_outside)
        self._take_window(inplace)
        if not may_ask or not alone or self._first_step_s is None or not self._coordination.can_change_s:
            return []
        accumulates = self._progress.status.capabilities.accumulates and self._coordination.may_try
        wish = inplace.wish(self._progress.step_s, accumulates=accumulates)
        return [] if wish is None else self._coordination.ask_for_window(wish.s, wish.count, now_s)

    def _take_window(self, inplace: InPlace) -> None:
        if self._coordination.gave_up("accumulate"):
            inplace.not_agreed()
        window = self._coordination.window
        if window is not None and window != self._window:
            self._window = window
            inplace.note_agreement(AccumulationWindow(start=window.step, until=window.until, s=window.s))

    def take_result(self, *, is_over: bool = False) -> Profile | None:
        """The profile where there is something new to tell: the ordered s was measured, all is complete, the
        job has a co-tenant, or its attempt is over."""
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
        load_s = None if self._first_step_s is None else self._first_step_s - self._started_s
        found = inplace.profile(load_s=load_s, peak_mib=status.memory_mib, others_mib=self._others_mib)
        batch = SeenBatch() if status.batch.rows is None else status.batch
        return msgspec.structs.replace(found, total_steps=status.length.steps, batch=batch)

    @property
    def is_complete(self) -> bool:
        return self._inplace is not None and self._inplace.is_complete
