"""What is asked of Slurm, and why: a test by name for every trap that automatic allocation is known for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cotenant.controller.domain import (
    Allocation,
    AllocationQueue,
    AllocationTerms,
    HostId,
    HostShape,
    JobId,
    SeenShape,
)
from cotenant.controller.planning import SchedulingClass
from cotenant.controller.slurm.alloc.deciding import (
    AllocationPlan,
    HostSpace,
    Situation,
    WaitingJob,
    decide,
    note_failure,
    proven,
)

SEEN = SeenShape(devices=4, type="H200", memory_mib=80_000, domain="d")
NOBODY = SchedulingClass(1, 0, "", (), 0, "", (), 0.0)


def queue(**more: Any) -> AllocationQueue:
    known: dict[str, Any] = {n: more.pop(n) for n in ("max_hosts", "backlog") if n in more}
    terms: dict[str, Any] = {
        "max_hosts": 4,
        "backlog": 2,
        "time_limit_s": 3600.0,
        "folder": "/shared",
        **known,
    }
    made = AllocationTerms(name="slurm", shape=HostShape(devices=4), **terms)
    return AllocationQueue(**{"terms": made, "python": "python", "seen": SEEN, "is_checked": True, **more})


def job(number: int, gpus: int = 4, **more: Any) -> WaitingJob:
    return WaitingJob(JobId(str(number)), msgspec.structs.replace(NOBODY, gpus=gpus, **more))


def allocation(slot: int, state: str = "working", asked_s: float = 0.0) -> Allocation:
    plain = {"name": f"c-slurm-{slot}", "queue": "slurm", "host_id": f"slurm-{slot}", "slurm_id": str(slot)}
    more = {"state": state, "since_s": asked_s, "asked_s": asked_s, "why": "a test"}
    return msgspec.convert({**plain, **more}, Allocation)


def space(host: str = "slurm-1", free: int = 4, **more: Any) -> HostSpace:
    plain: dict[str, Any] = {"type": "H200", "memory_mib": 80_000, "domain": "d", "stays_s": 3000.0}
    return HostSpace(host_id=HostId(host), free=free, **{**plain, **more})


def plan(*waiting: WaitingJob, of: AllocationQueue | None = None, **more: Any) -> AllocationPlan:
    known: dict[str, Any] = {"now_s": 1000.0, "queue": of or queue(), **more}
    return decide(Situation(waiting=waiting, **known))


def test_a_job_that_fits_nowhere_asks_for_a_host_and_says_for_whom() -> None:
    found = plan(job(7))
    assert found.submit == ("slurm-1",)
    assert found.why == "asks for 1 host for job 7"


# --- The traps of automatic allocation -------------------------------------------------------------


def test_nothing_is_asked_for_while_a_host_is_free() -> None:
    found = plan(job(7), allocations=(allocation(1),), spaces=(space(),))
    assert found.submit == ()
    assert found.why == "nothing is asked for: 1 waiting job fit on what is free"


def test_nothing_is_asked_for_twice_while_a_request_waits() -> None:
    for state in ("submitting", "pending", "starting"):
        found = plan(job(7), allocations=(allocation(1, state),))
        assert found.submit == (), state
        assert "is asked for already" in found.why


def test_what_becomes_free_soon_is_not_asked_for() -> None:
    found = plan(job(7), allocations=(allocation(1),), spaces=(space(free=1, soon=3),))
    assert found.submit == ()
    assert "becomes free soon" in found.why
    assert plan(job(7), allocations=(allocation(1),), spaces=(space(free=1, soon=2),)).submit == ("slurm-2",)


def test_no_more_hosts_than_jobs_need() -> None:
    """Two jobs of two devices share a host of four; the third needs another."""
    of = queue(backlog=10)
    assert plan(job(1, 2), job(2, 2), of=of).submit == ("slurm-1",)
    assert plan(job(1, 2), job(2, 2), job(3, 1), of=of).submit == ("slurm-1", "slurm-2")
    wide = plan(job(1, 8, nodes=2), of=of)
    assert wide.submit == ("slurm-1", "slurm-2"), "a job over two nodes asks for both"


def test_never_more_than_max_hosts_or_than_may_wait_in_slurm() -> None:
    jobs = [job(number) for number in range(20)]
    assert len(plan(*jobs).submit) == 2, "the backlog"
    both = (allocation(1, "pending"), allocation(2, "pending"))
    assert "--backlog 2" in plan(*jobs, allocations=both).why
    full = tuple(allocation(slot) for slot in range(1, 5))
    found = plan(*jobs, allocations=full)
    assert found.submit == ()
    assert "all 4 of --max-hosts are there or asked for" in found.why


def test_no_host_that_the_job_would_not_fit() -> None:
    wants = {
        "needs 8 devices on one host": job(1, 8, nodes=1),
        "asks for A100": job(1, gpu_type="A100"),
        "needs 90000 MiB per device": job(1, memory_mib=90_000),
        "asks for nvlink": job(1, features=("nvlink",)),
        "has its checkpoints where": job(1, domain="elsewhere"),
        "needs 4000 s to load and save": job(1, stay_s=4000),
        "needs more hosts than the 4": job(1, 20),
        "has a working directory": job(1, not_hosts=tuple(HostId(f"slurm-{n}") for n in range(1, 5))),
    }
    for why, each in wants.items():
        found = plan(each)
        assert found.submit == (), why
        assert found.why.startswith(f"nothing is asked for: job 1 {why}"), found.why


def test_nothing_for_jobs_that_wait_for_other_jobs() -> None:
    found = plan(not_runnable=3)
    assert found.submit == ()
    assert found.why.startswith("nothing is asked for: 3 jobs cannot run yet (they wait for other jobs")


def test_a_paused_queue_says_so_and_can_resume() -> None:
    found = plan(job(7), of=queue(paused="by ann"))
    assert found.submit == ()
    assert found.why == "nothing is asked for: paused (by ann); `cotenant alloc resume slurm`"
    assert plan(job(7), of=queue(paused="")).submit == ("slurm-1",)


def test_after_failures_it_waits_longer_each_time_and_never_stops_silently() -> None:
    now_s, of, waits = 1000.0, queue(), []
    for _ in range(12):
        of = note_failure(of, "sbatch: invalid account", now_s)
        waits.append(of.retry_at_s - now_s)
        held = plan(job(7), of=of, now_s=now_s)
        assert held.submit == ()
        assert "in a row brought no host (sbatch: invalid account): the next one in" in held.why
        now_s = of.retry_at_s
        assert plan(job(7), job(8), of=of, now_s=now_s).submit == ("slurm-1",), "one, to see"
    assert waits == sorted(waits) and waits[0] == 30.0 and waits[-1] == 3600.0


def test_one_request_until_the_first_host_is_as_declared() -> None:
    of, jobs = queue(seen=None, backlog=5), [job(number) for number in range(5)]
    assert plan(*jobs, of=of).submit == ("slurm-1",)
    held = plan(*jobs, of=of, allocations=(allocation(1, "pending"),))
    assert held.submit == ()
    assert "until it has brought a host as declared" in held.why
    known, said = proven(of, SEEN)
    assert said == "the first host is as declared: 4 devices of type H200"
    assert len(plan(*jobs, of=known, allocations=(allocation(1),)).submit) == 3


def test_a_first_host_that_is_less_than_declared_pauses_its_queue() -> None:
    known, said = proven(queue(seen=None), msgspec.structs.replace(SEEN, devices=2))
    assert said == known.paused == "a host has 2 devices of type H200, and --shape says 4"
    assert plan(job(7), of=known).submit == ()
    after = msgspec.structs.replace(known, paused="")
    assert plan(job(7, nodes=1), of=after).why.endswith(
        "needs 4 devices on one host, and those of slurm have 2"
    )


def test_while_slurm_does_not_answer_nothing_is_asked_for_or_given_back() -> None:
    found = plan(
        job(7), allocations=(allocation(1),), idle_s={HostId("slurm-1"): 9e9}, problem="squeue: no route"
    )
    assert (found.submit, found.cancel, found.leave) == ((), (), ())
    assert found.why == "nothing is asked for, because Slurm cannot be: squeue: no route"


# --- Giving back -----------------------------------------------------------------------------------


def test_a_request_that_no_job_needs_any_more_is_taken_back() -> None:
    asked = allocation(1, "pending", asked_s=0.0)
    assert plan(allocations=(asked,)).cancel == (("c-slurm-1", "no waiting job needs it any more"),)
    assert plan(job(7), allocations=(asked,)).cancel == ()
    assert plan(allocations=(allocation(1, "pending", asked_s=900.0),)).cancel == (), "not at once"
    soon = (space("h", free=0, soon=4),)
    assert plan(job(7), allocations=(asked,), spaces=soon).cancel == (), "an estimate takes nothing back"


def test_an_idle_host_is_given_back_unless_a_job_waits_for_it() -> None:
    idle: dict[str, Any] = {
        "allocations": (allocation(1),),
        "spaces": (space(),),
        "idle_s": {HostId("slurm-1"): 300.0},
    }
    assert plan(**idle).leave == ((HostId("slurm-1"), "idle for 300 s"),)
    assert plan(job(7), **idle).leave == ()
    assert plan(job(7, gpu_type="A100"), **idle).leave, "this one cannot use it"
    assert plan(**{**idle, "idle_s": {HostId("slurm-1"): 299.0}}).leave == ()


def test_a_host_that_is_cleared_is_given_back_at_once() -> None:
    found = plan(allocations=(allocation(1),), cleared=frozenset((HostId("slurm-1"),)))
    assert found.cancel == (("c-slurm-1", "its host has no more work"),)


def test_what_is_removed_is_given_back_jobs_first() -> None:
    of = queue(is_removed=True)
    found = plan(job(7), of=of, allocations=(allocation(1), allocation(2, "pending")))
    assert found.submit == ()
    assert found.leave == ((HostId("slurm-1"), "the queue is removed"),)
    assert found.cancel == (("c-slurm-2", "the queue is removed"),)
    assert plan(of=of).why == "it is removed"


@pytest.mark.parametrize("gpus", [8, 12])
def test_a_gang_that_no_host_can_hold_is_spread(gpus: int) -> None:
    found = plan(job(1, gpus), of=queue(backlog=10))
    assert len(found.submit) == gpus // 4
