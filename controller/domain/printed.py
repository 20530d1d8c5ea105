"""What a job tells of its training: metrics by name, a link to its page at W&B or MLflow, and into how many
parts it has split its batches. Pure.

Rule: all of it comes from the job's own output or ranks, so these are data of a stranger: few, short, finite,
and a link that may hold a secret is none.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

METRICS_MAX: Final = 16
"""Of one attempt: the names that were told last."""
METRIC_CHARACTERS_MAX: Final = 64
LINK_CHARACTERS_MAX: Final = 512
LINK_FORMS: Final = "must be http(s)://HOST/..., with no password, token or key in it"
_LINK: Final = re.compile(r"https?://[\w.:\[\]-]+(?:[/?#][!#-;=?-\[\]_a-~]*)?", re.IGNORECASE | re.ASCII)
_SECRET: Final = re.compile(r"[?&;#][^=&;]*(?:token|key|secret|passw|auth|sig|cred)[^=&;]*=", re.IGNORECASE)


class JobMetric(msgspec.Struct, frozen=True, kw_only=True):
    """The last value of a metric that a job has told."""

    name: str
    value: float
    step: int = 0
    """The job's step when that value came; 0: its steps are not seen."""


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Into how many parts its ranks have cut each batch, from one step on."""

    from_step: int
    """So many steps were complete before."""
    s: int


class JobWords(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt has told of itself so far."""

    metrics: tuple[JobMetric, ...] = ()
    """The last of each name, the loss among them."""
    link: str = ""
    """The first that was recognised."""
    parts: tuple[Parts, ...] = ()
    """In the order of steps; empty: no rank has told."""
    is_equivalent: bool = False
    """Parts have drawn other random numbers than whole batches."""
    lost: str = ""
    """What of its output could not be written, to its log or to the file of `--output`; empty: nothing."""


def is_link(text: str) -> bool:
    """Whether a text is a web address that everybody who sees the job may see."""
    return (
        len(text) <= LINK_CHARACTERS_MAX
        and _LINK.fullmatch(text) is not None
        and _SECRET.search(text) is None
    )
