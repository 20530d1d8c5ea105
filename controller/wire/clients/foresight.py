"""What would happen to a job if it came now: the question, and its answer."""

from __future__ import annotations

import msgspec
from msgspec import field

from cotenant.controller.domain import JobId
from cotenant.controller.wire.clients.base import Question, Reply
from cotenant.controller.wire.clients.jobs import EtaView, Submit
from cotenant.controller.wire.views import JsonView, Utc


class ForeseeArrival(Question["Foreseen"], frozen=True, kw_only=True, tag="foresee"):
    """Answered after roll-outs with and without it; changes nothing."""

    submission: Submit


class DelayView(msgspec.Struct, frozen=True, kw_only=True):
    """How much later a job would end, in the same futures; below zero: sooner."""

    job_id: JobId = field(name="job")
    name: str
    user: str
    p10_s: float
    p50_s: float
    p90_s: float


class ArrivalView(JsonView, frozen=True, kw_only=True, tag="arrival/1"):
    """What would follow."""

    policy: str
    roll_outs: int
    at_once: bool
    """It would start at once; of an array, its first task."""
    reasons: tuple[str, ...]
    ahead: tuple[JobId, ...]
    """Who would stand before it in the queue."""
    waits_for: tuple[JobId, ...]
    """Whose devices it would take, the first to leave before the others."""
    etas: tuple[EtaView, ...]
    delays: tuple[DelayView, ...]
    """The most first."""
    delayed: int
    """Jobs that would end later, also those beyond `delays`."""
    now: Utc


class Foreseen(Reply, frozen=True, kw_only=True, tag="foreseen"):
    arrival: ArrivalView


ForesightRequest = ForeseeArrival
ForesightReply = Foreseen
