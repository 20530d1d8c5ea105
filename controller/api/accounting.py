"""Who used the devices, and which jobs have ended. Pure reading: the numbers are `engine.usage`'s."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cotenant.controller.api.permissions import jobs_named
from cotenant.controller.api.queries import LIMIT_MAX, LIST_MAX, Queries, within_message
from cotenant.controller.api.sharing import forgotten_jobs
from cotenant.controller.api.views import Now
from cotenant.controller.domain import ENDED, Job
from cotenant.controller.engine import accounts
from cotenant.controller.store import Core
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import clients as wire


class AccountingRequests:
    """Questions about the past, as far as the controller remembers it."""

    def __init__(self, core: Core, reading: Queries) -> None:
        self._core, self._reading = core, reading

    def usage(self, request_id: int, request: wire.GetUsage, who: Identity) -> wire.UsageRows:
        state, now = self._core.state, self._reading.now()
        since_s = _since(request.since_s, now)
        found = accounts.usage(state.engine.jobs, state.history.attempts, request.by, since_s, now.now_s)
        rest = sorted(name for name in found if request.after is None or name > request.after)
        page = rest[: min(max(1, request.page), LIST_MAX)]
        decayed = state.engine.decayed_usage(request.by, now.now_s)
        rows = within_message(
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
        asked = jobs_named(jobs, request.job_ids) if request.job_ids else jobs.values()
        chosen = [
            job
            for job in asked
            if job.phase in (request.states or ENDED) and job.phase in ENDED
            if job.number > request.after and accounts.is_of(job, since_s)
            if not request.user or job.spec.user == request.user
        ]
        chosen.sort(key=lambda job: job.number)
        limit = min(max(1, request.limit), LIMIT_MAX)
        page = chosen[: min(limit, max(1, request.page), LIST_MAX)]
        shown = within_message(self._past(page, now))
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

    def _past(self, jobs: list[Job], now: Now) -> Iterator[wire.PastJobView]:
        state = self._core.state
        for job in jobs:
            attempts = state.history.attempts(job.job_id)
            use = accounts.use_of(state.engine.jobs, job, attempts, accounts.ALWAYS_S, now.now_s)
            yield wire.PastJobView(
                **msgspec.structs.asdict(self._reading.view(job, now)),
                attempts=max(len(attempts), job.attempt),
                held_device_s=use.held_device_s,
                shared_device_s=use.shared_device_s,
                lost_device_s=use.lost_device_s,
            )


def _since(seconds: float | None, now: Now) -> float:
    return accounts.ALWAYS_S if seconds is None else now.now_s - max(0.0, seconds)
