"""The objects that a script's loop works with, found in its own variables when the loop begins, and read and
put back while it runs.

Rule: one variable that is neither saved nor known to be constant makes the script not resumable, and is
named with its line.
"""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, Final

import torch

from cotenant.checkpoint.disk.layout import CheckpointError
from cotenant.checkpoint.training import data, rng
from cotenant.checkpoint.zerocode.contents import DATA
from cotenant.checkpoint.zerocode.pattern import LoopPlan
from cotenant.checkpoint.zerocode.refusals import NotPlain
from cotenant.checkpoint.zerocode.restoring import put_back
from cotenant.checkpoint.zerocode.values import CarriedValues, copy_tree

FIRST_EPOCH: Final = "range()"
MODES: Final = "training()"
"""Among a script's variables, and no names of any."""


def look(frame: types.FrameType, plan: LoopPlan) -> CarriedValues:
    """Finds the objects that the script's loop works with. Raises NotPlain."""
    values, scope = CarriedValues(plan), _scope(frame, plan)
    for name, value in scope.items():  # Once to find models: their parameters are theirs wherever they are.
        try:
            values.look(name, value)
        except NotPlain:
            continue
    values.know_models()
    for name, value in scope.items():
        look_with_line(plan, values.look, name, value)
    if not values.optimizers or not values.models:
        raise NotPlain("its loop names no optimizer and model that were made before it")
    if len(values.scalers) > 1:
        raise NotPlain("it has more than one GradScaler")
    known = {id(p) for model in values.models for p in model.parameters()}
    for optimizer in values.optimizers:
        if any(id(p) not in known for group in optimizer.param_groups for p in group["params"]):
            raise NotPlain(f"{type(optimizer).__name__} trains parameters of no module that its loop names")
    values.keep_roots()
    return values


def _scope(frame: types.FrameType, plan: LoopPlan) -> dict[str, Any]:
    """The variables of the plan, by name: those that there are, builtin ones left out."""
    scope = {**frame.f_globals, **frame.f_locals}
    ours = ("range", "enumerate")
    return {name: scope[name] for name in plan.names if name in scope and name not in ours}


def look_with_line(plan: LoopPlan, look: Callable[[str, Any], Any], name: str, value: Any) -> Any:
    """What `look` says of a variable; if it refuses, with the line where the script mentions it."""
    try:
        return look(name, value)
    except NotPlain as error:
        text = str(error)
        line = plan.line_of(text.split()[0].rstrip(":")) or plan.line_of(name)
        raise NotPlain(f"line {line}: {text}" if line is not None else text) from None


class DataState(rng.Sources):
    """What has state in a loader: random generators, and what its data set and sampler change as they are
    read. It is one thing where the epoch's order was drawn, and another one in the middle of it."""

    def __init__(self, loader: Any, values: CarriedValues) -> None:
        super().__init__(*data.parts_of(loader))
        self._loader, self._values = loader, values

    def capture(self) -> list[Any]:
        try:
            tree = {name: self._values.take(f"its {name}", each) for name, each in self._parts()}
        except NotPlain:
            tree = {}  # The job has said by now that it cannot be saved.
        return [*super().capture(), ["changed", copy_tree(tree)]]

    def restore(self, states: list[Any]) -> str | None:
        for name, each in self._parts():
            if name in states[-1][1]:
                put_back(f"its {name}", each, states[-1][1][name], self._values.stored)
        return super().restore(states[:-1])

    def _parts(self) -> Iterator[tuple[str, Any]]:
        names = ("dataset", "sampler", "batch_sampler")
        return ((name, each) for name in names if isinstance(each := getattr(self._loader, name, None), DATA))


def _is_shared(value: Any, held: Any) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(held, torch.Tensor):
        return value.data_ptr() == held.data_ptr()
    return isinstance(value, (list, dict)) and value is held


