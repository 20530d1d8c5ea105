"""Frames and records: what goes in comes out, and nothing that is not ours gets through or crashes."""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import (
    AgentCommand,
    AttemptNo,
    Decision,
    DeviceId,
    ExitVerdict,
    HostId,
    JobId,
    Place,
    Wake,
    because,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.wire import agents as wire
from cotenant.controller.wire.codec import (
    MESSAGE_BYTES_MAX,
    WIRE_VERSION,
    BadMessage,
    WrongVersion,
    decode,
    encode,
    pack,
    unpack,
)
from tests.building.orders import stop
from tests.controller.building import profile, report, spec

STOP = stop("3", 2, 7, host="a", reason=because("preempted-for", "9", 1.5, 900.0))
MESSAGES: list[tuple[Any, Any]] = [
    (wire.Hello(session="x", report=report("a", 2), attempts=()), wire.FromAgent),
    (
        wire.Heartbeat(
            beat=1,
            session="x",
            progress=(wire.AttemptProgress(job_id=JobId("1"), attempt=AttemptNo(1), step=3),),
        ),
        wire.FromAgent,
    ),
    (
        wire.Report(
            sequence=4,
            event=ev.AttemptEnded(
                job_id=JobId("1"),
                attempt=AttemptNo(1),
                host_id=HostId("a"),
                verdict=ExitVerdict(outcome="finished", detail="ü"),
            ),
        ),
        wire.FromAgent,
    ),
    (wire.CommandDelivery(command=STOP, secrets={"TOKEN": "s"}), wire.ToAgent),
    (
        wire.GangRelay(
            job_id=JobId("1"),
            attempt=AttemptNo(1),
            to_host=HostId("a"),
            from_host=HostId("b"),
            payload=b"\0\xff",
        ),
        wire.ToAgent,
    ),
]
VALUES: list[tuple[Any, Any]] = [
    (ev.JobArrived(spec=spec("7_3", batch_size=8, profile=profile(8, (1, 1.0, 2.0)))), ev.AnyEvent),
    (ev.Computed(request_id=1, model_sha256="ab", values=(float("inf"), -0.0, 1e-300)), ev.AnyEvent),
    (
        ev.PolicyChanged(name="castor", parameters={"a": "true", "b": True, "c": 1, "d": 1.0, "e": "1"}),
        ev.AnyEvent,
    ),
    (
        Decision(
            actions=(
                Wake(at_s=3.5, reason=because("finished")),
                Place(job_id=JobId("5"), devices=(DeviceId("a/0"),), reason=because("behind", "5", "1")),
            ),
        ),
        Decision,
    ),
    (STOP, AgentCommand),
]


@pytest.mark.parametrize(("message", "into"), MESSAGES)
def test_a_message_comes_out_as_it_went_in(message: object, into: Any) -> None:
    assert decode(encode(message), into) == message


@pytest.mark.parametrize(("value", "into"), VALUES)
def test_a_record_comes_out_as_it_went_in_with_every_type_kept(value: object, into: Any) -> None:
    out: object = unpack(pack(value), into)
    assert out == value
    assert repr(out) == repr(value)


def framed(body: object, version: object = WIRE_VERSION) -> bytes:
    packed: bytes = msgpack.packb([version, body])
    return packed


BAD = {
    "empty": b"",
    "garbage": b"\xc1\xff\x00garbage",
    "half a frame": encode(MESSAGES[0][0])[:-5],
    "two frames": encode(MESSAGES[0][0]) * 2,
    "no version": msgpack.packb({"m": "beat"}),
    "a list that is too long": msgpack.packb([1, 2, 3]),
    "a version that is no number": framed({}, "1"),
    "an unknown kind": framed({"m": "dance"}),
    "a missing field": framed({"m": "beat"}),
    "a wrong type": framed({"m": "beat", "beat": "x", "session": "s"}),
    "a report of a job that makes no sense": framed(
        {"m": "hello", "session": "s", "report": {}, "attempts": []}
    ),
    "a host whose device has no memory": framed(
        {
            "m": "hello",
            "session": "s",
            "attempts": [],
            "report": {
                "host_id": "a",
                "devices": [
                    {
                        "device_id": "a/0",
                        "host_id": "a",
                        "kind": "cpu",
                        "type": "cpu",
                        "local": "0",
                        "memory_mib": 0,
                    }
                ],
            },
        }
    ),
    "a host with another host's device": framed(
        {
            "m": "hello",
            "session": "s",
            "attempts": [],
            "report": {
                "host_id": "a",
                "devices": [
                    {
                        "device_id": "b/0",
                        "host_id": "a",
                        "kind": "cpu",
                        "type": "cpu",
                        "local": "0",
                        "memory_mib": 9,
                    }
                ],
            },
        }
    ),
    "a key that is no string": framed({3: 4}),
    "a map of itself": b"\x92\x01" + b"\x81\xa1a" * 5000,
    "too many items": framed([0] * 200_001),
    "an extension type": framed(msgpack.ExtType(4, b"x")),
    "too large": framed("x" * MESSAGE_BYTES_MAX),
    "not UTF-8": b"\x92\x01\x81\xa1m\xa4\xff\xfe\xfd\xfc",
}


@pytest.mark.parametrize("frame", BAD.values(), ids=[name.replace(" ", "-") for name in BAD])
def test_a_bad_frame_is_a_bad_message_and_never_a_crash(frame: bytes) -> None:
    with pytest.raises(BadMessage) as caught:
        decode(frame, wire.FromAgent)
    assert "\n" not in str(caught.value)[:500]


@given(st.binary(max_size=200))
def test_random_bytes_never_crash(frame: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(frame, wire.FromAgent)


@given(
    message=st.sampled_from(MESSAGES), flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 7)))
)
def test_flipped_bits_are_refused_or_give_a_valid_message(
    message: tuple[Any, Any], flips: list[tuple[int, int]]
) -> None:
    frame = bytearray(encode(message[0]))
    for place, bit in flips:
        frame[place % len(frame)] ^= 1 << bit
    try:
        out: object = decode(bytes(frame), message[1])
    except BadMessage:
        return
    encode(out)


