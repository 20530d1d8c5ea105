"""What has changed between two pictures of a script, as plain values and tensors; and how it is put back into
a process that has made the same objects again.

Rule: what both pictures know is written as its path in the first one, and gets its content in place, so that
whoever else holds it sees it too. What was made since is written whole, once, however often it is held. What
can be neither written nor compared (something half way, code, an object of C's) is refused by its path.
"""

from __future__ import annotations

import builtins
import collections
import copyreg
import enum
import functools
import gc
import importlib
import io
import linecache
import logging
import os
import queue
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch

from cotenant.checkpoint.ownership import is_scripts_own
from cotenant.checkpoint.picture import Picture, generator_roots, kind_of
from cotenant.checkpoint.picture.arrays import ARRAY, TENSOR, ArrayState, TensorState, array_of, text_of
from cotenant.checkpoint.picture.atoms import PLAIN
from cotenant.checkpoint.picture.kinds import (
    Attributes,
    EnvironmentKind,
    FrameVariables,
    ListedKind,
    NamedKind,
    SlotsOf,
    VariablesKind,
    attributes,
)
from cotenant.checkpoint.picture.nodes import Node
from cotenant.checkpoint.picture.objects import (
    NOT_BEGUN,
    OPAQUE,
    BatchesKind,
    CacheKind,
    CellKind,
    ClassKind,
    CoroutineKind,
    FunctionKind,
    GeneratorKind,
    IterationKind,
    MadeKind,
    ObjectKind,
    is_pure,
)
from cotenant.checkpoint.picture.settings import SETTINGS, SettingsKind
from cotenant.checkpoint.zerocode.passes import Passes, WrittenPass
from cotenant.checkpoint.zerocode.refusals import NotResumable

_AT, _MADE, _CONSTANT, _CALL, _COMPLEX, _TUPLE, _OWN = (
    "at",
    "made",
    "constant",
    "call",
    "complex",
    "tuple",
    "own",
)
KEPT_MAX: Final = 200_000
"""Entries of containers that did not change, and are written so that they can be what they were where a new
process makes them otherwise: what a clock told, or the order of a set."""
_SHOWN: Final = ("tqdm", "rich", "logging", "cotenant", "threading", "concurrent", "asyncio")
_CLOSED: Final[dict[Any, str]] = {
    io.TextIOWrapper: "r",
    io.BufferedReader: "rb",
    io.BufferedWriter: "wb",
    io.BufferedRandom: "r+b",
}
"""Types of files, and how one is opened."""
_DEAD: Final = (_CONSTANT, "dead")
_CODE: Final = (EnvironmentKind, ClassKind, FunctionKind, SettingsKind)
_TRUSTED: Final = ("torch", "_csv")
"""Whose objects of C are no state of the training, or are read by a kind of their own."""
_TRACED: Final = (torch._C.ScriptModule, torch._C.ScriptObject)
"""Their parameters are out of a picture's reach."""
_WHOLE: Final[tuple[Any, ...]] = ([], (), "", "\xe4", b"", range(0))
_SET: Final = (*(type(iter(each)) for each in _WHOLE), type(reversed([])))
"""Iterators over what is all there, which can be set to a place."""
_REDUCED: Final = ("datetime", "decimal", "pathlib", "re", "fractions", "uuid")
"""Modules of constants that say themselves how they are made."""


