"""Do a few real rows give the same outputs and gradients at once and in parts? Asked before the first s > 1.

Rule: we refuse what we cannot show to be exact. The module is called as the script calls it, in training
mode, on rows of the script's own batch, through the very code that will split its batches, in float64 where
its parameters can be replaced, and the gradient is pulled back from random weights on every output, so that
no entry escapes because this batch's loss happens not to look at it.

The module runs on the side, without noise and without a trace: whoever looks at it afterwards finds it as it
was: random state, attributes, buffers, gradients. Noise that is independent for each element (dropout,
stochastic depth, added noise) is replaced by a constant, because it differs between a whole batch and its
parts without being wrong; noise that could mix rows (a permutation) is left alone, so that it is found.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.func import functional_call
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.overrides import TorchFunctionMode

from cotenant.gradaccum import exactness
from cotenant.gradaccum.rows import Call, Uncut, tensors_of
from cotenant.gradaccum.zerocode.forward import Forward, inside, split_forward

ROWS_MAX: Final = 5
"""An odd number, so that the two parts differ in size."""
DOUBLED_BYTES_MAX: Final = 1 << 30
"""A larger model's parameters are not copied to float64; its own precision must do."""

_UNSUPPORTED: Final = {
    "FullyShardedDataParallel": "FullyShardedDataParallel shards its parameters between forward passes",
    "FSDPModule": "fully_shard shards its parameters between forward passes",
    "DeepSpeedEngine": "DeepSpeed runs the backward pass itself",
    "OptimizedModule": "torch.compile fixes the batch it was compiled for",
}
_HARMLESS_HOOKS: Final = ("WeightNorm", "BasePruningMethod", "LazyModuleMixin")


def rows_to_check(rows: int) -> torch.Tensor:
    """A few rows from all over a batch."""
    return torch.linspace(0, rows - 1, min(ROWS_MAX, rows)).round().long()


def objection(forward: Forward, module: torch.nn.Module, few: Call) -> str | None:
    """Why this module's batches must not be split; None if these few rows (two at least) speak for it.

    Leaves parameters, gradients, buffers, attributes and random state as they were.
    """
    reason = structure(module)
    if reason:
        return reason
    quiet = _Quiet(forward)
    with keep_untouched(module), torch.enable_grad():
        reason = _check_in_double(quiet, module, few)
        if reason is None:
            return None
        if reason != _NOT_IN_DOUBLE:
            return reason
    with keep_untouched(module), torch.enable_grad():
        return _check_own_precision(quiet, module, few)


def structure(module: torch.nn.Module) -> str | None:
    """What is known to be inexact or unsupported from the kinds of modules alone."""
    for name, each in module.named_modules():
        reason = _kind(each) or _hooks(each)
        if reason:
            return f"{name or type(module).__name__}: {reason}"
    return exactness.refusal(module)


def _kind(module: torch.nn.Module) -> str | None:
    for base in type(module).__mro__:
        if base.__name__ in _UNSUPPORTED:
            return _UNSUPPORTED[base.__name__]
    if isinstance(module, DataParallel):
        return "DataParallel splits batches itself: use DistributedDataParallel"
    if isinstance(module, DistributedDataParallel):
        return "DistributedDataParallel inside another module is not supported"
    if isinstance(module, torch.jit.ScriptModule):
        return "it is a TorchScript module"
    if getattr(module, "_compiled_call_impl", None) is not None:
        return _UNSUPPORTED["OptimizedModule"]
    return None


def _hooks(module: torch.nn.Module) -> str | None:
    """A hook would run more often than the script expects, and see parts of batches."""
    hooks = [*module._forward_hooks.values(), *module._backward_hooks.values()]
    for hook in (*module._forward_pre_hooks.values(), *module._backward_pre_hooks.values()):
        kinds = {base.__name__ for base in type(getattr(hook, "__self__", hook)).__mro__}
        hooks += [] if kinds & set(_HARMLESS_HOOKS) else [hook]
    names = [getattr(hook, "__qualname__", type(hook).__name__) for hook in hooks]
    return f"has a hook ({', '.join(names)}) that would see parts of batches" if names else None


CHANGES: Final = "the forward pass changes {}: in parts it would change more often"
_NOT_IN_DOUBLE: Final = "cannot be called in float64"


