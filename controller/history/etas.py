"""When jobs end: what events teach of it, and how good the intervals were that users were told.

Rule: the book learns from events alone, as the history does, so that recovery and replay arrive at the same
pools. It learns nothing from a job that was cancelled or failed, and scores neither such a job nor an
interval told under an earlier policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.models.eta import ArrivalSeen, EtaError, KnownLength, Pools, errors_of

TOLD_PER_JOB_MAX: Final = 4
"""Intervals per job that are compared with its end: a long job would crowd out the others."""
REVISIT_S_MIN: Final = 30.0
REVISIT_SHARE: Final = 0.5
"""A revisit counts when this share of the interval told last has passed."""
SOON_S: Final = 120.0
"""A first interval that is told so soon after the arrival counts as told at submission."""
CLAIMS_KEPT: Final = 3


class LengthClaim(msgspec.Struct, frozen=True, array_like=True):
    """What a source expected a job to need in all, alone, when it was first asked."""

    source: str
    told_s: float


class OpenEta(msgspec.Struct, kw_only=True):
    """An interval that was told and not yet compared."""

    told: domain.ToldEta
    at_s: float
    is_void: bool = False
    """The policy has changed since: it is not scored."""


class SavedEtas(msgspec.Struct, kw_only=True):
    """The whole book as a value."""

    pools: Pools = msgspec.field(default_factory=Pools)
    claims: dict[domain.JobId, list[LengthClaim]] = {}
    open: dict[domain.JobId, list[OpenEta]] = {}


def policy_label(engine: Engine) -> str:
    """The policy in force, with its parameters."""
    given = ",".join(f"{key}={value}" for key, value in sorted(engine.current.parameters.items()))
    return f"{engine.current.name}:{given}" if given else engine.current.name


class EtaBook:
    """The book of intervals, which watches the engine; `observe` after every event."""

    def __init__(self, saved: SavedEtas | None = None) -> None:
        self._saved = saved if saved is not None else SavedEtas()

    def save(self) -> SavedEtas:
        return self._saved

    # --- Reading -----------------------------------------------------------------------------------

    @property
    def pools(self) -> Pools:
        return self._saved.pools

    @property
    def claims(self) -> Mapping[domain.JobId, Sequence[LengthClaim]]:
        """Claims about jobs that have not ended, the newest last."""
        return self._saved.claims

    @property
    def told_of(self) -> frozenset[domain.JobId]:
        """Jobs that have been told of; what is told of them now is a revisit."""
        return frozenset(job_id for job_id, told in self._saved.open.items() if told)

    def overdue(self, kind: domain.EtaKind, now_s: float) -> int:
        """How many calibrated intervals under the policy in force are over while their jobs go on."""
        told = (each for theirs in self._saved.open.values() for each in theirs)
        return sum(
            each.told.kind == kind
            and each.told.is_calibrated
            and not each.is_void
            and now_s - each.at_s > each.told.finish.told.p90_s
            for each in told
        )

    def open_share(self, engine: Engine) -> float:
        """The share of intervals told at submission under this policy whose jobs have not ended."""
        waiting = sum(1 for told in self._saved.open.values() if told and not told[0].is_void)
        known = len(self.pools.errors_of(policy_label(engine), "submission"))
        return waiting / (waiting + known) if waiting else 0.0

    def kind_due(self, job: domain.Job, now_s: float) -> domain.EtaKind | None:
        """The kind under which an interval told now will be compared; None: not at all."""
        told = self._saved.open.get(job.job_id)
        if not told:
            return "submission" if now_s - job.submitted_s <= SOON_S else None
        last = told[-1]
        spent_s = now_s - last.at_s
        if len(told) >= TOLD_PER_JOB_MAX or spent_s < REVISIT_S_MIN:
            return None
        return "revisit" if spent_s >= REVISIT_SHARE * last.told.finish.told.p50_s else None

    # --- Watching ----------------------------------------------------------------------------------

    def observe(self, engine: Engine, event: ev.AnyEvent) -> Sequence[EtaError]:
        """Takes in what one `handle` (or `fold`) did; returns how the intervals that it settles turned
        out."""
        match event:
            case ev.JobArrived():
                self._note_arrival(engine, event)
            case ev.ProgressSeen():
                job = engine.jobs.get(event.job_id)
                if job is not None:
                    self._claim(job, engine.now_s)
            case ev.SpecChanged() | ev.RequeueRequested():
                self._told_anew(engine, event.job_id)
            case ev.AttemptEnded() | ev.CancelRequested():
                job = engine.jobs.get(event.job_id)
                if job is None or job.phase in domain.ENDED:
                    return self._note_end(engine, event.job_id, job)
            case ev.PolicyChanged():
                for told in self._saved.open.values():
                    for each in told:
                        each.is_void = True
            case ev.EtasTold():
                self._note_told(engine, event)
        return ()

    def _note_arrival(self, engine: Engine, event: ev.JobArrived) -> None:
        job, pools = engine.jobs.get(event.spec.job_id), self._saved.pools
        if job is None or job.job_id in self._saved.claims:
            return  # The same submission, journalled twice.
        claim = claim_of(job, engine.now_s)
        self._saved.claims[job.job_id] = [claim] if claim is not None else []
        before_s = engine.now_s if pools.last_arrival_s is None else pools.last_arrival_s
        arrival = ArrivalSeen(
            gap_s=engine.now_s - before_s,
            spec=msgspec.structs.replace(
                plain(event.spec), after=(), hold=False, promised_s=None, begin_s=None
            ),
            told_s=claim.told_s if claim is not None else None,
            source=claim.source if claim is not None else "",
        )
        pools.add_arrival(arrival, engine.now_s)

    def _told_anew(self, engine: Engine, job_id: domain.JobId) -> None:
        """The estimate of a waiting job may have changed; one that had ended has no claims."""
        job = engine.jobs.get(job_id)
        if job is not None and job.phase in domain.WAITING:
            claim = claim_of(job, engine.now_s)
            self._saved.claims[job_id] = [claim] if claim is not None else []

    def _claim(self, job: domain.Job, now_s: float) -> None:
        claims = self._saved.claims.get(job.job_id)
        if claims is None or len(claims) >= CLAIMS_KEPT or job.estimate.source.endswith(domain.OVERRUN):
            return
        if any(claim.source == domain.basis_of(job.estimate.source) for claim in claims):
            return
        claim = claim_of(job, now_s)
        if claim is not None:
            claims.append(claim)

    def _note_end(self, engine: Engine, job_id: domain.JobId, job: domain.Job | None) -> Sequence[EtaError]:
        claims = self._saved.claims.pop(job_id, [])
        told = self._saved.open.pop(job_id, [])
        if job is None or job.phase is not domain.Phase.DONE or job.spec.profiling == "only":
            return ()
        pools, true_s = self._saved.pools, true_length_s(job)
        if true_s is not None and true_s > 0.0:
            pools.add_run_time(true_s)
            for claim in claims:
                pools.add_length(KnownLength(claim.source, claim.told_s, true_s))
        counted = [(each.told.kind, error_of(each, job)) for each in told if not each.is_void]
        for kind, error in counted:
            pools.add_error(policy_label(engine), kind, error)
        return [error for _, error in counted]

    def _note_told(self, engine: Engine, event: ev.EtasTold) -> None:
        for told in event.etas:
            job = engine.jobs.get(told.job_id)
            if job is not None and job.phase not in domain.ENDED:
                self._saved.open.setdefault(told.job_id, []).append(OpenEta(told=told, at_s=event.at_s))
        for job_id in [*self._saved.claims]:
            job = engine.jobs.get(job_id)
            if job is None or job.phase in domain.ENDED:  # In a way that no event of its own told.
                self._saved.open.pop(job_id, None)
                del self._saved.claims[job_id]


def claim_of(job: domain.Job, now_s: float) -> LengthClaim | None:
    """What its present source expects the job to need in all; None: no source is about this job."""
    left_s = job.known_left_s(now_s)
    if left_s is None:
        return None
    return LengthClaim(domain.basis_of(job.estimate.source), run_s(job, now_s) + left_s)


def grounds_of(job: domain.Job) -> str:
    """What an ETA of the job rests on, apart from time: where this has changed, the ETA is void."""
    spec, source = job.spec, domain.basis_of(job.estimate.source)
    said = (spec.expected_s, spec.iterations, spec.time_limit_s, spec.budget_s, spec.begin_s, spec.after)
    return repr((source, job.progress.total_steps, job.phase is domain.Phase.HELD, *said))


def run_s(job: domain.Job, now_s: float) -> float:
    """What it has trained so far, at whatever pace."""
    return job.spent.run_s + (now_s - job.phase_since_s if job.phase is domain.RUNNING else 0.0)


def true_length_s(job: domain.Job) -> float | None:
    """What a job that has ended took to train, alone; None where it shared and its own pace is unknown."""
    if not job.co_tenants:
        return job.spent.run_s
    return (
        job.progress.step * job.measured.solo_step_s
        if job.progress.step and job.measured.solo_step_s is not None
        else None
    )


def error_of(each: OpenEta, job: domain.Job) -> EtaError:
    """How an interval turned out."""
    told = each.told
    assert job.ended_s is not None
    actual_s = max(1.0, job.ended_s - each.at_s)  # It may have ended before that was known.
    start = None
    if told.start is not None and job.first_start_s is not None:
        start = errors_of(told.start.raw, job.first_start_s - each.at_s, told.start.floor_s)
    return EtaError(
        finish=errors_of(told.finish.raw, actual_s, told.finish.floor_s),
        start=start,
        was_calibrated=told.is_calibrated,
        hit=told.finish.told.holds(actual_s),
        bias=errors_of(told.finish.told, actual_s)[1],
        width_s=told.finish.told.p90_s - told.finish.told.p10_s,
        actual_s=actual_s,
    )


def plain(spec: domain.JobSpec) -> domain.JobSpec:
    """The launch reduced to what makes a job the kind that it is."""
    return msgspec.structs.replace(spec, launch=domain.Launch(argv=spec.launch.argv))
