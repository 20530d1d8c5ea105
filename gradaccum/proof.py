"""Does a batch in parts have the gradient that it has at once? Measured on a few rows, without a trace.

Rule: the script's own code computes the gradient, in its own mode, as it would in a step: what lies in
`.grad` afterwards counts, whatever hooks, clipping or scaling have done to it. Everything that can be reached
is put back, and compared with what it was.

Rule: what cannot be measured is refused. So is code that changes anything besides gradients (it would change
it once per part), and code that draws random numbers (parts draw others than the whole), unless the user has
allowed that.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, Union

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from cotenant.gradaccum import aside, exactness, occasions, schedule

COMPARED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of the gradients that are compared, the only ones that are kept. A loss that does not split shows in every
layer, so the smaller parameters do for a large model."""

RANDOM: Final = (
    "computing the loss draws random numbers ({0}), and parts of a batch draw others than the whole batch. "
    "--accumulate equivalent allows that (outside cotenant: COTENANT_ZERO_CODE=equivalent)"
)
CHANGES: Final = "computing the loss changes {0}: in parts it would change more often"
EXCHANGES: Final = (
    "computing the loss exchanges values with other ranks, which may not be checking theirs at the same steps"
)
TWICE: Final = "computing the loss of the same rows twice gives two gradients"
NOT_CHECKED: Final = "it could not be checked on a few rows of a batch: {0}"
NOT_PUT_BACK: Final = "a check on a few rows has changed {0}, and it could not be put back"
APART: Final = (
    "the gradient of a few rows in parts is {0:.1e} away from that at once (its largest entry is {1:.1e}): "
    "{2}"
)

Weight = Union[float, torch.Tensor]


class BatchPart:
    """Rows whose loss, times the weight, is wanted, and its gradient."""

    def __init__(self, batch: Any, weight: Weight, use: Literal["step", "proof", "watch"] = "proof") -> None:
        """use: what the gradient is for."""
        self.batch, self.weight, self.use = batch, weight, use
        self.nodes = 0
        """How many graph nodes its loss has taken; the caller's own word, or what was counted meanwhile."""

    def run(self) -> Generator[BatchPart, None, None]:
        """Hands the part to whoever computes its gradient."""
        began = occasions.count_nodes()
        yield self
        self.nodes = self.nodes or occasions.count_nodes() - began


Steps = Generator[BatchPart, None, Union[str, None]]


class Few(NamedTuple):
    """A few rows at once, where their loss has weight 1, and the same rows in parts, in several ways."""

    whole: Any
    ways: Sequence[Sequence[tuple[Any, Weight]]]


class LossFailed(Exception):
    """The script's code has failed during the proof; `__cause__` says how."""


