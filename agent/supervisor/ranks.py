"""The processes of an attempt's ranks: starts and signals them, and reports their ends.

Rule: all of them start warm, or all of them cold. Cold ones are our children. Warm ones are those of a nanny
(`agent/warm`), which tells how each has ended and ends after the last; one that does not is killed, and takes
with it what is left below it. Clients of an MPS daemon outlive it: the supervisor signals them and sees their
ends by descriptors of its own, and nobody knows their exit codes.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.agent.containers.processes import find_mains
from cotenant.agent.host.cgroups import AttemptCgroup
from cotenant.agent.ipc.records import Order, RankOrder
from cotenant.agent.supervisor.core.edge import Started
from cotenant.agent.supervisor.processes.ranks import catches, end_groups, reap, start
from cotenant.agent.supervisor.processes.reaper import end_others
from cotenant.agent.warm.client import Nanny, start_warm
from cotenant.agent.warm.refusals import WarmRefused, program_of, sentence

NANNY_S: Final = 5.0
"""From a forced end, or from the last one, to that of a nanny."""


class WantedRank(NamedTuple):
    """A rank that is wanted, its environment, and the descriptors that it writes to."""

    rank: RankOrder
    env: dict[str, str]
    output: int
    errors: int
    """The same one, unless standard error is kept apart."""
    argv: tuple[str, ...]


class RankProcesses:
    """The processes of ranks that were started and have not ended."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        ended: Callable[[int, int], None],
        nanny_ended: Callable[[], None],
    ) -> None:
        """`ended` is told a rank and its exit code, negative: minus the signal."""
        self._selector = selector
        self._ended = ended
        self._nanny_ended = nanny_ended
        self.pids: dict[int, int] = {}
        """By rank: itself, or the program that has started its container."""
        self.roots: dict[int, int] = {}
        """What is measured of each rank is below this: itself, the first process in its container, or the
        nanny that has a launcher's workers."""
        self._contained: Path | None = None
        """The socket by which processes in containers are known; None: there are none."""
        self._nanny: Nanny | None = None
        """Whose children they are, if they were started warm and it lives."""
        self._outlive = False
        """Ranks are no nanny's to take along."""
        self._orphans: dict[int, int] = {}
        """Those whose nanny is gone: descriptors of their processes, by rank."""
        self.kill_s = inf
        """When the nanny is killed, unless it has ended by then."""

    # --- Starting -----------------------------------------------------------------------------------

    def start(
        self,
        order: Order,
        wanted: Sequence[WantedRank],
        cgroup: AttemptCgroup,
        *,
        dies_with_us: bool,
    ) -> Started:
        """Starts the ranks that are wanted. Raises RankStartFailed: one could not be started; nothing of the
        attempt has run."""
        why = self._start_warm(order, wanted, cgroup)
        if self._nanny is None:
            for rank, env, output, errors, argv in wanted:
                pid = start(order, rank, argv, env, (output, errors), cgroup, dies_with_us=dies_with_us)
                self.pids[rank.rank] = pid
        self.roots.update(self.pids)
        if self._nanny is not None and order.launch.mode == "host":
            self.roots[order.ranks[0].rank] = self._nanny.pid
        return Started(launch="cold" if self._nanny is None else "warm", launch_why=why)

    def _start_warm(self, order: Order, wanted: Sequence[WantedRank], cgroup: AttemptCgroup) -> str:
        """Starts them warm, with a nanny, if possible; else returns why not."""
        offer = order.warm
        if not offer.server:
            return sentence(offer.why, offer.detail) if offer.why else ""
        self._outlive = bool(order.mps)
        try:
            self._nanny = start_warm(
                order, program_of(order.launch.argv), [each[:4] for each in wanted], cgroup
            )
        except WarmRefused as refused:
            return str(refused)
        self.pids.update(self._nanny.pids)
        self._selector.register(self._nanny, selectors.EVENT_READ, self._nanny_said)
        return ""

    # --- Ends ---------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Reaps the children that have ended."""
        ranks = {pid: rank for rank, pid in self.pids.items()}
        for pid, code in reap():
            if pid in ranks:
                is_signal = self._contained is not None and 128 < code < 128 + signal.NSIG
                self._rank_ended(ranks[pid], 128 - code if is_signal else code)

    def _nanny_said(self) -> None:
        nanny = self._nanny
        assert nanny is not None
        for exited in nanny.read():
            if exited.rank in self.pids:
                self._rank_ended(exited.rank, exited.code)
        if not nanny.is_gone:
            return
        self._selector.unregister(nanny)
        if self._outlive:
            self._take_over(nanny)
        else:
            nanny.kill()  # The remaining ones die with it; their exit codes are lost.
        nanny.close()
        self._nanny, self.kill_s = None, inf
        for rank in list(self.pids):
            if rank not in self._orphans:
                self._rank_ended(rank, -signal.SIGKILL)
        self._nanny_ended()

    def _take_over(self, nanny: Nanny) -> None:
        for rank, descriptor in nanny.handed_over().items():
            if rank in self.pids:
                self._orphans[rank] = descriptor
                self._selector.register(descriptor, selectors.EVENT_READ, partial(self._orphan_ended, rank))
            else:
                os.close(descriptor)

    def _orphan_ended(self, rank: int) -> None:
        descriptor = self._orphans.pop(rank)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        self._rank_ended(rank, -signal.SIGKILL)

    @property
    def nanny_pid(self) -> int | None:
        """Orphans of warm ranks are below it."""
        return self._nanny.pid if self._nanny is not None else None

    def _rank_ended(self, rank: int, code: int) -> None:
        del self.pids[rank]
        self.roots.pop(rank, None)
        self._ended(rank, code)

    # --- Ending them --------------------------------------------------------------------------------

    def _signal_containers(self, number: signal.Signals) -> None:
        """Signals the processes in containers; the program that has started one then ends by itself, with
        their exit code, and removes it."""
        end_groups(self.look_into_containers(), number)
        end_groups([pid for rank, pid in self.pids.items() if self.roots[rank] == pid], number)

    def signal(self, number: signal.Signals) -> None:
        if self._contained is not None:
            self._signal_containers(number)
        elif self._nanny is None:
            end_groups([pid for rank, pid in self.pids.items() if rank not in self._orphans], number)
            for descriptor in self._orphans.values():
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, number)
            return
        else:
            self._nanny.signal(number)
        if number == signal.SIGKILL:
            self._kill_within(NANNY_S, time.monotonic())

    def contain(self, socket: Path) -> None:
        """The ranks run in containers; `socket` is in the environment of every process there."""
        self._contained = socket

    def look_into_containers(self) -> list[int]:
        """Finds the processes that have come up in containers, and from then on measures what is below a
        rank's first one. Returns those that lead the others."""
        if self._contained is None:
            return []
        mains = list(find_mains(self._contained, self.pids.values()))
        for pid, word in mains:
            rank = int(word) if word.isdecimal() else next(iter(self.pids), -1)
            if self.roots.get(rank, pid) == self.pids.get(rank):
                self.roots[rank] = pid
        return [pid for pid, _ in mains]

    def warn(self, order: Order) -> bool:
        """The signal that its `#SBATCH` lines want before the time limit, to the script alone. Not before it
        has a trap for it, for to any other it is death; whether there is nothing left to do."""
        slurm = order.launch.slurm
        number = slurm.signal if slurm else 0
        for pid in self.pids.values():
            if not catches(pid, number):
                return False
            with suppress(ProcessLookupError):  # It has ended just now.
                os.kill(pid, number)
        return True

    def kill_late(self, now_s: float) -> None:
        if now_s >= self.kill_s and self._nanny is not None:
            self.kill_s = now_s + NANNY_S
            self._nanny.kill()
        elif now_s >= self.kill_s:  # Of containers: what has started them does not end.
            self.kill_s = inf
            end_groups([*self.pids.values()], signal.SIGKILL)

    def has_warm_leftovers(self, folder: Path, order: Order, now_s: float) -> bool:
        """Whether there are leftovers of an attempt that was started warm: a nanny ends what is below it;
        what outlives a nanny that was killed is known by its environment."""
        if self._nanny is not None:
            self._nanny.clear()
            self._kill_within(NANNY_S, now_s)
            return True
        return bool(end_others(folder, order))

    def _kill_within(self, grace_s: float, now_s: float) -> None:
        self.kill_s = min(self.kill_s, now_s + grace_s)
