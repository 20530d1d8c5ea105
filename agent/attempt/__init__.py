"""One attempt on this host: its supervisor, a process that outlives the agent, and the ranks that it starts.

Reading order: `supervision.py` (what a supervisor does, pure; a judgement per file beside it),
`supervisor.py` (its loop), `environment.py` and `ranks.py` (what is started, and how), `ends.py` (what an end
means).
"""
