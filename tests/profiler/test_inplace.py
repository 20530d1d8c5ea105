"""The profile in place, against a job whose every step costs what an equation says."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.performance import Profile, fit_step_model
from cotenant.profiler.indicators.sources import (
    Indicator,
    Reading,
    Sample,
    SourceName,
    Timed,
    missing,
)
from cotenant.profiler.inplace import (
    COUNTED_STEPS_MIN,
    FAILURES_MAX,
    ROUNDS,
    WARM_UP_STEPS,
    AccumulationWindow,
    InPlace,
    choices,
    duty_cycle_of,
    indicators_of,
)
from tests.building.samples import summarise

LEAD_STEPS = 3
"""How far ahead of the job a window is agreed on."""


class Trainer:
    """A job that trains and reports each step; t(s) = fixed * s + rest, memory = base + per_row * batch /
    s."""

    def __init__(self, *, batch: int | None = 16, fixed_s: float = 0.02, rest_s: float = 0.1) -> None:
        self.batch, self.fixed_s, self.rest_s = batch, fixed_s, rest_s
        self.now_s = 0.0
        self.step = 0
        self.alone = True
        self.accumulates = True
        self.windows: list[AccumulationWindow] = []
        self.stretch_first = 0
        self.slower = 1.0
        self.warm_up_s = 0.0
        self.refuses = False

    def step_s(self, s: int) -> float:
        return (self.fixed_s * s + self.rest_s) * self.slower

    def memory_mib(self, s: int) -> float:
        return 100.0 + 10.0 * (self.batch or 1) / s

    def s_of(self, step: int) -> int:
        found = [w.s for w in self.windows if w.start < step <= w.until]
        return found[0] if found else 1

    def begin(self, budget_s: float) -> InPlace:
        return InPlace(budget_s=budget_s, ordered=1, batch_size=self.batch, started_s=0.0)

    def train(self, inplace: InPlace, steps: int) -> None:
        for _ in range(steps):
            self._one(inplace)

    def _one(self, inplace: InPlace) -> None:
        self.step += 1
        wanted = self.s_of(self.step)
        s = 1 if self.refuses else wanted
        just_turned = self.step - self.stretch_first <= WARM_UP_STEPS
        elapsed_s = self.step_s(s) + (self.warm_up_s if just_turned else 0.0)
        self.now_s += elapsed_s
        inplace.clock(self.now_s, alone=self.alone, is_training=True)
        inplace.note_step(step=self.step, count=1, elapsed_s=elapsed_s, s=s, now_s=self.now_s)
        if any(self.step in (w.start, w.until) for w in self.windows):
            inplace.window_over(
                first=self.stretch_first,
                step=self.step,
                s=s,
                memory_mib=self.memory_mib(s),
                is_first_rank=True,
                now_s=self.now_s,
            )
            self.stretch_first = self.step
        wish = inplace.wish(self.step_s(1), accumulates=self.accumulates)
        if wish is not None:
            start = self.step + LEAD_STEPS
            self.windows.append(AccumulationWindow(start=start, until=start + wish.count, s=wish.s))
            inplace.note_agreement(self.windows[-1])


def is_over(inplace: InPlace) -> bool:
    return inplace.is_complete


def result(inplace: InPlace, peak_mib: float | None = None) -> Profile:
    return inplace.profile(load_s=1.0, peak_mib=peak_mib)


def test_the_batch_is_halved_as_long_as_it_divides() -> None:
    assert choices(1, 64) == (1, 2, 4, 8, 16)
    assert choices(1, 12) == (1, 2, 4)
    assert choices(1, 7) == (1,)
    assert choices(1, None) == (1,)
    assert choices(4, 16) == (4, 8, 16), "never a larger sub-batch than was planned for"


def test_every_s_is_measured_exactly_and_nothing_else_counts() -> None:
    trainer = Trainer()
    trainer.warm_up_s = 5.0  # What the first steps of a window pay must not be seen.
    inplace = trainer.begin(400.0)
    trainer.train(inplace, 3000)
    assert inplace.is_complete
    profile = result(inplace)
    assert [point.accumulation_steps for point in profile.points] == [1, 2, 4, 8, 16]
    for point in profile.points:
        assert point.step_s == pytest.approx(trainer.step_s(point.accumulation_steps))
        assert point.memory_mib == trainer.memory_mib(point.accumulation_steps)
        assert point.sub_batch == 16 // point.accumulation_steps
    model = fit_step_model(profile, 16)
    assert model is not None and model.fixed_s == pytest.approx(trainer.fixed_s)


def test_t_prof_is_kept_to_within_a_window_and_shared_out_evenly() -> None:
    trainer = Trainer(rest_s=0.05, fixed_s=0.001)
    inplace = trainer.begin(60.0)
    while not inplace.is_complete:
        trainer.train(inplace, 1)
    assert trainer.now_s < 60.0 * 1.1
    lengths = [window.until - window.start for window in trainer.windows]
    times = [n * trainer.step_s(w.s) for n, w in zip(lengths, trainer.windows, strict=True)]
    assert len(times) >= 5 * ROUNDS - 1
    assert max(times) < 2.0 * min(times)


def test_the_first_visit_of_each_s_comes_before_the_second_of_any() -> None:
    trainer = Trainer()
    trainer.train(trainer.begin(100.0), 2000)
    assert [window.s for window in trainer.windows[:6]] == [1, 2, 4, 8, 16, 1]


def test_slow_steps_are_measured_at_few_s_instead_of_for_ever() -> None:
    trainer = Trainer(rest_s=5.0, fixed_s=5.0)
    inplace = trainer.begin(60.0)
    while not inplace.is_complete:
        trainer.train(inplace, 1)
    assert [point.accumulation_steps for point in result(inplace).points] == [1]
    assert trainer.now_s < 60.0 + 10 * (WARM_UP_STEPS + COUNTED_STEPS_MIN + LEAD_STEPS)


def test_a_job_that_does_not_accumulate_is_measured_as_it_is() -> None:
    trainer = Trainer()
    trainer.accumulates = False
    inplace = trainer.begin(20.0)
    trainer.train(inplace, 500)
    assert {window.s for window in trainer.windows} == {1}
    assert [point.accumulation_steps for point in result(inplace).points] == [1]


def test_a_job_of_unknown_batch_is_never_asked_to_accumulate_and_has_its_peak() -> None:
    trainer = Trainer(batch=None)
    inplace = trainer.begin(20.0)
    trainer.train(inplace, 500)
    assert {window.s for window in trainer.windows} == {1}
    profile = result(inplace, peak_mib=321.0)
    assert profile.points == () and profile.memory_mib_peak == 321.0


def test_a_job_that_refuses_a_tried_s_is_tried_no_more() -> None:
    trainer = Trainer()
    trainer.refuses = True
    inplace = trainer.begin(60.0)
    trainer.train(inplace, 2000)
    assert inplace.refused and result(inplace).accumulates is False
    assert [window.s for window in trainer.windows].count(2) == 1
    assert {window.s for window in trainer.windows} <= {1, 2}
    assert [point.accumulation_steps for point in result(inplace).points] == [1]


def test_steps_beside_a_co_tenant_do_not_count_and_t_prof_waits_for_the_job_to_be_alone() -> None:
    trainer = Trainer()
    inplace = trainer.begin(100.0)
    trainer.train(inplace, 30)
    trainer.alone, trainer.slower = False, 3.0
    seen = len(trainer.windows)
    trainer.train(inplace, 2000)
    assert len(trainer.windows) == seen, "no window is asked for beside a co-tenant"
    assert not is_over(inplace)
    assert all(point.step_s == pytest.approx(0.12) for point in result(inplace).points)
    trainer.alone, trainer.slower = True, 1.0
    trainer.train(inplace, 2000)
    assert is_over(inplace)
    for point in result(inplace).points:
        assert point.step_s == pytest.approx(trainer.step_s(point.accumulation_steps))


def test_ranks_that_never_agree_end_the_profile_without_them() -> None:
    inplace = Trainer().begin(100.0)
    for n in range(FAILURES_MAX):
        assert not inplace.is_complete
        inplace.clock(float(n), alone=True, is_training=True)
        assert inplace.wish(0.1, accumulates=True) is not None
        inplace.not_agreed()
    assert inplace.is_complete
    assert result(inplace).points == ()


def test_a_wish_that_nobody_answers_is_given_up() -> None:
    inplace = Trainer().begin(1000.0)
    assert inplace.wish(0.1, accumulates=True) is not None
    assert inplace.wish(0.1, accumulates=True) is None, "one at a time"
    inplace.clock(61.0, alone=True, is_training=True)
    assert inplace.wish(0.1, accumulates=True) is not None


def test_a_lost_word_about_a_windows_end_does_not_hold_the_profile_up() -> None:
    inplace = Trainer().begin(1000.0)
    wish = inplace.wish(0.1, accumulates=True)
    assert wish is not None
    inplace.note_agreement(AccumulationWindow(start=5, until=5 + wish.count, s=wish.s))
    inplace.note_step(step=6 + wish.count, count=1, elapsed_s=0.1, s=1, now_s=9.0)
    assert inplace.window is None


@given(
    reports=st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 20), st.floats(0.01, 5.0), st.sampled_from([1, 2, 4])),
        max_size=40,
    )
)
def test_a_report_that_is_not_all_inside_its_window_changes_nothing(reports: list[Any]) -> None:
    inplace = Trainer().begin(1000.0)
    assert inplace.wish(0.1, accumulates=True) is not None
    window = AccumulationWindow(start=20, until=40, s=1)
    inplace.note_agreement(window)
    now_s = 0.0
    for step, count, elapsed_s, s in reports:
        now_s += elapsed_s
        inside = window.start + WARM_UP_STEPS <= step - count and step <= window.until and s == 1
        if inside and elapsed_s <= now_s:
            continue
        inplace.note_step(step=step, count=count, elapsed_s=elapsed_s, s=s, now_s=now_s)
    assert result(inplace, peak_mib=1.0).points == ()


def test_memory_of_a_stretch_that_was_not_all_alone_does_not_count() -> None:
    """On a GPU it would be the co-tenant's, too."""
    inplace = Trainer().begin(1000.0)
    inplace.clock(1.0, alone=False, is_training=True)
    inplace.clock(2.0, alone=True, is_training=True)
    inplace.window_over(first=0, step=9, s=1, memory_mib=900.0, is_first_rank=True, now_s=3.0)
    assert result(inplace).memory_mib_peak is None
    inplace.window_over(first=9, step=20, s=1, memory_mib=300.0, is_first_rank=True, now_s=4.0)
    assert result(inplace).memory_mib_peak == 300.0


