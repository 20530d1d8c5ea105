"""Values of secret variables: in 0600 files until their jobs have ended, and nowhere else. Where controllers
share a journal in PostgreSQL, they are in a table beside it.

Rule: a secret never enters the journal, a log or an answer. It is on disk before its submission is
acknowledged, and travels only inside the `CommandDelivery` that starts the job (CURVE, or this machine's
socket).
"""

from __future__ import annotations

import errno
import os
import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from cotenant.controller.domain import JobId, texts
from cotenant.controller.system.files import sync_folder, write_whole
from cotenant.controller.wire import SECRETS_BYTES_MAX, BadMessage, decode_json

SECRET_NAME: Final = re.compile(r"TOKEN|SECRET|KEY|PASSWORD", re.IGNORECASE)
"""A variable with such a name is a secret, said or not."""
REMOVED_WITHIN_S: Final = 5.0
_FILE_BYTES_MAX: Final = 8 * SECRETS_BYTES_MAX
"""As JSON, with everything escaped."""
_AGAIN: Final = "submit the job again"


class BadSecrets(Exception):
    """Why a job cannot have its secrets: names the file, and what to do."""


class Secrets:
    """The secrets of submissions, a file each: its jobs, and the tasks of an array, share theirs.

    A file is called after the numbers of its jobs: `7.json`, or `7-106.json` for a submission of a hundred.
    """

    def __init__(self, place: SecretPlace | Path) -> None:
        """`place` may be a folder, for files."""
        self._place: SecretPlace = SecretFiles(place) if isinstance(place, Path) else place
        self._users: dict[str, list[JobId]] = {}
        """Of each file, the jobs that may still want it; those that are over are dropped from the end."""
        self._file_of: dict[str, str] = {}
        for stem in self._place.stems():
            self._know(stem)

    def _know(self, stem: str) -> None:
        self._users[stem] = []
        for number in numbers_of(stem):
            self._file_of[number] = stem

    def keep(self, job_ids: Iterable[JobId], values: Mapping[str, str]) -> None:
        """Store the values for these jobs of one submission, durably."""
        job_ids = list(job_ids)
        numbers = sorted(int(number_of(job_id)) for job_id in job_ids)
        stem = str(numbers[0]) if numbers[0] == numbers[-1] else f"{numbers[0]}-{numbers[-1]}"
        stale = {self._file_of.get(number) for number in numbers_of(stem)} - {None, stem}
        olds = [old for old in stale if old is not None]  # Their commits failed: numbers are given out again.
        self._place.put(stem, msgspec.json.encode(dict(values)), olds)
        for old in olds:
            self._drop(old)
        self._know(stem)
        self.used_by(job_ids)

    def used_by(self, job_ids: Iterable[JobId]) -> None:
        """Keeps the secrets of these jobs, which have not ended."""
        for job_id in job_ids:
            stem = self._file_of.get(number_of(job_id))
            if stem is not None:
                self._users[stem].append(job_id)

    def read(self, job_id: JobId, names: Iterable[str]) -> dict[str, str]:
        """The values of these names.

        Raises:
            BadSecrets: the file is lost or damaged, or lacks one: no job runs with an empty token.
        """
        number = number_of(job_id)
        stem = self._file_of.get(number)
        path = self._place.name_of(number if stem is None else stem)
        try:
            if stem is None:  # Also if its removal has begun.
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            data = self._place.get(stem)
            values: dict[str, str] = decode_json(data, dict[str, str], bytes_max=_FILE_BYTES_MAX)
        except OSError as error:
            raise BadSecrets(f"its secrets cannot be read: {path}: {error.strerror}; {_AGAIN}") from None
        except BadMessage as error:
            raise BadSecrets(f"its secrets cannot be read: {path} is damaged ({error}); {_AGAIN}") from None
        wanted = {name: values.get(name) for name in names}
        missing = [name for name, value in wanted.items() if value is None]
        if missing:
            raise BadSecrets(f"{path} lacks {', '.join(missing)}; {_AGAIN}")
        return {name: value for name, value in wanted.items() if value is not None}

    def release(self, is_over: Callable[[JobId], bool]) -> None:
        """Forget jobs that are over (durably); the last one of a submission takes the file with it."""
        for stem, users in list(self._users.items()):
            while users and is_over(users[-1]):
                users.pop()
            if not users:
                self._forget(stem)

    def _drop(self, stem: str) -> None:
        del self._users[stem]
        for number in numbers_of(stem):
            if self._file_of.get(number) == stem:
                del self._file_of[number]

    def _forget(self, stem: str) -> None:
        self._drop(stem)
        self._place.remove(stem)

    def close(self, within_s: float = REMOVED_WITHIN_S) -> None:
        """Take away what is to go; what takes longer than this is taken away after the next start."""
        self._place.close(within_s)


