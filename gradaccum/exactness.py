"""What is known to be inexact in parts, and how a refusal reaches the script and the supervisor.

Rule: a sum of micro-batch gradients equals the whole batch's only if each row's loss depends on that row
alone and no module changes its state in the forward pass. The kinds of modules that are known to break this
are refused here; everything else is measured (`proof.py`).

Rule: what an order of the scheduler's would make inexact ends the attempt before the step is taken, in a way
that no `except Exception` of the script holds up. Whoever asks for parts himself (`steps=`) gets `Refused`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cotenant.checkpoint.guard import FAILED, SPLITTING, AttemptEnds, tell_supervisor, write_line
from cotenant.checkpoint.talk.protocol import ENV_ZERO_CODE
from cotenant.gradaccum.modules import ModuleParts, parts_of

TOLERANCE: Final = {torch.float64: 1e-9, torch.float32: 1e-3}
TOLERANCE_LOW_PRECISION: Final = 5e-2
"""Of the largest gradient entry. Losses that do not split differ by far more."""

EQUIVALENT: Final = "equivalent"
"""The word by which a job may be split although it draws random numbers: `--accumulate equivalent`."""
ENDED: Final = "cotenant.gradaccum.Refused"
"""Begins the line on standard error by which the controller knows that the job goes on whole."""


class Refused(RuntimeError):
    """Gradient accumulation would not be exact here; the text says why and what to do."""


def tell_failed(error: str) -> None:
    """Let the supervisor know why accumulation was refused; the exception tells the user."""
    tell_supervisor(FAILED, what="accumulate", error=error)


def refuse(reason: str) -> Refused:
    """An error to raise; the supervisor hears of it too."""
    tell_failed(reason)
    return Refused(reason)


def end_attempt(reason: str) -> NoReturn:
    """Ends the attempt: tells the supervisor, writes one line on standard error, and exits with code 1.

    Raises:
        AttemptEnds: always.
    """
    announce(reason)
    raise AttemptEnds(1)


def announce(reason: str) -> None:
    """Lets the supervisor and the controller know that the attempt ends because parts are refused."""
    tell_failed(reason)
    write_line(f"{ENDED}: {' '.join(reason.split())}")  # sys.stderr may be silent: a check is under way.


def prove_or_end(function: Callable[..., Any], *args: Any) -> Any:
    """Run what belongs to a step that is split: it must not fail, or the step must not count."""
    found = SPLITTING.run(function, *args)
    if SPLITTING.why:
        end_attempt(SPLITTING.why)
    return found


def allows_equivalent() -> bool:
    """Whether other random numbers than those of the whole batch are allowed to this job."""
    return EQUIVALENT in os.environ.get(ENV_ZERO_CODE, "").split(",")


def refusal(model: Any) -> str | None:
    """Why this model's modules cannot be accumulated exactly; None: no reason is known."""
    if not issubclass(type(model), torch.nn.Module):
        return None
    for part in parts_of(model):
        kind = type(part.module)
        reason = (
            _ddp_refusal(part.module) if issubclass(kind, DistributedDataParallel) else _module_refusal(part)
        )
        if reason:
            return f"{part.name or kind.__name__}: {reason}"
    return None


def _ddp_refusal(ddp: Any) -> str | None:
    if ddp.find_unused_parameters:
        return "find_unused_parameters=True does not average what only earlier micro-batches used"
    if getattr(ddp, "static_graph", False):
        return "static_graph=True does not work with no_sync"
    return None


def _module_refusal(part: ModuleParts) -> str | None:
    made, kind = type(part.module), type(part.module).__name__
    if issubclass(made, _BatchNorm) and part.is_training:
        return (
            f"{kind} in training mode normalises over its whole batch (GroupNorm does not; freezing it helps)"
        )
    if issubclass(made, _NormBase) and part.is_training and vars(part.module).get("track_running_stats"):
        return f"{kind} updates running statistics in each forward pass"
    if kind == "_SpectralNorm" and part.is_training:
        return "spectral_norm does a power iteration in each forward pass"
    hooks = [type(hook).__name__ for hook in part.table("_forward_pre_hooks").values()]
    if "SpectralNorm" in hooks and part.is_training:
        return "spectral_norm does a power iteration in each forward pass"
    return None


class SplitFindings:
    """What this process has found out about splitting."""

    def __init__(self) -> None:
        self.refused: str | None = None
        """Why an order of s was refused; it is again, should the script have held up the end."""
        self.unproven: Callable[[], None] | None = None
        """A step in parts was not proven: called before an optimizer makes it, and raises why not."""
        self._of: WeakKeyDictionary[torch.nn.Module, dict[Any, Any]] = WeakKeyDictionary()
        self._others: dict[Any, Any] = {}

    def known_of(self, model: Any) -> dict[Any, Any]:
        """What is known of the losses of a model."""
        return self._of.setdefault(model, {}) if isinstance(model, torch.nn.Module) else self._others

    def forbid_step(self, refuse: Callable[[], None]) -> None:
        """Lets no optimizer make the step that began."""
        self.unproven = refuse
        if not self._is_watching:
            type(self)._is_watching = True
            register_optimizer_step_pre_hook(self._before_step)

    _is_watching = False

    def _before_step(self, *_: Any) -> None:
        refuse, self.unproven = self.unproven, None
        if refuse is not None:
            refuse()


GUARD: Final = SplitFindings()
