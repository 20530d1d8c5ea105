"""The loss that a script keeps in a variable, as far as reading it waits for nobody."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from cotenant.checkpoint.progress.losses import loss_number, loss_variable


def train_step(loss: object) -> Any:
    assert loss is not None
    caller = sys._getframe().f_back
    assert caller is not None
    return loss_variable([sys._getframe(), caller])


def test_the_innermost_variable_called_loss_counts() -> None:
    loss = torch.tensor(9.0)
    assert train_step(torch.tensor(2.0)) == 2.0
    assert loss_variable([sys._getframe()]) is loss


def test_a_script_without_such_a_variable_has_none() -> None:
    assert loss_variable([sys._getframe()]) is None


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (torch.tensor([0.25]), 0.25),
        (3, 3.0),
        (0.125, 0.125),
        (torch.zeros(2), None),
        (torch.empty((), device="meta"), None),
        (torch.nn.Parameter(torch.tensor(1.0)), None),
        (float("nan"), None),
        (True, None),
        ("0.5", None),
    ],
)
def test_only_numbers_that_are_there_are_read(value: object, number: float | None) -> None:
    assert loss_number(value) == number
