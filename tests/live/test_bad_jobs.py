"""Jobs that misbehave, each in its own way: a clear end, nothing left behind, no harm to the one beside it.

The jobs are a few lines of shell or Python, so that nothing here waits for torch.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.building.limits import within_s
from tests.live.person import PATIENCE_S, SAY, Person, at_home, gone, when

LOG_BYTES_MAX = 200_000
START_DEADLINE_S = round(within_s(8))
"""Python has to start within it, on a busy machine."""


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """Two devices: one for a job that all the others must not touch, one for them."""
    settings = {
        "agent__devices": "cpu:2",
        "agent__start_deadline_s": str(START_DEADLINE_S),
        "agent__log_bytes_max": str(LOG_BYTES_MAX),
        "agent__heartbeat_s": "0.3",
        "policy__back_off_s": "0.1",
        "policy__stop_deadline_s": "1",
    }
    with at_home(tmp_path_factory.mktemp("p"), policy__name="fifo", **settings) as made:
        waiter = "while not os.path.exists('go'): time.sleep(0.05)\nprint('undisturbed')\n"
        made.write("bystander.py", SAY + "say('first_step', step=1)\n" + waiter)
        made.submit("--", "python3", "bystander.py")
        made.until_state("1", "running")
        yield made


def newest(person: Person) -> str:
    return person("queue", "--all", "-o", "id").out.split()[-1]


def test_a_script_that_exits_1(person: Person) -> None:
    script = 'echo starting; echo "ValueError: no such column" >&2; exit 1'
    answer = person("run", "--", "sh", "-c", script)
    assert answer.code == 1
    assert answer.out == "starting\n"
    assert "ValueError: no such column" in answer.err.splitlines(), "its standard error is apart"
    job = newest(person)
    assert answer.err.splitlines()[-1] == f"job {job} failed: exit code 1: ValueError: no such column"
    found = person.job(job)
    assert (found["state"], found["exit_code"]) == ("failed", 1)
    shown = person("show", job).out
    assert "failed: exit code 1: ValueError: no such column" in shown
    assert "exit code     1" in shown
    assert "exit code 1: ValueError: no such column" in person("explain", job).out
    waited = person("wait", job)
    assert waited.code == 1 and "exit code 1" in waited.out


def test_a_job_that_kills_itself_fails_at_once(person: Person) -> None:
    """The kernel has recorded no lack of memory: it is tried again as often as --retries says."""
    answer = person("run", "--", "sh", "-c", "echo alive; kill -KILL $$")
    assert answer.code == 128 + signal.SIGKILL
    assert answer.out == "alive\n", "no retry"
    assert answer.err.endswith(
        "failed: killed by SIGKILL, not for memory: the kernel has no record of that\n"
    )
    again = person("run", "--retries", "1", "--", "sh", "-c", "echo alive; kill -KILL $$")
    assert (again.code, again.out) == (128 + signal.SIGKILL, "alive\n" * 2)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("kill -TERM $$", 143),
        ("kill -INT $$", 130),
        ("kill -HUP $$", 129),
        ("(sleep 0.2; kill $$) & sleep 60", 143),
        ("kill 0", 143),
        ("exit 143", 143),
        ("exit 130", 130),
    ],
)
def test_a_signal_that_a_job_sent_itself_is_its_own_failure(person: Person, script: str, code: int) -> None:
    """Nothing came from outside, so nothing is done twice."""
    answer = person("run", "--", "bash", "-c", f"echo alive; {script}")
    assert (answer.code, answer.out) == (code, "alive\n")
    assert "the job's own: nothing beside it was signalled" in answer.err


def test_a_job_that_looks_twice_like_a_failure_of_the_network_fails_and_its_children_go_on(
    person: Person,
) -> None:
    job = person.submit("--", "sh", "-c", "echo 'NCCL error'; exit 1")
    child = person.submit("--after", f"any:{job}", "--", "true")
    person.until_state(child, "done")
    found = person.show(job)
    assert (found["state"], found["exit_code"], found["attempt"]) == ("failed", 1, 2)
    assert (
        "NCCL failure: NCCL error; twice in a row after about 0 s, so it counts as the job's own"
        in found["reason"]
    )
    assert [each["outcome"] for each in found["attempts"]] == ["infra-failed", "user-failed"]


def test_a_job_whose_infrastructure_fails_again_and_again_is_held_and_run_says_what_next(
    person: Person,
) -> None:
    words = 'case $COTENANT_ATTEMPT in 1 | 3) echo "NCCL error";; *) echo "address already in use";; esac'
    answer = person("run", "--", "sh", "-c", f"echo alive; {words} >&2; exit 9")
    assert (answer.code, answer.out) == (9, "alive\n" * 4), "three retries"
    job = newest(person)
    assert "held after 4 infrastructure failures in a row; the last: an address is already in" in answer.err
    assert answer.err.endswith(f"`cotenant release {job}` tries it again, `cotenant cancel {job}` ends it\n")
    assert person("run", "-q", "--", "true").code == 0, "the host is not blamed for it"
    assert person("cancel", job).code == 0


def test_a_command_that_is_gone_or_useless_at_the_start(person: Person) -> None:
    """What can be seen at the submission is refused there; this is seen only later."""
    script = person.write("train.sh", "#!/bin/sh\necho trained\n")
    script.chmod(0o755)
    missing, damaged = (person.submit("--hold", "--", "./train.sh") for _ in range(2))
    script.unlink()
    assert person("release", missing).code == 0
    found = person.until_state(missing, "failed")
    assert found["exit_code"] == 127
    assert "command not found on" in found["reason"] and "./train.sh" in found["reason"]
    script.write_bytes(b"\x7fELF")
    script.chmod(0o755)
    assert person("release", damaged).code == 0
    found = person.until_state(damaged, "failed")
    assert found["exit_code"] == 126
    assert "cannot execute ./train.sh on" in found["reason"] and "Exec format error" in found["reason"]
    script.write_text("#!/no/such/interpreter\n")
    person("run", "--", "./train.sh").refuses(2, "names /no/such/interpreter, which does not exist")


def test_a_working_directory_that_is_gone_at_the_start(person: Person) -> None:
    folder = person.work / "soon gone"
    folder.mkdir()
    # It says something: else it would hang at its start, as far as anybody can see.
    blocker = person.submit("--", "sh", "-c", "while [ ! -e on ]; do echo here; sleep 0.05; done")
    with person.begun("run", "--workdir", str(folder), "--", "true") as running:
        assert running.stderr is not None
        assert any("wait" in line or "queued" in line for line in running.stderr), (
            "no line says that it waits"
        )
        folder.rmdir()
        person.write("on", "")
        assert running.wait(PATIENCE_S) == 125, "it never started"
        assert f"working directory {folder} does not exist on" in running.stderr.read()
    assert person("wait", blocker).code == 0
    assert person("cancel", newest(person)).code == 0


def test_a_job_that_hangs_at_start(person: Person) -> None:
    person.write("hang.py", SAY + "print('waiting for a lock', flush=True)\ntime.sleep(600)\n")
    answer = person("run", "--", "python3", "hang.py")
    assert answer.code != 0
    assert answer.out == "waiting for a lock\n"
    assert f"no first step within {START_DEADLINE_S} s after the start: it hangs" in answer.err
    assert "agent.start_deadline_s" in answer.err


def test_a_job_that_ignores_the_request_to_stop(person: Person) -> None:
    """It is ended at the deadline, waits again from its last checkpoint, and its user is told both."""
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('first_step', step=1)\n"
    person.write("deaf.py", SAY + deaf + "print(os.getpid(), flush=True)\ntime.sleep(600)\n")
    job = person.submit("--", "python3", "deaf.py")
    person.until_state(job, "running")
    pid = int(when(lambda: person.logs(job).strip()))
    assert person("preempt", job).code == 0
    assert gone(pid)
    person.until(job, lambda found: found["attempt"] == 2)
    story = person("explain", job).out
    assert "did not save and stop within 1 s" in story, story
    assert "no checkpoint was made" in story
    person.until_state(job, "running")
    assert person("cancel", job).code == 0
    assert person.until_state(job, "cancelled")["reason"].startswith("cancelled by")


def test_a_flood_of_output_is_bounded_and_says_what_was_cut(person: Person) -> None:
    flood = "i=0; while [ $i -lt 30000 ]; do echo line $i of a flood; i=$((i+1)); done; exit 4"
    job = person.submit("--", "sh", "-c", flood)
    assert person("wait", job).code == 1
    text = person.logs(job)
    assert text.startswith("line 0 of") and text.endswith("line 29999 of a flood\n")
    assert len(text) <= LOG_BYTES_MAX + 200
    assert text.count("bytes of output are missing here") == 1
    stored = [p.stat().st_size for p in person.agent_state.glob(f"attempts/{job}-a1/logs/*")]
    assert sum(stored) <= LOG_BYTES_MAX
    assert person.job(job)["exit_code"] == 4


def test_a_time_limit_is_said(person: Person) -> None:
    answer = person("run", "-t", "1s", "--", "sleep", "600")
    assert answer.code == 1
    assert "reached its time limit of 1" in answer.err


def test_nothing_of_it_did_any_harm(person: Person) -> None:
    """Runs last: devices free, the host trusted, the one beside them undisturbed, the journal sound."""
    assert person.job("1")["state"] in ("loading", "running")
    person.write("go", "")
    assert person("wait", "1").code == 0
    assert person.logs("1") == "undisturbed\n"
    assert person.json("queue")["jobs"] == []
    assert person.free_devices() == 2
    before = person.json("queue", "--all")["jobs"]
    person.down()
    person.up()
    after = person.json("queue", "--all")["jobs"]
    assert [(j["job"], j["state"], j["reason"]) for j in after] == [
        (j["job"], j["state"], j["reason"]) for j in before
    ]
    attempts = person.agent_state / "attempts"
    # A supervisor has said how its job ended a moment before it is gone itself.
    when(lambda: not left_behind(attempts), lambda: left_behind(attempts))


def left_behind(attempts: Path) -> list[int]:
    """Processes that still stand in an attempt's folder or name it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(attempts) in words:
                found.append(int(entry.name))
    return found
