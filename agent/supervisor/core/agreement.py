"""Agreeing with all ranks on a step at which to stop or to save, ahead of every one of them.

Rule: pure, and the coordinator commits only when every rank has promised, for this very proposal, that it has
not reached the step. A promise binds a rank for `DECISION_TIMEOUT_S` (it waits at the step), so the
coordinator withdraws a proposal that is not complete well before that: no rank stops where another one went
on.

It asks ranks on other hosts first and our own only when those have promised. Their messages travel by way of
the controller; so while that is out of reach no rank here waits at a step for an answer that cannot come.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import floor, inf
from typing import Final

import msgspec

from cotenant.agent.supervisor.core.rank_messages import RequestKind, ToRank
from cotenant.checkpoint.talk.protocol import DECISION_TIMEOUT_S

RESEND_S: Final = 0.5
PROPOSAL_TIMEOUT_S: Final = DECISION_TIMEOUT_S / 3
"""Far below what a promise binds for: a commit must still arrive in time."""
ROUNDS_MAX: Final[dict[RequestKind, int]] = {"stop": 8, "save": 3}
_ORDER: Final[dict[RequestKind, int]] = {"stop": 0, "save": 1}
RESENDS_MAX: Final = 20
RELEASES: Final = 4
"""How often to send a withdrawal: a rank that misses it waits in vain, and the others wait for that rank."""
MARGIN_S: Final = 0.05
"""How far ahead the first proposal is, beyond what is known; doubled after every refusal."""
FAR_MARGIN_S: Final = 0.5
UNKNOWN_STEP_S: Final = 0.05
"""The assumed time of a step before the first measurement."""

Words = list[tuple[int, ToRank]]
"""What to say to which rank, in order."""


class ProposalWish(msgspec.Struct, frozen=True, kw_only=True):
    """The proposal that is wanted."""

    kind: RequestKind
    finish: bool = False


class Proposal(msgspec.Struct, kw_only=True):
    wish: ProposalWish
    number: int
    step: int
    round: int
    since_s: float
    resend_s: float
    silent: set[int]
    """Ranks that have not promised yet."""
    is_measured: bool = False
    """Every rank had just said where it is when this was proposed."""
    committed: bool = False
    reached: set[int] = set()
    """Ranks that are known to have got there."""
    resends: int = 0


class Pause(msgspec.Struct, kw_only=True):
    """Between two rounds, after a refusal that a later step would not have avoided."""

    wish: ProposalWish
    round: int
    until_s: float


class WithdrawnProposal(msgspec.Struct, kw_only=True):
    """A withdrawn proposal, to be sent a few more times."""

    word: ToRank
    times: int
    at_s: float


class AgreementCoordinator:
    """The coordinator of one attempt: at most one proposal at a time; stops, then saves."""

    def __init__(self) -> None:
        self._near: set[int] = set()
        self._far: set[int] = set()
        self._seen: dict[int, tuple[int, float]] = {}
        """Per rank: steps completed, and when we heard so."""
        self._step_s: float | None = None
        self._number = 0
        self._now: Proposal | None = None
        self._wanted: list[ProposalWish] = []
        self._pause: Pause | None = None
        self._releases: list[WithdrawnProposal] = []
        self.gave_up: set[RequestKind] = set()
        """Kinds for which no agreement was possible; cleared when asked for anew."""

    # --- What the coordinator is told ---------------------------------------------------------------

    def join(self, rank: int, *, far: bool) -> None:
        (self._far if far else self._near).add(rank)

    def leave(self, rank: int, now_s: float) -> Words:
        """The rank's process is gone: it cannot overtake anybody, so nobody waits for its word."""
        self._near.discard(rank)
        self._far.discard(rank)
        if self._now is None or not self._ranks:
            return []
        self._now.silent.discard(rank)
        return self._commit_if_complete(now_s)

    def saw_step(self, rank: int, step: int, now_s: float) -> None:
        if step >= self._seen.get(rank, (0, 0.0))[0]:
            self._seen[rank] = (step, now_s)

    def note_pace(self, step_s: float | None) -> None:
        self._step_s = step_s

    def ask(self, kind: RequestKind, now_s: float, *, finish: bool = False) -> Words:
        """Start towards an agreement, or queue behind the one under way. Asking again changes nothing."""
        self.gave_up.discard(kind)
        busy = {wish.kind for wish in self._wanted}
        busy |= {self._pause.wish.kind} if self._pause is not None else set()
        busy |= {self._now.wish.kind} if self._now is not None else set()
        if kind not in busy:
            self._wanted.append(ProposalWish(kind=kind, finish=finish))
        return self._next(now_s)

    def drop(self, kind: RequestKind, now_s: float) -> Words:
        """Drops the wishes of a kind that is not wanted any more; ranks that wait are released. A commit
        stands."""
        self._wanted = [each for each in self._wanted if each.kind != kind]
        if self._pause is not None and self._pause.wish.kind == kind:
            self._pause = None
        if self._now is None or self._now.wish.kind != kind or self._now.committed:
            return self._next(now_s)
        return self._withdraw(now_s) + self._next(now_s)

    def heard_confirm(self, rank: int, proposal: int, step: int, ok: bool, now_s: float) -> Words:
        """Takes a rank's answer to a proposal. Late, repeated and foreign answers change nothing."""
        self.saw_step(rank, step, now_s)
        now = self._now
        if now is None or now.committed or proposal != now.number or rank not in now.silent:
            return []  # A rank that has promised stays bound, whatever it says about a repeated question.
        if not ok:
            return self._another_round(now_s, pause_s=0.0 if step >= now.step else RESEND_S)
        now.silent.discard(rank)
        if now.silent & self._far:
            return []
        own = sorted(now.silent & self._near)
        if own and rank in self._far:  # The last of the others has promised: now our own.
            return [(each, self._word("propose")) for each in own]
        return self._commit_if_complete(now_s)

    def note_arrival(self, rank: int, step: int, now_s: float) -> Words:
        """A rank saves or has stopped: it has heard the commit. Others may not have."""
        self.saw_step(rank, step, now_s)
        if self._now is None or not self._now.committed or step < self._now.step:
            return []
        self._now.reached.add(rank)
        return self._done_if_all_are_there(now_s)

    def tick(self, now_s: float) -> Words:
        """Repeat what may have been lost; withdraw what takes too long."""
        words = self._repeat_releases(now_s)
        if self._pause is not None and now_s >= self._pause.until_s:
            pause, self._pause = self._pause, None
            return words + self._propose(pause.wish, pause.round, now_s)
        now = self._now
        if now is None or now_s < self._due_s(now):
            return words
        if now.committed:
            return words + (self._done_if_all_are_there(now_s) or self._repeat_commit(now_s))
        if now_s >= now.since_s + PROPOSAL_TIMEOUT_S:
            return words + self._another_round(now_s)
        now.resend_s = now_s + RESEND_S
        return words + self._ask_silent()

    # --- What follows from it -----------------------------------------------------------------------

    @property
    def next_alarm_s(self) -> float:
        alarms = [release.at_s for release in self._releases]
        if self._pause is not None:
            alarms.append(self._pause.until_s)
        if self._now is not None:
            alarms.append(self._due_s(self._now))
        return min(alarms, default=inf)

    @property
    def committed(self) -> tuple[RequestKind, int] | None:
        """What stands, until a rank is known to have got there."""
        now = self._now
        return (now.wish.kind, now.step) if now is not None and now.committed else None

    @property
    def is_busy(self) -> bool:
        return self._now is not None or self._pause is not None or bool(self._wanted)

    @property
    def _ranks(self) -> set[int]:
        return self._near | self._far

    @staticmethod
    def _due_s(now: Proposal) -> float:
        return now.resend_s if now.committed else min(now.resend_s, now.since_s + PROPOSAL_TIMEOUT_S)

    def _next(self, now_s: float) -> Words:
        """Take up the next wish. A stop does not wait for what is only proposed."""
        words: Words = []
        wish = min(self._wanted, key=lambda each: _ORDER[each.kind], default=None)
        if wish is not None and wish.kind == "stop":
            self._pause = None
            if self._now is not None and self._now.committed:
                return []  # It is reached within moments.
            words = self._withdraw(now_s) if self._now is not None else []
        if self._now is not None or self._pause is not None or wish is None or not self._ranks:
            return words
        self._wanted.remove(wish)
        return words + self._propose(wish, 0, now_s)

    def _propose(
        self, wish: ProposalWish, round_no: int, now_s: float, *, is_measured: bool = False
    ) -> Words:
        self._number += 1
        self._now = Proposal(
            wish=wish,
            number=self._number,
            step=self._step_ahead(round_no, now_s),
            round=round_no,
            since_s=now_s,
            resend_s=now_s + RESEND_S,
            silent=set(self._ranks),
            is_measured=is_measured,
        )
        return self._ask_silent()

    def _step_ahead(self, round_no: int, now_s: float) -> int:
        """The first step that no rank will have completed when the question reaches it."""
        step_s = max(self._step_s or UNKNOWN_STEP_S, 1e-4)
        margin_s = (FAR_MARGIN_S if self._far else MARGIN_S) * 2**round_no
        at_least_1 = (
            step + floor((now_s - seen_s + margin_s) / step_s) for step, seen_s in self._known_paces()
        )
        return 1 + round_no + max(at_least_1, default=0)

    def _known_paces(self) -> Iterable[tuple[int, float]]:
        return (seen for rank, seen in self._seen.items() if rank in self._ranks)

    def _ask_silent(self) -> Words:
        assert self._now is not None
        ranks = self._now.silent & self._far or self._now.silent
        return [(rank, self._word("propose")) for rank in sorted(ranks)]

    def _another_round(self, now_s: float, *, pause_s: float = 0.0) -> Words:
        now = self._now
        assert now is not None and not now.committed
        words = self._withdraw(now_s)
        if now.round + 1 >= ROUNDS_MAX[now.wish.kind]:
            self.gave_up.add(now.wish.kind)
            return words + self._next(now_s)
        if pause_s:
            self._pause = Pause(wish=now.wish, round=now.round + 1, until_s=now_s + pause_s)
            return words
        return words + self._propose(now.wish, now.round + 1, now_s)

    def _withdraw(self, now_s: float) -> Words:
        word = self._word("withdraw")
        self._now = None
        self._releases.append(WithdrawnProposal(word=word, times=RELEASES - 1, at_s=now_s + RESEND_S))
        return [(rank, word) for rank in sorted(self._ranks)]

    def _repeat_releases(self, now_s: float) -> Words:
        words: Words = []
        for release in self._releases:
            if now_s >= release.at_s:
                release.times -= 1
                release.at_s = now_s + RESEND_S
                words += [(rank, release.word) for rank in sorted(self._ranks)]
        self._releases = [release for release in self._releases if release.times > 0]
        return words

    def _commit_if_complete(self, now_s: float) -> Words:
        now = self._now
        assert now is not None
        if now.committed or now.silent:
            return []
        if not now.is_measured and self._is_too_far(now, now_s):
            words = self._withdraw(now_s)
            return words + self._propose(now.wish, now.round, now_s, is_measured=True)
        now.committed = True
        now.resend_s = now_s + RESEND_S
        return [(rank, self._word("commit")) for rank in sorted(self._ranks)]

    def _is_too_far(self, now: Proposal, now_s: float) -> bool:
        """Whether the ranks, who have all said where they are by now, are far behind what was reckoned: their
        pace is from before a pause, or from faster steps, and they would be long in coming."""
        furthest = max((step for step, _ in self._known_paces()), default=now.step)
        return now.step - furthest > 2 * (self._step_ahead(now.round, now_s) - furthest)

    def _done_if_all_are_there(self, now_s: float) -> Words:
        now = self._now
        assert now is not None
        if self._not_there(now):
            return []
        self._now = None
        return self._next(now_s)

    def _not_there(self, now: Proposal) -> set[int]:
        """A rank that is past the step of a save must have heard of it: else it would wait there."""
        goes_on = now.wish.kind != "stop"
        past = {rank for rank, (step, _) in self._seen.items() if step > now.step and goes_on}
        return self._ranks - now.reached - past

    def _repeat_commit(self, now_s: float) -> Words:
        now = self._now
        if now is None or not now.committed:
            return []
        now.resends += 1
        if now.resends > RESENDS_MAX:  # No rank has said that it got there; a slow step may still do.
            self._now = None
            return self._next(now_s)
        now.resend_s = now_s + RESEND_S
        return [(rank, self._word("commit")) for rank in sorted(self._not_there(now))]

    def _word(self, phase: str) -> ToRank:
        now = self._now
        assert now is not None
        wish = now.wish
        fields = {"kind": wish.kind, "proposal": now.number, "step": now.step, "phase": phase}
        if wish.finish:
            fields["finish"] = True
        return msgspec.convert(fields, ToRank)
