"""Times to come, as people write them: ours, ISO and Slurm's."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from cotenant.controller.submission.moments import begin_moment, moment

NOW = datetime(2026, 10, 22, 15, 30, tzinfo=ZoneInfo("Europe/Berlin"))
"""A Thursday; the clocks go back in the night before the Sunday after it."""

TIMES = {
    "18:00": "2026-10-22T18:00+02:00", "9:00": "2026-10-23T09:00+02:00", "6:30pm": "2026-10-22T18:30+02:00",
    "today 18:00": "2026-10-22T18:00+02:00", "tomorrow 9:00": "2026-10-23T09:00+02:00",
    "Fri 18:00": "2026-10-23T18:00+02:00", "thursday 16:00": "2026-10-22T16:00+02:00",
    "Thu 9:00": "2026-10-29T09:00+01:00", "Mon 8:00": "2026-10-26T08:00+01:00",
    "+2h": "2026-10-22T17:30+02:00", "now+60": "2026-10-22T15:31+02:00", "now+2h": "2026-10-22T17:30+02:00",
    "now+1hour": "2026-10-22T16:30+02:00", "now+3days": "2026-10-25T15:30+01:00",
    "noon": "2026-10-23T12:00+02:00", "teatime": "2026-10-22T16:00+02:00",
    "tomorrow": "2026-10-23T00:00+02:00",
    "10/24/26": "2026-10-24T00:00+02:00", "2026-10-24": "2026-10-24T00:00+02:00",
    "2026-10-24 12:00": "2026-10-24T12:00+02:00", "2026-10-24T12:00:30": "2026-10-24T12:00:30+02:00",
    "2026-10-24T12:00Z": "2026-10-24T12:00+00:00",
}  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), TIMES.items())
def test_times_to_come(text: str, wanted: str) -> None:
    assert moment(text, NOW) == datetime.fromisoformat(wanted)


def test_a_job_may_begin_now() -> None:
    assert begin_moment("now", NOW) == NOW
    with pytest.raises(ValueError, match="must lie ahead"):
        moment("today 9:00", NOW)


@pytest.mark.parametrize("text", ["2026-10-22T15:30", "today 15:30", "2020-01-01", "10/22/26"])
def test_what_has_passed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must lie ahead, got"):
        begin_moment(text, NOW)


@pytest.mark.parametrize(
    "text", ["", "x", "Fri", "25:00", "13:00pm", "Fri 18", "+x", "now+", "99/99/99", "9"]
)
def test_what_is_no_time(text: str) -> None:
    if text == "Fri":  # Midnight, as Slurm has a day without a time.
        assert moment(text, NOW).isoformat() == "2026-10-23T00:00:00+02:00"
        return
    with pytest.raises(ValueError, match="must be a time"):
        moment(text, NOW)
