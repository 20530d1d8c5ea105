"""A private cluster of real processes for a test: a controller, agents, and training jobs under watch.

Rule: what is started here ends here, by pid, whatever happens; every wait has a deadline and is for an
event. Tests kill the daemons as they like and start them again, as a service manager would.
"""

from __future__ import annotations

import itertools
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from cotenant.agent.host.locks import LOCK_DIR_ENV
from cotenant.agent.ipc.files import read_record
from cotenant.agent.ipc.records import RESULT, SUPERVISOR, ProcessIdentity, Result, attempt_folder
from cotenant.checkpoint.talk.protocol import ENV_ACCUMULATION_SCHEDULE
from cotenant.controller.cli.demo.measuring import schedule_of
from cotenant.controller.cli.demo.plan import WORKLOADS
from cotenant.controller.client.connection import Client, Unreachable
from cotenant.controller.domain import ENDED, JobId, JobSpec, Launch, Phase, SlurmScript
from cotenant.controller.performance import Profile
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.checkpoint.ranks import Warm, launch
from tests.ports import block_of_ports

PATIENCE_S = within_s(420.0)
"""For everything: this machine may be busy with other things. A broken test is slow, a good one is not."""
LOOK_S = 0.1
LOOK_S_MAX = 0.4
LATER = 1.25
"""Each look at something that takes long comes so many times later than the one before: looks cost time of a
core, which several tests share."""
WITNESS = Path(__file__).with_name("witness.py")
SMALL = str(Path(__file__).with_name("small_job"))
"""A script of `Training` that costs a hundredth of the demo's: for tests of what happens to a job."""
EAGER = str(Path(__file__).with_name("eager"))
"""On the PYTHONPATH of jobs that compile nothing. A fork server stands in for no environment with a
`sitecustomize` of its own, so tests of warm starts do without."""
WARM = "launch.warm=true"
MARK = "COTENANT_TEST_RUN"


class Daemon:
    """One process that a service manager looks after: killed at will, started again the same way."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.words, self.env, self.log = list(words), dict(env), log
        self.process: subprocess.Popen[bytes] | None = None
        self._heard = b""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start it and wait until it says that it is ready."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        assert self.process is None
        self._heard = b""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.words,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def await_ready(self) -> None:
        assert self.is_ready(PATIENCE_S), f"not ready; see {self.log}"

    def is_ready(self, wait_s: float = 0.0) -> bool:
        """Whether it has said so, within that time."""
        assert self.process is not None and self.process.stdout is not None
        deadline_s = time.monotonic() + wait_s
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            while b"ready" not in self._heard:
                if not waiting.select(max(0.0, deadline_s - time.monotonic())):
                    return False
                chunk = os.read(self.process.stdout.fileno(), 4096)
                assert chunk, f"ended at once: {self.log.read_text(errors='replace')[-1000:]}"
                self._heard += chunk
        return True

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """As at the end of a day; what does not leave in time is killed."""
        if self.process is not None:
            self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        assert self.process is not None and self.process.stdout is not None
        self.process.send_signal(number)
        try:
            self.process.wait(within_s(30.0))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.process = None


@dataclass(frozen=True, kw_only=True)
class Training:
    """One real training job: which of the demo's scripts or our own, how long, how wide."""

    name: str
    script: str
    steps: int
    batch_size: int = 8
    workers: int = 1
    nodes: int = 0
    seed: int = 0
    profile: Profile | None = None
    gate_at: int = 0
    """After so many steps an attempt waits until the test opens the job's gate; 0: there is none."""
    pace_s: float = 0.0
    """A step takes at least so long until the gate is open for all attempts."""
    options: tuple[str, ...] = ()
    """Of its script, beside those that all have."""
    env: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, object] = field(default_factory=dict)
    """Other fields of its JobSpec."""

    def argv(self, witness: Path, result: Path) -> tuple[str, ...]:
        script = str(WORKLOADS / f"{self.script}.py")
        options = ("--steps", self.steps, "--batch-size", self.batch_size, "--seed", self.seed)
        words = (*map(str, options), "--result", str(result), *self.options)
        return (str(WITNESS), str(witness), script, *words)


