"""The one table of limits on the texts of others, in bytes, and on the numbers of clients, and the function
that applies it.

Rule: every text of every request and of everything that an agent says passes `admitted`, once, right after it
was decoded. There are three kinds:

    name   a word or a line that people will see: refused if it is too long, or not seen as it is
    text   free words (an error, a note): hidden characters become escapes, and what is too long is cut
    raw    a program's own data (command, variables, paths): left alone; refused if too long, or with a NUL,
           which no path, argument or variable can have

A client learns what is wrong with its request; its numbers are finite, and its times are dates. Of an agent
we refuse names alone: the controller must know what happened on a host, however the agent words it. Text that
has no line here has the default of whoever sends it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from operator import is_
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import allocations, cluster, container, job_spec, texts
from cotenant.controller.performance import perf
from cotenant.controller.wire import agents, clients

Message = TypeVar("Message")

FieldKind = Literal["name", "text", "raw"]


class Limit(NamedTuple):
    kind: FieldKind
    bytes_max: int
    """Of one text, or of one piece of data."""
    count_max: int = 1_000
    """Of a list, or of names with values."""
    total_max: int = 64 * 1024
    """Of a list together, in bytes."""
    shape: Callable[[str], bool] | None = None
    """What else a name has to be, as on the command line."""


class Inadmissible(ValueError):
    """What is wrong with a text, for its sender."""


KIB: Final = 1024
JOB_ID: Final = Limit("name", 64)
JOB_WORD: Final = Limit("name", 512, count_max=100_000, total_max=2048 * KIB)
"""As `38_[0-3,7]`."""
NAME: Final = Limit("name", 256)
PATH: Final = Limit("raw", 4 * KIB)
LAUNCH_BYTES_MAX: Final = 1024 * KIB
"""Command and variables of one job together: its start command must fit into one message."""
SECRETS_BYTES_MAX: Final = 256 * KIB
"""Names and values of one submission's secret variables together."""
JOBS_MAX: Final = 10_000
"""In one submission."""
WORD_BYTES_MAX: Final = 128 * KIB
"""One argument or variable: Linux's own limit (MAX_ARG_STRLEN)."""

FROM_CLIENTS: Final = NAME
FROM_AGENTS: Final = Limit("text", 4 * KIB)
SECONDS_MAX: Final = 1e10
"""Of a time in a request, 300 years: so long before or after now is still a date."""
DATA_BYTES_MAX: Final = 256 * KIB
"""Of bytes that we pass on unread: a part of a log, a message between supervisors."""
SNAPSHOT_PART_BYTES_MAX: Final = 2 * 1024 * KIB
"""One part of a packed tree, on its way to the controller or to a host."""

