"""When a split has to be proven again.

Rule: a proof stands for steps like the one it was made at. It is repeated after 1, 2, 4, 8, ... steps in
parts, and whenever something that decides about the loss is new: the modules, their modes and hooks; labels
or masks (`labels.py`); what the code of the loss reaches (another criterion, other class weights, a switch);
the number of graph nodes that a part makes, which is another where the code takes another way.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import torch

from cotenant.gradaccum.aside import variables_of
from cotenant.gradaccum.labels import SeenLabels

WAYS_MAX: Final = 16
"""Numbers of graph nodes; a loss that always makes others cannot be watched by them."""
REACHED_MAX: Final = 1000
ITEMS_MAX: Final = 64
"""Of a container that is looked into."""

_PLAIN: Final = frozenset((bool, int, float, complex, str, bytes, type(None)))


class Occasions:
    """What is known of one loss of one model."""

    def __init__(self) -> None:
        self.labels = SeenLabels()
        self.parameters: Sequence[torch.Tensor] = ()
        """What a proof has computed gradients for."""
        self._steps = 0
        self._modules: list[tuple[Any, ...]] = []
        self._ways: set[int] = set()
        self._reached: dict[str, object] = {}
        self._changes: collections.Counter[str] = collections.Counter()

    def is_due(self, model: Any, roots: Iterable[tuple[str, Any]]) -> bool:
        """Whether the step that begins must be proven, but for its labels. Called once per step."""
        self._steps += 1
        is_due = is_power_of_two(self._steps)
        modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
        modes = [(m, m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in modules]
        is_due |= len(modes) != len(self._modules) or any(
            one[0] is not other[0] or one[1:] != other[1:] for one, other in zip(modes, self._modules)
        )
        self._modules = modes
        known, self._reached = self._reached, dict(_reached(roots, {id(module) for module in modules}))
        for path in self._reached.keys() | known.keys():
            if self._reached.get(path) != known.get(path):
                self._changes[path] += 1
                is_due |= is_power_of_two(self._changes[path])
        return is_due

    def is_new_way(self, nodes: int) -> bool:
        """Whether no part that was proven made so many graph nodes."""
        return nodes not in self._ways

    def note_way(self, nodes: int) -> str | None:
        """A part that made so many was proven. Returns a reason to refuse where there are too many ways."""
        self._ways.add(nodes)
        if len(self._ways) <= WAYS_MAX:
            return None
        return (
            f"computing the loss takes more than {WAYS_MAX} ways (by the number of its graph nodes), so that "
            "it cannot be watched"
        )


def is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def count_nodes() -> int:
    """The number of the graph node that this thread makes next."""
    return int(torch._C._autograd._get_sequence_nr())


# --- What the code of a loss reaches ---------------------------------------------------------------


def names_in(frame: types.FrameType) -> list[tuple[str, Any]]:
    """What the names in a function's code stand for, in the frame where it runs."""
    places = (variables_of(frame), frame.f_globals)
    return [
        (name, next(place[name] for place in places if name in place))
        for name in _names(frame.f_code)
        if any(name in place for place in places)
    ]


def _names(code: types.CodeType) -> Iterator[str]:
    yield from (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _reached(roots: Iterable[tuple[str, Any]], known: set[int]) -> Iterator[tuple[str, object]]:
    """What can be reached from some roots, by path: plain values, tensors that are no parameters by place and
    version, and other objects by what they are. Not through the modules whose ids are `known`."""
    waiting = collections.deque(roots)
    for _ in range(REACHED_MAX):
        if not waiting:
            return
        path, value = waiting.popleft()
        if type(value) in _PLAIN:
            yield path, (type(value), value if value == value else "not a number")
        elif isinstance(value, torch.Tensor):
            if not value.requires_grad:
                yield path, (id(value), 0 if value.is_inference() else value._version)
        elif isinstance(value, types.FunctionType):
            yield path, id(value.__code__)
            waiting.extend(_of_function(path, value))
        else:
            yield path, id(value)
            if id(value) not in known:
                known.add(id(value))
                waiting.extend(_parts(path, value))


def _of_function(path: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    from cotenant.checkpoint.ownership import is_scripts_own

    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield f"{path}<{name}>", cell.cell_contents
        except ValueError:
            continue  # Not bound yet.
    if is_scripts_own(function.__module__ or ""):
        for name in function.__code__.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    from cotenant.checkpoint.ownership import is_scripts_own

    if isinstance(value, (types.ModuleType, type)):
        return
    if isinstance(value, types.MethodType):
        yield f"{path}.__self__", value.__self__
        yield f"{path}()", value.__func__
    elif isinstance(value, functools.partial):
        yield f"{path}()", value.func
        yield f"{path}.args", value.args
        yield f"{path}.keywords", value.keywords
    elif type(value) in (list, tuple, set, frozenset, dict) and len(value) <= ITEMS_MAX:
        items = value.items() if type(value) is dict else enumerate(value)
        yield from ((f"{path}[{key!r}]" if type(key) in _PLAIN else path, each) for key, each in items)
    elif isinstance(value, torch.nn.Module) or is_scripts_own(type(value).__module__):
        yield from ((f"{path}.{name}", each) for name, each in getattr(value, "__dict__", {}).items())
