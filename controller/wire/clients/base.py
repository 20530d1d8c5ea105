"""What every message between the controller and command lines is: a question, its reply, a refusal."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

import msgspec

Answer_co = TypeVar("Answer_co", covariant=True)


class ClientMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="m"):
    """Base of what clients and controller say to each other."""


class Question(ClientMessage, Generic[Answer_co], frozen=True, kw_only=True):
    """A request; its parameter is the reply to it."""


class Reply(ClientMessage, frozen=True, kw_only=True, tag="ok"):
    request_id: int


class Done(Reply, frozen=True, kw_only=True, tag="done"):
    lines: tuple[str, ...] = ()


class Failure(Reply, frozen=True, kw_only=True, tag="failure"):
    """A refusal. `code` maps to the exit code in design 7."""

    code: Literal["refused", "usage", "not-found", "not-allowed", "never-fits", "version", "internal"]
    message: str
    hint: str = ""


Parameters = dict[str, str | int | float | bool]
