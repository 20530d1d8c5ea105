"""Functions, classes, iterators and generators of random numbers: how a picture looks into them."""

from __future__ import annotations

import contextlib
import enum
import functools
import gc
import io
import itertools
import pickle
import random
import types
import zlib
from collections.abc import Callable, Iterable
from typing import IO, Any, Final, cast

import torch

from cotenant.checkpoint.ownership import is_scripts_own
from cotenant.checkpoint.picture import atoms, kinds
from cotenant.checkpoint.training import rng

POINTER_BYTES: Final = 8
OPAQUE_BYTES_MAX: Final = 64 * 1024 * 1024


class ObjectKind(kinds.Kind):
    """What has nothing but a class and attributes; what is opaque has no attributes."""

    def read(self, value: Any) -> Any:
        return type(value)

    def is_same(self, before: Any, now: Any) -> bool:
        return before is now

    def replace(self, state: Any, by: Callable[[Any], Any]) -> Any:
        return by(state)

    def put_back(self, value: Any, before: Any) -> None:
        """A lazy module becomes another one in its first forward pass."""
        if type(value) is not before:
            with contextlib.suppress(TypeError):
                object.__setattr__(value, "__class__", before)

    def parts(self, value: Any, state: Any) -> Iterable[kinds.Reached]:
        yield from kinds.attributes(value)
        if is_scripts_own(type(value).__module__):
            yield f" class {type(value).__qualname__}", type(value)


