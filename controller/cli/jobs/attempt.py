"""One attempt of a command that is tried: started as a job's only worker, stopped where that is wanted.

Rule: it is a job to the command, and only the job protocol speaks with it. While a stop is being agreed on,
the command's pace is nought, so that a short script cannot be too fast for it. What the command prints goes
to standard error.

This is no supervisor, and none can stand in for it: a supervisor stops its ranks as soon as all can, and ends
one that refuses. A trial stops after steps that were chosen before (an epoch's last one), and goes on after a
refusal, which is a result.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.checkpoint.talk import protocol
from cotenant.controller.cli.jobs.stops import LengthTold
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.screen import tell
from cotenant.controller.present.units import duration
from cotenant.controller.submission import recording
from cotenant.controller.submission.starts import start_of
from cotenant.controller.wire import BadMessage, Json, decode_json

WAIT_S: Final = 600.0
"""How long to wait for an answer of the script; loading may take long."""
_LEAVE_S: Final = 60.0
_TERM_S: Final = 5.0
_HEAR_S: Final = 0.2
_WORDS: Final[Json[dict[str, Any]]] = Json(
    dict[str, Any], bytes_max=protocol.DATAGRAM_BYTES_MAX, from_python=True
)
HOLD_S: Final = 3.0
"""So long a command is held after its first word, until it has said whether it can be resumed."""
_NO_STEPS: Final = 3
"""A command that calls itself not resumable may still change its word for so many steps."""
_PACE: Final = struct.Struct("<ddddd")
SILENT_S, REPEAT_S = 2.0, 5.0


class WantedStop(msgspec.Struct, frozen=True, kw_only=True):
    """Where an attempt is to stop."""

    step: int
    otherwise: Callable[[int, int, int], int | None]
    """`otherwise(step, now, tries)`: where else, after it was refused while the command was at step `now`."""


class TrialAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """How one attempt ended."""

    step: int
    """The last that it made."""
    has_stopped: bool
    exit_code: int
    began_at: int
    """The step that it went on from."""
    proven_steps: int
    note: str
    """Why it does not call its resume exact; empty: it does."""
    failure: str
    """Why it did not go on as it was left; empty: it did."""
    refusals: tuple[str, ...]
    """Where it refused to stop."""
    lengths: tuple[LengthTold, ...]
    checkpoint: Path

    def manifest(self) -> dict[str, Any]:
        return decode_json((self.checkpoint / protocol.MANIFEST_NAME).read_bytes(), dict[str, Any])

    @property
    def device(self) -> str:
        return str(self.manifest().get("facts", {}).get("device", "cpu"))

    def steps_shown(self) -> list[dict[str, int]]:
        """What could be reached after each step that it made once it had saved: numbers, by path."""
        try:
            read: dict[str, Any] = decode_json(
                (self.checkpoint / "proof-0.json").read_bytes(), dict[str, Any]
            )
        except OSError:
            return []
        return [turn[0] for turn in read["turns"]]


class TrialStart(msgspec.Struct, frozen=True, kw_only=True):
    """What to start."""

    argv: tuple[str, ...]
    jobside: Path
    root: Path
    """The folder of the checkpoints."""
    cwd: Path
    number: int
    what: str
    """For the person who waits: which run this is."""
    of_steps: int | None
    """How many steps it makes, where that is known."""


def run_attempt(start: TrialStart, wish: WantedStop | None) -> TrialAttempt:
    """Runs the command to its end, or to where it stops.

    Raises:
        Problem: it cannot be started, resumed or understood.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ctv-") as place,
        _start_command(start, Path(place), wish) as (process, rank),
    ):
        progress = RunProgress(start.what)
        while not rank.has_stopped:
            has_ended = process.poll() is not None
            word = rank.hear()
            if word is not None:
                rank.take(word)
            is_over = has_ended and word is None
            rank.check(is_over)
            if is_over:
                break
            progress.tell(rank.step, start.of_steps or rank.told_steps)
        try:
            code = process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            raise Problem(
                "failed", f"the command has stopped, and is still there after {_LEAVE_S:.0f} s"
            ) from None
        return rank.ending(start, code)


