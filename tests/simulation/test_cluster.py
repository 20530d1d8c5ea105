"""A whole cluster from one seed: real engine, agents and supervisors, a fake network, every kind of crash.

    python -m pytest tests/simulation                            200 seeds
    python -m pytest tests/simulation --seeds 5000 --first-seed 1000
    COTENANT_SIM_SEED=17 python -m pytest -s tests/simulation     one seed, with its trace
    COTENANT_SIM_SEED=17:storm ...                                one seed as a storm (or `gentle`, `mixed`)

What each run checks is in `cluster.py`: no two attempts of a job ever live at once, no device has a third
tenant, no accepted job is lost, no attempt begins behind a checkpoint that the controller was told of; under
gentle faults no running job notices anything; and once the faults stop everything ends, all devices are
free and all reports are heard.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.simulation.cluster import Broken, Cluster, Plan, plan_of

SHOWN_MAX = 5
"""Failing seeds told in full; of the others only the first line."""

ONE = os.environ.get("COTENANT_SIM_SEED", "")

# Seeds that once found something, and what it was.
FOUND: dict[str, str] = {}


def cluster(name: str, *, loud: bool = False) -> Cluster:
    """`17`, or `17:storm`."""
    seed, _, kind = name.partition(":")
    if not kind:
        return Cluster(int(seed), loud=loud)
    plans = {"gentle": plan_of(1), "storm": plan_of(3), "mixed": Plan()}
    return Cluster(int(seed), plans[kind], loud=loud)


@pytest.mark.skipif(not ONE, reason="one seed only when COTENANT_SIM_SEED names it")
def test_the_seed_that_was_asked_for() -> None:
    cluster(ONE, loud=True).run()


@pytest.mark.skipif(bool(ONE), reason="COTENANT_SIM_SEED asks for one seed only")
def test_no_seed_breaks_a_promise(request: pytest.FixtureRequest) -> None:
    first: int = request.config.getoption("--first-seed")
    count: int = request.config.getoption("--seeds")
    stories: list[str] = []
    began_s, virtual_s = time.monotonic(), 0.0
    for seed in range(first, first + count):
        try:
            virtual_s += Cluster(seed).run().clock.now_s
        except Broken as broken:
            stories.append(str(broken))
    took_s = time.monotonic() - began_s
    print(f"{count} seeds, {virtual_s / 3600:.1f} hours of a cluster's life in {took_s:.0f} s")
    short = [story.partition("\n")[0] for story in stories[SHOWN_MAX:]]
    assert not stories, f"{len(stories)} of {count} seeds failed\n\n" + "\n\n".join(
        stories[:SHOWN_MAX] + short
    )


@pytest.mark.skipif(bool(ONE), reason="COTENANT_SIM_SEED asks for one seed only")
@pytest.mark.parametrize("name", FOUND)
def test_what_a_seed_once_found_stays_found(name: str) -> None:
    cluster(name).run()


@pytest.mark.skipif(bool(ONE), reason="COTENANT_SIM_SEED asks for one seed only")
@pytest.mark.parametrize("name", ["3:storm", "5:gentle", "6:mixed"])
def test_the_same_seed_is_the_same_run(name: str) -> None:
    one, two = cluster(name).run(), cluster(name).run()
    assert one.clock.lines == two.clock.lines
    assert one.headquarters.pages.entries == two.headquarters.pages.entries