class SplitProof:
    """One measurement. Of each part in `steps()` the caller computes the loss, times its weight, and calls
    backward."""

    def __init__(
        self, groups: Sequence[Few], take: Callable[[], aside.ScriptState], why: str, *, spared: str = ""
    ) -> None:
        """groups: of rows, one at least. take: everything that the script's code reaches, now. why: what is
        wrong if gradients differ. spared: the beginning of the paths whose changes count for nothing, because
        the whole batch would change them as often."""
        self._groups, self._take, self._why, self._spared = groups, take, why, spared
        self.parameters: Sequence[torch.Tensor] = ()
        """What gradients were computed for."""
        self.draws = False
        """Random numbers were drawn."""
        self.nodes: set[int] = set()
        """How many graph nodes the losses have taken."""
        self._autocast = False

    def steps(self) -> Steps:
        """Yields parts; returns why the batch must not be split, or None."""
        from cotenant.checkpoint.picture import PictureTooLarge

        try:
            before = self._take()
        except PictureTooLarge as error:
            return NOT_CHECKED.format(error)
        busy = before.changes() if threading.active_count() > 1 else ()
        if busy:
            return NOT_CHECKED.format(f"another thread changes {busy[0].path}")
        try:
            with aside.silence(), torch.enable_grad(), self._around(before.objects()) as leaves:
                reason = yield from self._measure(before, leaves)
        except LossFailed as error:
            cause = error.__cause__
            reason = NOT_CHECKED.format(f"{type(cause).__name__}: {cause}")
        except BaseException:
            before.put_back()
            raise
        changed = before.put_back()
        return NOT_PUT_BACK.format(changed[0]) if changed else reason

    def _measure(self, before: aside.ScriptState, leaves: _Leaves) -> Steps:
        leaves.clear()
        with _exchanges() as exchanges:
            yield from self._run(self._groups[0].whole, 1.0)
        first = leaves.take()
        if exchanges is not None and exchanges.seen:
            return EXCHANGES
        drawn = [each.path for each in before.changes() if is_generator(each)]
        self.draws = bool(drawn)
        if drawn and not exactness.allows_equivalent():
            return RANDOM.format(drawn[0])
        schedule.PROGRESS.is_equivalent |= self.draws
        with _still() if drawn else contextlib.nullcontext():
            after = self._take()  # What is only computed at the first call is there from now on.
            yield from self._run(self._groups[0].whole, 1.0)
            again = leaves.take()
            for each in after.changes():
                if not is_generator(each) and not (self._spared and each.path.startswith(self._spared)):
                    return CHANGES.format(_in_words(each.path))
            if not drawn and self._apart(again, first, leaves, TWICE) == TWICE:
                return TWICE
            for few in self._groups:
                reason = yield from self._compare(few, leaves)
                if reason is not None:
                    return reason
        return None

    def _compare(self, few: Few, leaves: _Leaves) -> Steps:
        yield from self._run(few.whole, 1.0)
        whole = leaves.take()
        for way in few.ways:
            total: list[torch.Tensor | None] = [None] * len(whole)
            for batch, weight in way:
                yield from self._run(batch, weight)
                total = [_sum(each, more) for each, more in zip(total, leaves.take())]
            reason = self._apart(whole, total, leaves, APART)
            if reason is not None:
                return reason
        return None

    def _run(self, batch: Any, weight: Weight) -> Generator[BatchPart, None, None]:
        part = BatchPart(batch, weight)
        yield from part.run()
        self.nodes.add(part.nodes)

    def _apart(
        self,
        whole: Sequence[torch.Tensor | None],
        parts: Sequence[torch.Tensor | None],
        leaves: _Leaves,
        reason: str,
    ) -> str | None:
        """The reason, filled in, if two gradients differ; another where there is nothing to compare."""
        if all(each is None for each in whole):
            return NOT_CHECKED.format("they have no gradient")
        largest = apart = 0.0
        for at_once, in_parts in zip(whole, parts):
            if at_once is None and in_parts is None:
                continue  # Not reached.
            left, right = (torch.zeros(()) if each is None else each.cpu() for each in (at_once, in_parts))
            if not left.numel():
                continue
            size, distance = float(left.abs().max()), float((left - right).abs().max())
            if not math.isfinite(size):
                return NOT_CHECKED.format("their gradient is not finite")
            if not math.isfinite(distance):
                return reason.format(distance, size, self._why)
            largest, apart = max(largest, size), max(apart, distance)
        tolerance = exactness.TOLERANCE_LOW_PRECISION if self._autocast else leaves.tolerance
        return reason.format(apart, largest, self._why) if apart > tolerance * largest else None

    @contextlib.contextmanager
    def _around(self, objects: Iterable[Any]) -> Iterator[_Leaves]:
        """The parameters whose gradients are compared. No gradient is exchanged with other ranks meanwhile:
        they may not be doing the same."""
        tensors, wrapped = [], []
        for each in objects:
            if isinstance(each, torch.Tensor) and each.is_leaf and each.requires_grad:
                tensors.append(each)
            elif isinstance(each, DistributedDataParallel):
                wrapped.append(each)
        own = [vars(ddp).get("forward") for ddp in wrapped]
        for ddp in wrapped:
            vars(ddp)["forward"] = ddp.module
        leaves, self.parameters = _Leaves(tensors), tensors
        hooks = [register_module_forward_pre_hook(self._note_autocast), *leaves.forget_others()]
        try:
            yield leaves
        finally:
            for hook in hooks:
                hook.remove()
            for ddp, forward in zip(wrapped, own):
                vars(ddp).pop("forward")
                if forward is not None:
                    vars(ddp)["forward"] = forward

    def _note_autocast(self, module: torch.nn.Module, _: Any) -> None:
        parameter = next(module.parameters(), None)
        if parameter is not None and torch.is_autocast_enabled(parameter.device.type):
            self._autocast = True


def _in_words(path: str) -> str:
    """A path as one says it of a model: `the buffer 0.mean`."""
    said = re.sub(r"\.(?:_modules|_parameters)\['([^']*)'\]", r".\1", path).removeprefix("model.")
    return re.sub(r"(.*?)\.?_buffers\['([^']*)'\]$", r"the buffer \1.\2", said).replace(" .", " ")


class _Exchanges(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Whether ranks have exchanged anything."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= func.namespace in ("c10d", "_c10d_functional")
        return func(*args, **(kwargs or {}))


def _exchanges() -> Any:
    """In a gang, what notices that ranks exchange something."""
    is_gang = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return _Exchanges() if is_gang else contextlib.nullcontext()  # type: ignore[no-untyped-call]


def is_generator(change: Any) -> bool:
    """Whether a change in a picture is that of a generator of random numbers."""
    from cotenant.checkpoint.picture.objects import DRAWS

    return change.kind is DRAWS


def _still() -> Any:
    """Noise becomes a constant: what is left of the difference is no noise."""
    from cotenant.gradaccum.zerocode.selfcheck import Still

    return Still()


class _Leaves:
    """The tensors that gradients are computed for."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._all = sorted(tensors, key=torch.Tensor.numel)
        room, count = COMPARED_BYTES_MAX, 0
        while count < len(tensors) and (room > 0 or not count):
            room -= self._all[count].numel() * self._all[count].element_size()
            count += 1
        self._compared = self._all[:count]
        kinds = {each.dtype for each in self._compared}
        self.tolerance = max(
            (exactness.TOLERANCE.get(kind, exactness.TOLERANCE_LOW_PRECISION) for kind in kinds), default=0.0
        )

    def forget_others(self) -> list[Any]:
        """Hooks by which gradients that are not compared are dropped as soon as they are there."""
        others = self._all[len(self._compared) :]
        return [each.register_post_accumulate_grad_hook(_drop) for each in others]  # type: ignore[no-untyped-call]

    def clear(self) -> None:
        for each in self._all:
            each.grad = None

    def take(self) -> list[torch.Tensor | None]:
        """The gradients, which are none afterwards."""
        found = [each.grad for each in self._compared]
        self.clear()
        return [None if each is None else each.to_dense() if each.is_sparse else each for each in found]


def _drop(tensor: torch.Tensor) -> None:
    tensor.grad = None


def _sum(total: torch.Tensor | None, more: torch.Tensor | None) -> torch.Tensor | None:
    if total is None or more is None:
        return more if total is None else total
    return total + more
