"""Answers to questions: read the state, change nothing."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec

from cotenant.controller.api import sharing, views
from cotenant.controller.api.changes import verbs_open
from cotenant.controller.api.etas import EtaBoard, ahead_lines
from cotenant.controller.api.job_settings import settings_open
from cotenant.controller.api.permissions import jobs_named, may_touch, one_job, policies_offered
from cotenant.controller.domain import (
    ENDED,
    OBSERVATIONS,
    ClassReport,
    Job,
    PairSeen,
    Phase,
    Reason,
    Verdict,
    render,
)
from cotenant.controller.engine import Engine, accounts, cheapest_change
from cotenant.controller.executors.agents import AgentExecutor
from cotenant.controller.policies import registry
from cotenant.controller.store import Core
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import MESSAGE_BYTES_MAX
from cotenant.controller.wire import clients as wire

REASONS_S_MAX: Final = 0.05
"""Time to find out anew why queued jobs of one listing wait; the others show their last reason."""
REASONS_OF_PAGE_S_MAX: Final = 0.01
"""The same for one page: other work runs between pages."""
LIST_MAX: Final = 20_000
LIMIT_MAX: Final = 1_000_000
"""Jobs in a listing that is read in pages."""
LIST_BYTES_MAX: Final = MESSAGE_BYTES_MAX * 3 // 4
HISTORY_LINES: Final = 20
PAIRS_MAX: Final = 10_000
_FIRST_SHOWN: Final = ("crowded", "faulted", "loses")


AView = TypeVar("AView", bound=msgspec.Struct)


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What `Status` says of the process itself."""

    version: str
    endpoint: str
    started_s: float