class StateWriter:
    """Writes one state."""

    def __init__(self, before: Picture, now: Picture, passes: Passes, opaque: dict[str, int | None]) -> None:
        """`before`: at the loop's begin. `now`: at the end of a step. `opaque`: what was told of opaque
        objects when they were looked into first, by their paths; grows."""
        self._opaque = opaque
        self.before, self._now, self._passes = before, now, passes
        self._left: set[int] = set()
        """The identities of what each process makes for itself."""
        self._made: dict[int, int] = {}
        self._entries: list[Any] = []
        self._storages: dict[int, Any] = {
            _storage(node.value): (_AT, node.key)
            for node in before.nodes
            if node.kind is TENSOR and node.value is not None
        }
        self._constants = {
            id(each) for node in before.nodes for each in _values_in(node) if kind_of(type(each)) is None
        }
        """What no picture looks into, and was there before."""

    def leave_to_each_process(self, *values: Any) -> None:
        """These are not written: whoever takes the script up makes and leads them to where they were."""
        self._left.update(map(id, values))

    def refer_to(self, value: Any) -> Any:
        """A reference to an object, made in the loop or before it.

        Raises:
            NotResumable: the script holds it no more.
        """
        node = self.before.node_of(value) or self._now.node_of(value)
        if node is None:
            raise NotResumable("a loader draws from a generator that is gone")
        return self._refer(value, node)

    def write(self) -> dict[str, Any]:
        """The state as a tree of plain values and tensors.

        Raises:
            NotResumable: something that was changed or made cannot be written.
        """
        changed, kept, frames, late = [], [], [], []
        left = KEPT_MAX
        for node in self._now.nodes:
            old = self.before.node_of(node.value)
            if old is None:
                if type(node.value) is FrameVariables:
                    frames.append([node.path, self._content(node)])
                elif node.parent is None and isinstance(node.kind, GeneratorKind):
                    late.append([node.path, self._content(node)])
                elif node.parent is None:
                    raise NotResumable(f"`{node.path.strip('.')}` was imported in the loop")
                elif node.kind.is_part and node.state[0] and self.before.node_of(node.parent.value):
                    raise NotResumable(f"`{node.path}` got its first attributes in the loop")
                continue
            if old.kind.is_same(old.state, node.state) and not _is_trained(node.value):
                if node.kind is OPAQUE:
                    self._look_into_opaque(node)
                if isinstance(node.kind, (ListedKind, NamedKind)) and not isinstance(node.kind, _CODE):
                    size = len(node.state if isinstance(node.kind, ListedKind) else node.state[0])
                    if size <= left:
                        left -= size
                        kept.append([old.key, self._content(node, old)])
                continue
            changed.append([old.key, self._content(node, old)])
        return {"changed": changed, "kept": kept, "frames": frames, "late": late, "made": self._entries}

    def write_as_it_was(self, node: Node) -> Any:
        """What a picture between the two has read of an object, with its path.

        Raises:
            NotResumable: the object was made since the first picture, or what was read of it is not kept.
        """
        old = self.before.node_of(node.value)
        is_kept = not isinstance(node.state, (TensorState, ArrayState)) or node.state.content is not None
        if old is None or not is_kept:
            raise NotResumable(f"a loader's `{node.path}` has changed since its order was drawn from it")
        return [old.key, self._content(node, old)]

    def _content(self, node: Node, old: Node | None = None) -> Any:
        """What can change of an object, in the form in which its kind reads it."""
        kind, state = node.kind, node.state
        if kind is SETTINGS and old is not None:
            raise NotResumable(
                f"`{kind.first_difference(node.value, old.state, state)}` is changed in the loop"
            )
        if kind is TENSOR:
            return self._tensor(node)
        if kind is ARRAY and type(state) is not list:
            content = state.content if state.content is not None else node.value.tobytes()
            return [list(state.form[1]), state.form[0], content]
        if isinstance(kind, GeneratorKind):
            return _as_lists(state)
        if isinstance(kind, CoroutineKind) and old is not None and old.state == NOT_BEGUN:
            written = self._passes.write_generator(node.value, self)
            if written is not None:
                return written
        if isinstance(kind, IterationKind) and old is not None and type(node.value) in _SET:
            for each in self._now.nodes:  # What goes over it has a place of its own, which nobody can set.
                if isinstance(each.kind, IterationKind) and node.value in gc.get_referents(each.value):
                    raise NotResumable(f"`{each.path}` {_why_not(each)}")
            return list(node.value.__reduce__()[2:])
        if isinstance(kind, BatchesKind):
            begun = self._passes.find(node.value)
            if begun is None:
                raise NotResumable(f"`{node.path}` gives batches of a loader, and nobody saw it begin")
            return list(begun.write(self))
        if isinstance(kind, ObjectKind) and old is not None:
            return self._refer(state, node)
        if isinstance(kind, EnvironmentKind) and old is not None:
            names = dict(zip(*old.state))
            return [
                [k for k, v in zip(*state) if names.get(k) != v],
                [v for k, v in zip(*state) if names.get(k) != v],
            ]
        if isinstance(kind, (FunctionKind, ClassKind, NamedKind)):
            if isinstance(kind, FunctionKind) and old is not None and state[1][:1] != old.state[1][:1]:
                raise NotResumable(f"{node.path} got other code")
            return [[self._refer(each, node) for each in part] for part in state]
        if isinstance(kind, ListedKind) or kind is ARRAY:
            return [self._refer(each, node) for each in state]
        raise NotResumable(f"`{node.path}` {_why_not(node)}")

    def _tensor(self, node: Node) -> Any:
        value, state = node.value, node.state
        if (
            value.layout is not torch.strided
            or value.is_nested
            or value.is_meta
            or hasattr(value, "device_mesh")
        ):
            raise NotResumable(f"`{node.path}` is a sharded, sparse, nested or meta tensor")
        grad = None if state.grad is None else self._refer(state.grad, node)
        hooks = [None if each is None else self._refer(each, node) for each in state.hooks]
        kept = state.content if type(state.content) is torch.Tensor else value.detach()
        return [kept, bool(state.form[2] and value.is_leaf), grad, hooks]

    def _refer(self, value: Any, holder: Node) -> Any:
        """A reference to an object, as a plain value."""
        kind = type(value)
        if kind is complex:
            return (_COMPLEX, value.real, value.imag)
        if kind in PLAIN:
            owner = self._now.node_at(value)
            return value if owner is None else (_CALL, "builtins:id", [self._refer(owner.value, holder)])
        if id(value) in self._left:
            return (_OWN,)
        old = self.before.node_of(value)
        if old is not None:
            return (_AT, old.key)
        if kind is tuple and self._now.node_of(value) is None:  # Of atoms.
            return (_TUPLE, [self._refer(each, holder) for each in value])
        if kind_of(kind) is None:
            return self._constant(value, holder)
        if issubclass(type(value), (type, types.FunctionType, types.BuiltinFunctionType)):
            name = _imported_name(value)
            if name:
                return (_CONSTANT, "name", name)
        return (_MADE, self._make(value, holder))

    def _constant(self, value: Any, holder: Node) -> Any:
        kind = type(value)
        if issubclass(type(value), torch.Size):
            return (_CONSTANT, "size", list(value))
        if issubclass(type(value), (torch.dtype, torch.layout, torch.memory_format)):
            return (_CONSTANT, "name", str(value).replace("torch.", "torch:"))
        if issubclass(type(value), torch.device):
            return (_CONSTANT, "device", str(value))
        if issubclass(type(value), types.ModuleType):
            return (_CONSTANT, "module", value.__name__)
        if issubclass(type(value), (range, slice)):
            return (
                _CALL,
                f"builtins:{kind.__name__}",
                [self._refer(each, holder) for each in (value.start, value.stop, value.step)],
            )
        if issubclass(type(value), enum.Enum):
            return (_CALL, self._refer(kind, holder), [self._refer(value._value_, holder)])
        if kind.__module__ == "numpy" and hasattr(value, "dtype"):
            return (_CONSTANT, "numpy", text_of(value.dtype), value.tobytes())
        if value is Ellipsis or value is NotImplemented:
            return (_CONSTANT, "name", f"builtins:{value!r}")
        if kind.__module__.partition(".")[0] in _REDUCED:
            reduce: Any = copyreg.dispatch_table.get(kind, kind.__reduce__)
            function, arguments = reduce(value)[:2]
            return (_CALL, _imported_name(function), [self._refer(each, holder) for each in arguments])
        if issubclass(type(value), weakref.ref):
            return (_CALL, "weakref:ref", [self._refer(value(), holder)]) if value() is not None else _DEAD
        if issubclass(type(value), io.IOBase) and getattr(value, "closed", False) and kind in _CLOSED:
            return (_CONSTANT, "closed", _CLOSED[kind])
        if isinstance(value, logging.Logger) and logging.Logger.manager.loggerDict.get(value.name) is value:
            return (_CALL, "logging:getLogger", [value.name])
        if issubclass(type(value), BaseException) and not vars(value):
            return (_CALL, self._refer(kind, holder), [self._refer(each, holder) for each in value.args])
        is_shown = kind.__module__.partition(".")[0] in _SHOWN
        is_beside = not self._is_shared(value) and (is_shown or id(value) in self._constants)
        is_there = self.before.node_of(holder.value) is not None or type(holder.value) is FrameVariables
        if is_there and (is_beside or _owner_is_packages(holder)):
            return (_OWN,)  # It shows where a loop is, or was there: the new process makes its own.
        words = f"is a {kind.__module__}.{kind.__qualname__}, which cannot be written"
        raise NotResumable(f"`{_path_in(holder, value)}` {words}")

    @staticmethod
    def _is_shared(value: Any) -> bool:
        """Whether an object holds what other threads or processes see at once."""
        if issubclass(type(value), queue.Queue):
            return bool(value.queue)
        return type(value).__module__ == "multiprocessing.sharedctypes"

    def _make(self, value: Any, holder: Node) -> int:
        """Write an object that was made since the first picture; its number."""
        node = self._now.node_of(value) or holder
        mark = id(value)
        if mark in self._made:
            return self._made[mark]
        self._made[mark] = number = len(self._entries)
        entry: list[Any] = ["", None, None]
        self._entries.append(entry)
        own = self._now.node_of(value)
        if own is None and _is_named_tuple(value):
            entry[:] = ["named_tuple", [value.__module__, value.__name__, value.__qualname__], value._fields]
            return number
        if own is None:
            is_class = isinstance(value, type) and type(holder.value) is value
            words = "is an object of a class that was made in the loop"
            raise NotResumable(f"`{holder.path}` {words if is_class else 'holds what was not reached'}")
        entry[:] = self._made_entry(own, node)
        return number

    def _made_entry(self, own: Node, holder: Node) -> list[Any]:
        value, kind = own.value, own.kind
        if _is_watched(value):
            raise NotResumable(f"`{own.path}` calls a function of the script when it is freed")
        if kind is TENSOR:
            return self._made_tensor(own)
        made: Any = type(value)
        if kind is ARRAY:
            return ["array", type(own.state) is list, self._content(own)]
        if isinstance(kind, GeneratorKind):
            return ["generator", _imported_name(made), self._content(own)]
        if isinstance(kind, BatchesKind):
            content = self._content(own)
            loader = self._passes.find(value).loader  # type: ignore[union-attr]
            if loader is None:
                raise NotResumable(f"`{own.path}` gives batches of a loader that is gone")
            return ["batches", self._refer(loader, own), content]
        if made is types.FunctionType and not value.__closure__ and is_scripts_own(value.__module__ or ""):
            code = value.__code__
            place = [code.co_filename, code.co_name, code.co_firstlineno]
            return [
                "function",
                [value.__module__, *place],
                [self._refer(each, own) for each in own.state[1][1:]],
            ]
        if type(value) in _SET:
            function, arguments, *place = value.__reduce__()
            return ["iterator", function.__name__, [[self._refer(each, own) for each in arguments], place]]
        if made is types.MethodType:
            return ["method", value.__func__.__name__, self._refer(value.__self__, own)]
        if made is functools.partial:
            parts = (value.func, value.args, value.keywords)
            return ["partial", None, [self._refer(each, own) for each in parts]]
        if isinstance(
            kind, (CacheKind, CellKind, ClassKind, CoroutineKind, FunctionKind, IterationKind, MadeKind)
        ):
            raise NotResumable(f"`{own.path}` {_why_not(own)}")
        if isinstance(kind, ObjectKind) and not is_pure(made):
            raise NotResumable(f"`{own.path}` {_why_not(own)}")
        content = None if isinstance(kind, ObjectKind) else self._content(own)
        inside = [self._attributes(value, each) for _, each in attributes(value)]
        extra = None
        if issubclass(type(value), collections.deque):
            extra = value.maxlen
        elif issubclass(type(value), collections.defaultdict):
            extra = self._refer(value.default_factory, own)
        return ["object", self._refer(made, own), [content, [each for each in inside if each], extra]]

    def _made_tensor(self, own: Node) -> list[Any]:
        """A tensor whole; where it shares its memory, as a view of what the memory belongs to."""
        value, at = own.value, _storage(own.value)
        base = self._storages.get(at) if at else None
        if base is None and at and value.untyped_storage().nbytes() != value.numel() * value.element_size():
            self._storages[at] = base = (_MADE, len(self._entries))
            memory = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())
            self._entries.append(["tensor", [None, [], False], [memory, False, None, [None, None]]])
        content = self._tensor(own)
        if base is None:
            self._storages[at] = (_MADE, self._made[id(value)])
            return ["tensor", self._made_as(own), content]
        form = [str(value.dtype).replace("torch.", "torch:"), list(value.shape), list(value.stride())]
        return [
            "view",
            [base, self._made_as(own)],
            [form, value.storage_offset(), content[1:3]],
        ]

    def _made_as(self, own: Node) -> list[Any]:
        """The class of a tensor, and its attributes."""
        value, made = own.value, type(own.value)
        inside = [each for each in (self._attributes(value, place) for _, place in attributes(value)) if each]
        is_plain = made in (torch.Tensor, torch.nn.Parameter)
        is_parameter = issubclass(made, torch.nn.Parameter)
        return [None if is_plain else self._refer(made, own), inside, is_parameter]

    def _attributes(self, of: Any, place: Any) -> Any:
        node = self._now.node_of(place)
        if node is None:
            return None
        owner = None if node.parent is None else node.parent.value
        if type(place) is Attributes and owner is not of:  # Two objects have one `__dict__`.
            return ["shared", self._refer(owner, node)]
        return ["slots" if type(place) is SlotsOf else "attributes", self._content(node)]

    def _look_into_opaque(self, node: Node) -> None:
        """What C keeps may have changed, and only pickling tells."""
        told = OPAQUE.tell(node.value, self._now.path_of)
        before = self._opaque.setdefault(node.path, told)
        if told is not None and told != before:
            raise NotResumable(f"`{node.path}` has changed, and {_why_not(node)}")
        is_trusted = type(node.value).__module__.partition(".")[0] in _TRUSTED
        if isinstance(node.value, _TRACED) or (told is None and not is_trusted and not _is_packages(node)):
            raise NotResumable(f"`{node.path}` {_why_not(node)}")


