"""Messages between the controller and command lines: one request, one reply, and the views in it.

Rule: a view (a struct with a `schema`) is what `-o json` prints, as it came: a field has another name in JSON
by its definition here, or not at all. Every request may be sent again with the same `request_id` after a
time-out; the controller answers a repeated submission with the ids it gave the first time.
"""

from typing import Final

import msgspec

# fmt: off
from cotenant.controller.wire.clients.past import (
    AccountingReply, AccountingRequest, GetUsage, ListPastJobs, PastJobView, PastJobs, UsageRows,
    UsageView,
)
from cotenant.controller.wire.clients.cluster import (
    AddAllocations, AllocationLine, AllocationLog, AllocationQueueView, AllocationQueues, AllocationReply,
    AllocationRequest, AllocationView, ChangeAllocations, GetAllocationLog, ListAllocations,
)
from cotenant.controller.wire.clients.base import Done, Failure, Parameters, Question, Reply
from cotenant.controller.wire.clients.cluster import (
    DAMAGED_JOURNAL_ADVICE, ChangeNode, ClusterReply, ClusterRequest, ControllerStatus, DeviceView,
    ForgetProfiles, GetReport, GetStatus, KnownProfile, KnownProfiles, ListNodes, ListPairs, ListProfiles,
    NodeView, Nodes, PairView, Pairs, ReadingView, SharingReport, Stop,
)
from cotenant.controller.wire.clients.foresight import (
    ArrivalView, DelayView, ForeseeArrival, ForeseeWidths, Foreseen, ForeseenRow, ForeseenWidths,
    ForesightReply, ForesightRequest,
)
from cotenant.controller.wire.clients.jobs import (
    ArrayView, AttemptView, ChangeJobs, EtaScoreView, EtaTimes, EtaView, Etas, Explain, Explained,
    ExplanationView,
    JobDetails, JobReply, JobRequest, JobView, Jobs, ListEtas, ListJobs, LogPart, PromiseAsked,
    PromiseCounts, PromisedEndView, ReadJobLog, SetJobs, ShowJob, Shown, SpecView, SpeedupView,
    SubmissionKind, Submit, Submitted, WaitJobs, spec_view,
)
from cotenant.controller.wire.clients.policies import (
    NOT_AVAILABLE, DecisionView, Decisions, GetDecisions, GetPolicy, GetShadow, OrganisationView,
    Policies, PolicyOffer, PolicyPreview, PolicyPreviewed, PolicyReply, PolicyRequest, PolicyView,
    PreviewPolicy, PreviewedAction, SetPolicy, SetShadow, ShadowDifference, ShadowView, Shadowed,
)
from cotenant.controller.wire.clients.past import (
    GetTimeline, PolicySince, TimelineDevice, TimelineJob, TimelineReply, TimelineRequest, TimelineView,
    Timelined,
)

__all__ = [
    "CLIENT_MARK", "DAMAGED_JOURNAL_ADVICE", "NOT_AVAILABLE", "AddAllocations", "AllocationLine",
    "AllocationLog", "AllocationQueueView", "AllocationQueues", "AllocationView", "AnyReply",
    "AnyRequest", "ArrayView", "ArrivalView", "AttemptView", "ChangeAllocations", "ChangeJobs", "ChangeNode",
    "ControllerStatus", "DecisionView", "Decisions", "DelayView", "DeviceView", "Done",
    "EtaScoreView", "EtaTimes", "EtaView", "Etas", "Explain", "Explained", "ExplanationView", "Failure",
    "ForeseeArrival", "ForeseeWidths", "Foreseen", "ForeseenRow", "ForeseenWidths", "ForgetProfiles",
    "GetAllocationLog", "GetDecisions", "GetPolicy", "GetReport", "GetShadow", "GetStatus", "GetTimeline",
    "GetUsage", "JobDetails", "JobView", "Jobs", "KnownProfile", "KnownProfiles", "ListAllocations",
    "ListEtas", "ListJobs", "ListNodes", "ListPairs", "ListPastJobs", "ListProfiles", "LogPart",
    "NodeView", "Nodes", "OrganisationView", "PairView", "Pairs", "Parameters", "PastJobView", "PastJobs",
    "Policies", "PolicyOffer", "PolicyPreview", "PolicyPreviewed", "PolicySince", "PolicyView",
    "PreviewPolicy", "PreviewedAction", "PromiseAsked", "PromiseCounts", "PromisedEndView", "Question",
    "ReadJobLog", "ReadingView", "Reply", "Request", "SetJobs", "SetPolicy", "SetShadow",
    "ShadowDifference", "ShadowView", "Shadowed", "SharingReport", "ShowJob", "Shown", "SpecView",
    "SpeedupView", "Stop", "SubmissionKind", "Submit", "Submitted", "TimelineDevice", "TimelineJob",
    "TimelineView", "Timelined", "UsageRows", "UsageView", "WaitJobs", "spec_view",
]
# fmt: on

AnyRequest = (
    JobRequest
    | AccountingRequest
    | ForesightRequest
    | ClusterRequest
    | PolicyRequest
    | TimelineRequest
    | AllocationRequest
)
AnyReply = (
    JobReply
    | AccountingReply
    | ForesightReply
    | ClusterReply
    | PolicyReply
    | TimelineReply
    | AllocationReply
    | Done
    | Failure
)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    request_id: int
    body: AnyRequest


CLIENT_MARK: Final = b"client"
"""First of a client's two frames; an agent sends its one frame alone."""
