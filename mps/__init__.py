"""NVIDIA's Multi-Process Service: whether it works here, its daemons and their owner, what a client needs.

Rule: only `channel.py` asks a control daemon, and only `daemon.py` starts, configures or ends one. What an
answer means (`replies.py`), what is wrong and what to do (`health.py`), which daemons there are
(`choice.py`), where they live (`paths.py`), how a device is divided among clients (`partitions.py`) and
what a client gets (`environment.py`) is decided in pure code.
"""
