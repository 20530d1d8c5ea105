"""Bytes to typed messages and back: bounded, versioned, never a crash.

Rule: this module decodes whatever comes from outside this process: frames, journal entries, records on disk,
what children, drivers and jobs say. It bounds everything, and raises `BadMessage` with a reason for whatever
is wrong. The libraries have no such rule: a byte that is not UTF-8, a value nested too deep, and a value that
a type refuses each raise an error of another family.

Rule: both ends of a connection speak one version. The controller refuses a peer of another one, in a frame
of the peer's version, and says what to upgrade: a peer that cannot read its refusal would wait for ever.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, Final, Generic, TypeVar, cast

import msgpack
import msgspec

WIRE_VERSION: Final = 1
"""Frames of all other versions are refused."""

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
_ITEMS_MAX: Final = 200_000

T = TypeVar("T")


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
"""All that decoding and validating foreign bytes may raise. Of ValueError are msgspec's own
errors, those of types that refuse a value, and UnicodeDecodeError."""


class _Frame(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: int
    body: msgspec.Raw


_ENCODER: Final = msgspec.msgpack.Encoder()
_FRAME: Final = msgspec.msgpack.Decoder(_Frame)


class BadMessage(ValueError):
    """Bytes that cannot be used; the text says why, in one line."""


class WrongVersion(BadMessage):
    """A frame of a version that this program does not speak."""

    def __init__(self, theirs: int) -> None:
        todo = "upgrade cotenant here" if theirs > WIRE_VERSION else "upgrade it"
        super().__init__(f"the other side speaks version {theirs}, this is {WIRE_VERSION}: {todo}")
        self.theirs = theirs


def encode(message: object, version: int = WIRE_VERSION) -> bytes:
    """Returns the message as one frame: `[version, body]`. Only refusals are in another version: the version
    of whoever is refused.

    Raises:
        BadMessage: the message is larger than `MESSAGE_BYTES_MAX`, or a text in it is no text.
    """
    try:
        frame: bytes = _ENCODER.encode([version, msgspec.to_builtins(message)])
    except UnicodeEncodeError as error:  # A byte of a file name or variable that is not UTF-8.
        near = ascii(error.object[max(0, error.start - 20) : error.end + 20])
        raise BadMessage(f"a text in it is not UTF-8, near {near}") from None
    if len(frame) > MESSAGE_BYTES_MAX:
        raise BadMessage(
            f"message of {len(frame)} bytes is over the limit of {MESSAGE_BYTES_MAX}: submit less at once"
        )
    return frame


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


def decode(frame: bytes, into: type[T] | Any) -> T:
    """The message in a frame, validated.

    Raises:
        WrongVersion: the frame's version is not ours.
        BadMessage: too large, not msgpack, not of the type asked for.
    """
    if len(frame) > MESSAGE_BYTES_MAX:
        raise BadMessage(f"frame of {len(frame)} bytes is over the limit of {MESSAGE_BYTES_MAX}")
    try:
        return cast(T, _take_frame(frame, into))
    except _WRONG:
        pass
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
    if body[0] != WIRE_VERSION:
        raise WrongVersion(body[0])
    try:
        message: T = _convert(body[1], into)
    except _WRONG as error:
        raise BadMessage(f"not a valid message: {_reason(error)}") from None
    return message


def pack(value: object) -> bytes:
    """A domain value for the journal: the same encoding, without the frame's version."""
    return _ENCODER.encode(msgspec.to_builtins(value))


def unpack(data: bytes, into: type[T] | Any) -> T:
    """The inverse of `pack`.

    Raises:
        BadMessage: damaged data, or a value of another type.
    """
    try:
        value: T = _convert(msgpack.unpackb(data, strict_map_key=False), into)
    except _WRONG as error:
        raise BadMessage(f"not a valid record: {_reason(error)}") from None
    return value


@cache
def _holder_of(into: Hashable) -> type[Any]:
    """A struct with one field of this type: msgspec remembers what it found out about a struct, but looks at
    a union again with every conversion, which takes ten times as long as the conversion."""
    return msgspec.defstruct("Holder", [("value", into)], array_like=True)


@cache
def _decoder_of(into: Hashable) -> msgspec.msgpack.Decoder[Any]:
    """Kept for each type, as `_holder_of` is, and for the same reason."""
    return msgspec.msgpack.Decoder(into, strict=False)


def _take_frame(frame: bytes, into: type[T] | Any) -> T:
    """Decodes and validates in one go, in a third of the time of two. It takes less than `_convert`, which
    reads bytes from base64 too; whatever it refuses is for the two, and for their words."""
    head = _FRAME.decode(frame)
    if head.version != WIRE_VERSION:
        raise WrongVersion(head.version)
    message: T = _decoder_of(cast(Hashable, into)).decode(head.body)
    return message


def _convert(value: object, into: type[T] | Any) -> T:
    try:
        converted: T = msgspec.convert([value], _holder_of(cast(Hashable, into)), strict=False).value
    except msgspec.ValidationError as error:  # It names the place in the holder.
        text = str(error).replace(" - at `$[0]`", "").replace("`$[0]", "`$")
        raise BadMessage(text) from None
    return converted


def unpack_struct(data: bytes, into: type[T]) -> T:
    """Returns the value that `msgspec.msgpack` encoded: for snapshots, which are large.

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
        """Prepares a decoder of JSON into the type `into`. `from_python`: Python's json writes a diverged
        loss as NaN or Infinity, which is no JSON: then it is read as null."""
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(into)
        self._bytes_max = bytes_max
        self._from_python = from_python

    def decode(self, data: bytes) -> T:
        """Returns the value that the JSON encodes.

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
            return self._decoder.decode(_replace_nan(data))
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


def _replace_nan(data: bytes) -> bytes:
    for name in (b"-Infinity", b"Infinity", b"NaN"):
        data = data.replace(b": " + name, b": null").replace(b":" + name, b":null")
    return data


def _reason(error: Exception) -> str:
    """Returns the reason of an error in one line. Python's own words for bytes that are no text show the
    bytes."""
    if isinstance(error, UnicodeError):
        return "a text in it is not UTF-8"
    if isinstance(error, RecursionError):
        return "nested too deep"
    return str(error) or type(error).__name__


def refusal(theirs: int) -> str:
    """What to upgrade, in the words of the controller to a peer that speaks another version."""
    says = f"this controller speaks version {WIRE_VERSION} of the wire, you speak {theirs}"
    if theirs > WIRE_VERSION:
        return f"{says}: upgrade the controller, which comes first, or use an older cotenant"
    return f"{says}: upgrade cotenant where you are"


UNKNOWN_REQUEST: Final = (
    "this controller does not know the request, or something in it: is your cotenant newer? The controller "
    "is upgraded first; compare `cotenant version`"
)
