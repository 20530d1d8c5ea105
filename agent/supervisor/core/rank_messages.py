"""The job-side protocol's datagrams as typed words. `checkpoint/talk/protocol.py` is the definition.

Rule: what comes from a job is foreign. We drop a datagram that does not validate, ignore unknown names and
fields, and cut texts, so that nothing a job says can make a supervisor fail or grow.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from cotenant.checkpoint.talk import protocol
from cotenant.controller.domain import Capabilities
from cotenant.controller.wire import BadMessage, Json

Count = Annotated[int, Meta(ge=0, le=2**53)]
RankNo = Annotated[int, Meta(ge=0, le=1_000_000)]
BoundedSeconds = Annotated[float, Meta(ge=0.0, le=1e9)]

RequestKind = Literal["stop", "save"]
AgreementPhase = Literal["propose", "commit", "withdraw"]


class RankMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="m"):
    """Base of what ranks say; `v` is the protocol's version."""

    v: int
    rank: RankNo


class RankHello(RankMessage, frozen=True, kw_only=True, tag=protocol.HELLO):
    world_size: Annotated[int, Meta(ge=1, le=1_000_000)]
    resumable: bool
    accumulates: bool
    step: Count
    exact: bool | None = None
    """After a resume: whether nothing that matters differs. None: it began at the beginning."""
    note: Annotated[str, Meta(max_length=1000)] = ""
    """What differs."""
    proven: Count = 0
    """So many steps after the resume came out as in the attempt before."""
    looks: bool = False
    """It says where its training thread is when it is asked."""
    leaves_only: bool = False
    """It is saved when it is asked to leave, or when somebody says so, and not now and then."""
    accumulates_note: Annotated[str, Meta(max_length=1000)] = ""
    """Why it cannot accumulate."""
    resumable_note: Annotated[str, Meta(max_length=1000)] = ""
    """Why it cannot resume."""

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities that this rank has."""
        return Capabilities(
            resumable_note=self.resumable_note,
            proven=self.proven,
            accumulates=self.accumulates,
            accumulates_note=self.accumulates_note,
        )


class RankWatched(RankMessage, frozen=True, kw_only=True, tag=protocol.WATCHED):
    """Says that the rank's first optimizer step will be told."""


class FirstStepReached(RankMessage, frozen=True, kw_only=True, tag=protocol.FIRST_STEP):
    step: Count


class StepDone(RankMessage, frozen=True, kw_only=True, tag=protocol.STEP):
    step: Count
    count: Count = 0
    elapsed_s: BoundedSeconds = 0.0
    s: Count = 1
    loss: float | None = None
    metrics: Annotated[dict[Annotated[str, Meta(max_length=64)], float], Meta(max_length=16)] = {}
    waited_s: BoundedSeconds = 0.0
    """Of `elapsed_s`, for a co-tenant."""
    longest_s: BoundedSeconds = 0.0
    """Of the steps without such waits; 0: not told."""
    equivalent: bool = False
    """Parts of a batch have drawn other random numbers than the whole batch."""


class LengthSeen(RankMessage, frozen=True, kw_only=True, tag=protocol.LENGTH):
    total: Count | None = None
    """Steps in all; None: it cannot be seen."""
    note: Annotated[str, Meta(max_length=1000)] = ""
    """What that rests on, or why it cannot be seen."""


class BatchSeen(RankMessage, frozen=True, kw_only=True, tag=protocol.BATCH):
    rows: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    """Per worker; None: not known."""
    note: Annotated[str, Meta(max_length=1000)] = ""
    """Where that was read, or why it is not known."""


class Saving(RankMessage, frozen=True, kw_only=True, tag=protocol.SAVING):
    step: Count


class DurableSaid(RankMessage, frozen=True, kw_only=True, tag=protocol.DURABLE):
    step: Count
    name: Annotated[str, Meta(pattern=rf"^{protocol.CHECKPOINT_NAME_PATTERN}$", max_length=64)]
    exact: bool = True
    note: str = ""


class StepConfirmed(RankMessage, frozen=True, kw_only=True, tag=protocol.CONFIRM):
    proposal: Count
    step: Count
    ok: bool


class Stopped(RankMessage, frozen=True, kw_only=True, tag=protocol.STOPPED):
    step: Count


class MemorySeen(RankMessage, frozen=True, kw_only=True, tag=protocol.STRETCH):
    """What the rank's process had in use in the steps after `first` up to `step`."""

    first: Count
    step: Count
    s: Count
    memory_mib: Annotated[float, Meta(ge=0.0, le=1e9)] | None = None
    """At most."""
    static_mib: Annotated[float, Meta(ge=0.0, le=1e9)] | None = None
    """Between two steps."""


class StackReply(RankMessage, frozen=True, kw_only=True, tag=protocol.STANDING):
    look: Count
    place: Count
    """Equal as long as the training thread has not moved."""


class RankFailed(RankMessage, frozen=True, kw_only=True, tag=protocol.FAILED):
    what: str
    error: str = ""


AnyRankWord = (
    RankHello
    | RankWatched
    | FirstStepReached
    | StepDone
    | LengthSeen
    | BatchSeen
    | Saving
    | DurableSaid
    | StepConfirmed
    | Stopped
    | MemorySeen
    | StackReply
    | RankFailed
)

_decoder: Json[AnyRankWord] = Json(AnyRankWord, bytes_max=protocol.DATAGRAM_BYTES_MAX, from_python=True)


def parse(datagram: bytes) -> AnyRankWord | None:
    """The word in a datagram; None for anything that is to be dropped."""
    try:
        word = _decoder.decode(datagram)
    except BadMessage:
        return None
    return word if word.v == protocol.PROTOCOL_VERSION else None


class ToRank(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the two-phase agreement, on its way to one rank."""

    kind: RequestKind
    proposal: int
    step: int
    phase: AgreementPhase
    finish: bool = False
    """Only with `stop`: the script goes on after its loop."""


def look(number: int) -> bytes:
    """The question where the training thread is."""
    return msgspec.json.encode({"v": protocol.PROTOCOL_VERSION, "m": protocol.LOOK, "look": number})


def room(memory_mib: int | None) -> bytes:
    """What others leave of each device; None: there are none."""
    message = {"v": protocol.PROTOCOL_VERSION, "m": protocol.ROOM, "memory_mib": memory_mib}
    return msgspec.json.encode(message)


_NAMES: dict[RequestKind, str] = {"stop": protocol.STOP_AT, "save": protocol.SAVE_AT}


def datagram(word: ToRank) -> bytes:
    message: dict[str, str | int] = {
        "v": protocol.PROTOCOL_VERSION,
        "m": _NAMES[word.kind],
        "proposal": word.proposal,
        "step": word.step,
        "phase": word.phase,
    }
    if word.finish:
        message["finish"] = True
    return msgspec.json.encode(message)
