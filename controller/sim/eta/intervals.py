"""Roll-outs to intervals, for each job its own.

Rule: an interval is calibrated only by errors of the policy in force and of its own kind. A job without any
estimate gets no median: it would be the cluster's.
"""

from __future__ import annotations

import time

import msgspec

from cotenant.controller.domain import EtaInterval, EtaKind, Job, JobArrived, PolicyChanged, ToldInterval
from cotenant.controller.engine import (
    EtaAnswer,
    EtaQuestion,
    JobEta,
    MakePolicy,
    SupposedJob,
    image_of,
    policy_label,
)
from cotenant.controller.models.eta import calibrated, interval_of
from cotenant.controller.sim.eta.futures import Drawing
from cotenant.controller.sim.eta.rollout import HeldJob, RollOuts


def answer(question: EtaQuestion, make_policy: MakePolicy) -> EtaAnswer:
    """An interval for each job that is asked about."""
    began_s = time.process_time()
    if question.supposed is not None:
        return _supposed(question, question.supposed, make_policy, began_s)
    roll_outs = RollOuts(question.image, question.config, make_policy)
    past = Drawing(question.pools, question.claims, question.seed, question.count)
    roll_outs.run(past, question.seed, question.jobs)
    now = roll_outs.copy()
    return EtaAnswer(
        now_s=now.now_s,
        policy=question.policy,
        count=question.count,
        etas=[eta_of(now.jobs[job_id], question, roll_outs, now.now_s) for job_id in roll_outs.ends],
        cpu_s=time.process_time() - began_s,
    )


def _supposed(
    question: EtaQuestion, supposed: SupposedJob, make_policy: MakePolicy, began_s: float
) -> EtaAnswer:
    """The same of a job that nobody has submitted: it comes in a copy of the state, now or later, under the
    policy in force or another one."""
    engine = RollOuts(question.image, question.config, make_policy).copy()
    now_s, job_id = engine.now_s, supposed.spec.job_id
    if supposed.policy:
        changed = PolicyChanged(name=supposed.policy, parameters=supposed.parameters)
        engine.handle(changed, now_s)
    is_later = supposed.after_s > 0.0
    engine.handle(JobArrived(spec=msgspec.structs.replace(supposed.spec, hold=is_later)), now_s)
    label = policy_label(engine)
    question = msgspec.structs.replace(question, policy=label)
    roll_outs = RollOuts(image_of(engine), question.config, make_policy)
    past = Drawing(question.pools, question.claims, question.seed, question.count)
    release = HeldJob(job_id, now_s + supposed.after_s) if is_later else None
    roll_outs.run(past, question.seed, {job_id}, release)
    return EtaAnswer(
        now_s=now_s,
        policy=label,
        count=question.count,
        etas=[eta_of(engine.jobs[job_id], question, roll_outs, now_s)] if job_id in engine.jobs else [],
        cpu_s=time.process_time() - began_s,
    )


def eta_of(job: Job, question: EtaQuestion, roll_outs: RollOuts, now_s: float) -> JobEta:
    job_id = job.job_id
    kind: EtaKind = "revisit" if job_id in question.revisits else "submission"
    errors = question.pools.errors_of(question.policy, kind)
    finish, start = interval_of(roll_outs.ends[job_id]), None
    if job.first_start_s is None or question.supposed is not None:
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
