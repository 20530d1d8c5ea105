"""The profile in place, against a job whose every step costs what an equation says."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.performance import (
    COUNTED_STEPS_MIN,
    WARM_UP_STEPS,
    Profile,
    Visit,
    parse_schedule,
    plan_visits,
    schedule_text,
)
from cotenant.profiler.indicators.sources import (
    Indicator,
    Reading,
    Sample,
    SourceName,
    Timed,
    missing,
)
from cotenant.profiler.inplace import FIRST_PART, InPlace, duty_cycle_of, indicators_of
from tests.building.samples import summarise

STEP_S = 0.12
MEMORY_MIB, STATIC_MIB = 260.0, 110.0


class Trainer:
    """A job that trains at one s and reports each step."""

    def __init__(self, *, batch: int | None = 16, step_s: float = STEP_S) -> None:
        self.batch, self.step_s = batch, step_s
        self.now_s = 0.0
        self.step = self.told = 0
        self.alone = True
        self.s = 1
        self.warm_up_s = 0.0

    def begin(self, budget_s: float, ordered: int = 1) -> InPlace:
        self.s = ordered
        return self.visit((Visit(0, math.inf, ordered),), budget_s)

    def visit(self, visits: tuple[Visit, ...], budget_s: float) -> InPlace:
        return InPlace(budget_s=budget_s, visits=visits, batch_size=self.batch, started_s=0.0)

    def train(self, inplace: InPlace, steps: int) -> None:
        for _ in range(steps):
            self._one(inplace)

    def _one(self, inplace: InPlace) -> None:
        self.step += 1
        elapsed_s = self.step_s + (self.warm_up_s if self.step <= 1 + WARM_UP_STEPS else 0.0)
        self.now_s += elapsed_s
        count = 0 if self.step == 1 else 1  # As a rank tells its first one.
        inplace.note_step(
            step=self.step, count=count, elapsed_s=elapsed_s * count, s=self.s, now_s=self.now_s
        )
        inplace.clock(self.now_s, alone=self.alone)

    def tell_memory(self, inplace: InPlace, memory_mib: float = MEMORY_MIB) -> None:
        inplace.note_memory(
            first=self.told,
            step=self.step,
            s=self.s,
            memory_mib=memory_mib,
            static_mib=STATIC_MIB,
            now_s=self.now_s,
        )
        self.told = self.step


def is_over(inplace: InPlace) -> bool:
    return inplace.is_complete


def result(inplace: InPlace, peak_mib: float | None = None, others_mib: float = 0.0) -> Profile:
    return inplace.profile(load_s=1.0, peak_mib=peak_mib, others_mib=others_mib)


def test_the_step_is_measured_exactly_and_the_first_ones_do_not_count() -> None:
    trainer = Trainer()
    trainer.warm_up_s = 5.0
    inplace = trainer.begin(12.0)
    trainer.train(inplace, 50)
    trainer.tell_memory(inplace)
    trainer.train(inplace, 100)
    assert is_over(inplace)
    profile = result(inplace)
    (point,) = profile.points
    assert (point.accumulation_steps, point.sub_batch) == (1, 16)
    assert point.step_s == pytest.approx(STEP_S)
    assert (point.memory_mib, profile.static_mib) == (MEMORY_MIB, STATIC_MIB)


def test_a_job_that_was_ordered_in_parts_is_measured_at_these() -> None:
    trainer = Trainer()
    inplace = trainer.begin(12.0, ordered=4)
    trainer.train(inplace, 50)
    trainer.tell_memory(inplace)
    trainer.s = 1  # It has refused; what follows is another arithmetic than was ordered.
    trainer.step_s *= 3.0
    trainer.train(inplace, 50)
    trainer.tell_memory(inplace, 900.0)
    (point,) = result(inplace).points
    assert (point.accumulation_steps, point.sub_batch, point.memory_mib) == (4, 4, MEMORY_MIB)
    assert point.step_s == pytest.approx(STEP_S)


def test_t_prof_counts_from_the_first_steps_that_count() -> None:
    trainer = Trainer()
    trainer.warm_up_s = 100.0
    inplace = trainer.begin(6.0)
    trainer.train(inplace, 1 + WARM_UP_STEPS)
    assert not is_over(inplace), "loading is not T_prof"
    before_s = trainer.now_s
    while not inplace.is_complete:
        trainer.train(inplace, 1)
    assert trainer.now_s - before_s == pytest.approx(6.0, abs=STEP_S)


def test_a_first_result_comes_after_a_part_of_t_prof() -> None:
    trainer = Trainer()
    inplace = trainer.begin(60.0)
    trainer.train(inplace, 1 + WARM_UP_STEPS)
    before_s = trainer.now_s
    while not inplace.has_first:
        trainer.train(inplace, 1)
    assert trainer.now_s - before_s == pytest.approx(FIRST_PART * 60.0, abs=STEP_S)


def test_slow_steps_are_measured_for_longer_than_t_prof() -> None:
    trainer = Trainer(step_s=100.0)
    inplace = trainer.begin(60.0)
    while not inplace.is_complete:
        trainer.train(inplace, 1)
    assert trainer.step == 1 + WARM_UP_STEPS + COUNTED_STEPS_MIN
    assert result(inplace, peak_mib=1.0).points[0].step_s == 100.0


def test_a_job_of_unknown_batch_has_its_step_time_and_its_peak() -> None:
    trainer = Trainer(batch=None)
    inplace = trainer.begin(20.0)
    trainer.train(inplace, 500)
    profile = result(inplace, peak_mib=321.0)
    assert profile.points == () and profile.memory_mib_peak == 321.0
    assert profile.step_s == pytest.approx(STEP_S)


def test_a_batch_that_was_seen_does_not_overrule_one_that_was_said() -> None:
    said, seen = Trainer(batch=16).begin(20.0), Trainer(batch=None).begin(20.0)
    for inplace in (said, seen):
        inplace.learn_batch(None)
        inplace.learn_batch(8)
        Trainer().train(inplace, 50)
    assert [result(each, peak_mib=1.0).points[0].sub_batch for each in (said, seen)] == [16, 8]


def test_what_data_loaders_hold_is_there_whatever_the_sub_batch() -> None:
    trainer = Trainer()
    inplace = trainer.begin(20.0)
    trainer.train(inplace, 50)
    trainer.tell_memory(inplace)
    profile = result(inplace, others_mib=40.0)
    assert (profile.memory_mib_peak, profile.static_mib) == (MEMORY_MIB + 40.0, STATIC_MIB + 40.0)
    assert result(inplace, peak_mib=500.0).points[0].memory_mib == 500.0


def test_steps_beside_a_co_tenant_do_not_count_and_t_prof_waits_for_the_job_to_be_alone() -> None:
    trainer = Trainer()
    inplace = trainer.begin(60.0)
    trainer.train(inplace, 30)
    trainer.alone, trainer.step_s = False, 3.0 * STEP_S
    trainer.train(inplace, 2000)
    assert not is_over(inplace)
    assert result(inplace).step_s == pytest.approx(STEP_S)
    trainer.alone, trainer.step_s = True, STEP_S
    trainer.train(inplace, 500)
    assert is_over(inplace)
    assert result(inplace).step_s == pytest.approx(STEP_S)


@given(
    reports=st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 20), st.floats(0.01, 5.0), st.sampled_from([1, 2])),
        max_size=40,
    )
)
def test_a_report_of_first_steps_or_of_another_s_changes_nothing(reports: list[Any]) -> None:
    inplace = Trainer().begin(1000.0)
    inplace.note_step(step=1, count=0, elapsed_s=0.0, s=1, now_s=0.0)
    now_s = 0.0
    for step, count, elapsed_s, s in reports:
        now_s += elapsed_s
        if s == 1 and step - count >= 1 + WARM_UP_STEPS:
            continue
        inplace.note_step(step=step, count=count, elapsed_s=elapsed_s, s=s, now_s=now_s)
    assert result(inplace, peak_mib=1.0).points == ()


def test_memory_of_a_time_that_was_not_all_alone_does_not_count() -> None:
    """On a GPU it would be the co-tenant's, too."""
    trainer = Trainer()
    inplace = trainer.begin(1000.0)
    inplace.clock(1.0, alone=False)
    inplace.clock(2.0, alone=True)
    trainer.step, trainer.now_s = 9, 3.0
    trainer.tell_memory(inplace, 900.0)
    assert result(inplace).memory_mib_peak is None
    trainer.step, trainer.now_s = 20, 4.0
    trainer.tell_memory(inplace, 300.0)
    assert result(inplace).memory_mib_peak == 300.0


