"""Types of objects that never change and hold nothing that does."""

from __future__ import annotations

import datetime
import decimal
import enum
import io
import re
import types
import weakref
from collections.abc import Iterable
from itertools import chain
from pathlib import PurePath
from typing import Any, Final

import torch

PLAIN: Final = frozenset((bool, int, float, complex, str, bytes, type(None)))
"""Types whose values are compared by what they are."""
ATOMS: Final[frozenset[object]] = PLAIN | {
    type(Ellipsis),
    type(NotImplemented),
    range,
    slice,
    datetime.datetime,
    datetime.date,
    datetime.timedelta,
    decimal.Decimal,
    re.Pattern,
    types.CodeType,
    types.ModuleType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.FrameType,
    types.TracebackType,
    weakref.ref,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
}
ATOMS_AND_TUPLES: Final = ATOMS | {tuple}
BASES: Final = (enum.Enum, PurePath, BaseException, io.IOBase, types.ModuleType)
"""Of whatever class; files are no state of a process's memory, and the names of the script's own modules are
met as such."""
IN_MEMORY: Final = (io.StringIO, io.BytesIO)
"""But these are."""


def is_tuple(value: object) -> bool:
    return type(value) is tuple


def holds_only(kinds: frozenset[object], tuples: Iterable[Any]) -> bool:
    """Whether these tuples, and tuples in them, hold objects of these types only."""
    waiting = list(tuples)
    while waiting:
        found = set(map(type, chain.from_iterable(waiting)))
        if found <= kinds:
            return True
        if not found <= kinds | {tuple}:
            return False
        waiting = [each for each in chain.from_iterable(waiting) if type(each) is tuple]
    return True
