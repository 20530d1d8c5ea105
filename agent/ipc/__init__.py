"""How daemon and supervisors communicate: files in an attempt's folder, and messages on its socket."""

# fmt: off
from cotenant.agent.ipc.channel import (
    CoTenantsChanged, Deframer, EndedNow, FromSupervisor, GangIn, GangOut, LeaseNow, LimitNow, PaceNow,
    SaveNow, StatusNow, StopNow, TellNow, ToSupervisor, connect, frame_message, read_frame, short_address,
    write_message,
)
from cotenant.agent.ipc.files import (
    BadRecord, kept_in_memory, put_aside, read_or_put_aside, read_record, take_secrets,
    strip_secrets, write_record,
)
from cotenant.agent.ipc.records import (
    CANNOT_BEGIN, CONTROL, FOLDER_NAME, JOB, JOB_SOCKET, LOGS, MODULES, ORDER, RESULT, STATUS, SUPERVISOR,
    UNCLEAN, ContainerRuntime, Durable, MpsClient, Order, ProcessIdentity, RankOrder, Result, Status,
    StepClock, WarmOffer, WatchRule, attempt_folder, job_socket,
)

__all__ = [
    "CANNOT_BEGIN", "CONTROL", "FOLDER_NAME", "JOB", "JOB_SOCKET", "LOGS", "MODULES", "ORDER", "RESULT",
    "STATUS", "SUPERVISOR", "UNCLEAN", "BadRecord", "CoTenantsChanged",
    "ContainerRuntime", "Deframer", "Durable", "EndedNow",
    "FromSupervisor", "GangIn", "GangOut", "LeaseNow", "LimitNow", "MpsClient", "Order", "ProcessIdentity",
    "PaceNow", "RankOrder", "Result", "SaveNow", "Status", "StatusNow", "StepClock", "StopNow",
    "TellNow", "ToSupervisor", "WarmOffer",
    "WatchRule", "attempt_folder", "connect", "frame_message", "job_socket",
    "kept_in_memory", "put_aside", "read_frame", "read_or_put_aside", "read_record", "short_address",
    "take_secrets", "strip_secrets", "write_message", "write_record",
]
# fmt: on
