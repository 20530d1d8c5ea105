"""The position in the data: where an epoch stands, and how to get back there.

Rule: order is exact. The random state at the start of the epoch is put back, the loader draws the same
order again, and what was consumed is skipped: by drawing indices only where the loader works in this
process, by loading and discarding where worker processes may hold random state of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from torch.utils.data import DataLoader, IterableDataset

from cotenant.checkpoint.training import rng

SKIP_AUTO: Final = "auto"
SKIP_REPLAY: Final = "replay"
SKIP_INDICES: Final = "indices"
UNKNOWN: Final = -1
"""A position counted in samples that was not yet turned into batches."""

_END: Final = object()
SKIPS: Final = (SKIP_AUTO, SKIP_REPLAY, SKIP_INDICES)


@dataclass
class Position:
    """Where this rank is. `batch` and `samples` count what it consumed of the current epoch."""

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
    sampler = getattr(loader, "sampler", None)
    batch_sampler = getattr(loader, "batch_sampler", None)
    inner = getattr(batch_sampler, "sampler", None)
    return rng.Sources(loader, sampler, batch_sampler, inner, getattr(loader, "dataset", None))


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
                return _advanced(iterator, indices, batches)
            return _advanced(iterator, iterator, batches)
        if skip == SKIP_INDICES:
            return _with_skipping_sampler(loader, batches)
    iterator = iter(loader)
    return _advanced(iterator, iterator, batches)


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


def _advanced(iterator: Iterator[Any], drawn: Iterator[Any], count: int) -> Iterator[Any]:
    for _ in range(count):
        if next(drawn, _END) is _END:
            break
    return iterator


def _with_skipping_sampler(loader: DataLoader[Any], batches: int) -> Iterator[Any]:
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
