"""A file that appears whole or not at all: a reader, or whoever looks after Ctrl-C, never finds half of one.

Rule: what is no ordinary file (`/dev/stdout`, a pipe) is written to, never replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Raises OSError; the file is then as it was."""
    with whole(path) as beside:
        beside.write_bytes(data)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what is to become `path` at the end of the block; after an error it is gone.

    Raises:
        OSError: it cannot be written.
    """
    path = path.resolve()  # a link stays one
    if path.exists() and not path.is_file():
        yield path
        return
    beside = path.with_name(f".{path.stem[:100]}.{os.getpid()}{path.suffix}")  # the end may say the format
    try:
        yield beside
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
