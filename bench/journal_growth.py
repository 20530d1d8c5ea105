"""How many MB a day the journal grows by while 1,000 jobs run, by kind of event.

    python bench/journal_growth.py [--jobs 1000] [--hours 24] [--beat-s 10] [--write PAGE.md]

The controller's loop, link, engine and journal are the real ones; the clock and the agents are simulated.
Each agent sends heartbeats with the progress of its jobs and reports starts, first steps, profiles,
checkpoints (every ten minutes) and ends. As many jobs as asked for run all the time: one that ends is
replaced. Lengths are lognormal with a mean of four hours. Of ten jobs seven keep their pace within 1 %, two
slow down by a tenth to a half for some minutes every half hour, and one's pace jumps by a fifth all the time.
Every seventh job shares its device.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import queue
import random
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import machine
import msgspec

from cotenant.controller.domain import (
    Device,
    DeviceId,
    EtaInterval,
    ExitVerdict,
    HostId,
    HostReport,
    JobId,
    JobSpec,
    Launch,
    SeenLength,
    StartAttempt,
    StopAttempt,
    ToldEta,
    ToldInterval,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import EngineConfig
from cotenant.controller.executors.agents import AgentExecutor
from cotenant.controller.loop import ControllerLoop
from cotenant.controller.performance import Profile
from cotenant.controller.policies import registry
from cotenant.controller.store import Clock, Core, Decided, Effect, Fatal, Journal
from cotenant.controller.system.keys import Identity
from cotenant.controller.system.secrets import Secrets
from cotenant.controller.wire import AttemptProgress, decode
from cotenant.controller.wire import agents as wire

DAY_S: Final = 86_400.0
DEVICES_PER_HOST: Final = 8
WARM_HOURS: Final = 2.0
WHO: Final = Identity(name="root", role="admin", uid=0, gid=0)
ETA_EVERY_S: Final = 60.0
SPEED: Final = (0.05, 0.5)
"""Seconds per step, from and to."""


@dataclass
class Run:
    """An attempt on a host."""

    start: StartAttempt
    pace_s: float
    kind: str
    length_s: float
    total_steps: int | None
    """As seen in the script's loops; None: unseen."""
    shares: bool = False
    step: float = 0.0
    trains: bool = False
    slow_until_s: float = 0.0
    slow: float = 1.0
    over: bool = False
    shown_s: float = 0.0


@dataclass
class Agent:
    """One host and its attempts."""

    host_id: HostId
    reports: int = 0
    beat: int = 0
    runs: dict[tuple[JobId, int], Run] = field(default_factory=dict)


