"""Attempts as the world has them: folders, supervisors, connections to them.

Rule: a supervisor inherits a locked file, `alive.lock` in its folder, from the moment it is spawned. Who
can lock that file knows that no supervisor runs and none is about to; so an agent that was killed in the
middle of a start never starts a second one. We signal a process only through a pidfd, after comparing its
start time and boot with the record.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cotenant.agent.daemon import connections, tasks, warm_starts
from cotenant.agent.daemon.core import edge, remembered
from cotenant.agent.daemon.warm_starts import SUPERVISOR as PROGRAM
from cotenant.agent.host import checkpoint_root, facts, process_identity
from cotenant.agent.host.devices import lock_names
from cotenant.agent.ipc import channel, files, records
from cotenant.agent.supervisor.processes.reaper import end_leftovers
from cotenant.controller.domain import AttemptNo, CommandId, Device, HostId, JobId, Launch, StartAttempt
from cotenant.controller.system.locks import is_free, open_locked
from cotenant.controller.wire import AskStream, StreamReply, StreamTold

ALIVE_LOCK: Final = "alive.lock"
SUPERVISOR_LOG: Final = "supervisor.log"
_COMING_PERIOD_S: Final = 0.05
_RETRY_S_MAX: Final = 30.0
_EXIT_WAIT_S: Final = 10.0
_LOG_TAIL_BYTES: Final = 4096

T = TypeVar("T")
Post = Callable[[edge.AnyAgentEvent], None]
Log = Callable[[str], None]
LockDevices = Callable[[records.Order], list[int]]
"""Descriptors that keep the order's devices locked for as long as the supervisor lives."""


