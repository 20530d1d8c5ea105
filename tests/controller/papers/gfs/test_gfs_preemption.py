"""What may happen in the midst of a preemption for an hp job, under every policy with classes."""

from __future__ import annotations

import pytest

from cotenant.controller.domain import HostId, JobId
from cotenant.controller.domain import events as ev
from tests.controller.building import Desk, report

POLICIES = ("gfs", "gfs-rise", "yarn-cs", "fgd")


@pytest.fixture(params=POLICIES)
def desk(request: pytest.FixtureRequest) -> Desk:
    """Two hosts of two devices, full of spot jobs that train and can be resumed."""
    hosts = [report(name, 2, checkpoint_domain="nfs") for name in ("a", "b")]
    desk = Desk(request.param, *hosts, ageing_s=0.0)
    for number in (1, 2, 3, 4):
        desk.submit(number, expected_s=9000.0)
        desk.wait(1.0)
        desk.start(number)
    return desk


def saved(desk: Desk, number: str, step: int) -> None:
    """A victim has written its checkpoint, and its processes are gone."""
    desk.durable(number, step)
    desk.end(number, "stopped", step=step)


def leaving(desk: Desk) -> list[str]:
    return [n for n in ("1", "2", "3", "4") if desk.phase(n) == "checkpointing"]


def test_two_hp_jobs_never_wait_for_the_same_victim(desk: Desk) -> None:
    desk.submit(5, job_class="hp", gpus=2)
    first = set(leaving(desk))
    desk.submit(6, job_class="hp", gpus=2)
    desk.wait(1.0)
    both = set(leaving(desk))
    assert len(first) == 2 and both == {"1", "2", "3", "4"}
    assert not set(desk.devices(5)) & set(desk.devices(6))
    desk.submit(7, job_class="hp")
    desk.wait(1.0)
    assert desk.phase(7) == "queued", "there is nobody left to preempt: hp gives way to nobody"
    for number in ("1", "2", "3", "4"):
        saved(desk, number, 5)
    assert desk.phase(5) == desk.phase(6) == "loading"


def test_an_hp_job_that_is_cancelled_while_its_victims_save_leaves_the_devices_to_them(desk: Desk) -> None:
    desk.submit(5, job_class="hp", gpus=2)
    victims = leaving(desk)
    assert len(victims) == 2 and desk.phase(5) == "reserved"
    desk.tell(ev.CancelRequested(job_id=JobId("5"), by="ann"))
    assert desk.phase(5) == "cancelled"
    assert leaving(desk) == victims, "a save that was asked for goes on"
    for number in victims:
        saved(desk, number, 5)
        desk.wait(1.0)
    assert [desk.phase(number) for number in victims] == ["loading", "loading"], "they come back at once"
    assert [desk.job(number).durable_step for number in victims] == [5, 5]


def test_an_hp_job_whose_victims_host_vanishes_takes_devices_of_another(desk: Desk) -> None:
    desk.submit(5, job_class="hp", gpus=2)
    victims = leaving(desk)
    host = desk.hosts(victims[0])[0]
    other = HostId("b" if host == "a" else "a")
    desk.tell(ev.HostLost(host_id=host, by="root"))
    desk.wait(1.0)
    assert all(desk.phase(number) == "queued" for number in victims)
    now = leaving(desk)
    assert len(now) == 2 and {h for number in now for h in desk.hosts(number)} == {other}
    assert all(device.startswith(f"{other}/") for device in desk.devices(5))
    desk.tell(ev.HostBack(host_id=host))
    for number in now:
        saved(desk, number, 7)
        desk.wait(1.0)
    assert desk.phase(5) == "loading"
    assert all(desk.job(number).counts.preemptions <= 1 for number in ("1", "2", "3", "4"))