# --- A run that is there to be measured ----------------------------------------------------------


class Measured(Trainer):
    """It keeps to its schedule, reports now and then and where s changes; t(s) = fixed * s + rest."""

    def __init__(self, *, fixed_s: float, rest_s: float, batch: int | None = 16, known: bool = True) -> None:
        super().__init__(batch=batch)
        self.fixed_s, self.rest_s = fixed_s, rest_s
        self.visits = parse_schedule(schedule_text(plan_visits(batch if known else None)))
        self.refuses = False
        self.step_told, self.told_s = 0, 0.0

    def time_s(self, s: int) -> float:
        return self.fixed_s * s + self.rest_s

    def to_the_end(self, inplace: InPlace) -> None:
        while not inplace.is_complete:
            visit = next(each for each in self.visits if each.start <= self.step < each.until)
            used = 1 if self.refuses else visit.s
            warm_up_s = 0.7 if self.step < visit.start + WARM_UP_STEPS else 0.0
            self.now_s += self.time_s(used) + warm_up_s
            self.step += 1
            if self.step == visit.until or self.now_s - self.told_s >= 0.1 or self.step == 1:
                inplace.note_step(
                    step=self.step,
                    count=self.step - self.step_told if self.step_told else 0,
                    elapsed_s=self.now_s - self.told_s if self.step_told else 0.0,
                    s=used,
                    now_s=self.now_s,
                )
                self.step_told, self.told_s = self.step, self.now_s
            if self.step == visit.until:
                self.s = used
                self.tell_memory(inplace, 100.0 + 160.0 / used)
            inplace.clock(self.now_s, alone=self.alone)


