"""The explicit interface: micro-batches with exact weights, and a backward pass over all of them.

Rule: the weighted micro-batch losses add up to the whole batch's loss, whatever kind it is; gradients are
exchanged between ranks once per step, with the last micro-batch. Clipping, unscaling, the optimizer and the
scheduler come after, once, as without accumulation.

| loss         | the loss function returns                | weights                                   |
|--------------|------------------------------------------|-------------------------------------------|
| "mean"       | the mean over the rows it is given       | rows / rows of the batch                  |
| "sum"        | the sum over the rows it is given        | 1                                         |
| "token_mean" | the mean over the tokens it is given     | tokens / tokens of the batch on this rank |
| "token_sum"  | the sum over the tokens it is given      | world size / tokens of the step, all ranks|

"token_mean" is what `CrossEntropyLoss(ignore_index=...)` gives without accumulation: each rank its own mean.
"token_sum" is the mean over all tokens of all ranks; it undoes DDP's division by the world size.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from cotenant.gradaccum import aside, occasions, proof, schedule
from cotenant.gradaccum.parts import StepInParts, Tokens, weight_of_all

LOSSES: Final = ("mean", "sum", "token_mean", "token_sum")


def split(
    model: Any, *batch: Any, loss: str = "mean", tokens: Tokens | None = None, steps: int | None = None
) -> Iterator[tuple[Any, ...]]:
    """Yield `(*micro_batch, weight)`: multiply the micro-batch's loss by the weight, then call backward.

    With s > 1 the body of the loop runs some more times, after the parts: to measure on a few rows, at some
    steps, whether the gradient of the whole batch is that of its parts, and in each step on the outputs of
    the model. What it does then to objects and variables is undone, and what it prints does not come out;
    what it writes to files stays. At a difference the step is not taken, as in `backward`.

    model: what the loss is computed with (DDP or plain). tokens: for token losses, counts the tokens of
    `(*micro_batch)`. steps: s; by default what the scheduler decided, 1 outside cotenant.
    """
    _check_arguments(loss, tokens)
    schedule.PROGRESS.explicit = True
    wanted = schedule.PROGRESS.steps_now() if steps is None else steps
    schedule.PROGRESS.last_steps = wanted
    if wanted == 1:
        yield (*batch, weight_of_all(model, batch, loss, tokens))
    else:
        stack = sys._getframe(1)
        frame = aside.scripts_frame(stack)
        code = (frame.f_code, frame.f_lasti)
        step = StepInParts(model, batch, loss, tokens, code, is_ordered=steps is None)
        for part in step.parts(wanted, occasions.names_in(frame), stack):
            yield (*part.batch, part.weight)
    schedule.PROGRESS.split_ended()


def backward(
    model: Any,
    loss_of: Callable[..., torch.Tensor],
    *batch: Any,
    loss: str = "mean",
    tokens: Tokens | None = None,
    scaler: Any = None,
    steps: int | None = None,
) -> torch.Tensor:
    """Forward and backward over the whole batch, in micro-batches if need be; returns its loss, detached.

    `loss_of(*micro_batch)` computes the loss. With a GradScaler the losses are scaled. With s > 1 it is
    measured on a few rows, at some steps, whether the gradient of the whole batch is that of its parts, and
    in each step on the outputs of the model, if these are rows. If it is not, the step is not taken: the
    attempt ends (AttemptEnds) and the job goes on whole; with `steps` given here, `Refused` says what is
    wrong.
    """
    _check_arguments(loss, tokens)
    schedule.PROGRESS.explicit = True
    wanted = schedule.PROGRESS.steps_now() if steps is None else steps
    schedule.PROGRESS.last_steps = wanted
    if wanted == 1:
        total = _at_once(model, loss_of, batch, loss, tokens, scaler)
    else:
        code = (getattr(loss_of, "__code__", type(loss_of)),)
        step = StepInParts(model, batch, loss, tokens, code, is_ordered=steps is None)
        total = _backward_in_parts(step, loss_of, wanted, scaler)
    schedule.PROGRESS.last_loss = total
    schedule.PROGRESS.split_ended()
    return total


def _at_once(
    model: Any,
    loss_of: Callable[..., torch.Tensor],
    batch: tuple[Any, ...],
    loss: str,
    tokens: Tokens | None,
    scaler: Any,
) -> torch.Tensor:
    value = loss_of(*batch)
    if loss == "token_sum":
        value = value * weight_of_all(model, batch, loss, tokens)
    _run_backward(value, scaler)
    return value.detach()


def _run_backward(value: torch.Tensor, scaler: Any) -> None:
    (value if scaler is None else scaler.scale(value)).backward()


def _check_arguments(loss: str, tokens: Tokens | None) -> None:
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}")
    if loss.startswith("token") and tokens is None:
        raise ValueError(f"loss={loss!r} needs tokens=, a function that counts the tokens of a micro-batch")


def _backward_in_parts(
    step: StepInParts, loss_of: Callable[..., torch.Tensor], steps: int, scaler: Any
) -> torch.Tensor:
    losses: list[torch.Tensor] = []
    parts = step.parts(steps, [("loss_of", loss_of)])
    for part in parts:
        began = occasions.count_nodes()
        try:
            value = loss_of(*part.batch) * part.weight
            part.nodes = occasions.count_nodes() - began
            _run_backward(value, None if part.use == "proof" else scaler)
            if part.use == "step":
                losses.append(value.detach())
        except Exception as error:  # Whatever it meets in a check is a reason to refuse.
            if part.use == "step":
                raise
            failed = proof.LossFailed()
            failed.__cause__ = error
            with contextlib.suppress(StopIteration):  # It was no proof, and the last.
                parts.throw(failed)
    total = losses[0]
    for loss in losses[1:]:
        total = total + loss
    return total
