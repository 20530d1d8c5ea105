"""One possible future of every job there is, and of those that will come, as rows of a simulated world.

Rule: all of it is drawn: what jobs have left, from their past (`models/eta.py`); arrivals, as consecutive
ones of the past, from a random one on. One seed, one future.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from random import Random
from statistics import median
from typing import Final

import numpy as np

from cotenant.controller import domain
from cotenant.controller.engine import Engine
from cotenant.controller.history import EtaQuestion, LengthClaim, run_s
from cotenant.controller.knowledge import PairTable, signature
from cotenant.controller.models.eta import ArrivalSeen
from cotenant.controller.models.lengths import LEFT_MIN_S, Lengths, left_of_spread_s, strata
from cotenant.controller.sim.world.jobs import STEP_S
from cotenant.controller.sim.world.run import DIES, LOADS, SAVES, TRAINS, JobRun
from cotenant.controller.sim.world.workload import Workload

OVERRUN_RATIO: Final = 0.1
"""A load or pause past its expected time is expected to take this share of it more."""
MEASURED: Final = ("measured", "loops")
"""Sources that use a job's progress: each step changes their estimate of the total."""
ENDLESS_S: Final = 1e12
"""The length of a job whose end is unknown: a finite time, so that a world can count with it."""
INSTANT: Final = -1
"""The number of a future in which nothing takes any time and nobody comes: jobs wait for the clock alone."""
COMING: Final = "~"
"""Prefix of the ids of jobs that have not come yet."""


class Drawing:
    """The source that roll-outs draw from; the same for all of them."""

    def __init__(
        self, question: EtaQuestion, claims: Mapping[domain.JobId, Sequence[LengthClaim]] | None = None
    ) -> None:
        """Collects from a question what roll-outs draw from. `claims`: used in place of the question's."""
        self.count, self._seed = question.count, question.seed
        self._claims = question.claims if claims is None else claims
        self._lengths = Lengths(question.pools, is_exact=question.is_exact)
        known = self._lengths.knows_run_times
        self._arrivals = [each for each in question.pools.arrivals if known or each.told_s is not None]
        self._left: dict[domain.JobId, list[float]] = {}

    def left_s(self, job: domain.Job, number: int, now_s: float) -> float:
        """What the job has left in one of the futures; each sees another part of its distribution."""
        if number == INSTANT:
            return LEFT_MIN_S
        drawn = self._left.get(job.job_id)
        if drawn is None:
            u = strata(Random(f"{self._seed}:{job.job_id}"), self.count)
            drawn = self._left[job.job_id] = self._draw_left_s(job, now_s, u)
        return drawn[number]

    def _draw_left_s(self, job: domain.Job, now_s: float, u: Sequence[float]) -> list[float]:
        said, left_s = job.estimate, job.known_left_s(now_s)
        if (
            said.remaining_s
            and said.low_s is not None
            and said.high_s is not None
            and said.source != domain.GUESS
        ):
            had_s = (
                max(0.0, now_s - said.remaining_at_s) / said.slowdown if job.phase is domain.RUNNING else 0.0
            )
            return left_of_spread_s(said.low_s, said.remaining_s, said.high_s, had_s, u)
        if left_s is None:
            return self._lengths.left_of_unknown_s(run_s(job, now_s), u)
        source, told_s, had_s = self._stands(job, left_s, now_s)
        return self._lengths.left_s(source, told_s, had_s, u)

    def _stands(self, job: domain.Job, left_s: float, now_s: float) -> tuple[str, float, float]:
        """The source of its estimate, the estimated total, and how much of it the job has had."""
        spent_s = run_s(job, now_s)
        claims = self._claims.get(job.job_id, ())
        source = domain.basis_of(job.estimate.source)
        claim = next((each for each in reversed(claims) if each.source == source), None)
        if left_s > 0.0 and (claim is None or source in MEASURED):
            return source, spent_s + left_s, spent_s
        if claim is None:
            return source, spent_s, spent_s
        if left_s > 0.0:
            return source, claim.told_s, max(0.0, claim.told_s - left_s)
        return source, claim.told_s, max(claim.told_s, spent_s / max(1.0, job.estimate.slowdown))

    def arrivals(self, random: Random) -> list[tuple[float, ArrivalSeen, float]]:
        """Arrivals, each with its delay and length: the past once around, from a random arrival on."""
        many = len(self._arrivals)
        if not many:
            return []
        first, after_s, coming = random.randrange(many), 0.0, []
        for place in range(many):
            arrival = self._arrivals[(first + place) % many]
            after_s += arrival.gap_s
            u = (random.random(),)
            if arrival.told_s is None:
                (length_s,) = self._lengths.left_of_unknown_s(0.0, u)
            else:
                (length_s,) = self._lengths.left_s(arrival.source, arrival.told_s, 0.0, u)
            coming.append((after_s, arrival, length_s))
        return coming