class Cluster:
    """A controller on a Unix socket and one agent, unless a test builds them otherwise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.witness = folder / "witness"
        self.results = folder / "results"
        for each in (self.witness, self.results, folder / "tmp"):
            each.mkdir()
        (folder / "none.toml").touch()
        self.endpoint = f"ipc://{folder}/c.sock"
        self.keys: Path | None = None
        self.freezes = False
        """Hosts are frozen for longer than their lease: what wakes up there may find its job elsewhere."""
        self.starts_warm = False
        """One of the agents keeps fork servers."""
        self.controller: Daemon | None = None
        self.agents: dict[str, Daemon] = {}
        self.trainings: dict[JobId, Training] = {}
        self._client: Client | None = None

    # --- Daemons -----------------------------------------------------------------------------------

    def add_controller(self, *settings: str) -> Daemon:
        words = [sys.executable, "-m", "cotenant.controller", "--endpoint", self.endpoint]
        words += ["--state-dir", str(self.folder / "controller")]
        if self.keys is not None:
            words += ["--keys-dir", str(self.keys)]
        # Its turns of s would have to be in every reference; tests of the profile in place ask for it. ETAs
        # take a tenth of a core of each controller; tests of them, and storms, ask for them.
        settings = ("profiler.seconds=0", "controller.eta_share=0", *settings)
        words += [word for setting in settings for word in ("--set", setting)]
        self.controller = Daemon(words, self._env(""), self.folder / "controller.log")
        return self.controller

    def add_agent(self, host: str, *settings: str, before: Sequence[str] = ()) -> Daemon:
        """`before`: words in front of the command, such as those that put it into a namespace."""
        words = [*before, sys.executable, "-m", "cotenant.agent", "--controller", self.endpoint]
        words += ["--host", host, "--state-dir", str(self.state(host))]
        self.starts_warm |= WARM in settings
        # Several slots, also on a machine with one core. Most tests start a job or two of a kind, for which
        # a server is as dear as a cold start (experiments/results/bench-start.md). Others ask for it.
        settings = (
            "launch.warm=false",
            "agent.oversubscribe=true",
            f"agent.port_first={block_of_ports()}",
            *settings,
        )
        words += [word for setting in settings for word in ("--set", setting)]
        self.agents[host] = Daemon(words, self._env(host), self.folder / f"agent-{host}.log")
        return self.agents[host]

    def _env(self, host: str) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("COTENANT_") or k == MARK}
        locks = self.folder / f"locks-{host}"
        return {**env, "COTENANT_CONFIG": str(self.folder / "none.toml"), LOCK_DIR_ENV: str(locks)}

    def state(self, host: str) -> Path:
        return self.folder / f"state-{host}"

    @property
    def client(self) -> Client:
        if self._client is not None and self._client.endpoint != self.endpoint:
            self._client.close()
            self._client = None
        if self._client is None:
            self._client = Client(self.endpoint, self.keys, timeout_s=PATIENCE_S)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        for daemon in (*self.agents.values(), self.controller):
            if daemon is not None:
                daemon.stop()
        for pid in self.processes():
            kill_if(pid, self._sign)

    @property
    def _sign(self) -> bytes:
        return os.fsencode(self.folder) + b"/"

    def processes(self) -> list[int]:
        """Living processes that belong to this cluster, daemons included."""
        pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [pid for pid in pids if pid != os.getpid() and carries(pid, self._sign)]

    def of_controller(self) -> set[int]:
        """The controller, and what computes for it."""
        if self.controller is None or not self.controller.process:
            return set()
        process = psutil.Process(self.controller.pid)
        return {process.pid, *(child.pid for child in process.children())}

    def await_no_process(self) -> None:
        """Supervisors say good-bye for a moment after their result is written. What computes for the
        controller stays as long as that does."""
        daemons = {d.pid for d in self.agents.values() if d.process} | self.of_controller()
        deadline_s = time.monotonic() + PATIENCE_S
        while left := set(self.processes()) - daemons:
            assert time.monotonic() < deadline_s, f"processes are left: {[command(pid) for pid in left]}"
            wait_for_exit(min(left), 1.0)

    def print_logs(self) -> None:
        """For a failing test: pytest shows it."""
        with suppress(Unreachable):
            for job_id in self.trainings:
                shown = self.client.ask(wire.ShowJob(job_id=job_id), timeout_s=5.0)
                print(f"=== job {job_id}: {shown.job.phase} at {shown.job.step}: {shown.job.reason}")
                for a in shown.attempts:
                    print(
                        f"{a.attempt}: {a.start_step}..{a.end_step} on {a.devices}: {a.outcome}: {a.reason}"
                    )
        logs = [*self.folder.glob("*.log"), *self.folder.glob("state-*/attempts/*/logs/*")]
        for path in sorted(logs):
            print(f"=== {path.relative_to(self.folder)}\n{path.read_text(errors='replace')[-3000:]}")
        for path in sorted(self.witness.glob("*.starts")):
            print(f"=== {path.name}\n{path.read_text()}")

    # --- Jobs --------------------------------------------------------------------------------------

    def submit(
        self, training: Training, *, idempotency_key: str = "", timeout_s: float | None = None
    ) -> JobId:
        env = {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder / "tmp"), **training.env}
        env["COTENANT_WITNESS_GATE"] = f"{training.gate_at}:{self._gate(training)}"
        env["COTENANT_WITNESS_PACE"] = str(training.pace_s)
        argv = (sys.executable, *training.argv(self.witness, self.results / f"{training.name}.json"))
        fields: dict[str, Any] = {
            "gpus_min": training.workers,
            "gpus_max": training.workers,
            "nodes": training.nodes,
            "batch_size": training.batch_size,
            "iterations": training.steps,
            "profile": training.profile,
            **training.more,
        }
        key = idempotency_key
        job_id = self.send(training.name, argv, env=env, idempotency_key=key, timeout_s=timeout_s, **fields)
        self.trainings[job_id] = training
        return job_id

    def send(
        self,
        name: str,
        argv: Sequence[str],
        *,
        workdir: Path | None = None,
        env: Mapping[str, str] | None = None,
        idempotency_key: str = "",
        timeout_s: float | None = None,
        slurm: SlurmScript | None = None,
        **fields: Any,
    ) -> JobId:
        """A job of any command, in the cluster's folder unless it is another."""
        launch = Launch(
            argv=tuple(argv),
            workdir=str(workdir or self.folder),
            env={
                **{each: os.environ[each] for each in ("PATH", MARK) if each in os.environ},
                **({} if self.starts_warm else {"PYTHONPATH": EAGER}),
                **(env or {}),
            },
            slurm=slurm,
            uid=os.getuid(),
            gid=os.getgid(),
        )
        spec = JobSpec(job_id=JobId("new-0"), name=name, launch=launch, **fields)
        body = wire.Submit(specs=(spec,), idempotency_key=idempotency_key)
        return self.client.ask(body, timeout_s).job_ids[0]

    def _gate(self, training: Training) -> Path:
        return self.folder / f"gate-{training.name}"

    def open_gate(self, job_id: JobId, attempt: int | None = None) -> None:
        """For one attempt, or for this and all that follow."""
        gate = self._gate(self.trainings[job_id])
        (gate if attempt is None else gate.with_name(f"{gate.name}-a{attempt}")).touch()

    def look(self) -> dict[JobId, wire.JobView]:
        return {job.job_id: job for job in self.client.ask(wire.ListJobs(include_ended=True)).jobs}

    def until(self, true: Callable[[dict[JobId, wire.JobView]], object]) -> dict[JobId, wire.JobView]:
        """Look until it holds; fails at once if a job failed."""
        deadline_s, look_s = time.monotonic() + PATIENCE_S, LOOK_S
        while True:
            jobs = self.look()
            bad = [j for j in jobs.values() if j.phase in (Phase.FAILED, Phase.CANCELLED, Phase.HELD)]
            assert not bad, [(j.name, j.phase, j.reason) for j in bad]
            if true(jobs):
                return jobs
            stand = {j.name: (j.phase.value, j.attempt, j.step, j.reason) for j in jobs.values()}
            assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:.0f} s: {stand}"
            self.pause(jobs, look_s)
            look_s = min(LATER * look_s, LOOK_S_MAX)

    def pause(self, jobs: Mapping[JobId, wire.JobView], look_s: float) -> None:
        """Until those jobs that are open have ended, or the time of one look."""
        open_jobs = tuple(job_id for job_id, job in jobs.items() if job.phase not in ENDED)
        if open_jobs:
            self.client.ask(wire.WaitJobs(job_ids=open_jobs, timeout_s=look_s), timeout_s=PATIENCE_S)
        else:  # Who waits for none is answered at once.
            time.sleep(look_s)

    def shown(self, job_id: JobId) -> wire.Shown:
        return self.client.ask(wire.ShowJob(job_id=job_id))

    def result(self, host: str, job_id: JobId, attempt: int) -> Result | None:
        """What the attempt's supervisor wrote at its end."""
        return read_record(attempt_folder(self.state(host) / "attempts", job_id, attempt) / RESULT, Result)

    def supervisor(self, host: str, job_id: JobId, attempt: int) -> int | None:
        """The pid, once it has said who it is."""
        path = attempt_folder(self.state(host) / "attempts", job_id, attempt) / SUPERVISOR
        identity = read_record(path, ProcessIdentity)
        return identity.pid if identity is not None else None

    def starts(self, job_id: JobId) -> dict[int, list[tuple[int, int]]]:
        """By rank: attempt and pid of each start, in order. Fails if two were alive at once."""
        found: dict[int, list[tuple[int, int]]] = {}
        for path in sorted(self.witness.glob(f"{job_id}-r*.starts")):
            lines = [line.split() for line in path.read_text().splitlines()]
            wrong = {"twice"} if self.freezes else {"twice", "beside", "late"}
            assert all(words[0] not in wrong for words in lines), f"{path.name}: two at once: {lines}"
            rank = int(path.stem.rpartition("-r")[2])
            found[rank] = [(int(words[2]), int(words[1])) for words in lines if words[0] == "start"]
        return found

    def trains_at_gate(self, job: wire.JobView) -> bool:
        """Its ranks wait at the gate, and the controller knows that they train and can be resumed: what they
        note at the gate may be seen here before their words have got there. (A job that is silent for ten
        seconds at its start counts as RUNNING without a word, and importing torch may take longer.)"""
        return job.phase is Phase.RUNNING and job.resumable and self.is_at_gate(job)

    def is_at_gate(self, job: wire.JobView) -> bool:
        """Every rank of its present attempt has come to the gate."""
        paths = list(self.witness.glob(f"{job.job_id}-r*.starts"))
        came = [line.split() for path in paths for line in path.read_text().splitlines()]
        return [w[2] for w in came if w[0] == "gate"].count(str(job.attempt)) == job.gpus

    def sha256(self, job_id: JobId) -> str:
        """What the training says of its parameters at its end."""
        path = self.results / f"{self.trainings[job_id].name}.json"
        return parameters_of(path)

    def check_history(self, job_id: JobId) -> wire.Shown:
        """The job is done; its attempts were numbered in order, apart in time, and each rank ran each of them
        at most once."""
        shown = self.shown(job_id)
        print_history(shown)
        assert shown.job.phase is Phase.DONE, (shown.job.name, shown.job.phase, shown.job.reason)
        attempts = shown.attempts
        assert [a.attempt for a in attempts] == list(range(1, shown.job.attempt + 1))
        assert [a.outcome == "finished" for a in attempts] == [False] * (len(attempts) - 1) + [True]
        for before, after in itertools.pairwise(attempts):
            assert before.ended_s is not None and before.ended_s <= after.launched_s
        starts = self.starts(job_id)
        assert sorted(starts) == list(range(self.trainings[job_id].workers))
        for rank, ran in starts.items():
            numbers = [attempt for attempt, _ in ran]
            assert numbers == sorted(set(numbers)), f"{job_id} rank {rank}: an attempt ran twice: {ran}"
            assert numbers[-1] == shown.job.attempt
        return shown


