"""What the controller remembers of the past: who used the devices, which jobs have ended, what happened on
the devices in some time, and what was measured of kinds of jobs.

Rule: reading, bounded; the numbers are those of `engine.accounts`. Only what is kept of a kind can be
changed: whom it belongs to may have it forgotten, by an event, like every change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from statistics import median
from typing import Final

import msgspec

from cotenant.controller.api.attempts_shown import attempt_views
from cotenant.controller.api.moment import Now
from cotenant.controller.api.permissions import jobs_named, may_touch
from cotenant.controller.api.queries import LIMIT_MAX, LIST_MAX, Queries, cut_to_message
from cotenant.controller.api.sharing import forgotten_jobs
from cotenant.controller.api.submissions import Denied
from cotenant.controller.domain import ENDED, LOAD_S, Device, Job
from cotenant.controller.domain import events as ev
from cotenant.controller.history import ALWAYS_S, AttemptRecord, usage
from cotenant.controller.knowledge import KEY_CHARACTERS, StoredProfile, plain_words, signature
from cotenant.controller.performance import Gang
from cotenant.controller.store import Core, ReadingCore
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import profile_view, throughput_view


class AccountingRequests:
    """Questions about the past, as far as the controller remembers it."""

    def __init__(self, core: ReadingCore, reading: Queries) -> None:
        self._core, self._reading = core, reading

    def usage(self, request_id: int, request: wire.GetUsage, who: Identity) -> wire.UsageRows:
        state, now = self._core.state, self._reading.now()
        since_s = _since(request.since_s, now)
        kinds = self._reading.commands(who).kinds(state.engine) if request.by == "kind" else None
        found = usage.usage(
            state.engine.jobs,
            state.history.attempts,
            request.by,
            since_s,
            now.now_s,
            lambda job, name: name if kinds is None else kinds(signature(job.spec), name),
        )
        rest = sorted(name for name in found if request.after is None or name > request.after)
        page = rest[: min(max(1, request.page), LIST_MAX)]
        decayed = state.engine.decayed_usage(request.by, now.now_s)
        rows = cut_to_message(
            wire.UsageView(
                name=name,
                **msgspec.structs.asdict(found[name]),
                decayed_device_s=None if decayed is None else decayed.get(name, 0.0),
            )
            for name in page
        )
        return wire.UsageRows(
            request_id=request_id,
            rows=tuple(rows),
            now=now.at,
            since=None if request.since_s is None else now.utc(since_s),
            forgotten_jobs=forgotten_jobs(state.engine),
            next=rows[-1].name if rows and len(rows) < len(rest) else None,
            half_life_s=None if decayed is None else state.engine.config.policy.fair_share_half_life_s,
        )

    def past_jobs(self, request_id: int, request: wire.ListPastJobs, who: Identity) -> wire.PastJobs:
        state, now = self._core.state, self._reading.now()
        since_s, jobs = _since(request.since_s, now), state.engine.jobs
        asked = jobs_named(self._core, request.job_ids) if request.job_ids else jobs.values()
        chosen = [
            job
            for job in asked
            if job.phase in (request.states or ENDED) and job.phase in ENDED
            if job.number > request.after and usage.is_of(job, since_s)
            if not request.user or job.spec.user == request.user
        ]
        chosen.sort(key=lambda job: job.number)
        limit = min(max(1, request.limit), LIMIT_MAX)
        page = chosen[: min(limit, max(1, request.page), LIST_MAX)]
        shown = cut_to_message(self._past(page, now, who))
        is_over = not shown or len(shown) >= min(limit, len(chosen))
        return wire.PastJobs(
            request_id=request_id,
            jobs=tuple(shown),
            now=now.at,
            since=None if request.since_s is None else now.utc(since_s),
            forgotten_jobs=forgotten_jobs(state.engine),
            more=len(chosen) - len(shown),
            next=0 if is_over else page[len(shown) - 1].number,
        )

    def _past(self, jobs: list[Job], now: Now, who: Identity) -> Iterator[wire.PastJobView]:
        state = self._core.state
        for record in filter(None, (self._core.record(job.job_id) for job in jobs)):
            job, attempts = record.job, record.attempts
            use = usage.use_of(state.engine.jobs, job, attempts, ALWAYS_S, now.now_s)
            yield wire.PastJobView(
                **msgspec.structs.asdict(self._reading.view(record, now, who)),
                attempts=max(len(attempts), job.attempt.number),
                held_device_s=use.held_device_s,
                shared_device_s=use.shared_device_s,
                lost_device_s=use.lost_device_s,
            )


def _since(seconds: float | None, now: Now) -> float:
    return ALWAYS_S if seconds is None else now.now_s - max(0.0, seconds)


JOBS_MAX: Final = 10_000


class TimelineRequests:
    """Who held what, and who waited."""

    def __init__(self, core: ReadingCore, reading: Queries) -> None:
        self._core, self._reading = core, reading

    def timeline(self, request_id: int, request: wire.GetTimeline, who: Identity) -> wire.Timelined:
        state, now = self._core.state, self._reading.now()
        begin_s, end_s = (now.now_s - max(0.0, ago_s) for ago_s in (request.since_s, request.until_s))
        held: list[Job] = []
        waited: list[Job] = []
        for job in state.engine.jobs.values():
            if job.submitted_s <= end_s and (math.inf if job.ended_s is None else job.ended_s) >= begin_s:
                records = state.history.attempts(job.job_id)
                (held if any(True for _ in _overlapping_records(records, begin_s, end_s)) else waited).append(
                    job
                )
        chosen = [*reversed(held), *waited][: min(max(1, request.limit), JOBS_MAX)]
        jobs = cut_to_message(self._job(job, begin_s, end_s, now, may_touch(who, job)) for job in chosen)
        engine = state.engine
        view = wire.TimelineView(
            begin_at=now.utc(begin_s),
            end_at=now.utc(max(begin_s, end_s)),
            devices=tuple(
                wire.TimelineDevice(device_id=device.device_id, about=about(device))
                for _, host in sorted(engine.hosts.items())
                for device in host.report.devices
            ),
            jobs=tuple(sorted(jobs, key=lambda job: engine.jobs[job.job_id].number)),
            policies=tuple(
                wire.PolicySince(policy=each.label, from_at=now.utc(each.from_s))
                for each in state.history.policies()
                if each.from_s <= end_s
            ),
            more=len(held) + len(waited) - len(jobs),
        )
        return wire.Timelined(request_id=request_id, timeline=view, now=now.at)

    def _job(self, job: Job, begin_s: float, end_s: float, now: Now, whole: bool) -> wire.TimelineJob:
        records = self._core.state.history.attempts(job.job_id)
        seen = list(_overlapping_records(records, begin_s, end_s))
        before = [each for each in records if each.ended_s is not None and each.ended_s < begin_s][-1:]
        return wire.TimelineJob(
            job_id=job.job_id,
            name=job.spec.name,
            user=job.spec.user,
            phase=job.phase,
            submitted_at=now.utc(job.submitted_s),
            ended_at=now.utc_if(job.ended_s if job.phase in ENDED else None),
            attempts=attempt_views([*before, *seen], now, whole=whole),
        )


def _overlapping_records(
    records: Sequence[AttemptRecord], begin_s: float, end_s: float
) -> Iterator[AttemptRecord]:
    for each in records:
        if each.launched_s <= end_s and (each.ended_s is None or each.ended_s >= begin_s):
            yield each


def about(device: Device) -> str:
    """A device in a few words: there is little room beside a row."""
    cores = len(device.cores)
    what = f"{cores} core{'' if cores == 1 else 's'}" if device.kind == "cpu" else device.type
    return f"{what}, {device.memory_mib} MiB"


class ProfileRequests:
    """Reads the engine's store; changes it by an event, like everything."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def list_known(self, request_id: int, request: wire.ListProfiles, who: Identity) -> wire.KnownProfiles:
        engine = self._core.state.engine
        mine = self._visible_profiles(who)
        now = Now(self._core.clock.now_s(), self._core.clock.wall())
        newest = reversed(mine.items())  # What was used last matters most.
        taken = engine.ledger.estimates.by_command
        shown = cut_to_message(
            known_view(key, known, now, taken.get(known.numbers, ())) for key, known in newest
        )
        loads = engine.loads_seen()
        return wire.KnownProfiles(
            request_id=request_id,
            profiles=tuple(reversed(shown)),
            profile_s=engine.config.profile_s,
            load_s=median(loads) if loads else LOAD_S,
            more=len(mine) - len(shown),
        )

    def forget(self, request_id: int, request: wire.ForgetProfiles, who: Identity) -> wire.Done:
        mine = self._visible_profiles(who)
        keys = tuple(one for key in request.keys for one in family_members(key, mine)) or tuple(mine)
        unknown = [key for key in keys if key not in mine]
        if unknown:
            hint = "`cotenant profile list` shows those that you may forget"
            raise Denied("not-found", f"no profile {', '.join(unknown[:10])}", hint)
        if keys:
            self._core.happen(ev.ProfilesForgotten(keys=keys, by=who.name))
            self._core.audit(who, "forget-profiles", ",".join(keys)[:200])
        return wire.Done(
            request_id=request_id, lines=tuple(f"profile {key} is forgotten" for key in keys[:50])
        )

    def _visible_profiles(self, who: Identity) -> dict[str, StoredProfile]:
        known = self._core.state.engine.ledger.profiles.known
        return {key: each for key, each in known.items() if who.role == "admin" or each.user == who.name}


