"""The agent: obeys. It starts, watches and ends attempts on one host, and decides nothing.

Rooms: `core/` decides and remembers (pure), `host/` knows this machine, `gpus/` is all that is about GPUs,
`attempt/` the supervisor of one attempt. Here: how an agent starts (`assembly.py`), its edge (`runtime.py`)
with what it talks to, and what it shares with supervisors (`records.py`, `folder.py`, `channel.py`).
"""
