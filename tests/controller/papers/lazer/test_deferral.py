"""The fit of Lazer's surrogate, as the computing child does it."""

from __future__ import annotations

import numpy as np
import pytest

from cotenant.controller.training import answer, compute
from cotenant.controller.wire import ComputeQuestion, Payload

pytest.importorskip("botorch")


def payload(seed: int, count: int = 30) -> Payload:
    draw = np.random.default_rng(seed)
    inputs = draw.random((count, 5))
    targets = 40.0 * np.abs(inputs[:, 0] - 0.3) + 2.0 * draw.standard_normal(count)
    return {
        "inputs": [float(v) for v in inputs.ravel()],
        "targets": [float(v) for v in targets],
        "seed": seed,
    }


def test_the_same_question_has_the_same_answer_to_the_last_bit() -> None:
    first = compute("deferral-fit", payload(1))
    compute("deferral-fit", payload(2))
    assert compute("deferral-fit", payload(1)) == first


def test_the_answer_finds_what_matters() -> None:
    noise, constant, mean_s, deviation_s, *lengthscales = compute("deferral-fit", payload(3, 80)).values
    assert len(lengthscales) == 5
    assert lengthscales[0] == min(lengthscales), "the target depends on the first input alone"
    targets = np.array(payload(3, 80)["targets"])
    assert mean_s == pytest.approx(targets.mean())
    assert deviation_s == pytest.approx(targets.std(ddof=1))
    assert 0.0 < noise < 0.5
    assert abs(constant) < 5.0


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"inputs": [0.1] * 9, "targets": [1.0, 2.0]}, "9 inputs do not belong to 2 targets"),
        ({"inputs": [0.1] * 5, "targets": [1.0]}, "5 inputs do not belong to 1 targets"),
        ({"targets": [1.0, 2.0]}, "must be lists"),
    ],
)
def test_a_payload_of_another_shape_is_refused(wrong: Payload, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        compute("deferral-fit", wrong)


def test_targets_that_are_no_numbers_are_an_error_and_not_a_crash() -> None:
    asked = payload(1, 5) | {"targets": [float("nan")] * 5}
    assert answer(ComputeQuestion(kind="deferral-fit", payload=asked)).error
