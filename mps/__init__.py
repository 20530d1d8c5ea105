"""NVIDIA's Multi-Process Service: whether it works here, its daemons and their owner, what a client needs.

Rule: only `channel.py` asks a control daemon, and only its owner (`ownership.py`, `daemon.py`) starts,
configures or ends one. Pure code decides what an answer means (`answers.py`), what is wrong and what to do
(`health.py`), which servers were lost (`servers.py`), which daemons there are (`choose` in `detection.py`),
where they live and what a client gets (`environment.py`).
"""

__all__ = [
    "answers",
    "channel",
    "daemon",
    "detection",
    "device_memory",
    "environment",
    "health",
    "ownership",
    "process",
    "server_trial",
    "servers",
    "terminate",
]
