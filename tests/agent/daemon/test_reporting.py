"""From whole statuses to reports: each fact once, whatever is repeated or skipped."""

from __future__ import annotations

from typing import Any

import msgspec

from cotenant.agent.daemon.core.remembered import Attempt
from cotenant.agent.daemon.core.reporting import TROUBLES_MAX, from_result, from_status
from cotenant.agent.ipc.records import Status
from cotenant.controller.domain import AttemptNo, Capabilities, CommandId, HostId, JobId, JobMetric, JobWords
from cotenant.controller.domain import events as ev
from tests.building.results import result

HOST = HostId("h")


def new() -> Attempt:
    return Attempt(job_id=JobId("1"), attempt=AttemptNo(1), command_id=CommandId(1))


def status(**fields: object) -> Status:
    return msgspec.structs.replace(Status(job_id=JobId("1"), attempt=AttemptNo(1)), **fields)


def told(attempt: Attempt, *statuses: Status) -> tuple[list[ev.AnyEvent], Attempt]:
    events: list[ev.AnyEvent] = []
    for each in statuses:
        for event, record in from_status(attempt, each, HOST):
            events.append(event)
            attempt = record
    return events, attempt


def test_a_failed_save_is_told_once_however_often_the_status_comes() -> None:
    full = status(failed=("save: No space left on device",))
    events, _ = told(new(), full, full, full)
    assert [event.what for event in events if isinstance(event, ev.TroubleSeen)] == [
        "save: No space left on device"
    ]


def test_what_a_job_can_do_is_told_again_when_it_turns_out_otherwise() -> None:
    can = status(resumable=False, capabilities=Capabilities(accumulates=True))
    cannot = status(resumable=False, capabilities=Capabilities(accumulates_note="BatchNorm"))
    events, _ = told(new(), can, can, cannot, cannot)
    seen = [event for event in events if isinstance(event, ev.CapabilitiesSeen)]
    assert [(event.capabilities.accumulates, event.capabilities.accumulates_note) for event in seen] == [
        (True, ""),
        (False, "BatchNorm"),
    ]


def test_a_link_is_told_once_and_the_last_metrics_with_the_end() -> None:
    def words(loss: float, link: str = "https://a.example") -> dict[str, Any]:
        return {"words": JobWords(metrics=(JobMetric(name="loss", value=loss),), link=link)}

    events, attempt = told(new(), status(**words(3.0, "")), *[status(**words(loss)) for loss in (2.0, 1.0)])
    assert [(type(event), event.words) for event in events if isinstance(event, ev.OutputSeen)] == [
        (ev.OutputSeen, words(2.0)["words"])
    ]
    at_end = [event for event, _ in from_result(attempt, result("1", **words(0.5)), HOST)]
    assert [type(event) for event in at_end] == [ev.OutputSeen, ev.AttemptEnded]
    silent = [event for event, _ in from_result(new(), result("1"), HOST)]
    assert [type(event) for event in silent] == [ev.AttemptEnded], "a job without any costs nothing"


def test_why_it_cannot_resume_is_told_again_when_that_is_known_better() -> None:
    cannot = status(resumable=False, capabilities=Capabilities(resumable_note="no optimizer yet"))
    known = status(resumable=False, capabilities=Capabilities(resumable_note="it is not ours"))
    events, _ = told(new(), cannot, cannot, known, known)
    seen = [event for event in events if isinstance(event, ev.CapabilitiesSeen)]
    assert [event.capabilities.resumable_note for event in seen] == ["no optimizer yet", "it is not ours"]


def test_a_job_that_fails_in_ever_new_words_is_not_told_for_ever() -> None:
    statuses = [status(failed=(f"save: error {i}",)) for i in range(3 * TROUBLES_MAX)]
    events, attempt = told(new(), *statuses)
    assert len(events) == len(attempt.troubles) == TROUBLES_MAX


def test_what_no_status_had_time_to_say_is_told_with_the_end() -> None:
    last: dict[str, Any] = {
        "started": True,
        "resumable": True,
        "start_step": 5,
        "exact": True,
        "failed": ("save: no space",),
    }
    events = [event for event, _ in from_result(new(), result("1", **last), HOST)]
    assert [type(event) for event in events] == [
        ev.AttemptStarted,
        ev.CapabilitiesSeen,
        ev.TroubleSeen,
        ev.AttemptEnded,
    ]
    [seen] = [event for event in events if isinstance(event, ev.CapabilitiesSeen)]
    assert (seen.step, seen.exact) == (5, True)
