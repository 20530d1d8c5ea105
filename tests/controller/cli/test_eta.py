"""When a job ends, in words."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cotenant.controller.domain import JobId, Phase
from cotenant.controller.present.etas import COLUMNS, WIDE_COLUMNS, age, describe_eta, shown_times
from cotenant.controller.present.screen import table
from cotenant.controller.present.units import local_time
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import utc

ONE, TWO, THREE = 1_763_600_000.0, 1_763_603_600.0, 1_763_607_200.0


def times(first: float, middle: float | None, last: float | None, **more: bool) -> wire.EtaTimes:
    return wire.EtaTimes(
        p10_at=utc(first),
        p50_at=None if middle is None else utc(middle),
        p90_at=None if last is None else utc(last),
        **more,
    )


@pytest.mark.parametrize(
    ("finish", "words", "cells"),
    [
        (times(ONE, TWO, THREE), "ends about {two} ({one} to {three})", ("{one}", "{two}", "{three}")),
        (times(ONE, None, None), "ends {one} or any time later", ("{one}", "-", "-")),
        (times(ONE, None, THREE), "ends {one} to {three}", ("{one}", "-", "{three}")),
        (times(THREE, None, THREE, is_limit=True), "ends by {three} at the latest", ("-", "-", "{three}")),
        (
            times(TWO, TWO, TWO, is_spread_known=False),
            "ends about {two} (nobody knows how sure)",
            ("-", "{two}", "-"),
        ),
        (
            times(TWO, None, TWO, is_spread_known=False),
            "ends about {two} (nobody knows how sure)",
            ("-", "{two}", "-"),
        ),
        (
            wire.EtaTimes(p10_at=utc(ONE), p50_at=None, p90_at=None, is_overdue=True),
            "takes longer than foreseen",
            ("-", "-", "longer than foreseen"),
        ),
    ],
    ids=[
        "known",
        "no bound",
        "an interval",
        "nothing but its time limit",
        "one time",
        "one time of others",
        "none that has not passed",
    ],
)
def test_what_is_not_known_of_an_end_is_not_said(
    finish: wire.EtaTimes, words: str, cells: tuple[str, ...]
) -> None:
    known: dict[str, Any] = dict(
        zip(("one", "two", "three"), map(local_time, (ONE, TWO, THREE)), strict=True)
    )
    view = wire.EtaView(
        job_id=JobId("7"), name="train", phase=Phase.RUNNING, start=None, finish=finish, is_calibrated=True,
        basis="", policy="fifo", hit_rate=None, hits_of=0, told_at=utc(ONE), age_s=166.0,
    )  # fmt: skip
    assert describe_eta(view) == words.format(**known) + " (told 2m46s ago)"
    assert age(view) == "2m46s ago"
    assert shown_times(finish) == tuple(each.format(**known) for each in cells)


def test_of_an_end_that_nobody_knows_the_start_is_said() -> None:
    view = wire.EtaView(
        job_id=JobId("7"), name="train", phase=Phase.QUEUED, start=times(ONE, TWO, THREE), finish=None,
        is_calibrated=False, basis="unknown: it has no length", policy="fifo", hit_rate=None, hits_of=0,
        told_at=None,
    )  # fmt: skip
    one, two, three = map(local_time, (ONE, TWO, THREE))
    assert (
        describe_eta(view)
        == f"starts about {two} ({one} to {three}), uncalibrated; its end is unknown: it has no length"
    )


def test_80_columns_show_when_a_job_likely_starts_and_its_early_and_late_end() -> None:
    today = time.localtime()
    noon_s = time.mktime((today.tm_year, today.tm_mon, today.tm_mday, 12, 0, 0, 0, 0, -1))
    view = wire.EtaView(
        job_id=JobId("1234"), name="train", phase=Phase.QUEUED,
        start=times(noon_s, noon_s + 60.0, noon_s + 120.0),
        finish=times(noon_s + 60.0, noon_s + 120.0, noon_s + 180.0), is_calibrated=True,
        basis="12 roll-outs of cotenant",
        policy="cotenant", hit_rate=None, hits_of=0, told_at=utc(ONE), age_s=1.0,
    )  # fmt: skip
    head, row = table(COLUMNS, [view], 80).splitlines()
    assert max(len(head), len(row)) <= 80
    assert head.split() == ["JOB", "STATE", "LIKELY", "START", "ENDS", "EARLY", "LIKELY", "LATE", "BASIS"]
    assert row.split()[2:6] == ["12:01:00", "12:01:00", "12:02:00", "12:03:00"]
    (wide, _) = table(WIDE_COLUMNS, [view], None).splitlines()
    assert "STARTS EARLY  LIKELY START  STARTS LATE  ENDS EARLY  LIKELY    LATE" in wide