def _is_packages(node: Node) -> bool:
    """Whether an object of an installed package holds it."""
    return node.parent is not None and _owner_is_packages(node.parent)


def _path_in(holder: Node, value: Any) -> str:
    """The path of something that an object holds."""
    step = ""
    if isinstance(holder.kind, NamedKind):
        found = (key for key, each in zip(*holder.state) if each is value and type(key) in PLAIN)
        step = next((holder.kind.step(holder.value, key) for key in found), "")
    return holder.path_to(step)


def _values_in(node: Node) -> Iterable[Any]:
    if isinstance(node.kind, NamedKind):
        values: Iterable[Any] = node.state[1]
        return values
    return node.state if isinstance(node.kind, ListedKind) else ()


def _owner_is_packages(holder: Node) -> bool:
    """Whether what holds a thing is an object of an installed package, which has it for itself."""
    owner = holder.parent.value if holder.kind.is_part and holder.parent is not None else holder.value
    made = type(owner)
    return made.__module__ not in ("builtins", "collections") and not (
        is_scripts_own(made.__module__) or holder.parent is None or made is FrameVariables
    )


def _why_not(node: Node) -> str:
    """Why what an object holds cannot be written, in words that follow its path."""
    name = type(node.value).__name__
    if isinstance(node.kind, (IterationKind, CoroutineKind)):
        return f"is a {name} half way, which a new process cannot make"
    if isinstance(node.kind, CacheKind):
        return "is a cache whose content nobody can see, and it was used in the loop"
    if isinstance(node.kind, (FunctionKind, CellKind)):
        return "is a function that was made in the loop"
    if isinstance(node.kind, ClassKind):
        return "is a class that was made in the loop"
    return f"is a {type(node.value).__module__}.{name}, into which nobody can look"