class SecretPlace(Protocol):
    """Where secrets are kept, in one piece for each submission."""

    def stems(self) -> list[str]:
        """What is there."""

    def name_of(self, stem: str) -> str:
        """What to call a piece in a message."""

    def put(self, stem: str, data: bytes, olds: Sequence[str]) -> None:
        """Keeps a piece in place of `olds`; durable no later than what is committed next."""

    def get(self, stem: str) -> bytes:
        """Raises OSError: it is not there, or cannot be read."""

    def remove(self, stem: str) -> None:
        """Takes a piece away, now or soon."""

    def close(self, within_s: float) -> None:
        """Nothing more is asked for."""


class SecretFiles:
    """A file for each submission. A thread removes files: on some disks that takes milliseconds each, and a
    user may cancel thousands of jobs at once."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(folder, 0o700)
        self._folder = folder
        for half_written in folder.glob(".*.tmp"):
            half_written.unlink()
        self._put: set[str] = set(self.stems())
        self._changing = threading.Lock()
        """Held while a file is put or taken away: a number is given out again if its commit failed."""
        self._unwanted: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._remover: threading.Thread | None = None

    def stems(self) -> list[str]:
        """The names of the files, without their ending."""
        return [path.stem for path in self._folder.glob("*.json")]

    def name_of(self, stem: str) -> str:
        """The file's path."""
        return str(self._path(stem))

    def _path(self, stem: str) -> Path:
        return self._folder / f"{stem}.json"

    def put(self, stem: str, data: bytes, olds: Sequence[str]) -> None:
        """Writes a file, durably, and removes others."""
        with self._changing:
            write_whole(self._path(stem), data)
            for old in olds:
                self._path(old).unlink(missing_ok=True)
            self._put = (self._put - set(olds)) | {stem}
        sync_folder(self._folder)  # Dropped secrets stay gone after a power cut as well.

    def get(self, stem: str) -> bytes:
        """Reads a file. Raises OSError."""
        return self._path(stem).read_bytes()

    def remove(self, stem: str) -> None:
        """Removes a file soon, unless it is written again before."""
        self._put.discard(stem)
        if self._remover is None:
            self._remover = threading.Thread(target=self._remove_for_ever, name="secrets", daemon=True)
            self._remover.start()
        self._unwanted.put(stem)

    def _remove_for_ever(self) -> None:
        while (stem := self._unwanted.get()) is not None:
            with self._changing:
                if stem not in self._put:
                    self._path(stem).unlink(missing_ok=True)

    def close(self, within_s: float) -> None:
        """Ends the thread, once it has removed what is to go."""
        if self._remover is not None:
            self._unwanted.put(None)
            self._remover.join(within_s)
            self._remover = None


def number_of(job_id: JobId) -> str:
    """`7` for job 7 and for task 7_3."""
    return job_id.partition("_")[0]


def numbers_of(stem: str) -> Iterator[str]:
    """The numbers of the jobs of a file; none for a file that is not one of ours."""
    first, _, last = stem.partition("-")
    if texts.is_whole_number(first) and texts.is_whole_number(last or first):
        yield from map(str, range(int(first), int(last or first) + 1))
