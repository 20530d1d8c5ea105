"""One attempt on this host: its supervisor, a process that outlives the agent, and the ranks that it starts.

Reading order: `core/` (what a supervisor decides, pure), `supervisor.py` (its loop, with a file per thing
that it waits for), `processes/` (what is started, and how it ends).
"""
