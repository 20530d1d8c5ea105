"""The agent's decisions, pure: what it starts, ends, reports and remembers, from events and time alone."""

# fmt: off
from cotenant.agent.daemon.core.disk_shares import DiskUse, share_of
from cotenant.agent.daemon.core.edge import (
    Adopt, AgentConfig, AgentTicked, AnswerLog, AnyAgentEvent, AnyAgentEffect, AwaitMemory, Booted,
    ClientsCounted, Connected, ControllerMessageCame, DevicesChanged, Disconnected, EndCame, EndLeftovers,
    EnergyRead, FoundAttempt, GangMessageCame, GpuFault, Halt, IndicatorsRead, Keep, LinkChanged, MemoryFree,
    MemoryHeld,
    Reconnect, RemoveAttempt, RemoveCheckpoints, Say, Send, ShareExceeded, StartFailed, StartSupervisor,
    StatusCame, SupervisorGone, Tell, TroubleNoticed, Trust, UnusedGpus,
)
from cotenant.agent.daemon.core.memory import (AgentMemory)
from cotenant.agent.daemon.core.notes import (AnyNote)
from cotenant.agent.daemon.core.remembered import (Attempt, AttemptKey)
from cotenant.agent.daemon.core.reporting import from_result, from_status
from cotenant.agent.daemon.core.state import AgentState
from cotenant.agent.daemon.core.tenants import Live

__all__ = [
    "Adopt", "AgentConfig", "AgentMemory", "AgentState", "AgentTicked", "AnswerLog", "AnyAgentEvent",
    "AnyAgentEffect", "AnyNote", "Attempt", "AwaitMemory", "Booted", "ClientsCounted", "Connected",
    "ControllerMessageCame", "DevicesChanged", "Disconnected", "EndCame", "EndLeftovers", "EnergyRead",
    "DiskUse", "FoundAttempt", "ShareExceeded",
    "GangMessageCame", "GpuFault", "Halt", "IndicatorsRead", "Keep", "AttemptKey", "LinkChanged", "Live",
    "MemoryFree", "MemoryHeld", "Reconnect", "RemoveAttempt", "RemoveCheckpoints", "Say", "Send",
    "StartFailed", "StartSupervisor", "StatusCame", "SupervisorGone", "Tell", "TroubleNoticed", "Trust",
    "UnusedGpus",
    "from_result", "from_status", "share_of",
]
# fmt: on