def _is_named_tuple(value: Any) -> bool:
    """Whether it is a class as `collections.namedtuple` makes it from names alone."""
    fields = vars(value).get("_fields") if type(value) is type and value.__bases__ == (tuple,) else None
    if type(fields) is not tuple or vars(value).get("_field_defaults"):
        return False
    mine, fresh = vars(value), vars(collections.namedtuple(value.__name__, fields, rename=True))
    codes = (
        (getattr(each[name], "__code__", None) for each in (mine, fresh)) for name in fresh if name in mine
    )
    return mine.keys() == fresh.keys() and all(left == right for left, right in codes)


def _is_watched(value: Any) -> bool:
    """Whether a weak reference to an object tells the script when it is gone."""
    for each in weakref.getweakrefs(value):
        told = each.__callback__
        if type(told) is weakref.finalize:
            told = (told.peek() or (None, None))[1]
        while type(told) is functools.partial:
            told = told.func
        module = getattr(told, "__module__", None)
        if told is not None and (module is None or is_scripts_own(module)):
            return True
    return False


def _as_lists(tree: Any) -> Any:
    if isinstance(tree, (list, tuple)):
        return [_as_lists(each) for each in tree]
    return {key: _as_lists(each) for key, each in tree.items()} if isinstance(tree, dict) else tree


