"""A written state, put back into the objects that a new process has made (`state_writer.py` writes it).

Rule: what was there when the loop began gets its content in place, so that whoever else holds it sees it too;
what was made since is made again, once, however often it is held. Generators of random numbers come last:
what is made again may draw.
"""

from __future__ import annotations

import builtins
import collections
import functools
import importlib
import linecache
import os
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from cotenant.checkpoint.picture import (
    Picture,
    arrays,
    atoms,
    generator_roots,
    kind_of,
    kinds,
    nodes,
    objects,
)
from cotenant.checkpoint.zerocode import references, refusals
from cotenant.checkpoint.zerocode.passes import Passes, WrittenPass


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
            if each == (references.OWN,)
        }
        """Variables and attributes that hold such a thing: each process makes it itself."""

    def keep_of_each_process(self, frames: dict[str, types.FrameType]) -> None:
        """What each process has of its own stays what it is now, whatever is put back before the rest."""
        for path, content in self._tree["changed"]:
            node = self._find(path)
            if node is not None and isinstance(node.kind, (kinds.NamedKind, kinds.ListedKind)):
                self._live[path] = node.kind.read(node.value)
                if isinstance(node.kind, kinds.NamedKind):
                    present = {key: each for key, each in zip(*self._live[path]) if type(key) in atoms.PLAIN}
                    self._keep_generators(content, present)
        for path, frame in frames.items():
            variables = kinds.FrameVariables(frame).variables
            self._live[path] = list(variables), list(variables.values())

    def _keep_generators(self, content: Any, present: dict[Any, Any]) -> None:
        """A generator of random numbers that was made on the way here is that of the loop: a sampler that is
        half way may hold it."""
        for name, each in zip(*content):
            if type(name) in atoms.PLAIN and type(each) is tuple and each[0] == references.MADE:
                what, kind, _ = self._tree["made"][each[1]]
                if what == "generator" and kind == references.imported_name(type(present.get(name))):
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
            if isinstance(node.kind, (objects.GeneratorKind, objects.CoroutineKind)):
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
        for node, content in sorted(draws, key=lambda each: isinstance(each[0].kind, objects.GeneratorKind)):
            self._fill(node.kind, node.value, content)
        for path, content in self._tree.get("late", ()):  # Of what was imported in the loop.
            if path.startswith("numpy"):
                importlib.import_module("numpy.random")
            elif torch.cuda.is_available():
                torch.cuda.init()  # type: ignore[no-untyped-call]
            _GENERATOR.put_back(self.generator_at(path), tuple(content))
        for number, made in self._made.items():  # They were made once, and have drawn since.
            if isinstance(kind_of(type(made)), objects.GeneratorKind):
                _GENERATOR.put_back(made, tuple(self._tree["made"][number][2]))
        return missing

    def _find(self, key: str) -> nodes.Node | None:
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
            raise refusals.NotResumable(f"`{path}` is not there")
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
        raise refusals.NotResumable(f"`{path}{name}` was not written")

    def put_back_frames(self, frames: dict[str, types.FrameType]) -> list[str]:
        """Put the variables of these functions back, which the loop has called; returns the paths of those
        that do not run here."""
        for path, content in self._tree["frames"]:
            if path in frames:
                state = self._state(_VARIABLES, content, self._live[path])
                kinds.FrameVariables(frames[path]).bind(dict(zip(*state)))
        return [path for path, _ in self._tree["frames"] if path not in frames]

    def _fill(self, kind: Any, value: Any, content: Any, live: Any = None) -> None:
        if isinstance(kind, kinds.EnvironmentKind):
            for key, each in zip(*content):
                value[key] = each
            return
        if isinstance(kind, objects.CoroutineKind):
            self._passes.lead_generator(value, content, self)
            return
        if isinstance(kind, objects.IterationKind):
            _set_iterator(value, *content)
            return
        if isinstance(kind, objects.BatchesKind):
            self._passes.go_on(value, WrittenPass(*content), self)
            return
        kind.put_back(value, self._state(kind, content, kind.read(value) if live is None else live))

    def _state(self, kind: Any, content: Any, present: Any) -> Any:
        """What was written, in the form in which its kind reads it; `present`: what is there."""
        if kind is arrays.TENSOR:
            tensor, wants_grad, grad, hooks = content
            form = (tensor.dtype, tuple(tensor.shape), wants_grad, tensor.device)
            return arrays.TensorState(
                0, -1, form, self._resolve(grad), tuple(map(self._resolve, hooks)), tensor
            )
        if kind is arrays.ARRAY and len(content) == 3 and isinstance(content[2], bytes):
            return arrays.ArrayState((content[1], tuple(content[0])), 0, content[2])
        if isinstance(kind, objects.GeneratorKind):
            return tuple(content)
        if isinstance(kind, objects.ObjectKind):
            return self._resolve(content)
        if isinstance(kind, kinds.NamedKind):
            keys, values = list(map(_interned, self._resolve_all(content[0], ()))), content[1]
            there = dict(zip(map(_hashed, present[0]), present[1]))
            return keys, self._resolve_all(values, [there.get(_hashed(key)) for key in keys])
        return self._resolve_all(content, present)

    def _resolve_all(self, asked: list[Any], present: Sequence[Any]) -> list[Any]:
        """What these stand for; for an object that each process has of its own, that of this one."""
        return [
            (present[at] if at < len(present) else None) if each == (references.OWN,) else self._resolve(each)
            for at, each in enumerate(asked)
        ]

    def _resolve(self, reference: Any) -> Any:
        if type(reference) is not tuple:
            return reference
        what = reference[0]
        if what == references.OWN:
            return None
        if what == references.AT:
            return self.object_at(reference[1])
        if what == references.TUPLE:
            return tuple(self._resolve(each) for each in reference[1])
        if what == references.MADE:
            return self._object(reference[1])
        if what == references.COMPLEX:
            return complex(reference[1], reference[2])
        if what == references.CALL:
            function = reference[1] if type(reference[1]) is str else self._resolve(reference[1])
            function = references.import_name(function) if isinstance(function, str) else function
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
        made = torch.empty(0, dtype=references.import_name(dtype), device=storage.device)
        made = made.set_(storage, offset, shape, stride)
        self._finish_tensor(number, made_as, made, wants_grad, grad)

    def _make_array(self, number: int, of_objects: bool, content: Any) -> None:
        numpy: Any = importlib.import_module("numpy")
        if of_objects:
            self._made[number] = made = numpy.empty(len(content), dtype=object)
            made[:] = [self._resolve(each) for each in content]
            return
        shape, kind, data = content
        self._made[number] = arrays.array_of(kind, shape, data).copy()

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
                each
                for _, each in kinds.attributes(made)
                if (type(each) is kinds.SlotsOf) == (where == "slots")
            )
            _place_attributes(place, dict(zip(keys, values)))


_GENERATOR: Final = objects.GeneratorKind()
_VARIABLES: Final = kinds.VariablesKind(form="{}")


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
    return (type(key), key) if type(key) in atoms.PLAIN else id(key)


def _code_at(file: str, name: str, line: int) -> types.CodeType:
    """The code of a function that is defined within another one, or in a loop."""
    waiting = [compile("".join(linecache.getlines(file)), file, "exec", dont_inherit=True)]
    for code in waiting:
        if (code.co_name, code.co_firstlineno) == (name, line):
            return code
        waiting += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    raise refusals.NotResumable(f"{name} is not at line {line} of {file}")


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
    if isinstance(place, kinds.Attributes):
        if names:
            place.entries_to_change.update(names)
        return
    for name, each in names.items():
        place.members[name].__set__(place.owner, each)


def _new_generator(name: str) -> Any:
    kind = references.import_name(name)
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
    "name": references.import_name,
    "device": torch.device,
    "module": importlib.import_module,
    "numpy": lambda kind, data: arrays.array_of(kind, (1,), data)[0],
}
