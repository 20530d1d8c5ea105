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
from cotenant.agent.supervisor.core.rank_messages import AnyRankWord
from tests.agent.supervisor.attempts import Attempt, user_environment
from tests.building.limits import within_s
from tests.checkpoint.ranks import Warm

HERE: Final = Path(__file__).resolve().parent
INTERPRETER: Final = HERE / "interpreter.py"
OBSERVER: Final = HERE / "observer"
MODULES: Final = ("torch._dynamo", "torch.optim.swa_utils", "numpy.random", "logging.handlers", "json", "csv")
"""What many scripts import, and neither of ours: a job's come from its own folder."""
LIMIT_S: Final = 300.0
USUAL_UMASK: Final = 0o022
"""As the agent sets it."""
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
    umask: int = USUAL_UMASK
    """The user's own; only in an interpreter of its own."""
    limit_s: float = LIMIT_S


class Runner:
    """Runs one script after the other; what they leave is in `folder`. `close` ends the process that it forks
    from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._jobside = prepare_jobside(folder / "jobside")
        self._warm = Warm(MODULES)
        self._count = 0

    def close(self) -> None:
        self._warm.close()

    def write(self, text: str, name: str = "script.py") -> Path:
        """A script of this text."""
        folder = self.folder / f"written-{self._count}"
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_text(text)
        return path

    def forget(self) -> None:
        """Removes what the runs so far have left."""
        for each in (*self.folder.glob("kept-*"), *self.folder.glob("side-*")):
            shutil.rmtree(each, ignore_errors=True)

    def bare(self, command: Command) -> Ended:
        """As `python SCRIPT ARGS`."""
        return self.place().run(command)

    def job(
        self, command: Command, *, pause_s: float = PAUSE_S, jobside: Path | None = None, **settings: Any
    ) -> Ended:
        """As a job: undisturbed, unless `settings` (of `Attempt`) say something else. It pauses after each of
        the first steps, so that a short script is there long enough to be measured. `jobside`: the folder
        that its PYTHONPATH gets, where that is not the real one."""
        place = self.place()
        argv = [sys.executable, *command.options, str(command.script), *command.args]
        env = {**place.env, **command.env}
        before = os.umask(command.umask)  # As whoever submits it has it.
        try:
            attempt = Attempt(place.side, argv, place.cwd, env, jobside or self._jobside, **settings)
        finally:
            os.umask(before)
        try:
            return place.run(command, attempt, pause_s)
        finally:
            attempt.close()

    def place(self) -> Place:
        """A folder that has the same name in each run, and another one when the run is over."""
        self._count += 1
        return Place(self.folder, self._count, self._warm)


class Place:
    """Where one run happens."""

    def __init__(self, folder: Path, number: int, warm: Warm) -> None:
        self.cwd = folder / "run"
        self.home = folder / "home"
        self.side = folder / f"side-{number}"
        kept = folder / f"kept-{number}"
        kept.mkdir()
        self.out, self.err, self.state, self._files = (kept / each for each in ("out", "err", "state", "run"))
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
        return self.ended(code, () if attempt is None else attempt.heard)

    def ended(self, code: int, heard: Sequence[AnyRankWord]) -> Ended:
        """The run is over: what it left."""
        os.rename(self.cwd, self._files)
        return Ended(
            code=code,
            out=_text(self.out),
            err=_text(self.err),
            folder=self._files,
            state=json.loads(self.state.read_text()) if self.state.exists() else {},
            heard=tuple(heard),
        )

    def _forked(
        self, command: Command, argv: list[str], env: dict[str, str], attempt: Attempt | None, pause_s: float
    ) -> int:
        warm = self._warm
        request = {
            "folder": str(self.cwd),
            "errors": str(self.err),
            "state": str(self.state) if command.state else "",
            "pause_s": pause_s,
            "number": self._number,
            "argv": argv,
        }
        pid = warm.start([str(INTERPRETER), json.dumps(request)], env, self.out)
        try:
            if attempt is not None:
                attempt.began()
                attempt.attend_until(lambda: warm.ended(pid), warm, within_s(command.limit_s))
            return warm.wait(pid, within_s(command.limit_s))
        except TimeoutError:
            raise TooLong(_text(self.out) + _text(self.err)) from None
        finally:
            _end_group(pid)

    def _cold(self, command: Command, argv: list[str], env: dict[str, str], attempt: Attempt | None) -> int:
        if command.state:
            path = [each for each in env.get("PYTHONPATH", "").split(os.pathsep) if each]
            env = {**env, "PYTHONPATH": os.pathsep.join([*path, str(OBSERVER)])}
            env[ENV_STATE] = str(self.state)
        with self.out.open("wb") as out, self.err.open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, *argv],
                cwd=self.cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                umask=command.umask if attempt is None else attempt.order.launch.umask,
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
            raise TooLong(_text(self.out) + _text(self.err)) from None
        finally:
            os.close(descriptor)
            _end_group(process.pid)
            process.wait()


def _text(path: Path) -> str:
    """With its carriage returns: a progress bar is known by them."""
    return path.read_bytes().decode(errors="backslashreplace") if path.exists() else ""


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