LIMITS: Final[dict[tuple[type, str], Limit]] = {
    # Requests.
    (clients.Submit, "specs"): Limit("name", 0, count_max=JOBS_MAX),
    (clients.Submit, "secrets"): Limit("raw", WORD_BYTES_MAX, total_max=SECRETS_BYTES_MAX),
    (clients.Submit, "idempotency_key"): Limit("name", 200),
    (clients.ListJobs, "job_ids"): JOB_WORD,
    (clients.ListEtas, "job_ids"): JOB_WORD,
    (clients.ShowJob, "job_id"): JOB_WORD,
    (clients.Explain, "job_id"): JOB_WORD,
    (clients.ChangeJobs, "job_ids"): JOB_WORD,
    (clients.SetJobs, "job_ids"): JOB_WORD,
    (clients.ReserveDevices, "idempotency_key"): Limit("name", 200),
    (clients.SetJobs, "changes"): Limit("name", 512, count_max=50),
    (clients.ListPastJobs, "job_ids"): JOB_WORD,
    (clients.GetUsage, "after"): Limit("name", 4 * KIB),
    (clients.WaitJobs, "job_ids"): JOB_WORD,
    (clients.ReadJobLog, "job_id"): JOB_WORD,
    (clients.UseStream, "job_id"): JOB_WORD,
    (clients.GetDecisions, "job_id"): JOB_WORD,
    (allocations.AllocationTerms, "options"): Limit("name", 1 * KIB, count_max=100),
    (allocations.AllocationTerms, "before"): Limit("raw", 4 * KIB),
    (allocations.AllocationTerms, "folder"): PATH,
    (clients.PutSnapshot, "data"): Limit("raw", SNAPSHOT_PART_BYTES_MAX),
    # Jobs.
    (job_spec.JobSpec, "job_id"): JOB_ID,
    (job_spec.JobSpec, "name"): Limit("name", 4 * texts.NAME_CHARACTERS_MAX, shape=texts.is_name),
    (job_spec.JobSpec, "organisation"): NAME._replace(shape=texts.is_word),
    (job_spec.JobSpec, "features"): Limit("name", 128, count_max=64, shape=texts.is_word),
    (job_spec.JobSpec, "notify"): Limit("name", 320, count_max=16),
    (job_spec.JobSpec, "gpu_type"): Limit("name", 128, shape=texts.is_word),
    (job_spec.JobSpec, "parameters"): Limit("name", 256, count_max=job_spec.GRIDS_MAX),
    (job_spec.JobSpec, "link"): Limit("name", domain.LINK_CHARACTERS_MAX),
    (job_spec.JobSpec, "code_sha256"): Limit("name", 64),
    (job_spec.JobSpec, "after"): Limit("name", 64, count_max=100_000),
    (job_spec.Dependency, "job_id"): JOB_ID,
    (job_spec.Launch, "argv"): Limit("raw", WORD_BYTES_MAX, count_max=100_000, total_max=LAUNCH_BYTES_MAX),
    (job_spec.Launch, "env"): Limit("raw", WORD_BYTES_MAX, count_max=10_000, total_max=LAUNCH_BYTES_MAX),
    (job_spec.Launch, "secrets"): Limit("raw", 4 * KIB),
    (job_spec.Launch, "workdir"): PATH,
    (job_spec.Launch, "output"): PATH,
    (job_spec.InputFile, "path"): PATH,
    (container.Container, "image"): PATH,
    (container.Container, "mounts"): Limit("name", 0, count_max=64),
    (container.Mount, "source"): PATH,
    (container.Mount, "target"): PATH,
    (job_spec.CodeSnapshot, "top"): PATH,
    (job_spec.CodeSnapshot, "subfolder"): PATH,
    (perf.Profile, "points"): Limit("name", 64, count_max=256),
    # Of an agent's own host: what is keyed by it must be what it calls itself.
    (cluster.HostReport, "host_id"): NAME,
    (cluster.HostReport, "address"): NAME,
    (cluster.HostReport, "features"): Limit("name", 128, count_max=256),
    (cluster.HostReport, "checkpoint_domain"): Limit("name", 4 * KIB),
    (cluster.HostReport, "copies"): PATH,
    (cluster.HostReport, "devices"): Limit("name", 0, count_max=agents.DEVICES_MAX),
    (cluster.Device, "device_id"): Limit("name", 512),
    (cluster.Device, "host_id"): NAME,
    (cluster.Device, "type"): Limit("name", 128),
    (cluster.Device, "local"): NAME,
    (agents.Hello, "session"): NAME,
    (agents.Hello, "attempts"): Limit("text", 0, count_max=100_000),
    (agents.Heartbeat, "session"): NAME,
    (agents.Heartbeat, "pulls"): Limit("text", 256, count_max=1_000),
    (agents.Heartbeat, "progress"): Limit("text", 0, count_max=10_000),
    (domain.ExitVerdict, "detail"): Limit("text", 2 * KIB),
    (domain.ExitVerdict, "ours"): Limit("text", 2 * KIB),
}


def admit(message: Message, default: Limit) -> Message:
    """The message as it may be read here.

    Raises:
        Inadmissible: a text or a number in it is refused; the sentence says which, and why.
    """
    return cast(Message, _struct(message, default)) if isinstance(message, msgspec.Struct) else message


@cache
def _limits_of(kind: type[msgspec.Struct], default: Limit) -> tuple[tuple[str, Limit], ...]:
    return tuple((name, LIMITS.get((kind, name), default)) for name in texts.text_fields(kind))


def _struct(value: msgspec.Struct, default: Limit) -> msgspec.Struct:
    changed: dict[str, Any] = {}
    if default is FROM_CLIENTS:
        for name, most in _numbers_of(type(value)):
            _check_number(getattr(value, name), most, name)
    for name, limit in _limits_of(type(value), default):
        before = getattr(value, name)
        if not before or (type(before) is str and _is_plain(before, limit)):
            continue  # Nearly all of them; this is done for each text of each message.
        after = _check_value(before, limit, default, name)
        if after is not before:
            changed[name] = after
    return texts.replace_texts(value, changed) if changed else value


