"""Journals without a reserve: it would be megabytes for each, and a full disk would not be full."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from cotenant.controller.store import Journal

NO_RESERVE: Final = 1 << 60
"""On no disk is so much free."""


def a_journal(folder: Path, **more: Any) -> Journal:
    return Journal(folder, **{"disk_bytes_min": NO_RESERVE, **more})
