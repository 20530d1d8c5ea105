"""The computing child: answers questions from stdin on stdout until stdin ends (with its controller)."""

from __future__ import annotations

import os
from typing import Final

from cotenant.controller.system.child import serve
from cotenant.controller.training.kinds import compute
from cotenant.controller.wire import ComputeQuestion, ComputeResult, pack, unpack

NICENESS: Final = 10
"""Niceness: a training takes the CPU time that the machine's jobs leave."""


def main() -> None:
    os.nice(NICENESS)
    serve(lambda frame: pack(answer(unpack(frame, ComputeQuestion))))


def answer(question: ComputeQuestion) -> ComputeResult:
    try:
        return compute(question.kind, question.payload)
    except Exception as error:  # noqa: BLE001 - whatever a computation raises is its answer
        return ComputeResult(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
