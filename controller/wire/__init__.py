"""What crosses a process boundary: typed messages, their bounded encoding, the job-side protocol.

Rule: payloads are the domain's own types; this package adds only envelopes and limits.
"""

# fmt: off
from cotenant.controller.wire import agents, clients, codec, job
from cotenant.controller.wire.agents import (
    AttemptProgress, CommandAck, CommandDelivery, FromAgent, GangRelay, Heartbeat, Hello, HostRefused,
    LogReply, NotFollowed, ReadLog, Renew, Report, ReportAck, ToAgent, Welcome,
)
from cotenant.controller.wire.children import (
    ComputeQuestion, ComputeResult, Otherwise, Payload, ShadowAnswer, ShadowQuestion, ShadowTally,
)
from cotenant.controller.wire.clients import (
    CLIENT_MARK, DAMAGED_JOURNAL_ADVICE, NOT_AVAILABLE, AnyReply, AttemptView, ChangeJobs, ChangeNode,
    ControllerStatus, DecisionView, Decisions, DeviceView, EtaScoreView, EtaTimes, EtaView, Etas, Explain,
    Explained, Failure, ForeseeWidths, ForeseenRow, ForeseenWidths, ForgetProfiles, GetDecisions, GetPolicy,
    GetReport, GetStatus, JobDetails, JobView, Jobs, KnownProfile, KnownProfiles, ListEtas, ListJobs,
    ListNodes, ListPairs, ListProfiles, LogPart, NodeView, Nodes, OrganisationView, PairView, Parameters,
    Policies, PolicyPreview, PolicyPreviewed, PolicyView, PreviewPolicy, PreviewedAction, PromiseAsked,
    PromisedEndView, ReadJobLog, ReadingView, Request, SetPolicy, SharingReport, ShowJob, Shown, SpecView,
    SpeedupView, Submit, Submitted, WaitJobs, spec_view,
)
from cotenant.controller.wire.codec import (
    MESSAGE_BYTES_MAX, SPEAKS, UNKNOWN_REQUEST, WIRE_VERSION, BadMessage, Json, PeerVersions, WrongVersion,
    decode, decode_json, decode_text, encode, in_version, is_of_before, pack, request_in, unpack,
    unpack_struct, version_of,
)
from cotenant.controller.wire.entrance import (
    FROM_AGENTS, FROM_CLIENTS, JOBS_MAX, LAUNCH_BYTES_MAX, LIMITS, SECRETS_BYTES_MAX, Inadmissible, admitted,
)
from cotenant.controller.wire.job import (
    DATAGRAM_BYTES_MAX, DECISION_TIMEOUT_S, ENV_ACCUMULATION_SCHEDULE, ENV_ATTEMPT, ENV_JOB,
    ENV_MEMORY_FRACTION, ENV_MEMORY_MIB, ENV_SOCKET, PROTOCOL_VERSION, STEP_REPORT_PERIOD_S,
)
from cotenant.controller.wire.versions import heard
from cotenant.controller.wire.views import (
    InterruptionView, PairTotals, ProfileView, PromiseView, ReportView, SharingTotals, SharingView,
    StepTimeView, ThroughputView, Utc, profile_view, throughput_view, utc, wall_s,
)

__all__ = [
    "CLIENT_MARK", "DAMAGED_JOURNAL_ADVICE", "DATAGRAM_BYTES_MAX", "DECISION_TIMEOUT_S",
    "ENV_ACCUMULATION_SCHEDULE", "ENV_ATTEMPT", "ENV_JOB", "ENV_MEMORY_FRACTION", "ENV_MEMORY_MIB",
    "ENV_SOCKET", "FROM_AGENTS", "FROM_CLIENTS", "JOBS_MAX", "LAUNCH_BYTES_MAX", "LIMITS",
    "MESSAGE_BYTES_MAX", "NOT_AVAILABLE", "PROTOCOL_VERSION", "SECRETS_BYTES_MAX", "SPEAKS",
    "STEP_REPORT_PERIOD_S", "UNKNOWN_REQUEST", "WIRE_VERSION", "AnyReply", "AttemptProgress", "AttemptView",
    "BadMessage", "ChangeJobs", "ChangeNode", "CommandAck", "CommandDelivery", "ComputeQuestion",
    "ComputeResult", "ControllerStatus", "DecisionView", "Decisions", "DeviceView", "EtaScoreView",
    "EtaTimes", "EtaView", "Etas", "Explain", "Explained", "Failure", "ForeseeWidths", "ForeseenRow",
    "ForeseenWidths", "ForgetProfiles", "FromAgent", "GangRelay", "GetDecisions", "GetPolicy", "GetReport",
    "GetStatus", "Heartbeat", "Hello", "HostRefused", "Inadmissible", "InterruptionView", "JobDetails",
    "JobView", "Jobs", "Json", "KnownProfile", "KnownProfiles", "ListEtas", "ListJobs", "ListNodes",
    "ListPairs", "ListProfiles", "LogPart", "LogReply", "NodeView", "Nodes", "NotFollowed",
    "OrganisationView", "Otherwise", "PairTotals", "PairView", "Parameters", "Payload", "PeerVersions",
    "Policies", "PolicyPreview", "PolicyPreviewed", "PolicyView", "PreviewPolicy", "PreviewedAction",
    "ProfileView", "PromiseAsked", "PromiseView", "PromisedEndView", "ReadJobLog", "ReadLog", "ReadingView",
    "Renew", "Report", "ReportAck", "ReportView", "Request", "SetPolicy", "ShadowAnswer", "ShadowQuestion",
    "ShadowTally", "SharingReport", "SharingTotals", "SharingView", "ShowJob", "Shown", "SpecView",
    "SpeedupView", "StepTimeView", "Submit", "Submitted", "ThroughputView", "ToAgent", "Utc", "WaitJobs",
    "Welcome", "WrongVersion", "admitted", "agents", "clients", "codec", "decode", "decode_json",
    "decode_text", "encode", "heard", "in_version", "is_of_before", "job", "pack", "profile_view",
    "request_in", "spec_view", "throughput_view", "unpack", "unpack_struct", "utc", "version_of", "wall_s",
]
# fmt: on
