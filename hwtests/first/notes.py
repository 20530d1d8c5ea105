"""What a question noted: one line of JSON for each fact, written as soon as it is known.

Rule: a question that is cut off loses the fact that it was about to learn, and no other.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

TEXT_CHARS_MAX: Final = 6000
FACTS_MAX: Final = 200


class Notes:
    """The open file of one question."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def __call__(self, name: str, value: object) -> None:
        """Keep a fact. A later one of the same name counts."""
        self._file.write(json.dumps({"fact": name, "value": bound(value)}) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def bound(value: object) -> object:
    """Text without an end of its own is cut in its middle."""
    if isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        half = TEXT_CHARS_MAX // 2
        return f"{value[:half]}\n[{len(value) - 2 * half} characters left out]\n{value[-half:]}"
    return value


def read(path: Path) -> dict[str, Any]:
    """The facts of a file, without a last line that was cut in two."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return {each["fact"]: each["value"] for each in lines[-FACTS_MAX:]}