class _Quiet:
    """The script's forward pass without noise, on its own parameters or on others in their place."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self.replaced: dict[str, torch.Tensor] | None = None

    def buffer_versions(self, module: torch.nn.Module) -> dict[str, int]:
        """The versions of the float64 stand-ins: footprints of the module say nothing about them."""
        replaced = self.replaced or {}
        return {name: replaced[name]._version for name, _ in module.named_buffers() if name in replaced}

    def __call__(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        with Still(), inside():
            if self.replaced is None:
                return self._forward(module, *args, **kwargs)
            with _no_autocast(args):
                return functional_call(module, self.replaced, args, kwargs)


@contextlib.contextmanager
def _no_autocast(args: tuple[Any, ...]) -> Iterator[None]:
    kinds = {arg.device.type for arg in args if isinstance(arg, torch.Tensor)} | {"cpu"}
    with contextlib.ExitStack() as stack:
        for kind in sorted(kinds):
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _check_in_double(quiet: _Quiet, module: torch.nn.Module, few: Call) -> str | None:
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    floating = [value for value in state.values() if value.is_floating_point()]
    size = sum(8 * value.numel() for value in floating)
    if all(value.dtype == torch.float64 for value in floating) or size > DOUBLED_BYTES_MAX:
        return _NOT_IN_DOUBLE
    quiet.replaced = {
        name: (
            value.detach().double() if value.is_floating_point() else value.detach().clone()
        ).requires_grad_(value.requires_grad)
        for name, value in state.items()
    }
    doubled = object.__new__(Call)
    doubled.__dict__.update(vars(few))
    doubled.leaves = [
        leaf.detach().double().requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        else leaf
        for leaf in few.leaves
    ]
    wanted = [quiet.replaced[name] for name, p in module.named_parameters() if p.requires_grad]
    try:
        return _compare_parts(quiet, module, doubled, wanted, exactness.TOLERANCE[torch.float64])
    except Uncut as error:
        return str(error)
    except Exception:  # noqa: BLE001  # The module is foreign, and the script never asked for float64.
        return _NOT_IN_DOUBLE
    finally:
        quiet.replaced = None


def _check_own_precision(quiet: _Quiet, module: torch.nn.Module, few: Call) -> str | None:
    wanted = [p for p in module.parameters() if p.requires_grad]
    low = exactness.TOLERANCE_LOW_PRECISION
    tolerance = max((exactness.TOLERANCE.get(p.dtype, low) for p in wanted), default=low)
    if any(torch.is_autocast_enabled(kind) for kind in {p.device.type for p in wanted}):
        tolerance = low
    try:
        return _compare_parts(quiet, module, few, wanted, tolerance)
    except Uncut as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  # A check must not end the script, whatever it meets.
        return f"it could not be checked on a few rows of a batch ({type(error).__name__}: {error})"


def _compare_parts(
    quiet: _Quiet, module: torch.nn.Module, few: Call, wanted: Sequence[torch.Tensor], tolerance: float
) -> str | None:
    args, kwargs = few.arguments(few.leaves)
    _seed_again()
    quiet(module, *args, **kwargs)  # what is only computed at the first call is there from now on
    before = footprints(module)
    buffers = quiet.buffer_versions(module)
    versions = [leaf._version for leaf in few.leaves if isinstance(leaf, torch.Tensor)]
    _seed_again()
    whole = quiet(module, *args, **kwargs)
    for name, now in footprints(module).items():
        if before.get(name) != now:
            return CHANGES.format(name)
    for name, version in quiet.buffer_versions(module).items():
        if buffers[name] != version:
            return CHANGES.format(name)
    if versions != [leaf._version for leaf in few.leaves if isinstance(leaf, torch.Tensor)]:
        return "the forward pass changes its inputs in place"
    _seed_again()
    parts = split_forward(quiet, module, few, 2)
    return _difference(tensors_of(whole), tensors_of(parts), wanted, tolerance)


def _difference(
    whole: Sequence[torch.Tensor],
    parts: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
    tolerance: float,
) -> str | None:
    if [(t.shape, t.dtype) for t in whole] != [(t.shape, t.dtype) for t in parts]:
        return "what it returns has another shape in parts"
    what = "output"
    largest, apart = _apart(whole, parts)
    if apart <= tolerance * largest:
        what = "gradient"
        weights = [_weights(each) for each in whole]
        largest, apart = _apart(_pulled_back(whole, weights, wanted), _pulled_back(parts, weights, wanted))
    if not (math.isfinite(largest) and math.isfinite(apart)):
        return "it could not be checked on a few rows of a batch (values are not finite)"
    if apart <= tolerance * largest:
        return None
    return (
        f"its rows depend on each other: the {what} of a few rows in parts is {apart:.1e} away from that at "
        f"once (the largest entry is {largest:.1e})"
    )


def _pulled_back(
    outputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    pairs = [(each, weight) for each, weight in zip(outputs, weights) if each.requires_grad]
    if not pairs:
        return []
    found: tuple[Any, ...] = torch.autograd.grad(
        [each for each, _ in pairs], wanted, [weight for _, weight in pairs], allow_unused=True
    )
    return [torch.zeros_like(p) if g is None else g.detach() for p, g in zip(wanted, found)]


def _weights(output: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(output.numel())
    drawn = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    return drawn.to(output.device, output.dtype if output.is_floating_point() else torch.float64)


def _apart(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> tuple[float, float]:
    """(largest entry, largest difference)."""
    largest = apart = 0.0
    for a, b in zip(left, right):
        if not a.numel():
            continue
        a, b = a.detach(), b.detach()
        if not (a.is_floating_point() or a.is_complex()):
            a, b = a.double(), b.double()
        largest = max(largest, float(a.abs().max()))
        apart = max(apart, float((a - b).abs().max()))
    return largest, apart


def _seed_again() -> None:
    """Noise that is left draws the same numbers for the whole and for the parts."""
    import random

    torch.manual_seed(0)
    random.seed(0)


# --- On the side, without a trace ------------------------------------------------------------------


_DROPOUTS: Final = frozenset(
    f"{kind}{ending}"
    for kind in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
    for ending in ("", "_")
) | {"dropout1d", "dropout2d", "dropout3d"}
_RECURRENT: Final = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
_NOISE: Final = {
    "rand": 0.5,
    "rand_like": 0.5,
    "uniform_": 0.5,
    "randn": 0.0,
    "randn_like": 0.0,
    "normal_": 0.0,
    "bernoulli": 1.0,
    "bernoulli_": 1.0,
}


class Still(TorchFunctionMode):
    """Noise becomes a constant. Dropout passes everything on."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if name == "scaled_dot_product_attention":
            args, kwargs = args[:4] + (0.0,) * (len(args) > 4) + args[5:], kwargs
            if "dropout_p" in kwargs:
                kwargs["dropout_p"] = 0.0
        elif name == "multi_head_attention_forward":
            kwargs["training"] = False  # decides over dropout and nothing else
        elif name in _RECURRENT:
            args = tuple(0.0 if type(arg) is float else arg for arg in args)
        made = func(*args, **kwargs)
        # One number per row could be a permutation in the making: leave it, so that it shows.
        if name in _NOISE and isinstance(made, torch.Tensor) and made.dim() != 1:
            return made.detach().fill_(_NOISE[name])
        return made


