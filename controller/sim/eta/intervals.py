"""Roll-outs to intervals, for each job its own.

Rule: an interval is calibrated only by errors of the policy in force and of its own kind. A job without any
estimate gets no median: it would be the cluster's.
"""

from __future__ import annotations

import time

from cotenant.controller.domain import EtaInterval, EtaKind, Job, ToldInterval
from cotenant.controller.engine import EtaAnswer, EtaQuestion, JobEta, MakePolicy
from cotenant.controller.models.eta import calibrated, interval_of
from cotenant.controller.sim.eta.futures import Drawing
from cotenant.controller.sim.eta.rollout import RollOuts


def answer(question: EtaQuestion, make_policy: MakePolicy) -> EtaAnswer:
    """An interval for each job that is asked about."""
    began_s = time.process_time()
    roll_outs = RollOuts(question.image, question.config, make_policy)
    past = Drawing(question)
    roll_outs.run(past, question.seed, question.jobs)
    now = roll_outs.copy()
    return EtaAnswer(
        now_s=now.now_s,
        policy=question.policy,
        count=question.count,
        etas=[eta_of(now.jobs[job_id], question, roll_outs, now.now_s) for job_id in roll_outs.ends],
        cpu_s=time.process_time() - began_s,
    )


def eta_of(
    job: Job, question: EtaQuestion, roll_outs: RollOuts, now_s: float, *, is_new: bool = False
) -> JobEta:
    """`is_new`: it has come in this question alone, so that its start is told although it may be now."""
    job_id = job.job_id
    kind: EtaKind = "revisit" if job_id in question.revisits else "submission"
    errors = question.pools.errors_of(question.policy, kind)
    finish, start = interval_of(roll_outs.ends[job_id]), None
    if job.first_start_s is None or is_new:
        start = interval_of(roll_outs.starts[job_id])
    starts = [error.start for error in errors if error.start is not None]
    return JobEta(
        job_id=job_id,
        kind=kind,
        finish=_told(finish, [error.finish for error in errors]),
        start=_told(start, starts),
        errors=len(errors),
        is_length_known=job.known_left_s(now_s) is not None,
    )


def _told(raw: EtaInterval | None, errors: list[tuple[float, float, float]]) -> ToldInterval | None:
    return None if raw is None else ToldInterval(raw, calibrated(raw, errors))
