"""What counts as measured for the demo."""

from __future__ import annotations

import pytest

from cotenant.controller.cli.demo.measuring import APART_MIB, _is_clear, schedule_of
from cotenant.controller.cli.demo.plan import DIGITS, MEMORY, DemoJob
from cotenant.controller.performance import Profile, ProfilePoint
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import utc


def profile(*memory_mib: float) -> Profile:
    """A point for s = 1, 2, ..."""
    return Profile(
        points=tuple(
            ProfilePoint(sub_batch=64 // s, accumulation_steps=s, step_s=1.0, memory_mib=mib)
            for s, mib in enumerate(memory_mib, 1)
        )
    )


@pytest.mark.parametrize(
    ("job", "memory_mib", "is_last", "clear"),
    [
        (DIGITS, (300.0,), False, False),
        (DIGITS, (300.0,), True, True),
        (DIGITS, (), True, False),
        (DIGITS, (300.0, 300.0), False, True),
        (MEMORY, (700.0, 699.0 - APART_MIB), False, True),
        (MEMORY, (700.0, 700.0), False, False),
        (MEMORY, (700.0, 700.0), True, True),
        (MEMORY, (700.0,), False, False),
        (MEMORY, (700.0,), True, True),
    ],
)
def test_both_ways_are_seen_and_of_the_memory_heavy_job_that_one_takes_less(
    job: DemoJob, memory_mib: tuple[float, ...], is_last: bool, clear: bool
) -> None:
    assert _is_clear(job, profile(*memory_mib), is_last=is_last) is clear


def attempt(number: int, start_step: int, accumulation_steps: int) -> wire.AttemptView:
    return wire.AttemptView(
        attempt=number,
        devices=("h/cpu0", "h/cpu1"),
        co_tenants=(),
        accumulation_steps=accumulation_steps,
        launched_at=utc(10.0 * number),
        first_step_at=utc(10.0 * number + 1.0),
        first_step=1,
        stop_requested_at=None,
        ended_at=utc(10.0 * number + 9.0),
        outcome="preempted",
        reason="",
        start_step=start_step,
    )


def test_the_uninterrupted_run_gets_the_same_schedule_of_accumulation_steps() -> None:
    assert schedule_of([attempt(1, 0, 1), attempt(2, 57, 2)]) == "0:1,57:2"
    assert schedule_of([attempt(1, 0, 1), attempt(2, 0, 2)]) == "0:2", "the first one's steps were lost"
