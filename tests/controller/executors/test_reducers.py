"""Heartbeats become events only when they matter; our own deafness is nobody's silence."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from cotenant.controller.domain import AttemptNo, HostId, JobId, SeenLength
from cotenant.controller.domain import events as ev
from cotenant.controller.executors.agents.reducers import HostWatch, ProgressFilter
from cotenant.controller.performance import SeenBatch
from cotenant.controller.wire import AttemptProgress

H1, H2 = HostId("h1"), HostId("h2")


def watch(lease_s: float | None = 300.0, now_s: float = 0.0) -> HostWatch:
    hosts = HostWatch(silent_after_s=15.0, lease_s=lease_s, now_s=now_s)
    hosts.join(H1, now_s)
    return hosts


def events_until(hosts: HostWatch, start_s: float, end_s: float) -> list[tuple[float, object]]:
    """Tick every half second, as the live loop does."""
    found: list[tuple[float, object]] = []
    now_s = start_s
    while now_s < end_s:
        now_s += 0.5
        found += [(now_s, event) for event in hosts.tick(now_s)]
    return found


def test_a_host_falls_silent_once_and_is_lost_when_its_lease_ends() -> None:
    assert events_until(watch(), 0.0, 1_000.0) == [
        (15.5, ev.HostSilent(host_id=H1)),
        (300.5, ev.HostLost(host_id=H1, by="lease")),
    ]


def test_on_one_machine_nobody_is_lost() -> None:
    assert events_until(watch(lease_s=None), 0.0, 10_000.0) == [(15.5, ev.HostSilent(host_id=H1))]


def test_a_heartbeat_brings_a_silent_host_back_once() -> None:
    hosts = watch()
    events_until(hosts, 0.0, 20.0)
    assert hosts.heard(H1, 20.0) == ev.HostBack(host_id=H1)
    assert hosts.heard(H1, 21.0) is None
    assert events_until(hosts, 21.0, 35.0) == []


def test_the_lease_counts_from_the_last_heartbeat() -> None:
    hosts = watch()
    for second in range(1, 100):
        hosts.heard(H1, float(second))
        assert hosts.tick(float(second)) == []
    events = events_until(hosts, 99.0, 500.0)
    assert events[-1] == (399.5, ev.HostLost(host_id=H1, by="lease"))


@pytest.mark.parametrize("gap_s", [4.0, 600.0, 86_400.0])
def test_a_stopped_controller_blames_nobody(gap_s: float) -> None:
    """It was suspended, or starved: the heartbeats of that time are still in its socket."""
    hosts = watch()
    hosts.tick(1.0)
    assert hosts.tick(1.0 + gap_s) == []
    after = events_until(hosts, 1.0 + gap_s, 1.0 + gap_s + 400.0)
    assert after[0][0] >= 1.0 + gap_s + 14.0, "silence counts from when we listen again"
    assert after[1][0] >= 1.0 + gap_s + 299.0, "so does the lease"


def test_after_our_restart_every_known_host_has_a_full_lease() -> None:
    hosts = HostWatch(silent_after_s=15.0, lease_s=300.0, now_s=5_000.0)
    hosts.know(H1, 5_000.0)
    hosts.know(H2, 5_000.0, silent=True)
    lost = [(at_s, e) for at_s, e in events_until(hosts, 5_000.0, 5_400.0) if isinstance(e, ev.HostLost)]
    assert lost == [
        (5_300.5, ev.HostLost(host_id=H1, by="lease")),
        (5_300.5, ev.HostLost(host_id=H2, by="lease")),
    ]


def test_a_lost_host_is_not_lost_twice_and_does_not_come_back_by_a_heartbeat() -> None:
    hosts = watch()
    hosts.declare_lost(H1)
    assert hosts.heard(H1, 400.0) is None
    assert events_until(hosts, 400.0, 1_000.0) == []
    hosts.join(H1, 1_000.0)
    assert [event for _, event in events_until(hosts, 1_000.0, 1_020.0)] == [ev.HostSilent(host_id=H1)]


# --- Progress --------------------------------------------------------------------------------------


def news(step: int, step_s: float | None = 1.0, attempt: int = 1) -> AttemptProgress:
    return AttemptProgress(job_id=JobId("7"), attempt=AttemptNo(attempt), step=step, step_s=step_s)


def told(steps: list[tuple[float, AttemptProgress]], iterations: int | None = 1_000) -> list[float]:
    """When the engine hears of it."""
    progress = ProgressFilter()
    return [now_s for now_s, each in steps if progress.take(each, iterations, (), now_s) is not None]


def test_steady_progress_is_told_once_a_minute_at_first() -> None:
    steady = [(float(t), news(step=t)) for t in range(1, 200)]
    assert told(steady) == [1.0, 61.0, 121.0, 181.0]


def test_progress_as_expected_is_told_ever_more_seldom_but_once_an_hour() -> None:
    steady = [(float(t), news(step=t)) for t in range(1, 4 * 86_400, 10)]
    times = told(steady, iterations=1_000_000)
    gaps = [later - before for before, later in pairwise(times)]
    assert gaps[:9] == [60.0] * 9
    assert gaps == sorted(gaps)
    assert all(gap <= max(60.0, 0.1 * at_s + 10.0) for at_s, gap in zip(times, gaps, strict=False))
    assert gaps[-1] == 3_600.0


def test_a_job_with_a_budget_is_told_of_after_each_hundredth_of_it_also_where_it_stands_still() -> None:
    progress = ProgressFilter()
    steps = [(float(t), news(step=min(t, 5))) for t in range(1, 20)]
    assert [at_s for at_s, each in steps if progress.take(each, None, (), at_s, 300.0)] == [
        1,
        4,
        7,
        10,
        13,
        16,
        19,
    ]


def test_a_change_of_pace_is_told_at_once_after_days_and_then_once_a_minute_again() -> None:
    progress = ProgressFilter()
    for t in range(1, 86_400, 10):
        progress.take(news(step=t), None, (), float(t))
    after = [(86_400.0 + t, news(step=86_400 + t // 2, step_s=2.0)) for t in range(1, 130)]
    assert [at_s for at_s, each in after if progress.take(each, None, (), at_s)] == [86_401, 86_461, 86_521]


def test_with_another_co_tenant_a_steady_job_is_told_of_once_a_minute_again() -> None:
    """What a pair costs is learned from its progress."""
    progress = ProgressFilter()
    for t in range(1, 86_400, 10):
        progress.take(news(step=t), None, (), float(t))
    last_s = progress._told[JobId("7")].at_s
    after = [(last_s + t, news(step=86_400 + t)) for t in range(1, 130)]
    beside = (JobId("8"),)
    assert [at_s - last_s for at_s, each in after if progress.take(each, None, beside, at_s)] == [60, 120]


def test_a_changed_pace_is_told_when_it_moves_the_end_by_5_percent() -> None:
    steps = [(float(t), news(step=t)) for t in range(1, 11)]
    steps += [(10.0 + t, news(step=10 + t, step_s=1.04)) for t in range(1, 5)]
    steps += [(14.0 + t, news(step=14 + t, step_s=1.2)) for t in range(1, 5)]
    assert told(steps) == [1.0, 15.0]


def test_without_iterations_the_pace_itself_counts() -> None:
    steps = [(float(t), news(step=t, step_s=1.0 if t < 20 else 2.0)) for t in range(1, 40)]
    assert told(steps, iterations=None) == [1.0, 20.0]


def test_a_wild_pace_does_not_flood_the_journal() -> None:
    wild = [(t / 10, news(step=t, step_s=1.0 + t % 7)) for t in range(1, 36_000)]
    times = told(wild)
    assert times[:3] == [0.1, 2.1, 6.1]
    assert len(times) <= 3_600 / 120 + 7


def test_nothing_is_told_before_something_was_measured() -> None:
    assert told([(1.0, news(0, None)), (2.0, news(0, None)), (3.0, news(1, 0.5))]) == [3.0]


def test_a_new_attempt_starts_over_and_an_old_one_is_not_heard() -> None:
    progress = ProgressFilter()
    assert progress.take(news(100), 1_000, (), 0.0) is not None
    assert progress.take(news(50, attempt=2), 1_000, (), 0.1) == ev.ProgressSeen(
        job_id=JobId("7"), attempt=AttemptNo(2), step=50, step_s=1.0
    )
    assert progress.take(news(40, attempt=2), 1_000, (), 100.0) is None, "steps do not go back"


def test_a_total_that_was_seen_is_told_at_once() -> None:
    progress = ProgressFilter()
    assert progress.take(news(1), None, (), 0.0) is not None
    seen = msgspec.structs.replace(news(4), length=SeenLength(steps=100))
    told = progress.take(seen, None, (), 3.0)
    assert told is not None and told.total_steps == 100
    assert progress.take(msgspec.structs.replace(seen, step=7), None, (), 6.0) is None
    batch = SeenBatch(rows=32, note="read from its loader, train.py line 41")
    also = msgspec.structs.replace(seen, step=9, batch=batch)
    told = progress.take(also, None, (), 9.0)
    assert told is not None and told.batch == batch
    assert progress.take(msgspec.structs.replace(also, step=11), None, (), 12.0) is None
