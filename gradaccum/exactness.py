"""What cannot be accumulated exactly, found before it can do harm.

Rule: a sum of micro-batch gradients equals the whole batch's only if each row's loss depends on that row
alone and no module changes its state in the forward pass. We refuse by type what is known to break this, and
measure the rest: a few real rows, at once and in two parts, must give the same gradient.

Dropout and other noise draw different numbers in parts than at once. The gradient then has the same
distribution but not the same value; that is no reason to refuse, and the check is made without noise.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parallel import DistributedDataParallel

from cotenant.checkpoint.guard import AttemptEnds
from cotenant.gradaccum.protocol import tell_failed

TOLERANCE: Final = {torch.float64: 1e-9, torch.float32: 1e-3}
TOLERANCE_LOW_PRECISION: Final = 5e-2
"""Of the largest gradient entry. Losses that do not split differ by far more."""

REFUSED: Final = "cotenant.gradaccum.Refused"
"""Begins the line by which an attempt is known that ended because its batches must not be split."""

log = logging.getLogger("cotenant.gradaccum")


class Refused(RuntimeError):
    """Gradient accumulation would not be exact here; the text says why and what to do."""


def refuse(reason: str) -> Refused:
    """An error to raise; the supervisor hears of it too."""
    tell_failed(reason)
    return Refused(reason)


def end_attempt(reason: str) -> NoReturn:
    """Ends this process before its next step: the job goes on whole from its last checkpoint."""
    tell_failed(reason)
    if sys.__stderr__ is not None:
        sys.__stderr__.write(f"{REFUSED}: {reason}\n")
    raise AttemptEnds(1)


def refusal(model: Any) -> str | None:
    """Why this model's modules cannot be accumulated exactly; None: no reason is known."""
    if not isinstance(model, torch.nn.Module):
        return None
    for name, module in model.named_modules():
        reason = (
            _ddp_refusal(module) if isinstance(module, DistributedDataParallel) else _module_refusal(module)
        )
        if reason:
            return f"{name or type(module).__name__}: {reason}"
    return None


def _ddp_refusal(ddp: DistributedDataParallel) -> str | None:
    if ddp.find_unused_parameters:
        return "find_unused_parameters=True does not average what only earlier micro-batches used"
    if getattr(ddp, "static_graph", False):
        return "static_graph=True does not work with no_sync"
    return None


def _module_refusal(module: torch.nn.Module) -> str | None:
    kind = type(module).__name__
    if isinstance(module, _BatchNorm) and module.training:
        return (
            f"{kind} in training mode normalises over its whole batch (GroupNorm does not; freezing it helps)"
        )
    if isinstance(module, _NormBase) and module.training and module.track_running_stats:
        return f"{kind} updates running statistics in each forward pass"
    if kind == "_SpectralNorm" and module.training:
        return "spectral_norm does a power iteration in each forward pass"
    hooks = [type(hook).__name__ for hook in module._forward_pre_hooks.values()]
    if "SpectralNorm" in hooks and module.training:
        return "spectral_norm does a power iteration in each forward pass"
    return None


class Guard:
    """Remembers, per model, what was checked; cheap enough to ask in every step with s > 1."""

    def __init__(self) -> None:
        self._suspects: WeakKeyDictionary[torch.nn.Module, list[torch.nn.Module]] = WeakKeyDictionary()
        self._buffers_checked: WeakKeyDictionary[torch.nn.Module, bool] = WeakKeyDictionary()
        self._measured: WeakKeyDictionary[torch.nn.Module, set[str]] = WeakKeyDictionary()
        self._refused: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()
        """What an earlier check found; the next split raises it again."""

    def check_modules(self, model: torch.nn.Module) -> None:
        """Checks that the model's modules can be split exactly. Raises Refused. Looks at all modules once,
        later only at those with a mode that matters."""
        known = self._refused.get(model)
        if known:
            raise Refused(known)
        suspects = self._suspects.get(model)
        if suspects is None:
            reason = refusal(model)
            if reason:
                raise refuse(reason)
            self._suspects[model] = [m for m in model.modules() if isinstance(m, _NormBase)]
            return
        for module in suspects:
            reason = _module_refusal(module)
            if reason:
                raise refuse(reason)

    @contextlib.contextmanager
    def watch_buffers(self, model: torch.nn.Module) -> Iterator[None]:
        """Around the first micro-batch ever: a forward pass that changes saved buffers is stateful."""
        if self._buffers_checked.get(model):
            yield
            return
        before = {name: value.clone() for name, value in _saved_buffers(model)}
        yield
        for name, value in _saved_buffers(model):
            if not torch.equal(value, before[name]):
                raise refuse(_stateful(model, name))
        self._buffers_checked[model] = True

    def measure_once(self, model: torch.nn.Module, loss: str, check: Callable[[], str | None]) -> None:
        """Run `check` at most once per model and kind of loss; its reason, if any, is raised."""
        measured = self._measured.setdefault(model, set())
        if loss in measured:
            return
        measured.add(loss)
        reason = check()
        if reason:
            self._refused[model] = reason
            raise refuse(reason)


