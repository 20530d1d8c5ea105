"""`cotenant checkpoint verify -- CMD`: stop a command, resume it, and compare with one that was not stopped.

Rule: this is a trial with the user's own command, three short runs of one process on this machine (a fourth
says whether a difference is the resume's), and nothing else: no controller is asked and no job is made. The
runs work in copies of the present folder, so that nothing of the user's is overwritten, and no run finds what
another has written. So files are copied and folders made anew; what is too large to copy (a data set) is
linked, and that is said. Only equal parameters, bit for bit, count. What the command prints goes to standard
error, so that the answer stands alone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

import cotenant
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.screen import tell
from cotenant.controller.submission import recording
from cotenant.controller.submission.starts import start_of
from cotenant.controller.wire import BadMessage, Json, decode_json
from cotenant.controller.wire import job as protocol

STEPS: Final = 20
WAIT_S: Final = 600.0
"""How long to wait for a message from the script; loading may take long."""
_LEAVE_S: Final = 60.0
UNSEEDED: Final = (
    "not even two runs that nobody stops end alike, so nothing can be compared: set a seed in the script, as "
    "torch.manual_seed(0) before the model and the data are made, and try again"
)
_WORDS: Final[Json[dict[str, Any]]] = Json(
    dict[str, Any], bytes_max=protocol.DATAGRAM_BYTES_MAX, from_python=True
)
_NOT_YET: Final = "its state was not written yet"
"""What a script says before its first step is done, after which it is known whether it can be resumed."""
_BEHIND: Final = 4
"""A proposal that comes too late is repeated for that many steps later."""

COPIED_MIB_MAX: Final = 1024
ENTRIES_MAX: Final = 1000
"""A folder with more is linked as a whole."""
LINKED: Final = frozenset((".git", ".venv", "venv", "node_modules", "__pycache__"))
"""Folders that hold no results of the command."""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the three runs of `cotenant verify`."""

    ok: bool
    steps: int
    stopped_at: int
    exact: bool
    reason: str = ""


class _Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """What one run showed, up to its agreed stop."""

    step: int
    parameters_sha256: str
    resumed_at: int
    exact: bool
    note: str


