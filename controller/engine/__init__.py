"""The engine: it takes an event and the time, changes the cluster's state, and returns commands.

Rule: pure. Nothing here reads a clock, a socket or a file; `engine.py` is the one way in.

    state/     what is known: the ledger, how phases change, what is learned, the commands of one event
    stages/    who may wait before the policy is asked, what may change its decision, what follows
    events/    what each event changes: requests of users, reports of agents, hosts that come and go
    engine.py  the cycle of six steps; `committing.py` carries out what was decided, `explaining.py` says why
"""

# fmt: off
from cotenant.controller.engine.cheapest_change import cheapest_change
from cotenant.controller.engine.engine import SNAPSHOT_VERSION, Engine, Snapshot
from cotenant.controller.engine.events.claims import VERDICTS, AttemptIs, JobIs, StateIs, agree
from cotenant.controller.engine.explaining import Explaining
from cotenant.controller.engine.foresight import load_foresight, models_offered
from cotenant.controller.engine.stages.booking_room import NoDevices
from cotenant.controller.engine.stages.lateness import WIDE_RATIO, WIDE_S
from cotenant.controller.engine.state.bookings import OpenBooking
from cotenant.controller.engine.state.current_policy import MakePolicy
from cotenant.controller.engine.state.dispatch import Alarm, EngineConfig, memory_cap_mib
from cotenant.controller.engine.state.estimating import LAG_REPORTS, LAG_S
from cotenant.controller.engine.state.ledger import Ledger, SavedLedger

__all__ = [
    "LAG_REPORTS", "LAG_S", "SNAPSHOT_VERSION", "VERDICTS", "WIDE_RATIO", "WIDE_S", "Alarm",
    "AttemptIs", "Engine", "EngineConfig", "Explaining", "JobIs", "Ledger", "MakePolicy", "NoDevices",
    "OpenBooking", "SavedLedger", "Snapshot", "StateIs", "agree", "cheapest_change", "load_foresight",
    "memory_cap_mib", "models_offered",
]
