"""What a picture asks of the objects of one kind: what can change, what it holds, how it gets that back.

Rule: only what lies in memory is read. No method, property or operator of the script's own classes runs:
attributes are taken from `__dict__` and slots, items by the methods of the builtin type below.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import gc
import inspect
import operator
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

import torch

from cotenant.checkpoint.picture.atoms import ATOMS, ATOMS_AND_TUPLES, PLAIN, holds_only, is_tuple
from cotenant.checkpoint.picture.digest import digest_items, digest_plain

Answer = TypeVar("Answer")
Reached = tuple[str, Any]
"""How a path goes on, and the object there."""


class Kind:
    """One kind of object. `read` gives what can change of an object, to be compared by `is_same`."""

    is_part = False
    """Its objects are made by us, each time anew, and stand for a part of the object that holds them."""

    def mark(self, value: Any) -> int:
        """Two objects with one mark are the same."""
        return id(value)

    def read(self, value: Any) -> Any:
        return None

    def parts(self, value: Any, state: Any) -> Iterable[Reached]:
        """What else can be reached from an object, given what was read of it."""
        return ()

    def is_same(self, before: Any, now: Any) -> bool:
        return bool(before == now)

    def first_difference(self, value: Any, before: Any, now: Any) -> str:
        """How the path goes on to the first thing that differs."""
        return ""

    def put_back(self, value: Any, before: Any) -> None:
        """Give an object what it held, as far as that can be done."""

    def digest(self, state: Any, name_of: Callable[[Any], str]) -> int:
        """A number for what was read. `name_of`: how an object is written that is no plain value."""
        return 0

    # How an object is found again that a picture keeps no longer alive.

    def places(self, state: Any) -> Iterable[tuple[Any, Any]]:
        """Where `part_at` finds what was read, and what it is."""
        return ()

    def part_at(self, value: Any, place: Any) -> Any:
        """What an object holds at a place; None: nothing."""
        return None

    def replace(self, state: Any, by: Callable[[Any], Any]) -> Any:
        """What was read, with something else in the place of each object in it."""
        return state

    def let_go(self, value: Any) -> None:
        """Keep nothing alive that is not ours."""

    def hold(self, value: Any) -> bool:
        """Undo that; whether what it stands for is still there."""
        return True


class KnownByClass(Generic[Answer]):
    """A function of a class, of which the answers are kept as long as their classes are there: a class of the
    script holds its methods, and they hold the names of its module."""

    def __init__(self, function: Callable[[Any], Answer]) -> None:
        self._function = function
        self._known: dict[int, tuple[Answer, Any]] = {}

    def __call__(self, made: Any) -> Answer:
        known = self._known.get(id(made))
        if known is None:
            gone = functools.partial(self._known.pop, id(made))
            known = self._known[id(made)] = self._function(made), weakref.ref(made, gone)
        return known[0]


def same(before: Any, now: Any) -> bool:
    """Whether two references are to one object, or to equal plain values."""
    if before is now:
        return True
    kind = type(before)
    if kind is not type(now) or kind not in PLAIN:
        return False
    return bool(before == now) or (before != before and now != now)


def all_same(before: list[Any], now: list[Any]) -> bool:
    if len(before) != len(now):
        return False
    return all(map(operator.is_, before, now)) or all(map(same, before, now))


def _all_plain(items: list[Any]) -> bool:
    return PLAIN.issuperset(map(type, items))


def _never_change(items: list[Any]) -> bool:
    """Whether none of the items may change, or hold what does. A million of them take a tenth of a second."""
    if ATOMS.issuperset(map(type, items)):
        return True
    return ATOMS_AND_TUPLES.issuperset(map(type, items)) and holds_only(ATOMS, filter(is_tuple, items))


def worth_a_look(items: list[Any]) -> Iterator[tuple[int, Any]]:
    """The items that may change or hold what does."""
    if _never_change(items):
        return
    for number, each in enumerate(items):
        kind = type(each)
        if kind not in ATOMS and not (kind is tuple and holds_only(ATOMS, (each,))):
            yield number, each


# --- Containers ------------------------------------------------------------------------------------


class ListedKind(Kind):
    """Lists, deques, tuples and sets, and what is derived from them."""

    def __init__(self, base: Any, form: str = "[{}]") -> None:
        self._base, self._form = base, form

    def read(self, value: Any) -> Any:
        return list(self._base.__iter__(value))

    def parts(self, value: Any, state: Any) -> Iterable[Reached]:
        for number, each in worth_a_look(state):
            yield self._form.format(number), each
        if type(value) is not self._base:
            yield from attributes(value)

    def is_same(self, before: Any, now: Any) -> bool:
        return all_same(before, now)

    def first_difference(self, value: Any, before: Any, now: Any) -> str:
        if len(before) != len(now) or self._base in (set, frozenset):
            return ""
        return next((f"[{i}]" for i, (a, b) in enumerate(zip(before, now)) if not same(a, b)), "")

    def places(self, state: Any) -> Iterable[tuple[Any, Any]]:
        return () if self._base in (set, frozenset) or _never_change(state) else enumerate(state)

    def part_at(self, value: Any, place: Any) -> Any:
        return self._base.__getitem__(value, place) if place < self._base.__len__(value) else None

    def replace(self, state: Any, by: Callable[[Any], Any]) -> Any:
        return state if _never_change(state) else [by(each) for each in state]

    def digest(self, state: Any, name_of: Callable[[Any], str]) -> int:
        if self._base in (set, frozenset) and set(map(type, state)) <= PLAIN:
            state = sorted(state, key=lambda each: (type(each).__name__, repr(each)))
        return digest_items(state, name_of)

    def put_back(self, value: Any, before: Any) -> None:
        """A set with its old members may have another order than before, which counts as a difference."""
        fill = getattr(self._base, "extend", None) or getattr(self._base, "update", None)
        if fill is not None:
            self._base.clear(value)
            fill(value, before)


class NamedKind(Kind):
    """Things under names or other keys, in an order: dictionaries, and what is derived from them.

    The classes derived from this one say by which keys their things go, and how one is set or removed.
    """

    def __init__(self, base: Any = dict, form: str = "[{!r}]") -> None:
        self._base, self._form = base, form

    def read(self, value: Any) -> Any:
        return list(self._base.__iter__(value)), list(self._base.values(value))

    def assign(self, value: Any, key: Any, each: Any) -> None:
        self._base.__setitem__(value, key, each)

    def remove(self, value: Any, key: Any) -> None:
        self._base.__delitem__(value, key)

    def parts(self, value: Any, state: Any) -> Iterable[Reached]:
        keys, values = state
        if type(value) is dict and _all_plain(values) and _all_plain(keys):
            return ()  # As the rows of a data set are, of which there may be millions.
        return self._parts(value, keys, values)

    def _parts(self, value: Any, keys: list[Any], values: list[Any]) -> Iterator[Reached]:
        for number, each in worth_a_look(values):
            yield self._step(value, keys, number), each
        for number, each in worth_a_look(keys):
            yield f".key{number}", each
        if type(value) is not self._base and issubclass(type(value), self._base):
            yield from attributes(value)

    def is_same(self, before: Any, now: Any) -> bool:
        return all_same(before[0], now[0]) and all_same(before[1], now[1])

    def first_difference(self, value: Any, before: Any, now: Any) -> str:
        old, new = (dict(zip(map(_key, keys), values)) for keys, values in (before, now))
        for keys in (before[0], now[0]):
            for number, key in enumerate(map(_key, keys)):
                if key not in old or key not in new or not same(old[key], new[key]):
                    return self._step(value, keys, number)
        return ""

    def digest(self, state: Any, name_of: Callable[[Any], str]) -> int:
        return digest_plain([digest_items(each, name_of) for each in state])

    def places(self, state: Any) -> Iterable[tuple[Any, Any]]:
        return () if _all_plain(state[1]) else ((k, each) for k, each in zip(*state) if type(k) in PLAIN)

    def part_at(self, value: Any, place: Any) -> Any:
        return self._base.get(value, place)

    def replace(self, state: Any, by: Callable[[Any], Any]) -> Any:
        keys, values = state
        return keys, values if _all_plain(values) else [by(each) for each in values]

    def put_back(self, value: Any, before: Any) -> None:
        keys, values = self.read(value)
        present = dict(zip(map(_key, keys), values))
        if not all_same(keys, before[0]):  # Their order counts: all are set anew.
            for key in keys:
                self.remove(value, key)
            present = {}
        for key, each in zip(*before):
            if _key(key) not in present or not same(each, present[_key(key)]):
                self.assign(value, key, each)

    def step(self, value: Any, key: Any) -> str:
        """How the path goes on to what stands under a plain key."""
        return (value.form if type(value) is Attributes else self._form).format(key)

    def _step(self, value: Any, keys: list[Any], number: int) -> str:
        key = keys[number]
        return self.step(value, key) if type(key) in PLAIN else f"[{type(key).__name__} {number}]"


def _key(key: Any) -> Any:
    return (type(key), key) if type(key) in PLAIN else id(key)


class EnvironmentKind(NamedKind):
    """`os.environ`, whose changes reach the C library. What a process is started with is its own: only what
    changes in it counts."""

    def digest(self, state: Any, name_of: Callable[[Any], str]) -> int:
        return 0

    def read(self, value: Any) -> Any:
        return list(value), list(value.values())

    def assign(self, value: Any, key: Any, each: Any) -> None:
        value[key] = each

    def remove(self, value: Any, key: Any) -> None:
        del value[key]


# --- Where objects keep their attributes -----------------------------------------------------------


class Attributes:
    """Stands for the `__dict__` of an object, or for the global names of a module."""

    __slots__ = ("_entries", "_module", "form", "owner")

    def __init__(
        self, entries: dict[str, Any] | None, form: str = ".{}", module: Any = None, owner: Any = None
    ) -> None:
        """`owner`: an object of C that has no `__dict__` before it is asked for; `entries` is None then."""
        self._entries = entries
        self.form, self.owner = form, owner
        self._module = weakref.ref(module) if issubclass(type(module), types.ModuleType) else None

    @property
    def entries(self) -> dict[str, Any]:
        if self._entries is not None:
            return self._entries
        if self.owner is not None:
            has_some = any(type(each) is dict for each in gc.get_referents(self.owner))
            return self.entries_to_change if has_some else {}
        module = None if self._module is None else self._module()
        return {} if module is None else object.__getattribute__(module, "__dict__")

    @property
    def entries_to_change(self) -> dict[str, Any]:
        """The same; where there was none, it is made."""
        if self.owner is None:
            return self.entries
        found: dict[str, Any] = _dict_of(type(self.owner)).__get__(self.owner)
        return found

    def let_go(self) -> None:
        """Keep a module's names no longer than the module."""
        if self._module is not None:
            self._entries = None