@pytest.mark.parametrize(("rest_s", "budget_s"), [(0.001, 60.0), (0.1, 60.0), (2.0, 400.0)])
def test_every_s_is_measured_exactly_whatever_a_step_takes(rest_s: float, budget_s: float) -> None:
    job = Measured(fixed_s=rest_s / 5, rest_s=rest_s)
    inplace = job.visit(job.visits, budget_s)
    job.to_the_end(inplace)
    assert job.now_s < budget_s + 10.0 + rest_s * 10
    profile = result(inplace)
    assert [(p.accumulation_steps, p.sub_batch) for p in profile.points] == [
        (1, 16), (2, 8), (4, 4), (8, 2), (16, 1),
    ]  # fmt: skip
    for point in profile.points:
        assert point.step_s == pytest.approx(job.time_s(point.accumulation_steps))
        assert point.memory_mib == 100.0 + 160.0 / point.accumulation_steps
    assert profile.memory_mib_peak == 260.0


def test_slow_steps_are_measured_at_few_s_instead_of_for_ever() -> None:
    job = Measured(fixed_s=2.0, rest_s=8.0)
    inplace = job.visit(job.visits, 60.0)
    job.to_the_end(inplace)
    assert [point.accumulation_steps for point in result(inplace, peak_mib=9.0).points] == [1]
    assert job.now_s < 60.0 + 5 * 10.0


def test_a_batch_of_unknown_size_is_visited_at_all_and_counted_where_it_divides() -> None:
    job = Measured(fixed_s=0.01, rest_s=0.1, batch=12, known=False)
    inplace = job.visit(job.visits, 120.0)
    job.to_the_end(inplace)
    assert {visit.s for visit in job.visits} == {1, 2, 4, 8, 16}
    assert [point.accumulation_steps for point in result(inplace).points] == [1, 2, 4]
    assert {visit.s for visit in plan_visits(12)} == {1, 2, 4}
    assert plan_visits(7) == (Visit(0, math.inf, 1),)


def test_a_job_that_refuses_is_measured_whole_in_all_visits() -> None:
    job = Measured(fixed_s=0.01, rest_s=0.1)
    job.refuses = True
    inplace = job.visit(job.visits, 60.0)
    job.to_the_end(inplace)
    (point,) = result(inplace).points
    assert point.accumulation_steps == 1
    assert point.step_s == pytest.approx(0.11)


def test_the_schedule_grows_from_round_to_round_and_has_no_gaps() -> None:
    visits = plan_visits(64)
    assert [(visit.start, visit.s) for visit in visits[:7]] == [
        (0, 1), (8, 2), (13, 4), (18, 8), (23, 16), (28, 1), (38, 2),
    ]  # fmt: skip
    assert all(one.until == other.start for one, other in itertools.pairwise(visits))
    assert parse_schedule(schedule_text(visits)) == visits
    assert len(schedule_text(visits)) < 1000


