"""Fake training jobs: gangs in lock step that say hello, save, stop, finish, crash and hang.

Rule: a rank is a few lines around the real `checkpoint.agreement`; it believes only the datagrams it gets.
What these jobs do is the truth that the cluster is judged by: which ranks live, and from which step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from cotenant.agent.ipc.records import Order
from cotenant.agent.supervisor.core.rank_messages import (
    AnyRankWord,
    DurableSaid,
    FirstStepReached,
    RankFailed,
    RankHello,
    Saving,
    StepConfirmed,
    StepDone,
    Stopped,
)
from cotenant.checkpoint.talk.agreement import Agreement, StepVerdict
from cotenant.checkpoint.talk.protocol import DECISION_TIMEOUT_S, decode
from cotenant.controller.domain import AttemptNo, JobId
from tests.simulation.clockwork import Clockwork

Key = tuple[JobId, AttemptNo]


class Nature(msgspec.Struct, frozen=True, kw_only=True):
    """What a job truly is; nobody in the cluster can see it."""

    steps: int
    step_s: float
    load_s: float
    save_s: float = 0.5
    uses_library: bool = True
    fails_at: int | None = None
    """A user's mistake: every attempt that comes this far exits with 1."""
    exit_s: float = 0.3
    """How long a process takes to go once it has finished or stopped."""
    deaf: bool = False
    """Ignores SIGTERM."""


class Storage:
    """Checkpoints by domain: what is here is durable and verified."""

    def __init__(self) -> None:
        self.checkpoints: dict[tuple[str, str], dict[tuple[int, int], str]] = {}
        """By folder: whose each is, of which attempt and step."""
        self.full: set[str] = set()

    def newest(self, domain: str, order: Order) -> tuple[int, int]:
        """(attempt, step), never above the reader's own attempt."""
        known = self.checkpoints.get((domain, order.checkpoint_root), {})
        others = {name for name in known.values() if name != order.start.name}
        assert not others, f"{order.start.name} finds checkpoints of {others} in {order.checkpoint_root}"
        return max((c for c in known if c[0] <= order.attempt), default=(0, 0))

    def put(self, domain: str, order: Order, step: int) -> bool:
        if domain in self.full:
            return False
        here = self.checkpoints.setdefault((domain, order.checkpoint_root), {})
        here[order.attempt, step] = order.start.name
        return True


class Rank:
    """One process."""

    def __init__(self, number: int, order: Order, domain: str, say: Callable[[AnyRankWord], None]) -> None:
        self.number = number
        self.order = order
        self.domain = domain
        self.say = say
        self.alive = True
        self.exited: Callable[[int | None, int | None], None] | None = None
        self.agreement = Agreement()
        self.verdict = StepVerdict.GO
        self.waits_since_s: float | None = None
        self.stopped = False

    def hear(self, data: bytes, training: Training) -> None:
        """A datagram of the supervisor, answered from the listener thread at once."""
        order = decode(data)
        if order is None or not self.alive or not training.nature.uses_library:
            return
        answer = self.agreement.receive(order)
        if answer is not None:
            self.say(
                StepConfirmed(v=1, rank=self.number, proposal=answer.proposal, step=answer.step, ok=answer.ok)
            )
        training.look_again()