def verify(argv: Sequence[str], steps: int) -> Verified:
    """Raises Problem where a run cannot be made."""
    with tempfile.TemporaryDirectory(prefix="cotenant-verify-") as name:
        folder = Path(name)
        jobside = _job_side(folder)
        interrupted, whole = folder / "interrupted", folder / "whole"
        scratch = Scratch(Path.cwd(), folder)
        cwd = _scratch_folder(scratch, "of-interrupted")
        first = _run(argv, jobside, interrupted, 1, max(1, steps // 2), cwd)
        second = _run(argv, jobside, interrupted, 2, max(steps, first.step + 1), cwd)
        if second.resumed_at != first.step:
            return Verified(
                ok=False,
                steps=second.step,
                stopped_at=first.step,
                exact=False,
                reason=f"it resumed at step {second.resumed_at}",
            )
        cwd = _scratch_folder(scratch, "of-whole")
        plain = _run(argv, jobside, whole, 1, second.step, cwd, exactly=True)
        same = plain.parameters_sha256 == second.parameters_sha256
        if not same:  # Who causes the difference? Two runs that nobody stops may differ, too.
            cwd = _scratch_folder(scratch, "of-again")
            again = _run(argv, jobside, folder / "again", 1, second.step, cwd, exactly=True)
            if again.parameters_sha256 != plain.parameters_sha256:
                return Verified(
                    ok=False, steps=second.step, stopped_at=first.step, exact=False, reason=UNSEEDED
                )
    return Verified(
        ok=same,
        steps=second.step,
        stopped_at=first.step,
        exact=second.exact,
        reason=second.note if same else f"parameters differ after step {second.step}",
    )


def _job_side(folder: Path) -> Path:
    """Our two job-side packages alone, to be found by the script's own interpreter."""
    base = folder / "jobside" / "cotenant"
    base.mkdir(parents=True)
    for package in ("checkpoint", "gradaccum"):
        spec = importlib.util.find_spec(f"cotenant.{package}")
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        if not places:
            raise Problem("failed", f"cotenant.{package} is not installed here", "install cotenant again")
        (base / package).symlink_to(places[0])
    if cotenant.__file__:  # None of a checkout that is found by its folder's name alone.
        (base / "__init__.py").symlink_to(cotenant.__file__)
    return base.parent


def _scratch_folder(scratch: Scratch, name: str) -> Path:
    """Makes the scratch folder of a trial. Raises Problem."""
    try:
        made = scratch.make(name)
    except OSError as error:
        problem = f"this folder cannot be copied for a trial: {error.strerror}: {error.filename}"
        raise Problem("failed", problem, "run it in a folder that holds the script alone") from None
    if scratch.linked:
        say = ", ".join(scratch.linked[:5]) + (", ..." if len(scratch.linked) > 5 else "")
        tell(f"too large to copy, and yours if the command writes there: {say}")
    return made


def _run(
    argv: Sequence[str],
    jobside: Path,
    root: Path,
    attempt: int,
    stop_at: int,
    cwd: Path,
    *,
    exactly: bool = False,
) -> _Stopped:
    root.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="ctv-") as place,
        _start_command(argv, jobside, root, attempt, place, cwd) as (process, words),
    ):
        hello = words.wait_for(protocol.HELLO, process)
        while hello.get("resumable_note") == _NOT_YET:
            hello = words.wait_for(protocol.HELLO, process)
        if int(hello.get("world_size", 1)) != 1:
            raise Problem("refused", "verify runs one process, and this command is part of a gang")
        if not hello.get("resumable"):
            why = str(hello.get("resumable_note") or "it does not say why")
            raise Problem("refused", f"this command cannot be resumed: {why}", "see docs/zero-code.md")
        step = words.agree(process, stop_at, exactly)
        words.wait_for(protocol.STOPPED, process)
        process.wait(_LEAVE_S)
    data = (root / f"a{attempt}-s{step}" / protocol.MANIFEST_NAME).read_bytes()
    manifest: dict[str, Any] = decode_json(data, dict[str, Any])
    return _Stopped(
        step=step,
        parameters_sha256=manifest["parameters_sha256"],
        resumed_at=int(hello["step"]),
        exact=bool(manifest["exact"]),
        note=str(manifest["note"]),
    )


@contextmanager
def _start_command(
    argv: Sequence[str], jobside: Path, root: Path, attempt: int, place: str, cwd: Path
) -> Iterator[tuple[subprocess.Popen[bytes], _Words]]:
    path = Path(place) / "s"
    inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    inbox.bind(str(path))
    own = os.environ.get("PYTHONPATH", "")
    parts = [str(jobside / "cotenant" / "gradaccum" / "startup"), str(jobside), *([own] if own else [])]
    env = {
        **{name: value for name, value in os.environ.items() if not recording.NEVER.fullmatch(name)},
        **rank_alone(argv),
        "PWD": str(cwd),
        "PYTHONPATH": os.pathsep.join(parts),
        protocol.ENV_PROTOCOL: str(protocol.PROTOCOL_VERSION),
        protocol.ENV_JOB: "verify",
        protocol.ENV_ATTEMPT: str(attempt),
        protocol.ENV_CHECKPOINT_ROOT: str(root),
        protocol.ENV_SOCKET: str(path),
        protocol.ENV_ZERO_CODE: "checkpoint",
    }
    try:
        process = subprocess.Popen(list(argv), env=env, cwd=cwd, stdout=2)
    except OSError as error:
        inbox.close()
        raise Problem("failed", f"{argv[0]}: {error.strerror or error}") from None
    try:
        yield process, _Words(inbox, Path(place))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        inbox.close()


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


