"""The fit: it finds the law it was given, says honestly how far it may be off, refuses what is too little."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import Reason
from cotenant.controller.performance import (
    Coefficients,
    Gang,
    MeasuredStep,
    Profile,
    ProfilePoint,
    ThroughputModel,
    measured_steps,
)
from cotenant.profiler import step_law
from cotenant.profiler.throughput import fit, hold_out

pytest.importorskip("scipy", reason="fits need SciPy, which is not installed here")

SERIES = tuple(Gang(devices=n, hosts=h) for n, h in ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2)))
"""What Castor section 7 profiles on hosts of four."""
WIDE = tuple(Gang(devices=n, hosts=h) for n, h in ((3, 3), (6, 2), (8, 4), (12, 3), (16, 4)))
BATCHES = (16.0, 64.0, 256.0)
LAWS = st.builds(
    Coefficients,
    fixed_s=st.floats(0.05, 0.5),
    per_sample_s=st.floats(1e-3, 5e-3),
    host_sync_s=st.floats(0.1, 0.5),
    hosts_sync_s=st.floats(0.3, 2.0),
    overlap=st.floats(1.2, 5.0),
)


def measured(
    law: Coefficients,
    gangs: Sequence[Gang] = SERIES,
    *,
    steps: Sequence[int] = (1,),
    noise: float = 0.0,
    chance: np.random.Generator | None = None,
) -> list[MeasuredStep]:
    """Steps as the law has them, each off by a lognormal factor."""
    return [
        MeasuredStep(
            batch_size=batch,
            accumulation_steps=s,
            gang=gang,
            step_s=law.step_s(batch, s, gang)
            * (float(np.exp(noise * chance.standard_normal())) if chance is not None else 1.0),
        )
        for gang, batch, s in product(gangs, BATCHES, steps)
    ]


def fitted(steps: Sequence[MeasuredStep]) -> ThroughputModel:
    model = fit(steps)
    assert isinstance(model, ThroughputModel), str(model)
    return model


def profile(*points: tuple[int, float], gang: Gang | None = None, batch: int = 64) -> Profile:
    return Profile(
        points=tuple(
            ProfilePoint(
                sub_batch=-(-batch // s), accumulation_steps=s, step_s=seconds, memory_mib=1.0, gang=gang
            )
            for s, seconds in points
        )
    )


# --- Exact points --------------------------------------------------------------------------------------


@given(law=LAWS, s=st.sampled_from([1, 2, 5]), batch=st.floats(1, 512))
@settings(max_examples=30)
def test_arrays_and_scalars_are_one_formula(law: Coefficients, s: int, batch: float) -> None:
    law = msgspec.structs.replace(law, device_growth_s=0.3, host_growth_s=0.2)
    steps = [
        MeasuredStep(batch_size=batch, accumulation_steps=s, gang=g, step_s=1.0) for g in (*SERIES, *WIDE)
    ]
    table = step_law.StepTable.make(steps)
    values = np.array(msgspec.structs.astuple(law))
    rows = step_law.step_s(values, table, step_law.sync_design(table))
    assert list(rows) == pytest.approx([law.step_s(batch, s, step.gang) for step in steps], rel=1e-9)


@given(law=LAWS)
@settings(max_examples=25)
def test_exact_points_give_back_their_law(law: Coefficients) -> None:
    steps = measured(law, steps=(1, 4))
    found = step_law.solve(step_law.StepTable.make(steps)).coefficients
    assert msgspec.structs.astuple(found) == pytest.approx(msgspec.structs.astuple(law), rel=2e-2, abs=1e-3)


def test_growth_over_many_gangs_is_found() -> None:
    law = Coefficients(
        fixed_s=0.2,
        per_sample_s=2e-3,
        host_sync_s=0.2,
        hosts_sync_s=0.8,
        device_growth_s=0.15,
        host_growth_s=0.1,
        overlap=2.0,
    )
    found = step_law.solve(step_law.StepTable.make(measured(law, (*SERIES, *WIDE)))).coefficients
    assert found.device_growth_s == pytest.approx(0.15, rel=0.02)
    assert found.host_growth_s == pytest.approx(0.1, rel=0.02)


def test_growth_through_two_points_is_held_at_zero_and_makes_the_range_wide() -> None:
    law = Coefficients(fixed_s=0.2, per_sample_s=2e-3, host_sync_s=0.2, hosts_sync_s=0.8, device_growth_s=0.1)
    model = fitted(measured(law))
    assert model.coefficients.device_growth_s == model.coefficients.host_growth_s == 0.0
    near, far = (model.predict(16, 1, Gang(devices=2 * h, hosts=h)) for h in (2, 32))
    assert near is not None
    assert far is not None
    assert far.high_s / far.low_s > 1.5 * near.high_s / near.low_s


@given(law=LAWS, factor=st.sampled_from([1e-3, 1e3]))
@settings(max_examples=5)
def test_the_unit_of_time_does_not_matter(law: Coefficients, factor: float) -> None:
    chance = np.random.default_rng(1)
    steps = measured(law, noise=0.05, chance=chance)
    scaled = [msgspec.structs.replace(step, step_s=factor * step.step_s) for step in steps]
    one, other = (step_law.solve(step_law.StepTable.make(each)) for each in (steps, scaled))
    wide = step_law.StepTable.make(measured(law, WIDE))
    assert factor * one.predict(wide) == pytest.approx(other.predict(wide), rel=1e-3)


# --- Noisy points --------------------------------------------------------------------------------------


def test_the_range_of_four_in_five_holds_at_least_four_in_five() -> None:
    """Fresh noisy measurements, of gangs that were profiled and of one that was not."""
    hits: list[bool] = []
    for seed in range(24):
        chance = np.random.default_rng(seed)
        law = Coefficients(
            fixed_s=chance.uniform(0.05, 0.5),
            per_sample_s=chance.uniform(1e-3, 5e-3),
            host_sync_s=chance.uniform(0.1, 0.5),
            hosts_sync_s=chance.uniform(0.3, 2.0),
            overlap=chance.uniform(1.2, 5.0),
        )
        model = fitted(measured(law, noise=0.06, chance=chance))
        for step in measured(law, (*SERIES, Gang(devices=3, hosts=1)), noise=0.06, chance=chance):
            guess = model.predict(step.batch_size, 1, step.gang)
            assert guess is not None
            hits.append(guess.low_s <= step.step_s <= guess.high_s)
    assert 0.8 <= np.mean(hits) <= 0.97, "seeds 0 to 23"


def test_the_error_it_claims_grows_with_the_noise_and_is_not_below_it() -> None:
    law = Coefficients(fixed_s=0.2, per_sample_s=2e-3, host_sync_s=0.2, hosts_sync_s=0.8)
    claims = []
    for noise in (0.0, 0.03, 0.12):
        of_seed = [
            fitted(measured(law, noise=noise, chance=np.random.default_rng(seed))).error_ratio
            for seed in range(5)
        ]
        claims.append(float(np.mean(of_seed)))
    assert claims[0] < 1e-3
    assert claims[0] < claims[1] < claims[2]
    # The mean of a normal error's size is 0.8 of its standard deviation.
    assert claims[1] > 0.8 * 0.03 * 0.8
    assert claims[2] > 0.8 * 0.12 * 0.8


def test_one_bad_measurement_does_not_bend_the_rest() -> None:
    law = Coefficients(fixed_s=0.2, per_sample_s=2e-3, host_sync_s=0.2, hosts_sync_s=0.8)
    steps = measured(law, noise=0.02, chance=np.random.default_rng(3))
    steps[4] = msgspec.structs.replace(steps[4], step_s=3 * steps[4].step_s)
    found = step_law.solve(step_law.StepTable.make(steps)).coefficients
    for gang, batch in product(SERIES, BATCHES):
        assert found.step_s(batch, 1, gang) == pytest.approx(law.step_s(batch, 1, gang), rel=0.12)


def test_a_held_out_gang_is_predicted_by_the_others_alone() -> None:
    law = Coefficients(fixed_s=0.2, per_sample_s=2e-3, host_sync_s=0.2, hosts_sync_s=0.8)
    gang = Gang(devices=4, hosts=2)
    steps = measured(law, noise=0.05, chance=np.random.default_rng(5))
    wrong = [
        msgspec.structs.replace(step, step_s=7 * step.step_s) if step.gang == gang else step for step in steps
    ]
    one, other = ([h.predicted_s for h in hold_out(each) if h.step.gang == gang] for each in (steps, wrong))
    assert len(one) == len(BATCHES)
    assert one == other


# --- What is refused -----------------------------------------------------------------------------------


def refusal(steps: Sequence[MeasuredStep]) -> str:
    found = fit(steps)
    assert isinstance(found, Reason), "a model, though the points do not determine one"
    assert str(found)
    return found.code


def test_one_batch_size_cannot_tell_fixed_from_per_sample() -> None:
    steps = [MeasuredStep(batch_size=8, gang=gang, step_s=1.0) for gang in (*SERIES, *WIDE)]
    assert refusal(steps) == "throughput-one-batch"
    assert refusal([]) == "throughput-one-batch"


def test_two_points_are_a_line_without_an_error() -> None:
    steps = [MeasuredStep(batch_size=b, step_s=0.1 + 0.01 * b) for b in (8, 16)]
    assert refusal(steps) == "throughput-few"


def test_points_that_only_repeat_two_batch_sizes_show_no_error() -> None:
    steps = [MeasuredStep(batch_size=b, step_s=0.1 + 0.01 * b) for b in (8, 8, 16)]
    assert refusal(steps) == "throughput-no-error"


def test_times_that_follow_no_law_are_refused() -> None:
    chance = np.random.default_rng(2)
    steps = [
        msgspec.structs.replace(step, step_s=float(np.exp(2 * chance.standard_normal())))
        for step in measured(Coefficients(fixed_s=0.2, per_sample_s=1e-3))
    ]
    assert refusal(steps) == "throughput-error"


def test_a_reach_without_points_is_not_known() -> None:
    model = fitted(measured(Coefficients(fixed_s=0.2, per_sample_s=2e-3, host_sync_s=0.2), SERIES[:3]))
    assert model.reaches == ("device", "host")
    assert not model.knows(Gang(devices=2, hosts=2))


def test_a_reach_with_a_single_point_has_no_error_and_is_not_known() -> None:
    law = Coefficients(fixed_s=0.2, per_sample_s=2e-3, host_sync_s=0.2, hosts_sync_s=0.8)
    across = Gang(devices=2, hosts=2)
    one = MeasuredStep(batch_size=64, gang=across, step_s=law.step_s(64, 1, across))
    assert not fitted([*measured(law, SERIES[:3]), one]).knows(across)
    two = MeasuredStep(batch_size=16, gang=across, step_s=law.step_s(16, 1, across))
    assert fitted([*measured(law, SERIES[:3]), one, two]).knows(across)


def test_without_scipy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(step_law.SciPyMissing, match=r"pip install '\.\[predict\]' in the source folder"):
        fit(measured(Coefficients(fixed_s=0.2, per_sample_s=2e-3)))


# --- Profiles ------------------------------------------------------------------------------------------


def test_a_profile_of_one_gang_gets_a_model_from_its_accumulation_steps() -> None:
    law = Coefficients(fixed_s=0.05, per_sample_s=2e-3)
    points = [(s, law.step_s(64, s, Gang())) for s in (1, 2, 4, 8)]
    steps = measured_steps(profile(*points), 64, Gang())
    found = fit(steps)
    assert not isinstance(found, Reason)
    assert found.step_s(64, 16, Gang()) == pytest.approx(law.step_s(64, 16, Gang()), rel=1e-3)
    held_out = hold_out(steps)
    assert [h.step.accumulation_steps for h in held_out] == [1, 2, 4, 8]
    assert max(h.error_ratio for h in held_out) < 1e-3


def test_a_profile_that_is_too_little_gets_no_model_and_says_why() -> None:
    found = fit(measured_steps(profile((1, 1.0), (2, 1.1)), 64, Gang()))
    assert isinstance(found, Reason)
    assert "do not determine" in str(found)


def test_a_batch_that_does_not_divide_is_counted_once() -> None:
    steps = measured_steps(profile((1, 1.0), (3, 1.2), batch=64), 64, Gang(devices=2))
    assert [step.batch_size for step in steps] == [64, 64]
    assert [step.gang.devices for step in steps] == [2, 2]


def test_a_point_of_another_batch_keeps_its_own() -> None:
    (step,) = measured_steps(profile((2, 1.0), batch=32), 64, Gang())
    assert step.batch_size == 32
