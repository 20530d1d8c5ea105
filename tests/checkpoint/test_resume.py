"""Promise 4 with real processes: stopped and resumed equals uninterrupted, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.ranks import HERE, Gang, Supervisor, Warm, launch

TRAINER = HERE / "trainer.py"


@contextmanager
def supervisor(folder: Path, ranks: int) -> Iterator[Supervisor]:
    it = Supervisor(folder, ranks)
    try:
        yield it
    finally:
        it.close()


def uninterrupted(warm: Warm, folder: Path, *args: str, ranks: int, **env: str) -> list[dict[str, Any]]:
    return launch(warm, TRAINER, folder, *args, ranks=ranks, env=env).wait()


def stopped_at(
    warm: Warm, folder: Path, step: int, *args: str, ranks: int, attempt: int = 1, **env: str
) -> tuple[Gang, int, Supervisor]:
    """Run until a supervisor stops all ranks at `step` or soon after; returns the step."""
    with supervisor(folder / f"s{attempt}", ranks) as boss:
        gang = launch(
            warm, TRAINER, folder / f"a{attempt}", *args, ranks=ranks,
            env=boss.env(folder / "root", attempt, **env),
        )  # fmt: skip
        boss.wait_for("hello", ranks, gang=gang)
        agreed = boss.agree("stop_at", step)
        stopped = boss.wait_for("stopped", ranks, gang=gang)
        assert {message["step"] for message in stopped} == {agreed}
        [durable] = boss.wait_for("durable", gang=gang)
        assert (durable["step"], durable["rank"], durable["exact"]) == (agreed, 0, True)
        gang.wait(0)
        return gang, agreed, boss


def resumed(
    warm: Warm, folder: Path, *args: str, ranks: int, attempt: int = 2, **env: str
) -> list[dict[str, Any]]:
    with supervisor(folder / f"s{attempt}", ranks) as boss:
        variables = boss.env(folder / "root", attempt, **env)
        gang = launch(warm, TRAINER, folder / f"a{attempt}", *args, ranks=ranks, env=variables)
        return gang.wait()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(
    warm: Warm, tmp_path: Path, ranks: int
) -> None:
    args = ("--rows", "121", *(["--dist"] if ranks > 1 else []))
    whole = uninterrupted(warm, tmp_path / "whole", *args, ranks=ranks)
    _, step, _ = stopped_at(warm, tmp_path, 5, *args, "--step-s", "0.01", ranks=ranks)
    again = resumed(warm, tmp_path, *args, ranks=ranks)
    for rank in range(ranks):
        a, b = whole[rank], again[rank]
        assert b["resumed"]["step"] == step
        assert (b["resumed"]["exact"], b["resumed"]["note"]) == (True, "")
        assert a["order"][step:] == b["order"]
        assert {k: a[k] for k in ("sha256", "step", "best", "scale", "draw")} == {
            k: b[k] for k in ("sha256", "step", "best", "scale", "draw")
        }
    assert len({result["sha256"] for result in again}) == 1
