"""Checkpoints as files: written so that they are really there, verified, read.

Reading order: `layout.py` (names and the manifest), `durable.py`, `save.py` (one rank's part), `saver.py`
(one after the other, in the background).
"""
