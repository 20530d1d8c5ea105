"""The agent: obeys. It starts, watches and ends attempts on one host, and decides nothing.

Reading order: `state.py` (what the agent does, pure), `supervision.py` (what a supervisor does,
pure), then the edges: `runtime.py`, `supervisor.py`.
"""
