"""A bound on what sharing may cost: who shares with whom under it, and what happens where it is lost."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller.domain import (
    AttemptNo,
    HostId,
    JobId,
    OrganisationSettings,
    SharingSettings,
    StartAttempt,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.performance import ShareBound
from tests.controller.building import Desk, profile, spec

LIGHT = profile(8, (1, 0.01, 100.0), duty=0.2)
SHARING = ("castor", "castor-cost", "cotenant", "sjf-ffs", "lucid")


def job(script: str, expected_s: float = 1000.0, **more: Any) -> dict[str, Any]:
    known = {"load_s": 20.0, "pause_s": 5.0, "profile": LIGHT, "batch_size": 8, "resumable": True}
    return {**known, "argv": ("python", script), "zero_code": ("progress",), "expected_s": expected_s, **more}


def lost(desk: Desk, job_id: int, partner: int, ratio: float = 1.4) -> None:
    desk.tell(
        ev.BoundLost(
            job_id=JobId(str(job_id)),
            attempt=AttemptNo(1),
            host_id=HostId("h1"),
            partner=JobId(str(partner)),
            ratio=ratio,
        )
    )


@pytest.mark.parametrize("policy", SHARING)
def test_a_bounded_job_shares_and_its_command_says_the_bound(policy: str) -> None:
    desk = Desk(policy)
    commands = desk.tell(ev.JobArrived(spec=spec(1, **job("x.py", 900.0, share="max=1.25"))))
    (started,) = [each for each in commands if isinstance(each, StartAttempt)]
    assert started.share_bound == ShareBound(max=1.25, is_own=True)
    desk.start(1)
    desk.submit(2, **job("y.py"))
    assert desk.phase(2) == "loading", desk.why(2)


@pytest.mark.parametrize("policy", SHARING)
def test_a_job_that_cannot_wait_is_no_guest_of_a_bounded_one(policy: str) -> None:
    desk = Desk(policy)
    desk.run(1, **job("x.py", 900.0, share="max=1.25"))
    desk.submit(2, **job("y.py", zero_code=()))
    assert desk.phase(2) == "queued"


def test_two_of_whom_nothing_is_known_are_tried_under_one_bound_but_not_under_two() -> None:
    """Assumed is a ratio of 1.5: a bound of 1.1 would leave the guest .13 of its speed."""
    desk = Desk("sjf-ffs")
    unknown: dict[str, Any] = {"profile": None, "memory_mib": 100}
    desk.run(1, **job("x.py", 900.0, share="max=1.1", **unknown))
    desk.submit(2, **job("w.py", 800.0, share="max=1.1", **unknown))
    assert desk.phase(2) == "queued", "either would have to wait for the other"
    desk.submit(3, **job("y.py", **unknown))
    assert desk.phase(3) == "loading", desk.why(3)
    desk.start(3)
    for _ in range(2):
        desk.engine.ledger.pairs.observe(desk.job(1), desk.job(3), 1.1)
        desk.engine.ledger.pairs.observe(desk.job(3), desk.job(1), 7.5)
    desk.end(3, "finished")
    desk.submit(4, **job("y.py", 5000.0, **unknown))
    assert desk.phase(4) == "queued", "what was seen counts"


@pytest.mark.parametrize("policy", SHARING)
def test_a_bound_that_is_lost_parts_the_pair_for_good(policy: str) -> None:
    desk = Desk(policy)
    desk.run(1, **job("x.py", 900.0, share="max=1.25"))
    desk.submit(2, **job("y.py"))
    desk.start(2)
    lost(desk, 1, 2)
    assert [desk.phase(1), desk.phase(2)] == ["running", "checkpointing"]
    assert str(desk.job(2).attempt.stop_reason).startswith(
        "parted from 1, whose steps took 1.40 times as long"
    )
    desk.durable(2, 4)
    desk.end(2, "stopped", step=4)
    assert desk.phase(2) == "queued"
    desk.submit(3, **job("y.py", 5000.0))
    assert desk.phase(3) == "queued", "jobs of these two kinds do not share under this bound"
    desk.submit(4, **job("z.py", 800.0))
    assert desk.phase(4) == "loading", "another kind may"


def test_what_was_measured_under_a_bound_says_nothing_of_jobs_without_one() -> None:
    desk = Desk("castor")
    desk.run(1, **job("x.py", 900.0, share="max=1.25"))
    desk.submit(2, **job("y.py"))
    desk.start(2)
    pairs = desk.engine.ledger.pairs
    pairs.observe(desk.job(2), desk.job(1), 3.0)  # It waited much of the time.
    free = pairs.entries.keys() - {key for key in pairs.entries if "@" in key}
    assert free == set() and len(pairs.entries) == 1
    (seen,) = pairs.list_seen()
    assert "bound 1.25" in seen.first + seen.second


def test_a_bound_is_a_jobs_own_else_its_organisations_else_the_clusters() -> None:
    desk = Desk(
        "sjf-ffs",
        sharing=SharingSettings(max=1.5),
        organisations={"vision": OrganisationSettings(share_max=1.2)},
    )
    named: dict[str, Any] = {"share": "max=1.1", "organisation": "vision"}
    for number, more in enumerate((named, {"organisation": "vision"}, {"organisation": "speech"}), 1):
        desk.submit(number, **job(f"{number}.py", **more))
    bounds = [desk.engine.ledger.pairs.bound_of(desk.job(number)) for number in (1, 2, 3)]
    assert [bound.max for bound in bounds] == [1.1, 1.2, 1.5]
    assert [bound.is_own for bound in bounds] == [True, True, False]
    desk.restart()
    assert [desk.engine.ledger.pairs.bound_of(desk.job(number)) for number in (1, 2, 3)] == bounds


def test_the_settings_of_a_cluster_are_checked() -> None:
    assert SharingSettings(max=1.5, hp=True).hp_max == 1.05
    wrong: tuple[dict[str, Any], ...] = ({"max": 1.0}, {"max": 11.0}, {"hp_max": 0.0}, {"guest_min": 0.0})
    for each in wrong:
        with pytest.raises(ValueError, match="sharing"):
            SharingSettings(**each)


DEFAULT = SharingSettings()
"""As a controller has it: every job has the cluster's bound."""