@contextmanager
def _start_command(
    start: TrialStart, place: Path, wish: WantedStop | None
) -> Iterator[tuple[subprocess.Popen[bytes], _Rank]]:
    path = place / "s"
    inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    inbox.bind(str(path))
    rank = _Rank(inbox, place, start.cwd, wish)
    own = os.environ.get("PYTHONPATH", "")
    jobside = start.jobside
    parts = [str(jobside / "cotenant" / "gradaccum" / "startup"), str(jobside), *([own] if own else [])]
    env = {
        **{name: value for name, value in os.environ.items() if not recording.NEVER.fullmatch(name)},
        **rank_alone(start.argv),
        "PWD": str(start.cwd),
        "PYTHONPATH": os.pathsep.join(parts),
        protocol.ENV_PROTOCOL: str(protocol.PROTOCOL_VERSION),
        protocol.ENV_JOB: "verify",
        protocol.ENV_ATTEMPT: str(start.number),
        protocol.ENV_CHECKPOINT_ROOT: str(start.root),
        protocol.ENV_SOCKET: str(path),
        protocol.ENV_ZERO_CODE: "checkpoint,progress",
    }
    try:
        process = subprocess.Popen(list(start.argv), env=env, cwd=start.cwd, stdout=2, start_new_session=True)
    except OSError as error:
        inbox.close()
        raise Problem("failed", f"{start.argv[0]}: {error.strerror or error}") from None
    try:
        yield process, rank
    finally:
        _end_command(process)
        inbox.close()


