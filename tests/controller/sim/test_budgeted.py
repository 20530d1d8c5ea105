"""`sim --budget`: every job gets the same training, counted as alone, whatever ran beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from cotenant.controller.domain import AnyCommand, JobId, Phase
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.sim.preparing import add_knowledge
from cotenant.controller.sim.simulate import BUDGET_SLACK, simulate
from cotenant.controller.sim.world.jobs import STEPS_PER_S
from cotenant.controller.sim.world.knowledge import Knowledge
from cotenant.controller.sim.world.physics import Failures, Physics
from tests.controller.sim.workloads import JobRow, cluster, workload

BUDGET_S = 400.0


def rows_of(seed: int) -> list[JobRow]:
    draw = random.Random(seed)
    return [
        JobRow(
            submit_s=at_s,
            duration_s=draw.choice((60.0, 300.0, 700.0, 2000.0)),
            gpus=draw.choice((1, 1, 2)),
            load_s=draw.uniform(0.0, 40.0),
            pause_s=draw.uniform(0.0, 30.0),
            model=draw.choice(("ResNet-18:64", "LM:20")),
        )
        for at_s in sorted([0.0, *(draw.uniform(0.0, 2000.0) for _ in range(29))])
    ]


@pytest.mark.parametrize("failing", [False, True], ids=["steady", "hosts fail"])
@pytest.mark.parametrize("known", ["exact", "progress:60", "none"])
@pytest.mark.parametrize("policy", ["castor", "srtf", "cotenant"])
def test_a_budget_is_trained_whole_and_no_more_whatever_happens(
    policy: str, known: str, failing: bool
) -> None:
    """Steps are the world's own, told as an attempt ends."""
    seed = 11
    rows = rows_of(seed)
    steps: dict[JobId, int] = {}
    ends: dict[JobId, tuple[Phase, str]] = {}

    def look(engine: Engine, event: ev.AnyEvent, commands: Sequence[AnyCommand]) -> None:
        if isinstance(event, ev.AttemptEnded):
            steps[event.job_id] = event.step
            job = engine.jobs[event.job_id]
            ends[event.job_id] = (job.phase, job.reason.code)

    jobs = workload(*rows)
    jobs = add_knowledge(jobs, Knowledge.parse(known, budget_s=BUDGET_S), seed, np.ones(len(jobs), np.bool_))
    outcome = simulate(
        jobs,
        cluster(2, 2),
        policy,
        seed=seed,
        physics=Physics(pairs="gavel-v100", xi="measured"),
        failures=Failures(mean_between_s=3000.0, repair_s=100.0) if failing else None,
        look=look,
        validate=True,
    )
    assert outcome.finished.all() and {phase for phase, _ in ends.values()} == {Phase.DONE}
    for number, row in enumerate(rows):
        job_id = JobId(str(number))
        trained_s = steps[job_id] / STEPS_PER_S
        assert (ends[job_id][1] == "budget") == (row.duration_s > BUDGET_S), (seed, job_id, ends[job_id])
        wanted_s = min(row.duration_s, BUDGET_S)
        assert trained_s == pytest.approx(wanted_s, rel=BUDGET_SLACK), (seed, job_id)


def test_budgets_are_said_in_results_and_refused_where_they_mean_nothing() -> None:
    asked = Knowledge.parse("none", budget_s=60.0)
    assert asked.options() == {"known": "none", "budget_s": 60.0}
    assert str(asked).endswith("; each gets a budget of 60 s of training")
    with pytest.raises(ValueError, match="write --budget 1h"):
        Knowledge.parse("exact", budget_s=0.0)