class Training:
    """All ranks of one attempt, wherever they are."""

    def __init__(self, clock: Clockwork, key: Key, world_size: int, nature: Nature, world: Any) -> None:
        self.key = key
        self.launch: tuple[str, int, str] = ("", 0, "")
        """What it truly is, whatever its number: its submission, its attempt and when that was launched."""
        self.nature = nature
        self.ranks: dict[int, Rank] = {}
        self.step: int | None = None
        """Completed steps, once loaded."""
        self._clock = clock
        self._world = world
        self._world_size = world_size
        self._in_step = False
        self._broken = False
        self._saves: set[int] = set()
        self._looking = False
        self._first_said: set[int] = set()
        self._finished = False

    def join(self, rank: Rank) -> None:
        self.ranks[rank.number] = rank
        self._world.began(self, rank)
        if len(self.ranks) == self._world_size and all(r.alive for r in self.ranks.values()):
            self._clock.after(self.nature.load_s, self._loaded)

    @property
    def _all_live(self) -> bool:
        return len(self.ranks) == self._world_size and all(rank.alive for rank in self.ranks.values())

    def _loaded(self) -> None:
        if not self._all_live:
            return
        first = self.ranks[0]
        domains = {rank.domain for rank in self.ranks.values()}
        self.step = 0
        if self.nature.uses_library and len(domains) == 1:
            self.step = self._world.storage.newest(first.domain, first.order)[1]
        self._world.loaded(self.key, first.order, self.step)
        for rank in self.ranks.values():
            rank.agreement.completed = self.step
            if self.nature.uses_library:
                hello = RankHello(
                    v=1,
                    rank=rank.number,
                    world_size=self._world_size,
                    resumable=True,
                    accumulates=True,
                    step=self.step,
                )
                self._clock.soon(0.5, rank.say, hello)
        self._go_on()

    # --- Stepping ----------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """All ranks are past their boundary: one step, together."""
        if self._in_step or not self._all_live or self.step is None:
            return
        self._in_step = True
        pace = self._world.pace(self) * self._clock.chance.uniform(0.9, 1.1)
        self._clock.after(self.nature.step_s * pace, self._stepped)

    def _stepped(self) -> None:
        self._in_step = False
        if not self._all_live or self.step is None:
            return
        self.step += 1
        for rank in list(self.ranks.values()):
            self._say_step(rank)
        if self.nature.fails_at is not None and self.step >= self.nature.fails_at:
            self._exit(self.ranks[0], exit_code=1)
            return
        if self.step >= self.nature.steps:
            self._finished = True
            for rank in list(self.ranks.values()):
                self._clock.soon(self.nature.exit_s, self._exit, rank, 0)
            return
        for rank in self.ranks.values():
            rank.waits_since_s = None
            rank.verdict = rank.agreement.arrive(self.step)
        self.look_again()

    def _say_step(self, rank: Rank) -> None:
        assert self.step is not None
        if not self.nature.uses_library:
            return
        if rank.number not in self._first_said:
            self._first_said.add(rank.number)
            rank.say(FirstStepReached(v=1, rank=rank.number, step=self.step))
        rank.say(StepDone(v=1, rank=rank.number, step=self.step, count=1, elapsed_s=self.nature.step_s))

    def look_again(self) -> None:
        """An order came, or a boundary was reached: who may go on?"""
        if not self._looking:
            self._looking = True
            self._clock.after(0.0, self._look)

    def _look(self) -> None:
        self._looking = False
        if self._in_step or self.step is None or not self._all_live or self._finished:
            return
        for rank in self.ranks.values():
            if rank.verdict is StepVerdict.WAIT:
                self._wait(rank)
            if rank.verdict is StepVerdict.SAVE:
                rank.verdict = StepVerdict.GO
                self._save(rank)
            elif rank.verdict is StepVerdict.STOP and not rank.stopped:
                rank.stopped = True
                rank.say(Saving(v=1, rank=rank.number, step=self.step))
        if all(rank.stopped for rank in self.ranks.values()):
            self._clock.after(self.nature.save_s, self._stop_saved, self.step)
        elif all(rank.verdict is StepVerdict.GO for rank in self.ranks.values()):
            self._go_on()

    def _wait(self, rank: Rank) -> None:
        assert self.step is not None
        if rank.waits_since_s is None:
            rank.waits_since_s = self._clock.now_s
            self._clock.after(DECISION_TIMEOUT_S + 0.01, self.look_again)
        rank.verdict = rank.agreement.arrive(self.step)
        if rank.verdict is StepVerdict.WAIT and self._clock.now_s >= rank.waits_since_s + DECISION_TIMEOUT_S:
            for refusal in rank.agreement.give_up():
                rank.say(
                    StepConfirmed(
                        v=1, rank=rank.number, proposal=refusal.proposal, step=refusal.step, ok=False
                    )
                )
            rank.verdict = rank.agreement.arrive(self.step)
        self._world.waited(self.key, self._clock.now_s - rank.waits_since_s)

    # --- Saving ------------------------------------------------------------------------------------

    def _save(self, rank: Rank) -> None:
        assert self.step is not None
        rank.say(Saving(v=1, rank=rank.number, step=self.step))
        if self.step not in self._saves:
            self._saves.add(self.step)
            self._clock.after(self.nature.save_s, self._saved, self.step)

    def _saved(self, step: int) -> None:
        first = self.ranks[0]
        if first.alive:
            self._publish(first, step)

    def _publish(self, first: Rank, step: int) -> bool:
        one_place = len({rank.domain for rank in self.ranks.values()}) == 1
        if not one_place or not self._world.storage.put(first.domain, first.order, step):
            first.say(RankFailed(v=1, rank=0, what="save", error="No space left on device"))
            return False
        first.say(DurableSaid(v=1, rank=0, step=step, name=f"a{self.key[1]}-s{step}"))
        return True

    def _stop_saved(self, step: int) -> None:
        if not self._all_live or not all(rank.stopped for rank in self.ranks.values()):
            return
        if self._publish(self.ranks[0], step):
            for rank in list(self.ranks.values()):
                rank.say(Stopped(v=1, rank=rank.number, step=step))
                self._clock.soon(self.nature.exit_s, self._exit, rank, 0)
            return
        for rank in self.ranks.values():  # The job goes on; it may be asked again.
            rank.stopped, rank.verdict = False, StepVerdict.GO
        self._go_on()

    # --- Ending ------------------------------------------------------------------------------------

    def _exit(self, rank: Rank, exit_code: int | None = None, signal: int | None = None) -> None:
        if not rank.alive:
            return
        rank.alive = False
        self._world.ceased(self, rank)
        if rank.exited is not None:
            rank.exited(exit_code, signal)
        if exit_code != 0 and not self._broken:
            self._broken = True  # The others lose their connection to it, sooner or later.
            for other in list(self.ranks.values()):
                if other.alive:
                    self._clock.after(self._clock.chance.uniform(0.1, 3.0), self._exit, other, 1)

    def kill(self, rank: Rank, number: int) -> None:
        """A signal. SIGTERM may be ignored."""
        if number == 15 and self.nature.deaf:
            return
        self._exit(rank, None, number)