class Site:
    """The controller, its agents, and the time."""

    def __init__(self, folder: Path, jobs: int, seed: int) -> None:
        self.now_s, self._jobs = 0.0, jobs
        self._chance = random.Random(seed)
        self._upcoming: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._durable: queue.SimpleQueue[Sequence[Effect]] = queue.SimpleQueue()
        self.journal = Journal(folder, hand_over=self._durable.put)
        self.core = Core(
            self.journal,
            registry.make,
            EngineConfig(profile_s=60.0),
            package="bench",
            wall_s=0.0,
            clock=lambda start_s: Clock(start_s, monotonic=lambda: self.now_s, wall=lambda: self.now_s),
        )
        secrets = Secrets(folder / "secrets")
        self._link = AgentExecutor(self.core, self.send, secrets, lease_s=300.0, silent_after_s=60.0)
        self.loop = ControllerLoop(self.core, self._link, NoClients(), self)
        hosts = -(-jobs * 6 // 7 // DEVICES_PER_HOST)  # One job in six finds no device of its own.
        self._agents = {f"host{at:04d}".encode(): Agent(HostId(f"host{at:04d}")) for at in range(hosts)}
        for address, agent in self._agents.items():
            self._hear(address, wire.Hello(session="s", report=report(agent.host_id), attempts=()))
        self._told_s = 0.0

    # --- What the loop asks for (`ControllerEdges`) --------------------------------------------------

    def send(self, address: bytes, frame: bytes) -> bool:
        message: Any = decode(frame, wire.ToAgent)
        if isinstance(message, wire.CommandDelivery):
            self.after(0.0, lambda: self._obey(address, message.command))
        return True

    def wake_at(self, at_s: float | None) -> None:
        if at_s is not None:
            self.after(at_s - self.now_s + 1e-6, self.loop.ring)

    def pause_reading(self, paused: bool) -> None:
        """Nothing is read here."""

    def start_computing(self, request: Any) -> None:
        """Nothing is computed."""

    def take_note(self, decided: Sequence[Decided]) -> None:
        """Nobody counts."""

    def end(self, fatal: Fatal) -> None:
        raise fatal

    # --- Time ----------------------------------------------------------------------------------------

    def after(self, wait_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._upcoming, (self.now_s + max(0.0, wait_s), next(self._count), do))

    def run_until(self, end_s: float, beat_s: float) -> None:
        while self.now_s < end_s:
            next_s = self.now_s + beat_s
            while self._upcoming and self._upcoming[0][0] <= next_s:
                self.now_s, _, do = heapq.heappop(self._upcoming)
                do()
                self._follow(200)
            self.now_s = next_s
            for address, agent in self._agents.items():
                self._beat(address, agent, beat_s)
            self._fill_up()
            self._tell_etas()
            self.loop.tick()
            self._follow(0)

    def _follow(self, waiting_max: int) -> None:
        """Effects follow when they are durable; with more rows than these on their way the disk is waited
        for."""
        if self.journal.waiting > waiting_max:
            self.journal.flush()
        while not self._durable.empty():
            self.loop.durable(self._durable.get())

    def _hear(self, address: bytes, message: Any) -> None:
        def hear() -> None:
            assert self._link.heard(address, WHO, message), message

        self.loop.guard(hear)

    # --- Users ---------------------------------------------------------------------------------------

    def _fill_up(self) -> None:
        """Keeps as many jobs as asked for, and a few that wait."""
        engine, jobs = self.core.state.engine, self.core.state.engine.jobs
        there = len(engine.ledger.queue) + sum(len(agent.runs) for agent in self._agents.values())
        for _ in range(self._jobs + self._jobs // 50 - there):
            number = engine.ledger.next_number
            self.loop.happen(ev.JobArrived(spec=job(JobId(str(number)), self._chance)))
        assert len(jobs) <= 20_000

    def _tell_etas(self) -> None:
        """What the worker that rolls out ends would have told, with any numbers."""
        if self.now_s - self._told_s < ETA_EVERY_S:
            return
        self._told_s, told, book = self.now_s, [], self.core.state.etas
        for job_id in list(book.claims):
            kind = book.kind_due(self.core.state.engine.jobs[job_id], self.now_s)
            if kind is not None:
                interval = EtaInterval(3_600.1, 7_200.1, 14_400.1)
                told.append(ToldEta(job_id=job_id, kind=kind, finish=ToldInterval(interval, interval)))
        if told:
            self.loop.happen(ev.EtasTold(at_s=self.now_s, etas=tuple(told)))

    # --- Agents --------------------------------------------------------------------------------------

    def _obey(self, address: bytes, command: Any) -> None:
        agent = self._agents[address]
        epoch = self.core.state.engine.ledger.epoch.token
        self._hear(address, wire.CommandAck(command_id=command.command_id, epoch=epoch))
        if isinstance(command, StartAttempt) and (command.job_id, command.attempt) not in agent.runs:
            self._start(address, agent, command)
        elif isinstance(command, StopAttempt):
            run = agent.runs.get((command.job_id, command.attempt))
            if run is not None:
                self._end(address, agent, run, "stopped")

    def _start(self, address: bytes, agent: Agent, command: StartAttempt) -> None:
        chance = random.Random(int(command.job_id))
        length_s = chance.lognormvariate(8.87, 1.2)  # Mean: four hours.
        if self.now_s < WARM_HOURS * 1800.0:
            length_s *= chance.random()  # The first ones are well under way.
        pace_s = chance.uniform(*SPEED)
        kind = chance.choices(("calm", "bumpy", "wild"), (7, 2, 1))[0]
        total = int(length_s / pace_s) if chance.random() < 0.7 else None
        run = Run(command, pace_s, kind, length_s, total)
        agent.runs[command.job_id, command.attempt] = run
        self._report(address, agent, run, ev.AttemptStarted, launch="cold")
        self.after(20.0, lambda: self._first_step(address, agent, run))

    def _first_step(self, address: bytes, agent: Agent, run: Run) -> None:
        if run.over:
            return
        run.trains, run.step = True, 1.0
        self._report(address, agent, run, ev.FirstStepDone, step=1)
        self.after(60.0, lambda: self._profile(address, agent, run))
        self.after(run.start.checkpoint_every_s, lambda: self._save(address, agent, run))
        self.after(run.length_s, lambda: self._end(address, agent, run, "finished"))

    def _profile(self, address: bytes, agent: Agent, run: Run) -> None:
        alone = Profile(step_s=run.pace_s, duty_cycle=0.4, load_s=20.0, steps=100, memory_mib_peak=9_000.0)
        if not run.over:
            learned = msgspec.structs.replace(alone, source="in place")
            self._report(address, agent, run, ev.ProfileLearned, profile=learned, device_type="H200")

    def _save(self, address: bytes, agent: Agent, run: Run) -> None:
        if not run.over:
            self._report(address, agent, run, ev.CheckpointDurable, step=int(run.step))
            self.after(run.start.checkpoint_every_s, lambda: self._save(address, agent, run))

    def _end(self, address: bytes, agent: Agent, run: Run, outcome: Any) -> None:
        if not run.over:
            run.over = True
            del agent.runs[run.start.job_id, run.start.attempt]
            verdict = ExitVerdict(outcome=outcome, exit_code=0)
            self._report(address, agent, run, ev.AttemptEnded, verdict=verdict, step=int(run.step))

    def _report(self, address: bytes, agent: Agent, run: Run, event: Any, **facts: Any) -> None:
        agent.reports += 1
        named = event(job_id=run.start.job_id, attempt=run.start.attempt, host_id=agent.host_id, **facts)
        message = wire.Report(
            sequence=agent.reports, event=named, epoch=run.start.epoch, job_epoch=run.start.job_epoch
        )
        self._hear(address, message)

    def _beat(self, address: bytes, agent: Agent, beat_s: float) -> None:
        agent.beat += 1
        progress = tuple(self._advance(run, beat_s) for run in agent.runs.values() if run.trains)
        self._hear(address, wire.Heartbeat(beat=agent.beat, session="s", progress=progress))

    def _advance(self, run: Run, beat_s: float) -> AttemptProgress:
        chance = self._chance
        if run.kind == "bumpy" and self.now_s >= run.slow_until_s:
            is_slow = run.slow == 1.0 and chance.random() < beat_s / 1_800.0
            run.slow = chance.uniform(1.1, 1.5) if is_slow else 1.0
            run.slow_until_s = self.now_s + (chance.uniform(60.0, 600.0) if is_slow else 0.0)
        noise = 0.2 if run.kind == "wild" else 0.01
        beside = 1.3 if self.core.state.engine.partners(run.start.job_id) else 1.0
        pace_s = run.pace_s * run.slow * beside * chance.uniform(1.0 - noise, 1.0 + noise)
        run.step += beat_s / (run.pace_s * run.slow * beside)
        return AttemptProgress(
            job_id=run.start.job_id,
            attempt=run.start.attempt,
            step=int(run.step),
            step_s=pace_s,
            loss=1.0,
            memory_mib=9_000.0,
            duty_cycle=0.4,
            length=SeenLength(steps=run.total_steps),
        )


class NoClients:
    """Nobody asks."""

    def affords(self, who: Identity, size: int) -> bool:
        return True

    def ask(self, address: bytes, who: Identity, request: Any) -> None:
        raise AssertionError(request)

    def settle(self, decided: Sequence[Decided] = ()) -> None:
        """Nobody waits."""

    def rebuilt(self) -> None:
        raise AssertionError("the disk failed")

    def tick(self) -> None:
        """Nobody is late."""


def report(host_id: HostId) -> HostReport:
    devices = tuple(
        Device(
            device_id=DeviceId(f"{host_id}/{at}"),
            host_id=host_id,
            kind="cuda",
            type="H200",
            local=f"GPU-{at}",
            memory_mib=140_000,
        )
        for at in range(DEVICES_PER_HOST)
    )
    return HostReport(host_id=host_id, devices=devices, cpus=64, address="10.0.0.1")


def job(job_id: JobId, chance: random.Random) -> JobSpec:
    """One with an environment of ordinary size, one of some hundred kinds."""
    env = {f"VARIABLE_{number}": "value" * 5 for number in range(30)}
    argv = ("python", "train.py", "--lr", str(chance.randrange(200)))
    launch = Launch(argv=argv, workdir="/home/somebody/project", env=env)
    kind: Literal["hp", "spot"] = "spot" if chance.random() < 0.5 else "hp"
    return JobSpec(
        job_id=job_id, name="train", user=f"user{chance.randrange(20)}", launch=launch, job_class=kind
    )


# --- What it has written ---------------------------------------------------------------------------


@dataclass
class Written:
    """Bytes and rows by kind of event, per day."""

    rows: Counter[str]
    size: Counter[str]
    file_bytes: float
    running: float
    took_s: float


def measure(folder: Path, options: Any) -> Written:
    began_s = time.monotonic()
    site = Site(folder, options.jobs, options.seed)
    site.run_until(WARM_HOURS * 3600.0, options.beat_s)
    site.journal.flush()
    before_seq, before_bytes = site.journal.last_seq, used_bytes(folder)
    site.run_until(site.now_s + options.hours * 3600.0, options.beat_s)
    site.journal.flush()
    running = sum(1 for agent in site._agents.values() for run in agent.runs.values() if run.trains)
    share = 24.0 / options.hours
    rows, size = by_kind(folder, before_seq, share)
    grown = (used_bytes(folder) - before_bytes) * share
    assert not site.core.counters["internal_errors"], site.core.counters
    site.journal.close()
    return Written(rows, size, grown, running, time.monotonic() - began_s)


def by_kind(folder: Path, after: int, share: float) -> tuple[Counter[str], Counter[str]]:
    """Per day: entries of each kind, and what their columns hold."""
    rows, size = Counter[str](), Counter[str]()
    database = sqlite3.connect(folder / "journal.sqlite")
    found = database.execute(
        "SELECT event, length(decision) + length(commands) FROM entries WHERE seq > ?", (after,)
    )
    for event, rest in found:
        kind = msgspec.msgpack.decode(event)["event"]
        rows[kind] += 1
        size[kind] += len(event) + rest + 26  # Its number, two times, the checksum, the row's own header.
    database.close()
    for counted in (rows, size):
        for kind in counted:
            counted[kind] = round(counted[kind] * share)
    return rows, size


def used_bytes(folder: Path) -> int:
    """What the tables take in the file but for snapshots, without what is set aside and the log."""
    database = sqlite3.connect(folder / "journal.sqlite")
    pages, free, page = (
        database.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    (snapshots,) = database.execute("SELECT coalesce(sum(length(data)), 0) FROM snapshots").fetchone()
    database.close()
    return int((pages - free) * page - snapshots)


# --- The page --------------------------------------------------------------------------------------

PAGE = """# What the journal grows by

With {jobs:,} running jobs the journal grows by {total:.0f} MB a day.

| event | a day | bytes each | MB a day |
| --- | --- | --- | --- |
{rows}
| everything, as the file grew | | | {total:.0f} |

The clock and the agents are simulated, the rest is real: {hours:g} hours of {jobs:,} jobs at a time, after
{warm:g} hours to begin with. An agent tells its jobs' progress every {beat:g} s, and reports a checkpoint
every ten minutes. Lengths: lognormal, four hours in the mean; a job that ends is replaced. Of ten jobs seven
keep their pace within 1 %, two slow down for some minutes every half hour, and one's pace jumps by a fifth
all the time; every seventh job shares its device.
Not counted: snapshots, room that is set aside, and SQLite's log; all stay as large as they are.

Command: `python bench/journal_growth.py --jobs {jobs} --hours {hours:g} --beat-s {beat:g}`
{machine} {note}
"""


def page_of(found: Written, options: Any) -> str:
    rows = [
        f"| {kind} | {found.rows[kind]:,} | {size / found.rows[kind]:.0f} | {size / 1e6:.1f} |"
        for kind, size in found.size.most_common()
        if found.rows[kind]
    ]
    return PAGE.format(
        jobs=options.jobs,
        total=found.file_bytes / 1e6,
        rows="\n".join(rows),
        hours=options.hours,
        warm=WARM_HOURS,
        beat=options.beat_s,
        machine=machine.sentences(sqlite=sqlite3.sqlite_version),
        note=options.note,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--beat-s", type=float, default=10.0, help="seconds between heartbeats")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, default=None, help="a page for experiments/results")
    parser.add_argument("--note", default="", help="a line about the circumstances, for the page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cotenant-bench-") as name:
        found = measure(Path(name), options)
    page = page_of(found, options)
    print(page)
    print(f"{found.running:.0f} trained at the end; it took {found.took_s:.0f} s")
    if options.write:
        options.write.write_text(page)


if __name__ == "__main__":
    main()
