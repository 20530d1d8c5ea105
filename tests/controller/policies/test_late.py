"""Late jobs: whom they preempt, and what is kept for those that cannot start."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller.domain import HostId, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import Plan, is_possible
from cotenant.controller.policies.toolkit import KeptForLate, late_waiting
from tests.controller.building import Desk, report
from tests.controller.policies.test_classic import Before, later, queued, running, then, told
from tests.controller.policies.test_whole_queue import planned

AGEING_S = 100.0
PREEMPTING = ("patient", "cotenant", "srtf-full")
WHOLE = ("sjf", "patient", "cotenant", "srtf-full")
TWO = report("a", 2)


def job(expected_s: float | None, **more: Any) -> dict[str, Any]:
    return {"expected_s": expected_s, "load_s": 10.0, "pause_s": 5.0, "share": "never", **more}


def firm(expected_s: float | None, **more: Any) -> dict[str, Any]:
    """It cannot resume."""
    return job(expected_s, resumable=False, **more)


def late(number: int, **more: Any) -> Before:
    """It has waited for 101 s, and can start nowhere now."""
    return then(queued(number, **more), later(AGEING_S + 1.0))


# fmt: off
PREEMPTED: list[tuple[str, list[Any], Before, list[str]]] = [
    ("whatever can resume, even what has less left", [report("a", 1)],
     then(running(job(300)), late(9, **job(5000))), ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("the longest of them", [TWO], then(running(job(300), job(400)), late(9, **job(5000))),
     ["preempt 2 for 9", "place 9 on a/cpu1"]),
    ("as many as it takes", [TWO], then(running(job(300), job(400)), late(9, **job(5000, gpus=2))),
     ["preempt 2 for 9", "preempt 1 for 9", "place 9 on a/cpu0 a/cpu1"]),
    ("all or none", [TWO], then(running(job(300), firm(400)), late(9, **job(5000, gpus=2))), []),
    ("nothing that cannot resume", [report("a", 1)], then(running(firm(300)), late(9, **job(5000))), []),
    ("nothing of class hp", [report("a", 1)],
     then(running(job(300, job_class="hp")), late(9, **job(5000))), []),
    ("nothing of greater priority", [report("a", 1)],
     then(running(job(300, priority=1)), late(9, **job(5000))), []),
    ("what is of less priority", [report("a", 1)], then(running(job(300)), late(9, **job(5000, priority=1))),
     ["preempt 1 for 9", "place 9 on a/cpu0"]),
    ("no device of a host that takes no work", [report("a", 1), report("b", 1)],
     then(running(job(300), job(4000)), told(ev.HostDrained(host_id=HostId("b"), by="root")),
          late(9, **job(5000))), ["preempt 1 for 9", "place 9 on a/cpu0"]),
]
# fmt: on


@pytest.mark.parametrize("policy", PREEMPTING)
@pytest.mark.parametrize("row", PREEMPTED, ids=[row[0].replace(" ", "-") for row in PREEMPTED])
def test_a_late_job_preempts(policy: str, row: tuple[str, list[Any], Before, list[str]]) -> None:
    _, hosts, before, wanted = row
    desk = Desk(policy, *hosts, ageing_s=AGEING_S)
    watched = desk.engine
    plans: list[list[str]] = []
    codes: list[str] = []
    handle = watched.handle

    def record(*given: Any) -> Any:
        commands = handle(*given)
        late_one = watched.jobs.get(JobId("9"))
        if late_one is not None and late_one.aged:
            plans.append(planned(desk))
            codes.extend(action.reason.code for action in watched.decision.actions)
        return commands

    watched.handle = record  # type: ignore[assignment,method-assign]
    before(desk)
    assert plans[0] == wanted
    if wanted:
        assert codes[: len(wanted)] == ["turn-preempted"] * (len(wanted) - 1) + ["turn-preempts"]


@pytest.mark.parametrize("policy", PREEMPTING)
def test_a_late_job_that_runs_is_preempted_by_nobody(policy: str) -> None:
    desk = Desk(policy, report("a", 1), ageing_s=AGEING_S)
    desk.submit(1, **job(300))
    desk.start(1)
    late(2, **job(5000))(desk)
    desk.durable(1, 10)
    desk.end(1, "stopped")
    desk.start(2)
    desk.submit(3, **job(1))
    assert desk.phase(2) == "running"
    late(4, **job(1))(desk)
    assert (desk.phase(2), desk.phase(4)) == ("running", "queued")


# --- What is kept ----------------------------------------------------------------------------------------

# fmt: off
HELD = running(firm(1000), firm(10_000))
"""Both devices of host a are held; job 1 ends first."""
KEPT: list[tuple[str, dict[str, Any], str]] = [
    ("one that would hold them longer does not get them", firm(9000), "queued"),
    ("one that ends before does", firm(8000), "loading"),
    ("one whose load would make it end after does not", firm(8895), "queued"),
    ("one that says that it can resume does where late jobs preempt", job(9000, resumable=True), "preempts"),
    ("one of which nobody knows whether it can resume does not", job(50_000), "queued"),
    ("one of unknown length that cannot resume does not", firm(None), "queued"),
]
# fmt: on


@pytest.mark.parametrize("policy", WHOLE)
@pytest.mark.parametrize("row", KEPT, ids=[row[0].replace(" ", "-") for row in KEPT])
def test_who_may_have_what_is_kept(policy: str, row: tuple[str, dict[str, Any], str]) -> None:
    """Job 3 is late and needs both devices; job 2 ends 8900 s from now."""
    _, newcomer, wanted = row
    desk = Desk(policy, TWO, ageing_s=AGEING_S)
    HELD(desk)
    late(3, **job(100, gpus=2))(desk)
    desk.wait(1000.0)
    desk.end(1)
    desk.submit(9, **newcomer)
    does = "loading" if policy in PREEMPTING else "queued"
    assert desk.phase(9) == (does if wanted == "preempts" else wanted)


@pytest.mark.parametrize("policy", WHOLE)
def test_who_does_not_need_what_is_kept_starts_elsewhere(policy: str) -> None:
    desk = Desk(policy, TWO, report("b", 1), ageing_s=AGEING_S)
    running(firm(50), firm(1000), firm(10_000))(desk)
    assert desk.devices(1) == ("b/cpu0",)
    late(4, **job(100, gpus=2, nodes=1))(desk)
    desk.end(1)
    desk.end(2)
    desk.submit(9, **firm(50_000))
    assert desk.devices(9) == ("b/cpu0",)
    desk.submit(8, **firm(50_000))
    assert desk.phase(8) == "queued"


def test_a_late_job_that_no_host_could_hold_keeps_nothing() -> None:
    desk = Desk("sjf", TWO, ageing_s=AGEING_S)
    HELD(desk)
    late(3, **job(100, gpus=3))(desk)
    desk.end(1)
    desk.submit(9, **firm(50_000))
    assert desk.phase(9) == "loading"


def test_two_late_jobs_are_kept_different_devices() -> None:
    desk = Desk("fifo", report("a", 4), ageing_s=0.0)
    running(firm(1000, gpus=2), firm(2000, gpus=2))(desk)
    for number in (3, 4):
        desk.submit(number, **job(100, gpus=2))
    plan = Plan(desk.engine.ledger)
    kept = KeptForLate(plan, preempts=False)
    for number in (3, 4):
        assert is_possible(plan.view, desk.job(number))
        kept.keep(desk.job(number))
    first, second = kept._kept
    assert set(first.devices) == {"a/cpu0", "a/cpu1"}
    assert set(second.devices) == {"a/cpu2", "a/cpu3"}
    assert first.start_s < second.start_s


def test_the_first_late_job_that_waits_is_the_one_behind_whom_nobody_shares() -> None:
    desk = Desk("sjf", TWO, report("b", 1), ageing_s=AGEING_S)
    running(firm(1000), firm(1000), firm(1000))(desk)
    late(4, **job(10, gpus=4))(desk)
    late(5, **job(20, gpus=2))(desk)
    desk.submit(6, **job(1))
    waited_for = late_waiting(Plan(desk.engine.ledger))
    assert waited_for is not None
    assert waited_for.job_id == "5", "no cluster could hold job 4"
