"""Which of several controllers answered last, for the next connection of this process and of the next.

Rule: this saves time and decides nothing. A file that cannot be read or written is as good as none, and its
endpoint counts only if it is one of those that are set.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from cotenant.controller.system.files import write_whole

_NOTED: dict[tuple[str, ...], str] = {}


def recall_answer(endpoints: tuple[str, ...]) -> str:
    """The one that answered last; empty: not known."""
    if endpoints not in _NOTED:
        with suppress(OSError):
            kept = _file(endpoints).read_bytes()
            _NOTED[endpoints] = next((each for each in endpoints if each.encode() == kept), "")
    return _NOTED.get(endpoints, "")


def note_answer(endpoints: tuple[str, ...], endpoint: str) -> None:
    if recall_answer(endpoints) != endpoint:
        _NOTED[endpoints] = endpoint
        with suppress(OSError):
            write_whole(_file(endpoints), endpoint.encode(), durable=False)


def _file(endpoints: tuple[str, ...]) -> Path:
    """In the folder of the user's sockets. Raises OSError."""
    import hashlib  # Most clusters have one controller, and their command lines no need of it.

    from cotenant.controller.system.paths import runtime_dir

    return runtime_dir() / f"answered-{hashlib.sha256(','.join(endpoints).encode()).hexdigest()[:16]}"
