"""The passes of a script through its loaders: what the order of each was drawn from, and how far each is.

Rule: a loader draws when it is asked for its batches, and again when it gives the first. A new process draws
the same from the states in which the generators of random numbers were then, goes past the batches that were
used, and only then gets back the states of the moment that was saved. Batches that are gone past are not
loaded, where nothing but display stands between the loop and its loader, and no worker process keeps a state
of its own.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from cotenant.checkpoint.guard import SAVING, door
from cotenant.checkpoint.lookups import LookedUp
from cotenant.checkpoint.namespaces import module_of
from cotenant.checkpoint.ownership import is_scripts_own
from cotenant.checkpoint.picture import Picture, PictureTooLarge, generator_roots
from cotenant.checkpoint.picture.kinds import Attributes, FrameVariables, attributes
from cotenant.checkpoint.picture.nodes import Node
from cotenant.checkpoint.picture.objects import GeneratorKind
from cotenant.checkpoint.progress.loading import Loading
from cotenant.checkpoint.progress.loops import Loaders
from cotenant.checkpoint.training import rng
from cotenant.checkpoint.zerocode.refusals import NotResumable
from cotenant.checkpoint.zerocode.sites import LoopSite, script_frames

PASSES_MAX: Final = 4
"""Loaders that one loop goes through side by side."""
DISPLAYS: Final = ("tqdm", "rich", "cotenant")
FRAMES_BETWEEN_MAX: Final = 8
GENERATORS: Final = "accelerate.data_loader"
"""A module whose generators stand between a loop and its loader, and look one batch ahead."""


MIXED: Final = "two loops go through one stream at once, and each finds it as the other left it"
NOWHERE: Final = LoopSite("", "", 0, 0, 0)
"""A loop that was given nothing before."""


class Referring(Protocol):
    """What a pass needs of `state_writer.StateWriter`."""

    before: Picture

    def write_as_it_was(self, node: Node) -> Any: ...

    def refer_to(self, value: Any) -> Any: ...


class Resolving(Protocol):
    """What it needs of `state_reader.StateReader`."""

    def generator_at(self, name: Any) -> Any: ...

    def put_one_back(self, path: str, content: Any) -> None: ...


States = list[tuple[str, Any, Any]]
"""(name, generator, state): the name is for those that the whole process shares."""


class WrittenPass(NamedTuple):
    """One pass as it is saved, each generator by its path."""

    created: list[Any]
    """The states when the loader was asked for its batches."""
    order: list[Any]
    """The states when it was asked for the first one; empty: its workers draw at once, or none was asked
    for."""
    given: int
    sampler: list[Any]
    """What its samplers held when the order was drawn, and hold no more, each with its path."""
    data: list[Any]
    """The same of data that are a stream, when the loader was asked for its batches."""


class Pass:
    """One pass through a loader, as long as it lasts."""

    def __init__(self, loader: Any, batches: Any, since: int, heads: set[tuple[int, int]]) -> None:
        """Begins before anything is drawn for it. `batches`: what will give its batches. `since`: the step
        after which it began. `heads`: the identities of the script's frames, each with the line at which it
        stood."""
        self.since, self.heads = since, heads
        self._loader: Callable[[], Any] = weakref.ref(loader)
        self.batches: Callable[[], Any] = weakref.ref(batches)
        self.taken_up: Callable[[], None] | None = None
        """In a resumed process: sets the generators to where they stood when the order was drawn."""
        self.created = _states_of(*_parts_of(loader))
        self.obstacle = ""
        """Why it cannot be made again; empty: nothing is known to be in the way."""
        self.data: Picture | None = None
        if issubclass(type(vars(loader).get("dataset")), IterableDataset):
            self._look_at_stream(vars(loader)["dataset"])
        self.order: States = []
        self.has_begun = False
        """The first index was asked for."""
        self.sampler: Picture | None = None

    def goes_through(self, data: Any) -> bool:
        """Whether its batches come from these data."""
        return _attributes(self.batches()).get("_dataset") is data

    @property
    def loader(self) -> Any:
        """None: the script has let it go, and takes the batches of its last pass."""
        return self._loader()

    def _look_at_stream(self, stream: Any) -> None:
        try:
            self.data = Picture(list(_stream_roots(stream)), copies=True)
            self.data.let_go()
        except PictureTooLarge as error:
            self.obstacle = f"the stream that a loader goes through: {error}"

    def begin_order(self) -> None:
        """An index is about to be drawn. Workers are given the first ones while the pass is being made."""
        self.has_begun = True
        batches = self.batches()
        if batches.__dict__.get("_num_workers") != 0:
            self._look_at_sampler(batches)
            return
        if self.taken_up is not None:
            self.taken_up()
            self.taken_up = None
        index = batches._index_sampler
        self.order = _states_of(index, _attributes(index).get("sampler"), batches._dataset)
        self._look_at_sampler(batches)

    def _look_at_sampler(self, batches: Any) -> None:
        index = batches._index_sampler
        parts = [("sampler", _attributes(index).get("sampler")), ("batch_sampler", index)]
        data = [batches._dataset, *(_attributes(each).get("data_source") for _, each in parts)]
        self.sampler = Picture(parts, without=data, copies=True)
        self.sampler.let_go()

    def write(self, writer: Referring) -> WrittenPass:
        """What a new process needs to make this pass again.

        Raises:
            NotResumable: it cannot be made again.
        """
        if self.batches().__dict__.get("_persistent_workers") and self.batches()._num_workers:
            raise NotResumable(
                "the workers of a loader live longer than an epoch, and what they keep is theirs"
            )
        if self.obstacle:
            raise NotResumable(self.obstacle)
        kind = type(self.batches())
        if kind.__module__ != _BaseDataLoaderIter.__module__:
            raise NotResumable(f"a loader gives its batches by a {kind.__module__}.{kind.__qualname__}")
        return WrittenPass(
            _named(self.created, writer),
            _named(self.order, writer),
            self.batches()._num_yielded,
            _written_as_it_was(self.sampler, writer),
            _written_as_it_was(self.data, writer),
        )


class Passes:
    """All passes that a script is in the middle of."""

    def __init__(self, loaders: Loaders) -> None:
        self._loaders = loaders
        self._by_batches: weakref.WeakKeyDictionary[Any, Pass] = weakref.WeakKeyDictionary()
        self.steps = 0
        """Of training; a loop that begins after another one at the same place is another pass."""
        self._iterate: Callable[[Any], Any] = DataLoader.__iter__
        self._taking_up: Any = None
        """Stands for `DataLoader.__iter__` meanwhile."""
        self.skip: LoaderSkip | None = None
        """In a resumed process: where the loop that begins now was left."""
        self._own_generators: weakref.WeakSet[Any] = weakref.WeakSet()
        """Those of the script that go through loaders and live from step to step."""
        self._is_over = False
        self._index: LookedUp | None = None
        """Only while a first index is waited for: what runs for every batch costs a step of a millisecond a
        twentieth."""

    def end(self) -> None:
        """Nobody will ask."""
        self._is_over = True
        self._by_batches.clear()

    def begin(self) -> None:
        dataloader = torch.utils.data.dataloader
        Loading(dataloader, SAVING, self._note)

    def take_up(self) -> None:
        """From now on loaders are taken past what they gave before."""
        if self._taking_up is not None:
            return
        self._iterate = original = DataLoader.__iter__

        @door
        @functools.wraps(original)
        def __iter__(loader: DataLoader[Any]) -> Any:
            return self._begin_pass(loader)

        DataLoader.__iter__ = self._taking_up = __iter__  # type: ignore[method-assign]

    def end_taking_up(self) -> None:
        """The script is where it was left."""
        if DataLoader.__iter__ is self._taking_up:
            DataLoader.__iter__ = self._iterate  # type: ignore[method-assign]

    @door
    def _begin_pass(self, loader: DataLoader[Any]) -> Any:
        skip = self.skip
        taken_up = None if skip is None else SAVING.run(skip.set_back)
        batches = self._iterate(loader)
        if taken_up is None or skip is None:
            return batches
        begun = self.find(batches)
        if begun is not None and not begun.has_begun:  # Workers have got their first indices.
            begun.taken_up = taken_up
        return SAVING.run(skip.go_past, loader, batches, otherwise=batches, seen=True)

    def find_in_loop(self, frame: types.FrameType, lines: set[int], source: Any = None) -> list[Pass]:
        """Those of the loop at these lines of this frame, which goes over a source that the script holds.

        Raises:
            NotResumable: there are too many.
        """
        held = [self._by_batches[each] for each in _batches_in(source) if each in self._by_batches]
        if held:
            return held
        heads = {(id(frame), line) for line in lines}
        found = [
            each for each in self._by_batches.values() if each.batches() is not None and each.heads & heads
        ]
        since = max((each.since for each in found), default=0)
        found = [each for each in found if each.since == since]
        if len(found) > PASSES_MAX:
            raise NotResumable(f"one loop goes through more than {PASSES_MAX} loaders")
        return found

    def generators(self) -> list[tuple[str, FrameVariables]]:
        """The variables of generators that go through loaders: the script's own; and Accelerate's, where a
        batch is that was loaded before it is asked for."""
        if GENERATORS not in sys.modules and not self._own_generators:
            return []
        live = [each.batches() for each in self._by_batches.values()]
        found = [
            each.gi_frame
            for batches in live
            if batches is not None
            for each in gc.get_referrers(batches)
            if type(each) is types.GeneratorType and each.gi_frame and module_of(each.gi_frame) == GENERATORS
        ]
        found += [each.gi_frame for each in self._own_generators if each.gi_frame is not None]
        return [(f"batches{number}().", FrameVariables(each)) for number, each in enumerate(found)]

    def write_generator(self, generator: Any, writer: Referring) -> list[Any] | None:
        """A generator of the script's own that goes through one loader, again and again or once; None: it
        goes through something else."""
        held = [
            each
            for each in gc.get_referents(generator)
            if any("__next__" in base.__dict__ for base in type(each).__mro__)
        ]
        found = [batches for each in held for batches in _batches_in(each) if batches in self._by_batches]
        if len(held) != 1 or len(found) != 1 or generator.gi_frame is None:
            return None
        self._own_generators.add(generator)
        is_bare = held[0] is found[0]
        return [generator.gi_frame.f_lasti, is_bare, list(self._by_batches[found[0]].write(writer))]

    def lead_generator(self, generator: Any, content: list[Any], reader: Resolving) -> None:
        """Have a generator that has not begun go through its loader to where it was.

        Raises:
            NotResumable: it does not come there.
        """
        place, is_bare, rest = content
        if generator.gi_frame is None or generator.gi_suspended:
            return
        written = WrittenPass(*rest)
        before, self.skip = self.skip, LoaderSkip([written], NOWHERE, reader)
        next(generator)
        batches, self.skip = self.skip.batches[-1:], before
        while batches and batches[0]._num_yielded < written.given:
            is_last = batches[0]._num_yielded == written.given - 1
            if is_bare and not is_last and _is_plain(batches[0]):
                go_past_one(batches[0])
            else:
                next(generator)
        if generator.gi_frame is None or generator.gi_frame.f_lasti != place:
            raise NotResumable(f"{generator.__qualname__}() does not come to where it was")
        self._own_generators.add(generator)

    def find(self, batches: Any) -> Pass | None:
        """The pass whose batches these give."""
        return self._by_batches.get(batches)

    def make_again(self, loader: Any, written: WrittenPass, reader: Resolving) -> Any:
        """What gives a loader's batches, from where it was left."""
        _put_before(written, written.created, reader)
        batches = self._begin_pass(loader)
        self.go_on(batches, written, reader)
        return batches

    def go_on(self, batches: Any, written: WrittenPass, reader: Resolving) -> None:
        """Go past what was given before."""
        begun = self.find(batches)
        if begun is None:
            raise NotResumable("a loader's iterator is not there")
        if not begun.has_begun:
            begun.taken_up = functools.partial(_put_before, written, written.order, reader)
        while batches._num_yielded < written.given:
            if _is_plain(batches):
                go_past_one(batches)
            else:
                next(batches)

    def _note(self, loader: Any, batches: Any) -> None:
        self._loaders.began(loader, batches)
        if not self._is_over:
            self._begin(loader, batches)

    def _begin(self, loader: Any, batches: Any) -> None:
        frames = script_frames(sys._getframe(1))
        begun = Pass(loader, batches, self.steps, {(id(each), each.f_lineno) for each in frames})
        for other in self._by_batches.values():
            if begun.data is not None and other.goes_through(loader.dataset):
                other.obstacle = MIXED
        self._by_batches[batches] = begun
        if self._index is None:
            self._index = LookedUp(_BaseDataLoaderIter, "_next_index", SAVING, self._look_at_index)

    def _look_at_index(self, batches: Any, _: types.FrameType) -> None:
        begun = self._by_batches.get(batches)
        if begun is not None and not begun.has_begun:
            begun.begin_order()
        waits = any(not each.has_begun for each in self._by_batches.values())
        if self._index is not None and not waits and self._index.end():
            self._index = None