@cache
def _numbers_of(kind: type[msgspec.Struct]) -> tuple[tuple[str, float], ...]:
    fields = [field for field in msgspec.structs.fields(kind) if "float" in str(field.type)]
    return tuple((each.name, SECONDS_MAX if each.name.endswith("_s") else math.inf) for each in fields)


def _check_number(value: Any, most: float, where: str) -> None:
    if isinstance(value, float) and not (-most <= value <= most and math.isfinite(value)):
        limit = "finite" if math.isinf(most) else f"a number of at most {most:,.0f} seconds"
        raise Inadmissible(f"{where} must be {limit}, got {value:g}")
    for each in value if isinstance(value, tuple) else value.values() if isinstance(value, dict) else ():
        _check_number(each, most, where)


def _is_plain(text: str, limit: Limit) -> bool:
    return (
        len(text) <= limit.bytes_max
        and text.isascii()
        and text.isprintable()
        and (not limit.shape or limit.shape(text))
    )


def _are_plain(words: tuple[Any, ...], limit: Limit) -> bool:
    """Whether all are plain texts, short even together: one look, since nearly always they are."""
    try:
        together = "".join(words)
    except TypeError:
        return False
    return _is_plain(together, limit) and len(together) <= limit.total_max


def _check_value(value: Any, limit: Limit, default: Limit, where: str) -> Any:
    if isinstance(value, str):
        return value if _is_plain(value, limit) else _text(value, limit, where)
    if isinstance(value, bytes):
        most = max(limit.bytes_max, DATA_BYTES_MAX)
        if len(value) > most:
            raise Inadmissible(f"{where} takes {len(value)} bytes of {most} possible")
        return value
    if isinstance(value, msgspec.Struct):
        return _struct(value, default)
    if isinstance(value, dict):
        _count(value, limit, where)
        if _are_plain((*value, *value.values()), limit):
            return value
        keys = [_check_value(each, limit, default, where) for each in value]
        values = [_check_value(each, limit, default, where) for each in value.values()]
        _total([*keys, *values], limit, where)
        return dict(zip(keys, values, strict=True)) if limit.kind == "text" else value
    if isinstance(value, tuple):
        _count(value, limit, where)
        if value and type(value[0]) is str and _are_plain(value, limit):
            return value
        found = tuple([_check_value(each, limit, default, where) for each in value])
        _total(found, limit, where)
        return value if all(map(is_, found, value)) else found
    return value


def _text(text: str, limit: Limit, where: str) -> str:
    if limit.kind == "text":
        return texts.cut_to(texts.one_line(text), limit.bytes_max)
    size = texts.bytes_in(text)
    if size > limit.bytes_max:
        raise Inadmissible(f"{where} takes {size} bytes of {limit.bytes_max} possible")
    if limit.kind == "raw" and "\0" in text:
        raise Inadmissible(f"{where} has a NUL in it")
    if limit.kind == "name" and not texts.is_one_line(text):
        raise Inadmissible(f"{where} must be one line of visible characters, got {_show_text(text)}")
    if limit.shape is not None and not limit.shape(text):
        most = texts.NAME_CHARACTERS_MAX
        what = (
            "one word" if limit.shape is texts.is_word else f"at most {most} characters, it has {len(text)}"
        )
        raise Inadmissible(f"{where} must be {what}, got {_show_text(text)}")
    return text


def _count(value: dict[Any, Any] | tuple[Any, ...], limit: Limit, where: str) -> None:
    if len(value) > limit.count_max:
        raise Inadmissible(f"{where} has {len(value)} entries of {limit.count_max} possible")


def _total(values: Sequence[Any], limit: Limit, where: str) -> None:
    size = sum([texts.bytes_in(each) for each in values if isinstance(each, str)])
    if size > limit.total_max:
        raise Inadmissible(f"{where} takes {size} bytes of {limit.total_max} possible")


def _show_text(text: str) -> str:
    return f"'{texts.cut_to(texts.one_line(text), 60)}'"
