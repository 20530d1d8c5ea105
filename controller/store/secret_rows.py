"""Secrets in a table beside a journal in PostgreSQL, so that whoever leads next can start their jobs."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from cotenant.controller.store.journal import Journal


class SecretRows:
    """A row for each submission. What is there is held in memory: a job is not to fail because the database
    cannot be reached when it starts."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._held = journal.secrets()

    def stems(self) -> list[str]:
        """The names of the rows."""
        return list(self._held)

    def name_of(self, stem: str) -> str:
        """The row, for messages."""
        return f"{self._journal.place}, secrets {stem}"

    def put(self, stem: str, data: bytes, olds: Sequence[str]) -> None:
        """Adds a row to the open group: it is durable with its submission."""
        for old in olds:
            self.remove(old)
        self._held[stem] = data
        self._journal.keep_secrets(stem, data)

    def get(self, stem: str) -> bytes:
        """What was put. Raises OSError: nothing was."""
        if stem not in self._held:
            raise FileNotFoundError(errno.ENOENT, "it is not there")
        return self._held[stem]

    def remove(self, stem: str) -> None:
        """Takes the row away with the open group."""
        self._held.pop(stem, None)
        self._journal.keep_secrets(stem, None)

    def close(self, within_s: float) -> None:
        """Nothing is under way."""
