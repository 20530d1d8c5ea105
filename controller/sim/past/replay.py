"""What a controller's journal says happened, as a workload that can be simulated again under other policies.

Rule: read-only, and it asks no policy: it folds events and recorded decisions as recovery does, so every
number here is one that the controller itself had. It counts and reports what a simulation cannot represent
(jobs without an end, hosts that differ), and never fills it in silently.

A job's true length is the time it trained: what it waited, loaded and paused depended on the policy of the
time and is left to the simulation. Jobs that failed, or were cancelled after they had trained, held their
devices as well: they count, with the time they trained. Times held back or blocked by another job are no
waiting: such a job arrives when it first could have run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.policies.base import Parameters
from cotenant.controller.sim.past.journal import NothingToReplay, Troubles, extent, fold, open_journal
from cotenant.controller.sim.world.outcome import RunResult
from cotenant.controller.sim.world.workload import Cluster, Workload

STILL_THERE: Final = "not ended yet, and never trained"
NEVER_TRAINED: Final = "ended before a first step"
BEGAN_AGAIN: Final = "queued again after it had ended: counted up to its first end"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lived:
    """A job as it ran. JCT = wait + load + run + pause; seconds."""

    job_id: domain.JobId
    name: str
    organisation: str
    gpus: int
    fraction: float
    """Below 1: the part of its one device that it asked for."""
    arrived_s: float
    """When it first could have run, on the journal's clock."""
    jct_s: float
    wait_s: float
    load_s: float
    run_s: float
    pause_s: float
    futile_s: float
    preemptions: int
    futile_preemptions: int
    aborted_preemptions: int
    shared: bool
    length_s: float
    """Training time alone."""
    is_measured: bool
    """False: it shared devices or lost work, and its step time alone is not known, so that its length has
    these losses in it."""
    is_quick: bool
    """It ended before its first step was seen."""
    expected_s: float | None
    """Its expected length when it arrived."""
    one_load_s: float
    one_pause_s: float
    preemptible: bool


class Setting(NamedTuple):
    """The policy in force at some time."""

    policy: str
    parameters: Parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalRecord:
    """A part of a journal, ready to be compared with simulations."""

    journal: str
    begin_wall_s: float
    end_wall_s: float
    jobs: tuple[Lived, ...]
    """In order of arrival; not empty."""
    excluded: dict[str, int]
    left_out_preemptions: int
    """Of jobs that go on and have never trained."""
    cluster: Cluster
    settings: dict[str, int]
    """Policies in force: name -> jobs that arrived under it."""
    setting: Setting
    """The policy under which most jobs arrived."""
    ageing_s: float
    """The engine's bound on waiting, in force at the end."""
    sharing: domain.SharingSettings
    """The bounds on sharing, in force at the end."""
    notes: tuple[str, ...]

    def outcome(self) -> RunResult:
        """What happened, in the form of a simulated run; what a journal lacks is NaN or empty."""
        jobs, cluster = self.jobs, self.cluster
        ends_s = max(job.arrived_s + job.jct_s for job in jobs)
        return RunResult(
            workload=self.workload(),
            cluster=cluster,
            policy=self.setting.policy,
            parameters=self.setting.parameters,
            seed=0,
            jct_s=np.array([job.jct_s for job in jobs]),
            wait_s=np.array([job.wait_s for job in jobs]),
            load_s=np.array([job.load_s for job in jobs]),
            run_s=np.array([job.run_s for job in jobs]),
            pause_s=np.array([job.pause_s for job in jobs]),
            futile_s=np.array([job.futile_s for job in jobs]),
            preemptions=np.array([job.preemptions for job in jobs], np.int32),
            futile_preemptions=np.array([job.futile_preemptions for job in jobs], np.int32),
            aborted_preemptions=np.array([job.aborted_preemptions for job in jobs], np.int32),
            early_preemptions=np.zeros(len(jobs), np.int32),
            resizes=np.zeros(len(jobs), np.int32),
            rework_s=np.zeros(len(jobs)),
            sharing_benefit=np.full(len(jobs), np.nan),
            shared=np.array([job.shared for job in jobs]),
            finished=np.ones(len(jobs), np.bool_),
            makespan_s=ends_s - jobs[0].arrived_s,
            busy_gpu_s=float("nan"),
            arriving_s=float("nan"),
            arriving_gpu_s=float("nan"),
            events=0,
            decision_ns=np.empty(0, np.int64),
            wall_s=0.0,
            cpu_s=0.0,
        )

    def workload(self) -> Workload:
        """The workload of the same arrivals, lengths, loads and pauses, for any policy."""
        jobs = self.jobs
        first_s = jobs[0].arrived_s
        organisations = tuple(dict.fromkeys(job.organisation for job in jobs))
        known = [job.expected_s for job in jobs if job.expected_s is not None]
        usual_s = float(np.median(known or [job.length_s for job in jobs]))
        return Workload(
            name=self.journal,
            synthetic=False,
            submit_s=np.array([job.arrived_s - first_s for job in jobs]),
            duration_s=np.array([job.length_s for job in jobs]),
            expected_s=np.array([usual_s if job.expected_s is None else job.expected_s for job in jobs]),
            gpus=np.array([job.gpus for job in jobs], np.int32),
            load_s=np.array([job.one_load_s for job in jobs]),
            pause_s=np.array([job.one_pause_s for job in jobs]),
            model=np.full(len(jobs), -1, np.int16),
            models=(),
            # Neither is ever preempted, which is what this column means to the simulated engine.
            hp=np.array([not job.preemptible for job in jobs]),
            organisation=np.array([organisations.index(job.organisation) for job in jobs], np.int16),
            organisations=organisations,
            job_ids=tuple(job.job_id for job in jobs),
            excluded=self.excluded,
            fractions=tuple(job.fraction for job in jobs) if any(job.fraction < 1.0 for job in jobs) else (),
        )


