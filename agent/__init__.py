"""The agent: obeys. It starts, watches and ends attempts on one host, and decides nothing.

Reading order: `state.py` (what the agent does, pure) with `roster.py` (its attempts), then the edge,
`runtime.py`. Two rooms: `attempt/` is the supervisor of one attempt, `gpus/` all that is about GPUs.
"""