def _is_trained(value: Any) -> bool:
    """Parameters are always written: what they are when the loop begins need not be the same each time."""
    return issubclass(type(value), torch.Tensor) and isinstance(value, torch.nn.Parameter)


def _storage(value: Any) -> int:
    try:
        return int(value.untyped_storage().data_ptr())
    except (AttributeError, RuntimeError, NotImplementedError):
        return 0


def _imported_name(value: Any) -> str:
    """`module:name` of what can be imported; empty if it cannot."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not isinstance(module, str) or is_scripts_own(module):
        return ""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is value else ""


def import_name(name: str) -> Any:
    module, _, rest = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in rest.split("."):
        found = getattr(found, part)
    return found


# --- Putting back ------------------------------------------------------------------------------------


class StateReader:
    """Puts a written state back into the objects that a new process has made."""

    def __init__(
        self,
        tree: dict[str, Any],
        picture: Picture,
        passes: Passes,
    ) -> None:
        """`picture`: at the loop's begin, in this process."""
        self._passes, self._tree = passes, tree
        self._objects, self._aliases = {node.key: node for node in picture.nodes}, picture.aliases or {}
        self._made: dict[int, Any] = {}
        self._live: dict[str, Any] = {}
        """What containers held that hold something of each process's own, by their paths."""
        self.of_each_process = {
            key
            for _, content in (*tree["changed"], *tree["frames"])
            if isinstance(content, list)
            and len(content) == 2
            and type(content[0]) is list is type(content[1])
            for key, each in zip(*content)
            if each == (_OWN,)
        }
        """Variables and attributes that hold such a thing: each process makes it itself."""

    def keep_of_each_process(self, frames: dict[str, types.FrameType]) -> None:
        """What each process has of its own stays what it is now, whatever is put back before the rest."""
        for path, content in self._tree["changed"]:
            node = self._find(path)
            if node is not None and isinstance(node.kind, (NamedKind, ListedKind)):
                self._live[path] = node.kind.read(node.value)
                if isinstance(node.kind, NamedKind):
                    present = {key: each for key, each in zip(*self._live[path]) if type(key) in PLAIN}
                    self._keep_generators(content, present)
        for path, frame in frames.items():
            variables = FrameVariables(frame).variables
            self._live[path] = list(variables), list(variables.values())

    def _keep_generators(self, content: Any, present: dict[Any, Any]) -> None:
        """A generator of random numbers that was made on the way here is that of the loop: a sampler that is
        half way may hold it."""
        for name, each in zip(*content):
            if type(name) in PLAIN and type(each) is tuple and each[0] == _MADE:
                what, kind, _ = self._tree["made"][each[1]]
                if what == "generator" and kind == _imported_name(type(present.get(name))):
                    self._made[each[1]] = present[name]

    def put_back(self) -> list[str]:
        """Put everything back that is there; returns the paths that this process has not.

        Raises:
            NotResumable: what is to be put back refers to something that is not there.
        """
        missing = []
        draws = []
        for path, content in self._tree["changed"]:
            node = self._find(path)
            if node is None or node.value is None:
                missing.append(path)
                continue
            if isinstance(node.kind, (GeneratorKind, CoroutineKind)):
                draws.append((node, content))  # The last: what is made again may draw.
                continue
            self._fill(node.kind, node.value, content, self._live.get(path))
        for path, content in self._tree["kept"]:
            node = self._find(path)
            if node is not None:
                present = node.kind.read(node.value)
                state = self._state(node.kind, content, present)
                if not node.kind.is_same(state, present):
                    node.kind.put_back(node.value, state)
        for node, content in sorted(draws, key=lambda each: isinstance(each[0].kind, GeneratorKind)):
            self._fill(node.kind, node.value, content)
        for path, content in self._tree.get("late", ()):  # Of what was imported in the loop.
            if path.startswith("numpy"):
                importlib.import_module("numpy.random")
            elif torch.cuda.is_available():
                torch.cuda.init()  # type: ignore[no-untyped-call]
            _GENERATOR.put_back(self.generator_at(path), tuple(content))
        for number, made in self._made.items():  # They were made once, and have drawn since.
            if isinstance(kind_of(type(made)), GeneratorKind):
                _GENERATOR.put_back(made, tuple(self._tree["made"][number][2]))
        return missing

    def _find(self, key: str) -> Node | None:
        """What was at a path; it may be met first by another way here."""
        if key in self._objects:
            return self._objects[key]
        for at in range(len(key), 0, -1):
            known = self._aliases.get(key[:at])
            if known is not None and (at == len(key) or key[at] in ".[<@ {"):
                return self._objects.get(known.path + key[at:])
        return None

    def put_one_back(self, path: str, content: Any) -> None:
        """Put back what one object held.

        Raises:
            NotResumable: it is not there.
        """
        value = self.object_at(path)
        self._fill(kind_of(type(value)), value, content)

    def object_at(self, path: str) -> Any:
        """What was met at a path.

        Raises:
            NotResumable: it is not there.
        """
        node = self._find(path)
        if node is None or node.value is None:
            raise NotResumable(f"`{path}` is not there")
        return node.value

    def generator_at(self, name: Any) -> Any:
        """A generator of random numbers, by the name of one that the process shares or by a reference; None:
        it is not there."""
        if type(name) is tuple:
            return self._resolve(name)
        node = self._find(name)
        return dict(generator_roots()).get(name, None if node is None else node.value)

    def variable_of(self, path: str, name: str) -> Any:
        """What a variable held of a function that runs in the loop or around it."""
        for at, content in (*self._tree["frames"], *self._tree["changed"]):
            if at == path and name in content[0]:
                return self._resolve(content[1][content[0].index(name)])
        raise NotResumable(f"`{path}{name}` was not written")

    def put_back_frames(self, frames: dict[str, types.FrameType]) -> list[str]:
        """Put the variables of these functions back, which the loop has called; returns the paths of those
        that do not run here."""
        for path, content in self._tree["frames"]:
            if path in frames:
                state = self._state(_VARIABLES, content, self._live[path])
                FrameVariables(frames[path]).bind(dict(zip(*state)))
        return [path for path, _ in self._tree["frames"] if path not in frames]

    def _fill(self, kind: Any, value: Any, content: Any, live: Any = None) -> None:
        if isinstance(kind, EnvironmentKind):
            for key, each in zip(*content):
                value[key] = each
            return
        if isinstance(kind, CoroutineKind):
            self._passes.lead_generator(value, content, self)
            return
        if isinstance(kind, IterationKind):
            _set_iterator(value, *content)
            return
        if isinstance(kind, BatchesKind):
            self._passes.go_on(value, WrittenPass(*content), self)
            return
        kind.put_back(value, self._state(kind, content, kind.read(value) if live is None else live))

    def _state(self, kind: Any, content: Any, present: Any) -> Any:
        """What was written, in the form in which its kind reads it; `present`: what is there."""
        if kind is TENSOR:
            tensor, wants_grad, grad, hooks = content
            form = (tensor.dtype, tuple(tensor.shape), wants_grad, tensor.device)
            return TensorState(0, -1, form, self._resolve(grad), tuple(map(self._resolve, hooks)), tensor)
        if kind is ARRAY and len(content) == 3 and isinstance(content[2], bytes):
            return ArrayState((content[1], tuple(content[0])), 0, content[2])
        if isinstance(kind, GeneratorKind):
            return tuple(content)
        if isinstance(kind, ObjectKind):
            return self._resolve(content)
        if isinstance(kind, NamedKind):
            keys, values = list(map(_interned, self._resolve_all(content[0], ()))), content[1]
            there = dict(zip(map(_hashed, present[0]), present[1]))
            return keys, self._resolve_all(values, [there.get(_hashed(key)) for key in keys])
        return self._resolve_all(content, present)

    def _resolve_all(self, references: list[Any], present: Sequence[Any]) -> list[Any]:
        """What these stand for; for an object that each process has of its own, that of this one."""
        return [
            (present[at] if at < len(present) else None) if each == (_OWN,) else self._resolve(each)
            for at, each in enumerate(references)
        ]

    def _resolve(self, reference: Any) -> Any:
        if type(reference) is not tuple:
            return reference
        what = reference[0]
        if what == _OWN:
            return None
        if what == _AT:
            return self.object_at(reference[1])
        if what == _TUPLE:
            return tuple(self._resolve(each) for each in reference[1])
        if what == _MADE:
            return self._object(reference[1])
        if what == _COMPLEX:
            return complex(reference[1], reference[2])
        if what == _CALL:
            function = reference[1] if type(reference[1]) is str else self._resolve(reference[1])
            function = import_name(function) if isinstance(function, str) else function
            return function(*(self._resolve(each) for each in reference[2]))
        return _CONSTANTS[reference[1]](*reference[2:])

    def _object(self, number: int) -> Any:
        if number not in self._made:
            what, about, content = self._tree["made"][number]
            getattr(self, f"_make_{what}")(number, about, content)
        return self._made[number]

    def _make_tensor(self, number: int, made_as: Any, content: Any) -> None:
        tensor, wants_grad, grad, _ = content
        self._finish_tensor(number, made_as, tensor.clone(), wants_grad, grad)

    def _finish_tensor(self, number: int, made_as: Any, made: Any, wants_grad: bool, grad: Any) -> None:
        """Give it its class, its gradient and its attributes."""
        of, inside, is_parameter = made_as
        if is_parameter:
            made = torch.nn.Parameter(made, wants_grad)
        if of is not None:
            made = made.as_subclass(self._resolve(of))
        self._made[number] = made = made.requires_grad_(wants_grad)
        made.grad = self._resolve(grad)
        self._place_all(made, inside)

    def _make_view(self, number: int, of: Any, content: Any) -> None:
        (base, made_as), (form, offset, (wants_grad, grad)) = of, content
        dtype, shape, stride = form
        storage = self._resolve(base).untyped_storage()
        made = torch.empty(0, dtype=import_name(dtype), device=storage.device)
        made = made.set_(storage, offset, shape, stride)
        self._finish_tensor(number, made_as, made, wants_grad, grad)

    def _make_array(self, number: int, of_objects: bool, content: Any) -> None:
        numpy: Any = importlib.import_module("numpy")
        if of_objects:
            self._made[number] = made = numpy.empty(len(content), dtype=object)
            made[:] = [self._resolve(each) for each in content]
            return
        shape, kind, data = content
        self._made[number] = array_of(kind, shape, data).copy()

    def _make_generator(self, number: int, name: str, content: Any) -> None:
        self._made[number] = made = _new_generator(name)
        _GENERATOR.put_back(made, tuple(content))

    def _make_function(self, number: int, place: list[Any], content: Any) -> None:
        module, *where = place
        names = vars(sys.modules[module])
        self._made[number] = made = types.FunctionType(_code_at(*where), names)
        made.__defaults__, made.__kwdefaults__ = (self._resolve(each) for each in content)

    def _make_method(self, number: int, name: str, owner: Any) -> None:
        self._made[number] = getattr(self._resolve(owner), name)

    def _make_iterator(self, number: int, name: str, content: Any) -> None:
        arguments, place = content
        made = getattr(builtins, name)(*map(self._resolve, arguments))
        self._made[number] = made
        if place:
            _set_iterator(made, *place)

    def _make_partial(self, number: int, _: None, content: Any) -> None:
        function, arguments, words = (self._resolve(each) for each in content)
        self._made[number] = functools.partial(function, *arguments, **words)

    def _make_named_tuple(self, number: int, about: list[str], fields: tuple[str, ...]) -> None:
        module, name, qualified = about
        self._made[number] = made = collections.namedtuple(name, fields, rename=True, module=module)
        made.__qualname__ = qualified

    def _make_batches(self, number: int, loader: Any, content: Any) -> None:
        written = WrittenPass(*content)
        self._made[number] = self._passes.make_again(self._resolve(loader), written, self)

    def _make_object(self, number: int, kind: Any, content: Any) -> None:
        made_of, inside, extra = content
        of = self._resolve(kind)
        if issubclass(of, (tuple, frozenset)):  # Whole or not at all: what it holds comes first.
            items = [self._resolve(each) for each in made_of]
            made = tuple.__new__(of, items) if issubclass(of, tuple) else frozenset.__new__(of, items)
        else:
            made = _new_object(of, extra if not isinstance(extra, tuple) else self._resolve(extra))
            if issubclass(of, torch.optim.Optimizer):  # The first of its class: its steps are to be heard of.
                object.__new__(of)._patch_step_function()
        self._made[number] = made
        if made_of is not None and not isinstance(made, (tuple, frozenset)):
            made_kind = kind_of(of)
            self._fill(made_kind, made, made_of)
        self._place_all(made, inside)

    def _place_all(self, made: Any, inside: list[Any]) -> None:
        """Give an object its attributes."""
        for where, names in inside:
            if where == "shared":
                object.__setattr__(made, "__dict__", vars(self._resolve(names)))
                continue
            keys, values = ([self._resolve(each) for each in part] for part in names)
            place = next(
                each for _, each in attributes(made) if (type(each) is SlotsOf) == (where == "slots")
            )
            _place_attributes(place, dict(zip(keys, values)))


