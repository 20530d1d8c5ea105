"""Which messages a job's owner may ask for, and what may stand in `--notify`.

Rule: kinds of messages and addresses are one list of words; an address is told by its `@`. A webhook never
stands in it: its URL is a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, get_args

NoticeKind = Literal["start", "end", "fail", "preempt", "idle"]
"""start: it runs for the first time. end: it has ended, in whatever way. fail: it has failed. preempt: it had
to leave its devices and waits again. idle: it holds devices and uses none."""
NOTICE_KINDS: Final[tuple[NoticeKind, ...]] = get_args(NoticeKind)
NOTIFY_FORMS: Final = f"{', '.join(NOTICE_KINDS)}, all, none, or a mail address"
WEBHOOK_VARIABLE: Final = "COTENANT_NOTIFY_WEBHOOK"
"""The secret of a job that holds its owner's webhook; its processes do not get it."""
_ADDRESS: Final = re.compile(
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9]([A-Za-z0-9.-]{0,250}[A-Za-z0-9])?"
)


def is_mail_address(word: str) -> bool:
    """Whether a word can be an address of mail."""
    return _ADDRESS.fullmatch(word) is not None


def notify_problem(words: Iterable[str]) -> str:
    """What is wrong with the words of a job's `notify`; empty: nothing is."""
    wrong = [word for word in words if word not in NOTICE_KINDS and not is_mail_address(word)]
    return f"notify must be of {NOTIFY_FORMS}, got {wrong[0]!r}" if wrong else ""


def read_notify(words: Sequence[str]) -> tuple[str, ...]:
    """The words of `--notify` as a job holds them: kinds in their order, then addresses; `all` are all kinds,
    `none` is no kind. Raises ValueError: a word is neither."""
    if problem := notify_problem(word for word in words if word not in ("all", "none")):
        raise ValueError(problem.removeprefix("notify "))
    kinds = [kind for kind in NOTICE_KINDS if (kind in words or "all" in words) and "none" not in words]
    return (*kinds, *dict.fromkeys(word for word in words if "@" in word))
