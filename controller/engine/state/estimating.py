"""How long a job will still take, and what it needs: what the user said, what was measured, what others took.

Sources in the order of trust at arrival: the user's `--expect` > iterations x profiled step time > what the
user's jobs with the same command took > steps and step time of one of its kind > what those of its sweep,
with other numbers, of its program took (`knowledge/families.py`) > unknown. Once the job runs and says how
many iterations it has, its measured step time takes over; without `--expect` so do the steps that were seen
in its script's loops.

Rule: an estimate that rests on jobs like it has a spread (`low_s`, `high_s`). It follows them: whenever one
ends, and when the job outlives it, it is judged anew by what it has had.

Rule: what rests on nothing about the job (`GUESS`) orders a queue, is shown as a guess, and is no
reason to share (`Job.known_left_s`).

Rule: a job's memory is known if it was declared or measured; until then no job shares a device with it. A
profile that is learned while its job runs alone replaces what was planned for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import NamedTuple, TypeVar

import msgspec

from cotenant.controller import domain, knowledge
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.state.ledger import Estimates, Ledger
from cotenant.controller.engine.state.records import UNSPREAD, Spread
from cotenant.controller.engine.state.siblings import Siblings
from cotenant.controller.performance import Profile, SpeedCurve, curve_of, modelled_from, step_s

T = TypeVar("T")
KEPT_PER_FAMILY = 32
FAMILIES_KEPT = 4_000
LAG_REPORTS = 31
LAG_S = 3.1
"""An agent reports the median of so many step times; it samples one every tenth of a second, or every
step."""
JUDGED_AGAIN = 0.5
"""A job of unknown length is judged again when it has had so much more."""
SOONEST_S = 1.0
NEWS_RATIO = 0.05
"""What is expected of a waiting job is left as it is while it changes by less."""
OVERRUN_RATIO = 0.1
"""A job past its estimate is expected to need this share of what it has had."""


class ExpectedLeft(NamedTuple):
    """Training seconds that a job has left, and where the number comes from."""

    left_s: float
    source: str
    spread_s: Spread = UNSPREAD
    """A tenth of such jobs need less, a tenth more; None: not known."""


def estimate_arrival(
    estimates: Estimates,
    spec: domain.JobSpec,
    profile: Profile | None = None,
    siblings: Siblings | None = None,
) -> ExpectedLeft:
    """What is expected of a new job. `profile`: what is known of it. `siblings`: unfinished jobs."""
    found = _length_at_arrival(estimates, spec, profile, siblings)
    if spec.budget_s is not None and (found.source == domain.GUESS or found.left_s > spec.budget_s):
        return ExpectedLeft(spec.budget_s, "budget")
    return found


def first_estimate(ledger: Ledger, spec: domain.JobSpec, profile: Profile | None) -> domain.JobEstimate:
    """What is expected of a new job, and of its first load and pause."""
    left_s, source, (low_s, high_s) = estimate_arrival(ledger.estimates, spec, profile, ledger.siblings)
    load_s, pause_s = estimate_overheads(ledger.estimates, spec)
    return domain.JobEstimate(
        remaining_s=left_s, source=source, low_s=low_s, high_s=high_s, load_s=load_s, pause_s=pause_s
    )


def _length_at_arrival(
    estimates: Estimates, spec: domain.JobSpec, profile: Profile | None, siblings: Siblings | None
) -> ExpectedLeft:
    profile = profile if profile is not None else spec.profile
    if spec.expected_s is not None:
        return ExpectedLeft(spec.expected_s, "user")
    if spec.iterations is not None and profile is not None:
        one = _whole_step_s(spec, profile)
        if one is not None:
            return ExpectedLeft(spec.iterations * one, "profile")
    family = knowledge.family_of(spec)
    level = _nearest(estimates, family)
    alike = None if level is None else _by_siblings(estimates, spec, family, level, 0.0, siblings)
    if alike is not None and family.command in estimates.by_command:
        return alike
    if profile is not None and profile.total_steps is not None:
        one = _whole_step_s(spec, profile)
        if one is not None:
            return ExpectedLeft(profile.total_steps * one, "like job")
    return alike or ExpectedLeft(domain.left_of_unknown_s(0.0), domain.GUESS)


def _nearest(estimates: Estimates, family: knowledge.Family) -> int | None:
    """The narrowest likeness of which a run has ended."""
    taken = estimates.by_command
    level = next((level for level, key in enumerate(family) if key in taken), None)
    if level == 0 and len(taken.get(family.sweep, ())) >= len(taken[family.command]):
        return 1  # They are the same runs, or more.
    return level


def _by_siblings(
    estimates: Estimates,
    spec: domain.JobSpec,
    family: knowledge.Family,
    level: int,
    had_s: float,
    siblings: Siblings | None,
) -> ExpectedLeft:
    """What is left of a job that has had `had_s`, as runs that are like it to this level took."""
    ended_s = estimates.by_command[family[level]]
    running_s = () if siblings is None else siblings.trained_s(family, level, spec.job_id)
    likely_s, low_s, high_s = knowledge.left_s(ended_s, running_s, had_s)
    return ExpectedLeft(likely_s, knowledge.runs_in_words(level, len(ended_s)), (low_s, high_s))


def _whole_step_s(spec: domain.JobSpec, profile: Profile) -> float | None:
    """The step time of the whole batch; without the batch's size, as it was measured."""
    batch = profile.batch.rows if spec.batch_size is None else spec.batch_size
    known = None if batch is None else step_s(profile, batch, 1, spec.gang)
    return profile.step_s if known is None else known


