"""Questions about the policy in force and what it decided, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import field

from cotenant.controller.domain import ClassReport, JobId
from cotenant.controller.wire.clients.base import Done, Mentions, Parameters, Question, Reply
from cotenant.controller.wire.times import Utc
from cotenant.controller.wire.views import JsonView


class GetPolicy(Question["Policies"], frozen=True, kw_only=True, tag="policy"):
    offers: bool = True
    """List all policies that could be set as well."""


class SetPolicy(Question[Done], frozen=True, kw_only=True, tag="set-policy"):
    name: str
    parameters: Parameters = field(default_factory=dict)


class PreviewPolicy(Question["PolicyPreviewed"], frozen=True, kw_only=True, tag="preview-policy"):
    """What a policy would decide at once; changes nothing."""

    name: str
    parameters: Parameters = field(default_factory=dict)


class SetShadow(Question[Done], frozen=True, kw_only=True, tag="set-shadow"):
    """Let another policy decide beside the one in force; without a name: none."""

    name: str = ""
    parameters: Parameters = field(default_factory=dict)


class GetShadow(Question["Shadowed"], frozen=True, kw_only=True, tag="shadow"):
    simulate: bool = False
    """Have the time since its beginning simulated as well, as of now (admins); `is_simulating` until then."""


class GetDecisions(Question["Decisions"], frozen=True, kw_only=True, tag="decisions"):
    """The newest decisions about one job (for `explain`) or all jobs (for `top`)."""

    job_id: JobId | None = None
    limit: int = 20


class PolicyView(JsonView, frozen=True, kw_only=True, tag="policy/1"):
    """The policy in force."""

    policy: str
    about: str
    parameters: Parameters
    """All parameters, those with default values included."""
    classes: ClassReport | None = None
    organisations: tuple[OrganisationView, ...] | None = None
    """Those that have settings of their own; None: none has."""
    policy_state: dict[str, str] = field(default_factory=dict)
    """What it has learned, or where it stands, in words; of classes and quota `classes` tells."""


class OrganisationView(msgspec.Struct, frozen=True, kw_only=True):
    """What jobs of an organisation are given, whatever the policy is."""

    name: str
    job_class: str = field(name="class")
    """Of its jobs that are given none."""
    quota_devices: int | None
    """Devices that its jobs of class spot may hold at once; None: no quota of its own."""
    spot_devices: int
    """Those that they hold now."""
    share_max: float | None = None
    """The bound on sharing of its jobs that name none; None: as other jobs."""


NOT_AVAILABLE: Final = "not available: "


class PolicyOffer(JsonView, frozen=True, kw_only=True, tag="policy/1"):
    """A policy that there is."""

    policy: str
    about: str
    """One line; of one that is not available, after `NOT_AVAILABLE`, what the controller lacks for it."""
    current: bool
    available: bool
    defaults: Parameters
    group: str = ""
    """The heading that it stands under; empty: it is none of ours."""
    choose: str = ""
    """When to choose it, in a line."""


def policy_offers(
    *,
    available: Mapping[str, str],
    unavailable: Mapping[str, str],
    defaults: Callable[[str], Parameters],
    heading: Callable[[str], Mapping[str, str]],
    current: str = "",
) -> tuple[PolicyOffer, ...]:
    """`available` is policies with a line about each, `unavailable` those with what they lack; by name, those
    that are not available last. `current` is the one in force; none is where it is empty."""
    lacking = {name: NOT_AVAILABLE + lacks for name, lacks in sorted(unavailable.items())}
    return tuple(
        PolicyOffer(
            policy=name,
            about=about,
            current=name == current,
            available=name not in lacking,
            defaults={} if name in lacking else defaults(name),
            **heading(name),
        )
        for name, about in (*sorted(available.items()), *lacking.items())
    )


class PolicyPreview(JsonView, frozen=True, kw_only=True, tag="policy-preview/1"):
    """What would be done at once, had it been set."""

    policy: str
    actions: tuple[PreviewedAction, ...]
    queued: int
    """Jobs that wait now."""
    more: int = 0


class PreviewedAction(msgspec.Struct, frozen=True, kw_only=True):
    job_id: JobId = field(name="job")
    name: str
    what: str
    reason: str


class ShadowDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that would have been another."""

    decided_at: Utc
    job_id: JobId = field(name="job")
    done: str
    """Under the policy in force; empty: nothing."""
    instead: str
    """What the shadow would have done; empty: nothing."""
    reason: str


class ShadowView(JsonView, frozen=True, kw_only=True, tag="shadow/1"):
    """What another policy would have decided, and what would have come of it."""

    policy: str
    parameters: Parameters
    in_force: str
    set_by: str
    since: Utc
    followed_to: Utc | None
    """None: nothing has been followed yet."""
    behind_entries: int
    """Of the journal, that have not been followed yet."""
    decisions: int
    """Events on which one of the two would act."""
    alike: int
    differing: dict[str, int]
    """`starts` what waited, lets `waits` what was started, puts it `elsewhere`, `preempts` and `keeps`."""
    sooner_jobs: int
    """Jobs that have started by now and that it would have started before."""
    sooner_mean_s: float | None
    last: tuple[ShadowDifference, ...]
    """The newest first."""
    failed: str
    """The error with which it failed: it is no longer asked."""
    unfollowed: int
    """Entries that did not come out as recorded; above 0, do not rely on the rest."""
    simulated: dict[str, Any] | None
    """A `whatif/1` of the time since its beginning; its `calibration` says how far to trust it."""
    simulated_to: Utc | None
    why_not: str
    """Why nothing could be simulated."""
    is_simulating: bool
    error: str
    """Why the last attempt to follow it failed."""


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    event: str
    job_id: JobId | None
    what: str
    reason: str
    reason_jobs: Mentions = ()


class Policies(Reply, frozen=True, kw_only=True, tag="policy-view"):
    current: PolicyView
    given: Parameters
    """Those of its parameters that somebody has set."""
    offers: tuple[PolicyOffer, ...]
    groups: tuple[str, ...] = ()
    """Headings, in the order in which they are shown."""


class Shadowed(Reply, frozen=True, kw_only=True, tag="shadowed"):
    shadow: ShadowView


class PolicyPreviewed(Reply, frozen=True, kw_only=True, tag="policy-previewed"):
    preview: PolicyPreview


class Decisions(Reply, frozen=True, kw_only=True, tag="decision-list"):
    decisions: tuple[DecisionView, ...]
    now_s: float
    wall_s: float


PolicyRequest = GetPolicy | SetPolicy | PreviewPolicy | SetShadow | GetShadow | GetDecisions
PolicyReply = Policies | PolicyPreviewed | Shadowed | Decisions
