"""The job-side protocol, version 1: how a training process and its supervisor talk.

Rule: this file is the one definition, for both sides, and it is here because `checkpoint/` and `gradaccum/`
run where cotenant may not be installed. `docs/job-protocol.md` is the prose. The functions are the process's
side: what cannot be parsed is dropped and counted, never raised.

Transport: Unix datagrams, one JSON object each, at most `DATAGRAM_BYTES_MAX` bytes. The supervisor
binds the path in `COTENANT_SOCKET`; rank R binds `rank-R.sock` beside it. A receiver ignores unknown
names and unknown fields, and drops what it cannot parse. No socket means a plain script.

Stopping and saving at a step that all ranks reach together is a two-phase agreement, so that a rank
only ever compares two integers per step:

1. the supervisor sends `stop_at {proposal, step, phase: "propose"}` to every rank;
2. a listener thread in the rank answers `confirm {rank, proposal, step, ok}` at once, `ok` being
   true iff the rank has not yet reached that step. A rank that said ok and reaches the step before
   it hears more waits there, for at most `DECISION_TIMEOUT_S`, then carries on;
3. all ok: `phase: "commit"`; any refusal: `phase: "withdraw"` and a new proposal with a later step.

`step` counts completed optimizer steps since the job began, over all attempts. "Stop at N" means:
after N completed steps, before the next forward pass.
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
"""The job's own folder: checkpoints are `a<attempt>-s<step>` inside it."""
ENV_ACCUMULATION_STEPS: Final = "COTENANT_ACCUMULATION_STEPS"
ENV_SUB_BATCH: Final = "COTENANT_SUB_BATCH"
ENV_STEP_BATCH: Final = "COTENANT_STEP_BATCH"
"""Optional, `8x4`: a step of an elastic job is made of 8 rows from each of 4 workers, or the same number from
those there are."""
ENV_ACCUMULATION_SCHEDULE: Final = "COTENANT_ACCUMULATION_SCHEDULE"
"""Optional, e.g. `0:2,120:1`: s = 2 from step 0, s = 1 from step 120. Wins over ACCUMULATION_STEPS."""
ENV_SOCKET: Final = "COTENANT_SOCKET"
ENV_ENDPOINT: Final = "COTENANT_CONTROLLER__ENDPOINT"
"""A setting: command lines and Python in a job ask the controller that runs the job."""
ENV_KEY: Final = "COTENANT_CONTROLLER__KEYS_DIR"
"""Optional, a setting: the file with the key that they show it."""
ENV_RESUME: Final = "COTENANT_RESUME"
"""Optional: `none` starts afresh; else the name of the one checkpoint directory to try first."""
ENV_MEMORY_FRACTION: Final = "COTENANT_MEMORY_FRACTION"
"""Optional: this process's share of each of its CUDA devices' memory, where MEMORY_MIB does not say it."""
ENV_MEMORY_MIB: Final = "COTENANT_MEMORY_MIB"
"""Optional: how much of the memory of each of its CUDA devices this process may take, in MiB."""

ENV_PROFILING: Final = "COTENANT_PROFILING"
"""Optional: `1` in a run that is only there to be measured: counters of memory begin anew with each s."""

ENV_ZERO_CODE: Final = "COTENANT_ZERO_CODE"
"""Optional: what the hook does for scripts without our libraries: `accumulate`, `mean`, `checkpoint`,
`progress`; and for all scripts `equivalent`: parts of a batch may draw other random numbers."""

ENV_STACKS_SIGNAL: Final = "COTENANT_STACKS_SIGNAL"
"""Optional: the number of a signal at which a process writes the stacks of its threads to stderr and goes
on."""
ENV_COLLECTIVE_SCALE: Final = "COTENANT_COLLECTIVE_SCALE"
"""Optional: times torch's own default time limits of process groups, for groups made without one."""
ENV_MODULES: Final = "COTENANT_MODULES"
"""Optional: a file, in the socket's folder, to which the first rank of a host writes what it has imported."""

