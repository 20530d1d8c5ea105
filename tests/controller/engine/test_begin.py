"""`--begin`: a job is kept out of the queue until its time."""

from __future__ import annotations

from cotenant.controller.domain import Dependency, JobId
from cotenant.controller.domain import events as ev
from tests.controller.building import Desk


def test_a_job_stays_out_of_the_queue_until_its_time_and_says_so() -> None:
    desk = Desk("fifo")
    desk.wait(100.0)
    desk.submit(1, begin_s=1000.0)
    assert desk.phase(1) == "blocked"
    assert desk.why(1) == "does not start before the time that --begin names, 15m00s after it came"
    desk.submit(2)
    assert desk.phase(2) == "loading", "nobody waits for it"
    desk.start(2)
    desk.end(2)
    desk.restart()
    desk.wait(899.0)
    assert desk.phase(1) == "blocked"
    desk.wait(1.0)
    assert desk.phase(1) == "loading"


def test_a_time_that_has_passed_keeps_nobody_back() -> None:
    desk = Desk("fifo")
    desk.wait(100.0)
    desk.submit(1, begin_s=99.0)
    assert desk.phase(1) == "loading"


def test_it_waits_for_its_time_after_it_was_released_or_what_it_depends_on_has_ended() -> None:
    desk = Desk("fifo")
    desk.submit(1)
    desk.submit(2, begin_s=500.0, after=(Dependency(job_id=JobId("1")),))
    desk.submit(3, begin_s=600.0, hold=True)
    desk.tell(ev.ReleaseRequested(job_id=JobId("3"), by="ann"))
    desk.start(1)
    desk.end(1)
    assert [desk.phase(each) for each in (2, 3)] == ["blocked", "blocked"]
    assert {desk.job(each).reason.code for each in (2, 3)} == {"begins-later"}
    desk.wait(500.0)
    assert [desk.phase(each) for each in (2, 3)] == ["loading", "blocked"]
