"""Times to come, as people write them: ours, ISO and Slurm's; and what clocks do when they change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.submission.moments import begin_moment, instant, moment

NOW = datetime(2026, 10, 22, 15, 30, tzinfo=ZoneInfo("Europe/Berlin"))
"""A Thursday; the clocks go back in the night before the Sunday after it."""

TIMES = {
    "18:00": "2026-10-22T18:00+02:00", "9:00": "2026-10-23T09:00+02:00", "6:30pm": "2026-10-22T18:30+02:00",
    "today 18:00": "2026-10-22T18:00+02:00", "tomorrow 9:00": "2026-10-23T09:00+02:00",
    "Fri 18:00": "2026-10-23T18:00+02:00", "thursday 16:00": "2026-10-22T16:00+02:00",
    "Thu 9:00": "2026-10-29T09:00+01:00", "Mon 8:00": "2026-10-26T08:00+01:00",
    "+2h": "2026-10-22T17:30+02:00", "now+60": "2026-10-22T15:31+02:00", "now+2h": "2026-10-22T17:30+02:00",
    "now+1hour": "2026-10-22T16:30+02:00", "now+3days": "2026-10-25T14:30+01:00",
    "noon": "2026-10-23T12:00+02:00", "teatime": "2026-10-22T16:00+02:00",
    "tomorrow": "2026-10-23T00:00+02:00",
    "10/24/26": "2026-10-24T00:00+02:00", "2026-10-24": "2026-10-24T00:00+02:00",
    "2026-10-24 12:00": "2026-10-24T12:00+02:00", "2026-10-24T12:00:30": "2026-10-24T12:00:30+02:00",
    "2026-10-24T12:00Z": "2026-10-24T12:00+00:00",
    "6:30 PM": "2026-10-22T18:30+02:00", "6:30 am": "2026-10-23T06:30+02:00",
    "12:15 AM": "2026-10-23T00:15+02:00",
    "elevenses": "2026-10-23T11:00+02:00", "fika": "2026-10-23T15:00+02:00",
    "midnight": "2026-10-23T00:00+02:00", "tomorrow 6:30 PM": "2026-10-23T18:30+02:00",
    "noon tomorrow": "2026-10-23T12:00+02:00", "16:00 10/24": "2026-10-24T16:00+02:00",
    "102426": "2026-10-24T00:00+02:00", "1024": "2026-10-24T00:00+02:00", "0115": "2027-01-15T00:00+01:00",
    "10.24.26": "2026-10-24T00:00+02:00", "10.24": "2026-10-24T00:00+02:00", "1/15": "2027-01-15T00:00+01:00",
    "1/15 9:00": "2027-01-15T09:00+01:00", "10/22": "2027-10-22T00:00+02:00",
    "10/22 16:00": "2026-10-22T16:00+02:00",
    "10/24/26-12:30": "2026-10-24T12:30+02:00", "now + 2 hours": "2026-10-22T17:30+02:00",
    "20261024T1200": "2026-10-24T12:00+02:00",
    "2026-10-25T02:30": "2026-10-25T02:30+02:00", "2027-03-28T02:30": "2027-03-28T03:00+02:00",
    "2026-10-25T02:30+01:00": "2026-10-25T02:30+01:00",
}  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), TIMES.items())
def test_times_to_come(text: str, wanted: str) -> None:
    assert moment(text, NOW).timestamp() == datetime.fromisoformat(wanted).timestamp()


@pytest.mark.parametrize("text", ["now", "NOW", "now+0", "now+0hours"])
def test_a_job_may_begin_now(text: str) -> None:
    assert begin_moment(text, NOW) == NOW
    with pytest.raises(ValueError, match="must lie ahead"):
        moment(text, NOW)


def test_today_may_be_over() -> None:
    with pytest.raises(ValueError, match="must lie ahead"):
        moment("today 9:00", NOW)


@pytest.mark.parametrize("text", ["2026-10-22T15:30", "today 15:30", "2020-01-01", "10/22/26"])
def test_what_has_passed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must lie ahead, got"):
        begin_moment(text, NOW)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "Fri",
        "25:00",
        "13:00pm",
        "Fri 18",
        "+x",
        "now+",
        "99/99/99",
        "9",
        "12",
        "930",
        "13.13.26",
        "1.5",
        "9:00 10:00",
        "Fri Mon",
        "PM",
        "now-1",
        "10/24.26",
    ],
)
def test_what_is_no_time(text: str) -> None:
    if text == "Fri":  # Midnight, as Slurm has a day without a time.
        assert moment(text, NOW).isoformat() == "2026-10-23T00:00:00+02:00"
        return
    with pytest.raises(ValueError, match="must be a time"):
        moment(text, NOW)


def test_a_year_that_no_job_sees_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="must lie before the year 3000, got '9998-12-31'"):
        moment("9998-12-31", NOW)


# --- When the clocks change -------------------------------------------------------------------------

CHANGES = {
    "America/New_York": (("2027-03-14T02:30", "2027-03-14T07:00"), ("2027-11-07T01:30", "2027-11-07T05:30")),
    "Europe/Berlin": (("2027-03-28T02:30", "2027-03-28T01:00"), ("2027-10-31T02:30", "2027-10-31T00:30")),
    "America/Havana": (("2027-03-14T00:00", "2027-03-14T05:00"), ("2027-11-07T00:30", "2027-11-07T04:30")),
    "Australia/Lord_Howe": (
        ("2027-10-03T02:15", "2027-10-02T15:30"),
        ("2027-04-04T01:45", "2027-04-03T14:45"),
    ),
}
"""By zone, with the same instants in UTC: a time that its clocks skip, and one that they show twice."""
INSTANTS = [(zone, *pair) for zone, pairs in CHANGES.items() for pair in pairs]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes a zone that of this machine."""

    def go_to(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield go_to
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("zone", "wall", "utc"), INSTANTS)
def test_a_skipped_time_is_the_end_of_the_gap_and_of_two_the_first_counts(
    zone: str, wall: str, utc: str, here: Callable[[str], None]
) -> None:
    wanted = datetime.fromisoformat(utc).replace(tzinfo=UTC)
    assert moment(wall, datetime(2027, 1, 1, tzinfo=ZoneInfo(zone))).astimezone(UTC) == wanted
    here(zone)
    assert instant(datetime.fromisoformat(wall)).astimezone(UTC) == wanted