def steps_in_all(job: domain.Job) -> tuple[int | None, str]:
    """All steps, and the source: declared, else seen in the script's loops where the user has declared no
    time."""
    if job.spec.iterations is not None or job.spec.expected_s is not None:
        return job.spec.iterations, "measured"
    return job.progress.total_steps, "loops"


def estimate_overheads(estimates: Estimates, spec: domain.JobSpec) -> tuple[float, float]:
    """ExpectedLeft load and pause seconds of a new job: said > its family's > any command's > a default."""
    load_s, pause_s = spec.load_s, spec.pause_s
    if load_s is None:
        launched = _of_nearest(estimates.launch_kinds, spec)
        seen_s = _of_nearest(estimates.warm_loads if launched == "warm" else estimates.loads, spec)
        load_s = median(seen_s) if seen_s else domain.LOAD_S
    if pause_s is None:
        seen_s = _of_nearest(estimates.pauses, spec)
        pause_s = median(seen_s) if seen_s else domain.PAUSE_S
    return load_s, pause_s


def _of_nearest(seen: Mapping[str, T], spec: domain.JobSpec) -> T | None:
    """What was seen of the narrowest likeness of which anything was, else of all commands."""
    keys = (*filter(None, knowledge.family_of(spec)), "") if seen else ()
    return next((seen[key] for key in keys if key in seen), None)


def learn_load(ledger: Ledger, job: domain.Job, load_s: float) -> None:
    """A load has ended with a first step: predicts the job's next load, and those of jobs like it. Warm and
    cold loads say nothing of each other."""
    estimates = ledger.estimates
    job.estimate.load_s = load_s
    family = knowledge.family_of(job.spec)
    _keep(estimates.warm_loads if job.attempt.launched == "warm" else estimates.loads, family, load_s, "")
    if job.attempt.launched:
        for key in (*filter(None, family), ""):
            estimates.launch_kinds.pop(key, None)
            estimates.launch_kinds[key] = job.attempt.launched
        _bound(estimates.launch_kinds)


def learn_pause(ledger: Ledger, job: domain.Job) -> None:
    """A job has saved and left."""
    if job.spec.pause_s is None:
        pause_s = ledger.now_s - job.phase_since_s
        job.estimate.pause_s = pause_s
        _keep(ledger.estimates.pauses, knowledge.family_of(job.spec), pause_s, "")


def _keep(seen: dict[str, list[float]], family: knowledge.Family, spent_s: float, *more: str) -> None:
    """Keeps what something took for a job's family, and under further keys."""
    for key in (*filter(None, family), *more):
        seen[key] = [*seen.pop(key, ()), spent_s][-KEPT_PER_FAMILY:]
    _bound(seen)


def _bound(seen: dict[str, T]) -> None:
    while len(seen) > FAMILIES_KEPT:
        del seen[next(key for key in seen if key)]


