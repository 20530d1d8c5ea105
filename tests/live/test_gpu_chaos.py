"""A whole GPU host under random faults: NVML, Xids, memory, MPS and every process of ours, out of one seed.

Real are the controller, the agent with its watchers, the supervisors, the daemons of MPS (the genuine
control program where it is installed, in every third seed) and the jobs; the GPUs are not. Nothing is asked
that cannot be seen from outside: what ranks find when they begin, files, /proc, the journal.

One seed by default. Others: COTENANT_CHAOS_SEEDS=FIRST:COUNT. A failure prints its schedule.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.agent.daemon.supervisors import stored_orders
from cotenant.controller.domain import ENDED, JobId, Phase
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig
from cotenant.controller.performance import Profile, ProfilePoint
from cotenant.controller.policies import registry
from cotenant.controller.store import Journal, RecoveredState, read_entry
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import unpack
from cotenant.mps.environment import PIPE_DIRECTORY
from cotenant.mps.process import OWNER_MARK, environment_of
from tests.building.limits import within_s
from tests.live.cluster import LOOK_S, PATIENCE_S, Cluster, command, wait_for_exit
from tests.live.gpu_host import UUIDS, GpuHost
from tests.live.gpu_storm import HOST, Blow, Storm, schedule
from tests.mps.conftest import GENUINE

AGENT = Path(__file__).with_name("gpu_agent.py")
JOB = Path(__file__).with_name("gpu_job.py")
JOBS = 12
AT_ONCE = 6
"""Before the first blow."""
BLOWS = 24
WAIT_LOOKS = 20
"""A blow that wants somebody on its GPU waits so long for them."""
LOOKS_MAX = 900
RESUME_EVERY = 15
LEAVE_S = within_s(60.0)
FIRST, _, COUNT = os.environ.get("COTENANT_CHAOS_SEEDS", "3:1").partition(":")
SEEDS = range(int(FIRST), int(FIRST) + int(COUNT or "1"))
KEPT = ("phase", "attempt", "preemptions", "durable_step", "reason")


@pytest.fixture
def runtime() -> Iterator[Path]:
    """Short, for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="m-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def program_of(seed: int) -> str:
    if seed % 3 == 1:
        return "genuine" if GENUINE is not None else "none"
    return "none" if seed % 12 == 2 else "stub"


def start(cluster: Cluster, host: GpuHost, rng: random.Random) -> None:
    policy = rng.choice(("castor", "sjf-ffs"))
    print(f"MPS: {host.program}, policy {policy}")
    cluster.add_controller(
        f"policy.name={policy}",
        "controller.eta_share=0.1",
        "policy.back_off_s=0.2",
        "policy.infra_retries=100",
        "controller.snapshot_every=100",
    ).start()
    agent = cluster.add_agent(
        HOST,
        "agent.devices=cuda",
        "agent.heartbeat_s=0.25",
        f"checkpoint.root={cluster.folder / 'checkpoints'}",
        f"mps.runtime_dir={host.runtime}",
        f"mps.mode={'off' if host.program == 'none' else 'per-device' if host.per_device else 'auto'}",
        "metrics.every_s=0.5",
    )
    agent.words[1:3] = [str(AGENT)]
    agent.env |= host.environment()
    agent.start()


def submit(cluster: Cluster, host: GpuHost, number: int, rng: random.Random) -> JobId:
    """One more job: every fourth is a gang of two."""
    name = f"{JOB.stem}-{number}"
    workers = 2 if number % 4 == 3 else 1
    whole = ProfilePoint(sub_batch=4, accumulation_steps=1, step_s=0.05, memory_mib=20_000)
    half = ProfilePoint(sub_batch=2, accumulation_steps=2, step_s=0.052, memory_mib=12_000)
    argv = (sys.executable, str(JOB), str(rng.randint(80, 240)), "0.05", name)
    return cluster.send(
        name,
        argv,
        env={"TMPDIR": str(cluster.folder / "tmp"), **host.environment_of_jobs()},
        gpus_min=workers,
        gpus_max=workers,
        batch_size=4,
        iterations=int(argv[2]),
        profile=Profile(points=(whole, half), duty_cycle=0.4),
    )


