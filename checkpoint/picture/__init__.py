"""A picture of everything that a script can reach: what has changed since, and how to undo it.

Rule: the objects are asked, not the text of the script. From some roots the walk goes through containers,
attributes, closures and classes, and notes of each object what can change of it. A picture keeps every object
alive that it has met, so that an object's identity stays true.

Rule: nothing of the script runs while a picture is taken, compared or put back (see `kinds.py`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import torch

from cotenant.checkpoint.picture.arrays import ARRAY, KEPT_BYTES_MAX, TENSOR
from cotenant.checkpoint.picture.atoms import ATOMS, BASES, OTHERS
from cotenant.checkpoint.picture.kinds import CONTAINERS, Attributes, Kind
from cotenant.checkpoint.picture.objects import DRAWS, OBJECT, OBJECTS
from cotenant.checkpoint.picture.ownership import own_modules

OBJECTS_MAX: Final = 3_000_000
COPIED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of all tensors whose content is kept to be put back."""


class PictureTooLarge(Exception):
    """More can be reached than a picture may hold."""


class PictureChange(NamedTuple):
    """An object that is not as it was. `path`: where it was met first."""

    path: str
    kind: Kind


class _Node:
    """An object that was met: by which way, and what was read of it."""

    __slots__ = ("kind", "parent", "state", "step", "value")

    def __init__(self, value: Any, kind: Kind, parent: _Node | None, step: str) -> None:
        self.value, self.kind, self.parent, self.step = value, kind, parent, step
        self.state: Any = None

    @property
    def path(self) -> str:
        steps: list[str] = []
        node: _Node | None = self
        while node is not None:
            steps.append(node.step)
            node = node.parent
        return "".join(reversed(steps))


class Picture:
    """Everything that can be reached from some roots, as it is when the picture is made."""

    def __init__(self, roots: Iterable[tuple[str, Any]], *, copies: bool = False) -> None:
        """Looks at everything at once.

        Args:
            roots: objects by the names that their paths begin with.
            copies: keep the content of small tensors, so that it can be put back.

        Raises:
            PictureTooLarge: there are more than `OBJECTS_MAX` objects.
        """
        self._nodes: list[_Node] = []
        self._known: set[int] = set()
        self._copies, self._copied_bytes = copies, 0
        for name, value in roots:
            self._add(value, None, name)
        with _without_collection():
            for node in self._nodes:  # It grows meanwhile: the nearest objects come first.
                node.state = self._read(node)
                for step, part in node.kind.parts(node.value, node.state):
                    self._add(part, node, step)

    def _add(self, value: Any, parent: _Node | None, step: str) -> None:
        kind = _kind_of(type(value))  # type: ignore[arg-type]
        if kind is None:
            return
        mark = kind.mark(value)
        if mark in self._known:
            return
        self._known.add(mark)
        if len(self._nodes) >= OBJECTS_MAX:
            raise PictureTooLarge(f"more than {OBJECTS_MAX:,} objects can be reached")
        self._nodes.append(_Node(value, kind, parent, step))

    def _read(self, node: _Node) -> Any:
        state = node.kind.read(node.value)
        if node.kind is not TENSOR or state.content is None:
            return state
        size = state.content.numel() * state.content.element_size()
        if not self._copies or size > KEPT_BYTES_MAX or self._copied_bytes + size > COPIED_BYTES_MAX:
            return state._replace(content=None)
        self._copied_bytes += size
        return TENSOR.copy(state)

    def objects(self) -> Iterator[Any]:
        """Everything that was met, the nearest to the roots first."""
        return (node.value for node in self._nodes)

    def changes(self) -> list[PictureChange]:
        """What is not as it was, the nearest to the roots first."""
        found = []
        with _without_collection():
            for node in self._nodes:
                now = node.kind.read(node.value)
                if not node.kind.is_same(node.state, now):
                    step = node.kind.first_difference(node.value, node.state, now)
                    found.append(PictureChange(node.path + step, node.kind))
        return found

    def put_back(self) -> list[str]:
        """Give every object what it held; returns the paths of those that could not get it back."""
        for node in self._nodes:
            if not node.kind.is_same(node.state, node.kind.read(node.value)):
                node.kind.put_back(node.value, node.state)
        return [change.path for change in self.changes()]


@functools.lru_cache(maxsize=8192)
def _kind_of(made: type) -> Kind | None:
    """The kind of the objects of a type; None: they never change and hold nothing that does."""
    if made in ATOMS or issubclass(made, BASES):
        return None
    if issubclass(made, torch.Tensor):
        return TENSOR
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(made, (numpy.generic, numpy.dtype)):
        return None
    if numpy is not None and issubclass(made, numpy.ndarray):
        return ARRAY
    if numpy is not None and issubclass(made, (numpy.random.Generator, numpy.random.RandomState)):
        return DRAWS
    other = None if made.__module__.partition(".")[0] in OTHERS else OBJECT
    return next((kind for base, kind in (*CONTAINERS, *OBJECTS) if issubclass(made, base)), other)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Reading makes many objects and no circles: the collector would look through all of them for nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def process_roots() -> list[tuple[str, Any]]:
    """What code of the script can reach without being handed it: the names of the script's modules, the
    random generators of the process, and torch's hooks on all modules."""
    roots: list[tuple[str, Any]] = []
    known: set[int] = set()
    for name in own_modules():
        names = getattr(sys.modules.get(name), "__dict__", None)
        if names is not None and id(names) not in known:
            known.add(id(names))
            roots.append(("" if name == "__main__" else f"{name}.", Attributes(names, "{}")))
    hooks = torch.nn.modules.module
    for word in ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks"):
        roots.append((f"torch.nn.modules.module.{word}", getattr(hooks, word, {})))
    return [*roots, ("os.environ", os.environ), *generator_roots()]


def generator_roots() -> list[tuple[str, Any]]:
    """The generators that all code of the process shares."""
    found: list[tuple[str, Any]] = [
        ("torch's random numbers", torch.default_generator),
        ("random's numbers", getattr(random, "_inst", None)),
    ]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        found.append(("numpy's random numbers", getattr(numpy.mtrand, "_rand", None)))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found += [
            (f"CUDA device {number}'s random numbers", each)
            for number, each in enumerate(torch.cuda.default_generators)
        ]
    return found
