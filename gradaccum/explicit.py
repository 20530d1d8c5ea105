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
from collections.abc import Callable, Iterator
from typing import Any, Final, Union

import torch
import torch.distributed as dist

from cotenant.gradaccum import exactness
from cotenant.gradaccum.rows import cut, pick, rows_of, sizes_of
from cotenant.gradaccum.schedule import PROGRESS

LOSSES: Final = ("mean", "sum", "token_mean", "token_sum")
SELF_CHECK_ROWS: Final = 5

Weight = Union[float, torch.Tensor]
Tokens = Callable[..., Any]


def split(
    model: Any, *batch: Any, loss: str = "mean", tokens: Tokens | None = None, steps: int | None = None
) -> Iterator[tuple[Any, ...]]:
    """Yield `(*micro_batch, weight)`: multiply the micro-batch's loss by the weight, then call backward.

    model: what the loss is computed with (DDP or plain). tokens: for token losses, counts the tokens of
    `(*micro_batch)`. steps: s; by default what the scheduler decided, 1 outside cotenant.
    """
    _check_arguments(loss, tokens)
    PROGRESS.explicit = True
    wanted = PROGRESS.steps_now() if steps is None else steps
    if wanted > 1:
        exactness.GUARD.check_modules(model)
    PROGRESS.last_steps = wanted
    if wanted == 1:
        yield (*batch, _weight_of_all(model, batch, loss, tokens))
    else:
        yield from _parts(model, batch, loss, tokens, wanted)
    PROGRESS.split_ended()


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

    `loss_of(*micro_batch)` computes the loss. With a GradScaler the losses are scaled. The first time that
    s > 1 the declared kind of loss is checked on a few rows; `Refused` says what is wrong with it.
    """
    PROGRESS.explicit = True
    wanted = PROGRESS.steps_now() if steps is None else steps
    if wanted > 1:
        _check_arguments(loss, tokens)
        _check_all(model, loss_of, batch, loss, tokens, wanted)
    total: torch.Tensor | None = None
    for *part, weight in split(model, *batch, loss=loss, tokens=tokens, steps=wanted):
        value = loss_of(*part)
        if wanted > 1 or loss == "token_sum":
            value = value * weight
        (value if scaler is None else scaler.scale(value)).backward()
        total = value.detach() if total is None else total + value.detach()
    assert total is not None, "split yields at least one micro-batch"
    PROGRESS.last_loss = total
    return total


def _check_all(
    model: Any,
    loss_of: Callable[..., torch.Tensor],
    batch: tuple[Any, ...],
    loss: str,
    tokens: Tokens | None,
    steps: int,
) -> None:
    exactness.GUARD.check_modules(model)
    exactness.GUARD.measure_once(model, loss, lambda: _self_check(model, loss_of, batch, loss, tokens, steps))


def _check_arguments(loss: str, tokens: Tokens | None) -> None:
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}")
    if loss.startswith("token") and tokens is None:
        raise ValueError(f"loss={loss!r} needs tokens=, a function that counts the tokens of a micro-batch")


def _parts(
    model: Any, batch: tuple[Any, ...], loss: str, tokens: Tokens | None, steps: int
) -> Iterator[tuple[Any, ...]]:
    parts, weights = _weighted_parts(model, batch, loss, tokens, steps)
    no_sync = getattr(model, "no_sync", contextlib.nullcontext)
    last = len(parts) - 1
    for position, (part, weight) in enumerate(zip(parts, weights)):
        if position:
            PROGRESS.part_ended()
        watched = exactness.GUARD.watch_buffers(model) if position == 0 else contextlib.nullcontext()
        # DDP decides in the forward pass whether this backward exchanges gradients.
        with watched, contextlib.nullcontext() if position == last else no_sync():
            yield (*part, weight)


def _weighted_parts(
    model: Any, batch: tuple[Any, ...], loss: str, tokens: Tokens | None, steps: int
) -> tuple[list[tuple[Any, ...]], list[Weight]]:
    """The micro-batches and the weights of their losses."""
    rows = rows_of(batch)
    sizes = sizes_of(rows, steps)
    parts, start = [], 0
    for size in sizes:
        parts.append(cut(batch, start, start + size))
        start += size
    if loss == "mean":
        return parts, [size / rows if rows else 1.0 for size in sizes]
    if loss == "sum":
        return parts, [1.0] * len(parts)
    if loss == "token_sum":
        return parts, [_weight_of_all(model, batch, loss, tokens)] * len(parts)
    assert tokens is not None
    counts = [int(tokens(*part)) for part in parts]
    if not sum(counts):
        return parts[:1], [1.0]  # a mean over nothing: not a number, as without accumulation
    # A part without tokens has no mean and adds nothing: leave it out.
    kept = [(part, count) for part, count in zip(parts, counts) if count]
    return [part for part, _ in kept], [count / sum(counts) for _, count in kept]


def _weight_of_all(model: Any, batch: tuple[Any, ...], loss: str, tokens: Tokens | None) -> Weight:
    """The factor for the loss of a whole batch: 1, unless it is a sum over tokens still to be normalised."""
    if loss != "token_sum":
        return 1.0
    assert tokens is not None
    counted = torch.as_tensor(tokens(*batch)).detach().to(torch.float64)
    world_size = 1
    if dist.is_available() and dist.is_initialized() and hasattr(model, "no_sync"):
        world_size = dist.get_world_size(model.process_group)
        if dist.get_backend(model.process_group) == "nccl":
            counted = counted.to(next(model.parameters()).device)
        counted = counted.clone()
        dist.all_reduce(counted, group=model.process_group)
    factor = world_size / counted.clamp(min=1.0)
    return factor if factor.is_cuda else factor.item()  # reading it back from a GPU would stall the step


def _self_check(
    model: Any,
    loss_of: Callable[..., torch.Tensor],
    batch: tuple[Any, ...],
    loss: str,
    tokens: Tokens | None,
    steps: int,
) -> str | None:
    """Do a few rows of this batch give the same gradient in two parts as at once? A reason if not."""
    rows = rows_of(batch)
    largest = max(sizes_of(rows, steps))
    count = min(
        rows, max(2, min(SELF_CHECK_ROWS, largest))
    )  # no more memory than a micro-batch, if it can be
    if count < 2:
        return None
    few = pick(batch, torch.linspace(0, rows - 1, count).round().long())
    kind = "sum" if loss == "token_sum" else loss  # both sides lack the same factor
    parts, weights = _weighted_parts(model, few, kind, tokens, 2)

    def in_parts() -> Iterator[torch.Tensor]:
        for part, weight in zip(parts, weights):
            yield loss_of(*part) * weight

    if not isinstance(model, torch.nn.Module):
        return None
    return exactness.difference(model, lambda: loss_of(*few), in_parts)
