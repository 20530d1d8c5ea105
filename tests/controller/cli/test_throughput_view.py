"""The throughput model as people and programs see it: measured or predicted, and unknown not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from cotenant.controller.performance import Coefficients, Gang, Profile, ProfilePoint, ThroughputModel
from cotenant.controller.present.throughput import throughput_lines
from cotenant.controller.wire import StepTimeView, throughput_view
from cotenant.controller.wire import clients as wire
from tests.controller.cli.test_profile import known, known_list

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn

LAW = ThroughputModel(
    coefficients=Coefficients(fixed_s=0.1, per_sample_s=0.01, host_sync_s=0.2),
    reaches=("device", "host"),
    error_ratio=0.073,
    noise=0.08,
    covariance=((0.0,) * 7,) * 7,
    width=1.3,
    steps=6,
)
POINTS = tuple(
    ProfilePoint(sub_batch=8 // s, accumulation_steps=s, step_s=0.1 * s + 0.08, memory_mib=300.0)
    for s in (1, 2, 4)
)
PROFILE = Profile(points=POINTS, source="in place", throughput=LAW)
ONE = Gang()


def steps(profile: Profile, own: Gang) -> dict[tuple[int, int, int], StepTimeView]:
    view = throughput_view(profile, 8, own)
    assert view is not None
    return {(each.devices, each.hosts, each.accumulation_steps): each for each in view.steps}


def lines(profile: Profile, own: Gang = ONE) -> list[str]:
    return throughput_lines(profile.points, throughput_view(profile, 8, own), 8)


def test_a_measured_step_is_shown_as_it_was_and_others_with_their_range() -> None:
    found = steps(PROFILE, ONE)
    assert found[1, 1, 2].measured_s == pytest.approx(0.28)
    pair = found[2, 1, 1]
    assert pair.measured_s is None and pair.step_s == LAW.step_s(8, 1, Gang(devices=2))
    assert pair.low_s is not None and pair.step_s is not None and pair.high_s is not None
    assert pair.low_s < pair.step_s < pair.high_s
    assert {devices for devices, _, _ in found} == {1, 2, 4, 8}


def test_of_a_reach_that_was_never_measured_nothing_is_said() -> None:
    assert not any(hosts > 1 for _, hosts, _ in steps(PROFILE, ONE))
    own = Gang(devices=4, hosts=2)
    assert {each[:2] for each in steps(PROFILE, own) if each[1] > 1} == {(4, 2)}, "its own was measured"
    told = "\n".join(lines(PROFILE))
    assert "not measured, so not said: several hosts" in told
    assert "off by 7.3%" in told and "6 points" in told
    assert "0.28s" in told and " to " in told


def test_without_a_model_one_line_says_why_and_without_a_profile_nothing() -> None:
    bare = msgspec.structs.replace(PROFILE, throughput=None)
    (_, line) = lines(bare)
    assert "no model of it" in line
    assert lines(Profile()) == []
    assert throughput_view(bare, 8, ONE) is throughput_view(None, 8, ONE) is None


def test_points_of_other_gangs_are_theirs() -> None:
    other = msgspec.structs.replace(POINTS[0], gang=Gang(devices=2), step_s=0.33)
    found = steps(msgspec.structs.replace(PROFILE, points=(*POINTS, other)), ONE)
    assert found[2, 1, 1].measured_s == 0.33


def test_profile_show_has_it(controller: StandIn, cotenant: Cotenant) -> None:
    controller.says(wire.ListProfiles, known_list(known(profile=PROFILE)))
    page = cotenant("profile", "show", "abc").out
    assert "DEVICES" in page and "S = 4" in page
    value = json.loads(cotenant("profile", "show", "abc", "-o", "json").out)["throughput"]
    assert (value["schema"], value["error_ratio"], value["points"]) == ("throughput/1", 0.073, 6)
    first = value["steps"][0]
    assert (first["devices"], first["accumulation_steps"], first["measured_s"]) == (1, 1, pytest.approx(0.18))
    assert first["low_s"] < first["step_s"] < first["high_s"]