def _stateful(model: torch.nn.Module, buffer: str) -> str:
    return (
        f"the forward pass changes the buffer {buffer}: with {type(model).__name__} split into "
        "micro-batches it would change more often"
    )


GUARD: Final = Guard()


def _saved_buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}".lstrip("."), buffer


def difference(
    model: torch.nn.Module, whole: Callable[[], torch.Tensor], parts: Callable[[], Iterator[torch.Tensor]]
) -> str | None:
    """Compare the gradient of `whole()` with the sum over `parts()`; None if equal, else a reason.

    Leaves gradients, random state, modes and DDP as they were.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    autocast: list[bool] = []
    with _evaluation_mode(model, autocast):
        try:
            at_once = _gradient(whole(), parameters)
            in_parts = [torch.zeros_like(g) for g in at_once]
            for loss in parts():
                for total, gradient in zip(in_parts, _gradient(loss, parameters)):
                    total += gradient
        except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
            log.warning("accumulation could not be checked on a few rows (%s): going on unchecked", error)
            return None
    largest = max((float(g.abs().max()) for g in at_once if g.numel()), default=0.0)
    apart = max((float((a - b).abs().max()) for a, b in zip(at_once, in_parts) if a.numel()), default=0.0)
    if not (math.isfinite(largest) and math.isfinite(apart)):
        log.warning(
            "accumulation could not be checked on a few rows (no finite gradient): going on unchecked"
        )
        return None
    precisions = [TOLERANCE.get(p.dtype, TOLERANCE_LOW_PRECISION) for p in parameters]
    tolerance = TOLERANCE_LOW_PRECISION if any(autocast) else max(precisions, default=0.0)
    if apart <= tolerance * largest:
        return None
    return (
        f"the gradient of a few rows in parts is {apart:.1e} away from that at once (its largest entry is "
        f"{largest:.1e}): the loss does not split over rows as declared. Is it a sum, or a mean over tokens? "
        'Say loss="sum" or "token_mean". Does it compare rows with each other? Then it cannot be accumulated'
    )


def _gradient(loss: torch.Tensor, parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    found: tuple[Any, ...] = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g.detach() for p, g in zip(parameters, found)]


@contextlib.contextmanager
def _evaluation_mode(model: torch.nn.Module, autocast: list[bool]) -> Iterator[None]:
    """Evaluation mode, so that nothing is random; everything as it was afterwards."""
    modes = {module: module.training for module in model.modules()}
    sync_forward: Any = getattr(model, "require_forward_param_sync", None)

    def note(module: torch.nn.Module, _: Any) -> None:
        kind = next((p.device.type for p in module.parameters()), "cpu")
        autocast.append(torch.is_autocast_enabled(kind))

    hook = model.register_forward_pre_hook(note)
    devices = [torch.cuda.current_device()] if _is_on_cuda(model) else []
    no_sync = model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()
    model.eval()
    try:
        with torch.random.fork_rng(devices=devices), no_sync, torch.enable_grad():
            yield
    finally:
        hook.remove()
        for module, training in modes.items():
            module.training = training
        if sync_forward is not None:
            model.require_forward_param_sync = sync_forward


def _is_on_cuda(model: torch.nn.Module) -> bool:
    return any(p.is_cuda for p in model.parameters())
