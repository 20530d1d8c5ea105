"""Where a rank stands in its data, and how it gets back there in a new process.

Rule: order is exact. The random state at the start of the epoch is put back, the loader draws the same order
again, and what was consumed is skipped: by drawing indices only where the loader works in this process, by
loading and discarding where worker processes may hold random state of their own. Random state is put back
twice, where the loop begins and where its loader is opened, because what a script does in between (make a
model, print a sample) was not part of the loop that was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Callable, Final

from torch.utils.data import DataLoader, IterableDataset

from cotenant.checkpoint.training import rng


class Cursor:
    """Counts epochs, batches and samples; opens loaders at the right place. Saves nothing by itself."""

    def __init__(self, differs: Callable[[str], None]) -> None:
        self.position = Position()
        self.remembers = False
        """Whether random state is worth recording: there is somewhere to save it to."""
        self._differs = differs
        self.sources_of: Callable[[Any], rng.Sources] = sources_of
        """What has state of its own in a loader."""
        self._pending: Position | None = None
        self._rng: dict[str, Any] | None = None
        self._sources: rng.Sources | None = None
        self._rows: tuple[int, int] | None = None
        self._exhausted = False
        self.batch_is_open = False
        """A batch was handed out and not yet counted."""

    def capture(self) -> dict[str, Any]:
        """The position as plain values, at a step boundary."""
        if self._sources is not None:
            self.position.sources_now = self._sources.capture()
        self.position.samples = self.samples
        return self.position.to_plain()

    @property
    def samples(self) -> int:
        """Consumed in this epoch: batches times their size, at most all there are (the last is smaller)."""
        if self._rows is None or self.position.batch < 0:
            return self.position.samples
        size, total = self._rows
        return min(self.position.batch * size, total)

    def resume(self, position: dict[str, Any], random_state: dict[str, Any]) -> None:
        """Continue exactly where this rank was."""
        self.position = Position.from_plain(position)
        self._pending = Position.from_plain(position)
        self._rng = random_state

    def resume_resharded(self, position: dict[str, Any], old_world_size: int, world_size: int) -> None:
        """Continue from rank 0's position in another world size: by samples consumed by all ranks."""
        self.resume(position, {})
        self._rng = None
        assert self._pending is not None
        samples = self._pending.samples * old_world_size // world_size
        self.position.samples = self._pending.samples = samples
        self.position.batch = self._pending.batch = UNKNOWN  # until the loader says its batch size

    def start_epoch(self, epoch: int) -> None:
        if epoch != self.position.epoch:
            self.position = Position(epoch=epoch)
            self._rows = None
        self._exhausted = False
        if self._rng is not None:
            rng.restore(self._rng)
            if self._pending is None or self._pending.batch == 0:
                self._rng = None

    def finish_epoch_early(self) -> None:
        """What is saved next counts as the start of the next epoch, if this one's batches are used up."""
        if self._exhausted:
            self.position = Position(epoch=self.position.epoch + 1)
            self._rows = None
            self._exhausted = False

    def leave_epoch(self) -> None:
        """The batch that was handed out is done with, and the others of its epoch are not wanted."""
        self.batch_is_open = False
        self.position = Position(epoch=self.position.epoch + 1)
        self._rows = None

    def open_epoch(self, loader: Any, skip: str) -> Iterator[Any]:
        """The batches that are left of this epoch."""
        self._rows = rows_of(loader)
        if not self.remembers:
            return iter(loader)
        pending, self._pending = self._pending, None
        self._sources = self.sources_of(loader)
        if pending is not None:
            for caveat in caveats(loader, skip):
                self._differs(caveat)
            if pending.batch == UNKNOWN:
                pending.batch = self.position.batch = batches_for(pending.samples, loader)
            if pending.batch > 0:
                return self._fast_forward(loader, pending, skip)
            if pending.sources_now:
                self._sources.restore(pending.sources_now)
        self.position.start = rng.capture()
        self.position.sources_start = self._sources.capture()
        return iter(loader)

    def consume(self) -> None:
        """The batch that was handed out is done with."""
        if self.batch_is_open:
            self.batch_is_open = False
            self.position.batch += 1

    def exhaust(self) -> None:
        self._exhausted = True

    def _fast_forward(self, loader: Any, pending: Position, skip: str) -> Iterator[Any]:
        """Draw the epoch's order again from its own random state, skip, then go on with the saved one."""
        assert self._sources is not None and pending.start is not None
        now = self._rng if self._rng is not None else rng.capture()
        self._rng = None
        problem = self._sources.restore(pending.sources_start)
        if problem:
            self._differs(problem)
        rng.restore(pending.start)
        iterator = iterate_from(loader, pending.batch, skip)  # With none left as well: its end may draw.
        if not problem:
            self._sources.restore(pending.sources_now)
        rng.restore(now)
        return iterator


