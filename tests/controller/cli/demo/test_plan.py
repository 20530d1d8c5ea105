"""The memory that the demo declares: a batch has to be split in it wherever the machine can show that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.cli.demo.plan import (
    DIGITS,
    JOBS,
    LOADER,
    MEMORY,
    SONNETS,
    MeasuredJob,
    declare_memory,
)
from cotenant.controller.performance import Profile, ProfilePoint

MIB = st.floats(100.0, 2000.0)


def measured(whole_mib: dict[str, float], half_mib: float | None) -> dict[str, MeasuredJob]:
    found = {}
    for job in JOBS:
        points = [point(1, whole_mib.get(job.name, 300.0))]
        if job is MEMORY and half_mib is not None:
            points.append(point(2, half_mib))
        found[job.name] = MeasuredJob(job=job, profile=Profile(points=tuple(points)))
    return found


def point(s: int, memory_mib: float) -> ProfilePoint:
    return ProfilePoint(sub_batch=64 // s, accumulation_steps=s, step_s=1.0, memory_mib=memory_mib)


@given(MIB, MIB, MIB, MIB, MIB | st.none())
def test_every_job_fits_beside_another_and_the_large_one_whole_only_where_nothing_is_split(
    sonnets: float, digits: float, light: float, heavy: float, half: float | None
) -> None:
    jobs = measured(
        {SONNETS.name: sonnets, DIGITS.name: digits, LOADER.name: light, MEMORY.name: heavy}, half
    )
    declared = declare_memory(jobs)
    assert declared.memory_mib >= max(sonnets, digits) + light
    assert declared.memory_mib >= heavy
    if declared.lacks is None:
        assert half is not None
        assert max(sonnets, digits) + half < declared.memory_mib < min(sonnets, digits) + heavy
    else:
        assert declared.memory_mib >= max(sonnets, digits) + heavy


def test_two_mebibytes_too_little_is_said_and_ends_nothing() -> None:
    partner = {SONNETS.name: 387.0, DIGITS.name: 387.0, MEMORY.name: 494.0}
    assert declare_memory(measured(partner, 494.0 - 64.0)).lacks is None
    declared = declare_memory(measured(partner, 494.0 - 62.0))
    assert declared.lacks is not None
    assert "494 MiB with its whole batch and 432 MiB with half of it" in declared.lacks
