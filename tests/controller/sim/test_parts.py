"""Parts of devices in the simulated world: the same engine, and pieces of one device that do not slow each
other."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.sim.simulate import simulate
from cotenant.controller.sim.world.physics import Failures
from cotenant.controller.sim.world.workload import Workload
from tests.controller.sim.workloads import JobRow, cluster, workload


def parts(*rows: tuple[float, float, float]) -> Workload:
    """Submitted, seconds, part of a device."""
    made = workload(*(JobRow(at_s, lasts_s) for at_s, lasts_s, _ in rows))
    return dataclasses.replace(made, fractions=tuple(part for _, _, part in rows))


def test_two_halves_end_as_if_each_had_a_device() -> None:
    outcome = simulate(parts((0, 100, 0.5), (0, 200, 0.5), (1, 50, 1.0)), cluster(1), "fifo", validate=True)
    assert outcome.jct_s.tolist() == pytest.approx([130.0, 230.0, 309.0])
    assert outcome.wait_s.tolist() == pytest.approx([0.0, 0.0, 229.0])


ROWS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 400), st.sampled_from([0.1, 0.25, 1 / 3, 0.5, 0.75, 1.0])),
    min_size=1,
    max_size=25,
)


@given(
    rows=ROWS,
    policy=st.sampled_from(
        ["fifo", "srtf", "castor", "patient", "gfs", "gfs-rise", "interval-60", "yarn-cs"]
    ),
    fails=st.booleans(),
)
@settings(max_examples=25)
def test_all_jobs_end_and_no_device_is_ever_more_than_full(
    rows: list[tuple[int, int, float]], policy: str, fails: bool
) -> None:
    """World and engine check it after each event: parts at most 1 in sum, never beside a whole tenant."""
    failures = Failures(mean_between_s=2000.0, repair_s=100.0) if fails else None
    first = min(at for at, _, _ in rows)
    jobs = parts(*((float(at - first), float(lasts), part) for at, lasts, part in sorted(rows)))
    outcome = simulate(jobs, cluster(1, 2), policy, failures=failures, validate=True)
    assert outcome.finished.all()
