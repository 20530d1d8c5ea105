"""When jobs start and end, as users see it: from what was rolled out last, and how often that has held.

Rule: it computes nothing, and shows no time that has passed: what goes on cannot have ended, so that it ends
now at the earliest, and where all of its times have passed it takes longer than foreseen. A job without any
estimate gets an interval and no median.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from cotenant.controller.api.moment import Now
from cotenant.controller.api.permissions import jobs_named
from cotenant.controller.api.views import ago
from cotenant.controller.domain import ENDED, EtaInterval, Job, JobId, Phase, Reason, ToldInterval, because
from cotenant.controller.engine import Engine
from cotenant.controller.history import EtaAnswer, EtaBook, JobEta, grounds_of, policy_label
from cotenant.controller.models.eta import ENOUGH
from cotenant.controller.models.eta_score import EtaScore, score
from cotenant.controller.planning import QueueStanding, View
from cotenant.controller.store import ReadingCore
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import clients as wire

HITS_OF = 100
SPREAD_S_MIN = 1.0
"""An uncorrected interval is narrower where all roll-outs agree: they do not know how wrong they are."""
AHEAD_SHOWN = 5


class EtaBoard:
    """The newest estimates, by job."""

    def __init__(self, core: ReadingCore) -> None:
        self._core = core
        self._answer = EtaAnswer()
        self._by_job: dict[JobId, JobEta] = {}
        self._held: tuple[float | None, int] = (None, 0)

    def view_of(self, job: Job, now: Now) -> wire.EtaView | None:
        """None of a job that has ended."""
        if job.phase in ENDED:
            return None
        answer, policy = self._newest(), policy_label(self._core.state.engine)
        eta = self._valid(job)
        return wire.EtaView(
            job_id=job.job_id,
            name=job.spec.name,
            phase=job.phase,
            start=times_of(eta.start, True, answer.now_s, now) if eta and not job.attempt.number else None,
            finish=end_times(eta, answer.now_s, now) if eta else None,
            is_calibrated=eta is not None and eta.is_calibrated,
            basis=basis(job.phase, eta, answer) if eta else _nothing(job, answer),
            policy=policy,
            hit_rate=self._held[0],
            hits_of=self._held[1],
            told_at=now.utc(answer.now_s) if eta else None,
            age_s=now.now_s - answer.now_s if eta else None,
        )

    def interval(self, job: Job) -> EtaInterval | None:
        """The interval that users were told for a job's end, in seconds of the journal."""
        answer, eta = self._newest(), self._valid(job)
        if eta is None or eta.finish is None:
            return None
        told = eta.finish.told
        return EtaInterval(*(answer.now_s + each for each in (told.p10_s, told.p50_s, told.p90_s)))

    def _valid(self, job: Job) -> JobEta | None:
        """The newest ETA of a job; None: there is none, or what it rests on has changed since."""
        answer, eta = self._newest(), self._by_job.get(job.job_id)
        is_valid = answer.policy == policy_label(self._core.state.engine)
        return eta if is_valid and eta is not None and eta.grounds == grounds_of(job) else None

    def _newest(self) -> EtaAnswer:
        if self._answer is not self._core.etas:
            self._answer = self._core.etas
            self._by_job = {eta.job_id: eta for eta in self._answer.etas}
            self._held = hit_rate(self._core.state.etas, self._answer.policy, self._answer.now_s)
        return self._answer


def count_missed(scored: EtaScore, missed: int) -> EtaScore:
    """The score with intervals that are over while their jobs go on: who comes late counts before it ends."""
    count = scored.predictions + missed
    hits = (scored.coverage_80 or 0.0) * scored.predictions
    return msgspec.structs.replace(scored, predictions=count, coverage_80=hits / count if count else None)


def hit_rate(book: EtaBook, policy: str, now_s: float) -> tuple[float | None, int]:
    """The share that held of the last calibrated intervals told at submission under the policy in force, and
    how many those are."""
    missed = min(HITS_OF, book.overdue("submission", now_s))
    scored = score(book.pools.errors_of(policy, "submission"), last=HITS_OF - missed)
    scored = count_missed(scored, missed)
    return scored.coverage_80, scored.predictions


class EtaRequests:
    """Questions about when jobs end."""

    def __init__(self, core: ReadingCore, board: EtaBoard) -> None:
        self._core, self._board = core, board

    def etas(self, request_id: int, request: wire.ListEtas, who: Identity) -> wire.Etas:
        jobs = self._core.state.engine.jobs
        asked = jobs_named(self._core, request.job_ids) if request.job_ids else list(jobs.values())
        now = Now(self._core.clock.now_s(), self._core.clock.wall())
        found = (self._board.view_of(job, now) for job in asked)
        return wire.Etas(
            request_id=request_id,
            etas=tuple(eta for eta in found if eta is not None),
            scores=tuple(scores(self._core.state.etas, policy_label(self._core.state.engine), now.now_s)),
            now=now.at,
            promises=promise_counts(self._core.state.engine),
        )


def promise_counts(engine: Engine) -> wire.PromiseCounts:
    saved = engine.promises.saved
    return wire.PromiseCounts(
        open=sum(not each.is_broken for each in saved.open.values()),
        kept=saved.kept,
        broken=saved.broken,
        void=saved.void,
    )


