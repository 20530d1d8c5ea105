"""Do a few real rows give the same outputs and gradients at once and in parts? Asked when a split is about to
begin, and again while it lasts.

Rule: we refuse what we cannot show to be exact. The module is called as the script calls it, in training
mode, on rows of the script's own batch, through the very code that will split its batches, in float64 where
its parameters can be replaced, and the gradient is pulled back from random weights on every output, so that
no entry escapes because this batch's loss happens not to look at it.

Rule: the check leaves no trace. Everything that the script can reach is pictured before, put back after each
call, and compared; a forward pass that changes anything is refused, because in parts it would do so more
often, and one whose changes cannot be undone ends the attempt. A forward pass that draws random numbers is
not the same run in parts. Only where the user allows an equivalent run is it split; noise that is independent
for each element is then replaced by a constant for the comparison, and noise that could mix rows (a
permutation) is left alone, so that it is found.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.func import functional_call
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.overrides import TorchFunctionMode

from cotenant.checkpoint import guard, ownership, picture
from cotenant.checkpoint.picture.arrays import UNFORMED
from cotenant.checkpoint.picture.objects import GeneratorKind
from cotenant.gradaccum import exactness, modules
from cotenant.gradaccum.rows import Call, Uncut, tensors_of
from cotenant.gradaccum.zerocode.forward import Forward, SplitForward, inside

ROWS_MAX: Final = 64
"""Never more than a part of the split may hold, so that the check takes no more memory than the split."""
DOUBLED_BYTES_MAX: Final = 1 << 30
"""A larger model's parameters are not copied to float64; its own precision must do."""

_UNSUPPORTED: Final = {
    "FullyShardedDataParallel": "FullyShardedDataParallel shards its parameters between forward passes",
    "FSDPModule": "fully_shard shards its parameters between forward passes",
    "DeepSpeedEngine": "DeepSpeed runs the backward pass itself",
    "OptimizedModule": "torch.compile fixes the batch it was compiled for",
}
_HARMLESS_HOOKS: Final = ("WeightNorm", "BasePruningMethod")
CHANGES: Final = "its forward pass changes {}: in parts it would change more often"
DRAWS: Final = (
    "its forward pass draws random numbers ({}), which would be others in parts: --accumulate equivalent "
    "allows that"
)
_NOT_IN_DOUBLE: Final = "cannot be called in float64"


def structure(module: torch.nn.Module) -> str | None:
    """What is known to be inexact or unsupported from the kinds of modules alone."""
    for part in modules.parts_of(module):
        reason = _kind(part) or _hooks(part)
        if reason:
            return f"{part.name or type(module).__name__}: {reason}"
    return exactness.refusal(module)


def _kind(part: modules.ModuleParts) -> str | None:
    kind = type(part.module)
    for base in kind.__mro__:
        if base.__name__ in _UNSUPPORTED:
            return _UNSUPPORTED[base.__name__]
    if issubclass(kind, DataParallel):
        return "DataParallel splits batches itself: use DistributedDataParallel"
    if issubclass(kind, DistributedDataParallel):
        return "DistributedDataParallel inside another module is not supported"
    if issubclass(kind, torch.jit.ScriptModule):
        return "it is a TorchScript module"
    if part.module.__dict__.get("_compiled_call_impl") is not None:
        return _UNSUPPORTED["OptimizedModule"]
    tensors = (*part.table("_parameters").values(), *part.table("_buffers").values())
    if any(isinstance(each, UNFORMED) for each in tensors):
        return "its parameters get their shapes in its first forward pass"
    return None


def _hooks(part: modules.ModuleParts) -> str | None:
    """A hook would run more often than the script expects, and see parts of batches."""
    hooks = [*part.table("_forward_hooks").values(), *part.table("_backward_hooks").values()]
    for hook in (*part.table("_forward_pre_hooks").values(), *part.table("_backward_pre_hooks").values()):
        kinds = {base.__name__ for base in type(getattr(hook, "__self__", hook)).__mro__}
        hooks += [] if kinds & set(_HARMLESS_HOOKS) else [hook]
    names = [getattr(hook, "__qualname__", type(hook).__name__) for hook in hooks]
    return f"has a hook ({', '.join(names)}) that would see parts of batches" if names else None


def rows_to_check(rows: int, part_rows: int) -> torch.Tensor:
    """Rows from all over a batch of which the largest part has `part_rows`."""
    return torch.linspace(0, rows - 1, max(2, min(ROWS_MAX, rows, part_rows))).round().long()


