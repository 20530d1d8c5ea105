"""What a policy may ask for. The engine checks each against the ledger before anything happens."""

from __future__ import annotations

import msgspec

from cotenant.controller.domain.ids import DeviceId, JobId
from cotenant.controller.domain.reasons import Reason


class Action(msgspec.Struct, frozen=True, kw_only=True, tag_field="action"):
    """Base of all actions; each carries its reason."""

    reason: Reason


class Place(Action, frozen=True, kw_only=True, tag="Place"):
    """Give a job devices that are free, or that this batch's preemptions will free."""

    job_id: JobId
    devices: tuple[DeviceId, ...]
    accumulation_steps: int = 1


class Share(Action, frozen=True, kw_only=True, tag="Share"):
    """Give a job devices some of which hold one co-tenant that stays."""

    job_id: JobId
    devices: tuple[DeviceId, ...]
    accumulation_steps: int = 1


class Preempt(Action, frozen=True, kw_only=True, tag="Preempt"):
    """Save the job's state and take its devices; it is queued again."""

    job_id: JobId
    for_job: JobId | None = None


class Resize(Action, frozen=True, kw_only=True, tag="Resize"):
    """Give an elastic job that trains other devices, more or fewer: it saves at an agreed step and goes on
    there. They are free, or its own, or this batch's preemptions and resizes will free them."""

    job_id: JobId
    devices: tuple[DeviceId, ...]


class Hold(Action, frozen=True, kw_only=True, tag="Hold"):
    """Keep a waiting job back with a reason (quota); it stays queued and is reported with it."""

    job_id: JobId


class Defer(Action, frozen=True, kw_only=True, tag="Defer"):
    """Decide about a waiting job again at `until_s`, and about preempting `victims` for it (Lazer 4.2).

    It stays queued and is reported with the reason; the policy sees to it that no other job preempts the
    victims meanwhile.
    """

    job_id: JobId
    victims: tuple[JobId, ...]
    until_s: float


class Wake(Action, frozen=True, kw_only=True, tag="Wake"):
    """Ask to be called again at `at_s`, whatever happens until then."""

    at_s: float


class Compute(Action, frozen=True, kw_only=True, tag="Compute"):
    """Ask for a slow computation (a fit, a prediction); the answer comes back as `Computed`."""

    request_id: int
    kind: str
    payload: dict[str, str | int | float | list[float]] = {}


AnyAction = Place | Share | Preempt | Resize | Hold | Defer | Wake | Compute


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's whole answer to one event: the journal keeps it beside the event."""

    actions: tuple[AnyAction, ...] = ()
    policy_state: bytes | None = None
    """Written by versions before `Policy.observe` only: the policy's state after this decision."""


NOTHING = Decision()