class Supervisors:
    """All attempts of this host, by folder."""

    def __init__(
        self,
        base: Path,
        *,
        post: Post,
        log: Log,
        lock_devices: LockDevices,
        answer: Callable[[StreamReply], None] = lambda reply: None,
    ) -> None:
        """Knows of none yet. `answer`: takes what supervisors answer about streams."""
        self.base = base
        self.spare = warm_starts.SpareSupervisor()
        self._post, self._answer = post, answer
        self._log = log
        self._lock_devices = lock_devices
        self._lines: dict[remembered.AttemptKey, connections.Line] = {}
        self._tasks = tasks.Tasks("looking after an attempt")

    def folder(self, job_id: str, attempt: int) -> Path:
        return records.attempt_folder(self.base, job_id, attempt)

    # --- What is here ------------------------------------------------------------------------------

    def scan(self) -> tuple[edge.FoundAttempt, ...]:
        """Returns what every attempt's folder holds. We put damaged records aside and go by the others.
        Without its order an attempt has the devices that our memory has for it, and its processes are those
        of the supervisor's session or of the lock's holder; without its result it counts as having left none;
        without its supervisor's identity it runs as long as its lock is held, and we do not talk to it."""
        self.base.mkdir(mode=0o711, parents=True, exist_ok=True)
        names = sorted(entry.name for entry in self.base.iterdir() if entry.is_dir())
        matches = (records.FOLDER_NAME.fullmatch(name) for name in names)
        return tuple(self._find(JobId(m["job"]), AttemptNo(int(m["attempt"]))) for m in matches if m)

    def _find(self, job_id: JobId, attempt: AttemptNo) -> edge.FoundAttempt:
        folder = self.folder(job_id, attempt)
        identity = self._read(folder / records.SUPERVISOR, records.ProcessIdentity)
        return edge.FoundAttempt(
            job_id=job_id,
            attempt=attempt,
            alive=not is_free(folder / ALIVE_LOCK),
            rebooted=identity is not None and identity.boot_id != process_identity.boot_id(),
            order=self._read(folder / records.ORDER, records.Order),
            result=self._read(folder / records.RESULT, records.Result),
        )

    def _read(self, path: Path, kind: type[T]) -> T | None:
        return files.read_or_put_aside(path, kind, self._log)

    # --- Starting and adopting ---------------------------------------------------------------------

    def start(self, order: records.Order) -> None:
        """Start a supervisor and watch it, or answer `StartFailed`."""
        workdir = order.launch.workdir
        # Another user's is looked at with his rights alone, by his own processes: see `ranks.py`.
        if order.launch.uid == os.geteuid() and not os.path.isdir(workdir):
            why = f"the working directory {workdir} does not exist on {order.host_id}"
            self._fail(order, why, workdir_missing=True)
            return
        closed = facts.closed_folder(self.base) if order.launch.uid != 0 else None
        if closed is not None:
            self._fail(order, f"{closed} on {order.host_id} is closed to other users: {facts.OPEN_ONE}")
            return
        folder = self.folder(order.job_id, order.attempt)
        try:
            self._make_folders(folder, order)
            process = self._spawn(folder, order)
        except OSError as error:
            self._fail(
                order, f"cannot start its supervisor: {error.strerror or error}: {error.filename or ''}"
            )
            return
        # Our own child: its pid is its own until we have waited for it.
        self._watch((order.job_id, order.attempt), os.pidfd_open(process.pid), process)

    def _fail(self, order: records.Order, why: str, *, workdir_missing: bool = False) -> None:
        failed = edge.StartFailed(
            job_id=order.job_id, attempt=order.attempt, why=why, workdir_missing=workdir_missing
        )
        self._post(failed)

    def _make_folders(self, folder: Path, order: records.Order) -> None:
        folder.mkdir(mode=0o711, parents=True)
        try:
            checkpoint_root.make_checkpoint_folder(
                Path(order.checkpoint_root), order.launch.uid, order.launch.gid
            )
        except OSError as error:  # The job can still run; its saves will say the same.
            self._log(f"job {order.job_id}: no checkpoints in {order.checkpoint_root}: {error.strerror}")
        # Not flushed: it is of use only to a supervisor, and none outlives the machine.
        files.write_record(folder / records.ORDER, files.strip_secrets(order), durable=False)

    def _spawn(self, folder: Path, order: records.Order) -> subprocess.Popen[bytes]:
        locks = [open_locked(folder / ALIVE_LOCK)]
        held = locks
        try:
            locks += self._lock_devices(order)
            held = [*locks, secrets := files.kept_in_memory(order.secrets)]
            log = os.open(
                folder / SUPERVISOR_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            with open(log, "ab") as output:
                spare = self.spare.take(folder, log, secrets, locks)
                return spare or subprocess.Popen(
                    [*PROGRAM, str(folder), str(secrets)],
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # What ends the agent's session does not end its jobs.
                    pass_fds=held,
                )
        finally:
            for descriptor in held:
                os.close(descriptor)

    def adopt(self, job_id: JobId, attempt: AttemptNo) -> None:
        """Watch a supervisor that an earlier start of the agent has spawned."""
        key = job_id, attempt
        self._tasks.keep(self._adopt(key), partial(self.give_up, key))

    def give_up(self, key: remembered.AttemptKey, why: str) -> None:
        """Lets an attempt fail that we cannot look after: what there is of it is ended first."""
        self._post(edge.SupervisorGone(job_id=key[0], attempt=key[1], why=why))

    async def _adopt(self, key: remembered.AttemptKey) -> None:
        folder = self.folder(*key)
        while (identity := self._read(folder / records.SUPERVISOR, records.ProcessIdentity)) is None:
            if is_free(folder / ALIVE_LOCK):
                break
            await asyncio.sleep(_COMING_PERIOD_S)  # It holds its lock and is about to say who it is.
        pidfd = process_identity.open_pidfd(identity) if identity is not None else None
        if pidfd is None:
            self._note_exit(key, None)
        else:
            self._watch(key, pidfd, None)

    def _watch(self, key: remembered.AttemptKey, pidfd: int, process: subprocess.Popen[bytes] | None) -> None:
        line = connections.Line(key, self.folder(*key), post=self._post, answer=self._answer, log=self._log)
        self._lines[key] = line
        self._tasks.keep(line.run(), partial(self.give_up, key))
        self._tasks.keep(self._wait_for_exit(key, pidfd, process), partial(self.give_up, key))

    async def _wait_for_exit(
        self, key: remembered.AttemptKey, pidfd: int, process: subprocess.Popen[bytes] | None
    ) -> None:
        try:
            await _readable(pidfd)
        finally:
            os.close(pidfd)
        code = process.wait() if process is not None else None
        if line := self._lines.pop(key, None):
            line.close()
        self._note_exit(key, code)

    def _note_exit(self, key: remembered.AttemptKey, code: int | None) -> None:
        folder = self.folder(*key)
        result = self._read(folder / records.RESULT, records.Result)
        if result is not None:
            self._post(edge.EndCame(result=result))
        elif code == records.CANNOT_BEGIN:
            why = f"its supervisor cannot begin in {folder}{_last_words(folder)}"
            self._post(edge.StartFailed(job_id=key[0], attempt=key[1], why=why))
        else:
            self._post(edge.SupervisorGone(job_id=key[0], attempt=key[1], why=_death(code, folder)))

    def tell(self, job_id: JobId, attempt: AttemptNo, message: channel.ToSupervisor) -> None:
        if line := self._lines.get((job_id, attempt)):
            line.tell(message)

    def ask(self, asked: AskStream) -> None:
        """Asks a supervisor, or answers in its place."""
        key = asked.job_id, asked.attempt
        line = self._lines.get(key)
        if line is not None and line.ask(asked):
            return
        is_over = line is None and (self.folder(*key) / records.RESULT).exists()
        told = StreamTold(state="ended" if is_over else "away", why=connections.NOT_CONNECTED)
        self._answer(StreamReply(request=asked.request, told=told))

    # --- Ending and removing -----------------------------------------------------------------------

    def clean(self, result: records.Result) -> None:
        """End what is left of an attempt, see that it has a result, and say so."""

        def again(_: str) -> None:  # Its devices are held until it is done.
            asyncio.get_running_loop().call_later(_RETRY_S_MAX, self.clean, result)

        self._tasks.keep(self._clean(result), again)

    async def _clean(self, result: records.Result) -> None:
        key = (result.job_id, result.attempt)
        folder = self.folder(*key)
        wait_s = 1.0
        while True:
            try:
                left = await asyncio.to_thread(self._end_all, folder, result)
                if not left:
                    break
                why = f"processes {', '.join(map(str, left))} cannot be ended"
            except OSError as error:
                why = f"{error.strerror}: {error.filename or folder}"
            self._log(f"job {key[0]} attempt {key[1]}: {why}; trying again in {wait_s:.0f} s")
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_S_MAX)
        self._post(edge.EndCame(result=self._read(folder / records.RESULT, records.Result) or result))

    def _end_all(self, folder: Path, result: records.Result) -> list[int]:
        """Runs in a thread. Returns the processes that would not go."""
        identity = self._read(folder / records.SUPERVISOR, records.ProcessIdentity)
        if identity is not None:
            end_process(identity)
        order = self._read(folder / records.ORDER, records.Order) or _empty_order(result, _user_of(folder))
        left = end_leftovers(folder, order, identity)
        if not left and not is_free(folder / ALIVE_LOCK):
            raise OSError(errno.EBUSY, "its supervisor is still coming up", str(folder))
        if not left and self._read(folder / records.RESULT, records.Result) is None:
            folder.mkdir(mode=0o711, parents=True, exist_ok=True)
            unclean = (folder / records.UNCLEAN).exists()
            files.write_record(folder / records.RESULT, msgspec.structs.replace(result, unclean=unclean))
        return left

    async def leave(self) -> None:
        """Stops watching the supervisors; everything lives on."""
        self.spare.drop()
        await self._tasks.leave()
        for line in self._lines.values():
            line.close()