def read_journal(where: Path | str, *, since_s: float | None = None) -> JournalRecord:
    """What happened, from a state folder or a journal file; also of a controller that is running.

    Args:
        since_s: only jobs that arrived in so many seconds before the journal's last entry.

    Raises:
        JournalError: there is no journal, or it cannot be read.
        NothingToReplay: no job in it has both arrived and trained.
    """
    with open_journal(where) as journal:
        runs, last_s, last_wall_s = extent(journal)
        watcher = _Watcher(0.0 if since_s is None else max(0.0, last_s - since_s))
        watcher.finish(fold(journal, runs, watcher.observe))
    return watcher.record(journal.place, end_s=last_s, end_wall_s=last_wall_s)


# --- Watching ----------------------------------------------------------------------------------------


class _Open:
    """A job that has arrived and not ended."""

    def __init__(self, expected_s: float | None) -> None:
        self.expected_s = expected_s
        self.arrived_s: float | None = None
        self.loads: list[float] = []
        self.pauses: list[float] = []
        self.lost_work = False


class _Watcher:
    """Observes the engine after every event, and keeps what the engine forgets."""

    def __init__(self, begin_s: float) -> None:
        self._begin_s = begin_s
        self._open: dict[domain.JobId, _Open] = {}
        self._waiting_to_arrive: dict[domain.JobId, None] = {}
        self._jobs: list[Lived] = []
        self._unended = 0
        """Of these, how many go on."""
        self._put_off = 0
        """Preemptions of those that go on and have never trained."""
        self._excluded: Counter[str] = Counter()
        self._settings: Counter[str] = Counter()
        self._parameters: dict[str, Parameters] = {}
        self._devices: dict[domain.HostId, int] = {}
        self._max_tenants = 1
        self._memory_mib = 1
        self._has_begun = False
        self._ageing_s = 0.0
        self._sharing = domain.NO_BOUNDS
        self._troubles = Troubles(begin_s)

    def observe(self, engine: Engine, event: ev.AnyEvent, commands: list[domain.AnyCommand]) -> None:
        if isinstance(event, ev.JobArrived):
            self._note_arrival(engine, event)
        elif isinstance(event, ev.RequeueRequested):
            job = engine.jobs.get(event.job_id)
            again = job is not None and job.phase not in domain.ENDED and event.job_id not in self._open
            self._excluded[BEGAN_AGAIN] += again
        job_id = getattr(event, "job_id", None)
        if isinstance(event, ev.FirstStepDone | ev.AttemptEnded):
            self._phase_ended(engine, event)
        for waiting_id in list(self._waiting_to_arrive):
            self._may_arrive(engine, waiting_id)
        for command in commands:
            if isinstance(command, domain.StartAttempt) and command.job_id in self._open:
                self._may_arrive(engine, command.job_id)
        if isinstance(event, ev.HostJoined | ev.HostLost) or not self._has_begun:
            self._look_at_hosts(engine)
        if isinstance(event, ev.HostLost):
            self._host_lost(engine)
        elif job_id in self._open:
            self._may_end(engine, job_id)
        self._troubles.observe(engine, event)

    def finish(self, engine: Engine) -> None:
        """Ends, at the journal's end, the jobs that another one's end has ended, and counts those that go on
        with what they have had by then: leaving them out would leave out those that were put off most."""
        self._ageing_s, self._sharing = engine.config.policy.ageing_s, engine.config.sharing
        for job_id in list(self._open):
            self._may_end(engine, job_id)
        for job_id, kept in list(self._open.items()):
            job = engine.jobs[job_id]
            if kept.arrived_s is None or kept.arrived_s < self._begin_s:
                continue
            if job.ran_s(engine.now_s) > 0.0:
                del self._open[job_id]
                self._jobs.append(_lived_job(job, kept, kept.arrived_s, engine.now_s))
                self._unended += 1
            else:
                self._put_off += job.counts.preemptions

    def _host_lost(self, engine: Engine) -> None:
        for job_id, kept in list(self._open.items()):
            job = engine.jobs.get(job_id)
            if job is not None and job.attempt.stop_cause == "lost":
                kept.lost_work = True
                self._troubles.note_loss(engine, job_id)
            self._may_end(engine, job_id)

    def _note_arrival(self, engine: Engine, event: ev.JobArrived) -> None:
        job = engine.jobs.get(event.spec.job_id)
        if job is not None and job.job_id not in self._open and job.phase not in domain.ENDED:
            # Placed at once or not: its estimate only moves with its progress.
            self._open[job.job_id] = _Open(job.estimate.remaining_s)
            self._waiting_to_arrive[job.job_id] = None

    def _may_arrive(self, engine: Engine, job_id: domain.JobId) -> None:
        job = engine.jobs.get(job_id)
        if (
            job is None
            or job.phase in (domain.Phase.HELD, domain.Phase.BLOCKED)
            or job_id not in self._waiting_to_arrive
        ):
            return
        del self._waiting_to_arrive[job_id]
        self._open[job_id].arrived_s = engine.now_s
        if engine.now_s >= self._begin_s:
            self._settings[engine.current.name] += 1
            self._parameters[engine.current.name] = dict(engine.current.parameters)

    def _phase_ended(self, engine: Engine, event: ev.FirstStepDone | ev.AttemptEnded) -> None:
        """Notes how long a load or a pause took that came to its end."""
        job, kept = engine.jobs.get(event.job_id), self._open.get(event.job_id)
        if job is None or kept is None:
            return
        if isinstance(event, ev.FirstStepDone):
            spent = job.spent.load_s - job.spent.futile_s - sum(kept.loads)
            if not event.assumed and spent > 0.0:
                kept.loads.append(spent)
            return
        spent = job.spent.pause_s - sum(kept.pauses)
        if spent > 0.0 and event.verdict.outcome == "stopped":
            kept.pauses.append(spent)
        if event.verdict.outcome == "infra-failed":
            kept.lost_work = True

    def _look_at_hosts(self, engine: Engine) -> None:
        """The most devices there were at one time since the part asked for began."""
        if not self._has_begun and engine.now_s >= self._begin_s:
            self._has_begun, self._devices = True, {}
        present = {host_id: host for host_id, host in engine.hosts.items() if not host.lost}
        devices = {host_id: len(host.report.devices) for host_id, host in present.items()}
        if sum(devices.values()) >= sum(self._devices.values()):
            self._devices = devices
            every = [device for host in present.values() for device in host.report.devices]
            self._max_tenants = max((device.max_tenants for device in every), default=1)
            self._memory_mib = min((device.memory_mib for device in every), default=1)

    def _may_end(self, engine: Engine, job_id: domain.JobId) -> None:
        job = engine.jobs.get(job_id)
        if job is not None and job.phase not in domain.ENDED:
            return
        kept = self._open.pop(job_id)
        self._waiting_to_arrive.pop(job_id, None)
        if kept.arrived_s is not None and kept.arrived_s < self._begin_s:
            return
        if job is None or kept.arrived_s is None or job.spent.run_s <= 0.0:
            self._excluded[NEVER_TRAINED] += 1
        else:
            self._jobs.append(_lived_job(job, kept, kept.arrived_s, engine.now_s))

    # --- The outcome -----------------------------------------------------------------------------

    def record(self, place: str, *, end_s: float, end_wall_s: float) -> JournalRecord:
        excluded = Counter(self._excluded)
        excluded[STILL_THERE] += sum(
            1 for job in self._open.values() if job.arrived_s is None or job.arrived_s >= self._begin_s
        )
        if not self._jobs or not self._devices:
            raise NothingToReplay(
                f"{place}: no job that arrived in this part of the journal has trained "
                f"({excluded[STILL_THERE]} not ended yet)"
            )
        jobs = tuple(sorted(self._jobs, key=lambda job: (job.arrived_s, job.job_id)))
        name = self._settings.most_common(1)[0][0]
        cluster, about_hosts = self._cluster()
        begin_s = max(self._begin_s, jobs[0].arrived_s)
        return JournalRecord(
            journal=place,
            begin_wall_s=end_wall_s - (end_s - begin_s),
            end_wall_s=end_wall_s,
            jobs=jobs,
            excluded={reason: count for reason, count in sorted(excluded.items()) if count},
            left_out_preemptions=self._put_off,
            cluster=cluster,
            settings=dict(self._settings),
            setting=Setting(name, self._parameters[name]),
            ageing_s=self._ageing_s,
            sharing=self._sharing,
            notes=(
                *self._troubles.notes(sum(self._devices.values()), end_s),
                *about_hosts,
                *_about_jobs(jobs),
                *_about_open(excluded[STILL_THERE], self._put_off),
                *_about_unended(self._unended),
                *self._about_policies(name),
            ),
        )

    def _cluster(self) -> tuple[Cluster, list[str]]:
        sizes = Counter(count for count in self._devices.values() if count)
        size, total = sizes.most_common(1)[0][0], sum(self._devices.values())
        hosts = max(1, round(total / size))
        notes = []
        if len(sizes) > 1:
            notes.append(
                f"the hosts differ: {total} devices are simulated as {hosts} hosts of {size}, so gangs may "
                "fit differently"
            )
        cluster = Cluster(
            hosts=hosts, gpus_per_host=size, memory_mib=self._memory_mib, max_tenants=self._max_tenants
        )
        return cluster, notes

    def _about_policies(self, name: str) -> list[str]:
        others = {other: count for other, count in self._settings.items() if other != name}
        if not others:
            return []
        said = ", ".join(f"{count} under {other}" for other, count in sorted(others.items()))
        return [f"the policy changed meanwhile: most jobs arrived under {name}, {said}"]