class RowCheck:
    """The check of one module. `generators`: which generators its forward pass was seen to draw from."""

    def __init__(self, forward: Forward, module: torch.nn.Module, *, allows_noise: bool) -> None:
        self._forward, self._module = forward, module
        self._allows_noise, self._has_noise = allows_noise, False
        self.generators: list[Any] = []

    def objection(self, few: Call) -> str | None:
        """Why this module's batches must not be split; None if these few rows (two at least) speak for it.

        Everything that the script can reach is as it was afterwards, or the attempt ends here.
        """
        reason = structure(self._module)
        if reason:
            return reason
        thread = ownership.own_thread()
        if thread:
            return f"nobody can tell what it changes beside what the script's thread {thread} does"
        name = type(self._module).__name__
        try:
            self._picture = picture.Picture([(name, self._module), *picture.process_roots()], copies=True)
        except picture.PictureTooLarge as error:
            return f"it cannot be checked without a trace: {error}"
        try:
            with torch.enable_grad(), inside(), _watching_files() as written:
                reason = self._check(few) or _file_objection(written)
        finally:
            self._undo()
            torch.clear_autocast_cache()
        return reason

    def _undo(self) -> None:
        left = self._picture.put_back()
        if left:
            exactness.end_attempt(
                f"{type(self._module).__name__}: its forward pass changes {left[0]}, which cannot be undone"
            )

    def _check(self, few: Call) -> str | None:
        """Calls the module. Raises nothing: what goes wrong in a call is a reason."""
        try:
            reason = self._look_for_changes(few)
            if reason is None:
                reason = self._compare_in_double(few)
            return self._compare_in_own_precision(few) if reason == _NOT_IN_DOUBLE else reason
        except Uncut as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  # the script's own code; whatever it is, it is no proof
            return f"it could not be checked on a few rows of a batch ({type(error).__name__}: {error})"

    def _look_for_changes(self, few: Call) -> str | None:
        """One call as the script makes it: what is not as it was before?"""
        before = [leaf._version for leaf in few.leaves if isinstance(leaf, torch.Tensor)]
        args, kwargs = few.arguments(few.leaves)
        self._forward(self._module, *args, **kwargs)
        changes = [each for each in self._picture.changes() if not each.path.endswith("__warningregistry__")]
        drawn = [each for each in changes if isinstance(each.kind, GeneratorKind)]
        self.generators = [each.value for each in drawn]
        self._has_noise = bool(drawn)
        stays = next((each for each in changes if not isinstance(each.kind, GeneratorKind)), None)
        self._undo()
        if stays is not None:
            return CHANGES.format(stays.path)
        if before != [leaf._version for leaf in few.leaves if isinstance(leaf, torch.Tensor)]:
            return "its forward pass changes its inputs in place"
        return DRAWS.format(drawn[0].path) if drawn and not self._allows_noise else None

    def _compare_in_double(self, few: Call) -> str | None:
        module = self._module
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        floating = [value for value in state.values() if value.is_floating_point()]
        size = sum(8 * value.numel() for value in floating)
        if all(value.dtype == torch.float64 for value in floating) or size > DOUBLED_BYTES_MAX:
            return _NOT_IN_DOUBLE
        replaced = {
            name: (
                value.detach().double() if value.is_floating_point() else value.detach().clone()
            ).requires_grad_(value.requires_grad)
            for name, value in state.items()
        }
        doubled = few.replace_leaves(
            [
                leaf.detach().double().requires_grad_(leaf.requires_grad) if _is_floating(leaf) else leaf
                for leaf in few.leaves
            ]
        )

        def forward(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            with _no_autocast(doubled.leaves), _double_by_default():
                return functional_call(module, replaced, args, kwargs)

        wanted = [value for value in replaced.values() if value.requires_grad]
        try:
            return self._compare(forward, doubled, wanted, exactness.TOLERANCE[torch.float64])
        except Uncut:
            raise
        except Exception:  # noqa: BLE001  # a constant of another precision, say: its own is tried next
            self._undo()
            return _NOT_IN_DOUBLE

    def _compare_in_own_precision(self, few: Call) -> str | None:
        wanted = [each for each in self._module.parameters() if each.requires_grad]
        kinds = {leaf.device.type for leaf in few.leaves if isinstance(leaf, torch.Tensor)}
        low = any(torch.is_autocast_enabled(kind) for kind in kinds)
        precisions = [exactness.TOLERANCE.get(p.dtype, exactness.TOLERANCE_LOW_PRECISION) for p in wanted]
        tolerance = exactness.TOLERANCE_LOW_PRECISION if low else max(precisions, default=0.0)
        return self._compare(self._forward, few, wanted, tolerance)

    def _compare(
        self, forward: Forward, few: Call, wanted: Sequence[torch.Tensor], tolerance: float
    ) -> str | None:
        """The rows at once against the same rows in two parts of different sizes."""

        def still(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            with Still() if self._has_noise else contextlib.nullcontext():
                return forward(module, *args, **kwargs)

        wanted = [
            *wanted,
            *(leaf for leaf in few.leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad),
        ]
        args, kwargs = few.arguments(few.leaves)
        _seed_again()
        whole = _Made.from_run(lambda: still(self._module, *args, **kwargs), wanted)
        self._undo()
        _seed_again()
        parts = _Made.from_run(SplitForward(still, self._module, few, 2).run, wanted)
        self._undo()
        return _difference(whole, parts, tolerance)


class _Made(NamedTuple):
    """What a forward pass returns and which gradients that gives, without the activations in between."""

    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor]

    @classmethod
    def from_run(cls, forward: Callable[[], Any], wanted: Sequence[torch.Tensor]) -> _Made:
        outputs = tensors_of(forward())
        gradients = _pulled_back(outputs, [_weights(each) for each in outputs], wanted)
        return cls([each.detach() for each in outputs], gradients)


def _difference(whole: _Made, parts: _Made, tolerance: float) -> str | None:
    if [(t.shape, t.dtype) for t in whole.outputs] != [(t.shape, t.dtype) for t in parts.outputs]:
        return "what it returns has another shape in parts"
    what = "output"
    largest, apart = _apart(whole.outputs, parts.outputs)
    if apart <= tolerance * largest:
        what = "gradient"
        largest, apart = _apart(whole.gradients, parts.gradients)
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
        if not (a.is_floating_point() or a.is_complex()):
            a, b = a.double(), b.double()
        largest = max(largest, float(a.abs().max()))
        apart = max(apart, float((a - b).abs().max()))
    return largest, apart


def _seed_again() -> None:
    """Noise that is left draws the same numbers for the whole and for the parts."""
    torch.manual_seed(0)
    random.seed(0)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed(0)


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


@contextlib.contextmanager
def _double_by_default() -> Iterator[None]:
    """What the forward pass makes itself is made in float64 as well."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _no_autocast(leaves: Sequence[Any]) -> Iterator[None]:
    kinds = {leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)} | {"cpu"}
    with contextlib.ExitStack() as stack:
        for kind in sorted(kinds):
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


# --- What a forward pass does besides computing -----------------------------------------------------


class _Silence:
    """Stands for a stream, and keeps that something was written to it."""

    def __init__(self, stream: Any, written: list[str], what: str) -> None:
        self._stream, self._written, self._what = stream, written, what

    def write(self, text: str) -> int:
        self._written.append(self._what)
        return len(text)

    def flush(self) -> None:
        return

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_ACTIONS: Final = frozenset(
    (
        "os.remove",
        "os.rename",
        "os.mkdir",
        "os.rmdir",
        "subprocess.Popen",
        "socket.connect",
        "socket.sendto",
        "os.system",
    )
)
_noted: list[list[str]] = []
"""Where what the process does is noted, while a check runs."""
_listening: list[bool] = []
"""Not empty: the process has our audit hook, which cannot be taken away again."""


@guard.door
def _hear_event(event: str, args: tuple[Any, ...]) -> None:
    if _noted:
        guard.SPLITTING.run(_note_event, event, args)


def _note_event(event: str, args: tuple[Any, ...]) -> None:
    writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
    if (writes or event in _ACTIONS) and not ownership.is_in_import(sys._getframe(1)):
        _noted[-1].append(f"writes {args[0]}" if writes else event)


@contextlib.contextmanager
def _watching_files() -> Iterator[list[str]]:
    """Keeps what is printed from the script's output, and lists what else leaves the process."""
    if not _listening:
        _listening.append(True)
        guard.listen_for((*_ACTIONS, "open"), _hear_event)
    written: list[str] = []
    before = sys.stdout, sys.stderr
    sys.stdout = _Silence(before[0], written, "prints")
    sys.stderr = _Silence(before[1], written, "prints")
    _noted.append(written)
    try:
        yield written
    finally:
        _noted.pop()
        sys.stdout, sys.stderr = before


def _file_objection(written: Sequence[str]) -> str | None:
    return f"its forward pass {written[0]}: in parts it would do so more often" if written else None


# --- Noise ------------------------------------------------------------------------------------------


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
