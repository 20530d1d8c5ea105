"""Hosts that go away at a known time: who is placed there, who leaves, and that nothing is forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller.domain import HostReport, Phase, StopAttempt
from cotenant.controller.domain import events as ev
from tests.controller.building import Desk, report

GRACE_S = 60.0
SHORT = {"load_s": 20.0, "pause_s": 10.0}


def part(name: str = "slurm-1", allocation: str = "7", **more: Any) -> HostReport:
    return report(
        name, allocation=allocation, leaves_unix_s=1e9, leave_grace_s=GRACE_S, checkpoint_domain="d", **more
    )


def joins(desk: Desk, said: HostReport, leaves_in_s: float | None = 1000.0) -> None:
    desk.tell(ev.HostJoined(report=said, leaves_in_s=leaves_in_s))


def desk_of(leaves_in_s: float = 1000.0, policy: str = "fifo", **settings: Any) -> Desk:
    desk = Desk(policy, report("stays", devices=1, checkpoint_domain="d"), **settings)
    desk.tell(ev.HostDrained(host_id="stays", by="a test"))  # type: ignore[arg-type]
    joins(desk, part(), leaves_in_s)
    return desk


@pytest.mark.parametrize("policy", ["fifo", "sjf", "srtf", "castor", "lucid", "tiresias"])
def test_nothing_is_placed_where_a_load_and_a_save_do_not_fit_in(policy: str) -> None:
    """The host stays for 30 s more than its grace: as long as a load and a save take."""
    desk = desk_of(30.0 + GRACE_S, policy)
    desk.submit(1, load_s=25.0, pause_s=6.0)
    assert desk.phase(1) == "queued"
    desk.submit(2, **SHORT)
    assert desk.devices(2) == ("slurm-1/cpu0",) or desk.hosts(2) == ("slurm-1",)


def test_as_time_passes_fewer_jobs_fit_in() -> None:
    desk = desk_of()
    desk.wait(1000.0 - GRACE_S - 29.0)
    desk.submit(1, **SHORT)
    assert desk.phase(1) == "queued"
    joins(desk, part("slurm-2", "8"))
    assert desk.hosts(1) == ("slurm-2",), "the next host has time"


def test_at_its_limit_less_the_grace_a_host_takes_nothing_and_its_jobs_save() -> None:
    desk = desk_of()
    desk.run(1, **SHORT)
    desk.wait(1000.0 - GRACE_S)
    stops = [each for each in desk.commands if isinstance(each, StopAttempt)]
    assert [(each.job_id, each.save) for each in stops] == [("1", True)]
    assert desk.phase(1) == "checkpointing"
    assert "given back (its allocation ends)" in desk.why(1)
    host = desk.engine.hosts["slurm-1"]  # type: ignore[index]
    assert not host.takes_work and host.state == "drained"
    desk.durable(1, 500)
    desk.end(1, "stopped")
    assert desk.phase(1) == "queued"
    joins(desk, part("slurm-2", "8"))
    assert desk.hosts(1) == ("slurm-2",)
    assert desk.job(1).durable_step == 500


def test_one_that_cannot_resume_runs_on_until_the_host_is_gone() -> None:
    desk = desk_of()
    desk.submit(1, **SHORT)
    desk.begin(1)
    desk.start(1, resumable=False)
    desk.wait(1000.0 - GRACE_S)
    assert desk.phase(1) == "running"
    desk.tell(ev.HostLost(host_id="slurm-1", by="allocation"))  # type: ignore[arg-type]
    assert desk.phase(1) == "queued"


def test_an_allocation_that_ends_takes_no_checkpoints_with_it() -> None:
    """The next one reads them; what an admin says is lost is lost."""
    desk = desk_of()
    desk.run(1, **SHORT)
    desk.durable(1, 40)
    desk.tell(ev.HostLost(host_id="stays", by="lease"))  # type: ignore[arg-type]
    desk.tell(ev.HostLost(host_id="slurm-1", by="allocation"))  # type: ignore[arg-type]
    assert desk.job(1).durable_step == 40
    assert desk.engine.hosts["slurm-1"].failures_in_row == 0, "nobody is to blame"  # type: ignore[index]


def test_another_allocation_of_the_same_name_is_another_host() -> None:
    desk = desk_of()
    desk.tell(ev.HostLeaving(host_id="slurm-1", by="idle for 300 s"))  # type: ignore[arg-type]
    joins(desk, part(), 900.0)
    desk.submit(1, **SHORT)
    assert desk.phase(1) == "queued", "the same one, after its agent was started anew, is still given back"
    joins(desk, part(allocation="8"), 1000.0)
    assert desk.hosts(1) == ("slurm-1",)


def test_a_host_that_is_given_back_is_cleared_at_once() -> None:
    desk = desk_of()
    desk.run(1, **SHORT)
    desk.tell(ev.HostLeaving(host_id="slurm-1", by="the queue is removed"))  # type: ignore[arg-type]
    assert desk.phase(1) == "checkpointing"
    assert "the queue is removed" in desk.why(1)


def test_all_of_it_is_the_same_after_a_restart() -> None:
    desk = desk_of(200.0)
    desk.submit(1, load_s=100.0, pause_s=100.0)
    desk.run(2, **SHORT)
    desk.restart()
    desk.submit(3, load_s=100.0, pause_s=100.0)
    assert [desk.phase(n) for n in (1, 3)] == ["queued", "queued"]
    desk.wait(200.0 - GRACE_S)
    assert desk.phase(2) == Phase.CHECKPOINTING


def test_where_no_host_goes_away_classes_are_as_they_were() -> None:
    desk = Desk("fifo", report("h"))
    desk.submit(1, gpus=1, load_s=1.0)
    desk.submit(2, gpus=1, load_s=99.0)
    desk.submit(3, gpus=1, load_s=50.0)
    view = desk.engine.ledger
    assert len({view.queue.class_of(desk.job(n)) for n in (2, 3)}) == 1
    assert view.queue.class_of(desk.job(2)).stay_s == 0