def learn_duration(ledger: Ledger, job: domain.Job) -> None:
    """Keeps a finished job's run time for those that come after it, and judges anew those that are here."""
    run_s = job.ran_s(ledger.now_s)
    if job.spec.gpus_max > job.spec.gpus_min:  # As if it had had gpus_min all the time.
        run_s = job.progress.step * (job.measured.solo_step_s or 0.0)
    if run_s <= 0:
        return
    family = knowledge.family_of(job.spec)
    _keep(ledger.estimates.by_command, family, run_s)
    ledger.siblings.remove(job)
    _judge_siblings(ledger, family)


def _judge_siblings(ledger: Ledger, family: knowledge.Family) -> None:
    """A job has ended: those like it that have never started are expected to take as long as its like, those
    that have begun what is left given what they have had."""
    known: dict[str, ExpectedLeft] = {}
    for theirs, other in ledger.siblings.members(family.program):
        level = _nearest(ledger.estimates, theirs)
        if level is None or theirs[level] != family[level] or not _follows(other):
            continue
        is_new = other.attempt.number == 0
        found = known.get(theirs[level]) if is_new else None
        if found is None:
            found = _left_of(ledger, other)
            assert found is not None
        if is_new:
            known[theirs[level]] = found
        before_s = other.estimate.remaining_s or 0.0
        is_other = found.source != other.estimate.source or not is_new
        if is_other or abs(found.left_s - before_s) > NEWS_RATIO * before_s:
            ledger.records.note_progress(other, other.progress.step, *found)


def _follows(job: domain.Job) -> bool:
    """Whether nothing better than jobs like it, or than a guess, tells the job's length."""
    return job.estimate.is_guess or job.estimate.low_s is not None


def _left_of(ledger: Ledger, job: domain.Job) -> ExpectedLeft | None:
    """What is left of a job as its like took, given what it has had; all of that too, if it begins anew."""
    had_s, family = job.ran_s(ledger.now_s), knowledge.family_of(job.spec)
    level = _nearest(ledger.estimates, family)
    if level is None:
        return None
    found = _by_siblings(ledger.estimates, job.spec, family, level, had_s, ledger.siblings)
    if job.phase in domain.ON_DEVICES or job.progress.checkpoints:
        return found
    low_s, high_s = (None if each is None else each + had_s for each in found.spread_s)
    return ExpectedLeft(found.left_s + had_s, found.source, (low_s, high_s))


def learn_progress(ledger: Ledger, job: domain.Job, event: ev.ProgressSeen) -> None:
    """Update what is expected of a job on devices from a step count and step time."""
    now_s, step_s = ledger.now_s, event.step_s
    remaining_s, source = job.remaining_now_s(now_s), None
    job.progress.total_steps = event.total_steps or job.progress.total_steps
    ledger.records.see_batch(job, event.batch)
    if step_s is None or job.placement is None:
        ledger.records.note_progress(job, event.step, remaining_s)
        return
    solo_s, is_alone = (
        job.measured.solo_step_s,
        not ledger.holdings.partners(job) and is_settled(ledger, job, step_s),
    )
    if is_alone:
        _learn_curve(ledger, job, step_s)
        solo_s = step_s / job.split_slowdown(job.placement.accumulation_steps)
    elif event.alone_step_s is not None:
        solo_s = event.alone_step_s / job.split_slowdown(job.placement.accumulation_steps)
    pace_s = step_s if solo_s is None else solo_s
    total, known_by = steps_in_all(job)
    if total is not None and (total > event.step or job.spec.iterations is not None):
        remaining_s, source = max(0, total - event.step) * pace_s, known_by
    elif remaining_s == 0.0 and _follows(job):
        if (found := _left_of(ledger, job)) is not None:
            ledger.records.expect(job, *found)
            remaining_s = found.left_s
    elif remaining_s == 0.0:
        remaining_s = OVERRUN_RATIO * (job.spent.run_s + now_s - job.phase_since_s)
        source = f"{job.estimate.source.removesuffix(domain.OVERRUN)}{domain.OVERRUN}"
    ledger.records.learn_pace(job, step_s, solo_s, max(step_s / pace_s, 1e-6))
    ledger.records.note_progress(job, event.step, remaining_s, source)
    if is_alone or event.alone_step_s is not None:
        _compare(ledger, job)


