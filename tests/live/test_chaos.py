"""`kill -9` of everything while six real training jobs run: all finish, exactly right, and none ran twice.

The seed chooses who is hit and when. A moment is an event ("gang is RUNNING and past step 12"), and a job
that a blow is meant for waits at its gate, so that no blow comes too late on a fast machine or too early
on a slow one. The controller and the agent are started again at once, as a service manager would;
supervisors and workers are the controller's business.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from cotenant.controller.domain import events as ev
from cotenant.controller.domain.ids import JobId
from cotenant.controller.domain.job import ENDED, LEAVING, ON_DEVICES, Phase
from cotenant.controller.domain.perf import Profile, ProfilePoint
from cotenant.controller.engine import Engine, EngineConfig
from cotenant.controller.journal.journal import Journal
from cotenant.controller.journal.recovery import State, read_entry, replay
from cotenant.controller.policies import registry
from cotenant.controller.wire.clients import JobView, SetPolicy, Shown
from cotenant.controller.wire.codec import unpack
from tests.live.cluster import Cluster, References, Training, all_done, is_past, kill_if

HOST = "h1"
TRAINED = (Phase.RUNNING, Phase.CHECKPOINTING, Phase.DONE)
KINDS = ("controller", "agent", "supervisor", "worker")
KEPT = ("phase", "attempt", "preemptions", "durable_step", "wait_s", "load_s", "run_s", "pause_s", "ended_s")
"""What the controller knows from its journal; telemetry is not in it."""
SLOT_MIB = 1000
"""Holds one whole batch of `behaviour`, and beside it only half of another."""


def behaviour(batch_size: int) -> Profile:
    """What the jobs declare. Half a batch costs little time and saves much memory, so sharing pays."""
    whole = ProfilePoint(sub_batch=batch_size, accumulation_steps=1, step_s=0.03, memory_mib=600)
    half = ProfilePoint(sub_batch=batch_size // 2, accumulation_steps=2, step_s=0.032, memory_mib=350)
    return Profile(points=(whole, half), duty_cycle=0.4)


def training(name: str, script: str, steps: int, gate_at: int, workers: int = 1) -> Training:
    return Training(
        name=name,
        script=script,
        steps=steps,
        workers=workers,
        batch_size=4,
        gate_at=gate_at,
        profile=behaviour(4),
    )


GANG = training("gang", "language_model", 500, 60, workers=2)
DIGITS = training("digits", "compute_bound", 400, 60)
LOADER = training("loader", "loader_bound", 300, 60)
BRIEF = training("brief", "compute_bound", 40, 20)
PAIR = training("pair", "memory_heavy", 24, 20, workers=2)
TINY = training("tiny", "language_model", 30, 20)


@dataclass(frozen=True, kw_only=True)
class Blow:
    """Who is killed at one moment."""

    kinds: tuple[str, ...]
    name: str
    """The job whose moment it is; empty: any that is on devices."""
    phase: Phase
    step: int = 0


def blows(kinds: Sequence[str], names: Sequence[str], rng: random.Random) -> list[Blow]:
    """All kinds, in any order; the agent often dies together with the next, and is not there to see it."""
    groups: list[tuple[str, ...]] = []
    for kind in rng.sample(kinds, len(kinds)):
        if groups and groups[-1] == ("agent",) and rng.random() < 0.5:
            groups[-1] = ("agent", kind)
        else:
            groups.append((kind,))
    return [
        Blow(
            kinds=group,
            name=rng.choice(names),
            phase=rng.choice((Phase.LOADING, Phase.RUNNING)),
            step=rng.randint(2, 30),
        )
        for group in groups
    ]


class Storm:
    """Strikes at a cluster, one blow after the other."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._ran: set[tuple[JobId, int]] = set()
        """Attempts that were seen to train."""
        self._ran_at_last_wound = -1
        self.struck: list[str] = []

    def strike_all(self, blows: Sequence[Blow]) -> None:
        for blow in blows:
            print(blow)
            self._strike(blow)

    def _strike(self, blow: Blow) -> None:
        """Wait for the moment, kill, and start again what a service manager would."""
        victims: list[int] = []

        def hit(jobs: dict[JobId, JobView]) -> bool:
            self._ran |= {(j.job_id, j.attempt) for j in jobs.values() if j.phase in TRAINED}
            found = self._victims(blow, jobs)
            victims[:] = found or []
            return found is not None and self._kill(blow, victims)

        self._cluster.until(hit)
        self.struck += blow.kinds
        if {"supervisor", "worker"} & set(blow.kinds):
            self._ran_at_last_wound = len(self._ran)
        daemons = [d for d in (self._cluster.controller, self._cluster.agents[HOST]) if d and not d.process]
        for daemon in daemons:
            daemon.launch()
        for daemon in daemons:
            daemon.await_ready()

    def _victims(self, blow: Blow, jobs: dict[JobId, JobView]) -> list[int] | None:
        """The processes of the moment's job to be killed; None: it is not the moment."""
        job = self._job_of(blow, jobs)
        if job is None:
            return None
        wounds = [kind for kind in blow.kinds if kind in ("supervisor", "worker")]
        if wounds and len(self._ran) <= self._ran_at_last_wound:
            return None  # Three failures in a row would make the host suspect, and rightly so.
        pids = [self._pid(kind, job) for kind in wounds]
        return None if None in pids else [pid for pid in pids if pid is not None]

    def _job_of(self, blow: Blow, jobs: dict[JobId, JobView]) -> JobView | None:
        on_devices = sorted((j for j in jobs.values() if j.phase in ON_DEVICES), key=lambda j: j.job_id)
        job = next((j for j in jobs.values() if j.name == blow.name), None)
        if job is None or job.phase in ENDED:
            return self._rng.choice(on_devices) if on_devices else None
        if blow.phase in LEAVING:
            return job if job.phase in LEAVING else None
        if job.phase is Phase.LOADING:
            return job if blow.phase is Phase.LOADING else None
        step = 0 if blow.phase is Phase.LOADING else blow.step
        return job if is_past(job, step) or self._cluster.is_at_gate(job) else None

    def _pid(self, kind: str, job: JobView) -> int | None:
        if kind == "supervisor":
            return self._cluster.supervisor(HOST, job.job_id, job.attempt)
        ran = [
            pid
            for starts in self._cluster.starts(job.job_id).values()
            for n, pid in starts
            if n == job.attempt
        ]
        return self._rng.choice(ran) if ran else None

    def _kill(self, blow: Blow, victims: list[int]) -> bool:
        """False: a victim had ended just before; another moment will come."""
        if not all(kill_if(pid, str(self._cluster.folder).encode()) for pid in victims):
            return False
        if "agent" in blow.kinds:
            self._cluster.agents[HOST].kill()
        if "controller" in blow.kinds:
            assert self._cluster.controller is not None
            self._cluster.controller.kill()
        return True