class SlotsOf:
    """Stands for the slots of an object."""

    __slots__ = ("members", "owner")

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.members = {
            name: member
            for base in type(owner).__mro__
            for name, member in base.__dict__.items()
            if type(member) is types.MemberDescriptorType
        }


def _dict_of(kind: type) -> Any:
    """What gives the `__dict__` of objects of a class; None: they have none."""
    found = (base.__dict__.get("__dict__") for base in kind.__mro__)
    return next((each for each in found if type(each) is types.GetSetDescriptorType), None)


def attributes(value: Any) -> Iterator[Reached]:
    """The places where an object keeps its attributes. A tensor without a `__dict__` gets none by this: where
    some have one and others have not, the interpreter calls methods of all of them more slowly, which makes a
    step of a training 3 % longer."""
    has_slots = False
    for base in type(value).__mro__:
        found = base.__dict__.get("__dict__")
        if type(found) is types.GetSetDescriptorType:
            if issubclass(type(value), torch.Tensor):
                yield "", Attributes(None, owner=value)
            else:
                yield "", Attributes(found.__get__(value))
            break
        has_slots |= "__slots__" in base.__dict__
    if has_slots:
        yield "", SlotsOf(value)


_MARKS: Final = ("__dynamo", "_torchdynamo")


def is_mark(name: Any) -> bool:
    """Whether a name is no variable: those between double underscores are Python's, and with some others
    torch's compiler marks what it leaves alone."""
    return type(name) is str and (name[:2] == "__" == name[-2:] or name.startswith(_MARKS))


