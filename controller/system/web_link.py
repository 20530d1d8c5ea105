"""Where the page's server gives its owner links."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def link_socket(folder: Path, port: int | None, socket: str | None) -> Path:
    """Where the page's server at this port or socket gives its owner links."""
    name = hashlib.sha256(os.fsencode(os.path.abspath(socket))).hexdigest()[:12] if socket else port
    return folder / f"web-{name}.sock"