def _batches_in(source: Any) -> list[Any]:
    """What gives a loader's batches, inside of builtin iterators and displays."""
    found, waiting = [], [source]
    while waiting:
        each = waiting.pop()
        if issubclass(type(each), _BaseDataLoaderIter):
            found.append(each)
        elif issubclass(type(each), (enumerate, zip, map, itertools.islice)):
            waiting += gc.get_referents(each)
        elif type(each).__module__.partition(".")[0] in DISPLAYS:
            waiting.append(_attributes(each).get("iterable"))
        elif type(each) is tuple and len(each) < FRAMES_BETWEEN_MAX:
            waiting += each
    return found


def _states_of(*parts: Any) -> States:
    return [(name, each, rng.generator_state(each)) for name, each in _generators(parts)]


def _parts_of(loader: Any) -> list[Any]:
    """What may draw for a loader."""
    parts = [loader, *(vars(loader).get(name) for name in ("sampler", "batch_sampler", "dataset"))]
    return [*parts, _attributes(parts[2]).get("sampler")]


def _generators(parts: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Those of the process, and those that the parts of a loader hold."""
    yield from generator_roots()
    seen: set[int] = set()
    for part in parts:
        for each in _attributes(part).values():
            if id(each) not in seen and rng.is_generator(each):
                seen.add(id(each))
                yield "", each


def _attributes(value: Any) -> dict[str, Any]:
    """What is there; nothing of the script runs."""
    found = next(attributes(value), None)
    return found[1].entries if found is not None and type(found[1]) is Attributes else {}


def _named(states: States, writer: Referring) -> list[Any]:
    return [[name or writer.refer_to(each), _plain(state)] for name, each, state in states]


def _stream_roots(stream: Any) -> Iterator[tuple[str, Any]]:
    """A stream, and what its methods name: what it gives next may depend on all of that."""
    yield "dataset", stream
    own = (each for each in type(stream).__mro__ if is_scripts_own(each.__module__))
    waiting = [each for kind in own for each in vars(kind).values() if type(each) is types.FunctionType]
    for function in waiting:  # It grows meanwhile.
        for name in function.__code__.co_names:
            named = function.__globals__.get(name)
            if type(named) is types.FunctionType:
                if named not in waiting and is_scripts_own(named.__module__ or ""):
                    waiting.append(named)
            elif issubclass(type(named), (list, dict, set, collections.deque)):
                yield name, named


def _written_as_it_was(picture: Picture | None, writer: Referring) -> list[Any]:
    """What has changed since a picture, as it was then."""
    if picture is None:
        return []
    with picture.hold():
        changed = [each for each in picture.changed_nodes() if not isinstance(each.kind, GeneratorKind)]
        return [writer.write_as_it_was(each) for each in changed]


def _put_before(written: WrittenPass, states: list[Any], reader: Resolving) -> None:
    """Samplers, generators and data that are a stream get back what they had before something was drawn from
    them."""
    if states is written.created:
        for path, content in written.data:
            reader.put_one_back(path, content)
    for path, content in written.sampler:
        reader.put_one_back(path, content)
    _set_back(states, reader)


def _set_back(named: list[Any], reader: Resolving) -> None:
    for name, (kind, state) in named:
        generator = reader.generator_at(name)
        if generator is not None:
            torch_state = torch.tensor(state, dtype=torch.uint8) if kind == "torch" else state
            rng.set_generator(generator, kind, torch_state)


def _plain(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.tolist()
    if isinstance(state, dict):
        return {key: _plain(each) for key, each in state.items()}
    return [_plain(each) for each in state] if isinstance(state, (list, tuple)) else state


def _is_plain(batches: Any) -> bool:
    """Whether batches that are gone past need not be loaded."""
    return batches._num_workers == 0 and not isinstance(batches._dataset, IterableDataset)


def go_past_one(batches: Any) -> None:
    """Draw the index of a batch, and load nothing."""
    with contextlib.suppress(StopIteration):
        batches._next_index()
    batches._num_yielded += 1


class LoaderSkip:
    """Gives the loaders of one loop their batches from where they were left."""

    def __init__(self, passes: list[WrittenPass], site: LoopSite, reader: Resolving) -> None:
        self._passes, self._site, self._reader = list(passes), site, reader
        self.batches: list[Any] = []
        """What gives the batches of the loaders that were asked."""

    def set_back(self) -> Callable[[], None] | None:
        """Sets the generators to where they stood when the loop's next loader was asked for its batches;
        returns what sets them to where they stood when its order was drawn. None: this loader is another
        loop's."""
        if not self._passes:
            return None
        written = self._passes.pop(0)
        _put_before(written, written.created, self._reader)
        return functools.partial(_put_before, written, written.order, self._reader)

    def go_past(self, loader: DataLoader[Any], batches: Any) -> Any:
        """The loader's batches from where the loop was left."""
        self.batches.append(batches)
        passed = self._site.passed
        if passed <= 0 or not _is_plain(batches) or not self._is_shown_only(sys._getframe(4)):
            return batches  # What is between loads each batch, as it did.
        return PassedBatches(batches, passed)

    def _is_shown_only(self, frame: types.FrameType | None) -> bool:
        """Whether nothing but display stands between the loop and its loader."""
        for _ in range(FRAMES_BETWEEN_MAX):
            if frame is None:
                return False
            code, name = frame.f_code, module_of(frame)
            if (code.co_filename, code.co_name, frame.f_lineno) == self._site[:3]:
                return True
            if is_scripts_own(name) or name.partition(".")[0] not in DISPLAYS:
                return False
            frame = frame.f_back
        return False


class PassedBatches:
    """A loader's iterator behind so many batches that nobody looks at."""

    def __init__(self, batches: _BaseDataLoaderIter, passed: int) -> None:
        self.behind, self._left = batches, passed

    @door
    def __iter__(self) -> PassedBatches:
        return self

    @door
    def __next__(self) -> Any:
        if self._left:
            self._left -= 1
            return go_past_one(self.behind)
        return next(self.behind)

    @door
    def __len__(self) -> int:
        return len(self.behind)

    @door
    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)
