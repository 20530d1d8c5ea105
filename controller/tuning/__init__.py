"""Slow thinking: what fits, trains or searches, run in a child process and never by the controller itself.

`kinds.py` says which requests there are and which module answers each; heavy libraries are imported by
those modules and nowhere else in `controller/`.
"""
