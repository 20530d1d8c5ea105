"""What the memory makes of notes. That it equals its own compaction is checked in test_histories.py."""

from __future__ import annotations

from cotenant.agent.daemon.core.memory import COMMANDS_KEPT, AgentMemory
from cotenant.agent.daemon.core.notes import Confirmed, Kept, Obeyed, Renumbered, Reported, Unfenced
from cotenant.agent.daemon.core.registration import Lease
from cotenant.agent.daemon.core.remembered import Attempt
from cotenant.controller.domain import AttemptNo, CommandId, ExitVerdict, HostId, JobId
from cotenant.controller.domain import events as ev


def started(job: int) -> ev.AttemptStarted:
    return ev.AttemptStarted(job_id=JobId(str(job)), attempt=AttemptNo(1), host_id=HostId("h"))


def test_commands_are_remembered_up_to_a_bound() -> None:
    memory = AgentMemory(Obeyed(command_id=CommandId(n)) for n in range(COMMANDS_KEPT + 10))
    assert len(memory.commands) == COMMANDS_KEPT
    assert CommandId(9) not in memory.commands
    assert CommandId(COMMANDS_KEPT + 9) in memory.commands


def test_a_confirmed_end_settles_its_attempt() -> None:
    attempt = Attempt(job_id=JobId("1"), attempt=AttemptNo(1), command_id=CommandId(1))
    end = ev.AttemptEnded(
        job_id=JobId("1"), attempt=AttemptNo(1), host_id=HostId("h"), verdict=ExitVerdict(outcome="finished")
    )
    memory = AgentMemory([Kept(attempt=attempt), Reported(sequence=1, event=end, attempt=attempt)])
    assert memory.attempts[attempt.key].settled_age_s is None
    memory.fold(Confirmed(sequence=1))
    assert memory.attempts[attempt.key].settled_age_s == 0.0
    assert not memory.pending


def test_renumbering_keeps_the_order_and_leaves_older_reports_alone() -> None:
    memory = AgentMemory(Reported(sequence=n, event=started(n)) for n in (1, 2, 3))
    memory.fold(Renumbered(first=2, to=10))
    assert [(n, e.job_id) for n, e in memory.pending.items()] == [(1, "1"), (10, "2"), (11, "3")]
    assert memory.sequence == 11


def test_a_gap_left_by_damage_is_filled_with_the_next_report() -> None:
    memory = AgentMemory([Confirmed(sequence=3), *(Reported(sequence=n, event=started(n)) for n in (5, 8))])
    fillers = list(memory.gaps())
    assert [(f.sequence, f.event.job_id) for f in fillers] == [(4, "5"), (6, "8"), (7, "8")]
    for filler in fillers:
        memory.fold(filler)
    assert list(memory.pending) == [4, 5, 6, 7, 8]
    assert not list(memory.gaps())


def test_the_number_that_makes_a_fence_superfluous_only_rises() -> None:
    memory = AgentMemory(Unfenced(job_id=JobId("1"), stale_below=CommandId(n)) for n in (5, 3))
    assert memory.stale_below == 5


def test_a_lease_is_over_before_the_controllers() -> None:
    """The controller counts from when it answered, which is never before we sent."""
    lease = Lease()
    assert not lease.may_start(0.0)
    lease.grant(10.0)
    assert lease.left_s(0.0) == 0.0
    lease.beat_sent(1, 100.0)
    answered_s, arrived_s = 103.0, 106.0
    assert lease.renew(1)
    left_s = lease.left_s(arrived_s)
    assert left_s is not None
    assert arrived_s + left_s <= answered_s + 10.0
    assert lease.left_s(1000.0) == 0.0
    assert not lease.renew(99), "not a heartbeat of ours"


def test_nothing_starts_in_the_last_fifth_of_a_lease() -> None:
    lease = Lease()
    lease.grant(10.0)
    lease.beat_sent(1, 0.0)
    lease.renew(1)
    assert lease.may_start(7.9)
    assert not lease.may_start(8.0)
    assert lease.still_meant(1, 7.9)
    assert not lease.still_meant(1, 8.0)
    lease.grant(None)
    assert lease.may_start(1e9)
