"""A real job that runs out of device memory beside another: blamed, kept apart, and seen in `cotenant pairs`.

The jobs are a few lines of Python that say what torch would say; nothing here waits for torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.person import SAY, Person, at_home

HOLDS = SAY + "say('first_step', step=1)\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
GREEDY = (
    SAY
    + "say('first_step', step=1)\n"
    + "open('attempts', 'a').write('x')\n"
    + "if os.path.exists('go'): sys.exit(0)\n"
    + "raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')\n"
)


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    settings = {"agent__devices": "cpu:1", "agent__heartbeat_s": "0.3", "policy__name": "sjf-ffs"}
    with at_home(tmp_path_factory.mktemp("p"), **settings) as made:
        made.write("holds.py", HOLDS)
        made.write("greedy.py", GREEDY)
        yield made


def shown(person: Person) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(person("pairs", "-o", "json").out)
    return found


def test_a_pair_that_runs_out_of_memory_is_parted_for_good(person: Person) -> None:
    assert shown(person)["pairs"] == []
    person.submit("--mem", "100", "--", "python3", "holds.py")
    person.until_state("1", "running")
    person.submit("--mem", "100", "--", "python3", "greedy.py")
    person.until("2", lambda job: job["state"] == "queued" and job["attempt"] == 1)
    assert "it runs alone" in person("explain", "2").out
    person.submit("--mem", "100", "--", "python3", "greedy.py")
    person.until_state("3", "queued")
    assert "have run out of device memory together" in person("explain", "3").out
    (pair,) = shown(person)["pairs"]
    assert pair["verdict"] == "crowded"
    assert pair["quarantine"] == "python3 greedy.py ran out of device memory beside python3 holds.py (1 x)"
    person.write("go", "")
    for job in "123":
        person.until_state(job, "done")
    assert len((person.work / "attempts").read_text()) == 3, "one that failed beside the other, two alone"
