"""What a person sees of classes and their quota: the page of the policy, the fan chart."""

from __future__ import annotations

from xml.etree import ElementTree

import msgspec

from cotenant.controller.domain import ClassReport, JobId, PoolReport
from cotenant.controller.domain import events as ev
from cotenant.controller.present.fan_chart import fan_chart
from cotenant.controller.present.policies import classes_lines, describe_organisation, forecast_in_words
from cotenant.controller.present.top_page import quota_lines
from cotenant.controller.wire import clients as wire
from tests.controller.building import engine as made
from tests.controller.building import report, spec

POOL = PoolReport(
    device_type="A<100>", capacity=16, free=5, hp_placed=8, hp_waiting=0, spot_may_take=2, spot_waiting=6,
    kept_back=3, forecast_median=(9.0, 10.0), forecast_upper=(11.0, 13.0), forecast_note="no model & co",
    recent=(4, 6, 8),
)  # fmt: skip
REPORT = ClassReport(
    guaranteed_h=1.0, level=0.95, eta=0.5, evicted=1, finished=9, broken_promises=2, pools=(POOL,)
)


def test_the_page_says_what_is_kept_back_and_what_that_rests_on() -> None:
    text = "\n".join(classes_lines(REPORT))
    for part in (
        "guaranteed 1 h, with a probability of 0.95", "1 of 10 runs gave way", "2 promises broken",
        "16 devices, 5 free", "spot may take 2 more and waits for 6, 3 are kept back, eta 0.50",
        "9 to 11, 10 to 13", "no model & co",
    ):  # fmt: skip
        assert part in text, text


def test_the_page_says_which_model_forecasts_and_since_when() -> None:
    trained = msgspec.structs.replace(
        POOL, forecast_note="", forecast_model="orglinear, trained here", forecast_age_s=7200.0
    )
    assert forecast_in_words(trained).startswith("orglinear, trained here, since 2h00m ago")
    assert forecast_in_words(POOL) == "no model & co"


def test_organisations_are_told_with_their_class_and_their_quota() -> None:
    vision = wire.OrganisationView(name="vision", job_class="spot", quota_devices=4, spot_devices=1)
    speech = wire.OrganisationView(
        name="speech", job_class="hp", quota_devices=None, spot_devices=0, share_max=1.2
    )
    assert describe_organisation(vision) == (
        "organisation vision: class spot by default; its spot jobs have 1 device of 4 that they may hold"
    )
    assert describe_organisation(speech) == (
        "organisation speech: class hp, max=1.2 by default; its spot jobs have 0 devices"
    )


def test_top_says_the_quota_of_each_type_in_a_line() -> None:
    policy = wire.PolicyView(policy="gfs", about="", parameters={}, classes=REPORT)
    (line,) = quota_lines(policy)
    assert line == (
        "quota of spot on A<100>: 2 more of 5 free, 3 kept back for hp, hp forecast 9 to 11, eta 0.50, "
        "1 h guaranteed"
    )
    assert quota_lines(None) == quota_lines(wire.PolicyView(policy="fifo", about="", parameters={})) == []


def test_the_fan_chart_is_a_picture_whatever_texts_are_in_it() -> None:
    root = ElementTree.fromstring(fan_chart(REPORT))
    texts = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("A<100>" in text for text in texts) and "no model & co" in texts
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 3
    empty = ClassReport(guaranteed_h=1.0, level=0.9, eta=None, evicted=0, finished=0, pools=())
    ElementTree.fromstring(fan_chart(empty))


def test_a_policy_with_classes_reports_them_and_others_do_not() -> None:
    engine = made("gfs")
    engine.handle(ev.HostJoined(report=report("a", 4)), 0.0)
    engine.handle(ev.JobArrived(spec=spec(1, gpus=3, job_class="hp")), 1.0)
    engine.handle(ev.JobArrived(spec=spec(2, gpus=2)), 2.0)
    found = engine.classes()
    assert found is not None and engine.promised_h == 1.0 and found.eta == 1.0
    (pool,) = found.pools
    assert (pool.capacity, pool.free, pool.hp_placed, pool.spot_waiting) == (4, 1, 3, 2)
    assert engine.jobs[JobId("2")].phase.value == "queued"
    other = made("fifo")
    assert other.classes() is None and other.promised_h is None
