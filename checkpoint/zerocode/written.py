"""What has changed between two pictures of a script, as plain values and tensors; and how it is put back into
a process that has made the same objects again.

Rule: what both pictures know is written as its path in the first one, and gets its content in place, so that
whoever else holds it sees it too. What was made since is written whole, once, however often it is held. What
can be neither written nor compared (something half way, code, an object of C's) is refused by its path.
"""

from __future__ import annotations

import collections
import enum
import functools
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any, Final

import torch

from cotenant.checkpoint.picture import Node, Picture, kind_of
from cotenant.checkpoint.picture.arrays import ARRAY, TENSOR, ArrayState, TensorState
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
from cotenant.checkpoint.picture.objects import (
    CacheKind,
    CellKind,
    ClassKind,
    CoroutineKind,
    FunctionKind,
    GeneratorKind,
    IterationKind,
    MadeKind,
    ObjectKind,
)
from cotenant.checkpoint.picture.ownership import is_scripts_own
from cotenant.checkpoint.zerocode.refusals import NotResumable

_AT, _MADE, _CONSTANT, _CALL, _COMPLEX = "at", "made", "constant", "call", "complex"
_SCALARS_MAX: Final = 20_000
_TEXT_MAX: Final = 1000
_TRUSTED: Final = ("torch", "numpy", "builtins")
"""Packages whose objects of C are no state of the training, or are read by a kind of their own."""
_REDUCED: Final = ("datetime", "decimal", "pathlib", "re", "fractions", "uuid")
"""Modules of constants that say themselves how they are made."""


class Writer:
    """Writes one state."""

    def __init__(self, before: Picture, now: Picture) -> None:
        """`before`: at the loop's begin. `now`: at the end of a step."""
        self._before, self._now = before, now
        self._made: dict[int, int] = {}
        self._entries: list[Any] = []
        self._storages = {
            _storage(node.value): node for node in before.nodes if node.kind is TENSOR and not node.is_gone
        }

    def write(self) -> dict[str, Any]:
        """The state as a tree of plain values and tensors.

        Raises:
            NotResumable: something that was changed or made cannot be written.
        """
        changed, scalars, frames = [], [], []
        for node in self._now.nodes:
            old = self._before.node_of(node.value)
            if old is None:
                if type(node.value) is FrameVariables:
                    frames.append([node.path, self._content(node)])
                continue
            if old.kind.is_same(old.state, node.state) and not _is_trained(node.value):
                scalars += _scalars_of(old, _SCALARS_MAX - len(scalars))
                self._refuse_opaque(node)
                continue
            changed.append([old.key, self._content(node, old)])
        return {"changed": changed, "scalars": scalars, "frames": frames, "made": self._entries}

    def _content(self, node: Node, old: Node | None = None) -> Any:
        """What can change of an object, in the form in which its kind reads it."""
        kind, state = node.kind, node.state
        if kind is TENSOR:
            return self._tensor(node)
        if kind is ARRAY and type(state) is not list:
            content = state.content if state.content is not None else node.value.tobytes()
            return [list(state.form[1]), state.form[0], content]
        if isinstance(kind, GeneratorKind):
            return _as_lists(state)
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
        return [value.detach(), bool(state.form[2] and value.is_leaf), grad]

    def _refer(self, value: Any, holder: Node) -> Any:
        """A reference to an object, as a plain value."""
        kind = type(value)
        if kind is complex:
            return (_COMPLEX, value.real, value.imag)
        if kind in PLAIN:
            return value
        old = self._before.node_of(value)
        if old is not None:
            return (_AT, old.path)
        if kind_of(kind) is None:  # type: ignore[arg-type]
            return self._constant(value, holder)
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            name = _imported_name(value)
            if name:
                return (_CONSTANT, "name", name)
        return (_MADE, self._make(value, holder))

    def _constant(self, value: Any, holder: Node) -> Any:
        kind = type(value)
        if isinstance(value, torch.Size):
            return (_CONSTANT, "size", list(value))
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return (_CONSTANT, "name", str(value).replace("torch.", "torch:"))
        if isinstance(value, torch.device):
            return (_CONSTANT, "device", str(value))
        if isinstance(value, types.ModuleType):
            return (_CONSTANT, "module", value.__name__)
        if isinstance(value, (range, slice)):
            return (
                _CALL,
                f"builtins:{kind.__name__}",
                [self._refer(each, holder) for each in (value.start, value.stop, value.step)],
            )
        if isinstance(value, enum.Enum):
            return (_CALL, self._refer(kind, holder), [self._refer(value._value_, holder)])
        if kind.__module__ == "numpy" and hasattr(value, "dtype"):
            return (_CONSTANT, "numpy", value.dtype.str, value.tobytes())
        if value is Ellipsis or value is NotImplemented:
            return (_CONSTANT, "name", f"builtins:{value!r}")
        if kind.__module__.partition(".")[0] in _REDUCED:
            function, arguments = value.__reduce__()[:2]
            return (_CALL, _imported_name(function), [self._refer(each, holder) for each in arguments])
        if _is_beside(kind):
            return None  # Only shows where a loop is, or logs: the new process has its own.
        raise NotResumable(
            f"`{holder.path}` holds a {kind.__module__}.{kind.__qualname__} that was made in the loop"
        )

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
        if own is None:
            raise NotResumable(f"`{holder.path}` holds what was not reached")
        entry[:] = self._made_entry(own, node)
        return number

    def _made_entry(self, own: Node, holder: Node) -> list[Any]:
        value, kind = own.value, own.kind
        if kind is TENSOR:
            base = self._storages.get(_storage(value))
            if base is not None and base.value is not value:
                return [
                    "view",
                    self._refer(base.value, own),
                    [list(value.shape), list(value.stride()), value.storage_offset()],
                ]
            self._storages[_storage(value)] = own
            return ["tensor", isinstance(value, torch.nn.Parameter), self._tensor(own)]
        made = type(value)
        if kind is ARRAY:
            return ["array", type(own.state) is list, self._content(own)]
        if isinstance(kind, GeneratorKind):
            return ["generator", _imported_name(made), self._content(own)]
        if made is types.MethodType:
            return ["method", value.__func__.__name__, self._refer(value.__self__, own)]
        if made is functools.partial:
            parts = (value.func, value.args, value.keywords)
            return ["partial", None, [self._refer(each, own) for each in parts]]
        if isinstance(
            kind, (CacheKind, CellKind, ClassKind, CoroutineKind, FunctionKind, IterationKind, MadeKind)
        ):
            raise NotResumable(f"`{own.path}` {_why_not(own)}")
        if isinstance(kind, ObjectKind) and not _is_pure(made):
            raise NotResumable(f"`{own.path}` {_why_not(own)}")
        content = None if isinstance(kind, ObjectKind) else self._content(own)
        inside = [self._attributes(each) for _, each in attributes(value)]
        extra = None
        if isinstance(value, collections.deque):
            extra = value.maxlen
        elif isinstance(value, collections.defaultdict):
            extra = self._refer(value.default_factory, own)
        return ["object", self._refer(made, own), [content, [each for each in inside if each], extra]]

    def _attributes(self, place: Any) -> Any:
        node = self._now.node_of(place)
        if node is None:
            return None
        return ["slots" if type(place) is SlotsOf else "attributes", self._content(node)]

    def _refuse_opaque(self, node: Node) -> None:
        """An object of C's that is no part of torch may change, and nobody could see it."""
        if type(node.kind) is not ObjectKind or _is_pure(type(node.value)):
            return
        package = type(node.value).__module__.partition(".")[0]
        file = getattr(sys.modules.get(package), "__file__", None) or ""
        if package not in _TRUSTED and "-packages" in file:
            raise NotResumable(f"`{node.path}` {_why_not(node)}")


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


