"""Which processes of an attempt run, how the others ended, for which ones the rest waits, and the result when
none is left. Pure.

Rule: the job's own word (`stopped`) counts more than exit codes: torchrun exits 1 after its workers stopped.
After a failure its peers get a moment to fail by themselves, with their own words in the log; after a stop,
to leave.

The result is made once, when no process is left: the verdict of `exit_classifier.decide`, and the last
status.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final

from cotenant.agent.ipc.records import Order, Result
from cotenant.agent.supervisor.core import edge, exit_classifier, exits, rank_messages, stopping

PEER_GRACE_S: Final = 20.0
"""After one rank failed: time for the others to fail by themselves, with their own words in the log."""
OUTSIDE_S: Final = 30.0
"""A rank that fails so long after a signal from outside may have failed of it."""
LINGER_S: Final = 20.0
"""A rank that said `stopped` should exit within this."""


class RankTracker:
    def __init__(self, order: Order) -> None:
        self._order = order
        self.alive = {each.rank for each in order.ranks}
        self.exits: list[exits.Exit] = []
        self.stopped: set[int] = set()
        """Ranks that said so."""
        self._failed_s = inf
        """When the first one failed."""
        self._outside: tuple[int, float] | None = None
        """The last signal from outside, and when it came."""
        self._linger_s = inf

    def is_of(self, rank: int) -> bool:
        """Whether that rank can be here. Launchers, and scripts that start their workers, have ranks that we
        do not know."""
        order = self._order
        return order.launch.mode != "worker" or any(each.rank == rank for each in order.ranks)

    def expected_here(self, hello: rank_messages.RankHello) -> int:
        """How many ranks of this host must say hello. A launcher may start more than there are devices."""
        if len(self._order.gang) == 1:
            return hello.world_size
        return next(len(m.devices) for m in self._order.gang if m.host_id == self._order.host_id)

    def note_exit(self, event: edge.RankExited, now_s: float, *, told: bool) -> bool:
        """A process has ended; False: that was known. `told`: after we had told it to."""
        if event.rank not in self.alive:
            return False
        self.alive.discard(event.rank)
        exit_ = exits.Exit(rank=event.rank, exit_code=event.exit_code, signal=event.signal, was_told=told)
        self.exits.append(exit_)
        if not told and not exit_.is_good and event.rank not in self.stopped:
            self._failed_s = min(self._failed_s, now_s)
        return True

    def note_outside(self, number: int, now_s: float) -> None:
        """The supervisor was signalled, from outside of the job."""
        self._outside = number, now_s

    @property
    def outside(self) -> int | None:
        """The signal from outside that its first failure may have come from; it may be told before or after
        that."""
        number, came_s = self._outside or (None, inf)
        return number if came_s >= self._failed_s - OUTSIDE_S else None

    @property
    def has_failed(self) -> bool:
        """A rank has, and the others are waited for."""
        return self._failed_s < inf

    @property
    def next_alarm_s(self) -> float:
        return min(self._failed_s + PEER_GRACE_S, self._linger_s)

    def judge_peers(self, now_s: float) -> stopping.Leave | None:
        is_due = now_s >= self._failed_s + PEER_GRACE_S
        return stopping.Leave(cause="peer", grace_s=stopping.KILL_GRACE_S) if is_due else None

    def judge_linger(self, hellos: Collection[int], now_s: float) -> stopping.Leave | None:
        if self.all_stopped(hellos):
            self._linger_s = min(self._linger_s, now_s + LINGER_S)
        return (
            stopping.Leave(cause="linger", grace_s=stopping.KILL_GRACE_S) if now_s >= self._linger_s else None
        )

    def all_stopped(self, hellos: Collection[int]) -> bool:
        """All ranks that have said hello."""
        return bool(hellos) and set(hellos) <= self.stopped

    def has_stopped(self, hellos: Collection[int], *, is_durable_there: bool) -> bool:
        """Whether the job has stopped as it was asked to. `is_durable_there`: there is a checkpoint of the
        agreed step.

        If the last datagrams were lost, a good end behind a durable agreed step is the same.
        """
        if self.all_stopped(hellos):
            return True
        ended_well = bool(self.exits) and all(each.is_good for each in self.exits)
        return ended_well and (bool(self.stopped) or is_durable_there)


def conclude(ending: exit_classifier.Ending, *, unclean: bool) -> Result:
    """Returns the result of an attempt that has ended. `unclean`: a process that was an MPS client was
    signalled without its daemon's help. The same holds for a signal from elsewhere: from the kernel, short of
    memory, or from a person."""
    killed = any(each.by_signal is not None and not each.was_told for each in ending.exits)
    return Result(
        status=ending.status,
        verdict=exit_classifier.decide(ending),
        unclean=unclean or (killed and bool(ending.order.mps)),
    )