class Queries:
    """All questions that can be answered at once."""

    def __init__(self, core: Core, link: AgentExecutor, about: About, board: EtaBoard) -> None:
        self._core = core
        self._board = board
        self._link = link
        self._about = about

    # --- Jobs --------------------------------------------------------------------------------------

    def jobs(self, request_id: int, request: wire.ListJobs, who: Identity) -> wire.Jobs:
        jobs = self._core.state.engine.jobs
        found = jobs_named(jobs, request.job_ids) if request.job_ids else list(jobs.values())
        chosen = [
            job
            for job in found
            if (request.include_ended or request.job_ids or request.states or job.phase not in ENDED)
            and (not request.user or job.spec.user == request.user)
            and (not request.states or job.phase in request.states)
        ]
        if request.page:
            return self._page(request_id, request, chosen)
        limit = min(max(1, request.limit), LIST_MAX)
        return self.job_list(request_id, chosen[:limit], more=max(0, len(chosen) - limit))

    def _page(self, request_id: int, request: wire.ListJobs, chosen: list[Job]) -> wire.Jobs:
        """Jobs are numbered as they arrive, so a number says where to go on, whatever has ended meanwhile."""
        rest = sorted((job for job in chosen if job.number > request.after), key=lambda job: job.number)
        limit = min(max(1, request.limit), LIMIT_MAX)
        page = rest[: min(limit, max(1, request.page), LIST_MAX)]
        reply = self.job_list(
            request_id, page, more=len(rest) - len(page), reasons_s_max=REASONS_OF_PAGE_S_MAX
        )
        shown = len(reply.jobs)
        is_over = not shown or shown >= min(limit, len(rest))
        return msgspec.structs.replace(reply, next=0 if is_over else page[shown - 1].number)

    def job_list(
        self, request_id: int, jobs: Sequence[Job], more: int = 0, *, reasons_s_max: float = REASONS_S_MAX
    ) -> wire.Jobs:
        now = self.now()
        until_s = time.monotonic() + reasons_s_max
        shown = within_message(self.view(job, now, fresh_reason=time.monotonic() < until_s) for job in jobs)
        more += len(jobs) - len(shown)
        return wire.Jobs(request_id=request_id, jobs=tuple(shown), now=now.at, more=more)

    def now(self) -> views.Now:
        return views.Now(self._core.clock.now_s(), self._core.clock.wall())

    def view(self, job: Job, now: views.Now, *, fresh_reason: bool = True) -> wire.JobView:
        state = self._core.state
        reason: Reason | None = None
        if fresh_reason and job.phase is Phase.QUEUED:
            reason = state.engine.explain(job.job_id, now.now_s)[0]
        eta = self._board.of(job, now)
        beside = sharing.views_of(state.engine.jobs, job, state.history.attempts(job.job_id))
        told = self._link.telemetry
        return views.job_view(state.engine, state.history, told, job, now, reason, *beside, eta)

    def shown(self, request_id: int, request: wire.ShowJob, who: Identity) -> wire.Shown:
        job = one_job(self._core.state.engine.jobs, request.job_id)
        now = self.now()
        details = views.job_details(
            self.view(job, now),
            job,
            self._core.state.history.attempts(job.job_id),
            now,
            whole=may_touch(who, job),
        )
        details = msgspec.structs.replace(
            details, verbs=verbs_open(job, who), settable=settings_open(job, who)
        )
        return wire.Shown(request_id=request_id, job=details, now=now.at)

    # --- Why ---------------------------------------------------------------------------------------

    def explained(self, request_id: int, request: wire.Explain, who: Identity) -> wire.Explained:
        state, now = self._core.state, self.now()
        job = one_job(state.engine.jobs, request.job_id)
        view = self.view(job, now)
        reasons = (
            *views.present_reasons(view),
            *state.engine.explain(job.job_id, now.now_s),
            *views.sharing_reasons(state.engine, job),
        )
        present = dict.fromkeys(map(render, reasons))
        past = [
            f"{views.ago(now.now_s - note.at_s)}: {views.note_text(note)}"
            for note in state.history.notes(job.job_id, HISTORY_LINES)
        ]
        change = cheapest_change(state.engine.view(), job)
        would_help = () if change is None else (render(change),)
        explanation = wire.ExplanationView(
            job_id=view.job_id,
            phase=view.phase,
            reason=view.reason,
            reason_code=view.reason_code,
            lines=(*present, *past),
            ahead=(*ahead_lines(self._core, self._board, job, now), *would_help),
            now=now.at,
        )
        return wire.Explained(request_id=request_id, job=view, explanation=explanation)

    def decisions(self, request_id: int, request: wire.GetDecisions, who: Identity) -> wire.Decisions:
        if request.job_id is not None:
            one_job(self._core.state.engine.jobs, request.job_id)
        notes = self._core.state.history.notes(request.job_id, min(max(1, request.limit), LIST_MAX))
        return wire.Decisions(
            request_id=request_id,
            decisions=tuple(views.decision_view(note) for note in notes),
            now_s=self._core.clock.now_s(),
            wall_s=self._core.clock.wall(),
        )

    def reported(self, request_id: int, request: wire.GetReport, who: Identity) -> wire.SharingReport:
        state, now = self._core.state, self.now()
        since_s = None if request.since_s is None else now.now_s - max(0.0, request.since_s)
        report = sharing.report_view(state.engine, state.history, now, since_s)
        return wire.SharingReport(request_id=request_id, report=report)

    # --- The cluster -------------------------------------------------------------------------------

    def nodes(self, request_id: int, request: wire.ListNodes, who: Identity) -> wire.Nodes:
        engine, now = self._core.state.engine, self.now()
        readings = {
            device_id: msgspec.structs.replace(read.reading, age_s=max(0.0, now.now_s - read.at_s))
            for device_id, read in self._link.readings.items()
        }
        nodes = [
            views.node_view(
                engine,
                host,
                self._link.watch.age_s(host_id, now.now_s),
                readings,
                self._link.fork_servers.get(host_id),
            )
            for host_id, host in sorted(engine.hosts.items())
        ]
        return wire.Nodes(request_id=request_id, nodes=tuple(nodes), now=now.at)

    def pairs(self, request_id: int, request: wire.ListPairs, who: Identity) -> wire.Pairs:
        engine = self._core.state.engine
        observations = int(engine.policy_parameters.get("observations", OBSERVATIONS))
        now = self.now()
        found = pair_views(
            engine.pairs.seen(),
            observations,
            request.containing,
            now_s=now.now_s,
            sums=accounts.by_kinds(engine.jobs, self._core.state.history.attempts),
        )
        limit = min(max(1, request.limit), PAIRS_MAX)
        return wire.Pairs(
            request_id=request_id,
            pairs=tuple(found[:limit]),
            observations=observations,
            now=now.at,
            more=max(0, len(found) - limit),
        )

    def policy(self, request_id: int, request: wire.GetPolicy, who: Identity) -> wire.Policies:
        engine = self._core.state.engine
        name = engine.policy_name
        available = policies_offered(engine) if request.offers else {name: registry.about(name)}
        defaults = {each: registry.defaults(each) for each in available}
        offers = [
            wire.PolicyOffer(
                policy=each,
                about=about,
                current=each == name,
                available=True,
                defaults=defaults[each],
                **registry.heading(each),
            )
            for each, about in sorted(available.items())
            if request.offers
        ]
        offers += [
            wire.PolicyOffer(
                policy=each,
                about=wire.NOT_AVAILABLE + lacks,
                current=each == name,
                available=False,
                defaults={},
                **registry.heading(each),
            )
            for each, lacks in sorted(registry.unavailable().items() if request.offers else ())
        ]
        given = engine.policy_parameters
        current = wire.PolicyView(
            policy=name,
            about=available.get(name, ""),
            parameters={**defaults.get(name, {}), **given},
            classes=classes_of(engine),
            organisations=organisations_of(engine) or None,
            policy_state=engine.policy_state(),
        )
        return wire.Policies(
            request_id=request_id,
            current=current,
            given=given,
            offers=tuple(offers),
            groups=registry.GROUPS,
        )

    def status(self, request_id: int, request: wire.GetStatus, who: Identity) -> wire.ControllerStatus:
        core, engine, now_s = self._core, self._core.state.engine, self._core.clock.now_s()
        counters = {
            **core.counters,
            "commits": core.journal.commits,
            "entries": core.journal.last_seq,
            "undelivered": self._link.undelivered,
        }
        return wire.ControllerStatus(
            request_id=request_id,
            version=self._about.version,
            pid=os.getpid(),
            now_s=now_s,
            wall_s=core.clock.wall(),
            uptime_s=now_s - self._about.started_s,
            policy=engine.policy_name,
            jobs_by_phase=dict(Counter(job.phase.value for job in engine.jobs.values())),
            hosts=len(engine.hosts),
            devices=sum(len(host.report.devices) for host in engine.hosts.values()),
            counters=counters,
            journal=core.stuck or f"{core.journal.path}, {core.journal.last_seq} entries",
            endpoint=self._about.endpoint,
            journal_damages=core.scrubbed.damages if core.scrubbed else (),
            journal_checked_s=time.monotonic() - core.scrubbed.ended_s if core.scrubbed else None,
            asker=who.name,
            asker_is_admin=who.role == "admin",
        )


