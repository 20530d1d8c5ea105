"""A journal on paper: what is committed stays, what is not is gone with a crash, a full disk fails commits.

It has the members of `controller.store.journal.Journal` that `Core`, `recover` and `AgentExecutor` use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from cotenant.controller.domain import HostId
from cotenant.controller.store import ControllerRun, Effect, Entry, StorageError, Uptime
from tests.simulation.clockwork import Clockwork


class Pages(msgspec.Struct, kw_only=True):
    """What is on disk."""

    entries: list[Entry] = []
    reports: dict[HostId, int] = {}
    snapshots: list[tuple[int, bytes]] = []
    runs: list[ControllerRun] = []

    def copied(self) -> Pages:
        """What a backup holds."""
        return Pages(
            entries=list(self.entries),
            reports=dict(self.reports),
            snapshots=list(self.snapshots),
            runs=list(self.runs),
        )


class Group(msgspec.Struct, kw_only=True):
    epoch: int
    entries: list[Entry] = []
    reports: dict[HostId, int] = {}
    snapshots: list[tuple[int, bytes]] = []
    then: Sequence[Effect] = ()


class PaperDatabase:
    is_shared = False


class PaperJournal:
    name = "paper"
    database = PaperDatabase()
    place = "paper"

    def __init__(
        self,
        clock: Clockwork,
        pages: Pages,
        hand_over: Callable[[Sequence[Effect]], None],
        on_failure: Callable[[StorageError], None],
    ) -> None:
        self._clock = clock
        self._pages = pages
        self._hand_over = hand_over
        self._on_failure = on_failure
        self._epoch = 0
        self._failed_epoch = -1
        self._group = Group(epoch=0)
        self._on_the_way = 0
        self._busy_until_s = 0.0
        self.last_seq = len(pages.entries)
        self.is_full = False
        self.is_dead = False
        """Its controller has crashed: nothing more reaches the disk."""

    # --- Writing -----------------------------------------------------------------------------------

    def begin_run(self, configuration: bytes, package: str, wall_s: float, up: Uptime) -> float:
        runs, entries = self._pages.runs, self._pages.entries
        now_s = max([run.now_s for run in runs[-1:]] + [entry.now_s for entry in entries[-1:]], default=0.0)
        then_s = max(
            [run.wall_s for run in runs[-1:]] + [entry.wall_s for entry in entries[-1:]], default=wall_s
        )
        now_s += max(0.0, wall_s - then_s)
        run = ControllerRun(
            first_seq=self.last_seq + 1,
            package=package,
            configuration=configuration,
            now_s=now_s,
            wall_s=wall_s,
        )
        runs.append(run)
        return now_s

    def append(self, now_s: float, wall_s: float, event: bytes, decision: bytes, commands: bytes) -> int:
        self.last_seq += 1
        entry = Entry(
            seq=self.last_seq, now_s=now_s, wall_s=wall_s, event=event, decision=decision, commands=commands
        )
        self._group.entries.append(entry)
        return self.last_seq

    def keep_report(self, host_id: HostId, sequence: int) -> None:
        self._group.reports[host_id] = sequence

    def keep_snapshot(self, data: bytes) -> None:
        self._group.snapshots.append((self.last_seq, data))

    def keep_quarantined(self, wall_s: float, event: bytes, story: str) -> None:
        raise AssertionError(f"an event broke the engine:\n{story}")

    @property
    def has_open_group(self) -> bool:
        group = self._group
        return bool(group.entries or group.reports or group.snapshots)

    @property
    def is_settled(self) -> bool:
        return not self.has_open_group and self._on_the_way == 0

    def seal(self, then: Sequence[Effect] = ()) -> None:
        """On its way to the disk, behind what was sealed before."""
        group, self._group = self._group, Group(epoch=self._epoch)
        group.then = then
        self._on_the_way += 1
        takes_s = self._clock.chance.uniform(0.0, 0.02)
        self._busy_until_s = max(self._busy_until_s, self._clock.now_s) + takes_s
        self._clock.after(self._busy_until_s - self._clock.now_s, self._commit, group)

    def _commit(self, group: Group) -> None:
        if self.is_dead:
            return
        self._on_the_way -= 1
        if group.epoch == self._failed_epoch or group.epoch != self._epoch:
            return
        if self.is_full and (group.entries or group.reports or group.snapshots):
            self._failed_epoch = group.epoch
            self._on_failure(StorageError("database or disk is full"))
            return
        self._pages.entries += group.entries
        self._pages.reports.update(group.reports)
        self._pages.snapshots = [*self._pages.snapshots, *group.snapshots][-2:]
        self._hand_over(group.then)

    def rewind(self) -> None:
        self._epoch += 1
        self._group = Group(epoch=self._epoch)
        self.last_seq = len(self._pages.entries)

    # --- Reading -----------------------------------------------------------------------------------

    def runs(self) -> list[ControllerRun]:
        return list(self._pages.runs)

    def entries(self, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        return iter(self._pages.entries[after:])

    def snapshots(self) -> Iterator[tuple[int, bytes]]:
        return iter(reversed(self._pages.snapshots))

    def reports(self) -> dict[HostId, int]:
        return dict(self._pages.reports)

    @property
    def waiting(self) -> int:
        """Paper is written at once, as far as the loop is concerned."""
        return 0

    def has_room(self) -> bool:
        return not self.is_full

    def can_write(self) -> bool:
        return not self.is_full
