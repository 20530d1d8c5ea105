"""The words of cotenant as types: ids, jobs, devices, events, actions, commands, timings.

Rule: pure values only. Nothing here reads a clock, a socket, a file or a random number.
"""

from typing import TYPE_CHECKING, Final

from cotenant.controller.domain.faces import lazy_face as lazy_face

if TYPE_CHECKING:
    from cotenant.controller.domain.actions import *  # noqa: F403
    from cotenant.controller.domain.allocations import *  # noqa: F403
    from cotenant.controller.domain.cluster import *  # noqa: F403
    from cotenant.controller.domain.commands import *  # noqa: F403
    from cotenant.controller.domain.events import *  # noqa: F403
    from cotenant.controller.domain.fitting import *  # noqa: F403
    from cotenant.controller.domain.ids import *  # noqa: F403
    from cotenant.controller.domain.indicators import *  # noqa: F403
    from cotenant.controller.domain.interference import *  # noqa: F403
    from cotenant.controller.domain.job import *  # noqa: F403
    from cotenant.controller.domain.job_spec import *  # noqa: F403
    from cotenant.controller.domain.lifecycle import *  # noqa: F403
    from cotenant.controller.domain.pairs import *  # noqa: F403
    from cotenant.controller.domain.perf import *  # noqa: F403
    from cotenant.controller.domain.plan import *  # noqa: F403
    from cotenant.controller.domain.profiles import *  # noqa: F403
    from cotenant.controller.domain.reasons import *  # noqa: F403
    from cotenant.controller.domain.settings import *  # noqa: F403
    from cotenant.controller.domain.tenancy import *  # noqa: F403
    from cotenant.controller.domain.texts import *  # noqa: F403
    from cotenant.controller.domain.throughput import *  # noqa: F403
    from cotenant.controller.domain.view import *  # noqa: F403

