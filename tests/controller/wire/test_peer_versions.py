"""Peers of other versions are answered in theirs, and told what to upgrade."""

from __future__ import annotations

import msgpack
import pytest

from cotenant.controller.wire import clients as wire
from cotenant.controller.wire.codec import (
    WIRE_VERSION,
    PeerVersions,
    decode,
    encode,
    in_version,
    request_in,
    version_of,
)

OURS, OLDER, NEWER = WIRE_VERSION, WIRE_VERSION - 1, 99
ASKED = wire.Request(request_id=7, body=wire.GetStatus())


class Sent:
    def __init__(self) -> None:
        self.frames: list[tuple[bytes, bytes]] = []

    def __call__(self, address: bytes, frame: bytes) -> bool:
        self.frames.append((address, frame))
        return True


def test_each_is_answered_in_the_version_it_speaks() -> None:
    sent = Sent()
    peers = PeerVersions(sent)
    for address, version in ((b"a", OURS), (b"b", OLDER), (b"c", NEWER)):
        peers.heard(address, encode(ASKED, version))
        assert peers.send(address, encode(ASKED))
    assert [version_of(frame) for _, frame in sent.frames] == [OURS, OLDER, NEWER]
    bodies = [msgpack.unpackb(frame)[1] for _, frame in sent.frames]
    assert bodies == [msgpack.unpackb(encode(ASKED))[1]] * 3, "only the version differs"


def test_who_was_upgraded_is_answered_in_the_new_version() -> None:
    sent = Sent()
    peers = PeerVersions(sent)
    for version in (OLDER, OURS):
        peers.heard(b"a", encode(ASKED, version))
    peers.send(b"a", encode(ASKED))
    assert version_of(sent.frames[-1][1]) == OURS


def test_a_refusal_names_what_to_upgrade() -> None:
    peers = PeerVersions(Sent())
    peers.heard(b"older", encode(ASKED, OLDER))
    peers.heard(b"newer", encode(ASKED, NEWER))
    assert peers.refusal(b"older").endswith(f"you speak {OLDER}: upgrade cotenant where you are")
    assert "you speak 99: upgrade the controller" in peers.refusal(b"newer")


def test_strangers_do_not_fill_the_memory() -> None:
    sent = Sent()
    peers = PeerVersions(sent, peers_max=3)
    for number in range(10):
        peers.heard(bytes([number]), encode(ASKED, OLDER))
    for number in range(10):
        peers.send(bytes([number]), encode(ASKED))
    assert [version_of(frame) for _, frame in sent.frames] == [OURS] * 7 + [OLDER] * 3


@pytest.mark.parametrize("noise", [b"", b"\x92", b"\x92\x00x", b"\x93\x01x", b"\x92\xc0x", b"hello"])
def test_noise_has_no_version(noise: bytes) -> None:
    assert version_of(noise) is None
    assert request_in(noise) is None


def test_a_request_that_nobody_knows_has_a_number_still() -> None:
    assert request_in(msgpack.packb([WIRE_VERSION, {"request_id": 3, "body": {"m": "of tomorrow"}}])) == 3
    odd_ones: list[object] = [{"request_id": True}, {"request_id": "x"}, {}, [], 3]
    for odd in odd_ones:
        assert request_in(msgpack.packb([WIRE_VERSION, odd])) is None


def test_what_was_put_into_the_version_before_is_still_read() -> None:
    frame = in_version(encode(ASKED), OLDER)
    assert version_of(frame) == OLDER
    assert decode(frame, wire.Request) == ASKED
