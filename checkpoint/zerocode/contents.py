"""What the objects of a script hold: attributes, closures, names of modules; and which objects are constant.

Rule: whatever is neither plain, nor known to be constant, nor an object whose attributes are all of these,
makes the script not resumable, and is named. A resume that forgets one object looks right and is wrong.
"""

from __future__ import annotations

import argparse
import enum
import functools
import logging
import os
import re
import sys
import types
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._contextlib import _DecoratorContextManager
from torch.utils.data import DataLoader, Dataset, Sampler

from cotenant.checkpoint.picture.ownership import is_scripts_own
from cotenant.checkpoint.training import rng
from cotenant.checkpoint.zerocode.changes import changed_attributes
from cotenant.checkpoint.zerocode.refusals import NotPlain

PLAIN: Final = frozenset((bool, int, float, complex, str, bytes, type(None)))
"""Types whose values a checkpoint holds as they are."""
_CONSTANT: Final = (
    type,
    range,
    slice,
    enum.Enum,
    os.PathLike,
    re.Pattern,
    types.BuiltinFunctionType,
    logging.Logger,
    argparse.ArgumentParser,
    torch.dtype,
    torch.device,
    torch.Size,
    _DecoratorContextManager,
    torch.autocast,
)
DISPLAYS: Final = ("tqdm", "rich")
"""Packages whose objects only show where a loop is."""
_ATTRIBUTES: Final = (argparse.Namespace, types.SimpleNamespace)
_ACTIVE: Final = (types.FunctionType, types.MethodType, functools.partial, Dataset, Sampler)
"""Of what a data set holds: more than data."""
PARTS_MAX: Final = 64
"""Of a data set's list: one that is longer is data."""
DATA: Final = (DataLoader, Dataset, Sampler)


class Content(NamedTuple):
    """A thing that an object holds. `owner`: whose attribute the thing is; None: it cannot be replaced."""

    key: str
    value: Any
    owner: Any = None


def is_display(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in DISPLAYS


def contents(path: str, value: Any, stored: frozenset[str]) -> Iterator[Content]:
    """What an object that is no plain value holds. Raises NotPlain: nobody knows.

    Args:
        stored: attributes that the loop sets or changes, of whatever object.
    """
    kind = type(value)
    if is_display(value):
        return
    if isinstance(value, types.FunctionType):
        yield from _function_contents(value)
    elif isinstance(value, types.MethodType):
        yield Content("self", value.__self__)
    elif isinstance(value, functools.partial):
        yield from (
            Content("func", value.func),
            Content("args", value.args),
            Content("keywords", value.keywords),
        )
    elif isinstance(value, types.ModuleType):
        if is_scripts_own(value.__name__) and value.__name__ != "__main__":
            yield from _namespace_contents(value)
    elif isinstance(value, type):
        if is_scripts_own(value.__module__):
            yield from _namespace_contents(value)
    elif isinstance(value, torch.nn.Module):
        yield from _module_contents(value, stored)
    elif isinstance(value, LRScheduler):
        yield Content("lr_lambdas", tuple(getattr(value, "lr_lambdas", ())))
    elif isinstance(value, DataLoader):
        yield from _loader_contents(path, value, stored)
    elif isinstance(value, (Dataset, Sampler)):
        yield from _data_contents(value, stored)
    elif isinstance(value, _ATTRIBUTES) or (is_scripts_own(kind.__module__) and hasattr(value, "__dict__")):
        if any(vars(base).get("__slots__") for base in kind.__mro__) or isinstance(
            value, (list, dict, tuple)
        ):
            raise NotPlain(f"{path} is a {kind.__name__}, whose state only the script knows")
        yield Content("class", kind)
        yield from (Content(name, each, value) for name, each in vars(value).items())
    elif not (
        isinstance(value, (*_CONSTANT, frozenset)) or kind.__module__ in ("torch", "typing", "functools")
    ):
        raise NotPlain(f"{path} is a {kind.__name__}, whose state only the script knows")
    elif isinstance(value, types.BuiltinFunctionType) and not isinstance(value.__self__, types.ModuleType):
        yield Content("self", value.__self__)


def _function_contents(value: types.FunctionType) -> Iterator[Content]:
    """A script's function keeps values in its closure and its defaults, and in the module that it is from."""
    module = value.__module__ or ""
    if not is_scripts_own(module):
        return
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
        try:
            yield Content(name, cell.cell_contents, cell)
        except ValueError:
            continue  # Not set yet.
    defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    if kept := tuple(each for each in defaults if type(each) not in PLAIN):
        yield Content("defaults", kept)
    yield from (Content(name, each, value) for name, each in vars(value).items())
    if module != "__main__":
        yield Content("module", sys.modules.get(module))


def _namespace_contents(value: Any) -> Iterator[Content]:
    """The contents of a module or class of the script: what is no code."""
    for name, each in list(vars(value).items()):
        is_code = isinstance(each, (types.ModuleType, type)) or hasattr(type(each), "__get__")
        if not (is_code or name.startswith("__") or name == "_abc_impl" or isinstance(value, enum.EnumMeta)):
            yield Content(name, each, value)


def _module_contents(value: torch.nn.Module, stored: frozenset[str]) -> Iterator[Content]:
    """Hooks, and attributes that a module of the script changes while it works."""
    for name, part in value.named_modules():
        inside = f"{name}." if name else ""
        for hooks in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks):
            for number, hook in hooks.items():
                yield Content(f"{inside}hook {number}", hook)
        known = {*part._parameters, *part._buffers, *part._modules}
        for content in _changed_contents(part, stored):
            if content.key not in known:
                yield Content(f"{inside}{content.key}", content.value, part)


def _loader_contents(path: str, value: DataLoader[Any], stored: frozenset[str]) -> Iterator[Content]:
    for name in ("dataset", "sampler", "batch_sampler", "collate_fn"):
        each = getattr(value, name, None)
        if value.num_workers and any(True for _ in _changed_contents(each, stored)):
            raise NotPlain(f"{path}: its {type(each).__name__} changes while worker processes read it")
        if each is not None and not isinstance(each, (list, tuple)):
            yield Content(name, each)


def _data_contents(value: Any, stored: frozenset[str]) -> Iterator[Content]:
    """What is changed, and what may change itself, such as an augmentation of the script's; not the data."""
    found = {content.key: content for content in _changed_contents(value, stored)}
    for name, each in getattr(value, "__dict__", {}).items():
        first = each[0] if isinstance(each, (list, tuple)) and 0 < len(each) <= PARTS_MAX else each
        is_own = is_scripts_own(type(first).__module__) and hasattr(first, "__dict__")
        if is_own or isinstance(first, _ACTIVE) or rng.is_generator(each):
            found.setdefault(name, Content(name, each, value))
    yield from found.values()


def _changed_contents(value: Any, stored: frozenset[str]) -> Iterator[Content]:
    names, kind = stored, type(value)
    if is_scripts_own(kind.__module__):
        names |= changed_attributes(kind)  # type: ignore[arg-type]
    for name in sorted(names & getattr(value, "__dict__", {}).keys()):
        yield Content(name, vars(value)[name], value)
