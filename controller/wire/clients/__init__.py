"""Messages between the controller and command lines: one request, one reply, and the views in it.

Rule: a view (a struct with a `schema`) is what `-o json` prints, as it came: a field has another name in JSON
by its definition here, or not at all. Every request may be sent again with the same `request_id` after a
time-out; the controller answers a repeated submission with the ids it gave the first time.
"""

from typing import TYPE_CHECKING, Final

from cotenant.controller.faces import lazy_face

if TYPE_CHECKING:
    from cotenant.controller.wire.clients.base import *  # noqa: F403
    from cotenant.controller.wire.clients.cluster import *  # noqa: F403
    from cotenant.controller.wire.clients.controllers import *  # noqa: F403
    from cotenant.controller.wire.clients.exchange import *  # noqa: F403
    from cotenant.controller.wire.clients.foresight import *  # noqa: F403
    from cotenant.controller.wire.clients.jobs import *  # noqa: F403
    from cotenant.controller.wire.clients.notices import *  # noqa: F403
    from cotenant.controller.wire.clients.past import *  # noqa: F403
    from cotenant.controller.wire.clients.policies import *  # noqa: F403
    from cotenant.controller.wire.clients.reservations import *  # noqa: F403
    from cotenant.controller.wire.clients.streams import *  # noqa: F403
    from cotenant.controller.wire.clients.submissions import *  # noqa: F403

# fmt: off
_HOMES: Final = {
    "base": ("CLIENT_MARK", "Done", "Failure", "Mentions", "Parameters", "Question", "Reply", "answer_to"),
    "cluster": (
        "DAMAGED_JOURNAL_ADVICE", "AddAllocations", "AllocationLine", "AllocationLog", "AllocationQueueView",
        "AllocationQueues", "AllocationView", "ChangeAllocations",
        "ChangeNode", "ControllerStatus", "DeviceView", "ForgetProfiles",
        "GetAllocationLog", "GetReport", "GetStatus", "KnownProfile", "KnownProfiles", "ListAllocations",
        "ListNodes", "ListPairs", "ListProfiles", "NodeView", "Nodes", "PairView", "Pairs", "ReadingView",
        "SharingReport", "Stop",
    ),
    "controllers": ("ControllersView", "GetControllers", "HandOver", "StandbyView"),
    "exchange": ("AnyReply", "AnyRequest", "Request"),
    "foresight": (
        "ArrivalView", "DelayView", "ForeseeArrival", "ForeseeWidths", "Foreseen", "ForeseenRow",
        "ForeseenWidths",
    ),
    "jobs": (
        "ArrayView", "AttemptView", "ChangeJobs", "EtaScoreView", "EtaTimes", "EtaView", "Etas", "Explain",
        "Explained", "ExplanationView", "IdleView", "JobDetails", "JobRow", "JobView", "Jobs",
        "LeftView", "ListEtas", "ListJobs", "LogPart", "PromiseCounts", "PromisedEndView", "ReadJobLog",
        "ShareBoundView",
        "SetJobs", "ShowJob", "Shown", "SpecView", "SpeedupView", "SubmissionKind", "WaitJobs", "spec_view",
    ),
    "notices": ("GetNotice", "NoticeReply", "NoticeRequest", "SendTestNotice", "TellOwner"),
    "past": (
        "GetTimeline", "GetUsage", "ListPastJobs", "PastJobView",
        "PastJobs", "PolicySince", "TimelineDevice", "TimelineJob",
        "TimelineView", "Timelined", "UsageRows", "UsageView",
    ),
    "policies": (
        "NOT_AVAILABLE", "DecisionView", "Decisions", "GetDecisions", "GetPolicy", "GetShadow",
        "OrganisationView", "Policies", "PolicyOffer", "PolicyPreview", "PolicyPreviewed",
        "PolicyView", "PreviewPolicy", "PreviewedAction", "SetPolicy", "SetShadow",
        "ShadowDifference", "ShadowView", "Shadowed", "policy_offers",
    ),
    "reservations": (
        "CancelReservations", "ListReservations", "Repeat", "ReservationView", "Reservations",
        "ReserveDevices", "Reserved", "ReservedView",
    ),
    "streams": ("StreamUsed", "UseStream"),
    "submissions": ("AskSnapshot", "PromiseAsked", "PutSnapshot", "SnapshotHeld", "Submit", "Submitted"),
}
# fmt: on
if not TYPE_CHECKING:
    __all__ = [*(name for names in _HOMES.values() for name in names)]
    __getattr__ = lazy_face(globals(), _HOMES)
