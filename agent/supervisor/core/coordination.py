"""One supervisor's part in agreeing on a step: as the coordinator of all ranks, or as a member that
passes words on between its own ranks and the coordinator.

Rule: pure, and both parts are here, so that a gang of one host runs the same code as a gang of many. The
first host of the gang coordinates. Agents and controller relay the messages between supervisors of one gang
without looking inside, and may lose, repeat and reorder them. So a member sends its whole state, numbered,
every few seconds; answers carry the proposal they belong to; and nobody assumes that a message arrived.
"""

from __future__ import annotations

from math import inf
from typing import Annotated, Final

import msgspec

from cotenant.agent.ipc.channel import GangIn, GangOut
from cotenant.agent.ipc.records import Order
from cotenant.agent.supervisor.core import agreement, edge, rank_messages
from cotenant.agent.supervisor.core.progress import RankProgress
from cotenant.controller.domain import HostId
from cotenant.controller.wire import BadMessage, pack, unpack

PAYLOAD_BYTES_MAX = 256 * 1024
MEMBER_PERIOD_S: Final = 5.0


class GangMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="g"):
    """Base of what supervisors say to each other."""


class RankNow(msgspec.Struct, frozen=True, kw_only=True):
    rank: rank_messages.RankNo
    step: rank_messages.Count
    world_size: rank_messages.Count
    resumable: bool


class MemberNow(GangMessage, frozen=True, kw_only=True, tag="now"):
    """Member -> first host: all its ranks that have said hello. An older one is ignored."""

    sequence: rank_messages.Count
    ranks: tuple[RankNow, ...]
    step_s: rank_messages.BoundedSeconds | None
    alone: bool = True
    """Nobody shares this host's devices with it."""
    still_s: rank_messages.BoundedSeconds | None = None
    """How long none of its ranks has made a step or been seen to move; None = not known."""


class MemberConfirm(GangMessage, frozen=True, kw_only=True, tag="confirm"):
    """Member -> first host: a rank's answer."""

    rank: rank_messages.RankNo
    proposal: rank_messages.Count
    step: rank_messages.Count
    ok: bool


class GangSays(GangMessage, frozen=True, kw_only=True, tag="say"):
    """First host -> member: to be passed on to these ranks."""

    ranks: Annotated[tuple[rank_messages.RankNo, ...], msgspec.Meta(max_length=1024)]
    word: rank_messages.ToRank


AnyGangWord = MemberNow | MemberConfirm | GangSays


def payload(word: AnyGangWord) -> bytes:
    return pack(word)


def parse_payload(data: bytes) -> AnyGangWord | None:
    """None for anything that is to be dropped."""
    if len(data) > PAYLOAD_BYTES_MAX:
        return None
    try:
        word: AnyGangWord = unpack(data, AnyGangWord)
    except BadMessage:
        return None
    return word


MEMBER_SILENCE_S: Final = 3 * MEMBER_PERIOD_S
"""Older words of a member say nothing about now."""

Voice = list[edge.TellRank | GangOut]
"""What is said as a result."""


