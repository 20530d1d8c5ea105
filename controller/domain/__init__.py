"""The words of cotenant as types: ids, jobs, devices, events, actions, commands, timings.

Rule: pure values only. Nothing here reads a clock, a socket, a file or a random number.
"""

# fmt: off
from cotenant.controller.domain import allocations, cluster, events, fitting, job_spec, pairs, perf, settings
from cotenant.controller.domain.actions import (
    NOTHING, AnyAction, ClassReport, Compute, Decision, Defer, Hold, Place, PoolReport, Preempt, Resize,
    Share, Wake,
)
from cotenant.controller.domain.allocations import (
    HOSTS_MAX, Allocation, AllocationQueue, AllocationState, AllocationTerms, Allocations, HostShape,
    SeenShape,
)
from cotenant.controller.domain.cluster import (
    HELD_MIB_MIN, SUSPECT_AFTER, Device, DeviceKind, DeviceState, Host, HostReport, HostRoom, HostState,
    SharingMode, asks_hosts, room_left, sharing_in_words,
)
from cotenant.controller.domain.commands import (
    AgentCommand, AnyCommand, ComputeRequest, ForgetJob, GangMember, SaveAttempt, StartAttempt, StopAttempt,
    TrustDevices,
)
from cotenant.controller.domain.events import (
    AlarmRang, AllocationChanged, AllocationQueueChanged, AnyEvent, AttemptEnded, AttemptSeen, AttemptStarted,
    CancelRequested, CapabilitiesSeen, CheckpointDurable, CheckpointRequested, Computed, EpochBegan, EtasTold,
    FirstStepDone, FromAttempt, GpuFaultRole, HoldRequested, HostBack, HostDrained, HostJoined, HostLeaving,
    HostLost, HostResumed, HostSilent, JobArrived, JobKept, Outcome, PairObserved, PolicyChanged,
    PreemptRequested, ProfileLearned, ProfilesForgotten, ProgressSeen, ReleaseRequested, RequeueRequested,
    ShadowChanged, SpecChanged, TroubleSeen,
)
from cotenant.controller.domain.fitting import measured_steps, numbers, steps_in
from cotenant.controller.domain.ids import (
    PAST_KEPT, AttemptNo, CommandId, DeviceId, Epoch, Followed, HostId, JobId, Past, Standing, array_of,
    natural_key, standing,
)
from cotenant.controller.domain.indicators import (
    INDICATOR_NAMES, TEXT_MAX, DeviceReading, ForkServers, IndicatorStats, Indicators,
)
from cotenant.controller.domain.interference import (
    LEAF, MODEL_SCHEMA, Band, CrossValidation, InterferenceModel, KnownJobs, Training, TrainingFile, Trees,
    Trial,
)
from cotenant.controller.domain.job import (
    GUESS, GUESSES, LEVELS, LOAD_S, NOTES, PAUSE_S, Capabilities, CheckpointRecord, EtaInterval, EtaKind, Job,
    Placement, PromiseState, SeenLength, SharedPace, StopCause, ToldEta, ToldInterval, cannot,
    capabilities_of, capabilities_of_all,
)
from cotenant.controller.domain.job_spec import (
    ENDED_BYTES_MAX, JOB_BYTES, PRIORITY_MAX, USER_BYTES_MAX, Dependency, JobSpec, Launch, LaunchKind,
    LaunchMode, SlurmScript, held_bytes,
)
from cotenant.controller.domain.lifecycle import (
    CHECKPOINTING, ENDED, FINISH, FIRST_STEP, LAUNCH, LEAVE, LEAVING, LIFECYCLE, LOADING, ON_DEVICES, QUEUED,
    RESERVED, RUNNING, STOPPING, WAITING, Change, Phase, advance,
)
from cotenant.controller.domain.pairs import (
    APART_S, APART_S_MAX, ENTRIES_MAX, LOSS_MIN, OBSERVATIONS, Observed, PairSeen, PairTable, Verdict,
    is_beyond, kind_of, loses, signature,
)
from cotenant.controller.domain.perf import (
    DEFAULT_XI, Interference, Profile, ProfilePoint, XiSource, alone_step_s, duty_cycle_rule, fit_step_model,
    gain_of, pair_timing, shared_ends, step_s,
)
from cotenant.controller.domain.plan import Freed, HostType, Plan
from cotenant.controller.domain.profiles import (
    COMMAND_CHARACTERS_MAX, KEY_CHARACTERS, Profiles, StoredProfile, base_key, beginning, key_of,
)
from cotenant.controller.domain.reasons import TEMPLATES, Reason, because, render
from cotenant.controller.domain.settings import (
    SECTION_NAMES, AgentSettings, ControllerSettings, JobLimit, LimitSettings, MpsSettings,
    OrganisationSettings, PolicySettings, ProfilerSettings, Settings,
)
from cotenant.controller.domain.tenancy import (
    PARTS_MAX, ROUNDING, HeldPart, cores_of, fraction_of, held_part, memory_unknown, part_mib, part_to_get,
    peak_mib, tenant_mib, why_alone, why_no_part,
)
from cotenant.controller.domain.texts import (
    HIDDEN, bytes_in, cut_to, for_people, is_one_line, is_whole_number, one_line, text_fields,
    with_texts,
)
from cotenant.controller.domain.throughput import (
    OVERLAP, Coefficients, Gang, MeasuredStep, Reach, SpeedCurve, ThroughputModel, curve_of,
)
from cotenant.controller.domain.view import (
    FreeHosts, HpDemand, SchedulingClass, View, scheduling_class_of, scheduling_class_of_spec,
    staying_class_of, suits,
)

