"""Command lines and Python in a job: they ask the controller that runs the job, and start none."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.live.person import COTENANT, Person, at_home
from tests.live.test_bad_messages import daemon

SUBMITS = """
import cotenant
print("from python:", cotenant.submit(command=["echo", "inner"]).result())
"""


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    with at_home(tmp_path_factory.mktemp("p"), agent__devices="cpu:2", policy__back_off_s="0.1") as made:
        yield made


def ended(person: Person, job: str) -> str:
    """What a job has written, once it is done."""
    assert person("wait", job).code == 0, f"{person.job(job)}\n{person.logs(job)}"
    return person.logs(job)


def test_every_verb_and_python_in_a_job_reach_its_controller(person: Person) -> None:
    inner = ended(person, person.submit("--", *COTENANT, "submit", "--", "echo", "inner")).strip()
    assert ended(person, inner) == "inner\n"
    listed = ended(person, person.submit("-J", "asks", "--", *COTENANT, "queue"))
    assert "asks" in listed
    assert "from python: " in ended(person, person.submit("--", sys.executable, "-c", SUBMITS))


def test_run_in_a_job_waits_for_its_turn_at_the_same_controller(person: Person) -> None:
    said = ended(person, person.submit("--", *COTENANT, "run", "--", "sh", "-c", "echo inner; exit 0"))
    assert "inner" in said and "starting one here" not in said
    assert "in which this runs, keeps its devices while it waits" in said


def test_a_job_requeues_itself(person: Person) -> None:
    words = " ".join(COTENANT)
    script = f"[ $COTENANT_ATTEMPT -gt 1 ] || {{ {words} requeue $COTENANT_JOB; sleep 600; }}; echo again"
    assert ended(person, person.submit("--", "sh", "-c", script)).endswith("again\n")


def test_an_endpoint_that_is_named_at_the_submission_wins(person: Person) -> None:
    """What a user says at the submission is what the job sees."""
    named = ("--env", "COTENANT_CONTROLLER__ENDPOINT=ipc:///nowhere/c.sock")
    job = person.submit(*named, "--", "sh", "-c", "echo $COTENANT_CONTROLLER__ENDPOINT")
    assert ended(person, job) == "ipc:///nowhere/c.sock\n"


def test_run_in_a_job_starts_no_controller_where_none_answers(person: Person) -> None:
    nobody = f"ipc://{person.home}/run/none.sock"
    inner = (*COTENANT, "run", "--", "true")
    job = person.submit("--env", f"COTENANT_CONTROLLER__ENDPOINT={nobody}", "--", *inner)
    assert person("wait", job).code == 1
    assert person.job(job)["exit_code"] == 5
    said = person.logs(job)
    assert f"and none is started in a job, which holds the devices (job {job})" in said, said
    assert not [each.pid for each in psutil.process_iter() if nobody in words_of(each)], (
        "nothing listens there"
    )


def words_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def test_a_job_finds_its_user_s_key_where_the_submitter_has_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    person = Person(tmp_path_factory.mktemp("p"), agent__devices="cpu:1")
    keys = ("--keys-dir", str(person.home / "keys"))
    assert person("init", *keys).code == 0
    for_agent: str = person.json("init", *keys, "--host", "h1")["file"]
    with contextlib.ExitStack() as stack:
        line = stack.enter_context(daemon(person, "controller", "--endpoint", "tcp://127.0.0.1:0", *keys))
        endpoint = line.split()[1]
        named = ("--controller", endpoint, "--host", "h1", "--keys-dir", for_agent)
        stack.enter_context(daemon(person, "agent", *named))
        person.env |= {"COTENANT_CONTROLLER__ENDPOINT": endpoint, "COTENANT_CONTROLLER__KEYS_DIR": keys[1]}
        assert "asks" in ended(person, person.submit("-J", "asks", "--", *COTENANT, "queue"))
