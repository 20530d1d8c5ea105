"""The words of cotenant as types: ids, jobs, devices, events, actions, commands.

Rule: pure values only. Nothing here reads a clock, a socket, a file or a random number. Events and what is
done to texts are asked for by module (`events as ev`, `texts`).
"""

from typing import TYPE_CHECKING, Final

from cotenant.controller.faces import lazy_face

if TYPE_CHECKING:
    from cotenant.controller.domain.actions import *  # noqa: F403
    from cotenant.controller.domain.allocations import *  # noqa: F403
    from cotenant.controller.domain.bookings import *  # noqa: F403
    from cotenant.controller.domain.budget_use import *  # noqa: F403
    from cotenant.controller.domain.cluster import *  # noqa: F403
    from cotenant.controller.domain.command_words import *  # noqa: F403
    from cotenant.controller.domain.commands import *  # noqa: F403
    from cotenant.controller.domain.container import *  # noqa: F403
    from cotenant.controller.domain.ids import *  # noqa: F403
    from cotenant.controller.domain.capabilities import *  # noqa: F403
    from cotenant.controller.domain.eta import *  # noqa: F403
    from cotenant.controller.domain.idling import *  # noqa: F403
    from cotenant.controller.domain.job import *  # noqa: F403
    from cotenant.controller.domain.job_parts import *  # noqa: F403
    from cotenant.controller.domain.placement import *  # noqa: F403
    from cotenant.controller.domain.job_spec import *  # noqa: F403
    from cotenant.controller.domain.job_words import *  # noqa: F403
    from cotenant.controller.domain.lengths import *  # noqa: F403
    from cotenant.controller.domain.lifecycle import *  # noqa: F403
    from cotenant.controller.domain.notices import *  # noqa: F403
    from cotenant.controller.domain.outcomes import *  # noqa: F403
    from cotenant.controller.domain.owned import *  # noqa: F403
    from cotenant.controller.domain.printed import *  # noqa: F403
    from cotenant.controller.domain.readings import *  # noqa: F403
    from cotenant.controller.domain.reasons import *  # noqa: F403
    from cotenant.controller.domain.resumes import *  # noqa: F403
    from cotenant.controller.domain.settings import *  # noqa: F403

# fmt: off
_HOMES: Final = {
    "actions": (
        "NOTHING", "AnyAction", "ClassReport", "Compute", "Decision", "Defer", "Hold", "Place",
        "PoolReport", "Preempt", "Resize", "Share", "Wake",
    ),
    "allocations": (
        "Allocation", "AllocationQueue", "AllocationState", "AllocationTerms", "Allocations",
        "HostShape", "SeenShape",
    ),
    "bookings": ("Booking",),
    "budget_use": ("BudgetUse",),
    "cluster": (
        "DIVIDED", "FOREIGN", "HELD_MIB_MIN", "Device", "DeviceKind", "DeviceState", "Host",
        "HostReport", "HostRoom", "HostState", "SharingMode", "asks_hosts", "room_left", "sharing_in_words",
    ),
    "command_words": (
        "SHELLS", "PythonProgram", "is_python", "launcher_of", "own_command", "program_name",
        "python_program",
    ),
    "commands": (
        "INTERRUPT_S", "AgentCommand", "AnyCommand", "ComputeRequest", "ForgetJob", "GangMember",
        "LimitAttempt", "SaveAttempt", "StartAttempt", "StopAttempt", "TrustDevices",
    ),
    "container": ("CONTAINERS", "FILE_SUFFIXES", "RUNTIMES", "Container", "Mount", "is_below", "plain_path"),
    "ids": (
        "PAST_KEPT", "AttemptNo", "CommandId", "DeviceId", "Epoch", "Followed", "HostId", "JobId", "Past",
        "EpochStanding", "array_of", "natural_key", "standing",
    ),
    "capabilities": ("Capabilities", "shared_by_all"),
    "eta": ("LEVELS", "EtaInterval", "EtaKind", "ToldEta", "ToldInterval"),
    "idling": (
        "GRACE_S", "IDLE_FORMS", "IdleSpell", "IdleStage", "IdleStep", "idle_reason", "idle_steps",
        "check_idle_rule", "is_idle_rule",
        "next_stage",
    ),
    "job": ("Job",),
    "lengths": (
        "GUESS", "Length", "OVERRUN", "basis_in_words", "basis_of",
    ),
    "job_parts": (
        "LOAD_S", "PAUSE_S", "CurrentAttempt", "JobEstimate",
        "JobMeasurements", "JobProgress", "PREEMPTED", "PromiseState", "SeenLength", "SharedPace",
        "StopCause", "left_of_unknown_s",
    ),
    "placement": ("CheckpointRecord", "Placement"),
    "job_spec": (
        "GRIDS_MAX", "MIG_TYPE", "PRIORITY_MAX", "RESUME_VARIABLE", "SET_ON_DEVICES", "SHARE_FORMS",
        "USER_BYTES_MAX", "Dependency", "InputFile",
        "JobSpec", "Launch", "LaunchKind", "LaunchMode", "SlurmScript", "held_bytes", "is_share",
        "is_type_for",
    ),
    "job_words": ("JOB_WORD_FORMS", "JobWord", "read_job_words", "split_words"),
    "lifecycle": (
        "CHANGEABLE", "CHECKPOINTING", "ENDED", "FINISH", "FIRST_STEP", "LAUNCH", "LEAVE", "LEAVING",
        "LIFECYCLE", "LOADING", "ON_DEVICES", "QUEUED", "RESERVED", "RUNNING", "STOPPING", "WAITING",
        "Change", "ChangeVerb", "Phase", "advance",
    ),
    "notices": (
        "NOTICE_KINDS", "NOTIFY_FORMS", "WEBHOOK_VARIABLE", "NoticeKind", "is_mail_address", "notify_problem",
        "read_notify",
    ),
    "outcomes": (
        "CUDA_NOT_STARTED", "GpuFaultRole", "Outcome", "ExitVerdict", "FailedEnd", "RefusedChange",
        "SPLIT_REFUSED",
    ),
    "owned": ("UNTOLD", "WHOSE", "OfCommand", "ForOwner", "OwnersText", "SecretValues", "Whose"),
    "printed": (
        "LINK_CHARACTERS_MAX", "LINK_FORMS", "METRICS_MAX", "METRIC_CHARACTERS_MAX", "JobMetric", "JobWords",
        "Parts", "is_link",
    ),
    "readings": ("TEXT_MAX", "DeviceReading", "ForkServers"),
    "reasons": ("Reason", "because", "mentions", "render", "render_whole", "render_with_jobs"),
    "resumes": ("ResumeCounts", "ResumeProof"),
    "settings": (
        "LATE_SHARE", "NO_BOUNDS", "IdleSettings", "JobLimit", "LimitSettings", "OrganisationSettings",
        "PolicySettings", "ReservationSettings", "SharingSettings",
    ),
}
# fmt: on
_MODULES: Final = (
    "allocations",
    "bookings",
    "cluster",
    "container",
    "csv_cells",
    "events",
    "job_spec",
    "reasons",
    "settings",
    "texts",
)
if not TYPE_CHECKING:
    __all__ = [*_MODULES, *(name for names in _HOMES.values() for name in names)]
    __getattr__ = lazy_face(globals(), _HOMES)
