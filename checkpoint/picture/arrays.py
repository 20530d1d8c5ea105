"""Tensors and numpy's arrays: how a picture sees that one was written to, and gives it back what it held."""

from __future__ import annotations

import ast
import importlib
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch

from cotenant.checkpoint.picture.digest import digest_plain, digest_tensor
from cotenant.checkpoint.picture.kinds import LIST, Kind, Reached, attributes, same

KEPT_BYTES_MAX: Final = 1 << 20
"""Of one array or tensor, to be put back."""


class ArrayState(NamedTuple):
    form: tuple[Any, ...]
    crc: int
    content: bytes | None
    """None: too large to be kept."""


def text_of(dtype: Any) -> str:
    """A type of numpy's, with the names of its fields."""
    return dtype.str if dtype.names is None else repr(_format().dtype_to_descr(dtype))


def array_of(text: str, shape: Sequence[int], content: bytes) -> Any:
    """An array with this content, which cannot be written to."""
    dtype = _format().descr_to_dtype(ast.literal_eval(text)) if text.startswith("[") else text
    return sys.modules["numpy"].frombuffer(content, dtype=dtype).reshape(tuple(shape))


def _format() -> Any:
    return importlib.import_module("numpy.lib.format")


class ArrayKind(Kind):
    """numpy's arrays. One of objects is read as a list; one that is read-only does not change."""

    def read(self, value: Any) -> Any:
        form = (text_of(value.dtype), value.shape)
        if value.dtype.hasobject:
            return value.ravel().tolist()
        if not value.flags.writeable:
            return ArrayState(form, 0, None)
        content = value.tobytes() if value.nbytes <= KEPT_BYTES_MAX else None
        if content is None:
            whole = sys.modules["numpy"].ascontiguousarray(value).reshape(-1).view("u1")
            return ArrayState(form, zlib.crc32(whole), None)
        return ArrayState(form, zlib.crc32(content), content)

    def parts(self, value: Any, state: Any) -> Iterable[Reached]:
        if isinstance(state, list):
            yield from LIST.parts(state, state)
        yield from attributes(value)

    def replace(self, state: Any, by: Callable[[Any], Any]) -> Any:
        return LIST.replace(state, by) if type(state) is list else state

    def is_same(self, before: Any, now: Any) -> bool:
        if type(before) is list is type(now):
            return LIST.is_same(before, now)
        return type(before) is type(now) and bool(before == now)

    def digest(self, state: Any, name_of: Callable[[Any], str]) -> int:
        if type(state) is list:
            return LIST.digest(state, name_of)
        return digest_plain([repr(state.form), state.crc])

    def put_back(self, value: Any, before: Any) -> None:
        if type(before) is ArrayState and before.content is not None and value.shape == before.form[1]:
            value[...] = array_of(before.form[0], before.form[1], before.content)


UNFORMED: Final[Any] = vars(torch.nn.parameter)["UninitializedTensorMixin"]
"""Of a lazy module, before its first forward pass."""
HOOKS: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")


class TensorState(NamedTuple):
    at: int
    version: int
    form: tuple[Any, ...]
    grad: Any
    hooks: tuple[Any, ...]
    """On its gradient; a dictionary each, or None."""
    content: Any
    """Of a state that is kept: a copy, or a number for what is in it; None, for what is too large."""


class TensorKind(Kind):
    """A tensor is read by where its memory is and how often it was written to; by what is in it where that
    was kept, because some of torch's own kernels (running statistics) write without being counted."""

    def read(self, value: Any) -> Any:
        if isinstance(value, UNFORMED):
            return TensorState(0, 0, (None, (), value.requires_grad, value.device), None, (None, None), None)
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            is_plain = value.layout is torch.strided and not value.is_nested
            form = (value.dtype, tuple(value.shape), value.requires_grad, value.device)
            try:
                at = value.untyped_storage().data_ptr() if is_plain else 0
                version = 0 if value.is_inference() else value._version
            except RuntimeError:  # Of a tensor that has no memory of its own, or stands for one.
                at = version = 0
            grad = value.grad if value.is_leaf else None
            hooks = value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None)
            return TensorState(at, version, form, grad, hooks, value.detach() if at else None)

    def copy(self, state: TensorState) -> TensorState:
        """What was read, with a copy of what is in the tensor."""
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            return state._replace(content=state.content.clone())

    def parts(self, value: Any, state: Any) -> Iterable[Reached]:
        if state.grad is not None:
            yield ".grad", state.grad
        yield from attributes(value)
        for name, hooks in zip(HOOKS, state.hooks):
            if hooks is not None:
                yield f".{name}", hooks

    def places(self, state: Any) -> Iterable[tuple[Any, Any]]:
        return (("grad", state.grad), *zip(HOOKS, state.hooks))

    def part_at(self, value: Any, place: Any) -> Any:
        return getattr(value, place, None)

    def replace(self, state: Any, by: Callable[[Any], Any]) -> Any:
        return state._replace(grad=by(state.grad), hooks=tuple(map(by, state.hooks)))

    def is_same(self, before: Any, now: Any) -> bool:
        if before[:3] != now[:3] or not same(before.grad, now.grad):
            return False
        if not all(map(same, before.hooks, now.hooks)):
            return False
        if type(before.content) is int:
            known = type(now.content) is int
            return bool(before.content == (now.content if known else digest_tensor(now.content)))
        return before.content is None or _equal_bits(before.content, now.content)

    def digest(self, state: Any, name_of: Callable[[Any], str]) -> int:
        """Whether a gradient is wanted counts of a leaf alone, and where the memory is not at all."""
        content = 0 if state.content is None else digest_tensor(state.content)
        form = f"{state.form[0]} {state.form[1]}"
        return digest_plain([form, content, "" if state.grad is None else name_of(state.grad)])

    def put_back(self, value: Any, before: Any) -> None:
        now = self.read(value)
        if before.content is not None and type(before.content) is not int:
            with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
                self._fill(value, before)
        if before.grad is not now.grad:
            value.grad = before.grad
        for name, hooks, present in zip(HOOKS, before.hooks, now.hooks):
            if hooks is not present:
                setattr(value, name, hooks)

    def _fill(self, value: Any, before: TensorState) -> None:
        if isinstance(value, UNFORMED):
            value.materialize(before.form[1], dtype=before.form[0])
        if value.is_leaf and before.form[2] != value.requires_grad:
            value.requires_grad_(before.form[2])
        if before.form[:2] == (value.dtype, tuple(value.shape)):
            value.copy_(before.content)
        else:
            value.data = before.content.to(value.device).clone()
        if before.version >= 0:
            _set_version(value, before.version)


_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _equal_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Compares two tensors of one form; not a number equals itself."""
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        if left.is_complex():
            left, right = torch.view_as_real(left), torch.view_as_real(right)
        bits = _BITS[left.element_size()]
        return bool(torch.equal(left.view(bits), right.view(bits)))


def _set_version(tensor: torch.Tensor, version: int) -> None:
    """What was put back counts as never written: autograd may have kept the tensor for a backward pass."""
    set_version: Any = torch._C._autograd._unsafe_set_version_counter
    try:
        set_version((tensor,), (version,))
    except TypeError:  # Before torch 2.6 it took one tensor.
        set_version(tensor, version)


ARRAY: Final = ArrayKind()
TENSOR: Final = TensorKind()
