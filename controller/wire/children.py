"""What the controller and its child processes say to each other over their stdin and stdout: questions to be
computed, and the shadow policy with the report about it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import field

from cotenant.controller.domain import JobId

Payload = dict[str, str | int | float | list[float]]


class ComputeQuestion(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    payload: Payload


class ComputeResult(msgspec.Struct, frozen=True, kw_only=True):
    model_sha256: str = ""
    values: tuple[float, ...] = ()
    error: str = ""
    document: bytes = b""


Parameters = dict[str, str | int | float | bool]


class ShadowQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Go on with the journal from where you are."""

    journal: str
    policy: str
    parameters: Parameters
    begin_s: float
    """Of the journal's clock: from then on it is asked."""
    entries_max: int
    simulate: bool = False
    """Then simulate the past since the beginning as well."""


class Otherwise(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that would have been another."""

    at_s: float
    """Of the journal's clock."""
    job_id: JobId = field(name="job")
    done: str
    """Under the policy in force; empty: nothing."""
    instead: str
    """What the shadow would have done; empty: nothing."""
    reason: str
    """Of the shadow, or where it would have done nothing, of the policy in force."""


class ShadowTally(msgspec.Struct, frozen=True, kw_only=True):
    """How a policy's decisions compare with those in force."""

    decisions: int = 0
    """Events on which one of the two would act."""
    alike: int = 0
    """Of them: both would do the same, or what differs has been counted before."""
    differing: dict[str, int] = {}
    """`starts`, `waits`, `elsewhere`, `preempts`, `keeps`; a job counts once until it starts or leaves."""
    sooner_jobs: int = 0
    """Jobs that have started by now and that it would have started before."""
    sooner_s: float = 0.0
    """Of these together: from when it would have."""
    last: tuple[Otherwise, ...] = ()
    """The newest first."""
    failed: str = ""
    """The error with which it failed: it is no longer asked."""
    unfollowed: int = 0
    """Entries whose commands did not come out as recorded: above 0, do not rely on the rest."""


class ShadowAnswer(msgspec.Struct, frozen=True, kw_only=True):
    reached: int = 0
    """The last entry that was followed."""
    reached_s: float = 0.0
    is_caught_up: bool = False
    tally: ShadowTally = ShadowTally()
    simulated: dict[str, Any] | None = None
    """A `whatif/1`."""
    why_not: str = ""
    """Why nothing could be simulated."""
    cpu_s: float = 0.0
    error: str = ""
