"""A short storm over two controllers, their PostgreSQL and three agents, and the judge's own test.

`make chaos HA=1 MINUTES=20 SEED=7` runs a long one (`failover_storm.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.building.postgres import NoPostgres
from tests.live.cluster import References
from tests.live.failover_plan import KINDS, LEASE_S, Blow, schedule
from tests.live.failover_storm import FailoverStorm
from tests.live.failover_world import a_failover_cluster
from tests.live.network import NoNetwork

SHORT = ("kill_leader", "freeze_leader", "cut_leader_database", "cut_leader_agents", "kill_database")
LASTS_S = 1.6 * LEASE_S
STEPS = 60


@contextmanager
def a_storm(folder: Path, *, is_fenced: bool) -> Iterator[FailoverStorm]:
    try:
        with a_failover_cluster(folder, is_fenced=is_fenced) as cluster:
            yield FailoverStorm(cluster)
    except (NoNetwork, NoPostgres) as why:
        pytest.skip(str(why))


def blows(seed: int, *kinds: str) -> list[Blow]:
    return [replace(each, lasts_s=LASTS_S, rest_s=3.0) for each in schedule(seed, len(kinds), kinds)]


@pytest.mark.root
def test_nothing_is_lost_doubled_or_changed_by_who_leads(tmp_path: Path, references: References) -> None:
    with a_storm(tmp_path, is_fenced=True) as storm:
        storm.go(blows(1, *SHORT), trainings=1, steps=STEPS)
        print(storm.table())
        assert not storm.complaints(references)
        assert set(storm.striker.struck) == set(SHORT)


@pytest.mark.root
def test_the_judge_finds_controllers_without_their_fence(tmp_path: Path) -> None:
    with a_storm(tmp_path, is_fenced=False) as storm:
        storm.go(blows(1, "freeze_leader", "cut_leader_database"), trainings=0, steps=0)
        found = storm.complaints(None)
    assert any("did not lead in it" in each for each in found), found


def test_a_seed_is_one_schedule_and_each_kind_comes_up_before_one_comes_again() -> None:
    for seed in range(20):
        drawn = schedule(seed, 3 * len(KINDS))
        assert drawn == schedule(seed, 3 * len(KINDS))
        for first in range(0, len(drawn), len(KINDS)):
            assert {blow.kind for blow in drawn[first : first + len(KINDS)]} == set(KINDS)
