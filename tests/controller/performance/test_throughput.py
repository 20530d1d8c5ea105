"""The law of a step's time (Castor eq. 1 to 3) as promises, and where decisions take it from."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.performance.perf import Profile, ProfilePoint, step_s
from cotenant.controller.performance.throughput import (
    Coefficients,
    Gang,
    MeasuredStep,
    ThroughputModel,
    overlapped_s,
)

TIMES = st.floats(0.0, 10.0)
OVERLAPS = st.floats(1.0, 10.0)
BATCHES = st.integers(1, 4096)
STEPS = st.integers(1, 64)
LAWS = st.builds(
    Coefficients,
    fixed_s=st.floats(1e-4, 10.0),
    per_sample_s=st.floats(1e-6, 0.1),
    host_sync_s=TIMES,
    hosts_sync_s=TIMES,
    device_growth_s=TIMES,
    host_growth_s=TIMES,
    overlap=OVERLAPS,
)
GANGS = st.builds(
    lambda hosts, each: Gang(devices=hosts * each, hosts=hosts), st.integers(1, 16), st.integers(1, 8)
)
LAW = Coefficients(fixed_s=0.1, per_sample_s=0.01, host_sync_s=0.2, hosts_sync_s=0.5, device_growth_s=0.1)
PAIR = Gang(devices=2)


def model(law: Coefficients = LAW, *, open_s: float = 0.0, noise: float = 0.05) -> ThroughputModel:
    """Of gangs inside one host; every coefficient open by so much."""
    return ThroughputModel(
        coefficients=law,
        reaches=("device", "host"),
        error_ratio=0.04,
        noise=noise,
        covariance=tuple(tuple(open_s**2 if i == j else 0.0 for j in range(7)) for i in range(7)),
        width=1.3,
        steps=12,
    )


def point(s: int, seconds: float, gang: Gang | None = None) -> ProfilePoint:
    return ProfilePoint(sub_batch=64 // s, accumulation_steps=s, step_s=seconds, memory_mib=1.0, gang=gang)


# --- The formula ---------------------------------------------------------------------------------------


@given(law=LAWS, batch=BATCHES, gang=GANGS)
def test_without_accumulation_a_step_is_one_batch_and_one_sync_overlapped(
    law: Coefficients, batch: int, gang: Gang
) -> None:
    compute_s, sync_s, d = law.fixed_s + law.per_sample_s * batch, law.sync_s(gang), law.overlap
    plain_s = (compute_s**d + sync_s**d) ** (1 / d)
    assert law.step_s(batch, 1, gang) == pytest.approx(plain_s, rel=1e-9)


@given(law=LAWS, batch=BATCHES, more=st.integers(1, 4096), s=STEPS, gang=GANGS)
def test_a_larger_batch_never_takes_less_time(
    law: Coefficients, batch: int, more: int, s: int, gang: Gang
) -> None:
    assert law.step_s(batch + more, s, gang) >= law.step_s(batch, s, gang) * (1 - 1e-12)


@given(law=LAWS, batch=BATCHES, s=STEPS, more=STEPS, gang=GANGS)
def test_more_accumulation_never_takes_less_time(
    law: Coefficients, batch: int, s: int, more: int, gang: Gang
) -> None:
    """Smaller micro-batches hide less of the sync, and each has its fixed part."""
    assert law.step_s(batch, s + more, gang) >= law.step_s(batch, s, gang) * (1 - 1e-9)


@given(first=TIMES, second=TIMES, overlap=OVERLAPS)
def test_overlapped_times_lie_between_the_longer_and_the_sum(
    first: float, second: float, overlap: float
) -> None:
    both = overlapped_s(first, second, overlap)
    assert max(first, second) <= both <= (first + second) * (1 + 1e-12)
    assert both == overlapped_s(second, first, overlap)
    assert overlapped_s(first, second, 1.0) == pytest.approx(first + second)


@given(law=LAWS, batch=BATCHES, s=STEPS)
def test_one_device_syncs_nothing(law: Coefficients, batch: int, s: int) -> None:
    assert law.sync_s(Gang()) == 0.0
    assert law.step_s(batch, s, Gang()) == pytest.approx(s * law.fixed_s + batch * law.per_sample_s)


def test_a_sync_has_one_constant_inside_a_host_and_another_across() -> None:
    assert LAW.sync_s(Gang(devices=2)) == LAW.sync_s(Gang(devices=8)) == 0.2
    assert LAW.sync_s(Gang(devices=2, hosts=2)) == 0.5
    assert LAW.sync_s(Gang(devices=8, hosts=2)) == pytest.approx(0.5 + 2 * 0.1)


@given(
    law=LAWS.filter(lambda law: min(msgspec.structs.astuple(law)) > 1e-3 and 1.05 < law.overlap < 9.9),
    batch=BATCHES,
    s=STEPS,
    gang=GANGS,
)
def test_slopes_are_those_of_the_formula(law: Coefficients, batch: int, s: int, gang: Gang) -> None:
    for name, slope in zip(law.__struct_fields__, law.slope(batch, s, gang), strict=True):
        value = getattr(law, name)
        small = 1e-5 * value
        up, down = (
            msgspec.structs.replace(law, **{name: value + sign * small}).step_s(batch, s, gang)
            for sign in (1, -1)
        )
        wanted = (up - down) / (2 * small)
        assert slope == pytest.approx(wanted, rel=1e-3, abs=1e-6 * law.step_s(batch, s, gang) / value)


@pytest.mark.parametrize(("devices", "hosts"), [(0, 1), (1, 2), (4, 0)])
def test_a_gang_without_a_device_on_each_host_is_refused(devices: int, hosts: int) -> None:
    with pytest.raises(ValueError, match="at least one device"):
        Gang(devices=devices, hosts=hosts)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_steps_that_make_no_sense_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        MeasuredStep(batch_size=8, step_s=bad)
    with pytest.raises(ValueError, match="positive and finite"):
        MeasuredStep(batch_size=bad, step_s=1.0)
    with pytest.raises(ValueError, match="at least 1"):
        MeasuredStep(batch_size=8, accumulation_steps=0, step_s=1.0)


# --- The model -----------------------------------------------------------------------------------------


def test_nothing_is_said_of_a_reach_that_was_not_measured() -> None:
    across = Gang(devices=4, hosts=2)
    assert model().step_s(64, 1, across) is None
    assert model().predict(64, 1, across) is None


@given(batch=BATCHES, s=STEPS, open_s=st.floats(0.0, 0.1))
def test_the_range_holds_the_prediction_and_is_never_narrower_than_the_error(
    batch: int, s: int, open_s: float
) -> None:
    guess = model(open_s=open_s).predict(batch, s, PAIR)
    assert guess is not None
    assert guess.low_s < guess.step_s < guess.high_s
    assert guess.high_s / guess.step_s >= math.exp(1.3 * 0.05) * (1 - 1e-12)


def test_a_model_travels_as_it_is() -> None:
    profile = Profile(points=(point(1, 1.0, PAIR),), throughput=model(open_s=0.01))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(profile), type=Profile) == profile


def test_a_profile_from_before_there_were_models_is_read() -> None:
    old = {"points": [{"sub_batch": 8, "accumulation_steps": 1, "step_s": 0.1, "memory_mib": 5.0}]}
    profile = msgspec.convert(old, Profile)
    assert profile.throughput is None
    assert profile.point_at(1, Gang(devices=4)) is not None, "a point without a gang is of the job's own"


# --- Where decisions take it from ----------------------------------------------------------------------


def test_what_was_measured_on_the_gang_is_believed_over_the_law() -> None:
    profile = Profile(points=(point(2, 9.0, PAIR),), throughput=model())
    assert step_s(profile, 64, 2, PAIR) == 9.0


def test_the_law_scales_the_nearest_step_measured_on_the_gang() -> None:
    """It may be off as a whole; how a step grows with s it knows better."""
    profile = Profile(points=(point(1, 2 * LAW.step_s(64, 1, PAIR), PAIR),), throughput=model())
    assert step_s(profile, 64, 4, PAIR) == pytest.approx(2 * LAW.step_s(64, 4, PAIR))


def test_the_law_alone_serves_a_gang_that_was_not_measured() -> None:
    profile = Profile(points=(point(1, 0.7, PAIR),), throughput=model())
    assert step_s(profile, 64, 2, Gang(devices=4)) == LAW.step_s(64, 2, Gang(devices=4))


def test_points_of_another_gang_say_nothing_without_a_law() -> None:
    assert step_s(Profile(points=(point(1, 0.7, PAIR),)), 64, 1, Gang(devices=4)) is None


def test_a_reach_the_law_does_not_know_falls_back_to_the_small_model() -> None:
    across = Gang(devices=2, hosts=2)
    own = (point(1, 1.0, across), point(2, 1.5, across))
    profile = Profile(points=(point(4, 0.1, PAIR), *own), throughput=model())
    assert step_s(profile, 64, 4, across) == pytest.approx(2.5)


def test_without_a_gang_everything_is_as_it_was() -> None:
    profile = Profile(points=(point(1, 1.0), point(2, 1.5)), throughput=model())
    assert step_s(profile, 64, 4) == pytest.approx(2.5)
