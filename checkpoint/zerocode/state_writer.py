"""What has changed between two pictures of a script, as plain values and tensors (`state_reader.py` puts it
back).

Rule: what both pictures know is written as its path in the first one. What was made since is written whole,
once, however often it is held. What can be neither written nor compared (something half way, code, an object
of C's) is refused by its path.
"""

from __future__ import annotations

import collections
import copyreg
import enum
import functools
import gc
import io
import logging
import queue
import types
import weakref
from collections.abc import Iterable
from typing import Any, Final

import torch

from cotenant.checkpoint.ownership import is_scripts_own
from cotenant.checkpoint.picture import Picture, kind_of, kinds, objects
from cotenant.checkpoint.picture.arrays import ARRAY, TENSOR, ArrayState, TensorState, text_of
from cotenant.checkpoint.picture.atoms import PLAIN
from cotenant.checkpoint.picture.nodes import Node
from cotenant.checkpoint.picture.settings import SETTINGS, SettingsKind
from cotenant.checkpoint.zerocode import references
from cotenant.checkpoint.zerocode.passes import Passes
from cotenant.checkpoint.zerocode.refusals import NotResumable

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
_DEAD: Final = (references.CONSTANT, "dead")
_CODE: Final = (kinds.EnvironmentKind, objects.ClassKind, objects.FunctionKind, SettingsKind)
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
            _storage(node.value): (references.AT, node.key)
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
                if type(node.value) is kinds.FrameVariables:
                    frames.append([node.path, self._content(node)])
                elif node.parent is None and isinstance(node.kind, objects.GeneratorKind):
                    late.append([node.path, self._content(node)])
                elif node.parent is None:
                    raise NotResumable(f"`{node.path.strip('.')}` was imported in the loop")
                elif node.kind.is_part and node.state[0] and self.before.node_of(node.parent.value):
                    raise NotResumable(f"`{node.path}` got its first attributes in the loop")
                continue
            if old.kind.is_same(old.state, node.state) and not _is_trained(node.value):
                if node.kind is objects.OPAQUE:
                    self._look_into_opaque(node)
                if isinstance(node.kind, (kinds.ListedKind, kinds.NamedKind)) and not isinstance(
                    node.kind, _CODE
                ):
                    size = len(node.state if isinstance(node.kind, kinds.ListedKind) else node.state[0])
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
        if isinstance(kind, objects.GeneratorKind):
            return _as_lists(state)
        if isinstance(kind, objects.CoroutineKind) and old is not None and old.state == objects.NOT_BEGUN:
            written = self._passes.write_generator(node.value, self)
            if written is not None:
                return written
        if isinstance(kind, objects.IterationKind) and old is not None and type(node.value) in _SET:
            for each in self._now.nodes:  # What goes over it has a place of its own, which nobody can set.
                if isinstance(each.kind, objects.IterationKind) and node.value in gc.get_referents(
                    each.value
                ):
                    raise NotResumable(f"`{each.path}` {_why_not(each)}")
            return list(node.value.__reduce__()[2:])
        if isinstance(kind, objects.BatchesKind):
            begun = self._passes.find(node.value)
            if begun is None:
                raise NotResumable(f"`{node.path}` gives batches of a loader, and nobody saw it begin")
            return list(begun.write(self))
        if isinstance(kind, objects.ObjectKind) and old is not None:
            return self._refer(state, node)
        if isinstance(kind, kinds.EnvironmentKind) and old is not None:
            names = dict(zip(*old.state))
            return [
                [k for k, v in zip(*state) if names.get(k) != v],
                [v for k, v in zip(*state) if names.get(k) != v],
            ]
        if isinstance(kind, (objects.FunctionKind, objects.ClassKind, kinds.NamedKind)):
            if (
                isinstance(kind, objects.FunctionKind)
                and old is not None
                and state[1][:1] != old.state[1][:1]
            ):
                raise NotResumable(f"{node.path} got other code")
            return [[self._refer(each, node) for each in part] for part in state]
        if isinstance(kind, kinds.ListedKind) or kind is ARRAY:
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
            return (references.COMPLEX, value.real, value.imag)
        if kind in PLAIN:
            owner = self._now.node_at(value)
            return (
                value
                if owner is None
                else (references.CALL, "builtins:id", [self._refer(owner.value, holder)])
            )
        if id(value) in self._left:
            return (references.OWN,)
        old = self.before.node_of(value)
        if old is not None:
            return (references.AT, old.key)
        if kind is tuple and self._now.node_of(value) is None:  # Of atoms.
            return (references.TUPLE, [self._refer(each, holder) for each in value])
        if kind_of(kind) is None:
            return self._constant(value, holder)
        if issubclass(type(value), (type, types.FunctionType, types.BuiltinFunctionType)):
            name = references.imported_name(value)
            if name:
                return (references.CONSTANT, "name", name)
        return (references.MADE, self._make(value, holder))

    def _constant(self, value: Any, holder: Node) -> Any:
        kind = type(value)
        if issubclass(type(value), torch.Size):
            return (references.CONSTANT, "size", list(value))
        if issubclass(type(value), (torch.dtype, torch.layout, torch.memory_format)):
            return (references.CONSTANT, "name", str(value).replace("torch.", "torch:"))
        if issubclass(type(value), torch.device):
            return (references.CONSTANT, "device", str(value))
        if issubclass(type(value), types.ModuleType):
            return (references.CONSTANT, "module", value.__name__)
        if issubclass(type(value), (range, slice)):
            return (
                references.CALL,
                f"builtins:{kind.__name__}",
                [self._refer(each, holder) for each in (value.start, value.stop, value.step)],
            )
        if issubclass(type(value), enum.Enum):
            return (references.CALL, self._refer(kind, holder), [self._refer(value._value_, holder)])
        if kind.__module__ == "numpy" and hasattr(value, "dtype"):
            return (references.CONSTANT, "numpy", text_of(value.dtype), value.tobytes())
        if value is Ellipsis or value is NotImplemented:
            return (references.CONSTANT, "name", f"builtins:{value!r}")
        if kind.__module__.partition(".")[0] in _REDUCED:
            reduce: Any = copyreg.dispatch_table.get(kind, kind.__reduce__)
            function, arguments = reduce(value)[:2]
            return (
                references.CALL,
                references.imported_name(function),
                [self._refer(each, holder) for each in arguments],
            )
        if issubclass(type(value), weakref.ref):
            return (
                (references.CALL, "weakref:ref", [self._refer(value(), holder)])
                if value() is not None
                else _DEAD
            )
        if issubclass(type(value), io.IOBase) and getattr(value, "closed", False) and kind in _CLOSED:
            return (references.CONSTANT, "closed", _CLOSED[kind])
        if isinstance(value, logging.Logger) and logging.Logger.manager.loggerDict.get(value.name) is value:
            return (references.CALL, "logging:getLogger", [value.name])
        if issubclass(type(value), BaseException) and not vars(value):
            return (
                references.CALL,
                self._refer(kind, holder),
                [self._refer(each, holder) for each in value.args],
            )
        is_shown = kind.__module__.partition(".")[0] in _SHOWN
        is_beside = not self._is_shared(value) and (is_shown or id(value) in self._constants)
        is_there = self.before.node_of(holder.value) is not None or type(holder.value) is kinds.FrameVariables
        if is_there and (is_beside or _owner_is_packages(holder)):
            return (references.OWN,)  # It shows where a loop is, or was there: the new process makes its own.
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
        if isinstance(kind, objects.GeneratorKind):
            return ["generator", references.imported_name(made), self._content(own)]
        if isinstance(kind, objects.BatchesKind):
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
            kind,
            (
                objects.CacheKind,
                objects.CellKind,
                objects.ClassKind,
                objects.CoroutineKind,
                objects.FunctionKind,
                objects.IterationKind,
                objects.MadeKind,
            ),
        ):
            raise NotResumable(f"`{own.path}` {_why_not(own)}")
        if isinstance(kind, objects.ObjectKind) and not objects.is_pure(made):
            raise NotResumable(f"`{own.path}` {_why_not(own)}")
        content = None if isinstance(kind, objects.ObjectKind) else self._content(own)
        inside = [self._attributes(value, each) for _, each in kinds.attributes(value)]
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
            self._storages[at] = base = (references.MADE, len(self._entries))
            memory = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())
            self._entries.append(["tensor", [None, [], False], [memory, False, None, [None, None]]])
        content = self._tensor(own)
        if base is None:
            self._storages[at] = (references.MADE, self._made[id(value)])
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
        inside = [
            each for each in (self._attributes(value, place) for _, place in kinds.attributes(value)) if each
        ]
        is_plain = made in (torch.Tensor, torch.nn.Parameter)
        is_parameter = issubclass(made, torch.nn.Parameter)
        return [None if is_plain else self._refer(made, own), inside, is_parameter]

    def _attributes(self, of: Any, place: Any) -> Any:
        node = self._now.node_of(place)
        if node is None:
            return None
        owner = None if node.parent is None else node.parent.value
        if type(place) is kinds.Attributes and owner is not of:  # Two objects have one `__dict__`.
            return ["shared", self._refer(owner, node)]
        return ["slots" if type(place) is kinds.SlotsOf else "attributes", self._content(node)]

    def _look_into_opaque(self, node: Node) -> None:
        """What C keeps may have changed, and only pickling tells."""
        told = objects.OPAQUE.tell(node.value, self._now.path_of)
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
    if isinstance(holder.kind, kinds.NamedKind):
        found = (key for key, each in zip(*holder.state) if each is value and type(key) in PLAIN)
        step = next((holder.kind.step(holder.value, key) for key in found), "")
    return holder.path_to(step)


def _values_in(node: Node) -> Iterable[Any]:
    if isinstance(node.kind, kinds.NamedKind):
        values: Iterable[Any] = node.state[1]
        return values
    return node.state if isinstance(node.kind, kinds.ListedKind) else ()


def _owner_is_packages(holder: Node) -> bool:
    """Whether what holds a thing is an object of an installed package, which has it for itself."""
    owner = holder.parent.value if holder.kind.is_part and holder.parent is not None else holder.value
    made = type(owner)
    return made.__module__ not in ("builtins", "collections") and not (
        is_scripts_own(made.__module__) or holder.parent is None or made is kinds.FrameVariables
    )


def _why_not(node: Node) -> str:
    """Why what an object holds cannot be written, in words that follow its path."""
    name = type(node.value).__name__
    if isinstance(node.kind, (objects.IterationKind, objects.CoroutineKind)):
        return f"is a {name} half way, which a new process cannot make"
    if isinstance(node.kind, objects.CacheKind):
        return "is a cache whose content nobody can see, and it was used in the loop"
    if isinstance(node.kind, (objects.FunctionKind, objects.CellKind)):
        return "is a function that was made in the loop"
    if isinstance(node.kind, objects.ClassKind):
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
