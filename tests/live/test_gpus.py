"""A host with GPUs, from end to end: real controller, agent and jobs, and an NVML library of our own.

The jobs are a few lines of Python that never touch a GPU; the library says what they use.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.mock_gpus import TWO, MockGpus, build
from tests.live.person import SAY, Person, at_home, when

INSTANCES = tuple(f"MIG-{number}a2b3c4d-0000-0000-0000-000000000000" for number in (7, 8))
SEES = (
    SAY
    + "open('saw-' + os.environ['COTENANT_JOB'], 'w').write(os.environ['CUDA_VISIBLE_DEVICES'] + ' '\n"
    + "    + os.environ.get('CUDA_MPS_PIPE_DIRECTORY', 'no pipe'))\nsay('first_step', step=1)\n"
    + "while not os.path.exists('leave'): time.sleep(0.05)\n"
)
HOLDS = (
    SAY
    + "open('pids', 'a').write(f'{os.getpid()}\\n')\nsay('first_step', step=1)\n"
    + "while not os.path.exists('go'): time.sleep(0.05)\n"
)


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> MockGpus:
    mock = MockGpus(tmp_path_factory.mktemp("gpus") / "facts")
    parts = (f"gpu 2 instance {uuid} NVIDIA H200 MIG 1g.18gb" for uuid in INSTANCES)
    mock.say("gpu 2 uuid GPU-3a2b3c4d-0000-0000-0000-000000000000", "gpu 2 mig 1", *parts)
    return mock


@pytest.fixture(scope="module")
def person(gpus: MockGpus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    library = build(tmp_path_factory.mktemp("nvml"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(library))
        settings = {"agent__devices": "cuda", "agent__heartbeat_s": "0.3", "policy__back_off_s": "0.2"}
        settings["mps__mode"] = "off"  # A genuine control program may be installed here.
        with at_home(tmp_path_factory.mktemp("p"), mock_nvml=str(gpus.path), **settings) as made:
            made.write("holds.py", HOLDS)
            when(lambda: all(each["state"] == "ok" for each in devices(made)))  # CUDA was tried on all.
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
        ("gpu-3a2b3c", "GPU-mock", "ok"),
        ("gpu-3a2b3c-mig-7a2b3c", "MIG-1g.18gb", "ok"),
        ("gpu-3a2b3c-mig-8a2b3c", "MIG-1g.18gb", "ok"),
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
    gpus.say("gpu 1 energy 7200000000")
    person.until("1", lambda job: (job["energy_kwh"] or 0.0) > 1.9)

    # A script that numbers devices as the host does: job 1 runs on the GPU of job 2.
    gpus.say(f"process 0 {pids(person)[0]} 3000 C", "gpu 0 used 3600")
    when(lambda: devices(person)[0]["note"] == "job 1 uses it and holds gpu-2a2b3c")
    assert devices(person)[0]["state"] == "ok"
    when(lambda: "this job uses gpu-1a2b3c, which it was not given" in person("explain", "1").out)
    when(lambda: "job 1 uses gpu-1a2b3c as well without holding it" in person("explain", "2").out)
    when(lambda: person("logs", "1").out.count("this job uses gpu-1a2b3c, which it was not given") == 1)
    gpus.unsay("process 0")
    gpus.say("gpu 0 used 600")
    when(lambda: devices(person)[0]["healthy"])

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
    assert person.job("1")["energy_kwh"] == 2.0
    assert "energy        2 kWh" in person("show", "1").out
    assert devices(person)[0]["state"] == "lost"


def test_a_suspect_is_offered_again_when_a_person_says_so(person: Person, gpus: MockGpus) -> None:
    gpus.unsay("process 1")
    gpus.say("gpu 1 used 600", "xid 1 9999")
    when(lambda: devices(person)[1]["state"] == "suspect")
    assert devices(person)[1]["note"] == "suspect: Xid 9999 (not in our table)"
    person("nodes", "resume", person.json("nodes")["nodes"][0]["host"])
    when(lambda: devices(person)[1]["healthy"])


def test_words_that_cuda_does_not_start_are_the_devices_fault_where_it_does_not_and_else_the_jobs(
    person: Person, gpus: MockGpus
) -> None:
    person.write("blind.py", "raise RuntimeError('No CUDA GPUs are available')\n")
    gpus.say(f"libcuda init 802 {TWO}")
    job = person.submit("--", "python3", "blind.py")
    when(lambda: "at init: on HGX hosts the fabric manager is not up" in devices(person)[1]["note"])
    person.until(job, lambda job: job["state"] in ("queued", "blocked"))
    assert "the GPU failed: CUDA does not start here: error 802" in person("show", job).out
    gpus.unsay("libcuda")
    person("nodes", "resume", person.json("nodes")["nodes"][0]["host"])
    person.until_state(job, "failed")
    assert "and works: does the job change CUDA_VISIBLE_DEVICES" in person("show", job).out
    assert devices(person)[1]["healthy"]


def test_mig_instances_take_one_job_each_that_asks_for_one(person: Person, gpus: MockGpus) -> None:
    person.write("sees.py", SEES)
    asks = ("--gpu-type", "MIG-1g.18gb", "--", "python3", "sees.py")
    first, second, third = (person.submit(*asks) for _ in range(3))
    for job in (first, second):
        person.until_state(job, "running")
    saw = {(person.work / f"saw-{job}").read_text() for job in (first, second)}
    assert saw == {f"{uuid} /nonexistent/mps" for uuid in INSTANCES}
    assert person.job(third)["state"] == "queued"
    other = person.submit("--share", "never", "--", "python3", "sees.py")
    person.until_state(other, "running")
    assert devices(person)[1]["jobs"] == [other], "it did not ask for a part of a GPU"
    person("submit", "--gpus", "2", *asks).refuses(2, "one MIG-1g.18gb per job")

    parent, *parts = devices(person)[2:]
    assert (parent["healthy"], [each["parent"] for each in parts]) == (False, [gpus_uuid(gpus)] * 2)
    when(lambda: all((each["indicators"] or {}).get("memory_used_mib") == 20 for each in devices(person)[3:]))
    listed = person("nodes", COLUMNS="200").out
    assert "divided into 2 MIG instances, for jobs with --gpu-type MIG-1g.18gb" in listed
    assert "a MIG instance of gpu-3a2b3c, which one job has to itself" in listed
    assert "is a MIG instance of gpu-3a2b3c" in person("explain", first).out

    person.write("leave", "")
    for job in (first, second, third, other):
        person.until_state(job, "done")
    gpus.say("xid 2 9999 2")
    when(lambda: devices(person)[4]["state"] == "suspect")
    assert devices(person)[3]["healthy"], "the error was on the other instance"
    gpus.unsay(f"gpu 2 instance {INSTANCES[0]}")
    when(lambda: "the MIG instance is gone: restart the agent" in devices(person)[3]["note"])


def gpus_uuid(gpus: MockGpus) -> str:
    return next(fact.split()[3] for fact in gpus.facts if fact.startswith("gpu 2 uuid"))
