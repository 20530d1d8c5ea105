"""Which printed numbers are the training loss."""

from __future__ import annotations

import pytest

from cotenant.agent.supervisor.core import last_loss_in


@pytest.mark.parametrize(
    ("output", "loss"),
    [
        ("epoch 1 step 20 loss 0.31\n", 0.31),
        ("Epoch: 3 | Loss: 1.5e-3 | lr 0.1\n", 1.5e-3),
        ("{'loss': 2.7081, 'grad_norm': 1.2}\n{'loss': 2.5, 'epoch': 0.1}\n", 2.5),
        ("{'train_loss': 4, 'val_loss': 5}\n", 4.0),
        ("step=3 loss=-0.25, acc=.9\n", -0.25),
        ("12%|#  | 3/25 [00:01, loss=0.71]\r", 0.71),
        ("loss 0.5\nval loss 0.9\ntest_loss=0.8\nvalidation loss: 0.7 eval/loss 0.6\n", 0.5),
        ("loss 0.5\nloss 0.4", 0.5),  # It may go on: 0.43.
        ("loss nan\n", None),
        ("a lossless codec 3\nno loss in 3 days\nhair loss\n", None),
        ("", None),
    ],
)
def test_the_last_training_loss_that_was_printed_is_found(output: str, loss: float | None) -> None:
    assert last_loss_in(output) == loss


def test_much_output_without_a_loss_takes_no_time_worth_speaking_of() -> None:
    """The pattern cannot run away: each part of it is bounded."""
    assert last_loss_in("loss " * 4_000 + "loss=" + "1" * 10_000) is None
