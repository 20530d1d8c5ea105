"""A picture of everything that a script can reach: what has changed since, and how to undo it.

Rule: the objects are asked, not the text of the script. From some roots the walk goes through containers,
attributes, closures and classes, and notes of each object what can change of it. A picture keeps every object
alive that it has met, so that an object's identity stays true.

Rule: nothing of the script runs while a picture is taken, compared or put back (see `kinds.py`).
"""

from __future__ import annotations

from time import monotonic
import contextlib
import gc
import os
import random
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import torch

from cotenant.checkpoint import namespaces, ownership
from cotenant.checkpoint.picture import arrays, atoms, digest, kinds, settings
from cotenant.checkpoint.picture.nodes import Node, hold, let_go
from cotenant.checkpoint.picture.objects import DRAWS, OBJECT, OBJECTS, OPAQUE, is_pure

BESIDE: Final = (
    "multiprocessing",
    "threading",
    "queue",
    "concurrent",
    "asyncio",
    "logging",
    "_thread",
    "_queue",
    "tqdm",
    "rich",
    "cotenant",
)
"""Packages whose objects change beside the script, by threads of their own, or only show where it is."""
MEASURE: Final = ("torch.profiler", "torch.autograd.profiler")
"""Begin the names of modules whose objects hold what a clock has told."""
OBJECTS_MAX: Final = 3_000_000
SECONDS_MAX: Final = 5.0
VALUES_MAX: Final = 5_000
SHOWN_MAX: Final = 60
"""Characters of a value that a person reads."""
_LOOK_AT_CLOCK: Final = 4096
COPIED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of all tensors whose content is kept to be put back."""


_VARIABLE: Final = re.compile(r"(?:\w+\(\)\.)*\w+")
"""The beginning of a path that is the name of a variable."""


class PictureTooLarge(Exception):
    """More can be reached than a picture may hold."""


class PictureChange(NamedTuple):
    """An object that is not as it was. `path`: where it was met first."""

    path: str
    kind: kinds.Kind
    value: Any

    def __repr__(self) -> str:
        return self.path


class Picture:
    """Everything that can be reached from some roots, as it is when the picture is made."""

    def __init__(
        self,
        roots: Iterable[tuple[str, Any]],
        *,
        copies: bool = False,
        digests: bool = False,
        aliases: bool = False,
        without: Iterable[Any] = (),
    ) -> None:
        """Looks at everything at once.

        Args:
            roots: objects by the names that their paths begin with.
            copies: keep the content of small tensors, so that it can be put back.
            digests: keep a number for the content of small tensors, so that its changes are seen.
            aliases: know of every way to an object, and not only of the first one.
            without: objects that are left out, and what can be reached through them alone.

        Raises:
            PictureTooLarge: there are more than `OBJECTS_MAX` objects, or it takes longer than `SECONDS_MAX`.
        """
        self.nodes: list[Node] = []
        self.aliases: dict[str, Node] | None = {} if aliases else None
        """By their paths, the further ways."""
        self._known: dict[int, Node] = {}
        self._copies, self._digests, self._copied_bytes = copies, digests, 0
        for value in without:
            kind = kind_of(type(value))
            if kind is not None:
                self._known[kind.mark(value)] = Node(value, kind, None, "")
        for name, value in roots:
            self._add(value, None, name)
        give_up_at_s = monotonic() + SECONDS_MAX
        with _without_collection():
            for number, node in enumerate(self.nodes):  # It grows meanwhile: the nearest come first.
                if not number % _LOOK_AT_CLOCK and monotonic() > give_up_at_s:
                    raise PictureTooLarge(f"more can be reached than can be looked at in {SECONDS_MAX:.0f} s")
                value, kind = node.held, node.kind
                node.state = state = (
                    kind.read(value) if kind is not arrays.TENSOR else self._read_tensor(value)
                )
                parts = kind.parts(value, state)
                node.holds_objects = parts != ()
                for step, part in parts:
                    self._add(part, node, step)

    def _add(self, value: Any, parent: Node | None, step: str) -> None:
        kind = kind_of(type(value))
        if kind is None:
            return
        mark = kind.mark(value)
        if mark in self._known:
            if self.aliases is not None:
                self.aliases.setdefault("" if parent is None else parent.path + step, self._known[mark])
            return
        if len(self.nodes) >= OBJECTS_MAX:
            raise PictureTooLarge(f"more than {OBJECTS_MAX:,} objects can be reached")
        self._known[mark] = node = Node(value, kind, parent, step)
        self.nodes.append(node)

    def _read_tensor(self, value: Any) -> Any:
        state = arrays.TENSOR.read(value)
        if state.content is None:
            return state
        size = state.content.numel() * state.content.element_size()
        if self._digests and size <= arrays.KEPT_BYTES_MAX:
            return state._replace(content=digest.digest_tensor(state.content))
        if not self._copies or size > arrays.KEPT_BYTES_MAX or self._copied_bytes + size > COPIED_BYTES_MAX:
            return state._replace(content=None)
        self._copied_bytes += size
        return arrays.TENSOR.copy(state)

    def objects(self) -> Iterator[Any]:
        """Everything that was met, the nearest to the roots first."""
        return (node.value for node in self.nodes)

    def let_go(self) -> None:
        """Keep nothing alive that the script lets go of."""
        with _without_collection():
            let_go(self.nodes, self._known)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """What is still there stays there, and can be compared."""
        with _without_collection():
            hold(self.nodes)
        try:
            yield
        finally:
            self.let_go()

    def node_of(self, value: Any) -> Node | None:
        """The object as it was met; None: it was not, or never changes."""
        kind = kind_of(type(value))
        node = None if kind is None else self._known.get(kind.mark(value))
        if node is None:
            return None
        held = node.value
        is_it = held is value or (node.kind.is_part and type(held) is type(value))
        return node if is_it else None

    def path_of(self, value: Any) -> str | None:
        """The path of an object that was met, or of what holds its attributes; None: it was not."""
        kind = kind_of(type(value))
        node = None if kind is None else self._known.get(kind.mark(value))
        return None if node is None else node.path

    def node_at(self, address: Any) -> Node | None:
        """The object that has this `id`; None: none that was met."""
        node = self._known.get(address) if digest.is_address(address) else None
        return None if node is None or node.kind.is_part or id(node.value) != address else node

    def name_of(self, value: Any) -> str:
        """How a reference to an object is written, so that two processes can compare it."""
        node = self.node_at(value) or self.node_of(value)
        return digest.name_of_constant(value) if node is None else node.path

    def tell_opaque(self) -> dict[str, int | None]:
        """What pickling tells of the objects that nobody can look into, by their paths."""
        opaque = (node for node in self.nodes if node.kind is OPAQUE)
        return {node.path: OPAQUE.tell(node.value, self.path_of) for node in opaque}

    def digests(self) -> dict[str, int]:
        """A number for everything that can be reached by way of each variable, as it is now."""
        found: dict[str, int] = {}
        with _without_collection():
            for node in self.nodes:
                if node.kind is OPAQUE:
                    content = OPAQUE.tell(node.value, self.path_of)
                else:
                    content = node.kind.digest(node.kind.read(node.value), self.name_of)
                match = _VARIABLE.match(node.path)
                group = node.path if match is None else match[0]
                line = f"{node.path} {type(node.value).__qualname__} {content}"
                found[group] = zlib.crc32(line.encode(), found.get(group, 0))
        return found

    def values(self, most: int = VALUES_MAX) -> dict[str, str]:
        """What a person would want to read where two processes differ: plain values, and a number for what is
        in each tensor, by their paths; the nearest to the roots first, so many at most."""
        found: dict[str, str] = {}
        for node in self.nodes:
            state = node.kind.read(node.value)
            if isinstance(node.kind, kinds.NamedKind) and not isinstance(
                node.kind, (kinds.EnvironmentKind, settings.SettingsKind)
            ):
                shown = zip(*state)
                found.update(
                    (node.path_to(node.kind.step(node.value, key)), repr(each)[:SHOWN_MAX])
                    for key, each in shown
                    if type(each) in atoms.PLAIN
                )
            elif node.kind is arrays.TENSOR or node.kind is arrays.ARRAY:
                number = node.kind.digest(state, self.name_of)
                found[node.path_to("")] = f"{type(node.value).__name__} {tuple(node.value.shape)} {number:x}"
            elif isinstance(node.kind, kinds.ListedKind):
                found[node.path_to("")] = f"{len(state)} items {node.kind.digest(state, self.name_of):x}"
            if len(found) >= most:
                break
        return found

    def changed_nodes(self) -> Iterator[Node]:
        """What is not as it was, the nearest to the roots first."""
        with _without_collection():
            for node in self.nodes:
                value = node.value
                if value is not None and not node.kind.is_same(node.state, node.kind.read(value)):
                    yield node  # What was let go is not there: what held it has changed.

    def changes(self) -> list[PictureChange]:
        """The same, each with the path to what has changed of it."""
        found = []
        for node in self.changed_nodes():
            now = node.kind.read(node.value)
            step = node.kind.first_difference(node.value, node.state, now)
            found.append(PictureChange(node.path_to(step), node.kind, node.value))
        return found

    def put_back(self) -> list[str]:
        """Give every object what it held; returns the paths of those that could not get it back."""
        for node in self.changed_nodes():
            node.kind.put_back(node.value, node.state)
        return [change.path for change in self.changes()]


def _find_kind(made: type) -> kinds.Kind | None:
    """The kind of the objects of a type; None: they never change and hold nothing that does."""
    if made is settings.ProcessSettings:
        return settings.SETTINGS
    if made in (kinds.Attributes, kinds.SlotsOf, kinds.FrameVariables):
        return dict(kinds.CONTAINERS)[made]
    is_plain = issubclass(made, atoms.BASES) and not issubclass(made, atoms.IN_MEMORY)
    is_beside = made.__module__.partition(".")[0] in BESIDE or made.__module__.startswith(MEASURE)
    if made in atoms.ATOMS or is_plain or is_beside:
        return None
    if issubclass(made, torch.Tensor):
        return arrays.TENSOR
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(made, (numpy.generic, numpy.dtype)):
        return None
    if numpy is not None and issubclass(made, numpy.ndarray):
        return arrays.ARRAY
    if numpy is not None and issubclass(made, (numpy.random.Generator, numpy.random.RandomState)):
        return DRAWS
    kind: Any = made
    other: kinds.Kind = OBJECT if is_pure(kind) else OPAQUE
    return next((each for base, each in (*kinds.CONTAINERS, *OBJECTS) if issubclass(made, base)), other)


kind_of: Final[Callable[[Any], kinds.Kind | None]] = kinds.KnownByClass(_find_kind)


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
    for name in ownership.own_modules():
        module, names = sys.modules.get(name), namespaces.names_of(name)
        if names and id(names) not in known:
            known.add(id(names))
            roots.append(("" if name == "__main__" else f"{name}.", kinds.Attributes(names, "{}", module)))
    hooks = torch.nn.modules.module
    for word in ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks"):
        roots.append((f"torch.nn.modules.module.{word}", getattr(hooks, word, {})))
    return [*roots, ("os.environ", os.environ), ("settings: ", settings.PROCESS), *generator_roots()]


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