def _scalars_of(node: Node, most: int) -> list[Any]:
    """The plain values among named things: what a clock told before the loop is another time's in a new
    process, and matters to nobody as long as it is what it was."""
    if not isinstance(node.kind, NamedKind) or isinstance(
        node.kind, (EnvironmentKind, ClassKind, FunctionKind, VariablesKind)
    ):
        return []
    keys, values = node.state
    found = [
        [key, each]
        for key, each in zip(keys, values)
        if type(key) in (str, int)
        and type(each) in (int, float, str, bool)
        and (type(each) is not str or len(each) <= _TEXT_MAX)
    ]
    return [[node.key, found]] if found and len(found) <= most else []


def _as_lists(tree: Any) -> Any:
    if isinstance(tree, (list, tuple)):
        return [_as_lists(each) for each in tree]
    return {key: _as_lists(each) for key, each in tree.items()} if isinstance(tree, dict) else tree


def _is_trained(value: Any) -> bool:
    """Parameters are always written: what they are when the loop begins need not be the same each time."""
    return isinstance(value, torch.nn.Parameter)


def _is_beside(kind: type) -> bool:
    return kind_of(kind) is None  # type: ignore[arg-type]


@functools.lru_cache(maxsize=4096)
def _is_pure(kind: type) -> bool:
    """Whether the instances of a class are made of attributes alone, and of nothing that C keeps."""
    try:
        object.__new__(kind)
    except TypeError:
        return False
    return True


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