class Coordination:
    """Reads `RankProgress` for what the ranks of this host have said; keeps what other hosts' have."""

    def __init__(self, order: Order, progress: RankProgress) -> None:
        self._order = order
        self._progress = progress
        self._agreement = agreement.AgreementCoordinator()
        self._far: dict[int, tuple[HostId, RankNow]] = {}
        self._far_sequence: dict[HostId, int] = {}
        self._sequence = 0
        self._report_due_s = inf
        self._open: dict[int, rank_messages.ToRank] = {}
        """A member's: proposals that were passed on and neither agreed nor withdrawn, by number."""
        self._newest = 0
        self.stop_step: int | None = None
        """The step to stop at, once every rank has promised."""
        self.alone = True
        """Nobody shares this host's devices with the job."""
        self._far_alone: dict[HostId, bool] = {}
        self.still_s: float | None = None
        """How long no rank of this host was seen to move (see `watchdog.py`); a member passes it on."""
        self._far_still: dict[HostId, tuple[float, float | None]] = {}
        """When a member said so, and how long none of its ranks had moved."""

    @property
    def is_first(self) -> bool:
        return self._order.is_first_host

    @property
    def can_save(self) -> bool:
        """Every rank of the gang (a member: of this host) can resume, and there is something to save."""
        status = self._progress.status
        if status.resumable is not True or status.first_step is None:
            return False
        if not self.is_first:
            return True
        here = self._progress.hellos
        world_size = max(each.world_size for each in here.values())
        ranks = here.keys() | self._far.keys()
        return len(ranks) >= world_size and all(now.resumable for _, now in self._far.values())

    @property
    def waits_for_members(self) -> bool:
        """Only ranks of other hosts have not been heard of yet."""
        status = self._progress.status
        here = self._progress.hellos
        if not self.is_first or status.resumable is not True or status.first_step is None:
            return False
        return len(here.keys() | self._far.keys()) < max(each.world_size for each in here.values())

    @property
    def is_alone(self) -> bool:
        """Whether the job is alone on its devices on all hosts that have said so."""
        return self.alone and all(self._far_alone.values())

    @property
    def next_alarm_s(self) -> float:
        return self._agreement.next_alarm_s if self.is_first else self._report_due_s

    def far_still_s(self, now_s: float) -> dict[str, float | None]:
        """Returns, by other host of the gang, how long its ranks have been still; None for one that does not
        know, or has not been heard of lately."""
        said = {member.host_id: self._far_still.get(member.host_id) for member in self._order.gang[1:]}
        return {
            host: None if word is None or now_s > word[0] + MEMBER_SILENCE_S else word[1]
            for host, word in said.items()
        }

    # --- Ranks of this host -------------------------------------------------------------------------

    def hello(self, word: rank_messages.RankHello, now_s: float) -> None:
        self._agreement.join(word.rank, far=False)
        self.saw_step(word.rank, word.step, now_s)
        self.report_soon(now_s)

    def report_soon(self, now_s: float) -> None:
        """Something happened that the coordinator should hear of at once."""
        if not self.is_first:
            self._report_due_s = now_s

    def saw_step(self, rank: int, step: int, now_s: float) -> None:
        self._agreement.saw_step(rank, step, now_s)
        self._agreement.note_pace(self._progress.step_s)

    def note_confirmation(self, word: rank_messages.StepConfirmed, now_s: float) -> Voice:
        if self.is_first:
            return self._heard_answer(word.rank, word.proposal, word.step, word.ok, now_s)
        answer = MemberConfirm(rank=word.rank, proposal=word.proposal, step=word.step, ok=word.ok)
        return [self._message_to_first(answer)]

    def note_arrival(self, rank: int, step: int, now_s: float) -> Voice:
        return self._voice(self._agreement.note_arrival(rank, step, now_s))

    def note_exit(self, rank: int, now_s: float) -> Voice:
        return self._voice(self._agreement.leave(rank, now_s))

    # --- Wishes -------------------------------------------------------------------------------------

    def ask_to_save(self, now_s: float) -> Voice:
        return self._voice(self._agreement.ask("save", now_s)) if self.is_first else []

    def ask_to_stop(self, now_s: float, *, finish: bool = False) -> Voice:
        """A stop comes before a save, and cancels it. A member waits for the coordinator."""
        if not self.is_first:
            return []
        dropped = self._agreement.drop("save", now_s)
        return self._voice(dropped + self._agreement.ask("stop", now_s, finish=finish))

    def gave_up(self, kind: rank_messages.RequestKind) -> bool:
        """Whether the last wish of this kind came to nothing; asking clears it."""
        has = kind in self._agreement.gave_up
        self._agreement.gave_up.discard(kind)
        return has

    # --- Time and the gang --------------------------------------------------------------------------

    def tick(self, now_s: float) -> Voice:
        if self.is_first:
            return self._voice(self._agreement.tick(now_s))
        if now_s < self._report_due_s:
            return []
        self._report_due_s = now_s + MEMBER_PERIOD_S
        self._sequence += 1
        steps = self._progress.steps
        ranks = tuple(
            RankNow(rank=rank, step=steps[rank], world_size=hello.world_size, resumable=hello.resumable)
            for rank, hello in sorted(self._progress.hellos.items())
        )
        step_s = self._progress.step_s
        word = MemberNow(
            sequence=self._sequence, ranks=ranks, step_s=step_s, alone=self.alone, still_s=self.still_s
        )
        return [self._message_to_first(word)]

    def hear(self, word: GangIn, now_s: float) -> Voice:
        """Takes a word from another supervisor of the gang; words for the other role are ignored."""
        match parse_payload(word.payload):
            case MemberNow() as now if self.is_first:
                self._member(word.from_host, now, now_s)
            case MemberConfirm(rank=rank, proposal=proposal, step=step, ok=ok) if self.is_first:
                return self._heard_answer(rank, proposal, step, ok, now_s)
            case GangSays(ranks=ranks, word=said) if not self.is_first:
                return self._pass_on(said, [rank for rank in ranks if rank in self._progress.hellos])
        return []

    def _pass_on(self, word: rank_messages.ToRank, ranks: list[int]) -> Voice:
        """Passes a word on to our own ranks. A newer proposal says that the ones before were withdrawn,
        should that word have been lost; and an older one that comes late must not bind anybody again."""
        if word.proposal < self._newest:
            return []
        self._newest = word.proposal
        over = [old for number, old in self._open.items() if number < word.proposal]
        self._open = {} if word.phase != "propose" else {word.proposal: word}
        released = [msgspec.structs.replace(old, phase="withdraw") for old in over]
        return self._voice([(rank, each) for each in (*released, word) for rank in ranks])

    def _member(self, host: HostId, word: MemberNow, now_s: float) -> None:
        if word.sequence <= self._far_sequence.get(host, 0):
            return
        self._far_sequence[host] = word.sequence
        self._far_alone[host] = word.alone
        self._far_still[host] = (now_s, word.still_s)
        for now in word.ranks:
            if now.rank not in self._progress.hellos:
                self._far[now.rank] = (host, now)
                self._agreement.join(now.rank, far=True)
                self._agreement.saw_step(now.rank, now.step, now_s)

    def _heard_answer(self, rank: int, proposal: int, step: int, ok: bool, now_s: float) -> Voice:
        return self._voice(self._agreement.heard_confirm(rank, proposal, step, ok, now_s))

    def _message_to_first(self, word: MemberNow | MemberConfirm) -> GangOut:
        return GangOut(to_host=self._order.gang[0].host_id, payload=payload(word))

    def _voice(self, words: agreement.Words) -> Voice:
        """Addresses words to our own ranks directly, to others by way of their supervisors, one message for
        each host."""
        said: Voice = []
        far: dict[tuple[HostId, rank_messages.ToRank], list[int]] = {}
        for rank, word in words:
            if word.kind == "stop" and word.phase == "commit":
                self.stop_step = word.step
            if rank in self._far:
                far.setdefault((self._far[rank][0], word), []).append(rank)
            else:
                said.append(edge.TellRank(rank=rank, data=rank_messages.datagram(word)))
        said += (
            GangOut(to_host=host, payload=payload(GangSays(ranks=tuple(ranks), word=word)))
            for (host, word), ranks in far.items()
        )
        return said
