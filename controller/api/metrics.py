"""The controller's sheet: what its state says at one moment, and what has happened since it started.

Rule: reads, and changes nothing but its own counts. A scrape asks it once, and it looks at every job once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple, get_args

from cotenant.controller.api.etas import promise_counts
from cotenant.controller.api.leading import LeadershipNews
from cotenant.controller.domain import ENDED, ON_DEVICES, HostId, HostState, Job, JobId, Outcome, Phase
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.knowledge import signature
from cotenant.controller.system.metrics import CONTROLLER, INCIDENTS, Histogram, Sheet

MIB: Final = 1024 * 1024
WAIT_BOUNDS_S: Final = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 3 * 24 * 3600)
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)


class JobCounts(NamedTuple):
    """What has been counted of a job already."""

    started: bool
    ended: bool
    preemptions: int
    futile: int


class ServerFacts(NamedTuple):
    """What the controller's other parts know."""

    version: str
    uptime_s: float
    counters: Mapping[str, int]
    decisions: Histogram
    undelivered: int
    entries: int
    commits: int
    waiting_rows: int
    notices_waiting: int
    size_bytes: int | None
    stuck: bool
    damages: int | None = None
    """Damaged places in the journal; None: not checked yet."""
    checked_s: float | None = None
    eta_hit_ratio: float | None = None
    """Share of the last intervals told at submission that held; None: none has been compared yet."""
    leadership: LeadershipNews | None = None
    """Who leads and follows; None: the journal is a file."""


class ClusterMetrics:
    """Counts what happened since the start: of jobs from scrape to scrape, of attempts as it happens."""

    def __init__(self, engine: Engine) -> None:
        self._seen: dict[JobId, JobCounts] = {job_id: seen_of(job) for job_id, job in engine.jobs.items()}
        self._submitted = 0
        self._ended: Counter[str] = Counter()
        self._preemptions = 0
        self._futile = 0
        self._waits = Histogram(WAIT_BOUNDS_S)
        self._outcomes: Counter[tuple[HostId, Outcome]] = Counter()

    def note_event(self, event: ev.AnyEvent) -> None:
        if isinstance(event, ev.AttemptEnded):
            self._outcomes[event.host_id, event.verdict.outcome] += 1

    def sheet(self, engine: Engine, facts: ServerFacts, now_s: float) -> Sheet:
        sheet = Sheet(CONTROLLER)
        self._look(engine.jobs)
        sheet.put("cotenant_controller_info", 1, facts.version, engine.current.name)
        sheet.put("cotenant_controller_uptime_seconds", facts.uptime_s)
        sheet.put("cotenant_eta_hit_ratio", facts.eta_hit_ratio, engine.current.name)
        counts = promise_counts(engine)
        sheet.put("cotenant_promises_open", counts.open)
        for state in ("kept", "broken", "void"):
            sheet.put("cotenant_promises_total", getattr(counts, state), state)
        self._put_jobs(sheet, engine.jobs, now_s)
        _put_hosts(sheet, engine)
        self._put_outcomes(sheet, engine)
        _put_devices(sheet, engine)
        _put_pairs(sheet, engine)
        _put_classes(sheet, engine)
        _put_facts(sheet, facts)
        if facts.leadership is not None:
            _put_leadership(sheet, facts.leadership)
        return sheet.end_with("cotenant_controller_series_left_out")

    def _look(self, jobs: Mapping[JobId, Job]) -> None:
        """Count what is different since the last time."""
        now: dict[JobId, JobCounts] = {}
        for job_id, job in jobs.items():
            before, seen = self._seen.get(job_id), seen_of(job)
            now[job_id] = seen
            if before == seen:
                continue
            if before is None:
                self._submitted += 1
                before = JobCounts(started=False, ended=False, preemptions=0, futile=0)
            if seen.started and not before.started and job.first_start_s is not None:
                self._waits.observe(max(0.0, job.first_start_s - job.submitted_s))
            if seen.ended and not before.ended:
                self._ended[job.phase.value] += 1
            self._preemptions += max(0, seen.preemptions - before.preemptions)
            self._futile += max(0, seen.futile - before.futile)
        self._seen = now

    def _put_jobs(self, sheet: Sheet, jobs: Mapping[JobId, Job], now_s: float) -> None:
        phases = Counter(job.phase for job in jobs.values())
        for phase in Phase:
            sheet.put("cotenant_jobs", phases[phase], phase.value)
        queued = [now_s - job.phase_since_s for job in jobs.values() if job.phase is Phase.QUEUED]
        sheet.put("cotenant_queue_oldest_seconds", max(0.0, *queued, 0.0))
        waits = [waited_s(job, now_s) for job in jobs.values() if job.phase in (Phase.QUEUED, Phase.RESERVED)]
        sheet.put("cotenant_queue_longest_wait_seconds", max(0.0, *waits, 0.0))
        sheet.put("cotenant_jobs_submitted_total", self._submitted)
        for phase in sorted(ENDED):
            sheet.put("cotenant_jobs_ended_total", self._ended[phase.value], phase.value)
        sheet.put("cotenant_preemptions_total", self._preemptions)
        sheet.put("cotenant_futile_preemptions_total", self._futile)
        sheet.put_histogram("cotenant_queue_wait_seconds", self._waits)

    def _put_outcomes(self, sheet: Sheet, engine: Engine) -> None:
        for host_id in sorted({*engine.hosts, *(host_id for host_id, _ in self._outcomes)}):
            for outcome in OUTCOMES:
                count = self._outcomes[host_id, outcome]
                sheet.put("cotenant_attempts_ended_total", count, host_id, outcome)


