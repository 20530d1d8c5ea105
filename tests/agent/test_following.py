"""Whose orders an agent follows: epochs of journals, restored ones among them."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.agent.daemon.core.edge import (
    AnswerLog,
    Booted,
    EndCame,
    FoundAttempt,
    RemoveCheckpoints,
    StartSupervisor,
)
from cotenant.agent.daemon.core.memory import AgentMemory
from cotenant.controller.domain import AttemptNo, CommandId, Epoch, ForgetJob, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.wire import (
    CommandAck,
    CommandDelivery,
    Heartbeat,
    Hello,
    LogReply,
    NotFollowed,
    ReadLog,
    Renew,
    Report,
    ReportAck,
    Welcome,
)
from tests.agent.daemon.test_state import DAY_S, HOST, KEY, Agent, only, sent, start, stop
from tests.building.results import result

FIRST, SECOND, LOST = Epoch(number=1, token="e1"), Epoch(number=2, token="e2"), Epoch(number=2, token="lost")
AFTER = Epoch(number=3, token="e3")
NEW: dict[str, Any] = {"epoch": "e3", "job_epoch": "e3"}


def welcome(epoch: Epoch, **more: Any) -> Welcome:
    return Welcome(
        **{"session": "s1", "lease_s": None, "reports_seen": 0, "journal": "j", "epoch": epoch, **more}
    )


def following(epoch: Epoch = FIRST) -> Agent:
    agent = Agent()
    agent.say(Booted())
    agent.hear(welcome(epoch), Renew(beat=1))
    return agent


def order(command: Any, epoch: Epoch = FIRST, **more: Any) -> CommandDelivery:
    return CommandDelivery(command=command, epoch=epoch.token, **more)


def of(epoch: Epoch) -> dict[str, Any]:
    return {"epoch": epoch.token, "job_epoch": epoch.token}


def test_the_same_command_number_of_another_epoch_is_another_command() -> None:
    """The defect: it was acknowledged, and nothing was done."""
    agent = following(LOST)
    agent.hear(order(start("7", command=1, **of(LOST)), LOST))
    agent.say(EndCame(result=result()))
    agent.hear(welcome(AFTER, restored=True), welcome(AFTER))
    effects = agent.hear(order(start("8", command=1, **of(AFTER)), AFTER))
    assert [effect.order.job_id for effect in only(StartSupervisor, effects)] == ["8"]
    assert sent(CommandAck, effects) == [CommandAck(command_id=CommandId(1), epoch="e3")]


@pytest.mark.parametrize("epoch", [FIRST, LOST, Epoch(number=9, token="unknown"), Epoch()])
def test_no_order_of_another_epoch_is_obeyed(epoch: Epoch) -> None:
    agent = following(SECOND)
    effects = agent.hear(order(start(), epoch))
    assert sent(NotFollowed, effects) == [NotFollowed(epoch=epoch.token)]
    assert only(StartSupervisor, effects) == [] == sent(CommandAck, effects)


@pytest.mark.parametrize("epoch", [FIRST, LOST])
def test_a_controller_of_no_later_epoch_is_not_followed(epoch: Epoch) -> None:
    """One that ran on beside the one that took over, or whose word was late."""
    agent = following(SECOND)
    agent.say(Booted())
    assert sent(Heartbeat, agent.hear(welcome(epoch))) == []
    assert agent.state.memory.epoch == SECOND


def test_what_it_follows_survives_a_restart_and_is_told_in_every_hello() -> None:
    agent = following()
    agent.hear(order(start(**of(FIRST)), reached=30), welcome(SECOND, reached=35))
    agent.hear(order(stop(command=9), SECOND, reached=41))
    again, effects = agent.restarted()
    [hello] = sent(Hello, effects)
    assert (hello.followed.epoch, hello.followed.past, hello.followed.reached) == (SECOND, ("e1",), 41)
    assert AgentMemory(list(again.state.memory.as_notes())).epochs_past == ("e1",), "and a compaction"


def test_a_renewal_says_how_far_the_journal_is() -> None:
    agent = following()
    agent.hear(Renew(beat=2, reached=77))
    assert agent.state.memory.reached == 77


def lived_on() -> Agent:
    """It followed what the journal then lost: job 7 is forgotten, 8 runs, nobody has heard the end of 9."""
    agent = following(LOST)
    for number, job in enumerate("789", 1):
        agent.hear(order(start(job, command=number, gang=_on(number % 2), **of(LOST)), LOST, reached=50))
        if job != "8":
            agent.say(EndCame(result=result(job)))
        if job == "7":
            agent.hear(ReportAck(sequence=agent.state.memory.sequence))
            forget = ForgetJob(command_id=CommandId(99), host_id=HOST, job_id=JobId("7"), job_epoch="lost")
            agent.hear(order(forget, LOST))
    return agent


def _on(slot: int) -> Any:
    [member] = start().gang
    return (type(member)(host_id=HOST, devices=(f"h1/cpu{slot}",), first_rank=0),)  # type: ignore[arg-type]


def test_a_restored_journal_hears_all_that_is_here_before_it_is_obeyed() -> None:
    agent = lived_on()
    effects = agent.hear(welcome(AFTER, restored=True, reports_seen=0))
    assert not agent.state.registration.welcomed
    [hello] = sent(Hello, effects)
    assert [(seen.job_id, seen.running, seen.job_epoch) for seen in hello.attempts] == [
        ("8", True, "lost"),
        ("9", False, "lost"),
    ]
    assert hello.kept == (
        ev.JobKept(job_id=JobId("7"), job_epoch="lost", attempt=AttemptNo(1), epoch="lost"),
    ), "what was forgotten may live again"
    assert (hello.followed.epoch, hello.followed.past) == (AFTER, ("lost",))


def test_reports_are_counted_anew_where_the_restored_journal_stands_and_name_their_epoch() -> None:
    agent = lived_on()
    agent.hear(welcome(AFTER, restored=True, reports_seen=5))
    [report] = sent(Report, agent.hear(welcome(AFTER, reports_seen=5)))
    assert (report.sequence, report.event.job_id, report.epoch, report.job_epoch) == (6, "9", "lost", "lost")


def test_a_start_whose_number_is_taken_is_neither_obeyed_nor_confirmed_but_told() -> None:
    agent = lived_on()
    agent.hear(welcome(AFTER, restored=True), welcome(AFTER))
    effects = agent.hear(order(start("7", command=2, **NEW), AFTER))
    assert only(StartSupervisor, effects) == [] == sent(CommandAck, effects)
    [hello] = sent(Hello, effects)
    assert ("7", "lost", 1) in [(kept.job_id, kept.job_epoch, kept.attempt) for kept in hello.kept]
    agent.hear(welcome(AFTER))
    [started] = only(StartSupervisor, agent.hear(order(start("7", 2, command=3, **NEW), AFTER)))
    assert started.order.checkpoint_root == "/ckpt/j/7-e3", "not where the lost job 7 has its checkpoints"
    assert (started.order.start.epoch, started.order.start.job_epoch) == ("e3", "e3")


def test_a_stop_of_another_attempt_with_its_number_touches_nothing() -> None:
    agent = lived_on()
    agent.hear(welcome(AFTER, restored=True), welcome(AFTER))
    agent.hear(order(stop("8", command=5, save=False), AFTER))
    before = agent.state.memory.attempts[JobId("8"), AttemptNo(1)]
    again = stop("8", command=6, save=False)
    agent.hear(order(type(again)(**{**_fields(again), "job_epoch": "e3"}), AFTER))
    assert agent.state.memory.attempts[JobId("8"), AttemptNo(1)] == before


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def test_lower_command_numbers_start_after_a_restore_although_fences_were_pruned() -> None:
    agent = lived_on()
    agent.now_s += 400 * DAY_S
    agent.wait(3_600.0)
    agent.hear(welcome(AFTER, restored=True), welcome(AFTER), Renew(beat=1))
    assert agent.state.memory.stale_below == 0
    assert only(StartSupervisor, agent.hear(order(start("5", command=1, gang=_on(0), **NEW), AFTER)))


def test_each_jobs_own_checkpoints_go_when_it_is_forgotten() -> None:
    agent = following()
    agent.hear(order(start(**of(FIRST))))
    agent.say(EndCame(result=result()))
    agent.hear(ReportAck(sequence=agent.state.memory.sequence))
    forget = ForgetJob(command_id=CommandId(8), host_id=HOST, job_id=JobId("7"), job_epoch="e1")
    agent.hear(order(forget))
    agent.state.memory.age_s = 30 * DAY_S
    agent.now_s += 30 * DAY_S
    removed = {effect.folder for effect in only(RemoveCheckpoints, agent.wait(3_600.0))}
    assert removed == {"/ckpt/j/7-e1"}


def test_logs_of_a_lost_job_are_not_those_of_the_job_that_has_its_number() -> None:
    agent = lived_on()
    read = ReadLog(
        request=1, job_id=JobId("8"), attempt=AttemptNo(1), rank=0, offset=0, limit=9, job_epoch="e3"
    )
    [reply] = sent(LogReply, agent.hear(read))
    assert "never started" in reply.missing and reply.closed
    own = ReadLog(
        request=2, job_id=JobId("8"), attempt=AttemptNo(1), rank=0, offset=0, limit=9, job_epoch="lost"
    )
    assert only(AnswerLog, agent.hear(own)) == [AnswerLog(read=own)]


def test_an_attempt_that_the_spool_has_lost_knows_its_epoch_from_its_order() -> None:
    [effect] = only(StartSupervisor, following().hear(order(start(**of(FIRST)))))
    agent = Agent()
    [hello] = sent(Hello, agent.say(Booted(found=(FoundAttempt(**KEY, alive=True, order=effect.order),))))
    assert [(seen.epoch, seen.job_epoch) for seen in hello.attempts] == [("e1", "e1")]
