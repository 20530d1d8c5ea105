"""What the agent decides, and what it remembers in order to: events and messages in, words out. Pure.

Reading order: `edge.py` (what is told and asked), `memory.py` (what must not be forgotten), `state.py`
(the one entry), `roster.py` with `present.py`, `live.py` and `leaving.py` (its attempts), `standing.py`,
`following.py` and `lease.py` (its controller), `orders.py` (what a supervisor is told to do).
"""
