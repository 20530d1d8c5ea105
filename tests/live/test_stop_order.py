"""MPS clients with real supervisors and processes: the daemon is asked before anybody is signalled.

`cotenant.mps.terminate` is stood in for by a program of the same name that writes down what it was asked and
when; everything else is real. Whatever happens in an attempt is a line in one file, so the order can be read
there."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import cotenant.mps.environment
from cotenant.agent.ipc.channel import StopNow
from cotenant.agent.ipc.files import read_record
from cotenant.agent.ipc.records import SUPERVISOR, UNCLEAN, MpsClient, ProcessIdentity, job_socket
from cotenant.agent.supervisor.processes.reaper import end_leftovers
from tests.live.test_supervisor import WAIT_S, Attempt, Make, make, python

__all__ = ["make"]

PIPE = "/run/c/mps/1"
CLIENT = (MpsClient(pipe_directory=PIPE, device_uuid="GPU-a"),)
RANK = """
import os, signal, sys, time
events = os.environ["EVENTS"]
def note(word):
    with open(events, "a") as file:
        file.write(word + "\\n")
def told(*_):
    note(f"TERM {os.getpid()}")
    sys.exit(0)
if "stubborn" not in sys.argv:
    signal.signal(signal.SIGTERM, told)
else:
    signal.signal(signal.SIGTERM, lambda *_: note(f"TERM {os.getpid()}"))
note(f"ready {os.getpid()}")
while True:
    time.sleep(0.05)
"""
TERMINATE = """
import json, os, sys, time
pipe, *pids = sys.argv[1:-2]
alive = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
with open(os.environ["EVENTS"], "a") as file:
    file.write(f"terminate {pipe} {' '.join(alive)}\\n")
print(json.dumps({pid: os.environ.get("ANSWER", "done") for pid in pids}))
"""


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of what happened; the stand-in is what `-m cotenant.mps.terminate` finds."""
    mps = tmp_path / "stand-in" / "cotenant" / "mps"
    mps.mkdir(parents=True)
    extended = "from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n"
    (mps / "__init__.py").write_text(extended)
    (mps / "terminate.py").write_text(textwrap.dedent(TERMINATE))
    real = Path(cotenant.mps.environment.__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'stand-in'}:{real}")
    monkeypatch.setenv("EVENTS", str(tmp_path / "events"))
    (tmp_path / "events").touch()
    return tmp_path / "events"


def rank(events: Path, *words: str) -> tuple[str, ...]:
    return ("env", f"EVENTS={events}", *python(RANK), *words)


def until(true: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def words_of(events: Path) -> list[str]:
    return [line.split()[0] for line in events.read_text().splitlines()]


def ready(attempt: Attempt, events: Path, ranks: int = 1) -> Attempt:
    until(lambda: words_of(events).count("ready") == ranks)
    return attempt


def test_a_client_is_taken_back_then_told_then_killed(make: Make, events: Path) -> None:
    attempt = ready(make(*rank(events), ranks=2, mps=CLIENT).start(), events, 2)
    pids = {line.split()[1] for line in events.read_text().splitlines()}
    attempt.tell(StopNow(save=False, deadline_s=5.0, reason="cancelled"))
    result = attempt.result()
    words = words_of(events)
    assert words[2] == "terminate" and words[3:5] == ["TERM", "TERM"]
    asked = events.read_text().splitlines()[2].split()
    assert asked[1] == PIPE and pids <= set(asked[2:]), "both ranks, alive"
    assert (result.verdict.outcome, result.status.farewell) == (
        "stopped",
        ("terminate_client: 2 done", "SIGTERM"),
    )


def test_ctrl_c_ends_a_client_that_handles_it_and_no_other(make: Make, events: Path) -> None:
    """A program that dies of SIGINT would take its co-clients with it."""
    attempt = ready(make(*rank(events), mps=CLIENT).start(), events)
    attempt.tell(StopNow(save=False, interrupt=True, deadline_s=WAIT_S, reason="cancelled"))
    verdict = attempt.result().verdict
    assert (verdict.outcome, verdict.exit_code) == ("stopped", 130)
    sleeper = make("sleep", "1000", mps=CLIENT).start()
    sleeper.tell(StopNow(save=False, interrupt=True, deadline_s=0.5, reason="cancelled"))
    result = sleeper.result()
    assert result.status.farewell == ("terminate_client: 1 done", "SIGTERM")


def test_a_rank_that_stays_is_killed_in_the_end(make: Make, events: Path) -> None:
    attempt = ready(make(*rank(events, "stubborn"), mps=CLIENT).start(), events)
    # Long enough for a rank on a busy machine to write down that it was told.
    attempt.tell(StopNow(save=False, deadline_s=3.0, reason="cancelled"))
    result = attempt.result()
    assert words_of(events)[:3] == ["ready", "terminate", "TERM"]
    assert result.status.farewell[-2:] == ("SIGTERM", "SIGKILL")


def test_without_mps_nobody_asks(make: Make, events: Path) -> None:
    attempt = ready(make(*rank(events)).start(), events)
    attempt.tell(StopNow(save=False, deadline_s=5.0, reason="cancelled"))
    assert attempt.result().status.farewell == ("SIGTERM",)
    assert words_of(events) == ["ready", "TERM"]


@pytest.mark.parametrize("words", [(), ("stubborn",)], ids=("goes on SIGTERM", "has to be killed"))
def test_when_the_supervisor_of_a_client_is_killed_its_heir_does_the_same_in_the_same_order(
    make: Make, events: Path, words: tuple[str, ...]
) -> None:
    attempt = ready(make(*rank(events, *words), mps=CLIENT).start(), events)
    [pid] = [int(line.split()[1]) for line in events.read_text().splitlines()]
    supervisor = read_record(attempt.folder / SUPERVISOR, ProcessIdentity)
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert words_of(events)[:3] == ["ready", "terminate", "TERM"]


def test_without_mps_the_ranks_die_with_their_supervisor(make: Make, events: Path) -> None:
    attempt = ready(make(*rank(events, "stubborn")).start(), events)
    supervisor = read_record(attempt.folder / SUPERVISOR, ProcessIdentity)
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    until(lambda: attempt.pids() == [])
    assert words_of(events) == ["ready"]


@pytest.mark.parametrize("answer", ["done", "unclear"])
def test_an_agent_that_cleans_up_after_a_client_keeps_the_order_as_well_and_says_who_did_not_help(
    make: Make, events: Path, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSWER", answer)
    attempt = make(*rank(events), mps=CLIENT)
    orphan = subprocess.Popen(
        [*python(RANK)], env={**os.environ, "COTENANT_SOCKET": str(job_socket(attempt.folder))}
    )
    try:
        ready(attempt, events)
        assert end_leftovers(attempt.folder, attempt.order, None) == []
        assert orphan.wait(WAIT_S) == 0, "it went on SIGTERM"
    finally:
        orphan.kill()
        orphan.wait()
    assert words_of(events) == ["ready", "terminate", "TERM"]
    assert (attempt.folder / UNCLEAN).exists() == (answer != "done")
