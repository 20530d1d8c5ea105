"""The order in which DDP sums gradients, recorded in the first step and put back after a resume.

Rule: after its first backward pass DDP regroups the parameters by the order in which their gradients came.
With three ranks or more the grouping decides in which order the ranks' contributions to an element are
added, and so how they round. A resumed process would do its first step with the groups of a new DDP:
instead it replays the recorded order with a backward pass over zeros, before any state is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel

ORDER_MATTERS_FROM: Final = 3
"""Ranks. Two numbers have the same sum in either order."""


def gradient_orders(models: Iterable[torch.nn.Module], world_size: int) -> list[GradientOrder]:
    """One for each DDP in the models, wherever it is, that regroups and where the order matters."""
    if world_size < ORDER_MATTERS_FROM:
        return []
    found = [m for model in models for m in model.modules() if isinstance(m, DistributedDataParallel)]
    return [GradientOrder(ddp) for ddp in found if not ddp.find_unused_parameters]


class GradientOrder:
    """The order in which one DDP's gradients come, by parameter name."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.names: list[str] = []
        self._hooks: list[Any] = []
        self._ddp = ddp

    def record(self) -> None:
        """Note the order of the next backward pass: a few hundred nanoseconds per parameter, once."""
        for name, parameter in self._parameters().items():

            def came(_: torch.Tensor, name: str = name) -> None:
                if name not in self.names:
                    self.names.append(name)

            hook = parameter.register_post_accumulate_grad_hook(came)  # type: ignore[no-untyped-call]
            self._hooks.append(hook)

    def recorded(self) -> None:
        """The first step is over."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def replay(self, names: list[str]) -> str | None:
        """Make DDP regroup as it did; returns why it will not add up in the old order, if so."""
        ddp: Any = self._ddp
        if getattr(ddp, "static_graph", False):
            return "DDP(static_graph=True) groups its gradients anew"
        parameters = self._parameters()
        if set(names) != set(parameters) or not hasattr(ddp.reducer, "prepare_for_backward"):
            return "the order in which DDP adds gradients could not be put back"
        self.names = list(names)
        before = {name: parameter.grad for name, parameter in parameters.items()}
        total = torch.zeros((), device=next(iter(parameters.values())).device)
        for name in reversed(names):  # what was added last comes first in the backward pass
            total = total + parameters[name].sum().float().to(total.device) * 0
        ddp.reducer.prepare_for_forward()
        ddp.reducer.prepare_for_backward([])
        total.backward()  # type: ignore[no-untyped-call]
        for name, parameter in parameters.items():
            parameter.grad = before[name]
        return None

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self._ddp.named_parameters() if p.requires_grad}
