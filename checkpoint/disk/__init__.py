"""Checkpoints as files: written durably, verified, and read back.

Reading order: `layout.py` (names and the manifest), `durable.py`, `save.py` (one rank's part), `saver.py`
(one after the other, in the background).
"""
