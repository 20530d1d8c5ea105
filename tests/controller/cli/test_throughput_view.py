"""The throughput model as people and programs see it: measured or predicted, and unknown not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from cotenant.controller.cli.profiles.throughput import cells, throughput_json, throughput_lines
from cotenant.controller.domain.perf import Profile, ProfilePoint
from cotenant.controller.domain.throughput import Coefficients, Gang, ThroughputModel
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


def test_a_measured_step_is_shown_as_it_was_and_others_with_their_range() -> None:
    found = {(c.gang, c.accumulation_steps): c for c in cells(PROFILE, 8, ONE)}
    assert found[ONE, 2].measured_s == pytest.approx(0.28)
    pair = found[Gang(devices=2), 1]
    assert pair.measured_s is None and pair.predicted is not None
    assert pair.predicted.step_s == LAW.step_s(8, 1, Gang(devices=2))
    assert pair.predicted.low_s < pair.predicted.step_s < pair.predicted.high_s
    assert {gang.devices for gang, _ in found} == {1, 2, 4, 8}


def test_of_a_reach_that_was_never_measured_nothing_is_said() -> None:
    assert not any(cell.gang.hosts > 1 for cell in cells(PROFILE, 8, ONE))
    own = Gang(devices=4, hosts=2)
    assert {c.gang for c in cells(PROFILE, 8, own) if c.gang.hosts > 1} == {own}, "its own was measured"
    told = "\n".join(throughput_lines(PROFILE, 8, ONE))
    assert "not measured, so not said: several hosts" in told
    assert "off by 7.3%" in told and "6 points" in told
    assert "0.28s" in told and " to " in told


def test_without_a_model_one_line_says_why_and_without_a_profile_nothing() -> None:
    bare = msgspec.structs.replace(PROFILE, throughput=None)
    (_, line) = throughput_lines(bare, 8, ONE)
    assert "no model of it" in line
    assert throughput_lines(None, 8, ONE) == throughput_lines(Profile(), 8, ONE) == []
    assert throughput_json(bare, 8, ONE) is None


def test_points_of_other_gangs_are_theirs() -> None:
    two = Gang(devices=2)
    other = msgspec.structs.replace(POINTS[0], gang=two, step_s=0.33)
    found = cells(msgspec.structs.replace(PROFILE, points=(*POINTS, other)), 8, ONE)
    assert [c.measured_s for c in found if c.gang == two and c.accumulation_steps == 1] == [0.33]


def test_profile_show_has_it(controller: StandIn, cotenant: Cotenant) -> None:
    controller.says(wire.ListProfiles, known_list(known(profile=PROFILE)))
    page = cotenant("profile", "show", "abc").out
    assert "DEVICES" in page and "S = 4" in page
    value = json.loads(cotenant("profile", "show", "abc", "-o", "json").out)["throughput"]
    assert (value["schema"], value["error_ratio"], value["points"]) == ("throughput/1", 0.073, 6)
    first = value["steps"][0]
    assert (first["devices"], first["accumulation_steps"], first["measured_s"]) == (1, 1, pytest.approx(0.18))
    assert first["low_s"] < first["step_s"] < first["high_s"]
