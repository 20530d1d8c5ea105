"""Late jobs in whole runs: how long anybody waits, whatever arrives after it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import ENDED, QUEUED, AnyCommand, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import WIDE_RATIO, WIDE_S, Engine
from cotenant.controller.sim import Knowledge, add_knowledge, simulate
from tests.controller.engine.test_lateness import check_marks
from tests.controller.sim.workloads import JobRow, cluster, workload

GPUS, SHARE = 16, 0.75
LOAD_S, PAUSE_S, SHORT_S, LONG_S = 20.0, 5.0, 600.0, 2000.0
NEAR_S = 1.0
TAKING_TURNS = ("sjf", "patient", "cotenant")


def arrivals(seed: int, *, load_s: float = LOAD_S, pause_s: float = PAUSE_S) -> list[JobRow]:
    """Jobs that ask for a fifth more than there is: short ones, and a few long ones and gangs."""
    chance, at_s, rows = random.Random(seed), 0.0, []
    for number in range(80):
        is_long = number % 20 == 5
        gpus = chance.choice((1, 2, 4, 8)) if is_long else chance.choices((1, 2, 4), (8, 2, 1))[0]
        duration_s = float(chance.randint(1000, int(LONG_S)) if is_long else chance.randint(30, int(SHORT_S)))
        rows.append(JobRow(at_s, duration_s, gpus, load_s=load_s, pause_s=pause_s))
        at_s = round(at_s + chance.expovariate(1.2 * GPUS / (1.5 * 0.5 * SHORT_S)), 3)
    return rows


class Waits:
    """The most that a job waited beyond what it was due, seen after each event of a run.

    A job is due when its end under fifo has passed (a wide one: twice that and a day), and all jobs that
    were marked before it have ended."""

    def __init__(self, *, checks: bool = True) -> None:
        self.beyond_s, self.checks = 0.0, checks
        self._ended_s: dict[JobId, float] = {}
        self._marked_s: dict[JobId, float] = {}

    def __call__(self, engine: Engine, event: ev.AnyEvent, commands: Sequence[AnyCommand]) -> None:
        if self.checks:
            check_marks(engine)
        for job in engine.jobs.values():
            if job.aged:
                self._marked_s.setdefault(job.job_id, engine.now_s)
                if job.phase in ENDED:
                    self._ended_s.setdefault(job.job_id, engine.now_s)
        for job in engine.jobs.values():
            if job.phase is QUEUED:
                self.beyond_s = max(self.beyond_s, engine.now_s - self._due_s(engine, job.job_id))

    def _due_s(self, engine: Engine, job_id: JobId) -> float:
        one, limit = engine._lateness._played[job_id], engine._lateness.limit
        if one.begun_s < 0.0:
            return engine.now_s
        fifo_s = one.ends_s - one.submitted_s
        due_s = one.submitted_s + (fifo_s if one.gpus <= limit else WIDE_RATIO * fifo_s + WIDE_S)
        before_s = self._marked_s.get(job_id, engine.now_s)
        for other, marked_s in self._marked_s.items():
            if other != job_id and marked_s <= before_s:
                due_s = max(due_s, self._ended_s.get(other, engine.now_s))
        return due_s


def waits(policy: str, rows: list[JobRow], late_share: float = SHARE, **more: Any) -> Waits:
    seen = Waits()
    jobs = more.pop("jobs", None) or workload(*rows)
    outcome = simulate(
        jobs, cluster(1, GPUS), policy, late_share=late_share, validate=True, look=seen, **more
    )
    assert outcome.finished.all()
    return seen


def most_s(policy: str, rows: list[JobRow], *, firm: bool = False, slowed: float = 1.0) -> float:
    """How long a job may wait once it is due: until all who run then have ended, where they cannot be
    preempted, else until they have loaded and saved."""
    held_s = max(row.duration_s for row in rows) * slowed if firm or policy == "sjf" else 0.0
    return held_s + 3.0 * (LOAD_S + PAUSE_S) + NEAR_S


@pytest.mark.parametrize("policy", TAKING_TURNS)
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32))
def test_every_job_starts_soon_after_it_is_due(policy: str, seed: int) -> None:
    """Whatever arrives after it. A job's wait is at most its time under fifo (a wide one's: twice that and a
    day), the time until all jobs marked before it have ended, and what `most_s` says. Without late jobs this
    fails (below)."""
    rows = arrivals(seed)
    assert waits(policy, rows).beyond_s <= most_s(policy, rows)


@pytest.mark.parametrize("policy", TAKING_TURNS)
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32), known=st.sampled_from(["exact", "progress", "none"]))
def test_so_does_every_job_where_lengths_are_not_told_and_half_of_the_jobs_cannot_resume(
    policy: str, seed: int, known: Any
) -> None:
    """Its time under fifo is what is known of it. Co-tenants take up to twice as long."""
    rows = arrivals(seed)
    jobs = add_knowledge(
        workload(*rows), Knowledge(known=known, resumable=0.5), seed, np.ones(len(rows), np.bool_)
    )
    assert waits(policy, rows, jobs=jobs).beyond_s <= most_s(policy, rows, firm=True, slowed=2.0)


def stream() -> list[JobRow]:
    """A job of half an hour on two devices arrives while all are taken; then short ones, without an end."""
    rows = [JobRow(0.0, 600.0, GPUS, load_s=LOAD_S, pause_s=PAUSE_S)]
    rows += [JobRow(1.0, LONG_S, 2, load_s=LOAD_S, pause_s=PAUSE_S)]
    rows += [JobRow(2.0 + 18.0 * n, 300.0, 1, load_s=LOAD_S, pause_s=PAUSE_S) for n in range(700)]
    return rows


@pytest.mark.parametrize("policy", TAKING_TURNS)
def test_an_endless_stream_of_short_jobs_starves_a_long_one_only_without_turns(policy: str) -> None:
    rows = stream()
    start_s = {}
    for share in (SHARE, 0.0):
        outcome = simulate(workload(*rows), cluster(1, GPUS), policy, late_share=share)
        start_s[share] = float(outcome.wait_s[1])
    fifo_s = 600.0 + LOAD_S + LONG_S + LOAD_S
    assert start_s[SHARE] <= fifo_s + most_s(policy, rows)
    assert start_s[0.0] > 10_000.0 > fifo_s + most_s(policy, rows)


# --- What is played --------------------------------------------------------------------------------------


def fifo_ends(rows: Sequence[JobRow], gpus: int) -> list[float]:
    """When jobs end, one after the other in the order of arrival, on so many devices."""
    free, now_s = gpus, 0.0
    leaving: list[tuple[float, int]] = []
    ends_s = []
    for row in rows:
        now_s = max(now_s, row.submit_s)
        while leaving and (leaving[0][0] <= now_s or free < row.gpus):
            end_s, left = heapq.heappop(leaving)
            now_s, free = max(now_s, end_s), free + left
        free -= row.gpus
        ends_s.append(now_s + row.load_s + row.duration_s)
        heapq.heappush(leaving, (ends_s[-1], row.gpus))
    return ends_s


@pytest.mark.parametrize("policy", ["sjf", "patient"])
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32))
def test_what_is_played_is_fifo(policy: str, seed: int) -> None:
    """Where loads and pauses take no time, however often jobs were preempted."""
    rows = arrivals(seed, load_s=0.0, pause_s=0.0)
    played: dict[int, float] = {}

    def look(engine: Engine, event: ev.AnyEvent, commands: Sequence[AnyCommand]) -> None:
        for one in engine._lateness._played.values():
            if one.begun_s >= 0.0:
                played[int(one.job_id)] = one.ends_s

    simulate(workload(*rows), cluster(1, GPUS), policy, late_share=SHARE, look=look)
    wanted = fifo_ends(rows, GPUS)
    for row, end_s in played.items():
        assert end_s == pytest.approx(wanted[row], abs=0.001 * len(rows)), row
