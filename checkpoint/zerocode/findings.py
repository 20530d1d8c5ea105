"""The objects that a script's loop works with, found in its own variables when the loop begins.

Rule: one variable that is neither saved nor known to be constant makes the script not resumable, and is
named. A resume that forgets one object looks right and is wrong.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import inspect
import os
import sys
import types
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler

from cotenant.checkpoint.training import rng
from cotenant.checkpoint.zerocode.pattern import LoopPlan, NotPlain

PLAIN: Final = (bool, int, float, str, bytes, type(None))
_CONSTANT: Final = (
    *PLAIN,
    complex,
    type,
    range,
    slice,
    enum.Enum,
    os.PathLike,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.SimpleNamespace,
    torch.dtype,
    torch.device,
    torch.Size,
    DataLoader,
    Dataset,
    Sampler,
)


@dataclass
class Findings:
    """What goes into a Session."""

    models: list[torch.nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    scalers: list[Any] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    """Names whose values are saved with each rank's own state, or by their own `state_dict`."""


def look(frame: types.FrameType, plan: LoopPlan) -> Findings:
    """Raises NotPlain."""
    found = Findings()
    scope = {**frame.f_globals, **frame.f_locals}
    owner = vars(scope[plan.owner]) if plan.owner else {}
    scope |= {f"{plan.owner}.{name}": value for name, value in owner.items()}
    for name in dict.fromkeys((*plan.used, *plan.carried)):
        try:
            if name in scope:
                _sort(found, name, scope[name], name in plan.carried, name in plan.changed)
            elif "." in name and name not in plan.carried:
                _check_inherited(name, type(scope[plan.owner]))
        except NotPlain as error:
            raise NotPlain(
                f"line {plan.lines[name]}: {error}" if name in plan.lines else str(error)
            ) from None
    found.variables += [name for name in plan.carried if name not in scope]
    found.models = _roots(found.models)
    if not found.optimizers or not found.models:
        raise NotPlain("its loop names no optimizer and model that were made before it")
    known = {id(p) for model in found.models for p in model.parameters()}
    for optimizer in found.optimizers:
        if any(id(p) not in known for group in optimizer.param_groups for p in group["params"]):
            raise NotPlain(f"{type(optimizer).__name__} trains parameters of no module that its loop names")
    return found


def _sort(found: Findings, name: str, value: Any, carried: bool, changed: bool) -> None:
    if isinstance(value, torch.nn.Module):
        if value.state_dict():
            _add(found.models, value)
    elif isinstance(value, torch.optim.Optimizer):
        _add(found.optimizers, value)
    elif isinstance(value, LRScheduler):
        _add(found.schedulers, value)
    elif isinstance(value, torch.amp.GradScaler):
        _add(found.scalers, value)
    elif carried or isinstance(value, (list, dict)) or rng.is_generator(value) or _is_stateful(value):
        if not (is_plain(value) or rng.is_generator(value) or _is_stateful(value)):
            raise NotPlain(f"{name} holds more than plain values ({type(value).__name__})")
        found.variables.append(name)
    elif isinstance(value, torch.Tensor):
        if value.requires_grad:
            raise NotPlain(f"{name} is a trainable tensor of no module")
        if changed:
            found.variables.append(name)
    elif changed or not (isinstance(value, _CONSTANT) or _is_constant_object(value)):
        raise NotPlain(f"{name} is a {type(value).__name__}, whose state only the script knows")


def _check_inherited(name: str, kind: type) -> None:
    """A constant of the class; what comes from elsewhere has not been read."""
    value = inspect.getattr_static(kind, name.partition(".")[2], None)
    if not isinstance(value, PLAIN) or value is None:
        raise NotPlain(f"{name} is no attribute of its own (a base class's, or made on demand)")


def _is_constant_object(value: Any) -> bool:
    """Options, tuples of constants, functions in other clothes."""
    if isinstance(value, (tuple, frozenset)):
        return all(isinstance(each, _CONSTANT) or _is_constant_object(each) for each in value)
    if dataclasses.is_dataclass(value):
        return all(isinstance(each, _CONSTANT) or _is_constant_object(each) for each in vars(value).values())
    return type(value).__module__ in ("argparse", "functools", "torch", "typing")


