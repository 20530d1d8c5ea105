"""Values of secret variables: in 0600 files until their jobs have ended, and nowhere else.

Rule: a secret never enters the journal, a log or an answer. It is on disk before its submission is
acknowledged, and travels only inside the `Obey` that starts the job (CURVE, or this machine's socket).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.domain.ids import JobId
from cotenant.controller.wire.codec import BadMessage, decode_json

SECRET_NAME: Final = re.compile(r"TOKEN|SECRET|KEY|PASSWORD", re.IGNORECASE)
"""A variable with such a name is a secret, whoever forgot to say so."""
SECRETS_BYTES_MAX: Final = 256 * 1024
_FILE_BYTES_MAX: Final = 8 * SECRETS_BYTES_MAX
"""As JSON, with everything escaped."""
_AGAIN: Final = "submit the job again"


class BadSecrets(Exception):
    """Why a job cannot have its secrets: names the file, and what to do."""


class Secrets:
    """One file per submission number: the tasks of an array share theirs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(folder, 0o700)
        self._folder = folder
        for leftover in folder.glob("*.new"):
            leftover.unlink()
        self._users: dict[str, set[JobId]] = {path.stem: set() for path in folder.glob("*.json")}

    def keep(self, job_ids: Iterable[JobId], values: Mapping[str, str]) -> None:
        """Store the values for these jobs, durably."""
        for number in {number_of(job_id) for job_id in job_ids}:
            path = self._folder / f"{number}.json"
            fresh = path.with_suffix(".new")
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(dict(values)))
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, path)
            self._users.setdefault(number, set())
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)
        self.used_by(job_ids)

    def used_by(self, job_ids: Iterable[JobId]) -> None:
        """These jobs have not ended: their secrets stay."""
        for job_id in job_ids:
            users = self._users.get(number_of(job_id))
            if users is not None:
                users.add(job_id)

    def read(self, job_id: JobId, names: Iterable[str]) -> dict[str, str]:
        """The values of these names.

        Raises:
            BadSecrets: the file is lost or damaged, or lacks one: no job runs with an empty token.
        """
        path = self._folder / f"{number_of(job_id)}.json"
        try:
            values: dict[str, str] = decode_json(path.read_bytes(), dict[str, str], bytes_max=_FILE_BYTES_MAX)
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
        for number, users in list(self._users.items()):
            users -= {job_id for job_id in users if is_over(job_id)}
            if not users:
                self._remove(number)

    def _remove(self, number: str) -> None:
        del self._users[number]
        (self._folder / f"{number}.json").unlink(missing_ok=True)


def number_of(job_id: JobId) -> str:
    """`7` for job 7 and for task 7_3."""
    return job_id.partition("_")[0]
