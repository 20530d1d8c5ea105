"""Brings the tree that a job is to run in (`--snapshot`) to this host before its attempt starts.

Rule: one part is asked for at a time, and what has come stays on disk, so an agent that was killed goes on
where it stopped. A tree is used only if it is what its SHA-256 says. An attempt that waits for its tree has
no supervisor that watches its lease, so this does: it does not start once its lease has run out.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from cotenant.agent.daemon.core import AttemptKey
from cotenant.agent.host.trees import STAGING, BadTree, unpack_tree
from cotenant.agent.ipc import Order
from cotenant.controller.domain import job_spec
from cotenant.controller.system.trees import TreeFiles, TreeKey, make_room
from cotenant.controller.wire import FetchSnapshot, SnapshotPart

ANSWER_S: Final = 5.0
"""A part that has not come by then is asked for again."""
FREE_BYTES_MIN: Final = 512 * 1024 * 1024
"""What copies leave free on the disk of the agent's state folder."""
TRIES_MAX: Final = 2
"""A tree that came damaged is fetched once more."""
SUBMIT_DIR: Final = "COTENANT_SUBMIT_DIR"
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
    ) -> None:
        """Prepares to fetch. `bytes_max`: of packed trees that stay. `lease_left_s`: of this host; None: it
        needs none."""
        self.folder = folder
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
            shutil.rmtree(path, ignore_errors=True)

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
        owner = (order.launch.uid, order.launch.gid) if os.geteuid() == 0 else None
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
                    packed, most = self._files.path(key), tree.content_bytes
                    await asyncio.to_thread(unpack_tree, packed, copy, most, tree.subfolder, owner)
            return _in_copy(msgspec.structs.replace(order, lease_s=self._lease_s()), tree, copy)
        except BadTree as error:
            raise NoTree(str(error), is_users=True) from None
        except OSError as error:
            why = f"cannot unpack its snapshot on {order.host_id}: {error.strerror}: {error.filename or ''}"
            raise NoTree(why) from None
        finally:
            del self.preparing[order.job_id, order.attempt]

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