class Future:
    """The rows of one future: first the jobs that are there, in order of arrival, then those that come."""

    def __init__(self, engine: Engine, past: Drawing, number: int, seed: int) -> None:
        now_s = engine.now_s
        jobs = sorted(
            (job for job in engine.jobs.values() if job.phase not in domain.ENDED), key=lambda j: j.number
        )
        coming = [] if number == INSTANT else past.arrivals(Random(f"{seed}:arrivals:{number}"))
        self.jobs, self._specs = jobs, [arrival.spec for _, arrival, _ in coming]
        self._rows = {job.job_id: row for row, job in enumerate(jobs)}
        self._rows.update(
            (domain.JobId(f"{COMING}{place}"), len(jobs) + place) for place in range(len(coming))
        )
        self.row_of = self._rows.__getitem__
        loads_s = engine.loads_seen()
        load_s = median(loads_s) if loads_s else median(job.estimate.load_s for job in jobs)
        pause_s = median(job.estimate.pause_s for job in jobs)
        kinds = KindRatios([*(job.spec for job in jobs), *self._specs], engine.ledger.pairs)
        self.ratios = kinds
        self.workload = _columns(
            submit_s=[*[0.0] * len(jobs), *(now_s + after_s for after_s, _, _ in coming)],
            duration_s=[
                *(min(past.left_s(job, number, now_s), ENDLESS_S) for job in jobs),
                *(length_s for _, _, length_s in coming),
            ],
            load_s=[*(job.estimate.load_s for job in jobs), *(_or(s.load_s, load_s) for s in self._specs)],
            pause_s=[
                *(job.estimate.pause_s for job in jobs),
                *(_or(s.pause_s, pause_s) for s in self._specs),
            ],
            gpus=[*(job.spec.gpus for job in jobs), *(spec.gpus for spec in self._specs)],
            model=kinds.of_rows,
        )
        self.endless = frozenset(
            job.job_id for row, job in enumerate(jobs) if self.workload.duration_s[row] == ENDLESS_S
        )
        devices = engine.ledger.devices
        self.runs = [
            _run_of(job, row, kinds.of_rows[row], devices, now_s)
            for row, job in enumerate(jobs)
            if job.attempt.number or job.phase in domain.ON_DEVICES
        ]
        if number == INSTANT:
            self.workload.load_s.fill(0.0)
            self.workload.pause_s.fill(0.0)
            for run in self.runs:
                run.due_s = 0.0

    def spec(self, row: int) -> domain.JobSpec:
        place = row - len(self.jobs)
        return _rename_job(self._specs[place], domain.JobId(f"{COMING}{place}"))


def _or(known_s: float | None, otherwise_s: float) -> float:
    return otherwise_s if known_s is None else known_s


def _rename_job(spec: domain.JobSpec, job_id: domain.JobId) -> domain.JobSpec:
    values = {name: getattr(spec, name) for name in domain.JobSpec.__struct_fields__}
    values["job_id"] = job_id
    return domain.JobSpec(**values)


def _columns(
    *,
    submit_s: list[float],
    duration_s: list[float],
    load_s: list[float],
    pause_s: list[float],
    gpus: list[int],
    model: list[int],
) -> Workload:
    n = len(submit_s)
    return Workload(
        name="a future",
        synthetic=True,
        submit_s=np.array(submit_s),
        duration_s=np.array(duration_s),
        expected_s=np.array(duration_s),
        gpus=np.array(gpus, np.int32),
        load_s=np.array(load_s),
        pause_s=np.array(pause_s),
        model=np.array(model, np.int16),
        models=(),
        hp=np.zeros(n, np.bool_),
        organisation=np.full(n, -1, np.int16),
        organisations=(),
        excluded={},
    )


