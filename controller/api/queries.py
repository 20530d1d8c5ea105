"""Answers to questions: read the state, change nothing."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec

from cotenant.controller import domain
from cotenant.controller.api import listing, sharing, views
from cotenant.controller.api.arrivals import TellsOwners
from cotenant.controller.api.attempts_shown import told_now
from cotenant.controller.api.changes import verbs_open
from cotenant.controller.api.etas import EtaBoard, ahead_reasons
from cotenant.controller.api.job_settings import settings_open
from cotenant.controller.api.moment import Now
from cotenant.controller.api.permissions import Commands, jobs_named, may_touch, one_job, policies_offered
from cotenant.controller.engine import Engine, Explaining, cheapest_change
from cotenant.controller.executors.agents import AgentExecutor, AgentNews
from cotenant.controller.history import JobRecord, accounts
from cotenant.controller.knowledge import OBSERVATIONS, PairSeen, PairVerdict
from cotenant.controller.policies import registry
from cotenant.controller.store import Core, ReadingCore
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import MESSAGE_BYTES_MAX
from cotenant.controller.wire import clients as wire

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

    def __init__(
        self,
        core: ReadingCore,
        news: AgentNews,
        board: EtaBoard,
        tells: TellsOwners | None = None,
        *,
        reads_commands: bool = False,
    ) -> None:
        self._reads_commands = reads_commands
        self._tells = tells
        self._core = core
        self._board = board
        self._news = news

    def commands(self, who: Identity) -> Commands:
        return Commands(who, self._reads_commands)

    # --- Jobs --------------------------------------------------------------------------------------

    def jobs(self, request_id: int, request: wire.ListJobs, who: Identity) -> wire.Jobs:
        """Jobs are numbered as they arrive, so a number says where a page goes on, whatever has ended
        meanwhile; of ended jobs, the time of the end says so."""
        jobs = self._core.state.engine.jobs
        named: Iterable[domain.Job] = (
            jobs_named(self._core, request.job_ids) if request.job_ids else jobs.values()
        )
        found = named
        by_state: dict[domain.Phase, int] = {}
        reads = self.commands(who).may_read
        if request.count:
            found = listing.wanted_jobs(found, request, reads)
            by_state = dict(Counter([job.phase for job in found]))
        if request.page and request.after and not request.ended:
            found = listing.not_before(request, found)
        rows = listing.rows_of(
            found if request.count else listing.wanted_jobs(found, request, reads), request
        )
        if request.fold:
            rows = listing.fold_arrays(rows, named, by_end=request.ended, is_named=bool(request.job_ids))
        if request.ended and request.before is not None:
            rows = [row for row in rows if row.place < request.before]
        elif request.page and not request.ended and request.fold:
            rows = [row for row in rows if row.place[1] > request.after]
        limit = min(max(1, request.limit), LIMIT_MAX if request.page else LIST_MAX)
        page = rows[: min(limit, max(1, request.page), LIST_MAX) if request.page else limit]
        more = len(rows) - len(page)
        reply = self._row_list(request_id, page, more, who, brief=request.brief)
        reply = msgspec.structs.replace(reply, by_state=by_state)
        if request.ended:
            reply = msgspec.structs.replace(
                reply, forgotten_jobs=sharing.forgotten_jobs(self._core.state.engine)
            )
        shown = len(reply.jobs)
        if not shown or shown >= min(limit, len(rows)) or not request.page:
            return reply
        place = page[shown - 1].place
        if request.ended:
            return msgspec.structs.replace(reply, next_before=place)
        return msgspec.structs.replace(reply, next=place[1])

    def job_list(self, request_id: int, jobs: Sequence[domain.Job], who: Identity) -> wire.Jobs:
        rows = [listing.ListingRow(job, (0.0, job.number)) for job in jobs]
        return self._row_list(request_id, rows, 0, who)

    def _row_list(
        self,
        request_id: int,
        rows: Sequence[listing.ListingRow],
        more: int,
        who: Identity,
        *,
        brief: bool = False,
    ) -> wire.Jobs:
        now = self.now()
        why = self._core.state.engine.explaining(now.now_s)
        shown = cut_to_message(self._row(row, now, who, why, brief=brief) for row in rows)
        more += len(rows) - len(shown)
        return wire.Jobs(request_id=request_id, jobs=tuple(shown), now=now.at, more=more)

    def now(self) -> Now:
        return Now(self._core.clock.now_s(), self._core.clock.wall())

    def _row(
        self, row: listing.ListingRow, now: Now, who: Identity, why: Explaining, *, brief: bool
    ) -> wire.JobView:
        record = self._core.record(row.job.job_id)
        assert record is not None, row.job.job_id
        view = self.view(record, now, who, why, brief=brief)
        if row.tasks is None:
            return view
        array = domain.array_of(row.job.job_id)
        forgotten = () if row.is_named else self._core.journal.count_past_tasks(array)
        return msgspec.structs.replace(view, array=listing.array_view(row, forgotten))

    def view(
        self,
        record: JobRecord,
        now: Now,
        who: Identity,
        why: Explaining | None = None,
        *,
        brief: bool = False,
    ) -> wire.JobView:
        """A job as it is now. `why`: explains it and others as of the same moment."""
        state, job = self._core.state, record.job
        record = told_now(record, self._news.telemetry)
        why = why or state.engine.explaining(now.now_s)
        reason = self._fetching(job) or why.reason_now(job)
        told, whole = self._news.telemetry, may_touch(who, job)
        if brief:
            return views.job_view(state.engine, told, record, now, reason, whole=whole)
        eta = self._board.view_of(job, now)
        beside = sharing.views_of(state.engine.jobs, job, record.attempts)
        return views.job_view(state.engine, told, record, now, reason, *beside, eta, whole=whole)

    def _fetching(self, job: domain.Job) -> domain.Reason | None:
        """How far the tree or the image of a loading job has come to its hosts."""
        for host_id, pulls in self._news.pulls.items():
            if job.phase is domain.Phase.LOADING and job.job_id in pulls:
                return domain.because("pulling", host_id, pulls[job.job_id])
        tree, fetched = job.spec.launch.snapshot, self._news.fetched_bytes(job.job_id)
        if job.phase is not domain.Phase.LOADING or tree is None or not 0 < fetched < tree.size_bytes:
            return None
        return domain.because("fetching", fetched >> 20, tree.size_bytes >> 20)

    def show(self, request_id: int, request: wire.ShowJob, who: Identity) -> wire.Shown:
        record, now = told_now(one_job(self._core, request.job_id), self._news.telemetry), self.now()
        job = record.job
        details = msgspec.structs.replace(
            views.job_details(self.view(record, now, who), record, now, whole=may_touch(who, job)),
            copies=views.copies_shown(self._core.state.engine, record),
            verbs=verbs_open(job, who) if job.job_id in self._core.state.engine.jobs else (),
            settable=settings_open(job, who),
            told=self._tells.describe(job) or None if self._tells else None,
        )
        return wire.Shown(request_id=request_id, job=details, now=now.at)

    # --- Why ---------------------------------------------------------------------------------------

    def explain(self, request_id: int, request: wire.Explain, who: Identity) -> wire.Explained:
        state, now = self._core.state, self.now()
        record = one_job(self._core, request.job_id)
        job, why = record.job, state.engine.explaining(now.now_s)
        view, causes = self.view(record, now, who, why), why.causes(job)
        whole, fetching = may_touch(who, job), filter(None, (self._fetching(job),))
        reasons = (*fetching, *(views.measured_beside(view) or causes.lines))
        said = [(each, "") for each in reasons]
        if job.phase in (domain.Phase.LOADING, domain.Phase.RUNNING) and job.placement is not None:
            said.append((job.placement.reason, "when it was placed: "))
        said += [(each, "") for each in views.sharing_reasons(state.engine, job)]
        present = dict.fromkeys(
            views.said_of(job, each, now, whole=whole, before=before) for each, before in said
        )
        past = [
            views.SaidLine.make(
                note.reason,
                f"{views.ago(now.now_s - note.at_s)}: {views.note_text(note, whole=whole)}",
                whole=whole,
            )
            for note in record.notes[: -HISTORY_LINES - 1 : -1]
        ]
        lines = (*present, *past)
        more = [] if causes.is_whole else ahead_reasons(self._core, self._board, job, now, why.line)
        change = cheapest_change(state.engine.ledger, job)
        if change is not None:
            more.append(change)
        ahead = [views.SaidLine.make(each, domain.render(each), whole=False) for each in more]
        if causes.is_whole and job.phase is domain.Phase.QUEUED:
            view = msgspec.structs.replace(view, eta=None)  # It is of another moment.
        explanation = wire.ExplanationView(
            job_id=view.job_id,
            phase=view.phase,
            reason=view.reason,
            reason_code=view.reason_code,
            lines=tuple(each.text for each in lines),
            lines_jobs=tuple(each.jobs for each in lines),
            lines_now=len(present),
            ahead=tuple(each.text for each in ahead),
            ahead_jobs=tuple(each.jobs for each in ahead),
            now=now.at,
        )
        return wire.Explained(request_id=request_id, job=view, explanation=explanation)

    def decisions(self, request_id: int, request: wire.GetDecisions, who: Identity) -> wire.Decisions:
        limit = min(max(1, request.limit), LIST_MAX)
        jobs: Mapping[domain.JobId, domain.Job] = self._core.state.engine.jobs
        if request.job_id is None:
            notes = list(self._core.state.history.notes(None, limit))
        else:
            record = one_job(self._core, request.job_id)
            notes, jobs = list(record.notes[: -limit - 1 : -1]), {record.job.job_id: record.job}
        about = [jobs[each.job_id] for each in notes if each.job_id is not None and each.job_id in jobs]
        mine = {job.job_id for job in about if may_touch(who, job)}
        return wire.Decisions(
            request_id=request_id,
            decisions=tuple(views.decision_view(note, whole=note.job_id in mine) for note in notes),
            now_s=self._core.clock.now_s(),
            wall_s=self._core.clock.wall(),
        )

    def report(self, request_id: int, request: wire.GetReport, who: Identity) -> wire.SharingReport:
        state, now = self._core.state, self.now()
        since_s = None if request.since_s is None else now.now_s - max(0.0, request.since_s)
        report = sharing.report_view(
            state.engine, state.history, now, since_s, self.commands(who).kinds(state.engine)
        )
        return wire.SharingReport(request_id=request_id, report=report)

    # --- The cluster -------------------------------------------------------------------------------

    def nodes(self, request_id: int, request: wire.ListNodes, who: Identity) -> wire.Nodes:
        engine, now = self._core.state.engine, self.now()
        readings = {
            device_id: msgspec.structs.replace(read.reading, age_s=max(0.0, now.now_s - read.at_s))
            for device_id, read in self._news.readings.items()
        }
        reserved = views.reserved_devices(engine, now)
        nodes = [
            views.node_view(
                engine,
                host,
                self._news.silent_s(host_id, now.now_s),
                readings,
                self._news.fork_servers.get(host_id),
                reserved,
            )
            for host_id, host in sorted(engine.hosts.items())
        ]
        return wire.Nodes(request_id=request_id, nodes=tuple(nodes), now=now.at)

    def pairs(self, request_id: int, request: wire.ListPairs, who: Identity) -> wire.Pairs:
        engine = self._core.state.engine
        observations = int(engine.current.parameters.get("observations", OBSERVATIONS))
        now = self.now()
        found = pair_views(
            shown_by(engine.ledger.pairs.list_seen(), self.commands(who).kinds(engine)),
            observations,
            request.containing,
            now_s=now.now_s,
            sums=accounts.sums_by_kinds(engine.jobs, self._core.state.history.attempts),
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
        name = engine.current.name
        available = policies_offered(engine) if request.offers else {name: registry.about(name)}
        given = engine.current.parameters
        current = wire.PolicyView(
            policy=name,
            about=available.get(name, ""),
            parameters={**(registry.defaults(name) if name in available else {}), **given},
            classes=classes_of(engine),
            organisations=organisations_of(engine) or None,
            policy_state=engine.policy_state(),
        )
        return wire.Policies(
            request_id=request_id,
            current=current,
            given=given,
            offers=wire.policy_offers(
                available=available,
                unavailable=registry.unavailable(),
                defaults=registry.defaults,
                heading=registry.heading,
                current=name,
            )
            if request.offers
            else (),
            groups=registry.GROUPS,
        )


class StatusRequests:
    """Questions about the controller itself."""

    def __init__(self, core: Core, link: AgentExecutor, about: About) -> None:
        self._core, self._link, self._about = core, link, about

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
            policy=engine.current.name,
            jobs_by_phase=dict(Counter(job.phase.value for job in engine.jobs.values())),
            hosts=len(engine.hosts),
            devices=sum(len(host.report.devices) for host in engine.hosts.values()),
            counters=counters,
            journal=core.stuck or f"{core.journal.place}, {core.journal.last_seq} entries",
            endpoint=self._about.endpoint,
            journal_damages=core.scrubbed.damages if core.scrubbed else (),
            journal_checked_s=time.monotonic() - core.scrubbed.ended_s if core.scrubbed else None,
            asker=who.name,
            asker_is_admin=who.role == "admin",
        )


def cut_to_message(views: Iterable[AView]) -> list[AView]:
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
    for job in engine.ledger.running.jobs_by_end():
        if job.spec.job_class == "spot" and job.placement is not None:
            held[job.spec.organisation] += len(job.placement.devices)
    return tuple(
        wire.OrganisationView(
            name=name,
            job_class=each.job_class or "spot",
            quota_devices=each.quota_devices or None,
            share_max=each.share_max or None,
            spot_devices=held[name],
        )
        for name, each in sorted(engine.config.organisations.items())
    )


def classes_of(engine: Engine) -> domain.ClassReport | None:
    report = engine.classes()
    if report is None:
        return None
    broken = sum(job.counts.early_preemptions for job in engine.jobs.values())
    return msgspec.structs.replace(report, broken_promises=broken)


def shown_by(seen: Iterable[PairSeen], kinds: Callable[[str, str], str]) -> list[PairSeen]:
    """The pairs, with the names of kinds as a reader may see them."""
    return [
        msgspec.structs.replace(
            each, first=kinds(each.keys[0], each.first), second=kinds(each.keys[1], each.second)
        )
        for each in seen
    ]


def pair_views(
    seen: Iterable[PairSeen],
    observations: int,
    containing: str = "",
    *,
    now_s: float = 0.0,
    sums: Mapping[tuple[str, str], accounts.Sums] = MappingProxyType({}),
) -> list[wire.PairView]:
    """The views of the pairs: those that are not made again first, then by benefit, the worst first;
    unmeasured ones last."""
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
    verdict = pair.verdict(observations)
    ways = tuple(sums.get(key, accounts.Sums()) for key in (pair.keys, pair.keys[::-1]))
    took = ways[:1] if pair.keys[0] == pair.keys[1] else ways
    alone_s, took_s = (sum(each.work_device_s for each in took), sum(each.device_s for each in took))
    first_xi, second_xi = _told_ratio(ways[0], pair.first_xi), _told_ratio(ways[1], pair.second_xi)
    return wire.PairView(
        first=pair.first,
        second=pair.second,
        first_xi=first_xi,
        second_xi=second_xi,
        first_count=pair.first_count,
        second_count=pair.second_count,
        first_never_alone=pair.first_xi is None and pair.first_not_compared > 0,
        second_never_alone=pair.second_xi is None and pair.second_not_compared > 0,
        first_predicted_xi=ways[0].predicted_xi,
        second_predicted_xi=ways[1].predicted_xi,
        alone_device_s=alone_s,
        measured_device_s=took_s,
        won_device_s=alone_s - took_s if took_s > 0.0 else None,
        benefit=1.0 / first_xi + 1.0 / second_xi - 1.0 if first_xi and second_xi else None,
        verdict=verdict,
        quarantine=_quarantine(pair, verdict, now_s),
    )


def _told_ratio(seen: accounts.Sums, learned: float | None) -> float | None:
    """The ratio that `show` tells of jobs that are remembered; of others, what was learned. Steps that are
    too few for the one are too few for the other."""
    return seen.slowdown if seen.steps > 0.0 else learned


def _quarantine(pair: PairSeen, verdict: PairVerdict, now_s: float) -> str:
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
