"""One of two ranks: trains whole and in parts, and prints how far apart the results are.

The ranks' batches differ in rows and in tokens, so that a wrong normalisation across ranks shows.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from cotenant import gradaccum

CLASSES = 5
STEPS = 5


def network() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, CLASSES)).double()


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    rows = 11 + 3 * rank
    x = torch.randn(rows, 7, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (rows, 7), generator=generator)
    y[torch.rand(rows, 7, generator=generator) < 0.3 + 0.4 * rank] = -100
    return x, y


def count(_: Tensor, y: Tensor) -> Tensor:
    return (y != -100).sum()


def loss_for(model: nn.Module, reduction: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: functional.cross_entropy(
        model(x).flatten(0, 1), y.flatten(), reduction=reduction, ignore_index=-100
    )


def trained(kind: str, steps: int) -> tuple[nn.Module, int]:
    """The network after a few steps, and how often gradients were exchanged."""
    exchanged = 0

    def counting(state: object, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
        nonlocal exchanged
        exchanged += 1
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        assert work is not None
        return work.get_future().then(lambda done: done.value()[0])

    net = network()
    model = DistributedDataParallel(net)
    model.register_comm_hook(None, counting)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loss_of = loss_for(model, "sum" if kind in ("sum", "token_sum") else "mean")
    more: dict[str, Any] = {"tokens": count} if kind.startswith("token") else {}
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step, dist.get_rank())
        if kind == "mean":
            y = y.clamp(min=0)  # every token counts: with some left out this loss would be refused
        gradaccum.backward(model, loss_of, x, y, loss=kind, steps=steps, **more)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return net, exchanged


def global_token_mean() -> nn.Module:
    """What "token_sum" promises: the mean over all tokens of all ranks, computed in one process."""
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for step in range(STEPS):
        optimizer.zero_grad()
        both = [batch(step, rank) for rank in range(dist.get_world_size())]
        total = sum((loss_for(net, "sum")(x, y) for x, y in both), torch.zeros(()))
        (total / sum(int(count(x, y)) for x, y in both)).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
    return net


def exchanging() -> str:
    """Why a loss that exchanges values with the other rank is refused."""
    model = DistributedDataParallel(network())
    plain = loss_for(model, "mean")

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        loss = plain(x, y)
        dist.all_reduce(loss.detach().clone())
        return loss

    x, y = batch(0, dist.get_rank())
    try:
        gradaccum.backward(model, loss_of, x, y.clamp(min=0), steps=3)
    except gradaccum.Refused as error:
        return str(error)
    return ""


def apart(left: nn.Module, right: nn.Module) -> float:
    pairs = zip(left.parameters(), right.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def main() -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
    result: dict[str, Any] = {}
    for kind in ("mean", "sum", "token_sum"):
        whole, exchanged = trained(kind, 1)
        parts, exchanged_in_parts = trained(kind, 3)
        result[kind] = apart(whole, parts)
        result[f"{kind} exchanges"] = [exchanged, exchanged_in_parts]
        if kind == "token_sum":
            result["global token mean"] = apart(whole, global_token_mean())
    refused = DistributedDataParallel(network(), find_unused_parameters=True)
    result["refusal"] = gradaccum.refusal(refused)
    result["exchange"] = exchanging()
    print(json.dumps({"result": result}), flush=True)
    # Nobody leaves while the other may still need an answer. A group that is destroyed so soon after its last
    # piece of work hangs now and then: gloo's thread wants Python's lock to drop it.
    dist.barrier()


if __name__ == "__main__":
    main()
