"""A submission and its answer.

Rule: this module imports no view, so that `submit` loads nothing that is only asked about jobs.
"""

from __future__ import annotations

import msgspec
from msgspec import field

from cotenant.controller.domain import JobId, JobSpec
from cotenant.controller.wire.clients.base import Question, Reply
from cotenant.controller.wire.times import Utc


class PromiseAsked(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for a promised end."""

    within_s: float | None = None
    """In so many seconds; None: the earliest that can be promised."""
    is_optional: bool = False
    """Where none can be promised the jobs are submitted without."""


class Submit(Question["Submitted"], frozen=True, kw_only=True, tag="submit"):
    """`specs` carry placeholder ids (`new-0`, ...); dependencies inside the batch name those.

    With `array` the specs become tasks `N_0 .. N_k` of one number. `idempotency_key` makes a repeat
    of the same submission return the first one's ids.
    """

    specs: tuple[JobSpec, ...]
    array_indices: tuple[int, ...] = ()
    secrets: dict[str, str] = field(default_factory=dict)
    idempotency_key: str = ""
    dry_run: bool = False
    default_class: bool = False
    """No class was named: jobs get that of their organisation. Older clients always name one."""
    promise: PromiseAsked | None = None


class Submitted(Reply, frozen=True, kw_only=True, tag="submitted"):
    job_ids: tuple[JobId, ...]
    notes: tuple[str, ...] = ()
    """What the user should know at once, e.g. why it cannot start yet."""
    promised_at: Utc | None = None
    """By then all of them are promised to have ended."""


class AskSnapshot(Question["SnapshotHeld"], frozen=True, kw_only=True, tag="ask-snapshot"):
    """Asks how much of the asker's snapshot the controller has. One that has come completely is checked
    before it counts: the client asks again until it does."""

    sha256: str
    size_bytes: int


class PutSnapshot(Question["SnapshotHeld"], frozen=True, kw_only=True, tag="put-snapshot"):
    """The next part of a packed tree. A part that does not begin where the controller's copy ends changes
    nothing, so repeats are harmless."""

    sha256: str
    size_bytes: int
    offset: int
    data: bytes


class SnapshotHeld(Reply, frozen=True, kw_only=True, tag="snapshot-held"):
    offset: int
    """So many bytes have come."""
    is_complete: bool = False
    """All have, and are what their SHA-256 says."""


SnapshotRequest = AskSnapshot | PutSnapshot
