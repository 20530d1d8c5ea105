"""The child that makes roll-outs: answers questions from stdin on stdout until stdin ends (with its
controller)."""

from __future__ import annotations

import os

import msgspec

from cotenant.controller.engine import MakePolicy
from cotenant.controller.history import EtaAnswer, EtaQuestion
from cotenant.controller.policies.registry import make_for_roll_outs
from cotenant.controller.sim.eta.intervals import answer, answer_arrival, answer_supposed
from cotenant.controller.system.child import serve
from cotenant.controller.wire import unpack_struct

NICENESS = 10
"""Niceness: jobs and the controller come first."""


def main() -> None:
    os.nice(NICENESS)
    serve(answer_frame)


def answer_of(question: EtaQuestion, make_policy: MakePolicy) -> EtaAnswer:
    """Answers a question of either kind."""
    if question.supposed is not None:
        return answer_supposed(question, make_policy)
    return (answer_arrival if question.arriving else answer)(question, make_policy)


def answer_frame(frame: bytes) -> bytes:
    try:
        question = unpack_struct(frame, EtaQuestion)
        found = answer_of(question, make_for_roll_outs)
    except Exception as error:  # noqa: BLE001 - a policy may fail in any way, in a roll-out too
        found = EtaAnswer(error=f"{type(error).__name__}: {error}")
    return msgspec.msgpack.encode(found)


if __name__ == "__main__":
    main()
