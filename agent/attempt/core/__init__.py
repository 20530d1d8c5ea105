"""What the supervisor of an attempt decides: when its job is stopped, hangs, saves, and how it ended. Pure.

Reading order: `edge.py` (what it is told and asks for), `supervision.py` (its one entry), then a
judgement per file; `ends.py` with its table `end_rows.py` says what an end means.
"""
