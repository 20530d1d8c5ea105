"""Bytes to typed messages and back: bounded, versioned, never a crash; and in which version each peer is
answered.

Rule: this module decodes whatever comes from outside this process: frames, journal entries, records on disk,
what children, drivers and jobs say. It bounds everything, and raises `BadMessage` with a reason for whatever
is wrong. The libraries have no such rule: a byte that is not UTF-8, a value nested too deep, and a value that
a type refuses each raise an error of another family.

Rule: we answer each peer in the version that it speaks, and say what to upgrade. Operators upgrade the
controller first, so agents and commands of the version before must understand it; newer ones speak the
version of an older controller once it has refused theirs. Everybody must understand a refusal, or its reader
waits for an answer that never comes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgpack
import msgspec

WIRE_VERSION: Final = 2
"""This version speaks WIRE_VERSION and WIRE_VERSION - 1; newer frames are refused."""

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
_ITEMS_MAX: Final = 200_000

T = TypeVar("T")


_PAIR: Final = 0x92
"""msgpack's list of two; the version follows in one byte."""
_HEAD: Final = 2


_WRONG: Final = (
    ValueError,
    TypeError,
    LookupError,
    RecursionError,
    AttributeError,
    ArithmeticError,
    OSError,
    msgpack.exceptions.UnpackException,
)
"""All that decoding, translating and validating foreign bytes may raise. Of ValueError are msgspec's own
errors, those of types that refuse a value, and UnicodeDecodeError."""


class BadMessage(ValueError):
    """Bytes that cannot be used; the text says why, in one line."""


class WrongVersion(BadMessage):
    """A frame of a version that this program does not speak."""


def encode(message: object, version: int | None = None) -> bytes:
    """One frame: `[version, body]`, in our version or in that of whom it is for.

    Raises:
        BadMessage: the message is larger than `MESSAGE_BYTES_MAX`, or a text in it is no text.
    """
    version = version or WIRE_VERSION
    try:
        frame: bytes = msgpack.packb([version, _said(msgspec.to_builtins(message), version)])
    except UnicodeEncodeError as error:  # A byte of a file name or variable that is not UTF-8.
        near = ascii(error.object[max(0, error.start - 20) : error.end + 20])
        raise BadMessage(f"a text in it is not UTF-8, near {near}") from None
    if len(frame) > MESSAGE_BYTES_MAX:
        raise BadMessage(
            f"message of {len(frame)} bytes is over the limit of {MESSAGE_BYTES_MAX}: submit less at once"
        )
    return frame


def _said(body: Any, version: int) -> Any:
    """A body of ours as a peer of that version expects it."""
    if version == WIRE_VERSION:
        return _without_unread(body)
    from cotenant.controller.wire import versions  # Nearly all peers speak ours.

    return versions.said(body)


def _without_unread(body: Any) -> Any:
    """No agent has ever read `resume_attempt`; the journal's digests of commands are over it."""
    if not isinstance(body, dict) or body.get("m") != "obey":
        return body
    command = {name: value for name, value in body["command"].items() if name != "resume_attempt"}
    return {**body, "command": command}


def version_of(frame: bytes) -> int | None:
    """The version that a frame says it is in, of 1 to 127; None: it is not a frame of ours."""
    known = len(frame) > _HEAD and frame[0] == _PAIR and 0 < frame[1] < 0x80
    return frame[1] if known else None


def in_version(frame: bytes, version: int) -> bytes:
    """A frame of ours for a peer of another version, translated into that version."""
    assert version_of(frame) is not None, "a frame that encode made"
    if version == WIRE_VERSION - 1:
        body = msgpack.unpackb(frame[_HEAD:], strict_map_key=False)
        translated = _said(body, version)
        if translated is not body:
            packed: bytes = msgpack.packb([version, translated])
            return packed
    return bytes((_PAIR, version)) + frame[_HEAD:]


def request_in(frame: bytes) -> int | None:
    """The number of a client's request that cannot be decoded as a whole (of a newer client, mostly), or is
    not to be. It skips everything else, without using memory."""
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
    except _WRONG:
        pass
    return None


def decode(frame: bytes, into: type[T] | Any, before: Callable[[Any], Any] | None = None) -> T:
    """The message in a frame, validated. `before` translates a body of the version before ours.

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
    except _WRONG as error:
        raise BadMessage(f"not a message: {_reason(error)}") from None
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
        said = body[1] if before is None or version == WIRE_VERSION else before(body[1])
        message: T = msgspec.convert(said, into, strict=False)
    except _WRONG as error:
        raise BadMessage(f"not a valid message: {_reason(error)}") from None
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
    except _WRONG as error:
        raise BadMessage(f"not a valid record: {_reason(error)}") from None
    return value


def unpack_struct(data: bytes, into: type[T]) -> T:
    """What `msgspec.msgpack` encoded: for snapshots, which are large.

    Raises:
        BadMessage: damaged data, or a value of another type.
    """
    try:
        return msgspec.msgpack.decode(data, type=into)
    except _WRONG as error:
        raise BadMessage(f"not a valid record: {_reason(error)}") from None


class Json(Generic[T]):
    """Decodes one kind of JSON, often."""

    def __init__(
        self, into: type[T] | Any, *, bytes_max: int = MESSAGE_BYTES_MAX, from_python: bool = False
    ) -> None:
        """`from_python`: its json writes a diverged loss as NaN or Infinity, which is no JSON: then it is
        null."""
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(into)
        self._bytes_max = bytes_max
        self._from_python = from_python

    def decode(self, data: bytes) -> T:
        """
        Raises:
            BadMessage: too large, no JSON, not of this kind.
        """
        if len(data) > self._bytes_max:
            raise BadMessage(f"{len(data)} bytes are over the limit of {self._bytes_max}")
        try:
            return self._decoder.decode(data)
        except _WRONG as error:
            if not self._from_python:
                raise BadMessage(_reason(error)) from None
        try:
            return self._decoder.decode(_without_nan(data))
        except _WRONG as error:
            raise BadMessage(_reason(error)) from None


def decode_json(data: bytes, into: type[T] | Any, *, bytes_max: int = MESSAGE_BYTES_MAX) -> T:
    """The value in a JSON text. Raises BadMessage: too large, no JSON, not of this kind."""
    value: T = Json(into, bytes_max=bytes_max).decode(data)
    return value


def decode_text(data: bytes, *, bytes_max: int = MESSAGE_BYTES_MAX) -> str:
    """The text of a file that should hold text. Raises BadMessage: too large, or it is something else."""
    if len(data) > bytes_max:
        raise BadMessage(f"{len(data)} bytes are over the limit of {bytes_max}")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadMessage("not a text file") from None


def _without_nan(data: bytes) -> bytes:
    for name in (b"-Infinity", b"Infinity", b"NaN"):
        data = data.replace(b": " + name, b": null").replace(b":" + name, b":null")
    return data


def _reason(error: Exception) -> str:
    """In one line. Python's own words for bytes that are no text show the bytes."""
    if isinstance(error, UnicodeError):
        return "a text in it is not UTF-8"
    if isinstance(error, RecursionError):
        return "nested too deep"
    return str(error) or type(error).__name__


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
