"""One rank's sockets: orders are answered at once, nonsense is counted, nobody is waited for too long."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cotenant.checkpoint import CheckpointError, Session
from cotenant.checkpoint.talk import protocol
from cotenant.checkpoint.talk.agreement import Agreement, StepVerdict
from cotenant.checkpoint.talk.channel import SupervisorChannel
from tests.building.limits import within_s
from tests.checkpoint.ranks import Supervisor


@pytest.fixture
def boss(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(tmp_path / "s", 1) as supervisor:
        yield supervisor


@pytest.fixture
def rank(boss: Supervisor) -> Iterator[SupervisorChannel]:
    made = SupervisorChannel(boss.path, 0, Agreement())
    assert made.open()
    yield made
    made.close()


def propose(boss: Supervisor, step: int, proposal: int = 1) -> dict[str, Any]:
    boss.tell("stop_at", proposal=proposal, step=step, phase="propose")
    return boss.wait_for("confirm", proposal=proposal)[0]


def test_a_proposal_is_answered_while_the_training_thread_is_busy(
    boss: Supervisor, rank: SupervisorChannel
) -> None:
    assert rank.arrive(4) is StepVerdict.GO
    assert propose(boss, 5) == {"v": 1, "m": "confirm", "rank": 0, "proposal": 1, "step": 4, "ok": True}
    assert propose(boss, 4, proposal=2)["ok"] is False


def in_thread(call: Callable[[], StepVerdict]) -> tuple[threading.Thread, list[StepVerdict]]:
    verdicts: list[StepVerdict] = []
    thread = threading.Thread(target=lambda: verdicts.append(call()))
    thread.start()
    return thread, verdicts


@pytest.mark.parametrize(("phase", "verdict"), [("commit", StepVerdict.STOP), ("withdraw", StepVerdict.GO)])
def test_a_rank_at_its_promised_step_waits_for_the_decision(
    boss: Supervisor, rank: SupervisorChannel, phase: str, verdict: StepVerdict
) -> None:
    propose(boss, 5)
    waiting, verdicts = in_thread(lambda: rank.arrive(5))
    boss.tell("stop_at", proposal=1, step=5, phase=phase)
    waiting.join(within_s(20))
    assert verdicts == [verdict]


def test_without_a_decision_it_goes_on_and_says_so(
    boss: Supervisor,
) -> None:
    rank = SupervisorChannel(boss.path, 0, Agreement(), decision_timeout_s=0.05)
    assert rank.open()
    propose(boss, 5)
    assert rank.arrive(5) is StepVerdict.GO
    rank.close()
    assert [answer["ok"] for answer in boss.wait_for("confirm", 2)] == [True, False]


def test_nonsense_is_dropped_and_counted(boss: Supervisor, rank: SupervisorChannel) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        bad = [b"", b"{", b"\xff" * 9000, b"[1]", json.dumps({"v": 1, "m": "dance"}).encode()]
        for data in bad:
            sender.sendto(data, str(boss.folder / "rank-0.sock"))
    assert propose(boss, 5)["ok"] is True
    assert rank.bad == len(bad)


def test_a_supervisor_that_does_not_read_costs_reports_but_no_time(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(tmp_path / "s.sock"))
        rank = SupervisorChannel(tmp_path / "s.sock", 0, Agreement())
        for step in range(2000):
            rank.report("step", step=step)
        assert rank.dropped > 0
        rank.close()


def test_something_that_matters_waits_for_room(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as slow:
        slow.bind(str(tmp_path / "s.sock"))
        rank = SupervisorChannel(tmp_path / "s.sock", 0, Agreement())
        while not rank.dropped:
            rank.report("step", step=0)
        room = threading.Timer(0.02, lambda: slow.recv(8192))
        room.start()
        assert rank.tell("durable", step=1)
        room.join()
        hasty = SupervisorChannel(tmp_path / "s.sock", 0, Agreement(), urgent_s=0.02)
        assert not hasty.tell("durable", step=2), "but not for ever"
        hasty.close()
        rank.close()


def test_no_supervisor_is_no_problem(tmp_path: Path) -> None:
    rank = SupervisorChannel(tmp_path / "gone.sock", 0, Agreement())
    assert rank.open()
    assert not rank.tell("hello")
    rank.report("step")
    rank.close()
    rank.close()
    assert list(tmp_path.iterdir()) == []


def test_a_path_too_long_for_a_socket_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    rank = SupervisorChannel(folder / "s.sock", 0, Agreement())
    assert not rank.open()
    rank.close()
    assert "longer than 107 bytes" in caplog.text


def introduced(
    boss: Supervisor, monkeypatch: pytest.MonkeyPatch, root: Path | None, *layers: nn.Module, **more: Any
) -> dict[str, Any]:
    for name, value in boss.env(root or Path("/unused"), 1).items():
        monkeypatch.setenv(name, value)
    if root is None:
        monkeypatch.delenv("COTENANT_CHECKPOINT_ROOT")
    model = nn.Sequential(nn.Linear(2, 2), *layers)
    state = Session(model, torch.optim.SGD(model.parameters(), lr=0.1), **more)
    try:
        return boss.wait_for("hello")[0]
    finally:
        state.close()


def test_hello_says_what_is_true(boss: Supervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hello = introduced(boss, monkeypatch, tmp_path / "root")
    assert (hello["world_size"], hello["step"], hello["resumable"]) == (1, 0, True)


def test_a_script_that_closes_its_session_and_goes_on_is_not_watched_any_more(
    boss: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(protocol.ENV_SOCKET, str(boss.path))
    monkeypatch.setenv("RANK", "0")
    session = Session(nn.Linear(2, 2))
    assert boss.wait_for("hello")[0]["looks"] is True
    session.close()
    assert boss.wait_for("hello", looks=False)
    session.close()


def test_hello_without_a_root_is_not_resumable(boss: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert introduced(boss, monkeypatch, None)["resumable"] is False


def test_hello_of_a_root_that_cannot_be_made_is_not_resumable(
    boss: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert introduced(boss, monkeypatch, Path("/proc/no-folder-can-be-made-here"))["resumable"] is False
    assert boss.wait_for("failed")[0]["what"] == "save"


def test_a_root_that_cannot_be_looked_into_is_an_error_and_no_fresh_start(
    boss: Supervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot look for checkpoints"):
        introduced(boss, monkeypatch, tmp_path / "file" / "root")
    assert boss.wait_for("failed")[0]["what"] == "load"


@pytest.mark.parametrize(
    ("layers", "said", "accumulates"),
    [((), None, True), ((nn.BatchNorm1d(2),), None, False), ((), False, False), ((), True, True)],
)
def test_hello_says_whether_the_script_can_accumulate(
    boss: Supervisor,
    monkeypatch: pytest.MonkeyPatch,
    layers: tuple[nn.Module, ...],
    said: bool | None,
    accumulates: bool,
) -> None:
    pytest.importorskip("cotenant.gradaccum")
    hello = introduced(boss, monkeypatch, None, *layers, accumulates=said)
    assert hello["accumulates"] is accumulates
    assert ("BatchNorm1d" in hello["accumulates_note"]) is bool(layers)


def test_hello_of_a_script_without_gradaccum_does_not_accumulate(
    boss: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(__import__("sys").modules, "cotenant.gradaccum", raising=False)
    assert introduced(boss, monkeypatch, None)["accumulates"] is False


def look(boss: Supervisor, number: int) -> int:
    boss.tell("look", look=number)
    place: int = boss.wait_for("standing", look=number)[0]["place"]
    return place


def test_a_look_is_answered_with_the_same_place_as_long_as_training_waits_there(
    boss: Supervisor, rank: SupervisorChannel
) -> None:
    """The thread that makes steps is meant, whichever it is."""
    numbers = itertools.count(1)
    propose(boss, 5)
    waiting, _ = in_thread(lambda: rank.arrive(5))
    while not vars(rank._changed)["_waiters"]:
        time.sleep(0.001)
    place = 0
    while place != (place := look(boss, next(numbers))):  # It has a few instructions to go to where it waits.
        pass
    assert place and place == look(boss, next(numbers))
    boss.tell("stop_at", proposal=1, step=5, phase="commit")
    waiting.join(within_s(20))
    assert look(boss, next(numbers)) == 0, "that thread is gone"
    rank.arrive(6)
    assert look(boss, next(numbers)) not in (0, place)
    assert rank.bad == 0


@pytest.mark.parametrize("fields", [{}, {"look": -1}, {"look": "x"}, {"look": 2**60}, {"look": True}])
def test_a_look_that_makes_no_sense_is_counted(
    boss: Supervisor, rank: SupervisorChannel, fields: dict[str, object]
) -> None:
    boss.tell("look", **fields)
    look(boss, 7)
    assert rank.bad == 1


def test_what_others_leave_of_a_device_is_passed_on_and_nonsense_is_counted(boss: Supervisor) -> None:
    told: list[int | None] = []
    heard = threading.Condition()

    def on_room(memory_mib: int | None) -> None:
        with heard:
            told.append(memory_mib)
            heard.notify_all()

    rank = SupervisorChannel(boss.path, 0, Agreement(), on_room)
    assert rank.open()
    try:
        for fields in ({"memory_mib": 0}, {"memory_mib": "5"}, {}, {"memory_mib": 500}, {"memory_mib": None}):
            boss.tell("room", **fields)
        with heard:
            assert heard.wait_for(lambda: len(told) == 2, timeout=within_s(60))
        assert (told, rank.bad) == ([500, None], 3)
    finally:
        rank.close()
