"""`srun` inside a job: starts the tasks that a step has on this host, and stays with them.

Rule: a step's tasks are children in the script's own process group, so that whoever ends the job ends them.
cotenant takes one step at a time for the job (it counts, saves and resumes that one); steps beside it, or of
a part of the gang, are commands like any other. GPUs that a step asks for by number are its own until it
ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import BinaryIO

from . import layout as layouts
from . import step as steps
from .hostlist import address

PROTOCOL = ("COTENANT_SOCKET", "COTENANT_CHECKPOINT_ROOT", "COTENANT_ZERO_CODE", "COTENANT_MODULES")
"""Without these a process is no part of the job to cotenant."""
STEP_FOLDER = "COTENANT_STEP_FOLDER"
"""The job's own folder on this host, for steps of steps."""
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
KILL_AFTER_S = 20.0
"""From the end of one task with an error to that of the others."""
LOOK_S = 0.5
STEPS_MAX = 10_000
NOT_FOUND = 127


def say(text: str) -> None:
    with contextlib.suppress(OSError):  # A file on a full disk, say: the steps matter more.
        os.write(2, f"srun: {text}\n".encode(errors="replace"))


def main(words: list[str]) -> int:
    env = {**json.loads(os.environ.get("COTENANT_SLURM_JOB", "{}")), **os.environ}
    if "SLURM_JOB_NODELIST" not in env:
        say("error: this works inside a job that was submitted from a script with #SBATCH lines")
        return 1
    try:
        step = steps.read(words)
        plan = layouts.layout(step, env)
        host = int(env["SLURM_NODEID"])
        if not plan.tasks[host]:
            return elsewhere(step, plan, env)
        return Run(step, plan, host, env).go()
    except steps.BadStep as problem:
        say(f"error: {problem}")
        return 1


def elsewhere(step: steps.Step, plan: layouts.Layout, env: dict[str, str]) -> int:
    """Answers for a step in which this host has no part. What scripts ask of another host most is its
    address."""
    if os.path.basename(step.command[0]) == "hostname" and len(plan.used) == 1:
        name = plan.hosts[plan.used[0]]
        asks_address = any(
            word in ("-i", "-I", "--ip-address", "--all-ip-addresses") for word in step.command
        )
        reached = address(name, env)
        print(socket.gethostbyname(reached) if asks_address else name)
    return 0


def claim(env: dict[str, str], what: str) -> int | None:
    """Takes what one process of the attempt on this host can have. Returns its lock, which is held until the
    process ends, however it does, in the job's own folder, where no other account can take it. None: another
    process has it."""
    folder = env.get(STEP_FOLDER) or os.path.dirname(env.get("COTENANT_SOCKET", ""))
    if not folder:  # What started it has kept nothing of the job's environment.
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    path = os.path.join(folder, f"claim-{what}")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


