"""Peers of other versions are told what to upgrade, and requests that cannot be read have a number still."""

from __future__ import annotations

import msgpack
import pytest

from cotenant.controller.wire import clients as wire
from cotenant.controller.wire.codec import WIRE_VERSION, WrongVersion, decode, encode, refusal, request_in

ASKED = wire.Request(request_id=7, body=wire.GetStatus())


@pytest.mark.parametrize("theirs", [WIRE_VERSION - 1, WIRE_VERSION + 1, 300])
def test_a_frame_of_another_version_says_which_and_has_the_same_body(theirs: int) -> None:
    frame = encode(ASKED, theirs)
    with pytest.raises(WrongVersion) as wrong:
        decode(frame, wire.Request)
    assert wrong.value.theirs == theirs
    assert msgpack.unpackb(frame)[1] == msgpack.unpackb(encode(ASKED))[1]


def test_a_refusal_names_what_to_upgrade() -> None:
    assert refusal(WIRE_VERSION - 1).endswith(f"you speak {WIRE_VERSION - 1}: upgrade cotenant where you are")
    assert "you speak 99: upgrade the controller" in refusal(99)


@pytest.mark.parametrize("noise", [b"", b"\x92", b"\x92\x00x", b"\x93\x01x", b"\x92\xc0x", b"hello"])
def test_noise_has_no_request(noise: bytes) -> None:
    assert request_in(noise) is None


def test_a_request_that_nobody_knows_has_a_number_still() -> None:
    assert request_in(msgpack.packb([WIRE_VERSION, {"request_id": 3, "body": {"m": "of tomorrow"}}])) == 3
    odd_ones: list[object] = [{"request_id": True}, {"request_id": "x"}, {}, [], 3]
    for odd in odd_ones:
        assert request_in(msgpack.packb([WIRE_VERSION, odd])) is None
