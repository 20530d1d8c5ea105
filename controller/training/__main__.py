"""The computing child: answers questions from stdin on stdout until stdin ends (with its controller)."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

from cotenant.controller.training.kinds import compute
from cotenant.controller.wire import LENGTH, ComputeQuestion, ComputeResult, pack, unpack


def main() -> None:
    # What a library prints must not come between the frames.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while frame := read_frame(sys.stdin.buffer):
        data = pack(answer(unpack(frame, ComputeQuestion)))
        answers.write(len(data).to_bytes(LENGTH, "big") + data)
        answers.flush()


def read_frame(source: BinaryIO) -> bytes:
    """Empty at the end."""
    size = int.from_bytes(source.read(LENGTH), "big")
    return source.read(size)


def answer(question: ComputeQuestion) -> ComputeResult:
    try:
        model_sha256, values = compute(question.kind, question.payload)
    except Exception as error:  # noqa: BLE001 - whatever a computation raises is its answer
        return ComputeResult(error=f"{type(error).__name__}: {error}")
    return ComputeResult(model_sha256=model_sha256, values=values)


if __name__ == "__main__":
    main()