class Variables(MutableMapping[str, Any]):
    """A script's variables as plain values, and where its epochs begin. Those of the function that has the
    loop over batches are there as `FUNCTION().NAME` while it runs."""

    def __init__(self, frame: types.FrameType, plan: LoopPlan, values: CarriedValues, first: int = 0) -> None:
        self._frame, self._plan, self._values = frame, plan, values
        self._inner: types.FrameType | None = None
        self.has_begun = False
        self.first = first
        """Of the first attempt's range: a script that goes on from a snapshot of its own asks for fewer."""

    def begin(self, frame: types.FrameType, loader: Any) -> None:
        """A loop over the batches of a loader, in this frame.

        Raises:
            NotPlain: a variable is not known, or was set to something else.
        """
        self.has_begun = True
        if frame is not self._frame:
            self._inner = frame
        self._check_order(loader)
        self._values.is_checking = True
        try:
            self._values.take("its loader", loader)
            for name in self:
                self._tree(name)
        finally:
            self._values.is_checking = False

    def _check_order(self, loader: Any) -> None:
        """The order of an epoch is drawn again after a resume, from what it was drawn from before."""
        held = [
            each for part in data.parts_of(loader)[1:4] for each in getattr(part, "__dict__", {}).values()
        ]
        for name, value in _scope(self._frame, self._plan).items():
            if name in self._plan.stored and any(_is_shared(value, each) for each in held):
                line = self._plan.line_of(name)
                raise NotPlain(f"line {line}: {name} changes in the loop, and its loader draws by it")

    def state_of(self, loader: Any) -> DataState:
        return DataState(loader, self._values)

    def batches_ended(self) -> None:
        """The frame, and all that it holds, may go."""
        self._inner = None

    def __getitem__(self, name: str) -> Any:
        try:
            return self._tree(name)
        except NotPlain as error:
            raise CheckpointError(str(error)) from None

    def _tree(self, name: str) -> Any:
        """The session saves generators and what has a state_dict by itself."""
        if name == FIRST_EPOCH:
            return self.first
        if name == MODES:
            return self._values.modes()
        value = self._variable(name)
        if rng.is_generator(value) or self._values.saves_itself(value):
            return value
        return look_with_line(self._plan, self._values.take, name, value)

    def __setitem__(self, name: str, tree: Any) -> None:
        if name == FIRST_EPOCH:
            self.first = tree
            return
        if name == MODES:
            self._values.set_modes(tree)
            return
        frame, inside = self._place(name)
        if frame is None:
            return  # It is put back when its function's loop begins.
        is_there, old = True, None
        try:
            old = self._variable(name)
        except KeyError:
            is_there = False
        try:
            new = put_back(name, old, tree, self._plan.stored)
        except NotPlain as error:
            if not is_there and not self.has_begun:
                return  # The epoch makes it before its loop over batches.
            raise CheckpointError(f"the checkpoint does not fit this script: {error}") from None
        if new is not old:
            self._bind(frame, inside, new)

    def __delitem__(self, name: str) -> None:
        raise TypeError("a script's variables are not deleted")

    def __iter__(self) -> Iterator[str]:
        return iter([FIRST_EPOCH, MODES, *self._names()])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _names(self) -> Iterable[str]:
        yield from _scope(self._frame, self._plan)
        if self._inner is not None:
            variables = self._inner.f_locals
            yield from (self._path(name) for name in self._plan.inner if name in variables)

    def _path(self, name: str) -> str:
        return f"{self._plan.function}().{name}"

    def _place(self, name: str) -> tuple[types.FrameType | None, str]:
        inside = name.removeprefix(f"{self._plan.function}().")
        return (self._frame if inside == name or not self._plan.function else self._inner), inside

    def _variable(self, name: str) -> Any:
        frame, inside = self._place(name)
        if frame is None:
            raise KeyError(name)
        variables = frame.f_locals  # A new look at them, each time.
        return variables[inside] if inside in variables else frame.f_globals[inside]

    def _bind(self, frame: types.FrameType, name: str, value: Any) -> None:
        is_local = name in frame.f_code.co_varnames or name in (
            *frame.f_code.co_cellvars,
            *frame.f_code.co_freevars,
        )
        if not is_local:
            frame.f_globals[name] = value
            return
        frame.f_locals[name] = value
        if sys.version_info < (3, 13):
            # Before PEP 667 a frame's variables are a copy; this is how debuggers write them back.
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