_GENERATOR: Final = GeneratorKind()
_VARIABLES: Final = VariablesKind(form="{}")


def _set_iterator(iterator: Any, place: int | None = None) -> None:
    """Set a builtin iterator to the place that it says itself; without one it is at its end."""
    if place is None:
        collections.deque(iterator, maxlen=0)
    else:
        iterator.__setstate__(place)


def _interned(key: Any) -> Any:
    """A name as the interpreter has those of the text: what pickles them sees which are one."""
    return sys.intern(key) if type(key) is str else key


def _hashed(key: Any) -> Any:
    return (type(key), key) if type(key) in PLAIN else id(key)


def _code_at(file: str, name: str, line: int) -> types.CodeType:
    """The code of a function that is defined within another one, or in a loop."""
    waiting = [compile("".join(linecache.getlines(file)), file, "exec", dont_inherit=True)]
    for code in waiting:
        if (code.co_name, code.co_firstlineno) == (name, line):
            return code
        waiting += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    raise NotResumable(f"{name} is not at line {line} of {file}")


def _new_object(of: type, extra: Any) -> Any:
    if issubclass(of, collections.deque):
        return of([], extra) if of is collections.deque else of.__new__(of)
    if issubclass(of, collections.defaultdict):
        made: Any = of.__new__(of)
        made.default_factory = extra
        return made
    for base in (list, set, collections.OrderedDict, dict):
        if issubclass(of, base):
            empty: Any = base.__new__
            return empty(of)
    return object.__new__(of)


def _place_attributes(place: Any, names: dict[str, Any]) -> None:
    if isinstance(place, Attributes):
        if names:
            place.entries_to_change.update(names)
        return
    for name, each in names.items():
        place.members[name].__set__(place.owner, each)


def _new_generator(name: str) -> Any:
    kind = import_name(name)
    if kind is torch.Generator:
        return torch.Generator()
    if name.startswith("numpy"):
        numpy: Any = importlib.import_module("numpy")
        return numpy.random.default_rng(0) if kind is numpy.random.Generator else kind(0)
    return kind(0)


def _closed_file(mode: str) -> Any:
    with open(os.devnull, mode) as file:  # nothing is read
        return file


_CONSTANTS: Final[dict[str, Callable[..., Any]]] = {
    "closed": _closed_file,
    "dead": lambda: weakref.ref(type("", (), {})()),
    "size": lambda sizes: torch.Size(sizes),
    "name": import_name,
    "device": torch.device,
    "module": importlib.import_module,
    "numpy": lambda kind, data: array_of(kind, (1,), data)[0],
}
