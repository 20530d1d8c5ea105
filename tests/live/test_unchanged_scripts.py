"""Scripts that know nothing of cotenant, submitted without a flag: their steps are told, and they share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.person import Person, at_home

SCRIPTS = Path(__file__).parents[1] / "checkpoint" / "scripts"
PLAIN = (SCRIPTS / "plain_loop.py").read_text()
PROFILE_S = 2.0
"""The first minute of a job here."""
ONE_THREAD = ("--env", "OMP_NUM_THREADS=1")


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    settings = {"agent__devices": "cpu:1", "policy__name": "castor", "agent__heartbeat_s": "0.3"}
    with at_home(tmp_path_factory.mktemp("u"), **settings, profiler__seconds=str(PROFILE_S)) as made:
        yield made


def waiting(text: str) -> str:
    """The same script with little to do in each step, until it is told to go on."""
    text = text.replace("import sys\n", "import os\nimport sys\nimport time\n", 1)
    return text.replace(
        "        optimizer.step()\n",
        "        optimizer.step()\n        if not os.path.exists('go'):\n            time.sleep(0.02)\n",
    )


def test_a_vanilla_sweep_shares_when_its_first_minute_is_over(person: Person) -> None:
    script = person.write("sweep.py", waiting(PLAIN))
    command = (*ONE_THREAD, "--", sys.executable, str(script), "400")
    first = person.submit(*command, "--out=outa", "--seed=1")
    seen = person.until(first, lambda found: found["total_steps"])
    assert (seen["total_steps"], seen["total_note"]) == (400 * 13, "loops seen: range(400) x 13 batches")
    second = person.submit(*command, "--out=outb", "--seed=2")
    shared = person.until_state(second, "running")
    assert shared["co_tenants"] == [first]
    told = person("explain", second).out
    assert f"sharing with job {first} pays" in told
    profile = person.show(first)["profile"]
    assert profile["memory_mib_peak"] > 0 and profile["duty_cycle"] > 0 and profile["steps"] > 10
    left = person.job(first)
    assert left["left_source"] == "loops" and left["left_s"] > 1.0

    other = person.write("other.py", waiting(PLAIN))
    stranger = person.submit(*ONE_THREAD, "--", sys.executable, str(other), "2")
    assert person.job(stranger)["left_s"] is None, "nothing is known of its length"
    person("cancel", second)
    person.until_state(second, "cancelled")
    assert "give --iterations or --expect" in person("explain", stranger).out
    person("cancel", first)
    person.write("go", "")
    done = person.until_state(stranger, "done")
    assert (done["step"], done["exit_code"]) == (26, 0)


def test_a_script_that_spawns_its_own_workers_uses_its_devices_and_tells_its_steps(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = {"agent__devices": "cpu:2", "agent__heartbeat_s": "0.3"}
    with at_home(tmp_path_factory.mktemp("s"), **settings) as person:
        script = person.write("spawns.py", (SCRIPTS / "ddp_spawn.py").read_text())
        job = person.submit("-g", "2", *ONE_THREAD, "--", sys.executable, str(script), "5", "2")
        done = person.until_state(job, "done")
    assert (done["step"], done["total_steps"], done["exit_code"]) == (80, 80, 0)


def test_without_the_hook_nothing_is_counted(person: Person) -> None:
    person.write("go", "")
    script = person.write("plain.py", PLAIN)
    job = person.submit("--progress", "never", *ONE_THREAD, "--", sys.executable, str(script), "2")
    found = person.until_state(job, "done")
    assert (found["step"], found["total_steps"]) == (0, None)
