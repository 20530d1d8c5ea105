"""How long a job will still take: what the user said, what was measured, what others took.

Sources in the order of trust at arrival: the user's `--expect` > iterations x profiled step time >
median of the user's jobs with the same command > the cluster's median > unknown. Once the job runs and
says how many iterations it has, its measured step time takes over.
"""

from __future__ import annotations

from statistics import median

from cotenant.controller.domain.events import ProgressSeen
from cotenant.controller.domain.job import LOAD_S, PAUSE_S, Job, JobSpec, Phase, SharedPace
from cotenant.controller.domain.pairs import OBSERVATIONS, signature
from cotenant.controller.domain.perf import Profile, step_s
from cotenant.controller.domain.reasons import Reason, because
from cotenant.controller.engine.ledger import Estimates, Ledger

KEPT_PER_COMMAND = 20
KEPT_RECENT = 200
COMMANDS_KEPT = 2_000
LAG_REPORTS = 31
LAG_S = 3.1
"""An agent tells the median over so many reports; one comes every tenth of a second, or every step."""
OVERRUN_RATIO = 0.1
"""A job past its estimate is expected to need this share of what it has had."""


def estimate_arrival(
    estimates: Estimates, spec: JobSpec, profile: Profile | None = None
) -> tuple[float | None, str]:
    """Expected training seconds of a new job, and where the number comes from. `profile`: what is known of
    it."""
    profile = profile if profile is not None else spec.profile
    if spec.expected_s is not None:
        return spec.expected_s, "user"
    if spec.iterations is not None and profile is not None and spec.batch_size is not None:
        one = step_s(profile, spec.batch_size, 1, spec.gang)
        if one is not None:
            return spec.iterations * one, "profile"
    same = estimates.by_command.get(_key(spec))
    if same:
        return median(same), "same command"
    if estimates.recent:
        return median(estimates.recent), "cluster median"
    return None, "none"


def estimate_overheads(estimates: Estimates, spec: JobSpec) -> tuple[float, float]:
    """Expected load and pause seconds of a new job: said > same command > any command > a default."""
    load_s, pause_s = spec.load_s, spec.pause_s
    launched = estimates.launched.get(_key(spec)) or estimates.launched.get("")
    loads = estimates.warm_loads if launched == "warm" else estimates.loads
    return (
        load_s if load_s is not None else _expected(loads, spec, LOAD_S),
        pause_s if pause_s is not None else _expected(estimates.pauses, spec, PAUSE_S),
    )


def _expected(seen: dict[str, list[float]], spec: JobSpec, default: float) -> float:
    if not seen:
        return default
    known = seen.get(_key(spec)) or seen.get("")
    return median(known) if known else default


def learn_load(estimates: Estimates, job: Job, load_s: float) -> None:
    """A load has ended with a first step: what the job's next one, and those of its like, should take. Warm
    and cold ones have nothing to say about each other."""
    if job.spec.load_s is not None:
        return
    job.expected_load_s = load_s
    _keep(estimates.warm_loads if job.launched == "warm" else estimates.loads, job, load_s)
    if job.launched:
        for key in (_key(job.spec), ""):
            estimates.launched.pop(key, None)
            estimates.launched[key] = job.launched
        if len(estimates.launched) > COMMANDS_KEPT:
            del estimates.launched[next(iter(estimates.launched))]


def learn_pause(estimates: Estimates, job: Job, pause_s: float) -> None:
    """A job has saved and left."""
    if job.spec.pause_s is None:
        job.expected_pause_s = pause_s
        _keep(estimates.pauses, job, pause_s)


def _keep(seen: dict[str, list[float]], job: Job, spent_s: float) -> None:
    for key in (_key(job.spec), ""):
        times = seen.setdefault(key, [])
        times.append(spent_s)
        if len(times) > KEPT_PER_COMMAND:
            del times[0]
    if len(seen) > COMMANDS_KEPT:
        del seen[next(key for key in seen if key)]


def learn_duration(estimates: Estimates, job: Job, now_s: float) -> None:
    """Keep a finished job's run time for those that come after it."""
    run_s = job.run_s + (now_s - job.phase_since_s if job.phase is Phase.RUNNING else 0.0)
    if run_s <= 0:
        return
    by_command, recent, key = estimates.by_command, estimates.recent, _key(job.spec)
    same = by_command.get(key)
    if same is None:
        same = by_command[key] = []
        if len(by_command) > COMMANDS_KEPT:
            del by_command[next(iter(by_command))]
    same.append(run_s)
    if len(same) > KEPT_PER_COMMAND:
        del same[0]
    recent.append(run_s)
    if len(recent) > KEPT_RECENT:
        del recent[0]


def _key(spec: JobSpec) -> str:
    return f"{spec.user}:{signature(spec)}"