def within_message(views: Iterable[AView]) -> list[AView]:
    """The first of them, as many as one answer holds."""
    shown: list[AView] = []
    size = 0
    for view in views:
        size += len(msgspec.msgpack.encode(view))
        if size > LIST_BYTES_MAX:
            break
        shown.append(view)
    return shown


def organisations_of(engine: Engine) -> tuple[wire.OrganisationView, ...]:
    held: Counter[str] = Counter()
    for job in engine.view().on_devices():
        if job.spec.job_class == "spot" and job.placement is not None:
            held[job.spec.organisation] += len(job.placement.devices)
    return tuple(
        wire.OrganisationView(
            name=name,
            job_class=each.job_class or "spot",
            quota_devices=each.quota_devices or None,
            spot_devices=held[name],
        )
        for name, each in sorted(engine.config.organisations.items())
    )


def classes_of(engine: Engine) -> ClassReport | None:
    report = engine.classes()
    if report is None:
        return None
    broken = sum(job.early_preemptions for job in engine.jobs.values())
    return msgspec.structs.replace(report, broken_promises=broken)


def pair_views(
    seen: Iterable[PairSeen],
    observations: int,
    containing: str = "",
    *,
    now_s: float = 0.0,
    sums: Mapping[tuple[str, str], accounts.Sums] = MappingProxyType({}),
) -> list[wire.PairView]:
    """Those that are not made again first, then by benefit, the worst first; unmeasured ones last."""
    shown = [
        pair_view(pair, observations, now_s, sums)
        for pair in seen
        if containing in pair.first + "\n" + pair.second
    ]
    inf = float("inf")
    shown.sort(
        key=lambda pair: (
            pair.verdict not in _FIRST_SHOWN,
            inf if pair.benefit is None else pair.benefit,
            pair.first,
            pair.second,
        )
    )
    return shown


def pair_view(
    pair: PairSeen, observations: int, now_s: float, sums: Mapping[tuple[str, str], accounts.Sums]
) -> wire.PairView:
    xi, verdict = pair.xi, pair.verdict(observations)
    ways = tuple(sums.get(key, accounts.Sums()) for key in (pair.keys, pair.keys[::-1]))
    took = ways[:1] if pair.keys[0] == pair.keys[1] else ways
    alone_s, took_s = (sum(each.work_device_s for each in took), sum(each.device_s for each in took))
    return wire.PairView(
        first=pair.first,
        second=pair.second,
        first_xi=pair.first_xi,
        second_xi=pair.second_xi,
        first_count=pair.first_count,
        second_count=pair.second_count,
        first_never_alone=pair.first_xi is None and pair.first_not_compared > 0,
        second_never_alone=pair.second_xi is None and pair.second_not_compared > 0,
        first_predicted_xi=ways[0].predicted_xi,
        second_predicted_xi=ways[1].predicted_xi,
        alone_device_s=alone_s,
        measured_device_s=took_s,
        won_device_s=alone_s - took_s if took_s > 0.0 else None,
        benefit=None if xi is None else xi.gain,
        verdict=verdict,
        quarantine=_quarantine(pair, verdict, now_s),
    )


def _quarantine(pair: PairSeen, verdict: Verdict, now_s: float) -> str:
    if verdict == "faulted":
        left_s = max(0.0, (pair.apart_until_s or 0.0) - now_s)
        return (
            f"a fatal GPU fault struck the two together ({pair.faults} x): kept apart for another "
            f"{left_s / 3600:.1f} h"
        )
    if verdict == "loses":
        return "together they get less done than taking turns"
    if verdict != "crowded":
        return ""
    one, two = (pair.first, pair.second) if pair.first != pair.second else ("one", "the other")
    died = [
        f"{job} ran out of device memory beside {beside} ({count} x)"
        for job, beside, count in (
            (one, two, pair.first_out_of_memory),
            (two, one, pair.second_out_of_memory if pair.first != pair.second else 0),
        )
        if count
    ]
    return "; ".join(died)