def _run_of(
    job: domain.Job, row: int, kind: int, devices: Mapping[domain.DeviceId, domain.Device], now_s: float
) -> JobRun:
    """The state of a job that was launched before the future begins; its work so far is done."""
    run = JobRun(row, job.job_id, kind, now_s)
    run.number = job.attempt.number
    run.step_s = job.measured.solo_step_s or job.attempt.step_s or STEP_S
    run.steps_per_s = 1.0 / run.step_s
    if job.phase not in domain.ON_DEVICES:
        run.steps_before = job.progress.step
        return run
    run.steps_before = max(job.progress.step, _step_now(job, run.step_s, now_s))
    run.is_unsaved = run.steps_before > job.durable_step
    run.gang, run.launched_s = _gang(job, devices), now_s
    run.fraction = 1.0 if job.placement is None else job.placement.fraction
    spent_s = now_s - job.phase_since_s
    if job.phase is domain.RUNNING:
        run.doing = TRAINS
        if job.spec.is_elastic:
            run.slowdown = job.estimate.slowdown  # On the devices that it has.
    elif job.phase is domain.LOADING:
        run.doing, run.due_s = LOADS, _due_s(job.estimate.load_s, spent_s)
    elif job.phase is domain.CHECKPOINTING:
        run.doing, run.due_s = SAVES, _due_s(job.estimate.pause_s, spent_s)
    else:
        run.doing = DIES  # Without a save that is a matter of moments.
    return run


def _step_now(job: domain.Job, step_s: float, now_s: float) -> int:
    """The job's present step, perhaps beyond the last report; the estimate of what is left follows from
    it."""
    total, left_s = job.spec.iterations or job.progress.total_steps, job.known_left_s(now_s)
    if total is not None and left_s is not None and job.measured.solo_step_s is not None:
        return total - int(left_s / step_s)
    spent_s = now_s - job.phase_since_s if job.phase is domain.RUNNING else 0.0
    return job.attempt.start_step + int(spent_s / (step_s * max(1.0, job.estimate.slowdown)))


def _due_s(expected_s: float, spent_s: float) -> float:
    return expected_s - spent_s if spent_s < expected_s else OVERRUN_RATIO * spent_s


def _gang(job: domain.Job, devices: Mapping[domain.DeviceId, domain.Device]) -> tuple[domain.GangMember, ...]:
    """The parts of a job's gang on the hosts where its processes may still be."""
    assert job.placement is not None
    parts: dict[str, list[domain.DeviceId]] = {}
    for device_id in job.placement.devices:
        parts.setdefault(devices[device_id].host_id, []).append(device_id)
    first, members = 0, []
    for host_id in job.attempt.hosts_left:
        here = tuple(parts[host_id])
        members.append(domain.GangMember(host_id=host_id, devices=here, first_rank=first))
        first += len(here)
    return tuple(members)


class KindRatios(dict[int, "KindRatioRow"]):
    """How much the kinds of jobs slow each other down, as far as the engine knows; asked for when two of
    them meet."""

    def __init__(self, specs: Sequence[domain.JobSpec], pairs: PairTable) -> None:
        super().__init__()
        kinds: dict[str, int] = {}
        self.of_rows = [kinds.setdefault(signature(spec), len(kinds)) for spec in specs]
        first = dict(zip(reversed(self.of_rows), reversed(specs), strict=True))
        self._like = {kind: _like(spec) for kind, spec in islice(first.items(), len(first))}
        self._pairs = pairs

    def __missing__(self, kind: int) -> KindRatioRow:
        row = self[kind] = KindRatioRow(self._like[kind], self._like, self._pairs)
        return row


class KindRatioRow(dict[int, float]):
    """The ratios of one kind beside each other kind."""

    def __init__(self, job: domain.Job, like: Mapping[int, domain.Job], pairs: PairTable) -> None:
        super().__init__()
        self._job, self._others, self._pairs = job, like, pairs

    def __missing__(self, other: int) -> float:
        xi = self[other] = max(1.0, self._pairs.interference(self._job, self._others[other]).first)
        return xi


def _like(spec: domain.JobSpec) -> domain.Job:
    """A job of this kind, to ask the engine about."""
    reason = domain.because("submitted", "")
    return domain.Job(
        spec=spec,
        number=0,
        submitted_s=0.0,
        reason=reason,
        measured=domain.JobMeasurements(profile=spec.profile),
    )