__all__ = [
    "APART_S", "APART_S_MAX", "CHECKPOINTING", "COMMAND_CHARACTERS_MAX", "DEFAULT_XI", "ENDED",
    "ENDED_BYTES_MAX", "ENTRIES_MAX", "FINISH", "FIRST_STEP", "GUESS", "GUESSES", "HELD_MIB_MIN", "HIDDEN",
    "HOSTS_MAX", "INDICATOR_NAMES", "JOB_BYTES", "KEY_CHARACTERS", "LAUNCH", "LEAF", "LEAVE", "LEAVING",
    "LEVELS", "LIFECYCLE", "LOADING", "LOAD_S", "LOSS_MIN", "MODEL_SCHEMA", "NOTES", "NOTHING",
    "OBSERVATIONS", "ON_DEVICES", "OVERLAP", "PARTS_MAX", "PAST_KEPT", "PAUSE_S", "PRIORITY_MAX", "QUEUED",
    "RESERVED", "ROUNDING", "RUNNING", "SECTION_NAMES", "STOPPING", "SUSPECT_AFTER", "TEMPLATES", "TEXT_MAX",
    "USER_BYTES_MAX", "WAITING", "AgentCommand", "AgentSettings", "AlarmRang", "Allocation",
    "AllocationChanged", "AllocationQueue", "AllocationQueueChanged", "AllocationState", "AllocationTerms",
    "Allocations", "AnyAction", "AnyCommand", "AnyEvent", "AttemptEnded", "AttemptNo", "AttemptSeen",
    "AttemptStarted", "Band", "CancelRequested", "Capabilities", "CapabilitiesSeen", "Change",
    "CheckpointDurable", "CheckpointRecord", "CheckpointRequested", "ClassReport", "Coefficients",
    "CommandId", "Compute", "ComputeRequest", "Computed", "ControllerSettings", "CrossValidation", "Decision",
    "Defer", "Dependency", "Device", "DeviceId", "DeviceKind", "DeviceReading", "DeviceState", "Epoch",
    "EpochBegan", "EtaInterval", "EtaKind", "EtasTold", "FirstStepDone", "Followed", "ForgetJob",
    "ForkServers", "FreeHosts", "Freed", "FromAttempt", "Gang", "GangMember", "GpuFaultRole", "HeldPart",
    "Hold", "HoldRequested", "Host", "HostBack", "HostDrained", "HostId", "HostJoined", "HostLeaving",
    "HostLost", "HostReport", "HostResumed", "HostRoom", "HostShape", "HostSilent", "HostState", "HostType",
    "HpDemand", "IndicatorStats", "Indicators", "Interference", "InterferenceModel", "Job", "JobArrived",
    "JobId", "JobKept", "JobLimit", "JobSpec", "KnownJobs", "Launch", "LaunchKind", "LaunchMode",
    "LimitSettings", "MeasuredStep", "MpsSettings", "Observed", "OrganisationSettings", "Outcome",
    "PairObserved", "PairSeen", "PairTable", "Past", "Phase", "Place", "Placement", "Plan", "PolicyChanged",
    "PolicySettings", "PoolReport", "Preempt", "PreemptRequested", "Profile", "ProfileLearned",
    "ProfilePoint", "ProfilerSettings", "Profiles", "ProfilesForgotten", "ProgressSeen", "PromiseState",
    "Reach", "Reason", "ReleaseRequested", "RequeueRequested", "Resize", "SaveAttempt", "SchedulingClass",
    "SeenLength", "SeenShape", "Settings", "ShadowChanged", "Share", "SharedPace", "SharingMode",
    "SlurmScript", "SpecChanged", "SpeedCurve", "Standing", "StartAttempt", "StopAttempt", "StopCause",
    "StoredProfile", "ThroughputModel", "ToldEta", "ToldInterval", "Training", "TrainingFile", "Trees",
    "Trial", "TroubleSeen", "TrustDevices", "Verdict", "View", "Wake", "XiSource", "advance", "allocations",
    "alone_step_s", "array_of", "asks_hosts", "base_key", "because", "beginning", "bytes_in", "cannot",
    "capabilities_of", "capabilities_of_all", "cluster", "cores_of", "curve_of", "cut_to", "duty_cycle_rule",
    "events", "fit_step_model", "fitting", "for_people", "fraction_of", "gain_of", "held_bytes", "held_part",
    "is_beyond", "is_one_line", "is_whole_number", "job_spec", "key_of", "kind_of", "loses",
    "measured_steps", "memory_unknown", "natural_key", "numbers", "one_line", "pair_timing", "pairs", "part_mib", "part_to_get", "peak_mib",
    "perf", "render", "room_left", "scheduling_class_of", "scheduling_class_of_spec", "settings",
    "shared_ends", "sharing_in_words", "signature", "standing", "staying_class_of", "step_s", "steps_in",
    "suits", "tenant_mib", "text_fields", "why_alone", "why_no_part", "with_texts",
]
# fmt: on
