"""What a policy says: the actions that it asks for, and what one with classes reports of itself to people
(`cotenant policy show`, metrics, the fan chart). The engine checks each action against the ledger before
anything happens.
"""

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


NOTHING = Decision()


class PoolReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy with classes says of the devices of one type."""

    device_type: str
    capacity: int
    free: int
    hp_placed: int
    hp_waiting: int
    spot_may_take: int
    """More than they have."""
    spot_waiting: int
    """Devices that waiting spot jobs ask for."""
    kept_back: int
    """Free devices that they do not get."""
    forecast_median: tuple[float, ...] = ()
    """Of hp demand, by hours ahead; the first is the present hour."""
    forecast_upper: tuple[float, ...] = ()
    forecast_note: str = ""
    forecast_model: str = ""
    """Which trained model it is by; empty: none."""
    forecast_age_s: float | None = None
    """For how long that one has forecast; None: there is none."""
    recent: tuple[int, ...] = ()
    """Hp demand of the last hours, the highest of each."""


class ClassReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy with classes says of itself."""

    guaranteed_h: float
    level: float
    """Probability with which the quota keeps that promise."""
    eta: float | None
    """None: it has none."""
    evicted: int
    finished: int
    """Runs of spot jobs, since the policy was set."""
    broken_promises: int = 0
    """Runs of the jobs that are listed which were preempted within the guaranteed hours."""
    pools: tuple[PoolReport, ...]