@contextmanager
def keep_untouched(module: torch.nn.Module) -> Iterator[None]:
    """Undo what happens to the module inside, and put the random state back."""
    attributes = {each: dict(vars(each)) for each in module.modules()}
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    python, numpy = random.getstate(), sys.modules.get("numpy")
    drawn = numpy.random.get_state() if numpy is not None else None
    devices = sorted({p.get_device() for p in module.parameters() if p.is_cuda})
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(drawn)
        for each, before in attributes.items():
            vars(each).clear()
            vars(each).update(before)
        with torch.no_grad():
            for buffer, value in buffers:
                if buffer.shape == value.shape and not torch.equal(buffer, value):
                    buffer.copy_(value)


def footprints(module: torch.nn.Module) -> dict[str, object]:
    """What a forward pass could leave behind: attributes by identity, containers by length, buffers by
    version."""
    found: dict[str, object] = {}
    for prefix, each in module.named_modules():
        for name, value in vars(each).items():
            if name in ("_parameters", "_modules", "_buffers"):
                continue
            length = len(value) if isinstance(value, (list, dict, set)) else None
            plain = isinstance(value, (bool, int, float, str, type(None)))
            found[f"{prefix}.{name}".lstrip(".")] = (value if plain else id(value), length)
        for name, buffer in each._buffers.items():
            if buffer is not None:
                found[f"{prefix}.{name}".lstrip(".")] = (id(buffer), buffer._version)
    return found
