"""Peers of other versions: we answer each in the version that it speaks, and say what to upgrade. Rule:
operators upgrade the controller first, so agents and commands of the version before must understand it; newer
ones speak the version of an older controller once it has refused theirs. Everybody must understand a refusal,
or its reader waits for an answer that never comes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from cotenant.controller.wire.codec import WIRE_VERSION, in_version, version_of

SPEAKS: Final = "this controller speaks version {} of the wire"
PEERS_MAX: Final = 10_000
"""Addresses of those who speak another version; the oldest are forgotten."""


class PeerVersions:
    """Which version each peer speaks, by the address that answers go to."""

    def __init__(self, send: Callable[[bytes, bytes], bool], peers_max: int = PEERS_MAX) -> None:
        self._peers_max = peers_max
        self._send = send
        self._others: OrderedDict[bytes, int] = OrderedDict()

    def heard(self, address: bytes, frame: bytes) -> None:
        """Before decoding: we refuse a peer for its version in that version, too."""
        version = version_of(frame)
        if version is None or version == WIRE_VERSION:
            if self._others:
                self._others.pop(address, None)
            return
        self._others[address] = version
        self._others.move_to_end(address)
        if len(self._others) > self._peers_max:
            self._others.popitem(last=False)

    def send(self, address: bytes, frame: bytes) -> bool:
        """False: that peer is gone, or reads too slowly; nothing was queued."""
        version = self._others.get(address) if self._others else None
        return self._send(address, frame if version is None else in_version(frame, version))

    def refusal(self, address: bytes) -> str:
        """What to upgrade, in the words of the controller to a peer that speaks another version."""
        theirs = self._others.get(address)
        says = f"{SPEAKS.format(WIRE_VERSION)}, you speak {theirs or 'none'}"
        if theirs is not None and theirs > WIRE_VERSION:
            return f"{says}: upgrade the controller, which comes first, or use an older cotenant"
        return f"{says}: upgrade cotenant where you are"


def is_of_before(frame: bytes, why: str) -> bool:
    """Whether a frame with this refusal in it is the answer of a controller of the version before to ours."""
    return version_of(frame) == WIRE_VERSION and why.startswith(SPEAKS.format(WIRE_VERSION - 1) + ",")


UNKNOWN_REQUEST: Final = (
    "this controller does not know the request, or something in it: is your cotenant newer? The controller "
    "is upgraded first; compare `cotenant version`"
)