def test_all_finish_right_and_none_runs_twice_whoever_is_killed(
    cluster: Cluster, references: References, seed: int
) -> None:
    rng = random.Random(seed)
    cluster.add_controller(
        "policy.name=castor",
        "policy.back_off_s=0.5",
        "policy.infra_retries=20",
        "checkpoint.every_s=0.5",
        "controller.snapshot_every=50",
    ).start()
    cluster.add_agent(
        HOST,
        "agent.devices=cpu:2",
        f"agent.slot_memory_mib={SLOT_MIB}",
        "agent.heartbeat_s=0.25",
        f"checkpoint.root={cluster.folder / 'checkpoints'}",
    ).start()
    storm = Storm(cluster, rng)

    # Act 1: two jobs share the gang's devices, and each part is hit once.
    gang, digits, loader = (cluster.submit(each) for each in (GANG, DIGITS, LOADER))
    storm.strike_all(blows(KINDS, ("gang", "digits", "loader"), rng))
    cluster.until(lambda jobs: all(is_past(jobs[job], 1) for job in (digits, loader)))
    cluster.until(lambda jobs: cluster.trains_at_gate(jobs[gang]))

    # Act 2: a shorter job preempts the gang and one of its guests, and somebody dies before they have saved.
    cluster.client.ask(SetPolicy(name="srtf"))
    brief = cluster.submit(BRIEF)
    storm.strike_all([Blow(kinds=(rng.choice(KINDS),), name="gang", phase=Phase.CHECKPOINTING)])
    for job in (gang, digits, loader):
        cluster.open_gate(job)

    # Act 3: on to the end, not without losses. The last job's gate stays closed while anybody may be hit.
    pair, tiny = cluster.submit(PAIR), cluster.submit(TINY)
    cluster.open_gate(pair)
    first, *others = blows(rng.sample(KINDS, 3), ("brief",), rng)
    storm.strike_all([first])
    cluster.open_gate(brief)
    storm.strike_all([replace(blow, name="") for blow in others])
    cluster.open_gate(tiny)
    wanted = [gang, digits, loader, brief, pair, tiny]
    cluster.until(lambda jobs: all_done(jobs, wanted))

    shown = {job: cluster.check_history(job) for job in wanted}
    check_what_happened(shown, storm.struck)
    for job in wanted:
        expected = references.sha256(cluster.trainings[job], shown[job].attempts)
        assert cluster.sha256(job) == expected, f"{cluster.trainings[job].name}: {shown[job].attempts}"
    check_records(cluster, shown)