DATAGRAM_BYTES_MAX: Final = 4096
PACE_FILE: Final = "pace"
"""Beside the supervisor's socket: when the ranks of this host may train, five little-endian doubles: the part
of the time (0 to 1); until when this counts (CLOCK_MONOTONIC); in which part of a co-tenant's step a
micro-batch may begin; where in that step that part begins; and how long the step is (0: any time). A rank
that counts its steps waits between micro-batches."""
BEAT_FILE: Final = "beat"
"""There as well: when the last step of this host's first rank ended, a little-endian double
(CLOCK_MONOTONIC), written by that rank."""
BEAT_BESIDE_FILE: Final = "beat-beside"
"""The same of the co-tenant that is waited for."""
PACE_KEPT_S: Final = 15.0
"""A pace that is not told again counts no more after so long."""
DECISION_TIMEOUT_S: Final = 30.0
STEP_REPORT_PERIOD_S: Final = 0.1
"""A rank sends `step` at most this often (and always for its first step)."""

# Names, rank -> supervisor. Every message has "v" (PROTOCOL_VERSION), "m" (its name) and "rank".
HELLO: Final = "hello"
"""{world_size, resumable: bool, accumulates: bool, step}: the library is in use; `step` was resumed from.
Optional: resumed_from (directory), exact: bool, note (what differs), proven (so many steps after the resume
came out as in the attempt before), accumulates_note and resumable_note (why it cannot), looks: bool (it
answers `look`). Neither `accumulates` nor a note: that is not known yet."""
WATCHED: Final = "watched"
"""{}: this process imports torch and its optimizer steps are counted, so `first_step` comes with the first.
May come without a hello, and more than once."""
FIRST_STEP: Final = "first_step"
"""{step}: the first optimizer step of this attempt is done."""
STEP: Final = "step"
"""{step, count, elapsed_s, s, loss: float | null, waited_s, longest_s}: `count` steps took `elapsed_s`, at s;
of that it waited `waited_s` for a co-tenant, and without such waits the longest step took `longest_s`.
Optional: metrics, at most 16 finite numbers by name; equivalent: true, once parts of a batch have drawn other
random numbers than the whole batch."""
LENGTH: Final = "length"
"""{total: int | null, note}: how many steps there will be in all as far as can be seen, and what that rests
on, or why it cannot be seen. Optional: loops, the turns of the loops around a step from the outside in. May
come without a hello."""
BATCH: Final = "batch"
"""{rows: int | null, note}: how many rows the model gets at a time, and where that was read, or why it is not
known. Once, early; may come without a hello."""
SAVING: Final = "saving"
"""{step}: training goes on (asynchronous) or has stopped here to save."""
DURABLE: Final = "durable"
"""{step, name, exact: bool, note}: the checkpoint directory `name` is verified and renamed. Rank 0 only."""
CONFIRM: Final = "confirm"
"""{proposal, step, ok}: the answer to a proposal; `step` is the rank's own."""
STOPPED: Final = "stopped"
"""{step}: this rank reached the agreed stop step, its state is durable, and it exits next."""
STANDING: Final = "standing"
"""{look, place}: the answer to a look; `place` is a number that stands for where the training thread is,
equal as long as it has not moved."""
STRETCH: Final = "stretch"
"""{first, step, s, memory_mib: float | null, static_mib: float | null}: now and then, and where the schedule
changes s: the steps after `first` up to `step` are over, all of them at s. `memory_mib` is this process's own
peak (resident; on a CUDA device what it takes there), `static_mib` what of it is in use after a step."""
FAILED: Final = "failed"
"""{what: "save" | "load" | "resume" | "accumulate", error}: the named thing failed; the process may go on.
resume: the script did not go on as it was left, so this attempt ends, and its checkpoint is worth nothing."""

# Names, supervisor -> rank.
STOP_AT: Final = "stop_at"
"""{proposal, step, phase}: stop at that step, state saved."""
SAVE_AT: Final = "save_at"
"""{proposal, step, phase}: save at that step and go on."""

LOOK: Final = "look"
"""{look}: say where your training thread is. Not a step of any agreement; needs no answer."""

ROOM: Final = "room"
"""{memory_mib: int | null}: others are on your devices now: take no more than this of each; null: they have
gone. For a job that started without a limit; one without a GPU ignores it. Needs no answer."""

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
