"""What a controller says that does not lead, or cannot know whether it still does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from cotenant.controller.wire import agents, codec
from cotenant.controller.wire import clients as wire


class Redirector:
    """Answers every frame with where to ask instead."""

    def __init__(
        self,
        send: Callable[[bytes, bytes], bool],
        counters: Counter[str],
        why: Callable[[], tuple[str, str]],
        view: Callable[[int], wire.ControllersView] | None = None,
    ) -> None:
        """`why`: what to say, and the endpoint of the leader, which may be empty. `view`: who leads and who
        follows, if that can be told, for the number of a request."""
        self._send, self._counters = send, counters
        self._why, self._view = why, view

    def answer(self, address: bytes, is_client: bool, frame: bytes) -> None:
        """Answers one frame of a peer."""
        try:
            if is_client:
                request: wire.Request = codec.decode(frame, wire.Request)
                self._send(address, codec.encode(self._reply(request)))
            else:
                codec.decode(frame, agents.FromAgent)
                self._send(address, codec.encode(agents.NotLeading(leader=self._why()[1])))
        except codec.WrongVersion as wrong:
            why = codec.refusal(wrong.theirs)
            failure = wire.Failure(request_id=0, code="version", message=why)
            self._send(
                address, codec.encode(failure if is_client else agents.HostRefused(why=why), wrong.theirs)
            )
        except codec.BadMessage:
            self._counters["bad_messages"] += 1
            number = codec.request_in(frame) if is_client else None
            if number is not None:
                unknown = wire.Failure(request_id=number, code="version", message=codec.UNKNOWN_REQUEST)
                self._send(address, codec.encode(unknown))

    def _reply(self, request: wire.Request) -> wire.AnyReply:
        if self._view is not None and isinstance(request.body, wire.GetControllers):
            return self._view(request.request_id)
        return self.failure(request.request_id)

    def failure(self, request_id: int) -> wire.Failure:
        """The answer to a question that somebody else has to answer."""
        message, leader = self._why()
        return wire.Failure(
            request_id=request_id,
            code="standby",
            message=message,
            hint="list all controllers in controller.endpoint, and the one that leads is found",
            leader=leader,
        )
