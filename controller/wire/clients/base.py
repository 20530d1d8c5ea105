"""What every message between the controller and command lines is: a question, its reply, a refusal."""

from __future__ import annotations

import sys
from typing import Any, Final, Generic, Literal, TypeVar, get_args

import msgspec

Answer_co = TypeVar("Answer_co", covariant=True)


class ClientMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="m"):
    """Base of what clients and controller say to each other."""


class Question(ClientMessage, Generic[Answer_co], frozen=True, kw_only=True):
    """A request whose type parameter is the reply to it."""


class Reply(ClientMessage, frozen=True, kw_only=True, tag="ok"):
    request_id: int


class Done(Reply, frozen=True, kw_only=True, tag="done"):
    lines: tuple[str, ...] = ()


class Failure(Reply, frozen=True, kw_only=True, tag="failure"):
    """A refusal of a request. `code` maps to the exit code in design 7."""

    code: Literal[
        "refused", "usage", "not-found", "not-allowed", "never-fits", "version", "internal", "standby"
    ]
    message: str
    hint: str = ""
    leader: str = ""
    """With `standby`: the endpoint of the controller to ask instead; empty: not known."""


def answer_to(question: type[Question[Any]]) -> type[Reply]:
    """The type of reply that a question names in its definition, which may stand before that of the reply."""
    (named,) = get_args(question.__dict__["__orig_bases__"][0])
    answer: type[Reply] = getattr(sys.modules[question.__module__], getattr(named, "__forward_arg__", "Done"))
    return answer


Mentions = tuple[tuple[int, int], ...]
"""Where a text names jobs: the first character of each number, and the one after it."""
Parameters = dict[str, str | int | float | bool]

CLIENT_MARK: Final = b"client"
"""First of a client's two frames; an agent sends its one frame alone."""