def test_a_zone_may_be_written_out(here: Callable[[str], None]) -> None:
    here("EST5EDT,M3.2.0,M11.1.0")
    assert instant(datetime(2027, 3, 14, 2, 30)) == datetime(2027, 3, 14, 7, tzinfo=UTC)


def test_a_time_without_a_day_passes_by_the_instant() -> None:
    second = datetime(2026, 10, 25, 2, 15, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert moment("2:30", second).isoformat() == "2026-10-26T02:30:00+01:00", "its first 2:30 has passed"
    first = second.replace(fold=0)
    assert moment("2:30", first).isoformat() == "2026-10-25T02:30:00+02:00"
    before = datetime(2027, 3, 28, 1, 59, tzinfo=ZoneInfo("Europe/Berlin"))
    assert moment("2:30", before).isoformat() == "2027-03-28T03:00:00+02:00"


def minutes_near(zone: str) -> st.SearchStrategy[datetime]:
    days = st.sampled_from([datetime.fromisoformat(wall[:10]) for wall, _ in CHANGES[zone]])
    minutes = st.integers(-36 * 60, 60 * 60).map(lambda at: timedelta(minutes=at))
    anywhere = st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1)).map(lambda at: at.replace(second=0))
    return st.builds(lambda day, at: day + at, days, minutes) | anywhere


@given(data=st.data(), zone=st.sampled_from(sorted(CHANGES)))
def test_it_is_the_smallest_instant_at_which_the_clocks_show_it_or_more(
    data: st.DataObject, zone: str
) -> None:
    clocks = ZoneInfo(zone)
    wall = data.draw(minutes_near(zone)).replace(second=0, microsecond=0)
    found = instant(wall, clocks).astimezone(UTC)

    def shown(at: datetime) -> datetime:
        return at.astimezone(clocks).replace(tzinfo=None)

    assert shown(found) >= wall
    earlier = (found - timedelta(minutes=back) for back in range(1, 26 * 60))
    assert all(shown(each) < wall for each in earlier)
