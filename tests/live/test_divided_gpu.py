"""A GPU that is divided into static partitions, end to end: real controller, agent, supervisors and jobs.

NVML and the MPS control program are stand-ins of our own; the jobs never touch a GPU, and write down what
they were given.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.mps import process
from cotenant.mps.environment import ACTIVE_THREAD_PERCENTAGE, PREFIX, SM_PARTITION
from tests.agent.mock_gpus import ONE, MockGpus, build
from tests.live.person import SAY, Person, at_home, when
from tests.mps.conftest import stub_in

HOLDS = SAY + (
    f"given = {{name: value for name, value in os.environ.items() if name.startswith({PREFIX!r})}}\n"
    "name = os.environ['COTENANT_JOB']\n"
    "pathlib.Path(f'given-{name}').write_text(json.dumps(given))\n"
    "say('first_step', step=1)\n"
    "while not os.path.exists(f'go-{name}'): time.sleep(0.05)\n"
)


@pytest.fixture
def runtime() -> Iterator[Path]:
    """Short, for sockets; whatever lives there ends with the test."""
    folder = Path(tempfile.mkdtemp(prefix="m-"))
    yield folder
    now = process.look_around()
    for found in (*now.daemons, *now.servers):
        if (found.pipe_directory or "").startswith(str(folder)):
            process.end(found.identity, 10.0)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def person(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Person]:
    for name in ("nvml", "bin"):
        (tmp_path / name).mkdir()
    gpus = MockGpus(tmp_path / "facts")
    gpus.unsay("gpu 1")
    world = tmp_path / "world.json"
    world.write_text(json.dumps({"partitions": True, "gpu": True, "version": 13010}))
    stub_in(tmp_path / "bin")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build(tmp_path / "nvml")))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("MPS_STUB_WORLD", str(world))
    settings = {
        "agent__devices": "cuda",
        "agent__heartbeat_s": "0.3",
        "policy__name": "sjf-ffs",
        "mps__runtime_dir": str(runtime),
        "mps__static_partitions": "true",
        "mps__active_thread_percentage": "60",
    }
    with at_home(tmp_path / "p", mock_nvml=str(gpus.path), **settings) as made:
        made.write("holds.py", HOLDS)
        yield made


def given(person: Person, job: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((person.work / f"given-{job}").read_text())
    return found


def test_each_tenant_has_a_partition_of_its_own_over_restarts_of_the_agent_and_gives_it_back(
    person: Person, runtime: Path
) -> None:
    (node,) = person.json("nodes")["nodes"]
    (device,) = node["devices"]
    assert (device["sharing"], device["sharing_note"]) == (
        "mps",
        "static partitions of 64 + 56 multiprocessors",
    )
    for job in "12":
        assert person.submit("--mem", "1000", "--", "python3", "holds.py") == job
        person.until_state(job, "running")
    first, second = given(person, "1"), given(person, "2")
    assert first[SM_PARTITION].startswith(f"{ONE}/")
    assert second[SM_PARTITION].startswith(f"{ONE}/")
    assert first[SM_PARTITION] != second[SM_PARTITION]
    assert ACTIVE_THREAD_PERCENTAGE not in {*first, *second}
    assert "static partitions of 64 + 56 multiprocessors" in person("explain", "1").out

    (daemon,) = [
        each for each in process.look_around().daemons if str(runtime) in (each.pipe_directory or "")
    ]
    assert daemon.partitioned
    person.down()
    person.up()
    assert process.is_alive(daemon.identity), "jobs are on it"
    person.write("go-1", "")
    person.until_state("1", "done")
    assert person.submit("--mem", "1000", "--", "python3", "holds.py") == "3"
    person.until_state("3", "running")
    assert given(person, "3")[SM_PARTITION] == first[SM_PARTITION], "the one that is nobody's"

    for job in "23":
        person.write(f"go-{job}", "")
        person.until_state(job, "done")
    person.down()
    when(lambda: not process.is_alive(daemon.identity))