def _about_jobs(jobs: tuple[Lived, ...]) -> list[str]:
    notes = []
    if blurred := sum(not job.is_measured for job in jobs):
        notes.append(
            f"{_jobs(blurred)} shared devices or lost work, and their step time alone is not known: their "
            "length has that in it"
        )
    if quick := sum(job.is_quick for job in jobs):
        notes.append(f"{_jobs(quick)} ended well before a first step was seen: all of it counts as training")
    if unknown := sum(job.expected_s is None for job in jobs):
        notes.append(f"of {_jobs(unknown)} no length was expected: policies are told the median, if any")
    if pinned := sum(not job.preemptible for job in jobs):
        notes.append(f"never preempted, here either: {_jobs(pinned)} of class hp, or with no way to resume")
    return notes


def _about_open(count: int, preemptions: int) -> list[str]:
    if not count:
        return []
    suffered = f"; they were preempted {preemptions:,} times" if preemptions else ""
    who = f"{_jobs(count)} without an end or any training yet"
    return [f"the devices that {who} held and waited for are free in the simulations{suffered}"]


def _about_unended(count: int) -> list[str]:
    if not count:
        return []
    return [f"{_jobs(count)} without an end yet count with what they had trained by the journal's end"]


def _jobs(count: int) -> str:
    return f"{count:,} job{'' if count == 1 else 's'}"