# fmt: off
_HOMES: Final = {
    "actions": (
        "NOTHING", "AnyAction", "ClassReport", "Compute", "Decision", "Defer", "Hold", "Place", "PoolReport",
        "Preempt", "Resize", "Share", "Wake",
    ),
    "allocations": (
        "HOSTS_MAX", "Allocation", "AllocationQueue", "AllocationState", "AllocationTerms", "Allocations",
        "HostShape", "SeenShape",
    ),
    "cluster": (
        "HELD_MIB_MIN", "SUSPECT_AFTER", "Device", "DeviceKind", "DeviceState", "Host", "HostReport",
        "HostRoom", "HostState", "SharingMode", "asks_hosts", "room_left", "sharing_in_words",
    ),
    "commands": (
        "AgentCommand", "AnyCommand", "ComputeRequest", "ForgetJob", "GangMember", "SaveAttempt",
        "StartAttempt", "StopAttempt", "TrustDevices",
    ),
    "events": (
        "AlarmRang", "AllocationChanged", "AllocationQueueChanged", "AnyEvent", "AttemptEnded", "AttemptSeen",
        "AttemptStarted", "CancelRequested", "CapabilitiesSeen", "CheckpointDurable", "CheckpointRequested",
        "Computed", "EpochBegan", "EtasTold", "FirstStepDone", "FromAttempt", "GpuFaultRole", "HoldRequested",
        "HostBack", "HostDrained", "HostJoined", "HostLeaving", "HostLost", "HostResumed", "HostSilent",
        "JobArrived", "JobKept", "Outcome", "PairObserved", "PolicyChanged", "PreemptRequested",
        "ProfileLearned", "ProfilesForgotten", "ProgressSeen", "ReleaseRequested", "RequeueRequested",
        "ShadowChanged", "SpecChanged", "TroubleSeen",
    ),
    "faces": ("lazy_face",),
    "fitting": ("measured_steps", "numbers", "steps_in"),
    "ids": (
        "PAST_KEPT", "AttemptNo", "CommandId", "DeviceId", "Epoch", "Followed", "HostId", "JobId", "Past",
        "Standing", "array_of", "natural_key", "standing",
    ),
    "indicators": (
        "INDICATOR_NAMES", "TEXT_MAX", "DeviceReading", "ForkServers", "IndicatorStats", "Indicators",
    ),
    "interference": (
        "LEAF", "MODEL_SCHEMA", "Band", "CrossValidation", "InterferenceModel", "KnownJobs", "Training",
        "TrainingFile", "Trees", "Trial",
    ),
    "job": (
        "GUESS", "GUESSES", "LEVELS", "LOAD_S", "NOTES", "PAUSE_S", "Capabilities", "CheckpointRecord",
        "EtaInterval", "EtaKind", "Job", "Placement", "PromiseState", "SeenLength", "SharedPace", "StopCause",
        "ToldEta", "ToldInterval", "cannot", "capabilities_of", "capabilities_of_all",
        "left_of_unknown_s",
    ),
    "job_spec": (
        "ENDED_BYTES_MAX", "JOB_BYTES", "PRIORITY_MAX", "USER_BYTES_MAX", "Dependency", "InputFile",
        "JobSpec", "Launch", "LaunchKind", "LaunchMode", "SlurmScript", "held_bytes",
    ),
    "lifecycle": (
        "CHANGEABLE", "CHECKPOINTING", "ENDED", "FINISH", "FIRST_STEP", "LAUNCH", "LEAVE", "LEAVING",
        "LIFECYCLE", "LOADING", "ON_DEVICES", "QUEUED", "RESERVED", "RUNNING", "STOPPING", "WAITING",
        "Change", "ChangeVerb", "Phase", "advance",
    ),
    "pairs": (
        "APART_S", "APART_S_MAX", "ENTRIES_MAX", "LOSS_MIN", "OBSERVATIONS", "Observed", "PairSeen",
        "PairTable", "Verdict", "is_beyond", "kind_of", "loses", "signature",
    ),
    "perf": (
        "DEFAULT_XI", "Interference", "Profile", "ProfilePoint", "SeenBatch", "XiSource", "alone_step_s",
        "duty_cycle_rule", "fit_step_model", "gain_of", "pair_timing", "shared_ends", "step_s",
    ),
    "plan": ("Freed", "HostType", "Plan"),
    "profiles": (
        "COMMAND_CHARACTERS_MAX", "KEY_CHARACTERS", "Profiles", "StoredProfile", "base_key", "beginning",
        "key_of",
    ),
    "reasons": ("TEMPLATES", "Reason", "because", "render"),
    "settings": (
        "DEFAULT_POLICY", "LATE_SHARE", "SECTION_NAMES", "AgentSettings", "ControllerSettings", "JobLimit",
        "LimitSettings", "MpsSettings",
        "OrganisationSettings", "PolicySettings", "ProfilerSettings", "Settings",
    ),
    "tenancy": (
        "PARTS_MAX", "ROUNDING", "HeldPart", "cores_of", "fraction_of", "held_part", "memory_unknown",
        "part_mib", "part_to_get", "peak_mib", "tenant_mib", "why_alone", "why_no_part",
    ),
    "texts": (
        "HIDDEN", "bytes_in", "cut_to", "for_people", "is_one_line", "is_whole_number", "one_line",
        "text_fields", "with_texts",
    ),
    "throughput": (
        "OVERLAP", "Coefficients", "Gang", "MeasuredStep", "Reach", "SpeedCurve", "ThroughputModel",
        "curve_of",
    ),
    "view": (
        "FreeHosts", "HpDemand", "SchedulingClass", "View", "scheduling_class_of", "scheduling_class_of_spec",
        "staying_class_of", "suits",
    ),
}
# fmt: on
_MODULES: Final = ("allocations", "cluster", "events", "fitting", "job_spec", "pairs", "perf", "settings")
if not TYPE_CHECKING:
    __all__ = [*_MODULES, *(name for names in _HOMES.values() for name in names)]
    __getattr__ = lazy_face(globals(), _HOMES)