class Reader:
    """Puts a written state back into the objects that a new process has made."""

    def __init__(self, tree: dict[str, Any], picture: Picture) -> None:
        """`picture`: at the loop's begin, in this process."""
        self._tree, self._objects = tree, {node.key: node for node in picture.nodes}
        self._made: dict[int, Any] = {}

    def put_back(self) -> list[str]:
        """Put everything back that is there; returns the paths that this process has not."""
        missing = []
        for path, content in self._tree["changed"]:
            node = self._objects.get(path)
            if node is None or node.value is None:
                missing.append(path)
                continue
            self._fill(node.kind, node.value, content)
        for path, values in self._tree["scalars"]:
            node = self._objects.get(path)
            if node is not None:
                present = dict(zip(*node.kind.read(node.value)))
                for key, each in values:
                    if key in present and type(present[key]) is type(each) and present[key] != each:
                        node.kind.assign(node.value, key, each)  # type: ignore[attr-defined]
        return missing

    def put_back_frames(self, frames: dict[str, types.FrameType]) -> list[str]:
        """Put the variables of functions back that the loop has called; returns the paths of those that do
        not run here."""
        for path, content in self._tree["frames"]:
            if path in frames:
                keys, values = ([self._resolve(each) for each in part] for part in content)
                FrameVariables(frames[path]).bind(dict(zip(keys, values)))
        return [path for path, _ in self._tree["frames"] if path not in frames]

    def _fill(self, kind: Any, value: Any, content: Any) -> None:
        if isinstance(kind, EnvironmentKind):
            for key, each in zip(*content):
                value[key] = each
            return
        kind.put_back(value, self._state(kind, content))

    def _state(self, kind: Any, content: Any) -> Any:
        """What was written, in the form in which its kind reads it."""
        if kind is TENSOR:
            tensor, wants_grad, grad = content
            form = (tensor.dtype, tuple(tensor.shape), wants_grad, tensor.device)
            return TensorState(0, -1, form, self._resolve(grad), tensor)
        if kind is ARRAY and len(content) == 3 and isinstance(content[2], bytes):
            return ArrayState((content[1], tuple(content[0])), 0, content[2])
        if isinstance(kind, GeneratorKind):
            return tuple(content)
        if isinstance(kind, NamedKind):
            return tuple([self._resolve(each) for each in part] for part in content)
        return [self._resolve(each) for each in content]

    def _resolve(self, reference: Any) -> Any:
        if type(reference) is not tuple:
            return reference
        what = reference[0]
        if what == _AT:
            node = self._objects.get(reference[1])
            if node is None:
                raise NotResumable(f"`{reference[1]}` is not there")
            return node.value
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

    def _make_tensor(self, number: int, is_parameter: bool, content: Any) -> None:
        tensor, wants_grad, grad = content
        made = tensor.clone()
        self._made[number] = made = (
            torch.nn.Parameter(made, wants_grad) if is_parameter else made.requires_grad_(wants_grad)
        )
        made.grad = self._resolve(grad)

    def _make_view(self, number: int, base: Any, content: Any) -> None:
        shape, stride, offset = content
        self._made[number] = self._resolve(base).detach().as_strided(shape, stride, offset)

    def _make_array(self, number: int, of_objects: bool, content: Any) -> None:
        numpy: Any = importlib.import_module("numpy")
        if of_objects:
            self._made[number] = made = numpy.empty(len(content), dtype=object)
            made[:] = [self._resolve(each) for each in content]
            return
        shape, kind, data = content
        self._made[number] = numpy.frombuffer(data, dtype=kind).reshape(shape).copy()

    def _make_generator(self, number: int, name: str, content: Any) -> None:
        self._made[number] = made = _new_generator(name)
        _GENERATOR.put_back(made, tuple(content))

    def _make_method(self, number: int, name: str, owner: Any) -> None:
        self._made[number] = getattr(self._resolve(owner), name)

    def _make_partial(self, number: int, _: None, content: Any) -> None:
        function, arguments, words = (self._resolve(each) for each in content)
        self._made[number] = functools.partial(function, *arguments, **words)

    def _make_object(self, number: int, kind: Any, content: Any) -> None:
        made_of, inside, extra = content
        of = self._resolve(kind)
        if issubclass(of, (tuple, frozenset)):  # Whole or not at all: what it holds comes first.
            items = [self._resolve(each) for each in made_of]
            made = tuple.__new__(of, items) if issubclass(of, tuple) else frozenset.__new__(of, items)
        else:
            made = _new_object(of, extra if not isinstance(extra, tuple) else self._resolve(extra))
        self._made[number] = made
        if made_of is not None and not isinstance(made, (tuple, frozenset)):
            made_kind = kind_of(of)
            self._fill(made_kind, made, made_of)
        for where, names in inside:
            keys, values = ([self._resolve(each) for each in part] for part in names)
            place = next(
                each for _, each in attributes(made) if (type(each) is SlotsOf) == (where == "slots")
            )
            _place_attributes(place, dict(zip(keys, values)))


_GENERATOR: Final = GeneratorKind()


def _new_object(of: type, extra: Any) -> Any:
    if issubclass(of, collections.deque):
        return of([], extra) if of is collections.deque else of.__new__(of)
    if issubclass(of, collections.defaultdict):
        made: Any = of.__new__(of)
        made.default_factory = extra
        return made
    for base in (list, set, collections.OrderedDict, dict):
        if issubclass(of, base):
            return base.__new__(of)
    return object.__new__(of)


def _place_attributes(place: Any, names: dict[str, Any]) -> None:
    if isinstance(place, Attributes):
        place.entries.update(names)
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


_CONSTANTS: Final[dict[str, Callable[..., Any]]] = {
    "size": lambda sizes: torch.Size(sizes),
    "name": import_name,
    "device": torch.device,
    "module": importlib.import_module,
    "numpy": lambda kind, data: importlib.import_module("numpy").frombuffer(data, dtype=kind)[0],
}
