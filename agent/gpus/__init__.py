"""GPUs as an agent sees them: their states and errors, the processes that hold their memory, and MPS."""

# fmt: off
from cotenant.agent.gpus import causes, mps_watch
from cotenant.agent.gpus.causes import UNASKED
from cotenant.agent.gpus.gpu_watch import GpuWatch, offer_devices
from cotenant.agent.gpus.health import Health
from cotenant.agent.gpus.held_memory import who_holds
from cotenant.agent.gpus.mps_edge import Mps, MpsEdge, prepare
from cotenant.agent.gpus.probe_results import OwnerKind, ProbeResult, Process, ProcessOwner
from cotenant.agent.gpus.watchers import Timing
from cotenant.agent.gpus.xid import bus_address

__all__ = [
    "UNASKED", "GpuWatch", "Health", "Mps", "MpsEdge", "OwnerKind", "ProbeResult", "Process", "ProcessOwner",
    "Timing", "bus_address", "causes", "mps_watch", "offer_devices", "prepare", "who_holds",
]
# fmt: on
