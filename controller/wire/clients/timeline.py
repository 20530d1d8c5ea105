"""Who held which device when: the question, and its answer."""

from __future__ import annotations

import msgspec
from msgspec import field

from cotenant.controller.domain import DeviceId, JobId, Phase
from cotenant.controller.wire.clients.base import Question, Reply
from cotenant.controller.wire.clients.jobs import AttemptView
from cotenant.controller.wire.views import JsonView, Utc


class GetTimeline(Question["Timelined"], frozen=True, kw_only=True, tag="timeline"):
    """What happened on the devices."""

    since_s: float = 3600.0
    """The window begins so many seconds before now."""
    until_s: float = 0.0
    """And ends so many before now."""
    limit: int = 2_000
    """Jobs at most: first those that held devices then, the newest first, then those that waited."""


class TimelineJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that held devices in the window, or waited for them."""

    job_id: JobId = field(name="job")
    name: str
    user: str
    phase: Phase = field(name="state")
    submitted_at: Utc
    ended_at: Utc | None
    attempts: tuple[AttemptView, ...]
    """Those in the window, and the last one before it."""


class TimelineDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device there is now."""

    device_id: DeviceId = field(name="device")
    about: str


class PolicySince(msgspec.Struct, frozen=True, kw_only=True):
    """A policy, and from when on it decided."""

    policy: str
    """With the parameters that were set."""
    from_at: Utc


class TimelineView(JsonView, frozen=True, kw_only=True, tag="timeline/1"):
    """What happened on the devices, as far as the controller remembers it."""

    begin_at: Utc
    end_at: Utc
    devices: tuple[TimelineDevice, ...]
    jobs: tuple[TimelineJob, ...]
    """In order of arrival."""
    policies: tuple[PolicySince, ...]
    more: int
    """How many jobs of the window are not here."""


class Timelined(Reply, frozen=True, kw_only=True, tag="timelined"):
    timeline: TimelineView
    now: Utc


TimelineRequest = GetTimeline
TimelineReply = Timelined