def is_plain(value: Any) -> bool:
    """What a checkpoint can hold: numbers, texts, tensors without a graph, and lists and dicts of them."""
    if isinstance(value, torch.Tensor):
        return value.grad_fn is None and not value.requires_grad
    if type(value) in (list, tuple):
        return all(is_plain(each) for each in value)
    if type(value) is dict:
        return all(isinstance(key, PLAIN) and is_plain(each) for key, each in value.items())
    return type(value) in PLAIN


def _is_stateful(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _add(known: list[Any], value: Any) -> None:
    if not any(value is each for each in known):
        known.append(value)


def _roots(models: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Without those that are part of another one. A module in DDP counts as DDP's."""
    models = list(models)
    parts = {id(part) for model in models for part in model.modules() if part is not model}
    roots = [model for model in models if id(model) not in parts]
    for model in roots:
        if any(isinstance(part, DistributedDataParallel) for part in model.modules() if part is not model):
            raise NotPlain("DistributedDataParallel inside another module")
    return roots


FIRST_EPOCH: Final = "range()"
"""Among a script's variables, and no name of one."""


class Variables(MutableMapping[str, Any]):
    """Some of a running frame's variables and of the attributes of one of its objects, to read and to put
    back; and where its epochs begin."""

    def __init__(self, frame: types.FrameType, names: Iterable[str], owner: str = "", first: int = 0) -> None:
        self._frame = frame
        self._names = tuple(names)
        self._owner = owner
        self.first = first
        """Of the first attempt's range: a script that goes on from a snapshot of its own asks for fewer."""

    def __getitem__(self, name: str) -> Any:
        if name == FIRST_EPOCH:
            return self.first
        if name not in self._names:
            raise KeyError(name)
        return self._scope(name)[self._key(name)]

    def __setitem__(self, name: str, value: Any) -> None:
        """Lists and dicts keep their identity: others may hold them as well."""
        if name == FIRST_EPOCH:
            self.first = value
            return
        try:
            old = self[name]
        except KeyError:
            old = None
        if type(old) is list and type(value) is list:
            old[:] = value
        elif type(old) is dict and type(value) is dict:
            old.clear()
            old.update(value)
        elif isinstance(old, torch.Tensor) and isinstance(value, torch.Tensor) and old.shape == value.shape:
            old.copy_(value)
        elif rng.is_generator(old) or _is_stateful(old):
            return  # these were put back into the object itself
        else:
            self._bind(name, value)

    def __delitem__(self, name: str) -> None:
        raise TypeError("a script's variables are not deleted")

    def __iter__(self) -> Iterator[str]:
        return iter([FIRST_EPOCH, *(name for name in self._names if self._key(name) in self._scope(name))])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _key(self, name: str) -> str:
        return name[len(self._owner) + 1 :] if self._is_attribute(name) else name

    def _is_attribute(self, name: str) -> bool:
        return bool(self._owner) and name.startswith(f"{self._owner}.")

    def _scope(self, name: str) -> Any:
        variables = self._frame.f_locals  # a new look at them, each time
        if self._is_attribute(name):
            return vars(variables[self._owner])
        return variables if name in variables else self._frame.f_globals

    def _bind(self, name: str, value: Any) -> None:
        scope = self._scope(name)
        if self._is_attribute(name):
            setattr(self._frame.f_locals[self._owner], self._key(name), value)
            return
        is_global = self._frame.f_locals is self._frame.f_globals or scope is self._frame.f_globals
        if is_global and name not in self._frame.f_code.co_varnames:
            self._frame.f_globals[name] = value
            return
        self._frame.f_locals[name] = value
        if sys.version_info < (3, 13):
            # Before PEP 667 a frame's variables are a copy; this is how debuggers write them back.
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(self._frame), ctypes.c_int(0))
