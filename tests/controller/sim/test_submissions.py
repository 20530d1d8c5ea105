"""Simulated jobs that were submitted as commands, by users, as tasks of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import ENDED, AnyCommand, Phase, array_of
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.sim import Knowledge, SimulatedSubmission, Workload, simulate
from cotenant.controller.sim.world.jobs import Specs
from tests.controller.sim.workloads import JobRow, cluster, workload

KNOWN = Knowledge(known="progress", tells=0.0)
LENGTHS_S = (40.0, 20.0, 30.0, 10.0, 50.0)


def submitted(rows: Sequence[JobRow], submissions: Sequence[SimulatedSubmission]) -> Workload:
    """Nobody says how long a job takes."""
    unknown_s = np.full(len(rows), np.nan)
    return replace(workload(*rows), submissions=tuple(submissions), knowledge=KNOWN, expected_s=unknown_s)


arrays = st.sampled_from(["", "a", "b"])


@given(st.lists(arrays, min_size=1, max_size=12))
def test_each_job_has_an_id_of_its_own_and_tasks_share_their_arrays_number(of: list[str]) -> None:
    jobs = submitted(
        [JobRow(0.0, 10.0)] * len(of),
        [SimulatedSubmission(("run", str(row)), array=each) for row, each in enumerate(of)],
    )
    specs = Specs(jobs, cluster(1))
    ids = [specs.spec(row).job_id for row in range(len(of))]
    assert [specs.row_of(job_id) for job_id in ids] == [*range(len(of))]
    for row, array in enumerate(of):
        alike = {other for other, job_id in enumerate(ids) if array_of(job_id) == array_of(ids[row])}
        assert alike == ({other for other, each in enumerate(of) if each == array} if array else {row})


def test_a_spec_holds_the_command_the_user_and_the_limit() -> None:
    jobs = submitted(
        [JobRow(0.0, 10.0, model="ViT")] * 2,
        [SimulatedSubmission(("t", "1"), "ana", "x", 2), SimulatedSubmission(())],
    )
    specs = Specs(jobs, cluster(1))
    task, plain = specs.spec(0), specs.spec(1)
    assert (task.job_id, task.user, task.launch.argv, task.array_limit) == ("0_0", "ana", ("t", "1"), 2)
    before = Specs(replace(jobs, submissions=()), cluster(1)).spec(1)
    assert plain == before, "a job without a command is as it would be in a world without commands"


@given(limit=st.integers(1, 3), lengths_s=st.lists(st.sampled_from(LENGTHS_S), min_size=4, max_size=9))
def test_never_more_tasks_of_an_array_are_on_devices_than_its_limit(
    limit: int, lengths_s: list[float]
) -> None:
    rows = [JobRow(0.0, length_s, load_s=1.0) for length_s in lengths_s]
    jobs = submitted(rows, [SimulatedSubmission(("task",), "ana", "x", limit)] * len(rows))
    most = 0

    def look(engine: Engine, event: ev.AnyEvent, commands: Sequence[AnyCommand]) -> None:
        nonlocal most
        aside = {Phase.BLOCKED, *ENDED}
        most = max(most, sum(job.phase not in aside for job in engine.jobs.values()))

    found = simulate(jobs, cluster(1, 4), "cotenant", validate=True, look=look)
    assert found.finished.all()
    assert most == limit


def test_same_commands_tell_lengths_and_jobs_without_commands_do_not() -> None:
    rows = [JobRow(1000.0 * number, 100.0, model="ViT", load_s=1.0) for number in range(3)]
    sources = dict[str, str]()

    def look(engine: Engine, event: ev.AnyEvent, commands: Sequence[AnyCommand]) -> None:
        if isinstance(event, ev.JobArrived):
            sources[event.spec.job_id] = engine.jobs[event.spec.job_id].estimate.source

    jobs = submitted(rows, [SimulatedSubmission(("python", "train.py"), "ana")] * 3)
    simulate(jobs, cluster(1), "cotenant", look=look)
    known = sources["2"]
    simulate(replace(jobs, submissions=()), cluster(1), "cotenant", look=look)
    assert known != sources["2"]


def test_a_part_of_a_workload_keeps_the_submissions_of_its_jobs() -> None:
    jobs = submitted(
        [JobRow(float(row), 10.0) for row in range(3)], [SimulatedSubmission((str(row),)) for row in range(3)]
    )
    assert [each.argv for each in jobs.take(np.array([0, 2])).submissions] == [("0",), ("2",)]
