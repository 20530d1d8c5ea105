"""The engine: events in, commands out; the cluster's state and everything that keeps it in order.

Rule: pure. Nothing here reads a clock, a socket or a file; `engine.py` is the one way in.
"""

from cotenant.controller.engine.config import EngineConfig
from cotenant.controller.engine.dispatch import Alarm
from cotenant.controller.engine.engine import SNAPSHOT_VERSION, Engine, MakePolicy, Snapshot

__all__ = ["SNAPSHOT_VERSION", "Alarm", "Engine", "EngineConfig", "MakePolicy", "Snapshot"]