def _lived_job(job: domain.Job, kept: _Open, arrived_s: float, now_s: float) -> Lived:
    ended_s = now_s if job.ended_s is None else job.ended_s
    jct_s = max(0.0, ended_s - arrived_s)
    _, load_s, run_s, pause_s = job.times(now_s)
    is_quick = load_s <= job.spent.futile_s
    if is_quick:
        kept.loads = [0.0]
    blurred = kept.lost_work or bool(job.co_tenants)
    alone_s = (
        None
        if job.measured.solo_step_s is None or job.progress.step < 1
        else job.measured.solo_step_s * job.progress.step
    )
    return Lived(
        job_id=job.job_id,
        name=job.spec.name,
        organisation=job.spec.organisation or job.spec.user,
        gpus=job.spec.gpus,
        fraction=job.spec.gpu_fraction,
        arrived_s=arrived_s,
        jct_s=jct_s,
        wait_s=max(0.0, jct_s - load_s - run_s - pause_s),
        load_s=load_s,
        run_s=run_s,
        pause_s=pause_s,
        futile_s=job.spent.futile_s,
        preemptions=job.counts.preemptions,
        futile_preemptions=job.counts.futile_preemptions,
        aborted_preemptions=job.counts.aborted_preemptions,
        shared=bool(job.co_tenants),
        length_s=min(alone_s, run_s) if blurred and alone_s is not None else run_s,
        is_measured=not blurred or alone_s is not None,
        is_quick=is_quick,
        expected_s=kept.expected_s,
        one_load_s=sum(kept.loads) / len(kept.loads) if kept.loads else job.estimate.load_s,
        one_pause_s=sum(kept.pauses) / len(kept.pauses) if kept.pauses else job.estimate.pause_s,
        preemptible=job.preemptible,
    )
