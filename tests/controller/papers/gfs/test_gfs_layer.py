"""Classes and the quota as a layer: any order, any sharing; hp is never preempted, the quota is kept."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import Phase, Place, Preempt, Share
from cotenant.controller.engine import Engine
from cotenant.controller.papers.gfs.parameters import VARIANTS
from cotenant.controller.papers.gfs.policy import Gfs
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters, Policy
from tests.controller.building import engine, profile, report, spec
from tests.controller.driver import Driver, Truth

LAYERED = (*VARIANTS, "yarn-cs", "fgd", "lyra", "chronus")
ORDERS = ("", *(name for name in registry.ours_available() if name not in LAYERED))
SHARES = ("", "castor", "castor-cost", "sjf-ffs", "lucid")
COMBINATIONS = [(order, share) for order in ORDERS for share in SHARES]


def driven(name: str, parameters: Parameters, *, ageing_s: float = 3000.0) -> Driver:
    def make(_: str, given: Parameters) -> Policy:
        return registry.make(name, {**parameters, **given})

    hosts = [report("a", 4, checkpoint_domain="nfs"), report("b", 4, checkpoint_domain="nfs")]
    return Driver(engine(name, make=make, ageing_s=ageing_s), hosts)


def small_world(driver: Driver, seed: int, jobs: int) -> Driver:
    chance, at_s = random.Random(seed), 0.0
    for number in range(1, jobs + 1):
        gpus = chance.choices((1, 2, 4), (6, 3, 1))[0]
        train_s = round(10 ** chance.uniform(1.0, 2.6))
        points = [(s, 1.0 + 0.02 * s, chance.choice((200.0, 450.0)) / s) for s in (1, 2, 8)]
        job = spec(
            number, gpus=gpus, expected_s=float(train_s), job_class=chance.choice(("spot", "spot", "hp")),
            batch_size=8, profile=profile(8, *points, duty=chance.choice((0.3, 0.7))),
        )  # fmt: skip
        truth = Truth(train_s=train_s, load_s=chance.uniform(1, 20), save_s=chance.uniform(1, 10))
        driver.submit(job, truth, at_s)
        at_s += chance.expovariate(8 / 200.0)
    return driver


def check_decisions(done: Engine) -> None:
    jobs = done.jobs.values()
    assert {job.phase for job in jobs} == {Phase.DONE}
    assert all(job.counts.preemptions == 0 for job in jobs if job.spec.job_class == "hp")
    assert all(not job.co_tenants for job in jobs if job.spec.job_class == "hp"), "nobody shares with hp"


@pytest.mark.no_cover  # The same lines many times over; those of each policy have tests of their own.
@pytest.mark.parametrize("name", ["gfs", "gfs-rise"])
def test_any_order_with_any_sharing_ends_and_keeps_hp_alone(name: str) -> None:
    for number, (order, share) in enumerate(COMBINATIONS):
        if share == order:
            continue
        driver = small_world(driven(name, {"order": order, "share": share}), number, 9)
        check_decisions(driver.run().engine)


@given(seed=st.integers(0, 2**32), name=st.sampled_from(("gfs", "gfs-rise", "gfs-sp")))
@settings(max_examples=6)
def test_hp_is_never_preempted_and_spot_jobs_start_within_the_budget_only(seed: int, name: str) -> None:
    driver = driven(name, {}, ageing_s=0.0)
    engine = driver.engine
    layer = engine.current.policy
    assert isinstance(layer, Gfs)
    asked = layer.decide

    def decide(view, event):  # type: ignore[no-untyped-def]
        decision = asked(view, event)
        budgets = layer.budgets(view, event)
        taken = 0
        for action in decision.actions:
            if isinstance(action, Preempt):
                assert view.jobs[action.job_id].spec.job_class == "spot"
            if isinstance(action, Place | Share) and view.jobs[action.job_id].spec.job_class == "spot":
                taken += len(action.devices)
        assert taken <= max((budget.gpus for budget in budgets.values()), default=0)
        return decision

    layer.decide = decide  # type: ignore[method-assign]
    check_decisions(small_world(driver, seed, 25).run(until_s=400_000.0).engine)


def test_a_layer_is_no_order() -> None:
    for order in ("gfs", "yarn-cs"):
        with pytest.raises(ValueError, match="classes of its own"):
            registry.make("gfs-rise", {"order": order})
    with pytest.raises(ValueError, match="no policy 'nonsense'"):
        registry.make("gfs", {"order": "nonsense"})