def _put_classes(sheet: Sheet, engine: Engine) -> None:
    report = engine.classes()
    if report is None:
        return
    broken = sum(job.counts.early_preemptions for job in engine.jobs.values())
    sheet.put("cotenant_early_preemptions", broken)
    if report.eta is not None:
        sheet.put("cotenant_spot_eta", report.eta)
    for pool in report.pools:
        uses = {
            "hp": pool.hp_placed,
            "hp-waiting": pool.hp_waiting,
            "spot-may-take": pool.spot_may_take,
            "spot-waiting": pool.spot_waiting,
            "kept-back": pool.kept_back,
            "hp-expected": next(iter(pool.forecast_upper), None),
        }
        for use, count in uses.items():
            if count is not None:
                sheet.put("cotenant_class_devices", count, pool.device_type, use)


def seen_of(job: Job) -> JobCounts:
    return JobCounts(
        started=job.first_start_s is not None,
        ended=job.phase in ENDED,
        preemptions=job.counts.preemptions,
        futile=job.counts.futile_preemptions,
    )


def waited_s(job: Job, now_s: float) -> float:
    """How long a job that waits could have run and did not: a preemption does not start the count anew."""
    return job.spent.queued_s + now_s - job.phase_since_s


def _put_hosts(sheet: Sheet, engine: Engine) -> None:
    states = Counter(host.state for host in engine.hosts.values())
    for state in HostState:
        sheet.put("cotenant_hosts", states[state], state.value)
    for host_id, host in engine.hosts.items():
        now = host.state
        for state in HostState:
            sheet.put("cotenant_host_state", state is now, host_id, state.value)


def _put_devices(sheet: Sheet, engine: Engine) -> None:
    uses: Counter[str] = Counter()
    for host in engine.hosts.values():
        for device in host.report.devices:
            tenants = engine.tenants(device.device_id)
            is_out = not (device.healthy and host.takes_work)
            uses["shared" if len(tenants) > 1 else "alone" if tenants else "out" if is_out else "free"] += 1
            planned = [engine.jobs[job_id].placement for job_id in tenants]
            known = [each.memory_mib for each in planned if each is not None and each.memory_mib is not None]
            # One tenant whose need is unknown has the whole device.
            mib = sum(known) if len(known) == len(tenants) else device.usable_mib
            sheet.put("cotenant_device_planned_memory_bytes", mib * MIB, host.host_id, device.device_id)
    for use in ("free", "alone", "shared", "out"):
        sheet.put("cotenant_devices", uses[use], use)


def _put_pairs(sheet: Sheet, engine: Engine) -> None:
    """Jobs that share a device now; only what was measured of their kinds."""
    entries = engine.ledger.pairs.entries
    for job_id, job in engine.jobs.items():
        if job.phase not in ON_DEVICES:
            continue
        for other_id in engine.partners(job_id):
            mine, theirs = signature(job.spec), signature(engine.jobs[other_id].spec)
            one, two = entries.get(f"{mine}:{theirs}"), entries.get(f"{theirs}:{mine}")
            if one is None or not one.count:
                continue
            sheet.put("cotenant_pair_interference_ratio", one.xi, job_id, other_id)
            if two is not None and two.count and job_id < other_id:
                benefit = 1 / one.xi + 1 / two.xi - 1
                sheet.put("cotenant_pair_sharing_benefit_ratio", benefit, job_id, other_id)


def _put_facts(sheet: Sheet, facts: ServerFacts) -> None:
    counters = facts.counters
    sheet.put_histogram("cotenant_decision_seconds", facts.decisions)
    sheet.put("cotenant_events_total", counters.get("events", 0))
    sheet.put("cotenant_commands_total", counters.get("commands", 0))
    sheet.put("cotenant_commands_undelivered", facts.undelivered)
    for kind in INCIDENTS:
        sheet.put("cotenant_incidents_total", counters.get(kind, 0), kind)
    for state in ("sent", "failed"):
        sheet.put("cotenant_notices_total", counters.get(f"notices_{state}", 0), state)
    sheet.put("cotenant_notices_waiting", facts.notices_waiting)
    sheet.put("cotenant_journal_entries_total", facts.entries)
    sheet.put("cotenant_journal_commits_total", facts.commits)
    sheet.put("cotenant_journal_waiting_rows", facts.waiting_rows)
    sheet.put("cotenant_journal_size_bytes", facts.size_bytes)
    sheet.put("cotenant_journal_stuck", float(facts.stuck))
    sheet.put("cotenant_journal_damages", facts.damages)
    sheet.put("cotenant_journal_checked_seconds", facts.checked_s)


def _put_leadership(sheet: Sheet, news: LeadershipNews) -> None:
    sheet.put("cotenant_leader_term", news.leader.term)
    sheet.put("cotenant_leader_seconds", news.led_s)
    standbys = news.standbys()
    sheet.put("cotenant_standbys", len(standbys))
    for each in standbys:
        sheet.put("cotenant_standby_behind_entries", each.behind_entries, each.endpoint)
        sheet.put("cotenant_standby_behind_seconds", each.behind_s, each.endpoint)
