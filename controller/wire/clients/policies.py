"""Questions about the policy in force and what it decided, and their answers."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import field

from cotenant.controller.domain import ClassReport, JobId
from cotenant.controller.wire.clients.base import Done, Parameters, Question, Reply
from cotenant.controller.wire.views import JsonView


class GetPolicy(Question["Policies"], frozen=True, kw_only=True, tag="policy"):
    offers: bool = True
    """Whether all that could be set are wanted as well; controllers of before always tell them."""


class SetPolicy(Question[Done], frozen=True, kw_only=True, tag="set-policy"):
    name: str
    parameters: Parameters = field(default_factory=dict)


class PreviewPolicy(Question["PolicyPreviewed"], frozen=True, kw_only=True, tag="preview-policy"):
    """What a policy would decide at once; nothing is changed."""

    name: str
    parameters: Parameters = field(default_factory=dict)


class GetDecisions(Question["Decisions"], frozen=True, kw_only=True, tag="decisions"):
    """The newest decisions about one job (for `explain`) or all jobs (for `top`)."""

    job_id: JobId | None = None
    limit: int = 20


class PolicyView(JsonView, frozen=True, kw_only=True, tag="policy/1"):
    """The policy in force."""

    policy: str
    about: str
    parameters: Parameters
    """All of them, also those that are as by default."""
    classes: ClassReport | None = None
    organisations: tuple[OrganisationView, ...] | None = None
    """Those that have settings of their own; None: none has."""


class OrganisationView(msgspec.Struct, frozen=True, kw_only=True):
    """What jobs of an organisation are given, whatever the policy is."""

    name: str
    job_class: str = field(name="class")
    """Of its jobs that are given none."""
    quota_devices: int | None
    """Devices that its jobs of class spot may hold at once; None: no quota of its own."""
    spot_devices: int
    """Those that they hold now."""


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


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    event: str
    job_id: JobId | None
    what: str
    reason: str


class Policies(Reply, frozen=True, kw_only=True, tag="policy-view"):
    current: PolicyView
    given: Parameters
    """Those of its parameters that somebody has set."""
    offers: tuple[PolicyOffer, ...]
    groups: tuple[str, ...] = ()
    """Headings, in the order in which they are shown."""


class PolicyPreviewed(Reply, frozen=True, kw_only=True, tag="policy-previewed"):
    preview: PolicyPreview


class Decisions(Reply, frozen=True, kw_only=True, tag="decision-list"):
    decisions: tuple[DecisionView, ...]
    now_s: float
    wall_s: float


PolicyRequest = GetPolicy | SetPolicy | PreviewPolicy | GetDecisions
PolicyReply = Policies | PolicyPreviewed | Decisions
