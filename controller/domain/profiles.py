"""Profiles of kinds of jobs, kept so that the next one need not be measured again.

Rule: a profile is only used for a job of the same user with the same command, code and configuration, on the
same type of device and as many of them: `key_of` is all of that. Where the code is not known (it could not be
read when the job was submitted) nothing is kept. The store is bounded; the one that was used longest ago
goes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from cotenant.controller.domain.ids import JobId
from cotenant.controller.domain.job import JobSpec
from cotenant.controller.domain.kinds import VARIABLES, kind_words
from cotenant.controller.domain.perf import Profile

PROFILES_MAX = 1000
COMMAND_CHARACTERS_MAX = 4_096
KEY_CHARACTERS = 12
"""People see and type keys."""


def base_key(spec: JobSpec) -> str:
    """Command, code and configuration, whatever devices it runs on; empty where the code is not known."""
    if not spec.code_sha256:
        return ""
    launch = spec.launch
    left_out = NOT_CONFIGURATION | VARIABLES
    env = (f"{name}={value}" for name, value in sorted(launch.env.items()) if name not in left_out)
    parts = (
        spec.user,
        spec.code_sha256,
        launch.mode,
        launch.workdir,
        str(spec.batch_size),
        *kind_words(launch.argv),
        "",
        *env,
    )
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()


NOT_CONFIGURATION = frozenset((
    "COLUMNS", "DISPLAY", "HISTFILE", "HOSTNAME", "LINES", "MAIL", "OLDPWD", "PWD", "SHLVL", "SSH_AUTH_SOCK",
    "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "TERM", "TMPDIR", "WINDOWID", "XDG_RUNTIME_DIR",
    "XDG_SESSION_ID", "COTENANT_ARRAY_INDEX", "COTENANT_PROFILING", "SLURM_ARRAY_TASK_ID",
))  # fmt: skip
"""Variables of a shell, a session or a task, which say nothing about what is computed."""


def key_of(spec: JobSpec, hosts: int, device_type: str) -> str:
    """One kind of job on so many devices of one type, over so many hosts; empty where it is not known."""
    base = base_key(spec)
    if not base or not device_type:
        return ""
    parts = (base, str(spec.gpus_min), str(hosts), device_type)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:KEY_CHARACTERS]


def beginning(argv: Sequence[str]) -> tuple[str, ...]:
    """As much of a command as a person recognises it by: profiles outlive their jobs, and are many."""
    kept: list[str] = []
    left = COMMAND_CHARACTERS_MAX
    for word in argv:
        if len(word) + 1 > left:
            return (*kept, word[:left] + "...")
        kept.append(word)
        left -= len(word) + 1
    return tuple(kept)


class StoredProfile(msgspec.Struct, kw_only=True):
    """One kept profile, and what a person recognises it by."""

    base: str
    """`base_key`: the same for all numbers of devices."""
    user: str
    name: str
    command: tuple[str, ...]
    gpus: int
    hosts: int
    device_type: str
    batch_size: int | None
    profile: Profile
    learned_s: float
    """When, in seconds of the journal."""
    job_id: JobId
    """Which job it was measured on."""
    is_complete: bool = True
    used: int = 0
    """How many jobs have been given it."""


class Profiles(msgspec.Struct, kw_only=True):
    """All kept profiles by key, the one that was used longest ago first."""

    known: dict[str, StoredProfile] = {}

    def keep(self, key: str, known: StoredProfile) -> None:
        """In place of the one before, unless that one was complete and this one is not."""
        before = self.known.get(key)
        if before is not None and before.is_complete and not known.is_complete:
            return
        self.known.pop(key, None)
        self.known[key] = known
        while len(self.known) > PROFILES_MAX:
            del self.known[next(iter(self.known))]

    def revise(self, job_id: JobId, before: Profile, after: Profile) -> None:
        """More has become known of what was measured on a job."""
        for known in self.known.values():
            if known.job_id == job_id and known.profile == before:
                known.profile = after

    def complete(self, job_id: JobId) -> bool:
        """Nothing more can be learned from this job; whether anything was."""
        unfinished = [
            known
            for known in self.known.values()
            if known.job_id == job_id
            and not known.is_complete
            and (known.profile.points or known.profile.indicators)
        ]
        for known in unfinished:
            known.is_complete = True
        return bool(unfinished)

    def use(self, key: str) -> Profile | None:
        """For a new job of this kind; an incomplete one is not: the job will be measured."""
        known = self.known.get(key) if key else None
        if known is None or not known.is_complete:
            return None
        del self.known[key]
        self.known[key] = known
        known.used += 1
        return known.profile

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.known.pop(key, None)
