"""Bytes to typed messages and back: bounded, versioned, never a crash.

Rule: `msgpack` unpacks within limits, `msgspec.convert` validates into the message types; whatever
is wrong with a frame ends as `BadMessage` with a reason, which the caller counts and drops.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgpack
import msgspec

WIRE_VERSION: Final = 1
"""This version speaks WIRE_VERSION and WIRE_VERSION - 1; newer frames are refused."""

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
_ITEMS_MAX: Final = 200_000

T = TypeVar("T")


_PAIR: Final = 0x92
"""msgpack's list of two; the version follows in one byte."""
_HEAD: Final = 2


class BadMessage(ValueError):
    """A frame that cannot be used; the text says why, in one line."""


class WrongVersion(BadMessage):
    """A frame of a version that this program does not speak."""


def encode(message: object, version: int | None = None) -> bytes:
    """One frame: `[version, body]`, in our version or in that of whom it is for.

    Raises:
        BadMessage: the message is larger than `MESSAGE_BYTES_MAX`, or a text in it is no text.
    """
    try:
        frame: bytes = msgpack.packb([version or WIRE_VERSION, msgspec.to_builtins(message)])
    except UnicodeEncodeError as error:  # A byte of a file name or variable that is not UTF-8.
        near = ascii(error.object[max(0, error.start - 20) : error.end + 20])
        raise BadMessage(f"a text in it is not UTF-8, near {near}") from None
    if len(frame) > MESSAGE_BYTES_MAX:
        raise BadMessage(
            f"message of {len(frame)} bytes is over the limit of {MESSAGE_BYTES_MAX}: submit less at once"
        )
    return frame


def version_of(frame: bytes) -> int | None:
    """The version that a frame says it is in, of 1 to 127; None: it is not a frame of ours."""
    known = len(frame) > _HEAD and frame[0] == _PAIR and 0 < frame[1] < 0x80
    return frame[1] if known else None


def in_version(frame: bytes, version: int) -> bytes:
    """A frame of ours for somebody who speaks another version: the same body. Whoever changes a body's form
    translates it here for the version before."""
    assert version_of(frame) is not None, "a frame that encode made"
    return bytes((_PAIR, version)) + frame[_HEAD:]


def request_in(frame: bytes) -> int | None:
    """The number of a client's request that cannot be decoded as a whole (of a newer client, mostly), or is
    not to be. What else is in it is passed over, and takes no memory."""
    unpacker = msgpack.Unpacker(max_ext_len=0, max_buffer_size=MESSAGE_BYTES_MAX)
    try:
        unpacker.feed(frame)
        if unpacker.read_array_header() != 2:
            return None
        unpacker.skip()
        for _ in range(unpacker.read_map_header()):
            if unpacker.unpack() == "request_id":
                number = unpacker.unpack()
                return number if isinstance(number, int) and not isinstance(number, bool) else None
            unpacker.skip()
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError):
        pass
    return None


def decode(frame: bytes, into: type[T] | Any) -> T:
    """The message in a frame, validated.

    Raises:
        WrongVersion: the frame's version is newer than ours, or too old.
        BadMessage: too large, not msgpack, not of the type asked for.
    """
    if len(frame) > MESSAGE_BYTES_MAX:
        raise BadMessage(f"frame of {len(frame)} bytes is over the limit of {MESSAGE_BYTES_MAX}")
    try:
        body = msgpack.unpackb(
            frame,
            strict_map_key=True,
            max_str_len=MESSAGE_BYTES_MAX,
            max_bin_len=MESSAGE_BYTES_MAX,
            max_array_len=_ITEMS_MAX,
            max_map_len=_ITEMS_MAX,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise BadMessage(f"not a message: {error}") from None
    if not isinstance(body, list) or len(body) != 2 or not isinstance(body[0], int):
        raise BadMessage("not a message: no version")
    version = body[0]
    if version > WIRE_VERSION:
        raise WrongVersion(
            f"the other side speaks version {version}, this is {WIRE_VERSION}: upgrade cotenant here"
        )
    if version < WIRE_VERSION - 1 or version < 1:
        raise WrongVersion(f"the other side speaks version {version}, this needs {WIRE_VERSION}: upgrade it")
    try:
        message: T = msgspec.convert(body[1], into, strict=False)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise BadMessage(f"not a valid message: {error}") from None
    return message


def pack(value: object) -> bytes:
    """A domain value for the journal: the same encoding, without the frame's version."""
    packed: bytes = msgpack.packb(msgspec.to_builtins(value))
    return packed


def unpack(data: bytes, into: type[T] | Any) -> T:
    """The inverse of `pack`.

    Raises:
        BadMessage: damaged data, or a value of another type.
    """
    try:
        value: T = msgspec.convert(msgpack.unpackb(data, strict_map_key=False), into, strict=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, msgspec.ValidationError) as error:
        raise BadMessage(f"not a valid record: {error}") from None
    return value
