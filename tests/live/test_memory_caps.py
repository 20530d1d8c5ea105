"""What limits a job's GPU memory, end to end: real controller, agent, supervisors and jobs on GPUs that are
not there. The jobs write down what they were given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.mock_gpus import MockGpus, build
from tests.live.person import SAY, Person, at_home

ALONE = "import os\nos.environ.setdefault('RANK', '0')\n"
"""One process for all devices of a host has no rank."""
HOLDS = (
    ALONE
    + SAY
    + (
        "name = os.environ['COTENANT_JOB']\n"
        "pathlib.Path(f'given-{name}').write_text(json.dumps(dict(os.environ)))\n"
        "say('first_step', step=1)\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"
    )
)


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Person]:
    (tmp_path / "nvml").mkdir()
    gpus = MockGpus(tmp_path / "facts")
    gpus.say("gpu 1 name NVIDIA H200", "gpu 1 total 40960")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build(tmp_path / "nvml")))
    settings = {
        "agent__devices": "cuda",
        "agent__heartbeat_s": "0.3",
        "policy__name": "sjf-ffs",
        "mps__mode": "off",
    }
    with at_home(tmp_path / "p", mock_nvml=str(gpus.path), **settings) as made:
        made.write("holds.py", HOLDS)
        yield made


def test_two_tenants_of_gpus_that_differ_in_size_each_have_their_part_and_explain_says_who_holds_them_to_it(
    person: Person,
) -> None:
    parts = {"1": 30000, "2": 9000}
    for job, part_mib in parts.items():
        flags = ("-g", "2", "--mem", str(part_mib), "--launch", "host")
        assert person.submit(*flags, "--", "python3", "holds.py") == job
        person.until_state(job, "running")
        given = json.loads((person.work / f"given-{job}").read_text())
        assert given["COTENANT_MEMORY_MIB"] == str(part_mib), "of each device, in a process that sees both"
        assert len(given["CUDA_VISIBLE_DEVICES"].split(",")) == 2
        said = f"torch in each of its processes is held to its part of the {part_mib} MiB of each of its GPUs"
        assert said in " ".join(person("explain", job).out.split())
    assert person.submit("-g", "2", "--mem", "9000", "--", "python3", "holds.py") == "3"
    assert "given-3" not in {path.name for path in person.work.iterdir()}, "a device has two tenants"
    person.write("go", "")
    for job in "12":
        person.until_state(job, "done")


def test_a_job_that_shares_with_nobody_has_no_limit_and_explain_says_why(person: Person) -> None:
    flags = ("--mem", "9000", "--share", "never")
    assert person.submit(*flags, "--", "python3", "holds.py") == "1"
    person.until_state("1", "running")
    given = json.loads((person.work / "given-1").read_text())
    assert "COTENANT_MEMORY_MIB" not in given
    said = "nothing limits its GPU memory: this job was submitted with --share never"
    assert said in " ".join(person("explain", "1").out.split())
    person.write("go", "")
    person.until_state("1", "done")
