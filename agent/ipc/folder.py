"""The names in an attempt's folder; `records.py` says what they hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ORDER: Final = "order.json"
SUPERVISOR: Final = "supervisor.json"
STATUS: Final = "status.json"
RESULT: Final = "result.json"
UNCLEAN: Final = "unclean"
"""An MPS client of it was ended without its daemon's help, by whoever cleaned up after its supervisor."""
CONTROL: Final = "control.sock"
JOB: Final = "job"
JOB_SOCKET: Final = "cotenant.sock"
LOGS: Final = "logs"


def attempt_folder(attempts: Path, job_id: str, attempt: int) -> Path:
    return attempts / f"{job_id}-a{attempt}"


def job_socket(folder: Path) -> Path:
    """What the ranks find in COTENANT_SOCKET.

    `job/` is a link to a shorter place where the folder's own path is too long for a socket address.
    """
    return (folder / JOB).resolve() / JOB_SOCKET


FOLDER_NAME: Final = re.compile(r"(?P<job>[0-9A-Za-z_]+)-a(?P<attempt>\d+)")