def learn_progress(ledger: Ledger, job: Job, event: ProgressSeen, now_s: float) -> None:
    """Update what is expected of a job on devices from a step count and step time. In place."""
    job.remaining_s = job.remaining_now_s(now_s)
    job.remaining_at_s = now_s
    job.step = event.step
    if event.step_s is None or job.placement is None:
        return
    job.step_s = event.step_s
    steps = job.placement.accumulation_steps
    if not ledger.partners(job) and is_settled(ledger, job, now_s):
        job.solo_step_s = event.step_s / ledger.stretch(job, steps)
        _compare(ledger, job)
    solo_s = job.solo_step_s if job.solo_step_s is not None else event.step_s
    job.slowdown = max(event.step_s / solo_s, 1e-6)
    if job.spec.iterations is not None:
        job.remaining_s = max(0, job.spec.iterations - event.step) * solo_s
        job.estimate_source = "measured"
    elif job.remaining_s == 0.0:
        job.remaining_s = OVERRUN_RATIO * (job.run_s + now_s - job.phase_since_s)
        job.estimate_source = f"{job.estimate_source.removesuffix(', overrun')}, overrun"


def is_settled(ledger: Ledger, job: Job, now_s: float) -> bool:
    """Whether the step time that a job reports is all from the company it has now.

    It is a median over the last reports: just after a co-tenant has begun to train, or has left, it is still
    of the time before.
    """
    assert job.step_s is not None
    present = ledger.partners(job)
    others = [other for other_id in job.co_tenants if (other := ledger.jobs.get(other_id)) is not None]
    # One that trains elsewhere by now left long before it began to.
    concerned = [o for o in others if o.phase is not Phase.RUNNING or o.job_id in present]
    changed_s = max((other.phase_since_s for other in concerned), default=-float("inf"))
    return now_s - changed_s >= max(LAG_S, LAG_REPORTS * job.step_s)


def observe_sharing(ledger: Ledger, job: Job) -> None:
    """A measured step time beside exactly one co-tenant is an observation of that pair, one way.

    That of a job that never ran alone, and has no profile, is kept until it runs alone: often when its
    co-tenant has left.
    """
    partners = ledger.partners(job)
    if len(partners) != 1 or job.step_s is None or job.placement is None:
        return
    partner = ledger.jobs[partners[0]]
    if job.phase is not Phase.RUNNING or partner.phase is not Phase.RUNNING:
        return
    if not is_settled(ledger, job, ledger.now_s):
        return
    whole_s = job.step_s / ledger.stretch(job, job.placement.accumulation_steps)
    if job.solo_step_s is not None:
        ledger.pairs.observe(job, partner, whole_s / job.solo_step_s)
    else:
        before = job.uncompared.get(partner.job_id, SharedPace(step_s=0.0, reports=0))
        job.uncompared[partner.job_id] = before.and_one(whole_s)
        ledger.pairs.not_compared(job, partner)


def _compare(ledger: Ledger, job: Job) -> None:
    """What was seen beside others before the job's own pace was known, now that it is. Like so many
    observations as it had reports, up to a verdict's worth: it is one comparison, with one pace alone."""
    assert job.solo_step_s is not None
    for partner_id, pace in job.uncompared.items():
        partner = ledger.jobs.get(partner_id)
        for _ in range(min(pace.reports, OBSERVATIONS) if partner is not None else 0):
            assert partner is not None
            ledger.pairs.observe(job, partner, pace.step_s / job.solo_step_s)
    job.uncompared.clear()


def blame_memory(ledger: Ledger, job: Job) -> Reason | None:
    """A job has run out of device memory: if it shared, or was capped for others, that is why, and the pair
    is not made again. Blamed is the one that died: a newcomer is capped at what was planned for it, so it
    needed more than that; so did an incumbent that outgrew its own plan.

    Returns why it goes on later, alone; None if it had the whole device for itself: then its program is too
    large.
    """
    assert job.placement is not None
    beside = ledger.partners(job) or job.placement.beside
    known = [ledger.jobs[other_id] for other_id in beside if other_id in ledger.jobs]
    if not known:
        if not job.placement.capped:
            return None
        job.outgrown = True
        return because("outgrown", job.placement.memory_mib or 0)
    for partner in known:
        ledger.pairs.crowded(job, partner)
    job.crowded += 1
    planned = job.placement.memory_mib
    was = "capped at" if job.placement.beside else "planned with"
    plan = f"{was} {planned} MiB" if planned is not None else "nobody knew its memory"
    return because("crowded-out", ", ".join(partner.job_id for partner in known), plan)


def remaining_from(estimates: Estimates, job: Job, step: int, now_s: float) -> float | None:
    """Expected training seconds when the job goes on from an earlier step (work since then is lost)."""
    if job.spec.iterations is not None and job.solo_step_s is not None:
        return max(0, job.spec.iterations - step) * job.solo_step_s
    if step == 0:
        return estimate_arrival(estimates, job.spec)[0]
    left_s = job.remaining_now_s(now_s)
    pace_s = job.solo_step_s or job.step_s or 0.0
    return None if left_s is None else left_s + max(0, job.step - step) * pace_s
