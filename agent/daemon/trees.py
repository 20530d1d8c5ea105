"""Brings the tree that a job is to run in (`--snapshot`) to this host before its attempt starts.

Rule: one part is asked for at a time, and what has come stays on disk, so an agent that was killed goes on
where it stopped. A tree is used only if it is what its SHA-256 says. An attempt that waits for its tree has
no supervisor that watches its lease, so this does: it does not start once its lease has run out.

Rule: a process with the rights of the job's user unpacks it (`agent/host/trees.py`), one at a time for each
user; any end of that process is the job's own failure, unless we see for ourselves that the disk is full or
broken.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.host.trees import STAGING, BadTree, TreeAnswer, TreeWork, too_long
from cotenant.agent.host.user_files import remove_tree
from cotenant.agent.ipc.records import Order
from cotenant.controller.domain import job_spec, texts
from cotenant.controller.system.trees import TreeFiles, TreeKey, make_room
from cotenant.controller.wire import BadMessage, FetchSnapshot, SnapshotPart, decode_json

ANSWER_S: Final = 5.0
"""A part that has not come by then is asked for again."""
FREE_BYTES_MIN: Final = 512 * 1024 * 1024
"""What copies leave free on the disk of the agent's state folder."""
TRIES_MAX: Final = 2
"""A tree that came damaged is fetched once more."""
SUBMIT_DIR: Final = "COTENANT_SUBMIT_DIR"
UNPACKER: Final = (sys.executable, "-m", "cotenant.agent.host.trees")
PATH_SHOWN_BYTES_MAX: Final = 400
ANSWER_BYTES_MAX: Final = 16 * 1024
OF_DISK: Final = frozenset((errno.ENOSPC, errno.EROFS, errno.EIO))
"""What the kernel says where the disk may be why: we look at it."""
COMMIT: Final = "COTENANT_SNAPSHOT_COMMIT"
CHANGED: Final = "COTENANT_SNAPSHOT_CHANGED"
"""1: tracked files differed from the commit; 0: none did."""
GIT_CEILINGS: Final = "GIT_CEILING_DIRECTORIES"


class NoTree(Exception):
    """Why an attempt has no tree to run in. `is_users`: it would have none on any host."""

    def __init__(self, why: str, *, is_users: bool = False) -> None:
        super().__init__(why)
        self.is_users = is_users


