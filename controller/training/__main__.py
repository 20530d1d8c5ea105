"""The computing child: answers questions from stdin on stdout until stdin ends (with its controller)."""

from __future__ import annotations

from cotenant.controller.system.child import serve
from cotenant.controller.training.kinds import compute
from cotenant.controller.wire import ComputeQuestion, ComputeResult, pack, unpack


def main() -> None:
    serve(lambda frame: pack(answer(unpack(frame, ComputeQuestion))))


def answer(question: ComputeQuestion) -> ComputeResult:
    try:
        model_sha256, values = compute(question.kind, question.payload)
    except Exception as error:  # noqa: BLE001 - whatever a computation raises is its answer
        return ComputeResult(error=f"{type(error).__name__}: {error}")
    return ComputeResult(model_sha256=model_sha256, values=values)


if __name__ == "__main__":
    main()
