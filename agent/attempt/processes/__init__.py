"""The processes of an attempt: what they find when they start, their output, what they use, and their end.

Reading order: `environment.py` and `launchers.py` (what is started, and how), `ranks.py` (starting and
ending), `logs.py` (output), `measuring.py` (use).
"""
