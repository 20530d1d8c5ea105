"""Clients of an MPS daemon that were forked from a server: they end in the same order as cold ones."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from cotenant.agent.ipc.channel import StopNow
from tests.live.test_stop_order import CLIENT, RANK, events, until, words_of
from tests.live.test_supervisor import Attempt
from tests.live.test_warm_start import Host, host, nanny_of

__all__ = ["events", "host"]


def started(host: Host, events: Path, ranks: int = 1) -> Attempt:
    """Its ranks run, and are clients."""
    tell = f"import os\nos.environ['EVENTS'] = {str(events)!r}\n"
    script = host.script(f"{tell}assert os.environ['CUDA_MPS_PIPE_DIRECTORY']\n{RANK}")
    attempt = host.attempt(sys.executable, script, ranks=ranks, mps=CLIENT).start()
    assert attempt.until(lambda status: status.started).launch == "warm"
    until(lambda: words_of(events).count("ready") == ranks)
    return attempt


def ranks_in(events: Path) -> list[int]:
    lines = [line.split() for line in events.read_text().splitlines()]
    return [int(words[1]) for words in lines if words[0] == "ready"]


def test_they_are_taken_back_then_told(host: Host, events: Path) -> None:
    attempt = started(host, events, 2)
    attempt.tell(StopNow(save=False, deadline_s=5.0, reason="cancelled"))
    result = attempt.result()
    asked = events.read_text().splitlines()[2].split()
    assert asked[0] == "terminate" and {str(pid) for pid in ranks_in(events)} <= set(asked[2:])
    assert words_of(events)[3:5] == ["TERM", "TERM"]
    assert (result.verdict.outcome, result.status.farewell[-1]) == ("stopped", "SIGTERM")
    assert attempt.pids() == []


def test_when_their_supervisor_is_killed_its_heir_does_the_same(host: Host, events: Path) -> None:
    attempt = started(host, events)
    assert attempt.process is not None
    attempt.process.kill()
    until(lambda: attempt.pids() == [])
    assert words_of(events)[:3] == ["ready", "terminate", "TERM"]


def test_when_their_nanny_is_killed_they_go_on_and_end_in_order(host: Host, events: Path) -> None:
    attempt = started(host, events, 2)
    nanny = nanny_of(attempt)
    os.kill(nanny, signal.SIGKILL)
    until(lambda: nanny not in attempt.pids())
    assert set(attempt.pids()) == set(ranks_in(events)), "they are alive"
    attempt.tell(StopNow(save=False, deadline_s=5.0, reason="cancelled"))
    assert attempt.result().verdict.outcome == "stopped"
    assert words_of(events)[2] == "terminate" and words_of(events)[3:5] == ["TERM", "TERM"]
    assert attempt.pids() == []


def test_one_that_ends_by_itself_is_told_as_ever(host: Host, events: Path) -> None:
    attempt = host.attempt(sys.executable, host.script("raise SystemExit(3)"), mps=CLIENT).start()
    result = attempt.result()
    assert (result.status.launch, result.verdict.outcome, result.verdict.exit_code) == (
        "warm",
        "user-failed",
        3,
    )
