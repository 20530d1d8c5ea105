"""What a person is told of sharing: `show`, `queue -o wide`, the end of `run`, and `report`."""

from __future__ import annotations

import json
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import JobId, JobSpec, Launch, Parts
from cotenant.controller.present.sharing import ROWS, closing_lines
from cotenant.controller.wire import (
    PromiseView,
    SharingTotals,
    SharingView,
    utc,
)
from cotenant.controller.wire import clients as wire

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn

SPEC = JobSpec(job_id=JobId("7"), launch=Launch(argv=("python", "train.py")))
ROW = SharingView(
    beside=(JobId("4"),), steps=820.0, predicted_s=112.0, measured_s=130.0, alone_s=91.0,
    predicted_slowdown=1.23, predicted_from="duty-cycle", device_s=65.0, won_device_s=26.0,
)  # fmt: skip
BOTH = SharingView(
    beside=(JobId("5"), JobId("6")), steps=10.0, predicted_s=None, measured_s=20.0, alone_s=None,
    predicted_slowdown=1.5, predicted_from="default", device_s=10.0, won_device_s=None,
)  # fmt: skip
PROMISE = PromiseView(beside=JobId("4"), promised_s=29.1, took_s=40.7, sequential_s=36.9)


def shared(replies: ModuleType, **more: Any) -> wire.JobView:
    view: wire.JobView = replies.done(shared=(ROW, BOTH), promises=(PROMISE,), won_device_s=26.0, **more)
    return view


def test_show_names_all_partners_with_three_times_for_the_same_steps(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    controller.says(wire.ShowJob, replies.shown(shared(replies), SPEC, [replies.attempt()]))
    out = cotenant("show", "7").out
    one = next(line for line in out.splitlines() if "820" in line)
    assert " ".join(one.split()) == "4 820 112.0s 130.0s 91.0s +0.00722 duty cycles"
    other = next(line for line in out.splitlines() if line.startswith("5 and 6"))
    assert other.split()[3:7] == ["10", "-", "20.0s", "-"]
    assert "beside job 4: 1.43 times as long as alone, 1.23 predicted" in out
    assert "beside job 5 and 6: 1.50 times as long as alone, as predicted" in out
    assert "average completion beside job 4: promised 29.1s, it took 40.7s; one after the other, 36.9s" in out
    assert "sharing won 0.00722 device-hours (this job's part)" in out


WAS_SPLIT: dict[str, Any] = {
    "parts": (Parts(from_step=0, s=1), Parts(from_step=36, s=2), Parts(from_step=58, s=1)),
    "end_step": 90,
}
ENDED: dict[str, Any] = {"ended_at": utc(190.0)}


@pytest.mark.parametrize(
    ("words", "job", "attempt", "says"),
    [
        ((), {"accumulation_steps": 4, "sub_batch": 8}, {}, "4 micro-batches of 8 per step"),
        (
            ("equivalent",),
            {"accumulation_steps": 4, "sub_batch": 8},
            {},
            "4 micro-batches of 8 per step; equivalent: parts may draw other random numbers",
        ),
        (
            (),
            {"sub_batch": 16, "accumulates_note": "1: BatchNorm1d"},
            WAS_SPLIT,
            "none, the whole batch of 16 at once; steps 37-58 in 2 parts; it cannot be split: 1: BatchNorm1d",
        ),
        (
            ("equivalent",),
            ENDED,
            {**WAS_SPLIT, **ENDED, "number": 2, "equivalent": True, "exact": False},
            "steps 37-58 in 2 parts; equivalent, not exact: parts drew other random numbers",
        ),
    ],
    ids=("ordered", "ordered, and may draw", "as its ranks said, and refused", "ended, and drew"),
)
def test_show_says_into_how_many_parts_batches_were_cut_and_what_that_changed(
    controller: StandIn,
    replies: ModuleType,
    cotenant: Cotenant,
    words: tuple[str, ...],
    job: dict[str, Any],
    attempt: dict[str, Any],
    says: str,
) -> None:
    launch = Launch(argv=("python", "train.py"), zero_code=("accumulate", *words))
    spec = msgspec.structs.replace(SPEC, launch=launch)
    attempts = [replies.attempt(**{"number": 1, **attempt})]
    controller.says(wire.ShowJob, replies.shown(replies.job_view("7", **job), spec, attempts))
    out = cotenant("show", "7").out
    lines = " ".join(out.split())
    assert f"accumulation {says}" in lines
    assert "exact" not in lines.replace("not exact", "")


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        ({"exact": True, "proven": 2}, "exact, proven over 2 steps"),
        ({"exact": True}, "exact"),
        ({"exact": False}, "equivalent"),
    ],
)
def test_show_says_over_how_many_steps_a_resume_was_proven(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant, attempt: dict[str, Any], says: str
) -> None:
    attempts = [replies.attempt(1), replies.attempt(2, **attempt)]
    controller.says(wire.ShowJob, replies.shown(replies.job_view("7"), SPEC, attempts))
    *_, row = cotenant("show", "7", "-o", "wide").out.splitlines()
    assert f" 0-  {says}  " in row


