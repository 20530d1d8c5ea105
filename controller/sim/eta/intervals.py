"""Roll-outs to intervals: for each job its own; what would follow if jobs came now; and whether intervals are
right: those at submissions of a simulation, compared with its outcome.

Rule: an interval is calibrated only by errors of the policy in force and of its own kind. A job without any
estimate gets no median: it would be the cluster's.

Rule: what the clock fixes is not calibrated. One more roll-out, in which nothing takes any time, tells when a
job can start and end at the earliest, whatever keeps it: `--begin`, a reservation of others, a job that it
waits for and that begins later. A task that waits for one of its throttled array starts no earlier than in
any roll-out, and a job after the told ends of those it waits for (`--after`).

Rule: what would follow if jobs came now is the same futures with them and without them. Draws for a job
depend on its number and the seed alone, and so do later arrivals: with and without the newcomers all other
jobs have the same lengths, so the newcomers cause every difference.

Rule: an interval rests on what was known at that moment: in a validation, pools grow with the run, and the
first intervals are uncalibrated and do not count. Validation only reads the engine, so the run itself stays
the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

import msgspec
import numpy as np

from cotenant.controller import domain, history
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, MakePolicy
from cotenant.controller.models import eta
from cotenant.controller.models.eta_score import FAIR, score
from cotenant.controller.sim.eta.futures import Drawing, Future
from cotenant.controller.sim.eta.rollout import HeldJob, RollOuts, Times, follow, world_of
from cotenant.controller.sim.world.workload import Workload


def answer(question: history.EtaQuestion, make_policy: MakePolicy) -> history.EtaAnswer:
    """An interval for each job that is asked about."""
    began_s = time.process_time()
    roll_outs = RollOuts(question.image, question.config, make_policy)
    past = Drawing(question)
    roll_outs.run(past, question.seed, question.jobs)
    now = roll_outs.copy()
    return history.EtaAnswer(
        now_s=now.now_s,
        policy=question.policy,
        count=question.count,
        etas=etas_of(now, question, roll_outs),
        cpu_s=time.process_time() - began_s,
    )


def etas_of(
    engine: Engine, question: history.EtaQuestion, roll_outs: RollOuts, new: Collection[domain.JobId] = ()
) -> list[history.JobEta]:
    """The ETAs of all jobs that were rolled out. `new`: jobs that have come in this question alone: then only
    theirs, with their starts, although they may start now."""
    told: dict[domain.JobId, history.JobEta] = {}
    for job_id in roll_outs.ends:  # In order of arrival, so that a job comes after those that it waits for.
        job = engine.jobs[job_id]
        told[job_id] = _eta_of(job, question, roll_outs, engine.now_s, told, is_new=job_id in new)
    return [told[job_id] for job_id in new or told if job_id in told]


def _eta_of(
    job: domain.Job,
    question: history.EtaQuestion,
    roll_outs: RollOuts,
    now_s: float,
    told: Mapping[domain.JobId, history.JobEta],
    *,
    is_new: bool,
) -> history.JobEta:
    """The ETA of a job by the roll-outs. `told`: those of jobs that arrived before it."""
    job_id = job.job_id
    kind: domain.EtaKind = "revisit" if job_id in question.revisits else "submission"
    errors = question.pools.errors_of(question.policy, kind)
    starts_s, ends_s = roll_outs.starts[job_id], roll_outs.ends[job_id]
    start, is_known = None, job.known_left_s(now_s) is not None
    if job.first_start_s is None or is_new:
        waits_for_task = job.phase is domain.Phase.BLOCKED and job.spec.array_limit
        earliest_s = starts_s if waits_for_task else roll_outs.instant_starts[job_id]
        start = _corrected(starts_s, [each.start for each in errors if each.start is not None], earliest_s)
    for other in (told[each.job_id].finish for each in job.spec.after if each.job_id in told):
        if start is not None and other is not None:
            start = msgspec.structs.replace(start, told=eta.levelwise(max, start.told, other.told))
    # Past errors are those of jobs whose lengths were known.
    of_ends = [each.finish for each in errors] if is_known else []
    finish = _corrected(ends_s, of_ends, roll_outs.instant_ends[job_id])
    if finish is not None:
        runs_s = [end_s - start_s for start_s, end_s in zip(starts_s, ends_s, strict=True)]
        end = _end_beside(job, finish, start, min(filter(math.isfinite, runs_s)), now_s)
        finish = msgspec.structs.replace(finish, told=end)
    return history.JobEta(
        job_id=job_id,
        kind=kind,
        finish=finish,
        start=start,
        errors=len(errors) if is_known or start is not None else 0,
        is_length_known=is_known,
        is_limit=job_id in roll_outs.endless,
        grounds=history.grounds_of(job),
    )


def _corrected(
    samples_s: list[float], errors: list[tuple[float, float, float]], earliest_s: list[float]
) -> domain.ToldInterval | None:
    """The interval of one number per roll-out, corrected down to the least of `earliest_s` at most."""
    raw, floor_s = eta.interval_of(samples_s), max(0.0, min(*earliest_s, *samples_s))
    if raw is None:
        return None
    return domain.ToldInterval(raw, eta.calibrated_interval(raw, errors, floor_s), floor_s)


def _end_beside(
    job: domain.Job,
    finish: domain.ToldInterval,
    start: domain.ToldInterval | None,
    run_s: float,
    now_s: float,
) -> domain.EtaInterval:
    """The end as it can be told: beside the start, and with the time limit of a job that runs only once."""
    if job.known_left_s(now_s) is None:
        return finish.raw if start is None else eta.end_moved(finish.raw, start)
    begin = domain.EtaInterval(0.0, 0.0, 0.0) if start is None else start.told
    if job.spec.time_limit_s is not None and not job.spec.requeues:
        room_s = (job.limit_left_s(now_s) or 0.0) + job.estimate.pause_s
        latest = eta.levelwise(lambda raw_s, begin_s: max(raw_s, begin_s + room_s), finish.raw, begin)
        finish = msgspec.structs.replace(finish, told=eta.levelwise(min, finish.told, latest))
    return finish.told if start is None else eta.end_after(finish, begin, run_s)


TOLD_S_MIN = 1.0
"""A smaller difference is no delay."""


def answer_arrival(question: history.EtaQuestion, make_policy: MakePolicy) -> history.EtaAnswer:
    """When supposed jobs would start and end, which jobs they would wait for, and which they would delay."""
    began_s = time.process_time()
    without = RollOuts(question.image, question.config, make_policy)
    without.run(Drawing(question), question.seed)
    engine = without.copy()
    claims = _claims_with(engine, question, question.arriving)
    follows = RollOuts(history.image_of(engine), question.config, make_policy)
    follows.run(Drawing(question, claims), question.seed)
    newcomers = [spec.job_id for spec in question.arriving]
    return history.EtaAnswer(
        now_s=engine.now_s,
        policy=question.policy,
        count=question.count,
        arrival=_effect(engine, engine.jobs[newcomers[0]], without.ends, follows.ends),
        etas=etas_of(engine, question, follows, newcomers),
        cpu_s=time.process_time() - began_s,
    )


def answer_supposed(question: history.EtaQuestion, make_policy: MakePolicy) -> history.EtaAnswer:
    """When a job that comes now or later would start and end, under the policy in force or another one."""
    began_s = time.process_time()
    about = question.supposed
    assert about is not None
    engine = RollOuts(question.image, question.config, make_policy).copy()
    now_s, job_id = engine.now_s, about.spec.job_id
    if about.policy:
        engine.handle(ev.PolicyChanged(name=about.policy, parameters=about.parameters), now_s)
    is_later = about.after_s > 0.0
    claims = _claims_with(engine, question, [msgspec.structs.replace(about.spec, hold=is_later)])
    question = msgspec.structs.replace(question, policy=history.policy_label(engine))
    follows = RollOuts(history.image_of(engine), question.config, make_policy)
    past = Drawing(question, claims)
    release = HeldJob(job_id, now_s + about.after_s) if is_later else None
    follows.run(past, question.seed, {job_id, *(each.job_id for each in about.spec.after)}, release)
    return history.EtaAnswer(
        now_s=now_s,
        policy=question.policy,
        count=question.count,
        etas=etas_of(engine, question, follows, (job_id,)),
        cpu_s=time.process_time() - began_s,
    )


def _claims_with(
    engine: Engine, question: history.EtaQuestion, specs: Sequence[domain.JobSpec]
) -> dict[domain.JobId, list[history.LengthClaim]]:
    """Lets the jobs arrive; returns all claims about lengths, with theirs."""
    claims = dict(question.claims)
    for spec in specs:
        engine.handle(ev.JobArrived(spec=spec), engine.now_s)
        claim = history.claim_of(engine.jobs[spec.job_id], engine.now_s)
        claims[spec.job_id] = [claim] if claim is not None else []
    return claims


def _effect(engine: Engine, first: domain.Job, without: Times, follows: Times) -> history.ArrivalEffect:
    waits = first.phase in (domain.Phase.QUEUED, domain.Phase.RESERVED)
    ahead, waits_for = [], []
    if waits:
        ahead = [job.job_id for job in engine.ledger.queue.jobs_in_order()]
        ahead = ahead[: ahead.index(first.job_id)] if first.job_id in ahead else []
        waits_for = _leave_first(engine, first, follows)
    reasons = [each for each in engine.explain(first.job_id, engine.now_s) if each.code != "submitted"]
    return history.ArrivalEffect(
        at_once=first.phase is domain.Phase.LOADING,
        reasons=tuple(dict.fromkeys(map(domain.render, reasons))),
        ahead=tuple(ahead),
        waits_for=tuple(waits_for),
        delays=tuple(_delays(without, follows)),
    )


def _leave_first(engine: Engine, job: domain.Job, ends: Times) -> list[domain.JobId]:
    """Lists as many jobs on devices as have to leave for `job`, the first to end first."""
    if job.phase is domain.Phase.RESERVED:
        return list(job.waits_for)
    view = engine.ledger
    free, found = view.free.everywhere, []
    for other in sorted(
        view.running.jobs_by_end(), key=lambda each: (_median_s(ends.get(each.job_id)), each.number)
    ):
        if free >= job.spec.gpus:
            break
        free += len(other.placement.devices) if other.placement is not None else 0
        found.append(other.job_id)
    return found


def _median_s(samples: list[float] | None) -> float:
    interval = eta.interval_of(samples or [])
    return math.inf if interval is None else interval.p50_s


def _delays(without: Times, follows: Times) -> list[history.Delay]:
    found = []
    for job_id, ends_s in without.items():
        later = zip(ends_s, follows.get(job_id, ()), strict=False)
        by_s = [after - before for before, after in later if math.isfinite(before) and math.isfinite(after)]
        interval = eta.interval_of(by_s) if 2 * len(by_s) > len(ends_s) else None
        if interval is not None and max(map(abs, msgspec.structs.astuple(interval))) >= TOLD_S_MIN:
            found.append(history.Delay(job_id=job_id, by=interval))
    return sorted(found, key=lambda delay: (-delay.by.p50_s, -delay.by.p90_s, delay.job_id))


PREDICTIONS: Final = 440
"""The most submissions that get an interval, evenly over the run: each costs roll-outs of all jobs there."""
OPEN_MAX: Final = 0.5
"""The largest share of told jobs that may still be open: beyond it those that have ended are the quick ones,
and correct the others wrongly."""


class EtaTrial:
    """Observes a run after each event."""

    def __init__(self, workload: Workload, seed: int, make_policy: MakePolicy) -> None:
        self._share = min(1.0, PREDICTIONS / max(1, len(workload)))
        self._seed, self._make_policy = seed, make_policy
        self._book, self._is_exact = history.EtaBook(), workload.is_exact
        self._arrived = self._told = 0
        self._open_shares: list[float] = []
        self.errors: list[eta.EtaError] = []

    def __call__(self, engine: Engine, event: ev.AnyEvent, commands: Sequence[domain.AnyCommand]) -> None:
        self.errors += self._book.observe(engine, event)
        if type(event) is not ev.JobArrived:
            return
        self._arrived += 1
        if int(self._arrived * self._share) > int((self._arrived - 1) * self._share):
            self._tell(engine, event)

    def _tell(self, engine: Engine, event: ev.JobArrived) -> None:
        job_id = event.spec.job_id
        self._open_shares.append(self._book.open_share(engine))
        question = history.question_of(
            engine, self._book, seed=self._seed + self._arrived, jobs={job_id}, is_exact=self._is_exact
        )
        told = [
            record
            for each in answer(question, self._make_policy).etas
            if (record := history.comparable_eta(each))
        ]
        self._book.observe(engine, ev.EtasTold(at_s=engine.now_s, etas=tuple(told)))
        self._told += len(told)

    def result(self) -> dict[str, Any]:
        """The result of the trial for `sim compare --eta`."""
        scored = score(self.errors)
        open_share = fmean(self._open_shares) if self._open_shares else 0.0
        coverage = scored.coverage_80
        unfair = coverage is not None and not FAIR[0] <= coverage <= FAIR[1]
        return {
            **msgspec.to_builtins(scored),
            "told": self._told,
            "open_share": open_share,
            "late_feedback": open_share > OPEN_MAX,
            "flagged": open_share > OPEN_MAX or unfair,
        }

    def prediction_error(self) -> dict[str, float] | None:
        """|JCT - p50| / p50 of the intervals told, calibrated or not."""
        off = np.array([abs(math.expm1(error.bias)) for error in self.errors])
        if not len(off):
            return None
        p50, p99 = np.percentile(off, (50, 99))
        return {"mean": float(off.mean()), "p50": float(p50), "p99": float(p99)}


class AskedEnds:
    """Observes a run after each event: when some jobs would end if nobody came after them, by one roll-out at
    their arrival in which all takes as long as is told. PCS (NSDI '24, section 4) predicts so."""

    def __init__(self, jobs: int, asked_ratio: float, make_policy: MakePolicy) -> None:
        """`asked_ratio`: so many of the jobs ask, evenly among all."""
        self.told_s: list[float] = []
        """The JCT that each was told, in order of arrival; NaN: did not ask."""
        self._jobs, self._asked = jobs, math.ceil(asked_ratio * jobs)
        self._make_policy = make_policy

    def __call__(self, engine: Engine, event: ev.AnyEvent, commands: Sequence[domain.AnyCommand]) -> None:
        if type(event) is ev.JobArrived:
            number, end_s = len(self.told_s), math.nan
            if (number + 1) * self._asked // self._jobs > number * self._asked // self._jobs:
                end_s = self._end_s(engine, event.spec.job_id)
            self.told_s.append(end_s - engine.now_s)

    def _end_s(self, engine: Engine, job_id: domain.JobId) -> float:
        """Infinite: never."""
        question = history.question_of(engine, history.EtaBook(), seed=0, count=1, is_exact=True)
        alone = RollOuts(question.image, question.config, self._make_policy).copy()
        future = Future(alone, Drawing(question), 0, question.seed)
        _, ended = follow(alone, world_of(alone, future), {job_id: None}, future.endless)
        return ended.get(job_id, math.inf)