class AttributeKind(NamedKind):
    is_part = True

    def let_go(self, value: Any) -> None:
        value.let_go()

    def part_at(self, value: Any, place: Any) -> Any:
        return value.entries.get(place)

    def mark(self, value: Any) -> int:
        return id(value.entries) if value.owner is None else ~id(value.owner)

    def read(self, value: Any) -> Any:
        entries = value.entries
        names = [name for name in entries if not is_mark(name)]
        return names, [entries[name] for name in names]

    def assign(self, value: Any, key: Any, each: Any) -> None:
        value.entries_to_change[key] = each

    def remove(self, value: Any, key: Any) -> None:
        del value.entries_to_change[key]


class SlotsKind(NamedKind):
    """A slot that is not set has no entry."""

    is_part = True

    def part_at(self, value: Any, place: Any) -> Any:
        return self.read(value)[1][self.read(value)[0].index(place)] if place in self.read(value)[0] else None

    def mark(self, value: Any) -> int:
        return -id(value.owner)

    def read(self, value: Any) -> Any:
        found = {}
        for name, member in value.members.items():
            try:
                found[name] = member.__get__(value.owner)
            except AttributeError:
                continue
        return list(found), list(found.values())

    def assign(self, value: Any, key: Any, each: Any) -> None:
        value.members[key].__set__(value.owner, each)

    def remove(self, value: Any, key: Any) -> None:
        value.members[key].__delete__(value.owner)