def test_a_prediction_with_an_interval_says_so(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    row = msgspec.structs.replace(ROW, predicted_margin_s=18.2, predicted_from="predicted")
    controller.says(wire.ShowJob, replies.shown(replies.done(shared=(row,)), SPEC))
    out = cotenant("show", "7").out
    assert "times as long as alone, 1.23 ± 0.20 predicted" in out and "a trained model" in out
    assert "whether sharing paid is not known" in out


def test_queue_wide_has_them_in_a_row(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    controller.says(wire.ListJobs, replies.jobs(shared(replies)))
    out = cotenant("queue", "-a", "-o", "wide").out
    assert "4; 5 and 6" in out and "112.0s; -" in out and "130.0s; 20.0s" in out
    assert "91.0s; -" in out and "+0.00722" in out
    value = json.loads(cotenant("queue", "-a", "-o", "json").out)["jobs"][0]
    assert (value["won_device_s"], value["shared"][0]["measured_s"]) == (26.0, 130.0)


def test_the_end_of_a_run_tells_each_partner_and_what_became_of_the_promise(replies: ModuleType) -> None:
    told = closing_lines(shared(replies))
    assert told[0] == (
        "beside job 4, 820 steps: predicted 112.0s from duty cycles, measured 130.0s, alone 91.0s"
    )
    assert told[1].startswith("beside job 5 and 6, 10 steps: predicted - from an assumption, measured 20.0s")
    assert told[2] == "beside job 4: 1.43 times as long as alone, 1.23 predicted"
    assert told[4].startswith("average completion beside job 4: promised 29.1s, it took 40.7s")
    assert told[5] == "sharing won 0.00722 device-hours (this job's part)"
    lost = replies.done(shared=(ROW,), won_device_s=-36.0)
    assert closing_lines(lost)[-1] == "sharing lost 0.01 device-hours (this job's part)"
    assert closing_lines(replies.done()) == []
    fast = msgspec.structs.replace(ROW, measured_s=60.0)
    assert closing_lines(replies.done(shared=(fast,), won_device_s=30.0))[-1].endswith(
        "; it was slower when it was measured alone, which counts as no slowdown and as no gain"
    )


TIMES = st.none() | st.floats(0.0, 1e7)


@given(TIMES, st.floats(0.0, 1e7), TIMES, st.none() | st.floats(0.5, 9.0))
def test_a_row_has_one_unit(
    predicted_s: float | None, measured_s: float, alone_s: float | None, predicted_slowdown: float | None
) -> None:
    row = msgspec.structs.replace(
        ROW, predicted_s=predicted_s, measured_s=measured_s, alone_s=alone_s,
        predicted_slowdown=predicted_slowdown,
    )  # fmt: skip
    cells = [column.text(row) for column in ROWS if column.title in ("PREDICTED", "MEASURED", "ALONE")]
    assert len({each.strip("0123456789.") for each in cells if each != "-"}) == 1, cells


def test_the_report_has_gains_costs_formula_and_what_is_not_known(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    controller.says(wire.GetReport, replies.report(forgotten_jobs=3))
    out = cotenant("report", "--since", "7d").out
    (asked,) = controller.asked_for(wire.GetReport)
    assert asked.since_s == 7 * 86_400
    assert "4 jobs trained beside others" in out
    assert next(line.split()[-1] for line in out.splitlines() if line.startswith("  won ")) == "+0.5"
    assert next(line.split() for line in out.splitlines() if line.startswith("  net ")) == ["net", "+0.49"]
    assert next(line.split()[2] for line in out.splitlines() if line.startswith("  not compared")) == "0.1"
    assert next(line for line in out.splitlines() if line.startswith("preempted for")).split()[-5:] == [
        "0.01", "0.02", "0.005", "0", "0.035",
    ]  # fmt: skip
    assert "a4" in out and "a7" in out and "a5 " not in out and "2 pairs between them" in out
    assert "won = steps x alone - taken" in out and "what preemption gained" in out
    assert "3 older jobs only the journal knows" in out


def test_the_report_as_json_is_what_came(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    controller.says(wire.GetReport, replies.report())
    value = json.loads(cotenant("report", "-o", "json").out)
    assert value["schema"] == "report/1"
    assert value["sharing"]["net_device_s"] == 1764.0
    assert value["interruptions"][0]["cause"] == "preempted"


def test_a_cluster_without_jobs_says_so(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    nothing = SharingTotals(
        jobs=0, alone_device_s=0.0, measured_device_s=0.0, won_device_s=0.0, unknown_device_s=0.0,
        cost_device_s=0.0, net_device_s=0.0,
    )  # fmt: skip
    empty = replies.report(remembered_since=None, sharing=nothing, interruptions=(), pairs=())
    controller.says(wire.GetReport, empty)
    out = cotenant("report").out
    assert out.startswith("no jobs yet") and "0 jobs trained beside others" in out


@pytest.mark.parametrize("wrong", ["yesterday", "-3h"])
def test_a_wrong_since_is_a_mistake_in_usage(controller: StandIn, cotenant: Cotenant, wrong: str) -> None:
    assert cotenant("report", f"--since={wrong}").code == 2
