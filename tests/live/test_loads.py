"""Loads of real processes are as long as they were: everybody who asks is told the same, whether a first step
is waited for, comes later than assumed, or never comes.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.building.limits import within_s
from tests.live.person import Person, at_home

QUIET_START_S = within_s(1.5)
"""Python starts many times over in it."""
TELLS = """
import json, os, socket, sys, time

def say(word, **fields):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        text = json.dumps(dict(v=1, m=word, rank=int(os.environ["RANK"]), **fields))
        channel.sendto(text.encode(), os.environ["COTENANT_SOCKET"])

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.02)

"""
"""A script that knows nothing of us, in a few lines: what torch's hook would say is said here."""
LATE = TELLS + 'wait_for("loaded")\nsay("first_step", step=1)\nwait_for("over")\n'
TORCH = TELLS + "import torch\n" + 'wait_for("go")\nsay("first_step", step=1)\nwait_for("end")\n'
CLOSE_S = 0.02
"""Times in JSON are cut to milliseconds."""


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    settings = {
        "agent__devices": "cpu:2",
        "agent__quiet_start_s": str(QUIET_START_S),
        "agent__heartbeat_s": "0.3",
        "launch__warm": "false",
    }
    with at_home(tmp_path_factory.mktemp("p"), **settings) as made:
        (made.work / "torch").mkdir()
        made.write("torch/__init__.py", "")
        made.write("late.py", LATE)
        made.write("trains.py", TORCH)
        yield made


def between_s(begin: str, end: str) -> float:
    parsed = [datetime.datetime.fromisoformat(each) for each in (begin, end)]
    return (parsed[1] - parsed[0]).total_seconds()


def only(rows: list[dict[str, Any]], job: str) -> dict[str, Any]:
    (found,) = [row for row in rows if row["job"] == job]
    return found


def agreed_load_s(person: Person, job: str) -> float:
    """What all who tell of an ended job of one attempt say that it loaded."""
    shown = person.show(job)
    (attempt,) = shown["attempts"]
    since = attempt["first_step_at"] or attempt["start_assumed_at"]
    load_s = between_s(attempt["launched_at"], since)
    run_s = between_s(since, attempt["stop_requested_at"] or attempt["ended_at"])
    past = only(person.json("history")["past-jobs"], job)
    drawn = only(json.loads(person("timeline", "-o", "json").out)["jobs"], job)
    assert drawn["attempts"] == [attempt]
    for told in (shown, past):
        assert told["load_s"] == pytest.approx(load_s, abs=CLOSE_S), told
        assert told["run_s"] == pytest.approx(run_s, abs=CLOSE_S), told
    return load_s


def test_a_first_step_later_than_assumed_corrects_what_everybody_is_told(person: Person) -> None:
    job = person.submit("--", "python3", "late.py")
    assumed = person.until_state(job, "running")
    assert assumed["start_assumed"]
    answer = person("show", job).out
    assert "none are seen: it counts as running" in answer and "first step" not in answer
    (attempt,) = person.show(job)["attempts"]
    assert attempt["first_step_at"] is None
    person.write("loaded", "")
    person.until(job, lambda found: not found["start_assumed"])
    person.write("over", "")
    person.until_state(job, "done")
    assert agreed_load_s(person, job) > between_s(attempt["launched_at"], attempt["start_assumed_at"])
    again = person.submit("--hold", "--", "python3", "late.py")
    expected_s = person.job(again)["expected_load_s"]
    assert expected_s == pytest.approx(person.show(job)["load_s"], abs=CLOSE_S)
    assert person("cancel", again).code == 0


def test_who_imports_torch_loads_until_its_first_step_and_who_cannot_make_one_runs(person: Person) -> None:
    trains = person.submit("--", "python3", "trains.py")
    sleeps = person.submit("--", "sleep", "1000")
    person.until_state(sleeps, "running")
    found = person.job(trains)
    assert (found["state"], found["start_assumed"]) == ("loading", False)
    person.write("go", "")
    person.until_state(trains, "running")
    person.write("end", "")
    person.until_state(trains, "done")
    agreed_load_s(person, trains)
    assert person("cancel", sleeps).code == 0
    person.until_state(sleeps, "cancelled")
    for verb in ("show", "explain"):
        assert "first step" not in person(verb, sleeps).out
    agreed_load_s(person, sleeps)