def test_other_versions_are_named_with_what_to_upgrade() -> None:
    with pytest.raises(WrongVersion, match="upgrade cotenant here"):
        decode(framed({}, WIRE_VERSION + 1), wire.FromAgent)
    with pytest.raises(WrongVersion, match="upgrade it"):
        decode(framed({}, WIRE_VERSION - 1), wire.FromAgent)


def test_a_message_that_would_be_too_large_is_not_sent() -> None:
    with pytest.raises(BadMessage, match="over the limit"):
        encode(
            wire.LogReply(request=1, data=b"x" * MESSAGE_BYTES_MAX, next_offset=0, at_end=True, closed=True)
        )


def test_a_field_of_a_newer_version_is_ignored() -> None:
    body = {"m": "renew", "beat": 3, "mood": "good"}
    assert decode(framed(body), wire.ToAgent) == wire.Renew(beat=3)


def test_a_damaged_record_is_named() -> None:
    with pytest.raises(BadMessage, match="not a valid record"):
        unpack(b"\xc1", ev.AnyEvent)
    with pytest.raises(BadMessage, match="not a valid record"):
        unpack(pack({"event": "JobArrived"}), ev.AnyEvent)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"m": "beat", "beat": "x", "session": "s"}, "Expected `int`, got `str` - at `$.beat`"),
        ({"m": "beat", "beat": 1}, "Object missing required field `session`"),
        ({"m": "zz"}, "Invalid value 'zz' - at `$.m`"),
        (
            {"m": "beat", "beat": 1, "session": "s", "progress": [{"job_id": 1}]},
            "Expected `str`, got `int` - at `$.progress[0].job_id`",
        ),
    ],
)
def test_a_bad_message_is_told_where_it_is_wrong(body: dict[str, Any], said: str) -> None:
    with pytest.raises(BadMessage) as refused:
        decode(msgpack.packb([WIRE_VERSION, body]), wire.FromAgent)
    assert str(refused.value) == f"not a valid message: {said}"


@pytest.mark.parametrize(("message", "into"), MESSAGES)
def test_a_frame_has_the_bytes_that_it_always_had(message: Any, into: Any) -> None:
    assert encode(message) == msgpack.packb([WIRE_VERSION, msgspec.to_builtins(message)])
