"""Types of objects that never change and hold nothing that does."""

from __future__ import annotations

import datetime
import decimal
import enum
import io
import re
import types
import weakref
from pathlib import PurePath
from typing import Final

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
BASES: Final = (enum.Enum, PurePath, BaseException, io.IOBase)
"""Of whatever class; files are no state of a process's memory."""
OTHERS: Final = frozenset(("cotenant", "multiprocessing", "queue", "threading"))
"""Packages whose objects other threads change at any time: to put those back would lose what came in."""
