"""What a policy says of itself to people: as it stands, at any moment of a run, and without changing it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cotenant.controller.domain import AnyCommand
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.sim import simulate
from tests.controller.sim.workloads import JobRow, cluster, workload

ROWS = tuple(JobRow(20.0 * n, 50.0 + 97.0 * (n % 7), gpus=1 + n % 2) for n in range(40))
PCS = {"thresholds_gpu_s": "300", "weights": "2,1"}


@pytest.mark.parametrize(
    ("policy", "parameters", "names"),
    [
        ("lazer", {}, ["surrogate", "stage", "mean time between arrivals", "preemptions put off now"]),
        ("pcs", PCS, ["class 1", "class 2"]),
        ("fifo", {}, []),
    ],
)
def test_a_policy_tells_its_state_and_is_not_changed_by_it(
    policy: str, parameters: dict[str, str], names: list[str]
) -> None:
    told: list[dict[str, str]] = []

    def look(engine: Engine, event: ev.AnyEvent, commands: Sequence[AnyCommand]) -> None:
        told.append(engine.policy_state())

    looked = simulate(workload(*ROWS), cluster(1, 2), policy, dict(parameters), look=look)
    alone = simulate(workload(*ROWS), cluster(1, 2), policy, dict(parameters))
    assert looked.jct_s.tolist() == alone.jct_s.tolist()
    assert {tuple(each) for each in told} == {tuple(names)}
    assert (len({str(each) for each in told}) > 3) is bool(names), "it goes with what happens"
