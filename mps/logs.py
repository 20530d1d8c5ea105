"""A daemon's logs, kept small.

Rule: the daemon appends to its logs for as long as it lives and never shortens them (each question is six
lines of control.log), so its owner does. They are open for appending: cutting them in place is safe.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

NAMES = ("control.log", "server.log")
BYTES_MAX = 8 * 1024 * 1024
KEPT_BYTES = 512 * 1024
TAIL_BYTES = 4096


def bound(directory: PurePosixPath, bytes_max: int = BYTES_MAX) -> None:
    """Cut a log that has grown too long; its last part goes to NAME.old.

    Raises:
        OSError: the disk refuses.
    """
    for name in NAMES:
        path = Path(directory) / name
        if not path.is_file() or path.stat().st_size <= bytes_max:
            continue
        (path.parent / f"{name}.old").write_bytes(_end_of(path, KEPT_BYTES))
        os.truncate(path, 0)


def last_lines(directory: PurePosixPath, count: int = 3) -> str:
    """The end of control.log, in one line: why a daemon did not start."""
    try:
        text = _end_of(Path(directory) / NAMES[0], TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return " / ".join(line.strip() for line in text.splitlines()[-count:])


def _end_of(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read(size)