class _Words:
    """Exchanges messages with one rank."""

    def __init__(self, inbox: socket.socket, place: Path) -> None:
        self._inbox = inbox
        self._rank = place / "rank-0.sock"
        self._step = 0

    def wait_for(
        self, name: str, process: subprocess.Popen[bytes], proposal: int | None = None
    ) -> dict[str, Any]:
        give_up_at_s = time.monotonic() + WAIT_S
        self._inbox.settimeout(0.2)
        while True:
            try:
                word = _WORDS.decode(self._inbox.recv(protocol.DATAGRAM_BYTES_MAX))
            except BadMessage:
                continue
            except TimeoutError:
                if process.poll() is not None:
                    raise _early_end_problem(process.returncode, self._step) from None
                if time.monotonic() > give_up_at_s:
                    raise Problem("failed", f"the command said nothing for {WAIT_S:.0f} s") from None
                continue
            self._step = max(self._step, int(word.get("step", 0)))
            if word.get("m") == protocol.FAILED:
                raise Problem("failed", f"{word.get('what')}: {word.get('error')}")
            if word.get("m") == name and proposal in (None, word.get("proposal")):
                return dict(word)

    def agree(self, process: subprocess.Popen[bytes], step: int, exactly: bool) -> int:
        """Propose steps until one is confirmed; returns it."""
        proposal = 0
        while True:
            proposal += 1
            self._tell(proposal, step, protocol.PHASE_PROPOSE)
            answer = self.wait_for(protocol.CONFIRM, process, proposal)
            if answer["ok"]:
                self._tell(proposal, step, protocol.PHASE_COMMIT)
                return step
            self._tell(proposal, step, protocol.PHASE_WITHDRAW)
            if exactly:
                raise Problem("failed", f"the command was past step {step} too soon", "give a larger --steps")
            step = max(step, int(answer["step"])) + _BEHIND

    def _tell(self, proposal: int, step: int, phase: str) -> None:
        word = {"v": protocol.PROTOCOL_VERSION, "m": protocol.STOP_AT}
        data = json.dumps({**word, "proposal": proposal, "step": step, "phase": phase}).encode()
        try:
            self._inbox.sendto(data, str(self._rank))
        except OSError:
            return  # it is gone: the next wait says so


def _early_end_problem(code: int, step: int) -> Problem:
    if code:
        return Problem("failed", f"the command ended with exit code {code}", "its own words stand above")
    return Problem("refused", f"the command ended by itself after step {step}", "give a smaller --steps")


class Scratch:
    """Makes copies of a folder; each call of `make` gives a fresh one."""

    def __init__(self, source: Path, place: Path, copied_mib_max: int = COPIED_MIB_MAX) -> None:
        self._source = source.resolve()
        self._place = place
        self._copied_bytes_max = copied_mib_max << 20
        self.linked: list[str] = []
        """What is linked, not copied: writing there changes the original."""

    def make(self, name: str) -> Path:
        """Makes a fresh copy of the folder; what lies beside the original (`../data`) is linked beside it."""
        above = self._place / name
        above.mkdir()
        source = self._source
        for entry in _entries(source.parent):
            if entry.name != source.name:
                (above / entry.name).symlink_to(entry.path)
        self.linked = []
        self._left_bytes = self._copied_bytes_max
        target = above / (source.name or "here")
        self._mirror(source, target)
        return target

    def _mirror(self, source: Path, target: Path) -> None:
        target.mkdir()
        for entry in sorted(_entries(source), key=lambda entry: entry.name):
            self._one(entry, target / entry.name)

    def _one(self, entry: os.DirEntry[str], target: Path) -> None:
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False) and entry.name not in LINKED and _is_small(path):
            self._mirror(path, target)
            return
        size = entry.stat(follow_symlinks=False).st_size
        if entry.is_file(follow_symlinks=False) and size <= self._left_bytes:
            self._left_bytes -= size
            shutil.copy2(path, target)
            return
        target.symlink_to(path.resolve())
        if entry.name not in LINKED and not entry.is_symlink():
            self.linked.append(str(path.relative_to(self._source)))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """None of one that may not be read, or has too many."""
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError:
        return []
    return entries if len(entries) <= ENTRIES_MAX else []


def _is_small(folder: Path) -> bool:
    try:
        with os.scandir(folder) as found:
            return sum(1 for _ in found) <= ENTRIES_MAX
    except OSError:
        return False