@pytest.mark.parametrize("text", ["", "0", "0:1:2", "a:b"])
def test_a_text_that_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"schedule|literal"):
        parse_schedule(text)


def test_samples_count_where_all_of_them_is_at_the_whole_batch() -> None:
    job = Trainer()
    inplace = job.visit((Visit(0, 10, 1), Visit(10, 20, 2), Visit(20, 40, 1), Visit(40, math.inf, 1)), 1000.0)

    def trains(s: int, steps: int) -> None:
        job.s = s
        job.train(inplace, steps)

    trains(1, 5)
    sampled(inplace, 0.4, job.now_s + 0.5)
    trains(1, 5)
    job.tell_memory(inplace)
    sampled(inplace, 0.9, job.now_s + 0.3)  # Began before the change.
    trains(2, 10)
    sampled(inplace, 0.9, job.now_s)
    job.tell_memory(inplace)
    trains(1, 4)
    sampled(inplace, 0.6, job.now_s + 0.5)
    profile = result(inplace)
    assert profile.duty_cycle == pytest.approx(0.5)


# --- Indicators -----------------------------------------------------------------------------------


def sample(smact: float) -> Sample:
    measured = {Indicator.SMACT: Reading(value=smact, source="cpu")}
    return {**measured, Indicator.FP32A: missing("cpu", "no such counter")}


def sampled(inplace: InPlace, smact: float, at_s: float) -> None:
    """A sample of the half second before."""
    inplace.note_sample(Timed(since_s=at_s - 0.5, at_s=at_s, period_s=0.5, values=sample(smact)))


def test_samples_count_once_the_job_trains() -> None:
    trainer = Trainer()
    inplace = trainer.begin(1000.0)
    sampled(inplace, 0.9, 0.5)  # It loads.
    inplace.watch_from_outside()
    sampled(inplace, 0.9, 1.0)  # It has said nothing for long: perhaps it trains.
    trainer.now_s = 1.0
    trainer.train(inplace, 2 + WARM_UP_STEPS)  # It does now.
    for at_s, smact in ((2.0, 0.4), (2.5, 0.6)):
        sampled(inplace, smact, at_s)
    inplace.clock(2.6, alone=False)
    sampled(inplace, 0.9, 3.0)
    profile = result(inplace)
    assert profile.indicators is not None and profile.source == "in place"
    assert profile.indicators.SMACT.mean == pytest.approx(0.5)
    assert profile.indicators.SMACT.variance == pytest.approx(0.01)
    assert profile.indicators.SMACT.source == "cpu"
    assert (profile.indicators.SMACT.count, profile.indicators.SMACT.period_s) == (2, 0.5)
    assert profile.indicators.FP32A.missing, "what has no counter is missing, not 0"
    assert profile.duty_cycle == pytest.approx(0.5)


def test_a_job_without_the_library_is_watched_from_outside_for_t_prof() -> None:
    inplace = Trainer().begin(3.0)
    inplace.watch_from_outside()
    for tick in range(1, 20):
        inplace.clock(tick * 0.5, alone=True)
        sampled(inplace, 0.5, tick * 0.5)
    assert inplace.is_complete
    profile = result(inplace, peak_mib=77.0)
    assert profile.source == "from outside" and profile.points == ()
    assert profile.memory_mib_peak == 77.0 and profile.duty_cycle == pytest.approx(0.5)


def test_the_duty_cycle_of_a_gpu_is_when_anything_runs_and_of_a_slot_the_share_of_its_cores() -> None:
    def one(source: SourceName) -> Sample:
        values = {Indicator.GRACT: 0.9, Indicator.SMACT: 0.4}
        return {name: Reading(value=value, source=source) for name, value in values.items()}

    assert duty_cycle_of(summarise([one("gpm")], 0.5)) == 0.9
    assert duty_cycle_of(summarise([one("cgroup")], 0.5)) == 0.4
    assert duty_cycle_of({}) is None


def test_a_single_sample_has_a_mean_and_no_variance() -> None:
    stats = indicators_of(summarise([sample(0.25)], 0.5)).SMACT
    assert stats.mean == 0.25 and stats.variance is None and not math.isnan(stats.mean)