def check_what_happened(shown: dict[JobId, Shown], struck: list[str]) -> None:
    """The storm was one: everybody was hit, devices were shared, s was above 1, jobs were preempted."""
    attempts = [attempt for each in shown.values() for attempt in each.attempts]
    resumed = sum(attempt.start_step > 0 for attempt in attempts)
    print(f"struck: {struck}; {len(attempts)} attempts of {len(shown)} jobs, {resumed} resumed past step 0")
    assert set(struck) == set(KINDS)
    assert any(attempt.co_tenants for attempt in attempts)
    assert any(attempt.accumulation_steps > 1 and attempt.first_step for attempt in attempts)
    assert any(each.job.preemptions for each in shown.values())


def check_records(cluster: Cluster, shown: dict[JobId, Shown]) -> None:
    """What agent, controller and journal say of it agrees, also after one more crash."""
    for job_id, each in shown.items():
        results = [cluster.result(HOST, job_id, a.attempt) for a in each.attempts]
        outcomes = [result.outcome if result is not None else "never-started" for result in results]
        assert [outcome == "finished" for outcome in outcomes] == [
            a.outcome == "finished" for a in each.attempts
        ]
    controller = cluster.controller
    assert controller is not None
    controller.kill()
    controller.start()
    for job_id, before in shown.items():
        after = cluster.shown(job_id)
        assert after.attempts == before.attempts
        assert [getattr(after.job, name) for name in KEPT] == [getattr(before.job, name) for name in KEPT]
    cluster.await_no_process()
    controller.stop()
    check_journal(cluster.folder / "controller", shown)


def check_journal(folder: Path, shown: dict[JobId, Shown]) -> None:
    journal = Journal(folder)
    try:
        replayed = replay(journal, registry.make, version("cotenant"))
        assert (replayed.differences, replayed.note) == ((), "")
        events = [event for event, _ in folded(journal)]
    finally:
        journal.close()
    started = [(e.job_id, e.attempt) for e in events if isinstance(e, ev.AttemptStarted)]
    ended = [(e.job_id, e.attempt) for e in events if isinstance(e, ev.AttemptEnded)]
    assert len(set(started)) == len(started)
    assert len(set(ended)) == len(ended)
    assert sorted(ended) == sorted(
        (job_id, a.attempt) for job_id, each in shown.items() for a in each.attempts
    )


def folded(journal: Journal) -> Iterator[tuple[ev.AnyEvent, State]]:
    """Every event, with all invariants checked after it."""
    config: EngineConfig = unpack(journal.runs()[0].configuration, EngineConfig)
    state = State(Engine(registry.make, config, validate=True))
    for entry in journal.entries():
        event, decision = read_entry(journal, entry)
        state.fold(event, decision, entry.now_s)
        yield event, state