class Run:
    """A run of one step on this host."""

    def __init__(self, step: steps.Step, plan: layouts.Layout, host: int, env: dict[str, str]) -> None:
        self._step, self._plan, self._host, self._env = step, plan, host, env
        self._gpus = layouts.gpus(step, plan, host, env)
        self._here = plan.tasks[host]
        self._devices = int(env.get("SLURM_GPUS", "1"))
        self._tasks: dict[int, subprocess.Popen[bytes]] = {}
        """By local number, those that run."""
        self._readers: list[threading.Thread] = []
        self._worst = 0
        self._ends_others = False
        """A task has failed, and we end the others: their exit codes say nothing about the step."""
        self._kill_s = float("inf")
        self._warn_s = self._warning_s()

    def go(self) -> int:
        wakes, woken = os.pipe()
        for end in (wakes, woken):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in FORWARDED:
            signal.signal(number, self._forward)
        visible = self._visible()
        code = self._start(visible)
        if code:
            self._end_others(signal.SIGTERM)
        while self._tasks:
            select.select([wakes], [], [], self._wait_s())
            with contextlib.suppress(BlockingIOError):
                while os.read(wakes, 4096):
                    pass
            self._reap()
            self._work_through_timers()
        for reader in self._readers:
            reader.join()
        return code or self._worst

    # --- Devices ------------------------------------------------------------------------------------

    def _visible(self) -> list[str] | None:
        """The devices of this step; None: all that the script sees."""
        devices = [each for each in self._env.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        wanted = self._gpus.here
        if wanted is None or not devices or (wanted == len(devices) and not self._gpus.each):
            return None
        if wanted > len(devices):
            say(f"error: the step asks for {wanted} GPUs, the job has {len(devices)} on this host")
            sys.exit(1)
        has_said = False
        while True:
            mine = self._claim(devices, wanted)
            if mine is not None:
                return mine
            if not has_said:
                say("waits for GPUs of other steps")
            has_said = True
            time.sleep(LOOK_S)

    def _claim(self, devices: list[str], wanted: int) -> list[str] | None:
        mine: dict[str, int] = {}
        for at, device in enumerate(devices):
            if len(mine) < wanted and (lock := claim(self._env, f"gpu-{at}")) is not None:
                mine[device] = lock
        if len(mine) == wanted:
            return list(mine)  # Their locks are open as long as we live.
        for lock in mine.values():
            os.close(lock)
        return None

    # --- Tasks --------------------------------------------------------------------------------------

    def _start(self, visible: list[str] | None) -> int:
        speaks = layouts.may_speak(self._plan, self._devices) and claim(self._env, "voice") is not None
        port = "" if speaks or len(self._plan.used) > 1 else free_port()
        step_id = next_step(self._env)
        for local in range(self._here):
            env = layouts.export_environment(self._step, self._env)
            env = {name: value for name, value in env.items() if speaks or name not in PROTOCOL}
            env.setdefault(STEP_FOLDER, os.path.dirname(self._env.get("COTENANT_SOCKET", "")))
            env.update(layouts.task_words(self._plan, self._host, local, step_id))
            env.update(layouts.rank_words(self._plan, self._host, local, self._devices))
            if (
                port
                and ("RANK" in env or self._plan.total == 1)
                and env.get("MASTER_PORT") == self._env.get("PET_MASTER_PORT")
            ):
                env["MASTER_PORT"] = port
            if visible is not None:
                each = self._gpus.each
                seen = visible[local * each : (local + 1) * each] if each else visible
                env["CUDA_VISIBLE_DEVICES"] = ",".join(seen)
            try:
                self._tasks[local] = self._task(local, env, step_id)
            except OSError as error:
                say(f"error: {self._step.command[0]}: {error.strerror}")
                return NOT_FOUND
        return 0

    def _task(self, local: int, env: dict[str, str], step_id: int) -> subprocess.Popen[bytes]:
        number = self._plan.first(self._host) + local
        label = "label" in self._step.flags
        pattern = self._step.flags.get("output", "")
        is_file = bool(pattern) and pattern not in ("all", "none")
        output = subprocess.PIPE if label else subprocess.DEVNULL if pattern == "none" else None
        opened = open_output(pattern, number, step_id, env) if is_file else None
        errors = self._step.flags.get("error", pattern)
        apart = open_output(errors, number, step_id, env) if errors not in (pattern, "none") else opened
        try:
            task = subprocess.Popen(
                self._step.command,
                env=env,
                cwd=self._step.flags.get("chdir"),
                stdin=None if number == 0 else subprocess.DEVNULL,
                stdout=opened if opened is not None else output,
                stderr=apart if apart is not None else (subprocess.STDOUT if label else None),
            )
        finally:
            for each in (opened, apart):
                if each is not None:
                    each.close()
        if label and opened is None and task.stdout is not None:
            reader = threading.Thread(target=relabel, args=(number, task.stdout))
            reader.start()
            self._readers.append(reader)
        return task

    def _reap(self) -> None:
        for local, task in list(self._tasks.items()):
            code = task.poll()
            if code is None:
                continue
            del self._tasks[local]
            if code == 0:
                continue
            if not (self._ends_others and code in (-signal.SIGTERM, -signal.SIGKILL)):
                self._worst = max(self._worst, code if code > 0 else 128 - code)
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            number = self._plan.first(self._host) + local
            say(f"error: {self._env.get('SLURMD_NODENAME')}: task {number}: {how}")
            if (
                self._tasks
                and self._step.flags.get("kill-on-bad-exit") != "0"
                and self._kill_s == float("inf")
            ):
                self._kill_s, self._ends_others = time.monotonic() + KILL_AFTER_S, True
                self._end_others(signal.SIGTERM)

    def _end_others(self, number: int) -> None:
        for task in self._tasks.values():
            task.send_signal(number)

    def _forward(self, number: int, frame: object) -> None:
        self._end_others(number)

    # --- Time ---------------------------------------------------------------------------------------

    def _warning_s(self) -> float:
        """When the tasks are sent the signal of `--signal`."""
        said = re.match(r"^(\d+)@([\d.]+)$", self._env.get("COTENANT_STEP_SIGNAL", ""))
        end = self._env.get("SLURM_JOB_END_TIME")
        if said is None or end is None:
            return float("inf")
        self._warning = int(said[1])
        return time.monotonic() + float(end) - float(said[2]) - time.time()

    def _wait_s(self) -> float | None:
        first = min(self._kill_s, self._warn_s)
        return None if first == float("inf") else max(0.0, first - time.monotonic())

    def _work_through_timers(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._warn_s:
            self._warn_s = float("inf")
            self._end_others(self._warning)
        if now_s >= self._kill_s:
            self._kill_s = float("inf")
            self._end_others(signal.SIGKILL)


def relabel(number: int, stream: BinaryIO) -> None:
    for line in stream:
        sys.stdout.buffer.write(b"%d: %s" % (number, line if line.endswith(b"\n") else line + b"\n"))
        sys.stdout.buffer.flush()


def open_output(pattern: str, task: int, step_id: int, env: dict[str, str]) -> BinaryIO:
    words = {
        "t": str(task),
        "n": env.get("SLURM_NODEID", "0"),
        "N": env.get("SLURMD_NODENAME", ""),
        "j": env.get("SLURM_JOB_ID", ""),
        "J": f"{env.get('SLURM_JOB_ID', '')}.{step_id}",
        "s": str(step_id),
        "A": env.get("SLURM_ARRAY_JOB_ID", env.get("SLURM_JOB_ID", "")),
        "a": env.get("SLURM_ARRAY_TASK_ID", "0"),
        "x": env.get("SLURM_JOB_NAME", ""),
        "u": env.get("SLURM_JOB_USER", ""),
        "%": "%",
    }

    def fill(match: re.Match[str]) -> str:
        text = words.get(match[2])
        return match[0] if text is None else text.zfill(int(match[1] or 0))

    path = re.sub(r"%(\d{0,2})([a-zA-Z%])", fill, pattern)
    os.makedirs(
        os.path.dirname(os.path.abspath(path)), exist_ok=True
    )  # submitit makes it only after `sbatch`.
    return open(path, "ab")


def next_step(env: dict[str, str]) -> int:
    """Steps of an attempt are counted, on each host by itself: each leaves a file in the job's folder."""
    folder = os.path.dirname(env.get("COTENANT_SOCKET", ""))
    for number in range(STEPS_MAX):
        try:
            open(os.path.join(folder, f"step-{number}"), "x").close()
        except FileExistsError:
            continue
        except OSError:  # In a step of a step, which has no such folder.
            return 0
        return number
    return STEPS_MAX


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return str(probe.getsockname()[1])
