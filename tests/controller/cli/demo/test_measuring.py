"""What counts as measured for the demo."""

from __future__ import annotations

import pytest

from cotenant.controller.cli.demo.measuring import APART_MIB, _is_clear
from cotenant.controller.cli.demo.plan import DIGITS, MEMORY, DemoJob
from cotenant.controller.performance import Profile, ProfilePoint


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
