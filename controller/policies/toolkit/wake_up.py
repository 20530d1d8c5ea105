"""The one time at which a policy has asked to be woken, for policies that decide at certain times."""

from __future__ import annotations

import msgspec

from cotenant.controller.domain import Decision, Wake


class WakeUp:
    """Only `observe` changes it, from the decisions themselves; so it is the same after a recovery."""

    def __init__(self) -> None:
        self.at_s: float | None = None

    def is_set(self, now_s: float) -> bool:
        """Whether a time was asked for and is still to come."""
        return self.at_s is not None and self.at_s > now_s

    def is_due(self, now_s: float) -> bool:
        return self.at_s is not None and self.at_s <= now_s

    def observe(self, now_s: float, decision: Decision) -> None:
        if self.is_due(now_s):
            self.at_s = None
        for action in decision.actions:
            if isinstance(action, Wake) and action.at_s > now_s:
                self.at_s = action.at_s

    def save(self) -> bytes:
        return msgspec.msgpack.encode(self.at_s)

    def load(self, state: bytes) -> None:
        self.at_s = msgspec.msgpack.decode(state, type=float | None) if state else None
