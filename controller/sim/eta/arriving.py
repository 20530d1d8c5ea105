"""What would follow if jobs came now: the same futures with them and without them.

Rule: draws for a job depend on its number and the seed alone, and so do later arrivals: with and without the
newcomers all other jobs have the same lengths, so the newcomers cause every difference.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import msgspec

from cotenant.controller.domain import Job, JobArrived, JobId, JobSpec, Phase, PolicyChanged, render
from cotenant.controller.engine import (
    ArrivalEffect,
    Delay,
    Engine,
    EtaAnswer,
    EtaQuestion,
    LengthClaim,
    MakePolicy,
    claim_of,
    image_of,
    policy_label,
)
from cotenant.controller.models.eta import interval_of
from cotenant.controller.sim.eta.futures import Drawing
from cotenant.controller.sim.eta.intervals import eta_of
from cotenant.controller.sim.eta.rollout import HeldJob, RollOuts, Times

TOLD_S_MIN = 1.0
"""A smaller difference is no delay."""


def arrived(question: EtaQuestion, make_policy: MakePolicy) -> EtaAnswer:
    """When supposed jobs would start and end, which jobs they would wait for, and which they would delay."""
    began_s = time.process_time()
    without = RollOuts(question.image, question.config, make_policy)
    without.run(Drawing(question), question.seed)
    engine = without.copy()
    claims = _claims_with(engine, question, question.arriving)
    follows = RollOuts(image_of(engine), question.config, make_policy)
    follows.run(Drawing(question, claims), question.seed)
    now_s = engine.now_s
    newcomers = [engine.jobs[spec.job_id] for spec in question.arriving]
    return EtaAnswer(
        now_s=now_s,
        policy=question.policy,
        count=question.count,
        arrival=_effect(engine, newcomers[0], without.ends, follows.ends),
        etas=[
            eta_of(job, question, follows, now_s, is_new=True)
            for job in newcomers
            if job.job_id in follows.ends
        ],
        cpu_s=time.process_time() - began_s,
    )


def supposed(question: EtaQuestion, make_policy: MakePolicy) -> EtaAnswer:
    """When a job that comes now or later would start and end, under the policy in force or another one."""
    began_s = time.process_time()
    about = question.supposed
    assert about is not None
    engine = RollOuts(question.image, question.config, make_policy).copy()
    now_s, job_id = engine.now_s, about.spec.job_id
    if about.policy:
        engine.handle(PolicyChanged(name=about.policy, parameters=about.parameters), now_s)
    is_later = about.after_s > 0.0
    claims = _claims_with(engine, question, [msgspec.structs.replace(about.spec, hold=is_later)])
    question = msgspec.structs.replace(question, policy=policy_label(engine))
    follows = RollOuts(image_of(engine), question.config, make_policy)
    past = Drawing(question, claims)
    release = HeldJob(job_id, now_s + about.after_s) if is_later else None
    follows.run(past, question.seed, {job_id}, release)
    return EtaAnswer(
        now_s=now_s,
        policy=question.policy,
        count=question.count,
        etas=[eta_of(engine.jobs[job_id], question, follows, now_s, is_new=True)],
        cpu_s=time.process_time() - began_s,
    )


def _claims_with(
    engine: Engine, question: EtaQuestion, specs: Sequence[JobSpec]
) -> dict[JobId, list[LengthClaim]]:
    """Lets the jobs arrive; returns all claims about lengths, with theirs."""
    claims = dict(question.claims)
    for spec in specs:
        engine.handle(JobArrived(spec=spec), engine.now_s)
        claim = claim_of(engine.jobs[spec.job_id], engine.now_s)
        claims[spec.job_id] = [claim] if claim is not None else []
    return claims


def _effect(engine: Engine, first: Job, without: Times, follows: Times) -> ArrivalEffect:
    waits = first.phase in (Phase.QUEUED, Phase.RESERVED)
    ahead, waits_for = [], []
    if waits:
        ahead = [job.job_id for job in engine.view().queued()]
        ahead = ahead[: ahead.index(first.job_id)] if first.job_id in ahead else []
        waits_for = _leave_first(engine, first, follows)
    reasons = [each for each in engine.explain(first.job_id, engine.now_s) if each.code != "submitted"]
    return ArrivalEffect(
        at_once=first.phase is Phase.LOADING,
        reasons=tuple(dict.fromkeys(map(render, reasons))),
        ahead=tuple(ahead),
        waits_for=tuple(waits_for),
        delays=tuple(_delays(without, follows)),
    )


def _leave_first(engine: Engine, job: Job, ends: Times) -> list[JobId]:
    """As many jobs on devices as have to leave for it, the first to end first."""
    if job.phase is Phase.RESERVED:
        return list(job.waits_for)
    view = engine.view()
    free, found = view.free.everywhere, []
    for other in sorted(view.on_devices(), key=lambda each: (_median_s(ends.get(each.job_id)), each.number)):
        if free >= job.spec.gpus:
            break
        free += len(other.placement.devices) if other.placement is not None else 0
        found.append(other.job_id)
    return found


def _median_s(samples: list[float] | None) -> float:
    interval = interval_of(samples or [])
    return math.inf if interval is None else interval.p50_s


def _delays(without: Times, follows: Times) -> list[Delay]:
    found = []
    for job_id, ends_s in without.items():
        later = zip(ends_s, follows.get(job_id, ()), strict=False)
        by_s = [after - before for before, after in later if math.isfinite(before) and math.isfinite(after)]
        interval = interval_of(by_s) if 2 * len(by_s) > len(ends_s) else None
        if interval is not None and max(map(abs, msgspec.structs.astuple(interval))) >= TOLD_S_MIN:
            found.append(Delay(job_id=job_id, by=interval))
    return sorted(found, key=lambda delay: (-delay.by.p50_s, -delay.by.p90_s, delay.job_id))