SKIP_AUTO: Final = "auto"
SKIP_REPLAY: Final = "replay"
SKIP_INDICES: Final = "indices"
UNKNOWN: Final = -1
"""A position counted in samples that was not yet turned into batches."""

_END: Final = object()
SKIPS: Final = (SKIP_AUTO, SKIP_REPLAY, SKIP_INDICES)


@dataclass
class Position:
    """The place where this rank is. `batch` and `samples` count what it consumed of the current epoch."""

    epoch: int = 0
    batch: int = 0
    samples: int = 0
    start: dict[str, Any] | None = None
    """Random state just before the epoch's order was drawn."""
    sources_start: list[Any] = field(default_factory=list)
    sources_now: list[Any] = field(default_factory=list)

    def to_plain(self) -> dict[str, Any]:
        return dict(vars(self))

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> Position:
        return Position(**plain)


def sources_of(loader: Any) -> rng.Sources:
    """The random generators that decide a loader's order and content."""
    return rng.Sources(*parts_of(loader))


def parts_of(loader: Any) -> tuple[Any, ...]:
    """The objects that decide a loader's order and content, itself first."""
    sampler = getattr(loader, "sampler", None)
    batch_sampler = getattr(loader, "batch_sampler", None)
    inner = getattr(batch_sampler, "sampler", None)
    return loader, sampler, batch_sampler, inner, getattr(loader, "dataset", None)


def iterate_from(loader: Any, batches: int, skip: str) -> Iterator[Any]:
    """An iterator over `loader` that has already passed `batches` batches. Leaves random state moved on."""
    if (
        isinstance(loader, DataLoader)
        and skip != SKIP_REPLAY
        and not isinstance(loader.dataset, IterableDataset)
    ):
        if loader.num_workers == 0:
            iterator = iter(loader)
            indices = getattr(iterator, "_sampler_iter", None)
            if indices is not None:
                return _advance_iterator(iterator, indices, batches)
            return _advance_iterator(iterator, iterator, batches)
        if skip == SKIP_INDICES:
            return _iterate_skipping(loader, batches)
    iterator = iter(loader)
    return _advance_iterator(iterator, iterator, batches)


def caveats(loader: Any, skip: str) -> list[str]:
    """Why the data after a resume may not be what it would have been."""
    found = []
    workers = getattr(loader, "num_workers", 0)
    if workers and getattr(loader, "persistent_workers", False):
        found.append("persistent data loader workers keep random state that cannot be saved")
    if workers and skip == SKIP_INDICES:
        found.append('skip="indices" with worker processes: their random state was not replayed')
    if workers and not getattr(loader, "in_order", True):
        found.append("the data loader does not keep its order (in_order=False)")
    return found


def rows_of(loader: Any) -> tuple[int, int] | None:
    """(samples in a batch, samples in an epoch) of this rank, None if the loader does not say."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    size = getattr(loader, "batch_size", None) or getattr(batch_sampler, "batch_size", None)
    sampler: Any = getattr(loader, "sampler", None)
    if not size or not hasattr(sampler, "__len__"):
        return None
    return int(size), len(sampler)


def batches_for(samples: int, loader: Any) -> int:
    """How many of this loader's batches make up `samples`, rounded down; 0 if its batch size is not known."""
    rows = rows_of(loader)
    return samples // rows[0] if rows else 0


def _advance_iterator(iterator: Iterator[Any], drawn: Iterator[Any], count: int) -> Iterator[Any]:
    for _ in range(count):
        if next(drawn, _END) is _END:
            break
    return iterator


def _iterate_skipping(loader: DataLoader[Any], batches: int) -> Iterator[Any]:
    """Worker processes are handed indices as soon as the iterator is made: skip in front of them."""
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    original = getattr(loader, name)
    object.__setattr__(loader, name, _Skipping(original, batches))
    try:
        return iter(loader)
    finally:
        object.__setattr__(loader, name, original)


class _Skipping:
    """A sampler that leaves out its first `count` draws, once."""

    def __init__(self, original: Any, count: int) -> None:
        self._original = original
        self._count = count

    def __len__(self) -> int:
        return len(self._original)

    def __iter__(self) -> Iterator[Any]:
        count, self._count = self._count, 0
        for position, indices in enumerate(self._original):
            if position >= count:
                yield indices
