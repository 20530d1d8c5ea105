"""Questions about the past, and their answers: who used the devices, which jobs have ended, who held which
device when.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import field

from cotenant.controller.domain import DeviceId, JobId, Phase
from cotenant.controller.wire.clients.base import Question, Reply
from cotenant.controller.wire.clients.jobs import AttemptView, JobView
from cotenant.controller.wire.times import Utc
from cotenant.controller.wire.views import JsonView


class GetUsage(Question["UsageRows"], frozen=True, kw_only=True, tag="usage"):
    """Who used how much of the devices."""

    by: Literal["user", "kind", "organisation"] = "user"
    since_s: float | None = None
    """Only what happened in so many seconds before now; None: all that is remembered."""
    page: int = 1_000
    """At most so many in one answer, by name; `UsageRows.next` tells how to go on."""
    after: str | None = None
    """The `next` of the answer before."""


class ListPastJobs(Question["PastJobs"], frozen=True, kw_only=True, tag="history"):
    """Jobs that have ended."""

    job_ids: tuple[JobId, ...] = ()
    """Empty: all. An array's number stands for all its tasks."""
    since_s: float | None = None
    """Only those that ended in so many seconds before now."""
    user: str = ""
    states: tuple[Phase, ...] = ()
    """Empty: all in which jobs have ended."""
    limit: int = 10_000
    page: int = 1_000
    """At most so many in one answer, in order of arrival; `PastJobs.next` tells how to go on."""
    after: int = 0


class UsageView(JsonView, frozen=True, kw_only=True, tag="use/1"):
    """What one user, kind of jobs or organisation used."""

    name: str
    """Empty: jobs of nobody, such as those without an organisation."""
    jobs: int
    attempts: int
    held_device_s: float
    """Each second of a device once, in equal parts for those who held it."""
    shared_device_s: float
    """Of it, while training beside others."""
    idle_device_s: float = 0.0
    """Of it, while nothing used the devices."""
    lost_device_s: float
    """What having to leave cost: saves, loads and steps done once more, futile loads."""
    wait_s: float
    """Of all their jobs together, held and blocked ones too."""
    decayed_device_s: float | None = None
    """What fair share counts now; None: it is off, or goes by something else."""
    energy_kwh: float = 0.0
    """What their GPUs used for them, in all attempts but `energy_unknown_attempts`."""
    energy_unknown_attempts: int = 0


class PastJobView(JobView, frozen=True, kw_only=True, tag="past-job/1"):
    """A job that has ended, with what it used."""

    attempts: int
    held_device_s: float
    shared_device_s: float
    lost_device_s: float


class UsageRows(Reply, frozen=True, kw_only=True, tag="usage-list"):
    rows: tuple[UsageView, ...]
    now: Utc
    since: Utc | None
    """What was asked for; None: all that is remembered."""
    forgotten_jobs: int
    """That only the journal knows any more: they are in no row."""
    next: str | None = None
    """`after` of the next page; None: there is none."""
    half_life_s: float | None = None
    """Of fair share, where rows say what it counts."""


class PastJobs(Reply, frozen=True, kw_only=True, tag="past-job-list"):
    jobs: tuple[PastJobView, ...]
    now: Utc
    since: Utc | None
    forgotten_jobs: int
    more: int = 0
    """How many matched beyond those here."""
    next: int = 0
    """`after` of the next page; 0: there is none."""


AccountingRequest = GetUsage | ListPastJobs
AccountingReply = UsageRows | PastJobs


class GetTimeline(Question["Timelined"], frozen=True, kw_only=True, tag="timeline"):
    """Asks what happened on the devices."""

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
