"""Questions about messages to people: a test of one's own, and what became of one."""

from __future__ import annotations

from cotenant.controller.domain import DeviceId
from cotenant.controller.wire.clients.base import Question, Reply


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


class TellOwner(Question["NoticeReply"], frozen=True, kw_only=True, tag="tell-owner"):
    """Asks that whoever holds a device outside of jobs is told that others wait for it."""

    device_id: DeviceId


NoticeRequest = SendTestNotice | GetNotice | TellOwner
