"""What the controller and its computing child say to each other, over the child's stdin and stdout."""

from __future__ import annotations

import msgspec

Payload = dict[str, str | int | float | list[float]]


class ComputeQuestion(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    payload: Payload


class ComputeResult(msgspec.Struct, frozen=True, kw_only=True):
    model_sha256: str = ""
    values: tuple[float, ...] = ()
    error: str = ""
    document: bytes = b""
