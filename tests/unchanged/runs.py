"""A script run whole, by itself and as a job, and what each left: exit code, output, files, end of memory.

Rule: both get the same folder by the same name, the same arguments and the same variables; the job has those
of cotenant beside them. A run in a fork of a process that has torch already costs a tenth of a second, one in
an interpreter of its own two seconds; scripts that look at their start need the second.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cotenant.agent.host.jobside import prepare_jobside
from cotenant.agent.supervisor.core import AnyRankWord
from tests.building.limits import within_s
from tests.checkpoint.ranks import Warm
from tests.unchanged.jobs import Attempt, user_environment

HERE: Final = Path(__file__).resolve().parent
INTERPRETER: Final = HERE / "interpreter.py"
OBSERVER: Final = HERE / "observer"
MODULES: Final = ("torch._dynamo", "torch.optim.swa_utils", "numpy.random", "logging.handlers", "json", "csv")
"""What many scripts import, and neither of ours: a job's come from its own folder."""
LIMIT_S: Final = 300.0
PAUSE_S: Final = 0.02
ENV_STATE: Final = "UNCHANGED_STATE"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a run left."""

    code: int
    """Negative: minus the signal that ended it."""
    out: str
    err: str
    folder: Path
    """Where it ran, with its files."""
    state: Mapping[str, str]
    """Digests of what its process held in the end; empty where it ended without Python's help."""
    heard: Sequence[AnyRankWord] = ()
    """What a job's rank said to its supervisor."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A script and how it is run."""

    script: Path
    args: Sequence[str] = ()
    cold: bool = False
    """In an interpreter of its own."""
    options: Sequence[str] = ()
    """Of that interpreter."""
    env: Mapping[str, str] = field(default_factory=dict)
    state: bool = True
    """The memory at the end is looked at."""
    limit_s: float = LIMIT_S


class Runner:
    """Runs one script after the other; what they leave is in `folder`. `close` ends the process that it forks
    from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobside = prepare_jobside(folder / "jobside")
        self._warm = Warm(MODULES)
        self._count = 0

    def close(self) -> None:
        self._warm.close()

    def write(self, text: str, name: str = "script.py") -> Path:
        """A script of this text."""
        folder = self._folder / f"written-{self._count}"
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_text(text)
        return path

    def forget(self) -> None:
        """Removes what the runs so far have left."""
        for each in (*self._folder.glob("kept-*"), *self._folder.glob("side-*")):
            shutil.rmtree(each, ignore_errors=True)

    def bare(self, command: Command) -> Ended:
        """As `python SCRIPT ARGS`."""
        return self._place().run(command)

    def job(
        self, command: Command, *, pause_s: float = PAUSE_S, jobside: Path | None = None, **settings: Any
    ) -> Ended:
        """As a job: undisturbed, unless `settings` (of `Attempt`) say something else. It pauses after each of
        the first steps, so that a short script is there long enough to be measured. `jobside`: the folder
        that its PYTHONPATH gets, where that is not the real one."""
        place = self._place()
        argv = [sys.executable, *command.options, str(command.script), *command.args]
        env = {**place.env, **command.env}
        attempt = Attempt(place.side, argv, place.cwd, env, jobside or self._jobside, **settings)
        try:
            return place.run(command, attempt, pause_s)
        finally:
            attempt.close()

    def _place(self) -> _Place:
        """A folder that has the same name in each run, and another one when the run is over."""
        self._count += 1
        return _Place(self._folder, self._count, self._warm)


class _Place:
    """Where one run happens."""

    def __init__(self, folder: Path, number: int, warm: Warm) -> None:
        self.cwd = folder / "run"
        self.home = folder / "home"
        self.side = folder / f"side-{number}"
        self._kept = folder / f"kept-{number}"
        self._kept.mkdir()
        for each in (self.cwd, self.home):
            shutil.rmtree(each, ignore_errors=True)
            each.mkdir()
        (self.home / "tmp").mkdir()
        self.env = user_environment(self.home)
        self._warm = warm
        self._number = number

    def run(self, command: Command, attempt: Attempt | None = None, pause_s: float = 0.0) -> Ended:
        env = attempt.env if attempt is not None else {**self.env, **command.env}
        argv = [*command.options, str(command.script), *command.args]
        if command.cold:
            code = self._cold(command, argv, env, attempt)
        else:
            code = self._forked(command, argv, env, attempt, pause_s)
        if attempt is not None:
            attempt.ended(code)
        state = self._kept / "state"
        os.rename(self.cwd, self._kept / "run")
        return Ended(
            code=code,
            out=self._read("out"),
            err=self._read("err"),
            folder=self._kept / "run",
            state=json.loads(state.read_text()) if state.exists() else {},
            heard=() if attempt is None else tuple(attempt.heard),
        )

    def _read(self, name: str) -> str:
        path = self._kept / name
        return path.read_text(errors="backslashreplace") if path.exists() else ""

    def _forked(
        self, command: Command, argv: list[str], env: dict[str, str], attempt: Attempt | None, pause_s: float
    ) -> int:
        warm = self._warm
        request = {
            "folder": str(self.cwd),
            "errors": str(self._kept / "err"),
            "state": str(self._kept / "state") if command.state else "",
            "pause_s": pause_s,
            "number": self._number,
            "argv": argv,
        }
        pid = warm.start([str(INTERPRETER), json.dumps(request)], env, self._kept / "out")
        try:
            if attempt is not None:
                attempt.began()
                attempt.attend_until(lambda: warm.ended(pid), warm, within_s(command.limit_s))
            return warm.wait(pid, within_s(command.limit_s))
        except TimeoutError:
            raise TooLong(self._read("out") + self._read("err")) from None
        finally:
            _end_group(pid)

    def _cold(self, command: Command, argv: list[str], env: dict[str, str], attempt: Attempt | None) -> int:
        if command.state:
            path = [each for each in env.get("PYTHONPATH", "").split(os.pathsep) if each]
            env = {**env, "PYTHONPATH": os.pathsep.join([*path, str(OBSERVER)])}
            env[ENV_STATE] = str(self._kept / "state")
        with (self._kept / "out").open("wb") as out, (self._kept / "err").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, *argv],
                cwd=self.cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        descriptor = os.pidfd_open(process.pid)
        try:
            if attempt is not None:
                attempt.began()
                attempt.attend_until(
                    lambda: process.poll() is not None, descriptor, within_s(command.limit_s)
                )
            return process.wait(within_s(command.limit_s))
        except subprocess.TimeoutExpired:
            raise TooLong(self._read("out") + self._read("err")) from None
        finally:
            os.close(descriptor)
            _end_group(process.pid)
            process.wait()


class TooLong(Exception):
    """The script did not end within its limit; the text is what it printed."""


def _end_group(pid: int) -> None:
    """Whatever a script leaves running ends with it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


@contextmanager
def one_runner() -> Iterator[Runner]:
    """A runner with a folder of its own, for as long as the block. Its name is short: sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="u") as folder:
        runner = Runner(Path(folder))
        try:
            yield runner
        finally:
            runner.close()