@kinds.KnownByClass
def is_pure(kind: Any) -> bool:
    """Whether the instances of a class are made of attributes alone, and of nothing that C keeps."""
    if any(type(base.__dict__.get("__del__")) is types.FunctionType for base in kind.__mro__):
        return is_pure(kind.__base__)  # It is made in Python; an instance would be heard when it goes.
    try:
        object.__new__(kind)
    except TypeError:  # C makes them; but for a dictionary there may be nothing in them.
        pointers = (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
        return bool(kind.__basicsize__ - pointers * POINTER_BYTES == object.__basicsize__)
    return True


class OpaqueKind(ObjectKind):
    """What C keeps, and nobody can look into. What pickling tells of it tells whether it has changed."""

    def tell(self, value: Any, path_of: Callable[[Any], str | None]) -> int | None:
        """A number for what it holds, where each object that is known stands by its path; None: it cannot be
        pickled, or is too large."""
        told = _Told()
        pickler = _Pickler(cast(IO[bytes], told), protocol=4)
        pickler.own, pickler.path_of = value, path_of
        try:
            pickler.dump(value)
        except Exception:  # noqa: BLE001  # whatever it raises, it cannot be pickled
            return None
        return told.number


class _Told(io.RawIOBase):
    """Keeps no more than a number of what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.number, self._left = 0, OPAQUE_BYTES_MAX

    def write(self, data: Any) -> int:
        size = len(data)
        self._left -= size
        if self._left < 0:
            raise ValueError("too large")
        self.number = zlib.crc32(data, self.number)
        return size


class _Pickler(pickle.Pickler):
    own: Any = None
    path_of: Callable[[Any], str | None]

    def persistent_id(self, each: Any) -> str | None:
        return None if each is self.own or type(each) in atoms.ATOMS else self.path_of(each)


class CellKind(kinds.ListedKind):
    """The place of a variable that functions share; empty until it is set."""

    def __init__(self) -> None:
        super().__init__(list, "")

    def read(self, value: Any) -> Any:
        try:
            return [value.cell_contents]
        except ValueError:
            return []

    def first_difference(self, value: Any, before: Any, now: Any) -> str:
        return ""

    def part_at(self, value: Any, place: Any) -> Any:
        return next(iter(self.read(value)), None)

    def put_back(self, value: Any, before: Any) -> None:
        if before:
            value.cell_contents = before[0]
        elif self.read(value):
            del value.cell_contents


class FunctionKind(kinds.NamedKind):
    """A function of the script with its code and defaults; of others what their closures hold."""

    _NAMES: Final = ("__code__", "__defaults__", "__kwdefaults__")

    def read(self, value: Any) -> Any:
        names = self._NAMES if is_scripts_own(value.__module__ or "") else ()
        return list(names), [getattr(value, name) for name in names]

    def parts(self, value: Any, state: Any) -> Iterable[kinds.Reached]:
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            yield f"<{name}>", cell
        yield from super().parts(value, state)
        if is_scripts_own(value.__module__ or "") or not all(map(kinds.is_mark, value.__dict__)):
            yield "", kinds.Attributes(value.__dict__)

    def assign(self, value: Any, key: Any, each: Any) -> None:
        setattr(value, key, each)

    def part_at(self, value: Any, place: Any) -> Any:
        return getattr(value, place)


class ClassKind(kinds.NamedKind):
    """The attributes of a class of the script."""

    _LEFT_OUT: Final = frozenset(("__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl"))

    def read(self, value: Any) -> Any:
        if not is_scripts_own(value.__module__) or issubclass(value, enum.Enum):
            return [], []
        names = [name for name in vars(value) if name not in self._LEFT_OUT]
        return names, [vars(value)[name] for name in names]

    def parts(self, value: Any, state: Any) -> Iterable[kinds.Reached]:
        yield from super().parts(value, state)
        for base in value.__bases__:
            if is_scripts_own(base.__module__):
                yield f" base {base.__qualname__}", base

    def assign(self, value: Any, key: Any, each: Any) -> None:
        type.__setattr__(value, key, each)

    def remove(self, value: Any, key: Any) -> None:
        type.__delattr__(value, key)

    def part_at(self, value: Any, place: Any) -> Any:
        return vars(value).get(place)


class MadeKind(kinds.Kind):
    """Methods, partials, properties and the like: what they are made of never changes."""

    _NAMES: Final = ("__self__", "__func__", "func", "args", "keywords", "fget", "fset")

    def parts(self, value: Any, state: Any) -> Iterable[kinds.Reached]:
        for name in self._NAMES:
            member: Any = getattr(type(value), name, None)
            if type(member) in (types.MemberDescriptorType, types.GetSetDescriptorType):
                yield f".{name}", member.__get__(value)
        yield from kinds.attributes(value)


class ViewKind(kinds.Kind):
    """What shows another object, and has nothing of its own."""

    def parts(self, value: Any, state: Any) -> Iterable[kinds.Reached]:
        return (("", each) for each in gc.get_referents(value))


class GeneratorKind(kinds.Kind):
    """A generator of random numbers."""

    def read(self, value: Any) -> Any:
        found = rng.generator_state(value)
        if found is None:
            return None
        kind, state = found
        return kind, state.tolist() if isinstance(state, torch.Tensor) else state

    def digest(self, state: Any, name_of: Callable[[Any], str]) -> int:
        return zlib.crc32(repr(state).encode())

    def put_back(self, value: Any, before: Any) -> None:
        if before is not None:
            kind, state = before
            rng.set_generator(
                value, kind, torch.tensor(state, dtype=torch.uint8) if kind == "torch" else state
            )


class CacheKind(kinds.Kind):
    """`functools.lru_cache`: what it keeps cannot be seen, only that it has changed."""

    def read(self, value: Any) -> Any:
        return tuple(value.cache_info())

    def parts(self, value: Any, state: Any) -> Iterable[kinds.Reached]:
        return ((".__wrapped__", value.__wrapped__),)


class IterationKind(kinds.Kind):
    """A builtin iterator, half way: how many items are left, and what it goes over."""

    def read(self, value: Any) -> Any:
        text = repr(value) if type(value) is itertools.count else ""
        left = getattr(type(value), "__length_hint__", lambda _: -1)(value)
        if type(value) is itertools.cycle:
            with contextlib.suppress(AttributeError, TypeError):  # From Python 3.14 on it does not tell.
                inner: Any = value.__reduce__()[1][0]
                left = inner.__length_hint__() if type(inner) in _ITERATORS else -1
        return left, text

    def parts(self, value: Any, state: Any) -> Iterable[kinds.Reached]:
        return ((f"<{number}>", each) for number, each in enumerate(gc.get_referents(value)))


class BatchesKind(kinds.Kind):
    """What gives the batches of a loader: how many it has given, and of which data."""

    def read(self, value: Any) -> Any:
        return value._num_yielded

    def digest(self, state: Any, name_of: Callable[[Any], str]) -> int:
        return int(state)

    def parts(self, value: Any, state: Any) -> Iterable[kinds.Reached]:
        return (("._dataset", value._dataset),)


NOT_BEGUN: Final = -2
"""In the place where a generator stands: it was asked for nothing yet."""


class CoroutineKind(kinds.Kind):
    """A Python generator, half way: where it stands, and its variables."""

    def read(self, value: Any) -> Any:
        if value.gi_frame is None:
            return -1
        return value.gi_frame.f_lasti if value.gi_suspended or value.gi_running else NOT_BEGUN

    def parts(self, value: Any, state: Any) -> Iterable[kinds.Reached]:
        if value.gi_frame is not None and not value.gi_running:
            for name, each in value.gi_frame.f_locals.items():
                yield f"<{name}>", each


_ITERATORS: Final = (
    *(type(iter(each)) for each in ([], (), {}, {}.values(), {}.items(), set(), "", b"", range(0))),  # type: ignore[var-annotated]
    type(iter(range(1 << 70))),
    type(reversed([])),
    enumerate,
    zip,
    map,
    filter,
    *(each for each in vars(itertools).values() if isinstance(each, type)),
)
_KEYS: Final[dict[str, str]] = {}
_VIEWS: Final = (type(_KEYS.keys()), type(_KEYS.values()), type(_KEYS.items()), types.MappingProxyType)
_MADE: Final = (
    types.MethodType,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    functools.partial,
    functools.cached_property,
    property,
    staticmethod,
    classmethod,
)
OBJECT: Final = ObjectKind()
OPAQUE: Final = OpaqueKind()
DRAWS: Final = GeneratorKind()
OBJECTS: Final[tuple[tuple[Any, kinds.Kind], ...]] = (
    (types.FunctionType, FunctionKind(form=".{}")),
    (types.CellType, CellKind()),
    (types.GeneratorType, CoroutineKind()),
    (functools._lru_cache_wrapper, CacheKind()),
    (type, ClassKind(form=".{}")),
    ((torch.Generator, random.Random), DRAWS),
    (torch.utils.data.dataloader._BaseDataLoaderIter, BatchesKind()),
    (_MADE, MadeKind()),
    (_VIEWS, ViewKind()),
    (_ITERATORS, IterationKind()),
)
