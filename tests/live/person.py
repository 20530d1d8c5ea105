"""Somebody with a home folder of their own and the real command line, for tests that read what it says.

Rule: every word goes through `cotenant` as a process (forked from a warm interpreter where no start is
tested), and every wait is for something that a person could see. `up` gives a private controller and agent,
which end with the person, by pid.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tests.building.command_line import WarmCommandLine
from tests.live.cluster import EAGER
from tests.ports import block_of_ports
from tests.processes import IMPORT_S

COTENANT = (sys.executable, "-m", "cotenant.controller.cli.main")
PATIENCE_S = IMPORT_S
"""Some of the jobs here import torch."""
LOOK_S = 0.1
LOOK_S_MAX = 0.5
LATER = 1.25
"""Each look at something that takes long comes so many times later than the one before: it is a process."""
SAY = """
import json, os, pathlib, signal, socket, sys, time

rank = int(os.environ["RANK"])
supervisor = os.environ["COTENANT_SOCKET"]
channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
channel.bind(str(pathlib.Path(supervisor).with_name(f"rank-{rank}.sock")))

def say(word, **fields):
    channel.sendto(json.dumps(dict(v=1, m=word, rank=rank, **fields)).encode(), supervisor)

say("hello", world_size=1, resumable=True, accumulates=False, step=0)
"""
"""Begins a job that speaks the job-side protocol in a few lines, without torch."""

STARTS = ("up", "controller", "agent", "run")
"""Verbs that become or start other programs: each is a fresh interpreter, as for a person."""

Found = TypeVar("Found")


@cache
def warm() -> WarmCommandLine:
    """It ends with this process, whose socket it reads."""
    return WarmCommandLine()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command line said."""

    code: int
    out: str
    err: str

    def refuses(self, code: int, *says: str) -> None:
        """It ended with that exit code and one line that says all of this."""
        assert self.code == code, self
        assert self.err.startswith("error[") and self.err.count("\n") == 1, self.err
        missing = [words for words in says if words not in self.err]
        assert not missing, f"{missing} is not in: {self.err}"
        assert self.out == "", self.out


