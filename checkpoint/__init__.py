"""Checkpoints inside the user's training process: save, verify and load state, and stop at an agreed step.

Rule: standard library and torch only, Python 3.9 and torch 2.5 upwards, nothing of cotenant besides.
`Session` is all that a script needs; see docs/job-protocol.md for what it says to its supervisor.

Packages: `training/` (what is saved), `disk/` (as files), `talk/` (with whom it is agreed), `zerocode/`, and
`progress/` (steps of scripts that know nothing of us); `resuming.py` puts back what was saved.

What needs torch is loaded when it is asked for: a script of which only the steps are counted pays for no
more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotenant.checkpoint.disk.layout import (
        CheckpointError,
        Damaged,
        Manifest,
        TooNew,
        read_manifest,
        verify,
    )
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
    "device_limit",
    "disk",
    "guard",
    "late_log",
    "lookups",
    "ownership",
    "parameters_sha256",
    "picture",
    "progress",
    "read_manifest",
    "resuming",
    "talk",
    "training",
    "unseen",
    "verify",
    "zerocode",
]

_HOME = {
    **dict.fromkeys(
        ("CheckpointError", "Damaged", "Manifest", "TooNew", "read_manifest", "verify"), "disk.layout"
    ),
    "Resumed": "resuming",
    "Session": "session",
    "parameters_sha256": "training.state",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"{__name__}.{_HOME[name]}")
    globals()[name] = value = getattr(module, name)
    return value
