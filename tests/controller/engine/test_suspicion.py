"""A host becomes suspect by jobs of two users or by its own checks, whatever one user's jobs do there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import HostId, HostState
from tests.controller.building import Desk, report

A, B = HostId("a"), HostId("b")
ENDS = st.fixed_dictionaries(
    {
        "outcome": st.sampled_from(["infra-failed", "infra-failed", "user-failed", "never-started"]),
        "detail": st.sampled_from(["cannot unpack its snapshot on a", "ended by SIGTERM from outside", ""]),
        "rule": st.sampled_from(["", "killed", "supervisor gone"]),
        "exit_code": st.sampled_from([None, 1, 143, 255]),
        "out_of_memory": st.booleans(),
        "workdir_missing": st.booleans(),
        "cuda_fault": st.booleans(),
    }
)


@given(
    st.lists(st.tuples(ENDS, st.integers(0, 2), st.sampled_from([1.0, 30.0, 400.0])), max_size=20),
    st.sampled_from([0, 3, 9]),
)
def test_whatever_one_user_s_jobs_do_no_host_is_closed_to_others(
    story: list[tuple[dict[str, object], int, float]], infra_retries: int
) -> None:
    desk = Desk("fifo", report("a"), report("b"), infra_retries=infra_retries, back_off_s=1.0)
    for number, (end, retries, wait_s) in enumerate(story):
        desk.submit(number, user="eve", retries=retries)
        for job in list(desk.engine.jobs.values()):
            if job.phase == "loading":
                desk.end(job.job_id, **end)  # type: ignore[arg-type]
        desk.wait(wait_s)
        for host in (A, B):
            assert desk.engine.hosts[host].state == HostState.OK and desk.engine.hosts[host].takes_work


def test_one_user_s_failures_close_it_once_a_second_user_s_job_failed_there_too() -> None:
    desk = Desk("fifo", infra_retries=0)
    for number, user in ((1, "eve"), (2, "eve"), (3, "eve"), (4, "eve")):
        desk.submit(number, user=user, retries=0)
        desk.end(number, "infra-failed", detail="cannot unpack its snapshot on a: No space left on device")
        assert desk.engine.hosts[A].state == HostState.OK
        assert desk.phase(number) == "held" and "No space left" in str(desk.job(number).reason)
    desk.submit(5, user="ann")
    desk.end(5, "infra-failed", detail="cannot unpack its snapshot on a: No space left on device")
    assert desk.engine.hosts[A].state == HostState.SUSPECT
