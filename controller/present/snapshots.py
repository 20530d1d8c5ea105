"""Snapshots (`--snapshot`) in words: what one is, and how far its packing or sending is."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Final

from cotenant.controller.domain import job_spec, texts
from cotenant.controller.present import units
from cotenant.controller.present.screen import is_terminal, tell
from cotenant.controller.present.terminal import WaitingLine

QUIET_S: Final = 2.0
"""What takes no longer is not spoken of; on a terminal, also the time between two words."""
LINE_EVERY_S: Final = 10.0
NAMES_SHOWN: Final = 5
_MIB: Final = 1024 * 1024


class TransferProgress:
    """How far something with so many bytes is: a line that is written over, into a file a line each time."""

    def __init__(self, doing: str, total_bytes: int) -> None:
        self._doing, self._total = doing, max(1, total_bytes)
        self._line = WaitingLine()
        self._next_s = time.monotonic() + QUIET_S

    def note(self, done_bytes: int) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        text = f"{self._doing} the snapshot: {done_bytes // _MIB} of {self._total // _MIB} MiB"
        shows = is_terminal(sys.stderr)
        self._next_s = now_s + (QUIET_S / 4 if shows else LINE_EVERY_S)
        (self._line.rewrite if shows else tell)(text)

    def end(self) -> None:
        self._line.clear()


def untracked_in_words(names: Sequence[str]) -> str:
    """`2 untracked files left out: helper.py, notes.txt`."""
    shown = ", ".join(texts.one_line(name) for name in names[:NAMES_SHOWN])
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return f"{units.plural(len(names), 'untracked file')} left out: {shown}{more}"


def describe_snapshot(tree: job_spec.CodeSnapshot) -> str:
    """`git 1a2b3c4 of main with changes, 12 files, 3.1 MiB packed`."""
    commit = f" {tree.commit[:7]}" if tree.commit else ""
    branch = f" of {tree.branch}" if tree.branch and commit else ""
    dirty = " with changes" if tree.dirty else ""
    size = (
        f"{tree.size_bytes / _MIB:.1f} MiB" if tree.size_bytes > _MIB else f"{tree.size_bytes / 1024:.1f} KiB"
    )
    return f"{tree.kind}{commit}{branch}{dirty}, {units.plural(tree.files, 'file')}, {size} packed"