# --- Indicators -----------------------------------------------------------------------------------


def sample(smact: float) -> Sample:
    measured = {Indicator.SMACT: Reading(value=smact, source="cpu")}
    return {**measured, Indicator.FP32A: missing("cpu", "no such counter")}


def sampled(inplace: InPlace, smact: float, at_s: float) -> None:
    """A sample of the half second before."""
    inplace.note_sample(Timed(since_s=at_s - 0.5, at_s=at_s, period_s=0.5, values=sample(smact)))


def test_samples_count_only_where_they_lie_in_a_window_at_the_whole_batch() -> None:
    inplace = Trainer().begin(1000.0)

    def stretch(first: int, step: int, now_s: float, s: int = 1) -> None:
        inplace.window_over(first=first, step=step, s=s, memory_mib=None, is_first_rank=True, now_s=now_s)

    sampled(inplace, 0.9, 0.5)  # Before any window.
    assert inplace.wish(0.1, accumulates=True) is not None
    inplace.note_agreement(AccumulationWindow(start=10, until=20, s=1))
    stretch(0, 10, 1.0)
    sampled(inplace, 0.9, 1.0)  # Began before the window did.
    sampled(inplace, 0.4, 1.5)
    sampled(inplace, 0.6, 2.0)
    stretch(10, 20, 2.0)
    sampled(inplace, 0.9, 2.5)
    inplace.note_agreement(AccumulationWindow(start=30, until=40, s=2))
    stretch(20, 30, 3.0)
    sampled(inplace, 0.1, 3.0)
    sampled(inplace, 0.1, 3.5)  # At s = 2.
    profile = result(inplace)
    assert profile.indicators is not None
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
        inplace.clock(tick * 0.5, alone=True, is_training=True)
        sampled(inplace, 0.5, tick * 0.5)
        assert inplace.wish(None, accumulates=False) is None
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
