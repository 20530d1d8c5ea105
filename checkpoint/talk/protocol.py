"""The job-side protocol as this package speaks it: names, environment, datagrams.

Rule: cotenant itself may not be installed where this runs, so the constants of `controller/wire/job.py`
are repeated here and a test compares them. What cannot be parsed is dropped and counted, never raised.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PROTOCOL_VERSION: Final = 1

ENV_PROTOCOL: Final = "COTENANT_PROTOCOL"
ENV_JOB: Final = "COTENANT_JOB"
ENV_ATTEMPT: Final = "COTENANT_ATTEMPT"
ENV_CHECKPOINT_ROOT: Final = "COTENANT_CHECKPOINT_ROOT"
ENV_ACCUMULATION_STEPS: Final = "COTENANT_ACCUMULATION_STEPS"
ENV_SUB_BATCH: Final = "COTENANT_SUB_BATCH"
ENV_STEP_BATCH: Final = "COTENANT_STEP_BATCH"
ENV_ACCUMULATION_SCHEDULE: Final = "COTENANT_ACCUMULATION_SCHEDULE"
ENV_SOCKET: Final = "COTENANT_SOCKET"
ENV_RESUME: Final = "COTENANT_RESUME"
ENV_MEMORY_FRACTION: Final = "COTENANT_MEMORY_FRACTION"
ENV_MEMORY_MIB: Final = "COTENANT_MEMORY_MIB"
ENV_PROFILING: Final = "COTENANT_PROFILING"
ENV_ZERO_CODE: Final = "COTENANT_ZERO_CODE"
ENV_MODULES: Final = "COTENANT_MODULES"
ENV_STACKS_SIGNAL: Final = "COTENANT_STACKS_SIGNAL"
ENV_COLLECTIVE_SCALE: Final = "COTENANT_COLLECTIVE_SCALE"

DATAGRAM_BYTES_MAX: Final = 4096
PACE_FILE: Final = "pace"
BEAT_FILE: Final = "beat"
BEAT_BESIDE_FILE: Final = "beat-beside"
PACE_KEPT_S: Final = 15.0
DECISION_TIMEOUT_S: Final = 30.0
STEP_REPORT_PERIOD_S: Final = 0.1

HELLO: Final = "hello"
WATCHED: Final = "watched"
FIRST_STEP: Final = "first_step"
STEP: Final = "step"
LENGTH: Final = "length"
BATCH: Final = "batch"
SAVING: Final = "saving"
DURABLE: Final = "durable"
CONFIRM: Final = "confirm"
STOPPED: Final = "stopped"
STRETCH: Final = "stretch"
STANDING: Final = "standing"
FAILED: Final = "failed"

STOP_AT: Final = "stop_at"
SAVE_AT: Final = "save_at"
LOOK: Final = "look"
ROOM: Final = "room"

PHASE_PROPOSE: Final = "propose"
PHASE_COMMIT: Final = "commit"
PHASE_WITHDRAW: Final = "withdraw"

TO_RANK: Final = (STOP_AT, SAVE_AT, LOOK, ROOM)
PHASES: Final = (PHASE_PROPOSE, PHASE_COMMIT, PHASE_WITHDRAW)

MANIFEST_VERSION: Final = 1
MANIFEST_NAME: Final = "manifest.json"
CHECKPOINT_NAME_PATTERN: Final = r"a(\d+)-s(\d+)"

RESUME_NONE: Final = "none"
TEXT_MAX: Final = 1000
INTEGER_MAX: Final = 2**53
"""Larger step and proposal numbers are not believed."""


@dataclass(frozen=True)
class SupervisorDatagram:
    """A parsed datagram from the supervisor."""

    kind: str
    proposal: int
    step: int
    phase: str
    finish: bool = False
    """With a stop: a loop that is ours ends there, and the script goes on."""


def encode(name: str, rank: int, fields: Mapping[str, Any]) -> bytes:
    """Encodes one datagram; texts are cut to `TEXT_MAX` characters, and further if it would still be too
    long."""
    message: dict[str, Any] = {"v": PROTOCOL_VERSION, "m": name, "rank": rank, **fields}
    for key in fields:
        if isinstance(message[key], str):
            message[key] = message[key][:TEXT_MAX]
    data = json.dumps(message, separators=(",", ":")).encode()
    while len(data) > DATAGRAM_BYTES_MAX:
        key = max((k for k in fields if isinstance(message[k], str)), key=lambda k: len(message[k]))
        message[key] = message[key][: len(message[key]) // 2]
        data = json.dumps(message, separators=(",", ":")).encode()
    return data


def decode(data: bytes) -> SupervisorDatagram | None:
    """The order in a datagram, or None for what we do not understand."""
    if len(data) > DATAGRAM_BYTES_MAX:
        return None
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or not _whole(message.get("v"), 1):
        return None
    kind, phase = message.get("m"), message.get("phase")
    proposal, step = message.get("proposal"), message.get("step")
    if kind not in TO_RANK or phase not in PHASES or not _whole(proposal, 0) or not _whole(step, 1):
        return None
    finish = message.get("finish") is True
    return SupervisorDatagram(str(kind), int(str(proposal)), int(str(step)), str(phase), finish)


def look_in(data: bytes) -> int | None:
    """The number of the stack probe in a datagram; None if it is no probe."""
    number = _message_named(data, LOOK).get("look")
    return int(str(number)) if _whole(number, 0) else None


@dataclass(frozen=True)
class MemoryLimits:
    """What co-tenants leave of each device; None: there are none."""

    memory_mib: int | None


def room_in(data: bytes) -> MemoryLimits | None:
    """The memory limit in a datagram; None if it has none."""
    message = _message_named(data, ROOM)
    memory_mib = message.get("memory_mib", 0)
    return MemoryLimits(memory_mib) if memory_mib is None or _whole(memory_mib, 1) else None


def _message_named(data: bytes, name: str) -> dict[str, Any]:
    """A datagram of this name; empty: it is another one, or none."""
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    is_it = isinstance(message, dict) and message.get("m") == name and _whole(message.get("v"), 1)
    return message if is_it else {}


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= INTEGER_MAX


@dataclass(frozen=True)
class JobEnvironment:
    """What the supervisor put into our environment. Nothing there means a plain script."""

    job: str
    attempt: int | None
    root: Path | None
    socket: Path | None
    zero_code: bool
    """The script knows nothing of us: what it does with its batches is only seen as it happens."""
    resume: str | None
    rank: int
    world_size: int
    sub_batch: int | None
    step_batch: tuple[int, int] | None
    """Of an elastic job: rows, and how many workers with so many each, make up a step."""
    memory_fraction: float | None
    memory_mib: int | None
    protocol: int

    @staticmethod
    def read(env: Mapping[str, str]) -> JobEnvironment:
        return JobEnvironment(
            job=env.get(ENV_JOB, ""),
            attempt=_number(env, ENV_ATTEMPT, least=1),
            root=Path(env[ENV_CHECKPOINT_ROOT]) if env.get(ENV_CHECKPOINT_ROOT) else None,
            socket=Path(env[ENV_SOCKET]) if env.get(ENV_SOCKET) else None,
            zero_code=bool(env.get(ENV_ZERO_CODE)),
            resume=env.get(ENV_RESUME) or None,
            rank=_number(env, "RANK", least=0) or 0,
            world_size=_number(env, "WORLD_SIZE", least=1) or 1,
            sub_batch=_number(env, ENV_SUB_BATCH, least=1),
            step_batch=_step_batch(env),
            memory_fraction=_fraction(env, ENV_MEMORY_FRACTION),
            memory_mib=_number(env, ENV_MEMORY_MIB, least=1),
            protocol=_number(env, ENV_PROTOCOL, least=1) or PROTOCOL_VERSION,
        )


def _step_batch(env: Mapping[str, str]) -> tuple[int, int] | None:
    text = env.get(ENV_STEP_BATCH, "")
    if not text:
        return None
    rows, _, workers = text.partition("x")
    if not (rows.isdecimal() and workers.isdecimal() and int(rows) and int(workers)):
        raise ValueError(f"{ENV_STEP_BATCH} must look like 8x4, got {text!r}")
    return int(rows), int(workers)


def _number(env: Mapping[str, str], name: str, *, least: int) -> int | None:
    text = env.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {text!r}")
    return int(text)


def _fraction(env: Mapping[str, str], name: str) -> float | None:
    text = env.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{name} must be a number above 0 and at most 1, got {text!r}")
    return value
