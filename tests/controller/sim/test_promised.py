"""Promises of a whole run: kept under every policy on exact estimates, and the same after a recovery."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from cotenant.controller.domain import AnyCommand
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, Snapshot
from cotenant.controller.policies import registry
from cotenant.controller.sim.simulate import simulate
from cotenant.controller.sim.world.physics import Physics
from tests.controller.sim.workloads import JobRow, cluster, workload

POLICIES = sorted(set(registry.ours_available()) - {"rltune", "scorer", "las"})
SHARING = {"castor", "castor-cost", "sjf-ffs", "lucid"}


def rows_of(seed: int) -> list[JobRow]:
    random = Random(seed)
    submit_s = sorted(random.uniform(0.0, 600.0) for _ in range(random.randint(3, 20)))
    return [
        JobRow(
            at_s - submit_s[0],
            random.choice((random.uniform(5.0, 100.0), random.uniform(100.0, 2000.0))),
            gpus=random.choice((1, 1, 2, 3, 4)),
            load_s=random.uniform(0.0, 40.0),
            pause_s=random.uniform(0.0, 30.0),
            model=random.choice(("ResNet-18:64", "LM:20")),
        )
        for at_s in submit_s
    ]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", [6, 17, 24])
def test_on_exact_estimates_and_without_faults_every_promise_is_kept_and_recovery_agrees(
    policy: str, seed: int
) -> None:
    """Half of the jobs ask. A second engine is told the recorded decisions, as after a restart."""
    twin: Engine | None = None

    def look(engine: Engine, event: ev.AnyEvent, commands: Sequence[AnyCommand]) -> None:
        nonlocal twin
        if twin is None and engine.promises.saved.open:
            twin = Engine(registry.make, engine.config)
            twin.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(engine.snapshot()), type=Snapshot))
        elif twin is not None:
            twin.fold(event, engine.decision, engine.now_s)
            assert twin.promises.saved == engine.promises.saved

    pairs = "gavel-v100" if policy in SHARING else "none"
    jobs, physics = workload(*rows_of(seed)), Physics(pairs=pairs, xi="measured")
    outcome = simulate(
        jobs, cluster(2, 2), policy, seed=seed, physics=physics, validate=True, promise_share=0.5, look=look
    )
    assert outcome.finished.all()
    assert outcome.promises is not None
    assert outcome.promises["given"] or policy == "sjf-ffs"  # Who shares has no end that is known.
    assert outcome.promises["kept"] == outcome.promises["given"]
    assert outcome.promises["broken"] == outcome.promises["open"] == 0


def test_who_promises_nothing_decides_as_before() -> None:
    rows = rows_of(3)
    one, two = (simulate(workload(*rows), cluster(2, 2), "srtf", promise_share=share) for share in (0.0, 1.0))
    plain = simulate(workload(*rows), cluster(2, 2), "srtf")
    assert one.jct_s.tolist() == plain.jct_s.tolist() != two.jct_s.tolist()
    assert one.promises is None
