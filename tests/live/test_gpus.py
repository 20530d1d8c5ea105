"""A host with GPUs, from end to end: real controller, agent and jobs, and an NVML library of our own.

The jobs are a few lines of Python that never touch a GPU; the library says what they use.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.mock_gpus import MockGpus, build
from tests.live.person import SAY, Person, at_home, when

HOLDS = (
    SAY
    + "open('pids', 'a').write(f'{os.getpid()}\\n')\nsay('first_step', step=1)\n"
    + "while not os.path.exists('go'): time.sleep(0.05)\n"
)


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> MockGpus:
    return MockGpus(tmp_path_factory.mktemp("gpus") / "facts")


@pytest.fixture(scope="module")
def person(gpus: MockGpus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    library = build(tmp_path_factory.mktemp("nvml"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(library))
        settings = {"agent__devices": "cuda", "agent__heartbeat_s": "0.3", "policy__back_off_s": "0.2"}
        settings["mps__mode"] = "off"  # A genuine control program may be installed here.
        with at_home(tmp_path_factory.mktemp("p"), mock_nvml=str(gpus.path), **settings) as made:
            made.write("holds.py", HOLDS)
            yield made


def devices(person: Person) -> list[dict[str, Any]]:
    (node,) = person.json("nodes")["nodes"]
    found: list[dict[str, Any]] = node["devices"]
    return found


def pids(person: Person) -> list[int]:
    path: Path = person.work / "pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_foreign_processes_are_scheduled_around_and_a_lost_gpu_takes_nothing_with_it(
    person: Person, gpus: MockGpus
) -> None:
    assert [(d["device"].rpartition("/")[2], d["type"], d["state"]) for d in devices(person)] == [
        ("gpu-1a2b3c", "NVIDIA-H200-mock", "ok"),
        ("gpu-2a2b3c", "GPU-mock", "ok"),
    ]
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        try:
            gpus.say(f"process 0 {stranger.pid} 4000 C", "gpu 0 used 4600")
            when(lambda: not devices(person)[0]["healthy"])
            assert devices(person)[0]["note"].startswith(f"in use by pid {stranger.pid} of ")
            person.submit("--", "python3", "holds.py")
            person.until_state("1", "running")
            assert devices(person)[1]["jobs"] == ["1"], "around it"
            person.submit("--", "python3", "holds.py")
            assert f"is not offered: in use by pid {stranger.pid}" in person("explain", "2").out
        finally:
            stranger.kill()
    gpus.unsay("process 0")
    gpus.say("gpu 0 used 600", f"process 1 {pids(person)[0]} 3000 C", "gpu 1 used 3600")
    person.until_state("2", "running")
    assert devices(person)[0]["jobs"] == ["2"]
    assert devices(person)[1]["healthy"], "our own job is no stranger"

    gpus.say("xid 0 79")
    when(lambda: devices(person)[0]["state"] == "lost")
    gone = person.until("2", lambda job: job["attempt"] == 2 or job["state"] in ("queued", "blocked"))
    assert gone["state"] != "failed"
    assert "the GPU failed: Xid 79 (fallen off the bus)" in person("show", "2").out
    assert person.job("1")["state"] == "running", "the other GPU has nothing to do with it"

    gpus.unsay("process 1")
    gpus.say("gpu 1 used 600")  # Else the ends of jobs would wait for it.
    person.write("go", "")
    for job in "12":
        person.until_state(job, "done")
    assert devices(person)[0]["state"] == "lost"


def test_a_suspect_is_offered_again_when_a_person_says_so(person: Person, gpus: MockGpus) -> None:
    gpus.unsay("process 1")
    gpus.say("gpu 1 used 600", "xid 1 9999")
    when(lambda: devices(person)[1]["state"] == "suspect")
    assert devices(person)[1]["note"] == "suspect: Xid 9999 (not in our table)"
    person("nodes", "resume", person.json("nodes")["nodes"][0]["host"])
    when(lambda: devices(person)[1]["healthy"])
