"""Which ended job is forgotten next, over any history of ends, requeues and forgetting."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import AttemptNo, Job, because
from cotenant.controller.engine.state.phases import EndedJobs
from tests.controller.building import spec

KEEP = 5
ends = st.lists(st.tuples(st.sampled_from(["ann", "bob", "eve"]), st.booleans(), st.booleans()), max_size=60)
"""Whose job ended, whether it ever started, and whether the job before it is queued again first."""


@given(ends)
def test_only_who_has_the_most_ended_jobs_loses_one(history: list[tuple[str, bool, bool]]) -> None:
    ended, kept = EndedJobs(), dict[str, Job]()
    for number, (user, started, is_requeue) in enumerate(history):
        if is_requeue and kept:
            ended.remove(kept.popitem()[1])
        job = Job(spec=spec(number, user=user), number=number, submitted_s=0.0, reason=because("finished"))
        job.attempt.number = AttemptNo(int(started))
        ended.add(job)
        kept[job.job_id] = job
        while len(ended.sizes) > KEEP:
            lost = kept.pop(ended.next_to_forget(by_bytes=False))
            ended.remove(lost)
            left = Counter(each.spec.user for each in kept.values())
            assert all(count <= left[lost.spec.user] + 1 for count in left.values())
            theirs = [each for each in kept.values() if each.spec.user == lost.spec.user]
            assert lost.attempt.number == 0 or all(each.attempt.number for each in theirs), (
                "a job that never started goes first"
            )
            alike = [each for each in theirs if bool(each.attempt.number) == bool(lost.attempt.number)]
            assert all(each.number > lost.number for each in alike), "the oldest of its kind"
        assert list(ended.sizes) == list(kept)
        assert ended.size_bytes == sum(ended.sizes.values())