def locked_by(order: records.Order, devices: Iterable[Device]) -> set[str]:
    """The names of the locks that an order's supervisor holds here. `devices`: of this host."""
    part = next(member for member in order.gang if member.host_id == order.host_id)
    return {name for each in devices if each.device_id in part.devices for name in lock_names(each)}


def left_behind(base: Path, devices: Sequence[Device]) -> dict[str, list[Path]]:
    """The attempts of an earlier start that run on: by the locks that they hold, the files by which we know
    that they run."""
    found: dict[str, list[Path]] = {}
    for order in stored_orders(base):
        alive = records.attempt_folder(base, order.job_id, order.attempt) / ALIVE_LOCK
        for name in () if is_free(alive) else locked_by(order, devices):
            found.setdefault(name, []).append(alive)
    return found


def stored_orders(base: Path) -> Iterator[records.Order]:
    """The orders of all attempts whose folders are there."""
    for path in base.glob(f"*/{records.ORDER}"):
        with suppress(files.BadRecord, OSError):
            order = files.read_record(path, records.Order)
            if order is not None:
                yield order


def _death(code: int | None, folder: Path) -> str:
    """What became of a supervisor that left no result, as far as its exit code and its log say."""
    if code is None or code < 0:
        return f"its supervisor was killed{'' if code is None else f' (signal {-code})'}"
    return f"its supervisor ended with code {code}{_last_words(folder)}"


def _last_words(folder: Path) -> str:
    """The last line of its log, behind a colon; empty where there is none, as on a full disk."""
    try:
        with (folder / SUPERVISOR_LOG).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
            lines = file.read(_LOG_TAIL_BYTES).decode(errors="replace").split("\n")
    except OSError:
        lines = []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last[:200]}" if last else ""


def end_process(identity: records.ProcessIdentity) -> None:
    """SIGKILL exactly this process and wait for it; nothing if it is gone."""
    pidfd = process_identity.open_pidfd(identity)
    if pidfd is None:
        return
    try:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)

        select.select([pidfd], [], [], _EXIT_WAIT_S)
    finally:
        os.close(pidfd)


async def _readable(descriptor: int) -> None:
    """A pidfd becomes readable when its process ends."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)


def _user_of(folder: Path) -> int:
    """Whose the attempt is, by the folder that was given to its user."""
    try:
        return (folder / records.JOB).stat().st_uid
    except OSError:  # It ended before its folder was given.
        return os.geteuid()


def _empty_order(result: records.Result, uid: int) -> records.Order:
    """Stands for an order that cannot be read: enough to find processes by their session and socket."""
    unknown = StartAttempt(
        command_id=CommandId(0),
        host_id=HostId(""),
        job_id=result.job_id,
        attempt=result.attempt,
        launch=Launch(uid=uid),
        gang=(),
        master_address="",
        master_port=0,
        sub_batch=None,
        accumulation_steps=1,
        memory_cap_mib=None,
        host_memory_mib=0,
        cpus=0,
        resume_step=0,
        checkpoint_every_s=0.0,
    )
    return records.Order(
        start=unknown,
        world_size=0,
        ranks=(),
        checkpoint_root="",
        lease_s=None,
        start_deadline_s=0.0,
        log_bytes_max=0,
        jobside_path="",
    )