def judge_again(ledger: Ledger, job: domain.Job) -> float | None:
    """Judges a running job of which nothing but its siblings, or nothing at all, tells the length by what it
    has had. Returns in how many seconds to do so again; None: its length is known."""
    if not _follows(job) or job.phase is not domain.Phase.RUNNING:
        return None
    found = _left_of(ledger, job) or ExpectedLeft(
        domain.left_of_unknown_s(job.ran_s(ledger.now_s)), domain.GUESS
    )
    ledger.records.note_progress(job, job.progress.step, *found)
    return max(SOONEST_S, found.left_s if found.spread_s != UNSPREAD else JUDGED_AGAIN * found.left_s)


def _learn_curve(ledger: Ledger, job: domain.Job, step_s: float) -> None:
    """Takes in the step time of an elastic job on its present number of devices."""
    if job.measured.curve is None or job.placement is None:
        return
    curve, curves = job.measured.curve.add_seen(len(job.placement.devices), step_s), ledger.estimates.curves
    job.measured.curve = curve
    if len(curve.measured) > 1:
        curves[knowledge.family_of(job.spec).command] = curve.measured
        if len(curves) > FAMILIES_KEPT:
            del curves[next(iter(curves))]


def curve_at_arrival(ledger: Ledger, spec: domain.JobSpec) -> SpeedCurve:
    """The speed curve of an elastic job: measured by `cotenant profile`, else as that of its like scaled,
    else assumed."""
    given = spec.profile.steps_by_devices if spec.profile is not None else ()
    return curve_of(
        given or profiled_steps(ledger, spec),
        ledger.estimates.curves.get(knowledge.family_of(spec).command, ()),
    )


def profiled_steps(ledger: Ledger, spec: domain.JobSpec) -> tuple[tuple[int, float], ...]:
    """Seconds of a step of an elastic job, from the profiles of its like with as many workers.

    A worker of those takes one batch a step, one of this takes so many as follow from its share: all but the
    last without a sync, so in the time of a batch on one device (Castor eq. 3).
    """
    base, known = knowledge.base_key(spec), dict[int, float]()
    for each in ledger.profiles.known.values() if base else ():
        point = each.profile.point_at(1)
        if each.base == base and each.hosts == 1 and each.is_complete and point is not None:
            known[each.gpus] = point.step_s
    alone_s = known.get(1)
    return tuple(
        (devices, (spec.micro_batches(devices) - 1) * min(alone_s or step_s, step_s) + step_s)
        for devices, step_s in sorted(known.items())
        if spec.takes(devices) and spec.gpus_max % devices == 0
    )


def is_settled(ledger: Ledger, job: domain.Job, step_s: float) -> bool:
    """Whether the job made all steps behind its reported step time beside its present co-tenants.

    It is a median over the last reports: just after a co-tenant has begun to train, or has left, it is still
    of the time before.
    """
    present = ledger.holdings.partners(job)
    others = [other for other_id in job.co_tenants if (other := ledger.jobs.get(other_id)) is not None]
    # One that trains elsewhere by now left long before it began to.
    concerned = [o for o in others if o.phase is not domain.Phase.RUNNING or o.job_id in present]
    changed_s = max((other.phase_since_s for other in concerned), default=-float("inf"))
    return ledger.now_s - changed_s >= max(LAG_S, LAG_REPORTS * step_s)


def observe_sharing(ledger: Ledger, job: domain.Job) -> None:
    """A measured step time beside exactly one co-tenant is an observation of that pair, one way.

    That of a job that never ran alone, and has no profile, is kept until it runs alone: often when its
    co-tenant has left.
    """
    partners = ledger.holdings.partners(job)
    if len(partners) != 1 or job.attempt.step_s is None or job.placement is None:
        return
    partner = ledger.jobs[partners[0]]
    if (
        job.phase is not domain.Phase.RUNNING
        or partner.phase is not domain.Phase.RUNNING
        or partner.attempt.idle is not None
    ):
        return  # Beside an idle job it is as fast as alone.
    if not is_settled(ledger, job, job.attempt.step_s):
        return
    whole_s = job.attempt.step_s / job.split_slowdown(job.placement.accumulation_steps)
    if job.measured.solo_step_s is not None:
        ledger.pairs.observe(job, partner, whole_s / job.measured.solo_step_s)
    else:
        before = job.measured.uncompared.get(partner.job_id, domain.SharedPace(step_s=0.0, reports=0))
        job.measured.uncompared[partner.job_id] = before.and_one(whole_s)
        ledger.pairs.not_compared(job, partner)


