"""One object of a picture: by which way it was met, what was read of it, and whether it still exists.

Rule: what a picture has met it holds by the way on which it was met, wherever it is kept for long. A script
that lets go of its data must find its memory free again.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable
from typing import Any, Final

from cotenant.checkpoint.picture.atoms import ATOMS
from cotenant.checkpoint.picture.kinds import Kind, attributes

_TABLES: Final = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")
"""Where a module of torch keeps its parts: a person names them by attributes."""
_GONE: Final = object()


class _Way:
    """Stands for an object that is held by the place where it is."""

    __slots__ = ("kind", "mark", "place")

    def __init__(self, kind: int, mark: int, place: Any) -> None:
        """`kind`: the identity of its class."""
        self.kind, self.mark, self.place = kind, mark, place


class Node:
    """An object that was met: by which way, and what was read of it."""

    __slots__ = ("_path", "held", "holds_objects", "kind", "parent", "state", "step")

    def __init__(self, value: Any, kind: Kind, parent: Node | None, step: str) -> None:
        self.held, self.kind, self.parent, self.step = value, kind, parent, step
        self.state: Any = None
        self.holds_objects = True
        """False: its state is plain values alone."""
        self._path = ""

    @property
    def value(self) -> Any:
        """The object; None, if it was let go and is gone."""
        held = self.held
        if type(held) is weakref.ref:
            return held()
        if type(held) is not _Way:
            return None if held is _GONE else held
        owner = None if self.parent is None else self.parent.value
        if owner is None:
            return None
        place = held.place
        if self.kind.is_part:
            found = next((each for _, each in attributes(owner) if type(each) is place), None)
        else:
            found = self.parent.kind.part_at(owner, place)  # type: ignore[union-attr]
        is_it = id(type(found)) == held.kind and self.kind.mark(found) == held.mark
        return found if is_it else None

    @property
    def path(self) -> str:
        """The path by which it was met first. What stands for an object has the path of the object."""
        if not self._path:
            self._path = self.step if self.parent is None else self.parent.path + self.step
        return self._path

    @property
    def key(self) -> str:
        """The path, made its own where it is also that of what holds it: of an object's attributes, say."""
        return self.path if self.step else f"{self.path}@{type(self.value).__name__}"

    def path_to(self, step: str) -> str:
        """The path of what lies one step further, for a person."""
        return _TABLES.sub(r".\1", self.path + step)


def let_go(nodes: Iterable[Node], known: dict[int, Node]) -> None:
    """Keep no object alive that its owner lets go of. `known`: the nodes by their marks."""
    places: dict[int, Any] = {}
    """By the identity of a node: its place in its parent."""
    holders = [node for node in nodes if node.holds_objects]
    for node in holders:
        for place, part in node.kind.places(node.state):
            below = _node_of(part, known)
            if below is not None and below.parent is node:
                places[id(below)] = place
    for node in holders:
        node.state = node.kind.replace(node.state, lambda each: _stand_in_for(each, known))
    for node in nodes:
        value = node.held
        if value is _GONE:
            continue
        kind = node.kind
        kind.let_go(value)
        if type(value).__weakrefoffset__:
            node.held = weakref.ref(value)
        elif id(node) in places or (kind.is_part and node.parent is not None):
            node.held = _Way(id(type(value)), kind.mark(value), places.get(id(node), type(value)))


def hold(nodes: Iterable[Node]) -> None:
    """Undo `let_go` for as long as a picture is compared; what is gone by now stays so."""
    nodes = list(nodes)
    for node in nodes:  # What holds an object comes before it.
        value = node.value
        node.held = value if value is not None and node.kind.hold(value) else _GONE
    for node in nodes:
        if node.holds_objects:
            node.state = node.kind.replace(node.state, _held_of)


class _Weak(weakref.ref):  # type: ignore[type-arg]
    """Unlike a weak reference of the script's, which is a value like any other."""


def _stand_in_for(each: Any, known: dict[int, Node]) -> Any:
    node = _node_of(each, known)
    if node is not None:
        return node
    try:
        return each if type(each) in ATOMS else _Weak(each)
    except TypeError:
        return each


def _held_of(each: Any) -> Any:
    if type(each) is Node:
        return each.held
    return (each() or _GONE) if type(each) is _Weak else each


def _node_of(value: Any, known: dict[int, Node]) -> Node | None:
    node = known.get(id(value))
    return node if node is not None and node.held is value else None
