"""Takes users' packed trees (`--snapshot`), and says which of them a submission may name.

Rule: a user's jobs run in trees that this user has uploaded, and in no other's. Nothing here is in the
journal: a tree that is not there makes its jobs fail at their start, with the reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from cotenant.controller.api.permissions import TREE_BYTES_BURST, TREE_BYTES_PER_SECOND, Rates
from cotenant.controller.api.submissions import Denied
from cotenant.controller.domain import ENDED, JobSpec
from cotenant.controller.store import Core
from cotenant.controller.system.keys import Identity
from cotenant.controller.system.sections import SnapshotSettings
from cotenant.controller.system.trees import TreeFiles, TreeKey, list_surplus, make_room
from cotenant.controller.wire import clients as wire

CHECKS_MAX: Final = 4
"""Trees that are read at once to be checked; others wait."""
TREES_MAX: Final = 2_000
"""Of one user."""
SWEEP_EVERY_S: Final = 3600.0
CONTENT_FACTOR: Final = 4
_DAY_S: Final = 86_400.0
_MIB: Final = 1024 * 1024


def run_in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()


class TreeRequests:
    def __init__(
        self,
        core: Core,
        files: TreeFiles,
        settings: SnapshotSettings,
        *,
        run: Callable[[Callable[[], None]], None] = run_in_thread,
    ) -> None:
        """Prepares to take trees. `run`: does what takes long, beside the loop."""
        self._core, self._files, self._settings, self._run = core, files, settings, run
        self._checking: set[TreeKey] = set()
        self._rates = Rates(TREE_BYTES_PER_SECOND, TREE_BYTES_BURST)
        self._sweep_s = 0.0

    def ask_snapshot(self, request_id: int, request: wire.AskSnapshot, who: Identity) -> wire.SnapshotHeld:
        key, offset, is_complete = self._held(request, who)
        if not offset:  # Before anything is sent; each part counts again.
            self._clear_room(who.name, request.size_bytes)
        is_new = not is_complete and offset >= request.size_bytes and key not in self._checking
        if is_new and len(self._checking) < CHECKS_MAX:
            self._checking.add(key)
            self._run(lambda: self._check(key))
        return wire.SnapshotHeld(request_id=request_id, offset=offset, is_complete=is_complete)

    def put_snapshot(self, request_id: int, request: wire.PutSnapshot, who: Identity) -> wire.SnapshotHeld:
        key, offset, is_complete = self._held(request, who)
        if not is_complete and key not in self._checking and offset == request.offset:
            if offset + len(request.data) > request.size_bytes:
                raise Denied("usage", "a part of a snapshot lies behind its end")
            self._clear_room(who.name, len(request.data))
            try:
                self._files.append(key, offset, request.data)
            except OSError as error:
                why = f"the controller cannot store the snapshot: {error.strerror}"
                raise Denied("internal", why, "make room on its disk, then submit again") from None
            offset += len(request.data)
        return wire.SnapshotHeld(request_id=request_id, offset=offset, is_complete=is_complete)

    def repaid_bytes(self, part: wire.PutSnapshot, who: Identity) -> int:
        """How much of a part need not count as memory any more: it is on disk."""
        size = len(part.data)
        return size if self._rates.allow(who.name, self._core.clock.now_s(), size) else 0

    def check(self, specs: Sequence[JobSpec], who: Identity) -> None:
        """Raises Denied: a job is to run in a tree that its user has not uploaded."""
        for tree in {spec.launch.snapshot for spec in specs}:
            if tree is not None and not self._files.find((who.name, tree.sha256))[1]:
                text = f"you have not uploaded snapshot {tree.sha256[:12]}"
                raise Denied("not-found", text, "submit it again")
            if tree is not None and tree.content_bytes > CONTENT_FACTOR * self._settings.size_max_mib * _MIB:
                raise Denied("usage", "the snapshot's files are too large (snapshot.size_max_mib)")

    def tick(self) -> None:
        """Removes now and then what no job needs."""
        now_s = self._core.clock.now_s()
        if now_s >= self._sweep_s:
            self._sweep_s = now_s + SWEEP_EVERY_S
            needed = self._needed()
            self._run(lambda: self._sweep(needed))

    def _sweep(self, needed: set[TreeKey]) -> None:
        for key in needed:
            self._files.find(key)
        for tree in list_surplus(
            self._files.list_kept(), needed, time.time(), self._settings.keep_days * _DAY_S
        ):
            tree.path.unlink(missing_ok=True)

    def _check(self, key: TreeKey) -> None:
        with suppress(OSError):  # What has come is checked again when its client asks again.
            self._files.finish(key)
        self._checking.discard(key)

    def _needed(self) -> set[TreeKey]:
        jobs = (job for job in self._core.state.engine.jobs.values() if job.phase not in ENDED)
        return {
            (job.spec.user, tree.sha256) for job in jobs if (tree := job.spec.launch.snapshot) is not None
        }

    def _held(self, request: wire.AskSnapshot | wire.PutSnapshot, who: Identity) -> tuple[TreeKey, int, bool]:
        most = self._settings.size_max_mib
        if not 0 < request.size_bytes <= most * _MIB:
            raise Denied(
                "usage",
                f"the snapshot has {request.size_bytes / _MIB:.1f} MiB of {most} possible here",
                "leave files out, and name data by absolute paths (snapshot.size_max_mib)",
            )
        key = (who.name, request.sha256)
        try:
            return key, *self._files.find(key)
        except ValueError as error:
            raise Denied("usage", str(error)) from None

    def _clear_room(self, user: str, size_bytes: int) -> None:
        most, kept = self._settings.user_max_mib, list(self._files.list_kept(user))
        size = sum(each.bytes for each in kept)
        if size + size_bytes <= most * _MIB and len(kept) < TREES_MAX:
            return
        gone = make_room(kept, self._needed(), time.time(), size_bytes - most * _MIB)
        left = size - sum(each.bytes for each in gone)
        if left + size_bytes > most * _MIB or len(kept) - len(gone) >= TREES_MAX:
            text = f"your {len(kept)} snapshots take {size // _MIB} of {most} MiB (snapshot.user_max_mib)"
            hint = "wait until jobs that need them have ended (or ten minutes), or leave large files out"
            raise Denied("usage", text, hint)
        for each in gone:
            each.path.unlink(missing_ok=True)
