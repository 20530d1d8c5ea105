"""Running a script's own module on the side, without noise and without a trace.

Rule: whoever looks at the module afterwards finds it as it was: random state, attributes, buffers,
gradients. Noise that is independent for each element (dropout, stochastic depth, added noise) is replaced by
a constant, because it differs between a whole batch and its parts without being wrong; noise that could mix
rows (a permutation) is left alone, so that it is found.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

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
def untouched(module: torch.nn.Module) -> Iterator[None]:
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