class References:
    """Undisturbed runs of the same commands, each made once, forked from a process that is warm already."""

    def __init__(self, warm: Warm, folder: Path) -> None:
        self._warm = warm
        self._folder = folder
        self._known: dict[tuple[object, ...], str] = {}

    def sha256(self, training: Training, attempts: Sequence[wire.AttemptView] = ()) -> str:
        """The parameters that the training ends with when nobody disturbs it, with the same schedule of s."""
        trained = [attempt for attempt in attempts if attempt.first_step is not None]
        schedule = in_short(schedule_of(trained) or "0:1")
        key = (training.script, training.steps, training.batch_size, training.workers, training.seed,
               training.options)  # fmt: skip
        if (*key, schedule) not in self._known:
            folder = self._folder / str(len(self._known))
            folder.mkdir(parents=True)
            script, *words = training.argv(folder, folder / "result.json")
            env = {ENV_ACCUMULATION_SCHEDULE: schedule, "TMPDIR": str(folder)}
            gang = launch(self._warm, Path(script), folder, *words, ranks=training.workers, env=env)
            gang.wait(deadline_s=PATIENCE_S)
            self._known[*key, schedule] = parameters_of(folder / "result.json")
        return self._known[*key, schedule]


def print_history(shown: wire.Shown) -> None:
    job = shown.job
    print(f"=== job {job.job_id} {job.name}: {job.phase} at {job.step}: {job.reason}")
    for a in shown.attempts:
        times = " to ".join(
            "-" if t is None else f"{t:.1f}" for t in (a.launched_s, a.first_step_s, a.ended_s)
        )
        print(
            f"  {a.attempt}: steps {a.start_step} to {a.end_step}, {times} s, {', '.join(a.devices)}"
            f" beside {a.co_tenants}, s = {a.accumulation_steps}: {a.outcome}: {a.reason}"
        )


