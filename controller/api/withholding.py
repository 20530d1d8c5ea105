"""The one exit of answers: what belongs to a job's owner leaves an answer for anybody else.

Rule: fields are found by their types (`domain/owned.py`), in whatever answer they stand, so a new answer has
nothing to remember. Whose a struct is, its `user` says, else its `job_id`, else the struct that it is in; a
struct of nobody is everybody's least: it is shown as to a stranger. Reasons have two sentences, and an answer
is made with the one for its reader (`reasons.render`); the other never comes here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar, cast, get_args, get_origin

import msgspec

from cotenant.controller.domain import WHOSE, JobId, Launch, Whose, program_name, texts

T = TypeVar("T")
OwnerOf = Callable[[JobId], str]


class AnswerReader(NamedTuple):
    """Who reads an answer, if that is no admin."""

    name: str
    owner_of: OwnerOf
    reads_commands: bool
    """Command lines and values of grids are everybody's here (`[privacy] commands`)."""


class _Marked(NamedTuple):
    """The fields of a type of message in which something is somebody's."""

    names: tuple[tuple[str, Whose, Any], ...]
    """With what stands there for others."""
    within: tuple[str, ...]
    """Structs, or several of them, that have such fields."""


def withhold(answer: T, reader: AnswerReader) -> T:
    """The answer as this reader may see it."""
    return cast(T, _withhold(answer, reader, is_own=False))


def _withhold(value: Any, reader: AnswerReader, *, is_own: bool) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_withhold(each, reader, is_own=is_own) for each in value)
    if isinstance(value, dict):
        return {key: _withhold(each, reader, is_own=is_own) for key, each in value.items()}
    if not isinstance(value, msgspec.Struct) or not (marked := _marked(type(value))):
        return value
    is_own = _is_own(value, reader, is_own)
    if isinstance(value, Launch):
        return value if is_own else _launch_for_others(value, reads=reader.reads_commands)
    found = {name: _withhold(getattr(value, name), reader, is_own=is_own) for name in marked.within}
    if not is_own:
        found |= {
            name: empty
            for name, whose, empty in marked.names
            if whose == "owner" or not reader.reads_commands
        }
    return texts.replace_texts(value, found)


def _is_own(value: msgspec.Struct, reader: AnswerReader, outer: bool) -> bool:
    owner = getattr(value, "user", None)
    if owner is None and (job_id := getattr(value, "job_id", None)) is not None:
        owner = reader.owner_of(job_id)
    return outer if owner is None else owner == reader.name


def _launch_for_others(launch: Launch, *, reads: bool) -> Launch:
    """A command without its environment; where commands are their owners', the program's name alone."""
    if reads:
        return msgspec.structs.replace(launch, env={}, secrets=())
    program = tuple(program_name(each) for each in launch.argv[:1])
    return Launch(argv=program, workdir="", mode=launch.mode, terminal=launch.terminal, uid=launch.uid)


_EMPTY: Final[dict[Any, Any]] = {str: "", tuple: (), dict: {}}


@cache
def _marked(kind: type[msgspec.Struct]) -> _Marked | None:
    """None: nothing in it is anybody's."""
    names: list[tuple[str, Whose, Any]] = []
    within: list[str] = []
    for field in msgspec.structs.fields(kind):
        if get_origin(field.type) is Annotated and (whose := _whose(field.type)):
            plain = get_args(field.type)[0]
            names.append((field.name, whose, _EMPTY.get(get_origin(plain) or plain)))
        elif any(each is Launch or _marked(each) for each in _structs_in(field.type, kind)):
            within.append(field.name)
    return _Marked(tuple(names), tuple(within)) if names or within or kind is Launch else None


def _whose(kind: Any) -> Whose | None:
    marks = (each.extra or {} for each in get_args(kind)[1:] if isinstance(each, msgspec.Meta))
    return next((each[WHOSE] for each in marks if WHOSE in each), None)


def _structs_in(kind: Any, seen: type) -> list[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [] if kind is seen else [kind]
    return [each for argument in get_args(kind) for each in _structs_in(argument, seen)]
