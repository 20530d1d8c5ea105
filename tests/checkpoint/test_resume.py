"""Promise 4 with real processes: stopped and resumed equals uninterrupted, bit for bit."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cotenant.checkpoint.disk import layout
from tests.checkpoint.ranks import DEADLINE_S, HERE, Leash, Supervisor, Warm, launch

TRAINER = HERE / "trainer.py"
SAME = ("sha256", "step", "best", "scale", "draw")

pytestmark = pytest.mark.usefixtures("warm")


def arguments(ranks: int, *more: str) -> tuple[str, ...]:
    return ("--rows", "121", *(["--dist"] if ranks > 1 else []), *more)


def uninterrupted(warm: Warm, folder: Path, *args: str, ranks: int) -> list[dict[str, Any]]:
    return launch(warm, TRAINER, folder / "whole", *args, ranks=ranks).wait()


def stopped(warm: Warm, folder: Path, step: int, *args: str, ranks: int, attempt: int = 1, **env: str) -> int:
    """Run until a supervisor stops all ranks at `step` or soon after; returns the step."""
    leash = Leash(folder / f"l{attempt}")
    with Supervisor(folder / f"s{attempt}", ranks) as boss:
        variables = boss.env(folder / "root", attempt, **env)
        words = (*args, *leash.words)
        gang = launch(warm, TRAINER, folder / f"a{attempt}", *words, ranks=ranks, env=variables)
        hello = boss.wait_for("hello", ranks, gang=gang)
        assert all(message["resumable"] and message["accumulates"] for message in hello)
        agreed = boss.agree("stop_at", step)
        leash.allow()
        gone = boss.wait_for("stopped", ranks, gang=gang)
        assert {message["step"] for message in gone} == {agreed}
        [durable] = boss.wait_for("durable", gang=gang)
        assert (durable["step"], durable["rank"], durable["name"]) == (agreed, 0, f"a{attempt}-s{agreed}")
        gang.wait(0)
        return agreed


def resumed(
    warm: Warm, folder: Path, *args: str, ranks: int, attempt: int = 2, **env: str
) -> list[dict[str, Any]]:
    with Supervisor(folder / f"s{attempt}", ranks) as boss:
        variables = boss.env(folder / "root", attempt, **env)
        return launch(warm, TRAINER, folder / f"a{attempt}", *args, ranks=ranks, env=variables).wait()


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(
    warm: Warm, tmp_path: Path, ranks: int
) -> None:
    args = arguments(ranks)
    whole = uninterrupted(warm, tmp_path, *args, ranks=ranks)
    step = stopped(warm, tmp_path, 5, *args, ranks=ranks)
    again = resumed(warm, tmp_path, *args, ranks=ranks)
    for before, after in zip(whole, again, strict=True):
        assert after["resumed"] == {
            "name": f"a1-s{step}",
            "step": step,
            "exact": True,
            "note": "",
            "proven": 0,
        }
        assert before["order"][step:] == after["order"]
        assert {key: before[key] for key in SAME} == {key: after[key] for key in SAME}
    assert len({result["sha256"] for result in again}) == 1


def test_stopped_twice_with_accumulation_equals_uninterrupted_with_the_same_schedule(
    warm: Warm, tmp_path: Path
) -> None:
    args = arguments(2)
    # It has dropout.
    schedule: Any = {"COTENANT_ACCUMULATION_SCHEDULE": "0:1,7:2", "COTENANT_ZERO_CODE": "equivalent"}
    whole = launch(warm, TRAINER, tmp_path / "whole", *args, ranks=2, env=schedule).wait()
    stopped(warm, tmp_path, 4, *args, ranks=2, **schedule)
    stopped(warm, tmp_path, 12, *args, ranks=2, attempt=2, **schedule)
    again = resumed(warm, tmp_path, *args, ranks=2, attempt=3, **schedule)
    assert [r["sha256"] for r in again] == [r["sha256"] for r in whole]
    assert again[0]["history"] == "0:1,7:2"
    assert again[0]["resumed"]["exact"]


def test_a_plain_gang_with_a_folder_numbers_its_attempts_itself(warm: Warm, tmp_path: Path) -> None:
    args = arguments(2)
    env = {"COTENANT_CHECKPOINT_ROOT": str(tmp_path / "root")}
    first = launch(warm, TRAINER, tmp_path / "1", *args, "--save-at", "5", "--wait", ranks=2, env=env).wait()
    second = launch(warm, TRAINER, tmp_path / "2", *args, "--save-at", "7", ranks=2, env=env).wait()
    assert [(r["resumed"]["name"], r["sha256"]) for r in second] == [("a1-s5", r["sha256"]) for r in first]
    assert layout.names_newest_first(tmp_path / "root") == ["a2-s7", "a1-s5"]


def test_another_world_size_goes_on_from_the_same_samples_and_is_called_equivalent(
    warm: Warm, tmp_path: Path
) -> None:
    args = arguments(2)
    step = stopped(warm, tmp_path, 3, *args, ranks=2)
    [alone] = resumed(warm, tmp_path, *arguments(1, "--dist"), ranks=1)
    assert not alone["resumed"]["exact"]
    assert "world size: 2 then, 1 now" in alone["resumed"]["note"]
    batches_per_epoch = 16  # ceil(121 / 8) alone
    assert len(alone["order"]) == 3 * batches_per_epoch - 2 * step


def test_a_save_in_the_background_can_be_resumed_from_after_a_kill(warm: Warm, tmp_path: Path) -> None:
    args = arguments(2)
    whole = uninterrupted(warm, tmp_path, *args, ranks=2)
    leash = Leash(tmp_path / "leash")
    with Supervisor(tmp_path / "s1", 2) as boss:
        env = boss.env(tmp_path / "root", 1)
        gang = launch(warm, TRAINER, tmp_path / "a1", *args, *leash.words, ranks=2, env=env)
        boss.wait_for("hello", 2, gang=gang)
        agreed = boss.agree("save_at", 4)
        leash.allow(agreed + 1)
        boss.wait_for("durable", gang=gang, step=agreed)
        gang.kill()
    again = resumed(warm, tmp_path, *args, ranks=2)
    assert again[0]["resumed"]["name"] == f"a1-s{agreed}"
    assert [r["sha256"] for r in again] == [r["sha256"] for r in whole]


def test_kill_in_the_middle_of_a_save_leaves_the_older_one(warm: Warm, tmp_path: Path) -> None:
    """The second one goes into a pipe, so that it is certainly caught while it is written."""
    root = tmp_path / "root"
    args = arguments(1, "--width", "60000")
    leash = Leash(tmp_path / "leash")
    with Supervisor(tmp_path / "s1", 1) as boss:
        gang = launch(warm, TRAINER, tmp_path / "a1", *args, *leash.words, env=boss.env(root, 1))
        boss.wait_for("hello", gang=gang)
        first = boss.agree("save_at", 3)
        leash.allow(first)
        boss.wait_for("durable", gang=gang, step=first)
        second = boss.agree("save_at", first + 2, proposal=50)
        assert second == first + 2
        (root / f".a1-s{second}.tmp").mkdir()
        pipe = root / f".a1-s{second}.tmp" / "model.pt"
        os.mkfifo(pipe)
        leash.allow()
        read_from(pipe, 2**20)
        [pid] = gang.pids
        os.kill(pid, signal.SIGKILL)
        gang.wait(-signal.SIGKILL)
        assert not boss.wait_for("durable", 1)[1:], "only the first was ever called durable"
    assert (root / f".a1-s{second}.tmp").is_dir()
    assert layout.verify(root / f"a1-s{first}").step == first
    stop = stopped(warm, tmp_path, first + 2, *args, ranks=1, attempt=2)
    assert stop > first
    assert not list(root.glob(".a1-*")), "the next attempt sweeps what was half-written"


def read_from(pipe: Path, size_bytes: int) -> None:
    """So much of what is written to it."""
    give_up_at_s = time.monotonic() + DEADLINE_S
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while size_bytes > 0:
            assert time.monotonic() < give_up_at_s, f"{size_bytes} bytes less than expected in {pipe}"
            try:
                data = os.read(reader, 2**16)
            except BlockingIOError:
                data = b""
            if not data:  # Nobody has begun to write, or is quick enough.
                time.sleep(0.005)
            size_bytes -= len(data)
    finally:
        os.close(reader)


def wait_for_bytes(path: Path, size_bytes: int) -> None:
    give_up_at_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < give_up_at_s:
        try:
            if path.stat().st_size >= size_bytes:
                return
        except FileNotFoundError:
            pass
        time.sleep(0.001)
    raise AssertionError(f"{path} never grew to {size_bytes} bytes")


def test_a_crashed_gang_does_not_wait_for_a_save_that_cannot_complete(warm: Warm, tmp_path: Path) -> None:
    """Rank 1's part of a save hangs (its file is a pipe nobody reads), then rank 1 is killed. Rank 0, whose
    save would wait ten minutes for it, ends with the error of its next all-reduce."""
    leash = Leash(tmp_path / "leash")
    args = arguments(2, *leash.words, "--idle", "600")
    root = tmp_path / "root"
    with Supervisor(tmp_path / "s1", 2) as boss:
        gang = launch(warm, TRAINER, tmp_path / "a1", *args, ranks=2, env=boss.env(root, 1))
        boss.wait_for("first_step", 2, gang=gang)
        step = 10
        (root / f".a1-s{step}.tmp").mkdir()
        os.mkfifo(root / f".a1-s{step}.tmp" / "rank-1.pt")
        assert boss.agree("save_at", step) == step
        leash.allow(step)
        boss.wait_for("saving", 2, gang=gang)
        wait_for_bytes(root / f".a1-s{step}.tmp" / "rank-0.json", 1)
        os.kill(gang.pids[1], signal.SIGKILL)
        leash.allow()
        assert warm.wait(gang.pids[1]) == -signal.SIGKILL
        assert warm.wait(gang.pids[0]) == 1
    assert layout.names_newest_first(root) == []