class Run:
    """One storm over one host, from the first job to the last."""

    def __init__(self, cluster: Cluster, host: GpuHost, rng: random.Random) -> None:
        self.cluster, self.host, self.rng = cluster, host, rng
        self.storm = Storm(cluster, host)
        self.jobs: list[JobId] = []
        self.looks = 0

    def look(self) -> dict[JobId, wire.JobView]:
        """One look, and everything that must hold at any moment."""
        self.looks += 1
        assert self.looks < LOOKS_MAX, {j.name: (j.phase, j.reason) for j in self.cluster.look().values()}
        open_jobs = wire.WaitJobs(job_ids=tuple(self.jobs), timeout_s=LOOK_S)
        self.cluster.client.ask(open_jobs, timeout_s=PATIENCE_S)
        self.storm.look()
        agent = self.cluster.agents[HOST]
        ended = agent.process.poll() if agent.process is not None else None
        assert ended is None, f"the agent ended by itself ({ended}): {tail(agent.log)}"
        check_starts(self.host)
        return self.cluster.look()

    def go(self, blows: list[Blow]) -> dict[JobId, wire.JobView]:
        for number, blow in enumerate(blows):
            while len(self.jobs) < min(JOBS, AT_ONCE + number * JOBS // len(blows)):
                self.submit()
            for _ in range(blow.pause):
                self.look()
            for _ in range(WAIT_LOOKS):
                if self.host.tenants(UUIDS[blow.gpu]):
                    break
                self.look()
            self.storm.strike(blow)
        while len(self.jobs) < JOBS:
            self.submit()
        self.storm.calm()
        if self.storm.is_coming:
            self.cluster.agents[HOST].await_ready()
        return self.end()

    def submit(self) -> None:
        self.jobs.append(submit(self.cluster, self.host, len(self.jobs), self.rng))

    def end(self) -> dict[JobId, wire.JobView]:
        """No more faults: what is wanted of a person is done, until every job has ended."""
        for index in range(len(UUIDS)):
            self.host.reset(index)
        jobs = self.look()
        while any(job.phase not in ENDED for job in jobs.values()):
            jobs = self.look()
            if self.looks % RESUME_EVERY == 0:
                (node,) = self.cluster.client.ask(wire.ListNodes()).nodes
                if node.reason or not all(device.healthy for device in node.devices):
                    self.cluster.client.ask(wire.ChangeNode(verb="resume", host_id=node.host))
        return jobs


@pytest.mark.parametrize("per_device", [False, True], ids=["one daemon", "a daemon per device"])
@pytest.mark.parametrize("chaos_seed", SEEDS)
def test_a_gpu_host_in_a_storm_loses_no_job_and_blames_nobody_wrongly(
    cluster: Cluster, runtime: Path, chaos_seed: int, per_device: bool
) -> None:
    rng = random.Random(chaos_seed)
    base = cluster.folder / "gpus"
    base.mkdir()
    program = program_of(chaos_seed)
    host = GpuHost(base, runtime, cluster.state(HOST), program=program, per_device=per_device)
    run = Run(cluster, host, rng)
    print(f"seed {chaos_seed}")
    try:
        start(cluster, host, rng)
        jobs = run.go(schedule(rng, run.storm.kinds, BLOWS))
        shown = {job_id: cluster.shown(job_id) for job_id in jobs}
        check_ends(run, shown)
        check_pairs(run)
        check_nothing_is_left(run)
        check_journal(cluster, jobs)
    finally:
        print("\n".join(run.storm.deeds.told))
        host.close()


# --- What must hold --------------------------------------------------------------------------------


def check_starts(host: GpuHost) -> None:
    """What each rank found when it began: room on its device, and nothing known against it."""
    for each in host.witnessed():
        where = f"job {each['job']} attempt {each['attempt']} rank {each['rank']} on {each['gpu']}"
        assert not each["twins"], f"{where}: an earlier attempt lives: {each['twins']}"
        others = {other["job"] for other in each["beside"]} - {each["job"]}
        assert len(others) <= 1, f"{where}: beside {sorted(others)}"
        assert {other["uid"] for other in each["beside"]} <= {each["uid"]}, where
        assert not each["against"], f"{where}: started on a device that is {each['against']}"


def check_ends(run: Run, shown: dict[JobId, wire.Shown]) -> None:
    """Every job is done, or failed by its own fault alone; steps never go back before a save."""
    deeds = run.storm.deeds
    for job_id, each in shown.items():
        print(f"job {job_id}: {each.job.phase}: {each.job.reason}")
        for attempt in each.attempts:
            print(
                f"  {attempt.attempt}: {attempt.start_step}..{attempt.end_step}"
                f" {attempt.outcome}: {attempt.reason}"
            )
        assert each.job.phase in (Phase.DONE, Phase.FAILED), (job_id, each.job.phase, each.job.reason)
        for attempt in each.attempts:
            if attempt.outcome != "user-failed" or (job_id, attempt.attempt) in deeds.killed:
                continue
            crash = deeds.crashed.get((job_id, attempt.attempt))
            assert crash is not None, f"job {job_id} attempt {attempt.attempt}: {attempt.reason}"
            assert not crash.by_device, f"job {job_id} is charged for a device: {attempt.reason}"
            assert not crash.beside, f"job {job_id} is charged beside {crash.beside}: {attempt.reason}"
        if each.job.phase is Phase.FAILED:
            assert each.attempts[-1].outcome == "user-failed", each.job.reason
            known = ("CUDA error", "Xid", "killed by SIGKILL")
            assert any(word in each.job.reason for word in known), each.job.reason
    begun: dict[tuple[str, int], int] = {}
    for note in run.host.witnessed():
        before = begun.get((note["job"], note["rank"]), 0)
        assert note["step"] >= before, f"job {note['job']} went back from {before} to {note['step']}"
        begun[note["job"], note["rank"]] = note["step"]


def check_pairs(run: Run) -> None:
    """Who was struck beside somebody is not put beside them again."""
    folder = run.cluster.folder / "controller"
    starts = run.host.witnessed()
    for event, state in before_each(folder):
        if not isinstance(event, ev.AttemptEnded) or event.gpu_fault not in ("culprit", "suspect"):
            continue
        if event.verdict.outcome != "infra-failed":
            continue
        job = state.engine.jobs[event.job_id]
        devices = job.placement.devices if job.placement is not None else ()
        others = {other for device in devices for other in state.engine.tenants(device)} - {event.job_id}
        for note in starts:
            beside = {(other["job"], other["attempt"]) for other in note["beside"]}
            me = (note["job"], note["attempt"])
            for other in others:
                later = [a for j, a in (*beside, me) if j == event.job_id and a > event.attempt]
                together = {event.job_id, other} <= {j for j, _ in (*beside, me)}
                assert not (later and together), f"{event.job_id} and {other} are a pair again: {note}"


def check_nothing_is_left(run: Run) -> None:
    cluster, host = run.cluster, run.host
    orders = list(stored_orders(cluster.state(HOST) / "attempts"))
    leave(cluster)
    assert host.daemons() == []
    assert host.modes() == {}
    groups = [order.cgroup for order in orders if order.cgroup and Path(order.cgroup).exists()]
    assert not groups, groups
    for lock in (cluster.folder / f"locks-{HOST}").rglob("*"):
        if lock.is_file():
            with lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def leave(cluster: Cluster) -> None:
    """The agent leaves as it is asked to, and takes everything with it but the controller."""
    agent = cluster.agents[HOST].process
    assert agent is not None
    agent.terminate()
    wait_for_exit(agent.pid, LEAVE_S)
    assert agent.poll() == 0, f"the agent does not leave: {tail(cluster.agents[HOST].log)}"
    cluster.agents[HOST].stop()
    deadline_s = time.monotonic() + LEAVE_S
    while left := set(cluster.processes()) - cluster.of_controller():
        assert time.monotonic() < deadline_s, f"processes are left: {[described(pid) for pid in left]}"
        wait_for_exit(min(left), 1.0)


def described(pid: int) -> str:
    environment = environment_of(pid) or {}
    return f"{command(pid)} (pipes {environment.get(PIPE_DIRECTORY)}, of {environment.get(OWNER_MARK)})"


def check_journal(cluster: Cluster, jobs: dict[JobId, wire.JobView]) -> None:
    """After one more crash it is as it was, and the policies would decide the same again."""
    controller = cluster.controller
    assert controller is not None
    controller.kill()
    controller.start()
    after = cluster.look()
    for job_id, job in jobs.items():
        assert [getattr(after[job_id], name) for name in KEPT] == [getattr(job, name) for name in KEPT]
    controller.stop()
    words = ["-m", "cotenant.controller", "--replay", "--state-dir", str(cluster.folder / "controller")]
    done = subprocess.run(
        [sys.executable, *words],
        env=controller.env,
        capture_output=True,
        text=True,
        timeout=within_s(300),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    starts = [
        (e.job_id, e.attempt)
        for e, _ in before_each(cluster.folder / "controller")
        if isinstance(e, ev.AttemptStarted)
    ]
    assert len(starts) == len(set(starts))


def before_each(folder: Path) -> Iterator[tuple[ev.AnyEvent, RecoveredState]]:
    """Every event with the state before it; all invariants are checked on the way."""
    copy = Path(tempfile.mkdtemp(dir=folder.parent))
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    journal = Journal(copy)
    try:
        config: EngineConfig = unpack(journal.runs()[0].configuration, EngineConfig)
        state = RecoveredState(Engine(registry.make, config, validate=True))
        for entry in journal.entries():
            event, decision = read_entry(journal, entry)
            yield event, state
            state.fold(event, decision, entry.now_s)
    finally:
        journal.close()


def tail(path: Path) -> str:
    return path.read_text(errors="replace")[-2000:]