def in_short(schedule: str) -> str:
    """The same schedule of s, named only where it changes: `0:1,82:1` is `0:1`."""
    words = [word.split(":") for word in schedule.split(",")]
    kept = [word for i, word in enumerate(words) if i == 0 or word[1] != words[i - 1][1]]
    return ",".join(":".join(word) for word in kept)


def parameters_of(path: Path) -> str:
    sha256: str = msgspec.json.decode(path.read_bytes())["parameters_sha256"]
    return sha256


def all_done(jobs: dict[JobId, wire.JobView], wanted: Sequence[JobId]) -> bool:
    return all(job_id in jobs and jobs[job_id].phase in ENDED for job_id in wanted)


def is_past(job: wire.JobView, step: int) -> bool:
    """RUNNING and past that step, or further on."""
    return job.phase in ENDED or (job.phase is Phase.RUNNING and job.step >= step)


# --- Processes -------------------------------------------------------------------------------------


def carries(pid: int, sign: bytes) -> bool:
    """Whether a living process has it in its environment or command."""
    folder = Path(f"/proc/{pid}")
    try:
        if (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            return False
        return sign in (folder / "environ").read_bytes() or sign in (folder / "cmdline").read_bytes()
    except OSError:
        return False


def kill_if(pid: int, sign: bytes) -> bool:
    """SIGKILL that process if it is (still) one of ours, and wait until it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not carries(pid, sign):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    wait_for_exit(pid, 30.0)
    return True


def wait_for_exit(pid: int, timeout_s: float) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with selectors.DefaultSelector() as waiting:
        waiting.register(descriptor, selectors.EVENT_READ)
        waiting.select(timeout_s)
    os.close(descriptor)


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "(gone)"


def one_cluster(folder: Path, session: pytest.Session) -> Iterator[Cluster]:
    """For fixtures: where a test failed, what the processes said is printed."""
    failed = session.testsfailed
    with closing(Cluster(folder)) as made:
        yield made
        if session.testsfailed > failed:
            made.print_logs()
