"""Answers what people ask about messages to them."""

from __future__ import annotations

from cotenant.controller.api import Denied
from cotenant.controller.notices.notifier import Notifier
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import clients as wire


class NoticeRequests:
    """The handlers of requests about messages."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier

    def test(self, request_id: int, request: wire.SendTestNotice, who: Identity) -> wire.NoticeReply:
        """Begins a test; what comes of it is asked for. Raises Denied."""
        notice = self._notifier.send_test(who.name, request.mail, request.webhook)
        return wire.NoticeReply(request_id=request_id, notice_id=notice.notice_id, ways=dict(notice.ways))

    def notice(self, request_id: int, request: wire.GetNotice, who: Identity) -> wire.NoticeReply:
        """What became of a message. Raises Denied: there is no such message to the asker."""
        if not request.notice_id:
            return wire.NoticeReply(request_id=request_id, notice_id="", ways=self._notifier.ways_used())
        found = self._notifier.find(request.notice_id, who.name)
        if found is None:
            raise Denied("not-found", f"no message {request.notice_id} to you")
        return wire.NoticeReply(request_id=request_id, notice_id=found.notice_id, ways=dict(found.ways))