def family_key(known: StoredProfile) -> str:
    """What people see and type for a whole family; empty for a profile of before there were any."""
    parts = (known.numbers, str(known.hosts), known.device_type)
    return sha256("\0".join(parts).encode()).hexdigest()[:KEY_CHARACTERS] if known.numbers else ""


def family_members(key: str, mine: Mapping[str, StoredProfile]) -> tuple[str, ...]:
    """The keys of all profiles of a family, or the key itself."""
    return tuple(one for one, known in mine.items() if key == family_key(known)) or (key,)


def known_view(key: str, known: StoredProfile, now: Now, run_s: Sequence[float] = ()) -> wire.KnownProfile:
    gang = Gang(devices=max(known.gpus, known.hosts), hosts=known.hosts)
    return wire.KnownProfile(
        key=key,
        kind=known.base[:KEY_CHARACTERS],
        user=known.user,
        name=known.name,
        command=known.command,
        gpus=known.gpus,
        hosts=known.hosts,
        device_type=known.device_type,
        batch_size=known.batch_size,
        is_complete=known.is_complete,
        learned_at=now.utc(known.learned_s),
        used=known.used,
        job_id=known.job_id,
        **msgspec.structs.asdict(profile_view(known.profile)),
        throughput=throughput_view(known.profile, known.batch_size, gang),
        family=family_key(known),
        family_words=plain_words(known.command),
        family_run_s=tuple(sorted(run_s)),
    )
