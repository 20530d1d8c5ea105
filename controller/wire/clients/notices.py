"""Questions about messages to people: a test of one's own, and what became of one."""

from __future__ import annotations

import msgspec

from cotenant.controller.wire.clients.base import Question, Reply
from cotenant.controller.wire.times import Utc


class SendTestNotice(Question["NoticeReply"], frozen=True, kw_only=True, tag="test-notice"):
    """Asks for a message to whoever asks, by every way."""

    mail: str = ""
    webhook: str = ""
    """The asker's own; it is kept nowhere."""


class GetNotice(Question["NoticeReply"], frozen=True, kw_only=True, tag="get-notice"):
    """Asks what became of a message to the asker."""

    notice_id: str = ""
    """Empty: what came of the last message by each of the controller's own ways."""


class NoticeReply(Reply, frozen=True, kw_only=True, tag="notice"):
    """By way: `sent`, `waits`, `waits: WHY` or `failed: WHY`."""

    notice_id: str
    ways: dict[str, str]


class ToldView(msgspec.Struct, frozen=True, kw_only=True):
    """Of what the owner of a job is told, by which ways, and what became of the last message."""

    kinds: tuple[str, ...]
    ways: tuple[str, ...]
    last_kind: str | None = None
    last_at: Utc | None = None
    last: dict[str, str] = {}
    """As `NoticeReply.ways`."""


NoticeRequest = SendTestNotice | GetNotice
