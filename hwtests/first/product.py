"""The product end to end, as a user meets it: `cotenant up`, jobs that share, one that leaves and comes back.

Rule: the command line is used as the README prints it, and its words are kept. Every question starts its own
controller and agent and ends them with their jobs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from cotenant.agent.host.locks import LOCK_DIR_ENV
from cotenant.agent.warm.refusals import SEEN_AT_START
from cotenant.controller.cli.demo.plan import WORKLOADS
from cotenant.controller.client.connection import Client, Refusal, Unreachable
from cotenant.controller.domain import ENDED, JobId, Phase
from cotenant.controller.wire import clients as wire
from hwtests.first.control import (
    PERCENTAGE,
    Silent,
    at_once,
    daemon,
    plain_environment,
    run_words,
)
from hwtests.first.notes import Notes, read
from hwtests.first.place import Place
from hwtests.first.processes import below

CLI: Final = "import sys; from cotenant.controller.cli.main import main; sys.exit(main())"
SCRIPT: Final = str(WORKLOADS / "language_model.py")
THREADS: Final = "OMP_NUM_THREADS"
HALF_MEMORY: Final = "8G"
UP_S: Final = 15.0
STEPS_BEFORE: Final = 20
STEPS_AFTER: Final = 20
POLL_S: Final = 0.1
WARM_TRIES_MAX: Final = 4
"""Of cold starts until the fork server is ready. A refusal that is final ends the question at once."""
NOT_YET: Final = (SEEN_AT_START["first"], SEEN_AT_START["coming"])
"""Why a start is cold that may be warm when it is tried again."""


class Up:
    """`cotenant up` on this GPU, in folders of its own."""

    def __init__(self, place: Place, *, mps: str = "auto") -> None:
        self.place = place
        # Short, for the sockets in it; open to search, for the servers of other accounts.
        self.folder = Path(tempfile.mkdtemp(prefix="gf-u-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.endpoint = f"ipc://{self.folder}/c"
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")},
            "COTENANT_MPS__RUNTIME_DIR": str(self.folder),
            "COTENANT_MPS__MODE": mps,
            "COTENANT_CHECKPOINT__ROOT": str(self.folder / "k"),
            "COTENANT_AGENT__HEARTBEAT_S": "0.5",
            "COTENANT_CONTROLLER__ETA_SHARE": "0",
            LOCK_DIR_ENV: str(self.folder / "locks"),
        }
        if place.device == "cpu":
            self.env |= {"COTENANT_AGENT__SLOT_MEMORY_MIB": "24576", "CUDA_VISIBLE_DEVICES": ""}
        devices = f"cuda:{place.uuid}" if place.device == "cuda" else "cpu:1"
        words = (
            "up",
            "--devices",
            devices,
            "--state-dir",
            str(self.folder / "s"),
            "--endpoint",
            self.endpoint,
        )
        self.log = self.folder / "up.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CLI, *words], env=self.env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        self.client = Client(self.endpoint, timeout_s=3.0)

    def __enter__(self) -> Up:
        """Raises Silent: no device within the time; the text has its last words."""
        until_s = time.monotonic() + UP_S
        while time.monotonic() < until_s and self.process.poll() is None:
            with suppress(Unreachable, Refusal):
                if any(node.devices for node in self.client.ask(wire.ListNodes()).nodes):
                    return self
            time.sleep(POLL_S)
        said = self.log.read_text(errors="replace")[-600:]
        self.close()
        raise Silent(f"`cotenant up` has no device after {UP_S:.0f} s: {said}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with suppress(Unreachable, Refusal):
            left = tuple(job.job_id for job in self.jobs().values() if job.phase not in ENDED)
            if left:
                self.client.ask(wire.ChangeJobs(verb="cancel", job_ids=left))
                self.client.ask(wire.WaitJobs(job_ids=left, timeout_s=3.0))
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(4.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.client.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def say(self, *words: str, within_s: float = 6.0) -> str:
        """The words of one command line."""
        return run_words((sys.executable, "-c", CLI, *words), within_s, self.env)

    def submit(self, name: str, *words: str) -> JobId:
        """A job that gets half of the GPU. Raises Silent: it was refused."""
        flags = ("submit", "--endpoint", self.endpoint, "-g", "0.5", "--mem", HALF_MEMORY, "-J", name)
        said = self.say(*flags, "--", sys.executable, SCRIPT, *words)
        number = next((word for word in said.split() if word.isdecimal()), None)
        if number is None:
            raise Silent(f"cotenant submit: {said}")
        return JobId(number)

    def jobs(self) -> dict[JobId, wire.JobView]:
        return {job.job_id: job for job in self.client.ask(wire.ListJobs(include_ended=True)).jobs}

    def until(self, true: Callable[[dict[JobId, wire.JobView]], bool], within_s: float) -> str:
        """Wait until it is so; where the jobs stand, if it is not in time or one has ended badly."""
        until_s = time.monotonic() + within_s
        while True:
            jobs = self.jobs()
            if true(jobs):
                return ""
            bad = [job for job in jobs.values() if job.phase in (Phase.FAILED, Phase.CANCELLED, Phase.HELD)]
            if bad or time.monotonic() > until_s:
                return "; ".join(
                    f"job {job.job_id} {job.phase}, step {job.step}: {job.reason}" for job in jobs.values()
                )
            time.sleep(POLL_S)


def options_of(place: Place) -> tuple[str, ...]:
    """A model that keeps a part of a GPU busy; the smallest on a CPU."""
    return ("--batch-size", "8", "--scale", "4" if place.device == "cuda" else "1", "--precision", "fp32")


def note_environment(note: Notes, name: str) -> None:
    """What a rank below us has of MPS in its environment, as the product gave it."""
    for pid in reversed(below(os.getpid())):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
            if SCRIPT not in words or "supervisor" in words:
                continue
            text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
            given = dict(
                each.partition("=")[::2]
                for each in text.split("\0")
                if each.startswith(("CUDA_", "COTENANT_MEM", THREADS))
            )
            if f"{name}.json" in words:
                note(f"environment of {name}", {"pid": pid, **given})
                return


@contextmanager
def two_halves(note: Notes, place: Place) -> Iterator[tuple[Up, JobId, JobId]]:
    """Two jobs that train on halves of the GPU. Raises Silent: they do not."""
    began_s = time.monotonic()
    with Up(place) as up:
        note("up after, s", round(time.monotonic() - began_s, 1))
        for each in place.work.glob("*.json"):
            each.unlink()
        ids = []
        for name in ("long", "short"):
            files = (
                "--result",
                str(place.work / f"{name}.json"),
                "--until",
                str(up.folder / f"{name}.enough"),
            )
            ids.append(up.submit(name, "--steps", "1000000", *options_of(place), *files))
        problem = up.until(lambda now: all(now[each].step >= STEPS_BEFORE for each in ids), 24.0)
        note("both train after, s", round(time.monotonic() - began_s, 1))
        if problem:
            note("nodes", up.say("nodes", "--endpoint", up.endpoint))
            note("log of the agent", up.log.read_text(errors="replace")[-1500:])
            raise Silent(problem)
        for name in ("long", "short"):
            note_environment(note, name)
        yield up, ids[0], ids[1]


def ask_share(note: Notes, place: Place) -> None:
    try:
        with two_halves(note, place) as (up, long, short):
            words = ("--endpoint", up.endpoint)
            verbs = {
                "nodes": ("nodes",),
                "queue": ("queue",),
                "explain": ("explain", long),
                "show": ("show", short),
            }
            note_all(note, at_once({name: partial(up.say, *verb, *words) for name, verb in verbs.items()}))
            devices = [each for node in up.client.ask(wire.ListNodes()).nodes for each in node.devices]
            note("shares by", [f"{each.sharing}: {each.sharing_note}" for each in devices])
            jobs = up.jobs()
            note("on one device", jobs[long].devices == jobs[short].devices)
            note("step of each, s", [jobs[each].step_s for each in (long, short)])
    except Silent as problem:
        note("refuted", str(problem))


def note_all(note: Notes, facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        note(name, value)


def ask_resume(note: Notes, place: Place) -> None:
    """The long job of two leaves and comes back beside the short one; then it trains a little and ends."""
    try:
        with two_halves(note, place) as (up, long, _):
            began_s = time.monotonic()
            note("preempt", up.say("preempt", long, "--endpoint", up.endpoint))
            if problem := up.until(
                lambda now: now[long].attempt == 2 and now[long].phase is Phase.RUNNING, 16.0
            ):
                raise Silent(f"it was preempted and did not come back: {problem}")
            note("back after, s", round(time.monotonic() - began_s, 1))
            from_step = up.client.ask(wire.ShowJob(job_id=long)).attempts[-1].start_step
            if problem := up.until(lambda now: now[long].step >= from_step + STEPS_AFTER, 6.0):
                raise Silent(f"it came back and does not train: {problem}")
            (up.folder / "long.enough").touch()
            if problem := up.until(lambda now: now[long].phase is Phase.DONE, 5.0):
                raise Silent(f"it does not end: {problem}")
            shown = up.client.ask(wire.ShowJob(job_id=long))
            note("attempts", [{"from step": each.start_step, "exact": each.exact} for each in shown.attempts])
            note("result", json.loads((place.work / "long.json").read_text()))
    except Silent as problem:
        note("refuted", str(problem))


def ask_bits(note: Notes, place: Place) -> None:
    """The same steps without an interruption: on the whole device, and with the part that the job had."""
    kept = read(place.folder / "raw" / "resume.jsonl")
    result, given = kept.get("result"), kept.get("environment of long", {})
    if not result:
        note("not measured", "no job was resumed, so there is nothing to compare with")
        return
    note("steps", result["steps"])
    note("resumed", result["parameters_sha256"])
    # How many threads split a sum decides how it rounds, where anything is summed on the host.
    threads = {THREADS: given[THREADS]} if THREADS in given else {}
    runs = {"whole device": partial(train, place, "whole", result["steps"], threads)}
    part = given.get(PERCENTAGE)
    if part is None:
        note_all(note, at_once(runs))
        return
    note("percentage of the job", part)
    with daemon(place.uuid) as mps:
        client = {**threads, "CUDA_MPS_PIPE_DIRECTORY": str(mps.pipe), PERCENTAGE: part}
        runs[f"with {part} %"] = partial(train, place, "part", result["steps"], client)
        note_all(note, at_once(runs))


def train(place: Place, name: str, steps: int, env: dict[str, str]) -> str:
    """The hash of the parameters of a run that nobody disturbs; its last words where it fails."""
    path = place.work / f"{name}.json"
    words = (sys.executable, SCRIPT, "--steps", str(steps), *options_of(place), "--result", str(path))
    visible = place.uuid if place.device == "cuda" else ""
    said = run_words(words, 27.0, {**plain_environment(visible), **env})
    return str(json.loads(path.read_text())["parameters_sha256"]) if path.exists() else said[-400:]


def ask_warm(note: Notes, place: Place) -> None:
    """Cold starts until a server is ready; the first refusal that is final is the answer."""
    tiny = place.work / "tiny.py"
    tiny.write_text(TINY)
    with Up(place, mps="off") as up:
        for number in range(1, WARM_TRIES_MAX + 1):
            result = place.work / f"warm-{number}.json"
            result.unlink(missing_ok=True)
            began_s = time.time()
            flags = ("submit", "--endpoint", up.endpoint, "-g", "1")
            said = up.say(*flags, "--", sys.executable, str(tiny), str(result))
            number_of = next((word for word in said.split() if word.isdecimal()), "")
            if not number_of:
                note("refuted", f"cotenant submit: {said}")
                return
            job_id = JobId(number_of)
            up.until(partial(has_ended, job_id), 14.0)
            attempt = up.client.ask(wire.ShowJob(job_id=job_id)).attempts[-1]
            facts: dict[str, Any] = {"launch": attempt.launch, "why": attempt.launch_why}
            if result.exists():
                told = json.loads(result.read_text())
                facts |= {"to the first step, s": round(told["first"] - began_s, 2), "sha256": told["sha256"]}
            note(f"start {number}", facts)
            if not attempt.launch_why.startswith(NOT_YET):
                return
            await_server(up)


def has_ended(job_id: JobId, jobs: dict[JobId, wire.JobView]) -> bool:
    return jobs[job_id].phase in ENDED


def await_server(up: Up) -> None:
    """Until the agent says that it keeps one that is ready, or a few seconds."""
    until_s = time.monotonic() + 6.0
    while time.monotonic() < until_s:
        kept = [node.fork_servers for node in up.client.ask(wire.ListNodes()).nodes]
        if any(each is not None and each.count for each in kept):
            return
        time.sleep(POLL_S)


TINY: Final = """
import hashlib, json, sys, time
import torch
torch.manual_seed(5)
torch.use_deterministic_algorithms(True)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(64, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = None
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(32, 64).to(device)).square().mean().backward()
    optimizer.step()
    if first is None:
        torch.cuda.synchronize() if device == "cuda" else None
        first = time.time()
data = b"".join(each.detach().cpu().numpy().tobytes() for each in model.parameters())
with open(sys.argv[1], "w") as file:
    json.dump({"device": device, "first": first, "sha256": hashlib.sha256(data).hexdigest()}, file)
"""