def _compare(ledger: Ledger, job: domain.Job) -> None:
    """Uses what was measured beside others before the job's pace alone was known. It counts as many
    observations as there were reports, up to a verdict's worth: it is one comparison, with one pace alone."""
    assert job.measured.solo_step_s is not None
    for partner_id, pace in job.measured.uncompared.items():
        partner = ledger.jobs.get(partner_id)
        for _ in range(min(pace.reports, knowledge.OBSERVATIONS) if partner is not None else 0):
            assert partner is not None
            ledger.pairs.observe(job, partner, pace.step_s / job.measured.solo_step_s)
    job.measured.uncompared.clear()


def blame_memory(ledger: Ledger, job: domain.Job) -> domain.Reason | None:
    """A job has run out of device memory: if it shared, or was capped for others, that is why, and the pair
    is not made again. Blamed is the one that died: a newcomer is capped at what was planned for it, so it
    needed more than that; so did an incumbent that outgrew its own plan.

    Returns why it goes on later, alone; None if it had the whole device, or its part of one, for itself: then
    its program is too large.
    """
    assert job.placement is not None
    if job.placement.fraction < 1.0:
        return None  # It had what it asked for.
    profile = job.measured.profile
    if profile is not None and profile.runs_alike:
        first, hosts = job.placement.devices[0], len(ledger.holdings.gang(job.placement.devices))
        like = knowledge.like_key(job.spec, hosts, ledger.devices[first].type)
        ledger.profiles.note_outgrown(like, job.placement.memory_mib or 0)
    if profile is not None and modelled_from(profile, job.placement.accumulation_steps):
        bound = msgspec.structs.replace(profile, static_mib=None)
        ledger.profiles.revise(profile, bound)
        ledger.records.refine_profile(job, bound)
        return domain.because("outmodelled", job.placement.memory_mib or 0, job.placement.accumulation_steps)
    beside = ledger.holdings.partners(job) or job.placement.beside
    known = [ledger.jobs[other_id] for other_id in beside if other_id in ledger.jobs]
    if not known:
        if not job.placement.capped:
            return None
        job.outgrown = True
        return domain.because("outgrown", job.placement.memory_mib or 0)
    for partner in known:
        ledger.pairs.note_crowding(job, partner)
    job.counts.crowded += 1
    planned = job.placement.memory_mib
    was = "capped at" if job.placement.beside else "planned with"
    plan = f"{was} {planned} MiB" if planned is not None else "nobody knew its memory"
    return domain.because("crowded-out", ", ".join(partner.job_id for partner in known), plan)


def remaining_from(ledger: Ledger, job: domain.Job, step: int) -> float | None:
    """ExpectedLeft training seconds when the job goes on from an earlier step (work since then is lost)."""
    total, _ = steps_in_all(job)
    if total is not None and job.measured.solo_step_s is not None:
        return (total - step if total > step else 0) * job.measured.solo_step_s
    if job.estimate.is_guess:
        return domain.left_of_unknown_s(job.ran_s(ledger.now_s))
    if step == 0:
        return estimate_arrival(ledger.estimates, job.spec).left_s
    left_s = job.remaining_now_s(ledger.now_s)
    pace_s = job.measured.solo_step_s or job.attempt.step_s or 0.0
    return None if left_s is None else left_s + max(0, job.progress.step - step) * pace_s


def known_profile(ledger: Ledger, spec: domain.JobSpec, before: Profile | None = None) -> Profile | None:
    """Said with the submission, else kept from a like job of the same user on the same type of device.

    None where the job could be given several types: what was measured on one does not hold on another; nor
    on a part of it. None as well if it is what the job was given before.
    """
    if spec.profile is not None or spec.profiling == "only" or not spec.code_sha256:
        return spec.profile
    if spec.gpu_fraction < 1.0:
        return None
    every = (device.type for device in ledger.devices.values())
    types = {spec.gpu_type} if spec.gpu_type else {type for type in every if domain.is_type_for("", type)}
    if len(types) != 1:
        return None
    hosts, device_type = max(1, spec.nodes), types.pop()
    key = knowledge.key_of(spec, hosts, device_type)
    found = ledger.profiles.use(key, before)
    if found is not None or (key in ledger.profiles.known and before is not None and not before.runs_alike):
        return found
    like = knowledge.like_key(spec, hosts, device_type)
    outgrown_mib = ledger.profiles.outgrown_mib.get(like, 0)
    alike = knowledge.profile_of_like(spec.job_id, ledger.profiles.alike(like), outgrown_mib)
    return None if alike == before else alike


