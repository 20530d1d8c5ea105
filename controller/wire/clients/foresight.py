"""What would happen to a job if it came: the questions, and their answers."""

from __future__ import annotations

import msgspec
from msgspec import field

from cotenant.controller.domain import JobId
from cotenant.controller.wire.clients.base import Question, Reply
from cotenant.controller.wire.clients.jobs import EtaTimes, EtaView
from cotenant.controller.wire.clients.submissions import Submit
from cotenant.controller.wire.times import Utc
from cotenant.controller.wire.views import JsonView


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
    """A forecast of what would follow from a submission."""

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


class ForeseeWidths(Question["ForeseenWidths"], frozen=True, kw_only=True, tag="foresee-widths"):
    """When would a job end that is not submitted? It may take some seconds."""

    submission: Submit
    """Of a single job."""
    gpus: tuple[int, ...] = ()
    """On so many devices each; empty: on 1, 2, 4 and so on."""
    policy: str = ""
    """As if this one were set; empty: under the one in force."""
    parameters: dict[str, str | int | float | bool] = field(default_factory=dict)


class ForeseenRow(msgspec.Struct, frozen=True, kw_only=True):
    """The job on so many devices, submitted at one time."""

    gpus: int
    is_later: bool = field(name="at_quietest_hour")
    submit_at: Utc
    start: EtaTimes | None
    finish: EtaTimes | None
    """None: nobody can say; `basis` says why."""
    basis: str


class ForeseenWidths(Reply, frozen=True, kw_only=True, tag="foreseen-widths"):
    rows: tuple[ForeseenRow, ...]
    policy: str
    quietest_at: Utc | None
    """When the next hour begins in which the fewest devices used to be held; None: not known yet."""


ForesightRequest = ForeseeArrival | ForeseeWidths
ForesightReply = Foreseen | ForeseenWidths
