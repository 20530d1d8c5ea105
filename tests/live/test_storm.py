"""Two short storms over two hosts, and what makes them: schedules, and wall clocks that jump.

`make chaos MINUTES=20 SEED=7` runs a long one (`storm.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.live.cluster import References
from tests.live.storm import a_storm
from tests.live.storm_judge import complaints, table
from tests.live.storm_plan import CLOCKS, KILLS, KINDS, STOPS, WISHES, schedule, works
from tests.live.wall_clock import NoShim, WallClocks

SPAN_S = (0.3, 1.5)
LEASE_S = 6.0
STEPS_MAX = 60
AT_ONCE = 3


@pytest.mark.parametrize(("storm_seed", "kinds"), [(1, (*KILLS, *WISHES)), (2, (*STOPS, *CLOCKS))])
def test_no_job_is_lost_doubled_or_changed_by_a_storm(
    tmp_path: Path, references: References, storm_seed: int, kinds: Sequence[str]
) -> None:
    print(f"seed {storm_seed}")
    blows = schedule(storm_seed, len(kinds), kinds, SPAN_S)
    with a_storm(tmp_path, works(storm_seed, STEPS_MAX), LEASE_S, AT_ONCE) as storm:
        storm.go(blows)
        print(table(storm))
        assert not complaints(storm, references)
        assert storm.world.deeds.struck.keys() >= {*kinds} & {*KILLS, *STOPS}


def test_a_seed_is_one_schedule_and_each_kind_comes_up_before_one_comes_again() -> None:
    for seed in range(20):
        blows = schedule(seed, 3 * len(KINDS))
        assert blows == schedule(seed, 3 * len(KINDS))
        for first in range(0, len(blows), len(KINDS)):
            assert {blow.kind for blow in blows[first : first + len(KINDS)]} == set(KINDS)


def test_a_running_process_sees_its_wall_clock_jump_and_nothing_else(tmp_path: Path) -> None:
    try:
        clocks = WallClocks(tmp_path, ("one",))
    except NoShim as why:
        pytest.skip(str(why))
    script = (
        "import multiprocessing, time\n"
        "for _ in range(3):\n"
        "    print(time.time(), time.clock_gettime(time.CLOCK_MONOTONIC), flush=True)\n"
        "    multiprocessing.Semaphore(0).acquire(timeout=0.01)  # By the wall clock.\n"
        "    input()\n"
    )
    env = {**os.environ, **clocks.environment("one")}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], env=env, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None and process.stdout is not None
        seen = []
        for jump_s in (86_400.0, -172_800.0, 0.0):
            seen.append([float(word) for word in process.stdout.readline().split()])
            clocks.jump("one", jump_s)
            process.stdin.write(b"\n")
            process.stdin.flush()
    (wall_1, up_1), (wall_2, up_2), (wall_3, up_3) = seen
    assert round(wall_2 - wall_1 - (up_2 - up_1)) == 86_400
    assert round(wall_3 - wall_2 - (up_3 - up_2)) == -172_800