def give_profile(ledger: Ledger, job: domain.Job, profile: Profile) -> None:
    """Gives a waiting job what was meanwhile measured of its kind, or of jobs like it."""
    ledger.records.learn_profile(job, profile, given=True)
    if job.spec.iterations is None and profile.total_steps is None:
        return  # It tells no length.
    ledger.records.expect(job, *estimate_arrival(ledger.estimates, job.spec, profile, ledger.siblings))


def learn_profile(ledger: Ledger, job: domain.Job, event: ev.ProfileLearned) -> None:
    """Take in what was measured."""
    placement = job.placement
    hosts = max(1, job.spec.nodes) if placement is None else len(ledger.holdings.gang(placement.devices))
    key = knowledge.key_of(job.spec, hosts, event.device_type)
    profile = _with_known(ledger, job, event, key)
    ledger.records.learn_profile(job, profile)
    if placement is not None:
        needed = job.needed_mib(placement.accumulation_steps)
        unclaimed = all(ledger.holdings.claimed_by(device_id) is None for device_id in placement.devices)
        is_alone = placement.fraction == 1.0 and not ledger.holdings.partners(
            job
        )  # A part's memory is its limit.
        if needed is not None and unclaimed and is_alone:
            ledger.records.plan_memory(job, needed)
    if key:
        _keep_profile(ledger, job, event, profile, hosts, key)
    _give_its_like(ledger, job)


def _with_known(ledger: Ledger, job: domain.Job, event: ev.ProfileLearned, key: str) -> Profile:
    """What was measured, beside what is known: an attempt was measured at its own s alone, its like perhaps
    at others. What none was measured at is modelled with what parts cost elsewhere."""
    before, measured = job.measured.profile, event.profile
    if before is not None and not before.runs_alike and before.points and measured.point_at(1) is None:
        known = before.add_points(measured.points) if measured.points else before
        return msgspec.structs.replace(known, accumulates=False) if measured.accumulates is False else known
    stored = ledger.profiles.known.get(key)
    if stored is not None and measured.points:
        others = stored.profile.points
        missing = tuple(each for each in others if measured.point_at(each.accumulation_steps) is None)
        measured = measured.add_points(missing) if missing else measured
    if len(measured.measured_s) != 1:
        return measured
    return msgspec.structs.replace(measured, part_share=ledger.profiles.part_share(event.device_type))


def learn_whole_life(ledger: Ledger, job: domain.Job) -> None:
    """A job has finished alone within the time of a profile: a second look at its kind would show no more. A
    batch is split only in ways that there was time to try."""
    if job.attempt.number != 1 or job.co_tenants:
        return
    if ledger.profiles.complete(job.job_id):
        _give_its_like(ledger, job)


def _give_its_like(ledger: Ledger, job: domain.Job) -> None:
    """Gives it to jobs of its kind that have never started: the rest of a sweep, mostly, also those that its
    limit keeps out of the queue."""
    mine = job.spec
    if not mine.code_sha256:
        return
    alike = [
        other
        for other in ledger.jobs.values()
        if other.phase in domain.WAITING
        and other.spec.profile is None
        and other.attempt.number == 0
        and (other.spec.user, other.spec.code_sha256) == (mine.user, mine.code_sha256)
    ]
    for other in alike:
        if (profile := known_profile(ledger, other.spec, other.measured.profile)) is not None:
            give_profile(ledger, other, profile)


def _keep_profile(
    ledger: Ledger, job: domain.Job, event: ev.ProfileLearned, profile: Profile, hosts: int, key: str
) -> None:
    spec = job.spec
    known = knowledge.StoredProfile(
        base=knowledge.base_key(spec),
        user=spec.user,
        name=spec.name,
        command=knowledge.beginning(spec.launch.argv),
        gpus=spec.gpus_min,
        hosts=hosts,
        device_type=event.device_type,
        batch_size=job.batch_size,
        profile=profile,
        learned_s=ledger.now_s,
        job_id=job.job_id,
        is_complete=event.is_complete and bool(profile.points or profile.indicators),
        numbers=knowledge.family_of(spec).numbers,
        like=knowledge.like_key(spec, hosts, event.device_type),
    )
    ledger.profiles.keep(key, known)
