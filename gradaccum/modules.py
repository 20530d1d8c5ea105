"""Modules, parameters and hooks of a model, read from where torch keeps them.

Rule: nothing of the script's classes runs, neither a `modules()` of its own nor a property.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch


class ModuleParts(NamedTuple):
    """What torch keeps of one module in the module's own dictionary."""

    name: str
    module: torch.nn.Module

    def table(self, name: str) -> dict[Any, Any]:
        """One of torch's tables (`_parameters`, `_forward_hooks`, ...); empty if there is none."""
        found = self.module.__dict__.get(name)
        return found if isinstance(found, dict) else {}

    @property
    def is_training(self) -> bool:
        return bool(self.module.__dict__.get("training", True))


def parts_of(model: torch.nn.Module) -> Iterator[ModuleParts]:
    """The model and all modules in it, each once, by their dotted names."""
    seen: set[int] = set()
    waiting = [ModuleParts("", model)]
    while waiting:
        part = waiting.pop()
        if id(part.module) in seen:
            continue
        seen.add(id(part.module))
        yield part
        inside = f"{part.name}." if part.name else ""
        for name, module in reversed(part.table("_modules").items()):
            if isinstance(module, torch.nn.Module):
                waiting.append(ModuleParts(inside + str(name), module))


def parameters_of(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """All parameters; one that several modules share comes as often as they have it."""
    for part in parts_of(model):
        yield from (each for each in part.table("_parameters").values() if each is not None)


def trains(model: torch.nn.Module) -> bool:
    return any(each.requires_grad for each in parameters_of(model))
