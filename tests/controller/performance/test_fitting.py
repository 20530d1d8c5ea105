"""From a profile that was learned to the throughput model that decisions use: asked once, kept, or not."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import ComputeRequest
from cotenant.controller.domain import events as ev
from cotenant.controller.performance.fitting import (
    KIND,
    measured_steps,
    model_of,
    numbers,
    question,
    steps_in,
)
from cotenant.controller.performance.perf import Profile, step_s
from cotenant.controller.performance.throughput import (
    Coefficients,
    Gang,
    MeasuredStep,
    Reach,
    ThroughputModel,
)
from cotenant.controller.sim import answer_inline
from cotenant.controller.training import KINDS, compute
from cotenant.controller.workers import ComputeWorker
from tests.controller.building import Desk, profile, report

LAW = Coefficients(fixed_s=0.05, per_sample_s=2e-3)
POINTS = tuple((s, LAW.step_s(64, s, Gang()), 900.0 / s) for s in (1, 2, 4, 8))


def learned(desk: Desk, of: Profile) -> list[ComputeRequest]:
    """Job 1 runs and its profile is learned: what is asked then."""
    desk.run(1, batch_size=64, iterations=100)
    desk.tell(ev.ProfileLearned(job_id=desk.job(1).job_id, profile=of))
    return [command for command in desk.commands if isinstance(command, ComputeRequest)]


@given(
    steps=st.lists(
        st.builds(
            MeasuredStep,
            batch_size=st.integers(1, 512).map(float),
            accumulation_steps=st.integers(1, 8),
            gang=st.builds(lambda h, d: Gang(devices=h * d, hosts=h), st.integers(1, 4), st.integers(1, 8)),
            step_s=st.floats(1e-3, 1e3),
        ),
        max_size=6,
    )
)
def test_a_question_holds_the_measured_steps(steps: list[MeasuredStep]) -> None:
    payload = {
        "batch_size": [step.batch_size for step in steps],
        "accumulation_steps": [float(step.accumulation_steps) for step in steps],
        "devices": [float(step.gang.devices) for step in steps],
        "hosts": [float(step.gang.hosts) for step in steps],
        "step_s": [step.step_s for step in steps],
    }
    assert steps_in(payload) == steps


def test_a_question_is_asked_with_the_gang_of_the_job() -> None:
    payload = question(profile(64, *POINTS), 64, Gang(devices=4, hosts=2))
    assert payload is not None
    assert steps_in(payload) == list(measured_steps(profile(64, *POINTS), 64, Gang(devices=4, hosts=2)))
    assert payload["hosts"] == [2.0] * 4


@pytest.mark.parametrize("bad", [{}, {"step_s": "fast"}, {"step_s": [1.0]}])
def test_what_is_no_question_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError)):
        steps_in(bad)


@given(
    reaches=st.sets(st.sampled_from(("device", "host", "hosts")), min_size=1),
    values=st.lists(st.floats(0.0, 10.0), min_size=59, max_size=59),
)
def test_an_answer_is_the_model_in_numbers(reaches: set[Reach], values: list[float]) -> None:
    model = ThroughputModel(
        coefficients=Coefficients(**dict(zip(Coefficients.__struct_fields__, values, strict=False))),
        reaches=tuple(reach for reach in ("device", "host", "hosts") if reach in reaches),
        error_ratio=values[7],
        noise=values[8],
        width=values[9],
        steps=7,
        covariance=tuple(tuple(values[10 + 7 * row : 17 + 7 * row]) for row in range(7)),
    )
    assert model_of(numbers(model)) == model
    assert model_of(numbers(model)[:-1]) is None
    assert model_of(()) is None


def test_a_learned_profile_is_asked_about_once_and_the_model_is_kept() -> None:
    pytest.importorskip("scipy", reason="fits need SciPy, which is not installed here")
    desk = Desk("fifo")
    (asked,) = learned(desk, profile(64, *POINTS))
    assert asked.kind == KIND
    assert asked.kind in KINDS
    assert asked.request_id < 0, "policies count upwards from 1"
    answer = answer_inline(asked, compute)
    assert answer.error == ""
    desk.tell(answer)
    law = desk.job(1).measured.profile.throughput
    assert law is not None
    assert law.error_ratio < 1e-3
    assert desk.commands == [], "a model makes no new question"
    assert step_s(desk.job(1).measured.profile, 64, 16, Gang()) == pytest.approx(
        LAW.step_s(64, 16, Gang()), rel=1e-3
    )


def test_the_next_job_of_its_kind_is_given_the_model_with_the_profile() -> None:
    pytest.importorskip("scipy", reason="fits need SciPy, which is not installed here")
    desk = Desk("fifo", report("a", 4))
    kind: dict[str, Any] = {"batch_size": 64, "argv": ("python", "train.py"), "code_sha256": "c0de"}
    desk.run(1, **kind)
    known = profile(64, *POINTS)
    learned_of = ev.ProfileLearned(
        job_id=desk.job(1).job_id, profile=known, device_type="cpu", is_complete=True
    )
    desk.tell(learned_of)
    (asked,) = (command for command in desk.commands if isinstance(command, ComputeRequest))
    desk.tell(answer_inline(asked, compute))
    desk.submit(2, **kind)
    given = desk.job(2).measured.profile
    assert given is not None and given == desk.job(1).measured.profile
    assert given.throughput is not None


def test_the_computing_process_answers_about_the_job_it_was_asked_about() -> None:
    pytest.importorskip("scipy", reason="fits need SciPy, which is not installed here")
    desk = Desk("fifo")
    (asked,) = learned(desk, profile(64, *POINTS))
    too_little = msgspec.structs.replace(asked, request_id=-7, payload={})

    async def answers() -> list[ev.Computed]:
        told: asyncio.Queue[ev.Computed] = asyncio.Queue()
        thinking = ComputeWorker(told.put_nowait)
        for each in (asked, too_little):
            thinking.start(each)
        found = [await told.get(), await told.get()]
        await thinking.close()
        return found

    good, bad = asyncio.run(answers())
    assert good == answer_inline(asked, compute)
    assert good.job_id == bad.job_id == "1"
    assert bad.error
    assert bad.values == ()


def test_what_was_learned_on_two_hosts_is_asked_about_as_such() -> None:
    desk = Desk("fifo", report("a", 2), report("b", 2))
    desk.run(1, gpus=4, batch_size=64, iterations=100)
    desk.tell(ev.ProfileLearned(job_id=desk.job(1).job_id, profile=profile(64, *POINTS)))
    (asked,) = (command for command in desk.commands if isinstance(command, ComputeRequest))
    assert {step.gang for step in steps_in(asked.payload)} == {Gang(devices=4, hosts=2)}


def test_a_profile_that_says_too_little_is_not_asked_about() -> None:
    assert learned(Desk("fifo"), profile(64, *POINTS[:2])) == []


def test_a_refused_fit_leaves_the_profile_as_it_was() -> None:
    desk = Desk("fifo")
    (asked,) = learned(desk, profile(64, *POINTS))
    desk.tell(
        ev.Computed(
            request_id=asked.request_id,
            model_sha256="",
            values=(),
            error="ValueError: no",
            job_id=asked.job_id,
        )
    )
    assert desk.job(1).measured.profile == profile(64, *POINTS)


def test_an_answer_about_points_that_have_changed_is_dropped() -> None:
    pytest.importorskip("scipy", reason="fits need SciPy, which is not installed here")
    desk = Desk("fifo")
    (asked,) = learned(desk, profile(64, *POINTS))
    desk.tell(ev.ProfileLearned(job_id=desk.job(1).job_id, profile=profile(64, *POINTS[:1])))
    desk.tell(answer_inline(asked, compute))
    assert desk.job(1).measured.profile.throughput is None


def test_an_answer_about_a_job_that_is_gone_changes_nothing() -> None:
    desk = Desk("fifo")
    (asked,) = learned(desk, profile(64, *POINTS))
    desk.tell(ev.Computed(request_id=-1, model_sha256="", values=(1.0,), job_id=asked.job_id))
    desk.tell(ev.Computed(request_id=-1, model_sha256="", values=(1.0,)))
    assert desk.job(1).measured.profile.throughput is None