class Person:
    """A home folder, a working folder, and `cotenant`."""

    def __init__(self, home: Path, **settings: str) -> None:
        """`settings` are named like their environment variables: `agent__devices="cpu:2"`."""
        self.home = home
        self.work = home / "work"
        self.work.mkdir(parents=True)
        home.chmod(0o755)  # A root agent's jobs run as their user; here that is root, too.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COTENANT_")}
        mark = {name: value for name, value in os.environ.items() if name == "COTENANT_TEST_RUN"}
        self.env = {
            **kept,
            **mark,
            "HOME": str(home),
            "XDG_RUNTIME_DIR": str(home / "run"),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "COTENANT_LOCK_DIR": str(home / "locks"),
            "COTENANT_AGENT__PORT_FIRST": str(block_of_ports()),
            "COTENANT_AGENT__OVERSUBSCRIBE": "true",  # Two slots, also on a machine with one core.
            "COTENANT_CONTROLLER__ETA_SHARE": "0",  # ETAs take a tenth of a core; who asks for one says so.
            **{f"COTENANT_{name.upper()}": value for name, value in settings.items()},
        }
        if settings.get("launch__warm") != "true":  # See EAGER there; a submission takes it along.
            self.env["PYTHONPATH"] = EAGER
        (home / "run").mkdir(mode=0o700)
        self.process: subprocess.Popen[str] | None = None

    # --- Folders -----------------------------------------------------------------------------------

    @property
    def socket(self) -> Path:
        return self.home / "run" / "cotenant" / "controller.sock"

    @property
    def controller_state(self) -> Path:
        return self.home / "state" / "cotenant" / "controller"

    @property
    def agent_state(self) -> Path:
        return self.home / "state" / "cotenant" / "agent"

    def write(self, name: str, text: str) -> Path:
        path = self.work / name
        path.write_text(text)
        return path

    # --- The command line --------------------------------------------------------------------------

    def __call__(self, *words: str, cwd: Path | None = None, **more_env: str) -> Answer:
        env = {**self.env, **more_env}
        if words[0] in STARTS:
            done = subprocess.run(
                [*COTENANT, *words],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                text=True,
                errors="replace",
                timeout=PATIENCE_S,
                env=env,
                cwd=cwd or self.work,
            )
            answer = Answer(code=done.returncode, out=done.stdout, err=done.stderr)
        else:
            said = warm()(words, env=env, cwd=cwd or self.work, timeout_s=PATIENCE_S)
            answer = Answer(code=said.code, out=said.out, err=said.err)
        assert "Traceback (most recent call last)" not in answer.err, answer.err
        return answer

    def python(self, *words: str) -> Answer:
        """`python -m ...` in this person's environment."""
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=PATIENCE_S,
            env=self.env,
            cwd=self.work,
        )
        return Answer(code=done.returncode, out=done.stdout, err=done.stderr)

    def shell(self, script: str, *words: str) -> Answer:
        """A shell script in the working folder; "$@" in it is `cotenant` with these words."""
        done = subprocess.run(
            ["sh", "-c", script, "sh", *COTENANT, *words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=PATIENCE_S,
            env=self.env,
            cwd=self.work,
        )
        return Answer(code=done.returncode, out=done.stdout, err=done.stderr)

    @contextmanager
    def begun(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A command line that goes on; it ends with the block, whatever happens there."""
        process = subprocess.Popen(
            [*COTENANT, *words],
            env=self.env,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def submit(self, *words: str) -> str:
        answer = self("submit", *words)
        assert answer.code == 0, answer
        return answer.out.strip()

    def json(self, *words: str) -> Any:
        answer = self(*words, "--json")
        assert answer.code == 0, answer
        return json.loads(answer.out)

    def job(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.json("queue", job)["jobs"][0]
        return found

    def show(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.json("show", job)
        return found

    def logs(self, job: str) -> str:
        return self("logs", job).out

    def until(self, job: str, true: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The job once it is so."""

        def look() -> dict[str, Any] | None:
            found = self.job(job)
            return found if true(found) else None

        return when(look, lambda: f"{self.job(job)}\n{self.logs(job)}")

    def until_state(self, job: str, *states: str) -> dict[str, Any]:
        ended = {"done", "failed", "cancelled"} - set(states)

        def there(found: dict[str, Any]) -> bool:
            assert found["state"] not in ended, f"{found}\n{self.logs(job)}"
            return found["state"] in states

        return self.until(job, there)

    def free_devices(self) -> int:
        """Devices that nobody is on."""
        return sum(not d["jobs"] for node in self.json("nodes")["nodes"] for d in node["devices"])

    # --- Controller and agent ----------------------------------------------------------------------

    def up(self) -> None:
        """`cotenant up`, ready for work."""
        assert self.process is None
        with (self.home / "up.log").open("a") as log:
            self.process = subprocess.Popen(
                [*COTENANT, "up"],
                env=self.env,
                cwd=self.work,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        heard = ""
        while "agent ready" not in heard:
            line = self.process.stdout.readline()
            assert line, (self.home / "up.log").read_text()
            heard += line

    def down(self) -> None:
        """As Ctrl-C does; jobs go on."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def kill_controller(self) -> None:
        """SIGKILL; `up` notices, and leaves as well."""
        assert self.process is not None
        (controller,) = [
            child
            for child in psutil.Process(self.process.pid).children()
            if "cotenant.controller" in child.cmdline()
        ]
        controller.kill()
        self.process.wait(PATIENCE_S)
        self.process.communicate()
        self.process = None

    def settle_journal(self) -> None:
        """Write the log back into the file, as happens every now and then: only what follows can be cut."""
        database = sqlite3.connect(self.controller_state / "journal.sqlite", timeout=PATIENCE_S)
        busy, *_ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        database.close()
        assert not busy

    def leave(self) -> None:
        """No job and no daemon stays."""
        if self.process is not None and self.process.poll() is None:
            jobs = [job["job"] for job in self.json("queue")["jobs"]]
            if jobs:
                self("cancel", *jobs)
                self("wait", "--timeout", "60s", *jobs)
        self.down()


@contextmanager
def at_home(home: Path, **settings: str) -> Iterator[Person]:
    """A person whose `cotenant up` runs."""
    person = Person(home, **settings)
    try:
        person.up()
        yield person
    finally:
        person.leave()


def when(
    look: Callable[[], Found | None], story: Callable[[], object] = lambda: "it never happened"
) -> Found:
    """What is there once it is there."""
    deadline_s, look_s = time.monotonic() + PATIENCE_S, LOOK_S
    while not (found := look()):
        assert time.monotonic() < deadline_s, story()
        time.sleep(look_s)
        look_s = min(LATER * look_s, LOOK_S_MAX)
    return found


def gone(pid: int) -> bool:
    """Wait until the process has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        with selectors.DefaultSelector() as waiting:
            waiting.register(descriptor, selectors.EVENT_READ)
            return bool(waiting.select(PATIENCE_S))
    finally:
        os.close(descriptor)
