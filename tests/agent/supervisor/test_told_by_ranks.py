"""What ranks say that they did, on its way to the controller: parts of batches, proven resumes, and resumes
that went otherwise."""

from __future__ import annotations

import msgspec
import pytest

from cotenant.agent.daemon.core.remembered import Attempt
from cotenant.agent.daemon.core.reporting import from_result, from_status
from cotenant.agent.ipc.channel import StopNow
from cotenant.agent.supervisor.core.edge import OutsideSignal, Started
from cotenant.agent.supervisor.core.rank_messages import FirstStepReached, RankFailed, StepDone
from cotenant.controller.domain import AttemptNo, CommandId, HostId, JobId, JobWords, Parts
from cotenant.controller.domain import events as ev
from tests.agent.supervisor.test_supervision import Story, hello

HOW = "step 9 was made otherwise than in the attempt that was left: `noise` was 1, now 2"
ATTEMPT = Attempt(job_id=JobId("7"), attempt=AttemptNo(1), command_id=CommandId(1))
OTHERWISE = RankFailed(v=1, rank=0, what="resume", error=HOW)


def test_the_steps_at_each_number_of_parts_are_those_of_the_lowest_rank() -> None:
    story = Story(2).runs()
    for rank, step, count, s in ((0, 1, 0, 1), (1, 1, 0, 1), (0, 36, 35, 1), (0, 40, 4, 2), (1, 36, 35, 1)):
        story.says(StepDone(v=1, rank=rank, step=step, count=count, elapsed_s=0.1, s=s, equivalent=s == 2))
    words = JobWords(parts=(Parts(from_step=0, s=1), Parts(from_step=36, s=2)), is_equivalent=True)
    assert story.supervision.status.words == words
    story.exits(0, 0)
    reports = [event for event, _ in from_result(ATTEMPT, story.result(), HostId("a"))]
    assert [each.words for each in reports if isinstance(each, ev.OutputSeen)] == [words]


def test_a_proven_resume_is_reported_once_all_ranks_have_proven_it() -> None:
    story = Story(2, resume_step=8)
    story.happens(Started())
    attempt, told = ATTEMPT, []
    for proven in ((0, 0), (2, 0), (2, 2)):
        for rank, steps in enumerate(proven):
            word = hello(rank, 2, step=8)
            story.says(msgspec.structs.replace(word, exact=True, proven=steps))
        reports = list(from_status(attempt, story.supervision.status, HostId("a")))
        told += [event.capabilities.proven for event, _ in reports if isinstance(event, ev.CapabilitiesSeen)]
        attempt = reports[-1][1] if reports else attempt
    assert told == [0, 2]


def resumed() -> Story:
    story = Story(resume_step=8).runs()
    story.says(FirstStepReached(v=1, rank=0, step=9))
    return story


@pytest.mark.parametrize("code", [1, 0], ids=("it ends", "the script has held up the end"))
def test_a_resume_that_went_otherwise_is_told_with_its_end(code: int) -> None:
    story = resumed()
    story.says(OTHERWISE)
    story.exits(code)
    verdict = story.result().verdict
    assert (verdict.refusal, verdict.detail) == ("resume", HOW)


def test_what_a_script_does_when_it_is_told_to_leave_is_not_held_against_its_resume() -> None:
    story = Story(resume_step=8)
    story.happens(Started())
    story.happens(StopNow(save=True, deadline_s=60.0, reason="preempted"))
    story.says(OTHERWISE)
    story.exits(1)
    assert (story.result().verdict.outcome, story.result().verdict.refusal) == ("stopped", "")


def test_nor_is_what_it_does_when_its_host_shuts_down() -> None:
    story = resumed()
    story.happens(OutsideSignal(number=15))
    story.says(OTHERWISE)
    story.exits(143)
    assert (story.result().verdict.outcome, story.result().verdict.refusal) == ("infra-failed", "")