def _end_command(process: subprocess.Popen[bytes]) -> None:
    """With the processes that it has started: a launcher ends its own when it is asked to."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_TERM_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def rank_alone(argv: Sequence[str]) -> dict[str, str]:
    """What a job's only worker finds of its rank: a script that makes a process group takes it from these."""
    start = start_of(argv, Path.cwd(), os.environ.get("PYTHONPATH", ""))
    if not (start.mode == "worker" and start.ranked_alone):
        return {}
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    gang_of_one = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
    }
    return {**gang_of_one, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


class _Rank:
    """What the supervisor of a command's only rank knows of it, and says to it."""

    def __init__(self, inbox: socket.socket, place: Path, cwd: Path, wish: WantedStop | None) -> None:
        self._in_copy = os.fsencode(f"{cwd}{os.sep}")
        """Paths in the copy are told as paths in the user's own folder."""
        self._inbox, self._address, self._pace = inbox, place / "rank-0.sock", place / protocol.PACE_FILE
        self._inbox.settimeout(_HEAR_S)
        self._wish, self._wanted = wish, wish.step if wish is not None else None
        self._hello: dict[str, Any] = {}
        self._said_yes = False
        self._proposal = 0
        self._tries = 0
        self._answer_by_s: float | None = time.monotonic() + WAIT_S
        self._failure = ""
        self._refusals: list[str] = []
        self._lengths: list[LengthTold] = []
        self.step = 0
        self.has_stopped = False
        if wish is not None:
            self._set_pace(1.0)

    def hear(self) -> dict[str, Any] | None:
        """The next message; None: there was none for a while."""
        while True:
            try:
                said = self._inbox.recv(protocol.DATAGRAM_BYTES_MAX).replace(self._in_copy, b"")
                return _WORDS.decode(said)
            except BadMessage:
                continue
            except TimeoutError:
                return None

    def take(self, word: dict[str, Any]) -> None:
        name = word.get("m")
        if name in (protocol.FIRST_STEP, protocol.STEP, protocol.STOPPED):
            self.step = max(self.step, int(word["step"]))
        if name == protocol.HELLO:
            self._greet(word)
        elif name == protocol.LENGTH:
            self._lengths.append((word["total"], tuple(word.get("loops", ())), str(word["note"])))
        elif name == protocol.CONFIRM and word["proposal"] == self._proposal:
            self._decide(bool(word["ok"]), int(word["step"]))
        elif name == protocol.FAILED and word["what"] == "save" and self._wanted is not None:
            self._refuse(self.step, str(word["error"]))
        elif name == protocol.FAILED and word["what"] in ("resume", "load"):
            self._failure = str(word["error"])
        elif name == protocol.STOPPED:
            self.has_stopped = True

    @property
    def told_steps(self) -> int | None:
        """How many steps it says that it will make."""
        return self._lengths[-1][0] if self._lengths else None

    def check(self, is_over: bool) -> None:
        """Raises Problem where there is nothing more to expect of it. is_over: all that it said was heard."""
        if self._answer_by_s is not None and time.monotonic() > self._answer_by_s:
            raise Problem("failed", f"the command said nothing for {WAIT_S:.0f} s")
        hello = self._hello
        if not hello or hello["resumable"] or self._failure:
            return
        if self._said_yes or is_over or self.step >= hello["step"] + _NO_STEPS:
            when = f" from step {self.step} on" if self._said_yes else ""
            why = str(hello.get("resumable_note") or "it does not say why")
            raise Problem("refused", f"this command cannot be resumed{when}: {why}", "see docs/zero-code.md")

    def ending(self, start: TrialStart, code: int) -> TrialAttempt:
        hello = self._hello
        if not hello and not code:
            said = "the command ended, and no step of an optimizer of torch was seen in it"
            raise Problem("refused", said, "only training in torch is resumed: see docs/zero-code.md")
        return TrialAttempt(
            step=self.step,
            has_stopped=self.has_stopped,
            exit_code=code,
            began_at=int(hello.get("step", 0)),
            proven_steps=int(hello.get("proven", 0)),
            note="" if hello.get("exact", True) else str(hello["note"]),
            failure=self._failure,
            refusals=tuple(self._refusals),
            lengths=tuple(self._lengths),
            checkpoint=start.root / f"a{start.number}-s{self.step}",
        )

    def _greet(self, word: dict[str, Any]) -> None:
        if int(word.get("world_size", 1)) != 1:
            raise Problem("refused", "verify runs one process, and this command is part of a gang")
        self._hello = word
        self._answer_by_s = None
        self.step = max(self.step, int(word["step"]))
        if self._wanted is not None and not self._said_yes:  # A short one would be past it before we answer.
            self._set_pace(0.0, HOLD_S)
        if word["resumable"] and not self._said_yes:
            self._said_yes = True
            if self._wanted is not None:
                self._set_pace(0.0)
                self._propose()

    # Agreeing on a stop.

    def _propose(self) -> None:
        self._proposal += 1
        self._answer_by_s = time.monotonic() + WAIT_S
        self._say(protocol.PHASE_PROPOSE)

    def _decide(self, is_ok: bool, now: int) -> None:
        self._answer_by_s = None
        if is_ok:
            self._say(protocol.PHASE_COMMIT)
            self._set_pace(1.0)
        else:
            self._say(protocol.PHASE_WITHDRAW)
            self._refuse(now, f"it was at step {now}" if self._is_late(now) else "it accepts no stop there")

    def _is_late(self, now: int) -> bool:
        return self._wanted is not None and now >= self._wanted

    def _refuse(self, now: int, why: str) -> None:
        """It does not stop where that was wanted: ask for another place."""
        assert self._wish is not None and self._wanted is not None
        self._refusals.append(f"after step {self._wanted}: {why}")
        self._tries += 1
        self._wanted = self._wish.otherwise(self._wanted, now, self._tries)
        if self._wanted is None:
            self._set_pace(1.0)
        else:
            self._propose()

    def _say(self, phase: str) -> None:
        word = {"v": protocol.PROTOCOL_VERSION, "m": protocol.STOP_AT}
        data = json.dumps({**word, "proposal": self._proposal, "step": self._wanted, "phase": phase}).encode()
        with suppress(OSError):  # It is gone, which is seen soon.
            self._inbox.sendto(data, str(self._address))

    def _set_pace(self, share: float, for_s: float = WAIT_S) -> None:
        """The part of the time that it may train; written in place: the command looks at this file."""
        data = _PACE.pack(share, time.monotonic() + for_s, 1.0, 0.0, 0.0)
        file = os.open(self._pace, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.pwrite(file, data, 0)
        finally:
            os.close(file)


class RunProgress:
    """Says now and then how far a run is, to whoever waits."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._clock = what, clock
        self._began_s = clock()
        self._due_s = self._began_s + SILENT_S

    def tell(self, step: int, of_steps: int | None) -> None:
        """After `step` steps."""
        now_s = self._clock()
        if now_s >= self._due_s:
            self._due_s = now_s + REPEAT_S
            of = "" if of_steps is None else f" of {of_steps}"
            where = f"step {step}{of}" if step else "starting"
            tell(f"verify: {self._what}: {where}, {duration(now_s - self._began_s)}")
