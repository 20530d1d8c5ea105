"""Options of jobs that hold devices: what changes, what follows at once, and what is in force in the end."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import JobId, Launch, LimitAttempt, SlurmScript, texts
from cotenant.controller.domain import events as ev
from tests.controller.building import Desk, report, spec

SLURM = Launch(argv=("bash", "x.sh"), uid=1000, slurm=SlurmScript(signal=10, signal_before_s=30.0))


def change(desk: Desk, job_id: int, **changes: Any) -> None:
    desk.tell(ev.SpecChanged(job_id=JobId(str(job_id)), changes=changes, by="root"))


def limits(desk: Desk) -> list[tuple[str, float]]:
    """Hosts that the last event told of a time limit."""
    return [(each.host_id, each.allowed_s) for each in desk.commands if isinstance(each, LimitAttempt)]


@pytest.mark.parametrize(
    ("before_s", "after_s", "ends_s"),
    [(100.0, 300.0, 300.0), (300.0, 100.0, 100.0), (None, 100.0, 100.0), (100.0, None, inf)],
    ids=["longer", "shorter", "from none", "taken away"],
)
def test_a_running_job_ends_at_the_time_limit_that_it_was_given_last(
    before_s: float | None, after_s: float | None, ends_s: float
) -> None:
    desk = Desk("fifo", report("a", 1))
    desk.run(1, time_limit_s=before_s)
    desk.wait(50.0)
    change(desk, 1, time_limit_s=after_s)
    desk.wait(min(ends_s, 5000.0) - 50.0 - 1.0)
    assert desk.phase(1) == "running"
    desk.wait(2.0)
    assert desk.phase(1) == ("running" if ends_s == inf else "checkpointing")
    if ends_s < inf:
        assert str(desk.job(1).reason) == f"reached its time limit of {texts.duration(ends_s)}"


def test_what_else_is_safe_is_changed_as_well_and_counts_from_then_on() -> None:
    desk = Desk("fifo", report("a", 1))
    desk.run(1)
    change(desk, 1, name="better", notify=("end", "a@x.org"), priority=-3, idle="stop:1h")
    now = desk.job(1).spec
    assert (now.name, now.notify, now.priority, now.idle) == ("better", ("end", "a@x.org"), -3, "stop:1h")
    desk.submit(2)
    desk.tell(ev.PreemptRequested(job_id=JobId("1"), by="root"))
    desk.end(1, "stopped")
    assert (desk.phase(1), desk.phase(2)) == ("queued", "loading"), "it waits at its new priority"


def test_guests_of_an_idle_job_leave_when_its_rule_is_another() -> None:
    desk = Desk("fifo", report("a", 1, device={"memory_mib": 1000}))
    desk.run(1, memory_mib=500, share="never", idle="share:1h")
    desk.submit(2, memory_mib=200, resumable=True)
    desk.tell(ev.IdleSeen(job_id=JobId("1"), attempt=desk.job(1).attempt.number, since_s=0.0, stage="share"))
    desk.start(2)
    change(desk, 1, idle="none")
    assert (desk.job(1).attempt.idle, desk.stops()) == (None, ["2"])


def test_hosts_that_act_before_the_end_hear_of_it_when_they_have_started_it_and_when_they_join_again() -> (
    None
):
    desk = Desk("fifo", report("a", 1), report("b", 1))
    desk.tell(ev.JobArrived(spec=msgspec.structs.replace(spec(1, gpus=2, time_limit_s=500.0), launch=SLURM)))
    desk.wait(20.0)
    job = desk.job(1)
    of = {"job_id": job.job_id, "attempt": job.attempt.number}
    desk.tell(ev.AttemptStarted(**of, host_id=report("a", 1).host_id))
    desk.wait(10.0)
    change(desk, 1, time_limit_s=900.0)
    assert limits(desk) == [("a", 880.0)], "it has had 20 s before its processes were there"
    desk.tell(ev.AttemptStarted(**of, host_id=report("b", 1).host_id))
    assert limits(desk) == [("b", 880.0)]
    desk.restart()
    seen = ev.AttemptSeen(**of, running=True, epoch=job.attempt.epoch, job_epoch=job.epoch)
    desk.tell(ev.HostJoined(report=report("a", 1), attempts=(seen,)))
    assert limits(desk) == [("a", 880.0)], "the same number again: who has it does nothing"
    change(desk, 1, time_limit_s=None)
    assert limits(desk) == [("a", inf), ("b", inf)]


def test_a_job_that_nobody_warns_sends_no_host_anything() -> None:
    desk = Desk("fifo", report("a", 1))
    desk.run(1, time_limit_s=100.0)
    change(desk, 1, time_limit_s=200.0)
    assert desk.commands == []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from([None, 40.0, 90.0, 200.0, 700.0])),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 1.0, 7.5, 35.0, 120.0])),
        st.tuples(st.sampled_from(["preempt", "restart", "rejoin"]), st.none()),
    ),
    max_size=25,
)


@given(before_s=st.sampled_from([None, 100.0, 500.0]), steps=STEPS)
def test_whatever_happens_the_time_limit_in_force_is_the_one_that_was_set_last(
    before_s: float | None, steps: list[tuple[str, float | None]]
) -> None:
    """Time on devices is counted here by hand, over all attempts."""
    desk, limit_s, had_s = Desk("fifo", report("a", 1)), before_s, 0.0
    desk.run(1, time_limit_s=before_s)
    for what, value in steps:
        job = desk.job(1)
        if what == "set" and (value is None or value > had_s):
            limit_s = value
            change(desk, 1, time_limit_s=value)
        elif what == "wait":
            assert value is not None
            desk.wait(value)
            had_s += value
        elif what == "preempt":
            desk.tell(ev.PreemptRequested(job_id=job.job_id, by="root"))
            desk.wait(3.0)  # Leaving counts for nothing.
            desk.end(1, "stopped")
            desk.start(1)
        elif what == "restart":
            desk.restart()
        elif what == "rejoin":
            seen = ev.AttemptSeen(
                job_id=job.job_id, attempt=job.attempt.number, running=True,
                epoch=job.attempt.epoch, job_epoch=job.epoch,
            )  # fmt: skip
            desk.tell(ev.HostJoined(report=report("a", 1), attempts=(seen,)))
        if limit_s is not None and had_s >= limit_s:
            assert desk.phase(1) == "checkpointing" and desk.job(1).attempt.stop_cause == "time-limit"
            assert desk.job(1).spec.time_limit_s == limit_s
            return
        assert desk.phase(1) == "running", (desk.phase(1), str(desk.job(1).reason))