class TreeFetcher:
    """Fetches packed trees from the controller, and gives each job its own copy of one."""

    def __init__(
        self,
        folder: Path,
        bytes_max: int,
        *,
        send: Callable[[FetchSnapshot], None],
        lease_left_s: Callable[[], float | None],
        answer_s: float = ANSWER_S,
        unpacker: Sequence[str] = UNPACKER,
    ) -> None:
        """Prepares to fetch. `bytes_max`: of packed trees that stay. `lease_left_s`: of this host; None: it
        needs none. `unpacker`: the program that does as `TreeWork` says."""
        self.folder = folder
        self._unpacker = unpacker
        self._unpacking: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        """By user: whoever sends many trees that take long keeps nobody else from unpacking."""
        self._files, self._bytes_max = TreeFiles(folder / "packed"), bytes_max
        self._send, self._lease_left_s, self._answer_s = send, lease_left_s, answer_s
        self._locks: WeakValueDictionary[TreeKey, asyncio.Lock] = WeakValueDictionary()
        """Of trees in use: two jobs of one tree fetch it once."""
        self._awaited: dict[AttemptKey, asyncio.Future[SnapshotPart]] = {}
        self.preparing: dict[AttemptKey, asyncio.Task[None] | None] = {}
        """The tasks of attempts that wait for their trees."""

    def copy_of(self, checkpoint_folder: str) -> Path:
        """The copy of a job, made or not, which is named like its folder of checkpoints."""
        return self.folder / "copies" / Path(checkpoint_folder).name

    def remove_left_over(self) -> None:
        """Removes what an agent that was killed had begun to unpack."""
        for path in (self.folder / "copies").glob(f"{STAGING}*"):
            with suppress(OSError):
                remove_tree(path)

    def take(self, part: SnapshotPart) -> None:
        """Takes an answer in; one that nobody waits for is dropped."""
        waiting = self._awaited.get((part.job_id, part.attempt))
        if waiting is not None and not waiting.done():
            waiting.set_result(part)

    async def prepare(self, order: Order, tree: job_spec.CodeSnapshot) -> Order:
        """The order with the job's own copy of its tree as the working directory.

        Raises:
            NoTree: it cannot be brought here.
        """
        copy, key = self.copy_of(order.checkpoint_root), ("", tree.sha256)
        lock = self._locks.setdefault(key, asyncio.Lock())
        self.preparing[order.job_id, order.attempt] = asyncio.current_task()
        try:
            copy.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
            self.folder.chmod(0o711)  # Other users pass through to their own copies.
            async with lock:
                if not copy.is_dir():
                    if shutil.disk_usage(self.folder).free < tree.content_bytes + FREE_BYTES_MIN:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
                    await self._fetch(order, tree, key)
                    async with self._unpacking.setdefault(order.launch.uid, asyncio.Lock()):
                        await self._unpack(order, tree, self._files.path(key), copy)
            return _in_copy(msgspec.structs.replace(order, lease_s=self._lease_s()), tree, copy)
        except BadTree as error:
            raise NoTree(str(error), is_users=True) from None
        except OSError as error:
            where = texts.cut_to(str(error.filename or ""), PATH_SHOWN_BYTES_MAX)
            why = f"cannot unpack its snapshot on {order.host_id}: {error.strerror}: {where}"
            raise NoTree(why) from None
        finally:
            del self.preparing[order.job_id, order.attempt]

    async def _unpack(self, order: Order, tree: job_spec.CodeSnapshot, packed: Path, copy: Path) -> None:
        """Unpacks a tree; `copy` is there with all of it or not at all.

        Raises:
            BadTree: that cannot be done, on any host.
            OSError: this host is why.
        """
        if why := too_long(tree.subfolder):
            raise BadTree(f"its working directory in the snapshot {why}")
        staging = copy.with_name(f"{STAGING}{os.urandom(6).hex()}")
        staging.mkdir(mode=0o700)
        top = staging / "tree"
        try:
            top.mkdir(mode=0o700)
            if os.geteuid() == 0:
                os.chown(top, order.launch.uid, order.launch.gid)
            answer = await self._run(_work_of(order, tree, top), packed, order.start_deadline_s)
            if answer.errno in OF_DISK:
                await asyncio.to_thread(check_disk, staging)
            if answer.why:
                raise BadTree(answer.why)
            os.rename(top, copy)
        finally:
            with suppress(OSError):
                await asyncio.to_thread(remove_tree, staging)

    async def _run(self, work: TreeWork, packed: Path, wait_s: float) -> TreeAnswer:
        """What has come of the process that unpacks. Raises OSError: it cannot be started."""
        with packed.open("rb") as tree:
            process = await asyncio.create_subprocess_exec(
                *self._unpacker,
                json.dumps(work),
                cwd="/",
                stdin=tree,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        assert process.stdout is not None
        said = b""
        try:
            async with asyncio.timeout(wait_s):
                while len(said) <= ANSWER_BYTES_MAX and (data := await process.stdout.read(4096)):
                    said += data
                code = await process.wait() if len(said) <= ANSWER_BYTES_MAX else 0
        except TimeoutError:
            return TreeAnswer(
                f"its snapshot was not unpacked after {wait_s:.0f} s (agent.start_deadline_s)", 0
            )
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return read_answer(code, said)

    async def _fetch(self, order: Order, tree: job_spec.CodeSnapshot, key: TreeKey) -> None:
        """Fetches a tree that is not here."""
        tries = 0
        while not (held := self._files.find(key))[1]:
            if held[0] >= tree.size_bytes:
                await asyncio.to_thread(self._files.finish, key)
                tries += 1
            elif tries >= TRIES_MAX:
                raise NoTree("its snapshot came damaged twice")
            else:
                await self._fetch_part(order, key, held[0])
        kept = list(self._files.list_kept())
        for each in make_room(kept, list(self._locks), time.time(), -self._bytes_max):
            each.path.unlink(missing_ok=True)

    async def _fetch_part(self, order: Order, key: TreeKey, offset: int) -> None:
        attempt = (order.job_id, order.attempt)
        self._awaited[attempt] = waiting = asyncio.get_running_loop().create_future()
        try:
            self._send(FetchSnapshot(job_id=order.job_id, attempt=order.attempt, offset=offset))
            answer = await asyncio.wait_for(waiting, self._answer_s)
        except TimeoutError:
            self._lease_s()
            return
        finally:
            del self._awaited[attempt]
        if answer.missing or not answer.data:
            raise NoTree(answer.missing or "its snapshot is shorter than it should be", is_users=True)
        if answer.offset == offset:
            self._files.append(key, offset, answer.data)

    def _lease_s(self) -> float | None:
        """What is left of the lease. Raises NoTree: nothing is."""
        left_s = self._lease_left_s()
        if left_s is not None and left_s <= 0.0:
            raise NoTree("its lease ran out while its snapshot was fetched")
        return left_s


def _work_of(order: Order, tree: job_spec.CodeSnapshot, top: Path) -> TreeWork:
    launch = order.launch
    return TreeWork(
        parent=os.getpid(), top=str(top), bytes_max=tree.content_bytes, subfolder=tree.subfolder,
        uid=launch.uid, gid=launch.gid, groups=launch.groups, wait_s=order.start_deadline_s,
    )  # fmt: skip


def read_answer(code: int, said: bytes) -> TreeAnswer:
    """What the end of the process that unpacks a tree means."""
    if code < 0:
        known = {each.value: each.name for each in signal.Signals}
        how = f"was ended by {known.get(-code, f'signal {-code}')}"
    else:
        how = f"gave no answer (exit code {code})"
        with suppress(BadMessage):
            answer: TreeAnswer = decode_json(said, TreeAnswer, bytes_max=ANSWER_BYTES_MAX)
            if answer.why or code == 0:
                return answer
    return TreeAnswer(f"its snapshot cannot be unpacked: the process that does that {how}", 0)


def check_disk(folder: Path) -> None:
    """Raises OSError: the disk of this folder is full or broken."""
    if shutil.disk_usage(folder).free < FREE_BYTES_MIN:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(bytes(4096))
        probe.flush()
        os.fsync(probe.fileno())


def _in_copy(order: Order, tree: job_spec.CodeSnapshot, copy: Path) -> Order:
    """The order for processes that run in the copy. There is no repository in it, and git finds no other that
    happens to lie around it. What of PYTHONPATH lies in the tree is the copy's; such a
    job starts cold, since no other has the same path."""
    launch, before = order.launch, order.launch.env.get("PYTHONPATH", "")
    ceilings = os.pathsep.join(filter(None, (str(copy.parent), launch.env.get(GIT_CEILINGS))))
    env = {**launch.env, SUBMIT_DIR: launch.workdir, GIT_CEILINGS: ceilings}
    if tree.commit:
        env |= {COMMIT: tree.commit, CHANGED: str(int(tree.dirty))}
    after = os.pathsep.join(_in_tree(each, tree.top, copy) for each in before.split(os.pathsep))
    if after != before:
        env["PYTHONPATH"] = after
    launch = msgspec.structs.replace(
        launch, workdir=str(copy / tree.subfolder), env=env, warm=launch.warm and after == before
    )
    return msgspec.structs.replace(order, start=msgspec.structs.replace(order.start, launch=launch))


def _in_tree(path: str, top: str, copy: Path) -> str:
    return f"{copy}{path.removeprefix(top)}" if f"{path}/".startswith(f"{top}/") else path
