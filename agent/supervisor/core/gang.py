"""Words between the supervisors of one gang, relayed by agents and controller, which do not look inside.

Rule: they may be lost, repeated and reordered. So a member sends its whole state, numbered, again and
again; answers carry the proposal they belong to; and nothing is taken for heard.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from cotenant.agent.supervisor.core.rank_messages import Count, RankNo, Seconds, ToRank
from cotenant.controller.wire.codec import BadMessage, pack, unpack

PAYLOAD_BYTES_MAX = 256 * 1024


class GangMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="g"):
    """Base of what supervisors say to each other."""


class RankNow(msgspec.Struct, frozen=True, kw_only=True):
    rank: RankNo
    step: Count
    world_size: Count
    resumable: bool


class MemberNow(GangMessage, frozen=True, kw_only=True, tag="now"):
    """Member -> first host: all its ranks that have said hello. An older one is ignored."""

    sequence: Count
    ranks: tuple[RankNow, ...]
    step_s: Seconds | None
    alone: bool = True
    """Nobody shares this host's devices with it."""
    still_s: Seconds | None = None
    """How long none of its ranks has made a step or been seen to move; None = not known."""


class MemberConfirm(GangMessage, frozen=True, kw_only=True, tag="confirm"):
    """Member -> first host: a rank's answer."""

    rank: RankNo
    proposal: Count
    step: Count
    ok: bool


class GangSays(GangMessage, frozen=True, kw_only=True, tag="say"):
    """First host -> member: to be passed on to these ranks."""

    ranks: Annotated[tuple[RankNo, ...], msgspec.Meta(max_length=1024)]
    word: ToRank


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