def scores(book: EtaBook, current: str, now_s: float) -> Iterator[wire.EtaScoreView]:
    """How well each policy's intervals held; the policy in force first, with those that are over already."""
    for policy in sorted({*book.pools.errors, current}, key=lambda name: (name != current, name)):
        for kind in ("submission", "revisit"):
            errors = book.pools.errors_of(policy, kind)
            missed = book.overdue(kind, now_s) if policy == current else 0
            whole = count_missed(score(errors), missed)
            newest = score(errors, last=max(0, HITS_OF - missed))
            yield wire.EtaScoreView(
                policy=policy,
                kind=kind,
                current=policy == current,
                predictions=whole.predictions,
                uncalibrated=whole.uncalibrated,
                coverage_80=whole.coverage_80,
                hit_rate_100=count_missed(newest, min(HITS_OF, missed)).coverage_80,
                median_bias=whole.median_bias,
                median_abs_error=whole.median_abs_error,
                width_over_jct=whole.width_over_jct,
            )


def times_of(
    told: ToldInterval | None, has_median: bool, at_s: float, now: Now, *, is_limit: bool = False
) -> wire.EtaTimes | None:
    """The times of an interval that was told. `at_s`: when it was told. `is_limit`: nothing
    is known but its last time, that of a time limit."""
    if told is None:
        return None
    p10_s, p50_s, p90_s = (at_s + each for each in (told.told.p10_s, told.told.p50_s, told.told.p90_s))
    is_corrected = not math.isclose(told.told.p50_s, told.raw.p50_s)
    return wire.EtaTimes(
        p10_at=now.utc(max(now.now_s, p10_s)),
        p50_at=_ahead(p50_s, now) if has_median else None,
        p90_at=_ahead(p90_s, now),
        is_overdue=p90_s < now.now_s,
        is_spread_known=is_corrected or p90_s - p10_s >= SPREAD_S_MIN,
        is_limit=is_limit,
    )


def end_times(eta: JobEta, at_s: float, now: Now) -> wire.EtaTimes | None:
    """The times of a job's end that were told at `at_s`."""
    return times_of(eta.finish, eta.is_length_known, at_s, now, is_limit=eta.is_limit)


def _ahead(at_s: float, now: Now) -> str | None:
    return now.utc(at_s) if now.now_s <= at_s < math.inf else None


def basis(phase: Phase, eta: JobEta, answer: EtaAnswer) -> str:
    """What an interval rests on, or why there is none."""
    if phase is Phase.HELD:
        return "unknown: it is held"
    if eta.finish is None:
        if not eta.is_length_known:
            return "unknown: nothing tells how long it runs; --expect or --iterations would say it"
        return "unknown: no device takes it, or nothing tells how long those run that it waits for"
    parts = [f"{answer.count} roll-outs of {answer.policy}"]
    if not eta.is_length_known:
        parts.append("its length is unknown: as those of other jobs here")
    if eta.is_limit:
        parts[-1] = "its length is unknown: only its time limit is"
    if eta.start is None and not eta.is_length_known:
        return "; ".join(parts)  # Past errors say nothing of such an end.
    if eta.is_calibrated:
        parts.append(f"corrected by the last {eta.errors} errors")
    else:
        parts.append(f"uncalibrated: {eta.errors} of {ENOUGH} outcomes")
    return "; ".join(parts)


def _nothing(job: Job, answer: EtaAnswer) -> str:
    if job.phase is Phase.HELD:
        return "unknown: it is held"
    return "its end is being worked out" if answer.count else "its end is not worked out yet"


def ahead_reasons(
    core: ReadingCore, board: EtaBoard, job: Job, now: Now, line: QueueStanding
) -> list[Reason]:
    """Who is ahead of a job that waits, and what would have to happen first."""
    if job.phase is not Phase.QUEUED:
        return []
    view, lines = core.state.engine.ledger, list[Reason]()
    promise = core.state.engine.promises.saved.open.get(job.job_id)
    if promise is not None and promise.kept is not None:
        names, in_s = ", ".join(promise.kept.devices), max(0.0, promise.kept.from_s - now.now_s)
        lines.append(because("promise-held", names, round(in_s)))
    ahead = [other.job_id for other in line.list_ahead(job)]
    if ahead:
        lines.append(because("ahead", _job_names(ahead)))
    missing = job.spec.size - view.free.everywhere
    if missing > 0:
        # Jobs that are ahead get devices first.
        missing += sum(view.jobs[other_id].spec.size for other_id in ahead)
        lines += _first_to_leave(view, board, missing, now)
    return lines


def _first_to_leave(view: View, board: EtaBoard, missing: float, now: Now) -> list[Reason]:
    """Who has to leave so that this many more devices become free; empty where no job holds devices."""
    leaving: list[tuple[float, JobId, float]] = []
    for other in view.running.jobs_by_end():
        end = board.interval(other)
        leaving.append((math.inf if end is None else end.p50_s, other.job_id, other.devices_due))
    first: list[JobId] = []
    at_s = now.now_s
    for end_s, other_id, held in sorted(leaving):
        if missing <= 0:
            break
        first.append(other_id)
        missing, at_s = missing - held, end_s
    if not first:
        return []
    if missing > 0:
        return [because("leave-first", _job_names(first), "and some of those ahead of it have", "")]
    when = f", about {ago(at_s - now.now_s).removesuffix(' ago')} from now" if math.isfinite(at_s) else ""
    when = when if at_s > now.now_s else ""
    has = "has" if len(first) == 1 else "have"
    return [because("leave-first", _job_names(first), has, when)]


def _job_names(job_ids: list[JobId]) -> str:
    more = f" and {len(job_ids) - AHEAD_SHOWN} more" if len(job_ids) > AHEAD_SHOWN else ""
    return ("job " if len(job_ids) == 1 else "jobs ") + ", ".join(job_ids[:AHEAD_SHOWN]) + more
