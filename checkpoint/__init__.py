"""Save, verify, load, and stop at an agreed step, inside the user's own training process.

Rule: standard library and torch only, Python 3.9 and torch 2.5 upwards, nothing of cotenant besides.
`Session` is all that a script needs; see docs/job-protocol.md for what it says to its supervisor.

Packages: `training/` (what is saved), `disk/` (as files), `talk/` (with whom it is agreed), `zerocode/`;
`resuming.py` puts back what was saved.
"""

from __future__ import annotations

from cotenant.checkpoint.disk.layout import CheckpointError, Damaged, Manifest, TooNew, read_manifest, verify
from cotenant.checkpoint.resuming import Resumed
from cotenant.checkpoint.session import Session
from cotenant.checkpoint.training.state import parameters_sha256

__all__ = [
    "CheckpointError",
    "Damaged",
    "Manifest",
    "Resumed",
    "Session",
    "TooNew",
    "parameters_sha256",
    "read_manifest",
    "verify",
]