class FrameVariables:
    """Stands for the local variables of a running function. `read_again` sees what they are now."""

    __slots__ = ("_code", "_frame", "_ident", "_running", "variables")

    def __init__(self, frame: types.FrameType) -> None:
        self._frame: types.FrameType | None = frame
        self._ident, self._code = id(frame), frame.f_code
        self._running: Any = None
        """A weak reference to what lives as long as the frame."""
        self.variables: dict[str, Any] = {}
        self.read_again()

    @property
    def ident(self) -> int:
        return self._ident

    @property
    def frame(self) -> types.FrameType | None:
        """The frame; None: its function is over."""
        if self._frame is not None or self._running is None or self._running() is None:
            return self._frame
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and (id(frame) != self._ident or frame.f_code is not self._code):
            frame = frame.f_back
        return frame

    def read_again(self) -> None:
        frame = self.frame
        self.variables = {} if frame is None else dict(frame.f_locals)

    def let_go(self) -> None:
        """Keep neither the frame nor its variables alive. A frame that somebody keeps would keep all of its
        function's variables when the function is over; what is in its `f_trace` lives as long as it runs."""
        frame, self._frame, self.variables = self.frame, None, {}
        if frame is None:
            return
        if type(frame.f_trace) is not _Running:
            frame.f_trace = _Running()
        self._running = weakref.ref(frame.f_trace)

    def bind(self, variables: dict[str, Any]) -> None:
        """Set the variables to these, and leave the others without a value."""
        frame = self.frame
        if frame is None:
            return
        found = frame.f_locals
        for name in [name for name in found if name not in variables]:
            del found[name]
        found.update(variables)
        if sys.version_info < (3, 13):
            # Before PEP 667 a frame's variables are a copy; this is how debuggers write them back.
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(1))


def release_variables(frames: Iterable[types.FrameType]) -> None:
    """Let go of what reading the variables of these frames has copied: before Python 3.13 the copy stays with
    the frame. Not to be called from a trace function of one of them: what it finds there is written back."""
    for frame in frames:
        if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            frame.f_locals.clear()


class _Running:
    """Traces nothing. It lives as long as the frame that has it."""

    def __call__(self, *_: Any) -> None:
        return


class VariablesKind(NamedKind):
    def mark(self, value: Any) -> int:
        return int(value.ident)

    def read(self, value: Any) -> Any:
        value.read_again()
        names = sorted(value.variables)  # In which order they were set is nothing that a function can see.
        return names, [value.variables[name] for name in names]

    def part_at(self, value: Any, place: Any) -> Any:
        return value.variables.get(place)

    def let_go(self, value: Any) -> None:
        value.let_go()

    def hold(self, value: Any) -> bool:
        value.read_again()
        return value.frame is not None

    def put_back(self, value: Any, before: Any) -> None:
        value.bind(dict(zip(*before)))


LIST: Final = ListedKind(list)
CONTAINERS: Final[tuple[tuple[type, Kind], ...]] = (
    (list, LIST),
    (tuple, ListedKind(tuple)),
    (collections.deque, ListedKind(collections.deque)),
    (set, ListedKind(set, "{{{}}}")),
    (frozenset, ListedKind(frozenset, "{{{}}}")),
    (collections.OrderedDict, NamedKind(collections.OrderedDict)),
    (dict, NamedKind()),
    (type(os.environ), EnvironmentKind()),
    (Attributes, AttributeKind(form=".{}")),
    (SlotsOf, SlotsKind(form=".{}")),
    (FrameVariables, VariablesKind(form="{}")),
)
