"""What becomes of a job that holds its devices idle: the steps that its user or the configuration wants.

Rule: no step is forgotten or taken twice over a restart: what is due follows from how long the job has been
idle, and from the stage that is in its record.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, Literal, NamedTuple, cast, get_args

import msgspec

from cotenant.controller.domain.reasons import Reason, because

IdleVerb = Literal["warn", "share", "stop"]
IdleStage = Literal["", "warn", "share", "word", "stop"]
"""How far it has come with an idle job. word: it was told that it is stopped soon, and any activity still
calls that off."""
IDLE_FORMS: Final = "none, or steps such as warn:30m, share:1h or stop:2h between commas, each at most once"
IDLE_CHARS: Final = 64
GRACE_S: Final = 60.0
"""From the word to an idle job until it is stopped."""
SEEN_S: Final = 15.0
"""So late may it be seen that a job has worked: it is stopped only after another such time."""
USUAL_S: Final = 1800.0
"""After so long a step is taken that names no time."""
_STEP: Final = re.compile(r"(warn|share|stop)(?::(\d{1,6}(?:\.\d+)?)([smhd]?))?")
_UNITS_S: Final = {"s": 1.0, "": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class IdleStep(NamedTuple):
    """One thing that is done about an idle job."""

    after_s: float
    verb: IdleVerb


class IdleSpell(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which a job holds its devices idle."""

    since_s: float
    stage: IdleStage = "warn"
    told_s: float = 0.0
    """When the job came to that stage."""
    lends: bool = False
    """Others may be put on its devices, and leave when it works again."""


def idle_reason(stage: IdleStage | Literal["over"], idle_s: float) -> Reason:
    """What is done about a job that has been idle for so long; over: it works again."""
    idle = round(idle_s)
    match stage:
        case "word":
            return because("idle-word", idle, round(GRACE_S))
        case "share":
            return because("idle-share", idle)
        case "stop":
            return because("idle-stop", idle)
        case "over":
            return because("idle-over", idle)
    return because("idle-warn", idle)


@cache
def idle_steps(text: str) -> tuple[IdleStep, ...]:
    """The steps in the order of their times; none for an empty text, or `none`.

    Raises:
        ValueError: the text does not read like `IDLE_FORMS`.
    """
    if text in ("", "none"):
        return ()
    found = [_STEP.fullmatch(word.strip()) for word in text.split(",")] if len(text) <= IDLE_CHARS else [None]
    steps: list[IdleStep] = []
    for match in found:
        after_s = USUAL_S if match is None or match[2] is None else float(match[2]) * _UNITS_S[match[3]]
        if match is None or after_s <= 0.0 or any(step.verb == match[1] for step in steps):
            raise ValueError(f"must be {IDLE_FORMS}, got {text[:IDLE_CHARS]!r}")
        steps.append(IdleStep(after_s, cast(IdleVerb, match[1])))
    order = get_args(IdleVerb)
    return tuple(sorted(steps, key=lambda step: (step.after_s, order.index(step.verb))))


def check_idle_rule(text: str) -> None:
    """Checks a rule that a person gives. Raises ValueError: it reads like none, or a step of it is due before
    it can be seen that a job works."""
    for step in idle_steps(text):
        if step.after_s < SEEN_S:
            raise ValueError(
                f"has a step after {step.after_s:g} s; that a job works may be seen {SEEN_S:g} s late: "
                f"{step.verb}:{SEEN_S:g}s or more"
            )


def is_idle_rule(text: str) -> bool:
    """Whether a text may be the `idle` of a job."""
    try:
        idle_steps(text)
    except ValueError:
        return False
    return True


def next_stage(steps: tuple[IdleStep, ...], spell: IdleSpell | None, idle_s: float) -> IdleStage:
    """What is due of a job that has been idle for so long; empty: nothing. `spell`: what was told of it."""
    told = spell.stage if spell is not None else ""
    if told == "word" and spell is not None:
        quiet_s = spell.told_s - spell.since_s + GRACE_S + SEEN_S  # All of that is known to have been quiet.
        return "stop" if idle_s >= quiet_s else ""
    stages: list[IdleStage] = ["word" if step.verb == "stop" else step.verb for step in steps]
    at = stages.index(told) + 1 if told in stages else 0
    return stages[at] if at < len(stages) and idle_s >= steps[at].after_s else ""
