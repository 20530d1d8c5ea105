"""`cotenant doctor`: what works on this machine, what does not, and what to do about it.

Reading order: `doctor.py`, `check.py` (what a check is given and says), then the checks; `enabling.py`
has the commands that it recommends.
"""
