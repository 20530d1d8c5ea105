"""Each thing that a placement can get wrong is refused with its own reason, whoever asked for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cotenant.controller.domain import Change, DeviceId, HostId, JobId, Place, Share, because
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.state import placing
from cotenant.controller.engine.state.ledger import Ledger
from tests.controller.building import Desk, profile, report

WHY = because("finished")
ROOM = {"memory_mib": 300, "expected_s": 50.0}


def asked(desk: Desk, kind: type[Place] | type[Share], job: str, *devices: str, s: int = 1) -> str:
    ledger = desk.engine.ledger
    assert isinstance(ledger, Ledger)
    action = kind(
        job_id=JobId(job), devices=tuple(DeviceId(d) for d in devices), accumulation_steps=s, reason=WHY
    )
    refusal = placing.check(ledger, action)
    known = ledger.jobs.get(action.job_id)
    plain = None if known is None else placing.plain(ledger, known, action, policy_shares=True)
    assert refusal is None or plain is None  # The short way never leads elsewhere.
    if plain is not None:
        assert known is not None
        placement = placing.placement(ledger, known, action, policy_shares=True)
        assert plain == (placement, placing.waits_for(ledger, known, placement))
    return "allowed" if refusal is None else str(refusal)


def desk_with(**more: object) -> Desk:
    """Job 1 runs on a/cpu0 (300 MiB planned); job 2 waits, held back so that no policy places it."""
    desk = Desk("fifo", report("a", 2), report("b", 2, type="T4", features=("ib",)))
    desk.run(1, gpu_type="cpu", **ROOM)
    desk.submit(3, gpus=64, expected_s=1.0)
    desk.engine.handle(ev.PolicyChanged(name="fifo"), desk.now_s)
    desk.submit(2, hold=True, **{**ROOM, **more})
    job = desk.job(2)
    ledger = desk.engine.ledger
    assert isinstance(ledger, Ledger)
    ledger.phases.change(job, Change.RELEASE, WHY)
    return desk


Before = Callable[[Desk], object]


def nothing(_: Desk) -> None:
    pass


def drained(desk: Desk) -> None:
    host = desk.engine.hosts[HostId("a")]
    host.drained_by = "root"
    desk.engine.ledger.refresh_host(host)


# fmt: off
TABLE = [
    ("a free device", {}, nothing, Place, ("a/cpu1",), 1, "allowed"),
    ("a device with a tenant is not free", {}, nothing, Place, ("a/cpu0",), 1,
     "refused job 2: a/cpu0 already has 1 tenants"),
    ("a device with a tenant that has room", {}, nothing, Share, ("a/cpu0",), 1, "allowed"),
    ("too much memory beside the tenant", {"memory_mib": 800}, nothing, Share, ("a/cpu0",), 1,
     "refused job 2: 800 MiB planned on a/cpu0, 700 MiB left"),
    ("too much memory for any device", {"memory_mib": 1800}, nothing, Place, ("a/cpu1",), 1,
     "refused job 2: 1800 MiB planned on a/cpu1, 1000 MiB left"),
    ("unknown memory", {"memory_mib": None}, nothing, Share, ("a/cpu0",), 1,
     "cannot share with 1: the memory that job 2 needs is not known"),
    ("never", {"share": "never"}, nothing, Share, ("a/cpu0",), 1,
     "this job was submitted with --share never"),
    ("too few devices", {"gpus": 2}, nothing, Place, ("a/cpu1",), 1,
     "refused job 2: 1 devices given, 2 to 2 needed"),
    ("too many devices", {}, nothing, Place, ("a/cpu1", "b/cpu0"), 1,
     "refused job 2: 2 devices given, 1 to 1 needed"),
    ("one device twice", {"gpus": 2}, nothing, Place, ("a/cpu1", "a/cpu1"), 1,
     "refused job 2: 1 devices given, 2 to 2 needed"),
    ("no device", {}, nothing, Place, (), 1, "refused job 2: 0 devices given, 1 to 1 needed"),
    ("a device that does not exist", {}, nothing, Place, ("z/0",), 1,
     "refused job 2: device z/0 is not available (unknown)"),
    ("an elastic job takes any number in its range", {"gpus_min": 1, "gpus_max": 2}, nothing, Place,
     ("b/cpu0", "b/cpu1"), 1, "allowed"),
    ("a type that was not asked for", {"gpu_type": "T4"}, nothing, Place, ("a/cpu1",), 1,
     "refused job 2: device a/cpu1 is not available (not what the job asked for)"),
    ("a host without the features", {"features": ("ib",)}, nothing, Place, ("a/cpu1",), 1,
     "refused job 2: device a/cpu1 is not available (not what the job asked for)"),
    ("a drained host", {}, drained, Place, ("a/cpu1",), 1,
     "refused job 2: device a/cpu1 is not available (drained)"),
    ("`--nodes 2` on one host", {"gpus": 2, "nodes": 2}, nothing, Place, ("b/cpu0", "b/cpu1"), 1,
     "refused job 2: 1 hosts for 2 devices given, 2 to 2 needed"),
    ("steps below one", {"batch_size": 8}, nothing, Place, ("a/cpu1",), 0,
     "refused job 2: 0 accumulation steps are not possible (its batch is 8)"),
    ("more steps than samples", {"batch_size": 8}, nothing, Place, ("a/cpu1",), 9,
     "refused job 2: 9 accumulation steps are not possible (its batch is 8)"),
    ("steps of an unknown batch", {}, nothing, Place, ("a/cpu1",), 2,
     "refused job 2: 2 accumulation steps are not possible (its batch is not known)"),
    ("steps of a job that was never seen to accumulate", {"batch_size": 8}, nothing, Place, ("a/cpu1",), 2,
     "refused job 2: 2 accumulation steps are not possible (it was never seen to accumulate)"),
    ("steps of a job that was measured with them",
     {"batch_size": 8, "profile": profile(8, (1, 1.0, 800.0), (2, 1.1, 400.0))}, nothing, Share, ("a/cpu0",),
     2, "allowed"),
]
# fmt: on


@pytest.mark.parametrize("row", TABLE, ids=[str(row[0]).replace(" ", "-") for row in TABLE])
def test_a_placement_is(
    row: tuple[str, dict[str, object], Before, type[Place] | type[Share], tuple[str, ...], int, str],
) -> None:
    _, more, change, kind, devices, steps, wanted = row
    desk = desk_with(**more)
    change(desk)
    assert asked(desk, kind, "2", *devices, s=steps) == wanted


def test_free_devices_of_one_host_are_placed_the_short_way() -> None:
    desk = desk_with(gpus=2, batch_size=8)
    ledger = desk.engine.ledger
    assert isinstance(ledger, Ledger)
    action = Place(job_id=JobId("2"), devices=(DeviceId("b/cpu1"), DeviceId("b/cpu0")), reason=WHY)
    plain = placing.plain(ledger, desk.job(2), action, policy_shares=False)
    assert plain is not None
    placement, victims = plain
    assert placement.devices == ("b/cpu0", "b/cpu1"), "in rank order"
    assert not victims


def test_a_job_that_runs_or_is_unknown_is_not_placed() -> None:
    desk = desk_with()
    assert asked(desk, Place, "1", "a/cpu1") == "refused job 1: the job is running"
    assert asked(desk, Place, "77", "a/cpu1") == "refused job 77: the job is gone"


def test_a_claimed_device_belongs_to_its_claimant() -> None:
    desk = Desk("srtf")
    desk.run(1, expected_s=900.0)
    desk.submit(2, expected_s=5.0)
    desk.submit(3, expected_s=7.0)
    assert (
        asked(desk, Place, "3", "a/cpu0")
        == "refused job 3: device a/cpu0 is not available (reserved for job 2)"
    )


def test_a_gang_over_hosts_needs_addresses_that_others_can_reach() -> None:
    desk = Desk("fifo", *(report(name, 1, address="127.0.0.1") for name in ("a", "b")))
    desk.submit(1, gpus=2)
    assert asked(desk, Place, "1", "a/cpu0", "b/cpu0") == (
        "refused job 1: device a/cpu0 is not available (its host has no address for gangs over hosts)"
    )


def test_devices_are_put_in_rank_order_one_hosts_together() -> None:
    desk = Desk("fifo", report("a", 2), report("b", 2))
    desk.submit(1, gpus=4)
    start = desk.commands[0]
    assert desk.devices(1) == ("a/cpu0", "a/cpu1", "b/cpu0", "b/cpu1")
    assert [(m.host_id, m.first_rank) for m in getattr(start, "gang", ())] == [("a", 0), ("b", 2)]
    assert getattr(start, "master_address", "") == "10.0.0.1"
