"""The folder in which a job's ranks find when they may train, and when a co-tenant's steps end."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cotenant.agent.ipc.channel import PaceNow
from cotenant.agent.ipc.records import attempt_folder
from cotenant.agent.supervisor.datagrams import Datagrams
from cotenant.checkpoint.talk.pace import RankPace
from cotenant.checkpoint.talk.protocol import BEAT_BESIDE_FILE, BEAT_FILE
from cotenant.controller.domain import AttemptNo, JobId, Launch
from tests.building.orders import order_of

JOB, GUEST = (JobId("7"), AttemptNo(1)), (JobId("8"), AttemptNo(1))


@contextmanager
def serving(attempts: Path, key: tuple[JobId, AttemptNo], uid: int) -> Iterator[Datagrams]:
    folder = attempt_folder(attempts, *key)
    folder.mkdir()
    launch = Launch(argv=("python", "train.py"), uid=uid, gid=uid)
    with selectors.DefaultSelector() as selector:
        made = Datagrams(folder, order_of(launch=launch, job_id=key[0]), selector, lambda _: None)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize("uids", [(0, 0), (54_321, 54_322)], ids=["one user", "two users"])
def test_a_guest_finds_the_steps_of_the_job_that_it_waits_for(tmp_path: Path, uids: tuple[int, int]) -> None:
    """Also where each folder is closed to the other's user: the file has a name in both."""
    if uids[0] and os.geteuid() != 0:
        pytest.skip("needs root: gives folders to other users")
    with ExitStack() as both:
        job, guest = (
            both.enter_context(serving(tmp_path, *each)) for each in zip((JOB, GUEST), uids, strict=True)
        )
        steps = RankPace(job.path.parent)
        steps.speak_for_host()
        guest.set_pace(PaceNow(pace=1.0, window=0.1, beside=JOB, step_s=1.0), time.monotonic())
        for _ in range(2):
            steps.end_step()
            told = [each.read_bytes() for each in (job.path.parent / BEAT_FILE, beside_of(guest))]
            assert told[0] == told[1] != bytes(8)
        guest.set_pace(PaceNow(pace=1.0, window=0.1, beside=GUEST, step_s=1.0), time.monotonic())
        assert beside_of(guest).read_bytes() == bytes(8), "another's steps take their place"


def beside_of(guest: Datagrams) -> Path:
    return guest.path.parent / BEAT_BESIDE_FILE


def test_one_that_has_gone_is_not_waited_for(tmp_path: Path) -> None:
    now_s = time.monotonic()
    with serving(tmp_path, GUEST, 0) as guest:
        guest.set_pace(PaceNow(pace=1.0, window=0.1, beside=JOB, step_s=1.0), time.monotonic())
        waits = RankPace(guest.path.parent, clock=lambda: now_s)
        waits.wait()
        assert waits.waited_s == 0.0 and not beside_of(guest).exists()
