"""What a picture shows, as numbers that two processes can compare.

Rule: an object counts by the path by which it was met first. A second way to it is written as that path, so
that it shows where two things are one, or are exchanged. Code counts by its name; what only shows where a
loop is, counts not at all.
"""

from __future__ import annotations

import ctypes
import marshal
import types
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from cotenant.checkpoint.picture.atoms import PLAIN, holds_only, is_tuple

ADDRESSES: Final = 1 << 40
"""Where the memory of a process of 64 bits has its objects, at least."""
_VERSION: Final = 2
"""Of marshal's format: later ones depend on how often an object is referred to."""
_COLUMNS: Final = 1024
_WITH_TUPLES: Final = PLAIN | {tuple}


def digest_plain(values: Sequence[Any]) -> int:
    """Of plain values only."""
    return zlib.crc32(marshal.dumps(list(values), _VERSION))


def digest_items(items: Sequence[Any], name_of: Callable[[Any], str]) -> int:
    """Of what a container holds. `name_of`: how an object that is no plain value is written."""
    kinds = set(map(type, items))
    if int in kinds and any(map(is_address, items)):
        return digest_plain(
            [each if type(each) in PLAIN and not is_address(each) else (name_of(each),) for each in items]
        )
    if kinds <= PLAIN or (kinds <= _WITH_TUPLES and holds_only(PLAIN, filter(is_tuple, items))):
        return digest_plain(items)
    return digest_plain([each if type(each) in PLAIN else (name_of(each),) for each in items])


def is_address(value: Any) -> bool:
    """Whether a value may be the `id` of an object, which another process has elsewhere."""
    return type(value) is int and value >= ADDRESSES


def name_of_constant(value: Any) -> str:
    """How something is written that never changes: code by its name, a value by what it prints."""
    if issubclass(type(value), (type, types.FunctionType, types.BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    if issubclass(type(value), types.ModuleType):
        return f"module {value.__name__}"
    if issubclass(type(value), types.CodeType):
        return f"code {value.co_name} {value.co_firstlineno}"
    kind = type(value)
    if kind is tuple:
        return f"({', '.join(map(name_of_constant, value))})"
    if kind in PLAIN or kind in _PRINTED or kind.__module__ in _PRINTED_MODULES:
        return f"{kind.__name__} {value!r}"
    name = getattr(value, "_name_", None)  # Of an enumeration.
    return f"{kind.__module__}.{kind.__qualname__} {name if isinstance(name, str) else ''}"


_PRINTED: Final = (range, slice, type(Ellipsis), type(NotImplemented))
_PRINTED_MODULES: Final = ("datetime", "decimal", "pathlib", "torch", "numpy", "re")


def digest_tensor(tensor: torch.Tensor) -> int:
    """Of what is in a tensor. On a device by sums over rows and columns of its bits, so that an entry that
    changes, and two that change places, show."""
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor.detach()
        flat = flat.contiguous().reshape(-1)
        size = flat.numel() * flat.element_size()
        if not size:
            return 0
        if flat.device.type == "cpu":
            return zlib.crc32((ctypes.c_ubyte * size).from_address(flat.data_ptr()))
        bits = flat.view(torch.uint8)
        whole = size // _COLUMNS * _COLUMNS
        found = [_sum_of(bits[whole:])]
        if whole:
            table = bits[:whole].view(-1, _COLUMNS)
            found += [_sum_of(table.sum(0, dtype=torch.int64)), _sum_of(table.sum(1, dtype=torch.int64))]
        return digest_plain([int(each) for each in torch.stack(found).tolist()])


def _sum_of(row: torch.Tensor) -> torch.Tensor:
    """A sum in which every place has a weight of its own."""
    places = torch.arange(1, row.numel() + 1, device=row.device, dtype=torch.int64)
    return (row.to(torch.int64) * places).sum()
