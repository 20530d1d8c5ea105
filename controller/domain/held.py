"""An upper estimate of the controller's memory that a job's own texts take; and the bounds.

Rule: counted in characters, not measured, so that every replay of a journal counts the same.
"""

from __future__ import annotations

from typing import Final

from cotenant.controller.domain.job import JobSpec

JOB_BYTES: Final = 2_048
"""Of a job that says nothing at all."""
ENTRY_BYTES: Final = 128
"""Of a text, and of whatever else stands in a list, beside its characters."""
USER_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of all jobs of one user that have not ended."""
ENDED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of all jobs that have ended: of larger ones fewer stay listed."""


def held_bytes(spec: JobSpec) -> int:
    launch = spec.launch
    texts = (*launch.argv, *launch.env, *launch.env.values(), *launch.secrets, *spec.features)
    texts += (spec.name, spec.user, spec.organisation, spec.gpu_type, launch.workdir, launch.output)
    points = spec.profile.points if spec.profile is not None else ()
    entries = len((*texts, *spec.after, *points * 4))
    together = "".join(texts)
    characters = len(together) if together.isascii() else sum(map(_characters, texts))
    return JOB_BYTES + ENTRY_BYTES * entries + characters


def _characters(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)  # One wide character makes all of them wide.