def test_under_the_clusters_bound_a_pair_is_known_by_its_kinds_alone() -> None:
    desk = Desk("sjf-ffs", sharing=DEFAULT)
    desk.run(1, **job("x.py", 900.0))
    desk.submit(2, **job("y.py"))
    desk.start(2)
    desk.engine.ledger.pairs.observe(desk.job(2), desk.job(1), 1.2)
    (seen,) = desk.engine.ledger.pairs.list_seen()
    assert "bound" not in seen.first + seen.second
    assert all("@" not in key for key in desk.engine.ledger.pairs.entries)


@pytest.mark.parametrize("sharing", [DEFAULT, SharingSettings(max=0.0)])
def test_what_ran_out_of_memory_or_was_struck_by_a_fault_is_apart_under_any_bound(
    sharing: SharingSettings,
) -> None:
    desk = Desk("sjf-ffs", sharing=sharing)
    desk.run(1, **job("x.py", 900.0))
    for number, share in enumerate(("auto", "max=1.3", "max=none"), 2):
        desk.engine.handle(ev.JobArrived(spec=spec(number, **job("y.py", share=share))), desk.now_s)
    pairs = desk.engine.ledger.pairs
    pairs.note_crowding(desk.job(3), desk.job(1))
    for number in (2, 3, 4):
        assert pairs.interference(desk.job(number), desk.job(1)).crowded, number
    key, until_s = pairs.note_fault(desk.job(3), desk.job(1), desk.now_s)
    assert pairs.interference(desk.job(2), desk.job(1)).faulted
    pairs.reunite(key, until_s)
    for number in (2, 3, 4):
        assert not pairs.interference(desk.job(number), desk.job(1)).faulted, number


def test_a_pair_that_could_not_keep_the_clusters_bound_is_no_pair_for_those_who_name_none() -> None:
    desk = Desk("sjf-ffs", sharing=DEFAULT)
    desk.run(1, **job("x.py", 900.0))
    desk.submit(2, **job("y.py"))
    desk.start(2)
    lost(desk, 1, 2, ratio=1.9)
    assert desk.engine.ledger.pairs.interference(desk.job(1), desk.job(2)).over_bound
    free = desk.job(desk.submit(3, **job("x.py", share="max=none")))
    guest = desk.job(desk.submit(4, **job("y.py", share="max=none")))
    assert not desk.engine.ledger.pairs.interference(free, guest).over_bound


def test_jobs_of_one_kind_and_of_organisations_with_other_bounds_are_told_apart() -> None:
    desk = Desk("sjf-ffs", sharing=DEFAULT, organisations={"vision": OrganisationSettings(share_max=1.05)})
    busy: dict[str, Any] = {"profile": profile(8, (1, 0.01, 100.0), duty=0.7)}
    desk.run(1, **job("x.py", 900.0, **busy))
    for number, organisation in ((2, "vision"), (3, "speech")):
        desk.engine.handle(
            ev.JobArrived(spec=spec(number, **job("y.py", organisation=organisation, **busy))), desk.now_s
        )
    assert [desk.phase(number) for number in (2, 3)] == ["queued", "loading"], desk.why(3)
