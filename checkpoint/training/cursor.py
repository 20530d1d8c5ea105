"""Where a rank stands in its data, and how it gets back there in a new process.

Rule: random state is put back twice, where the loop begins and where its loader is opened, because what a
script does in between (make a model, print a sample) was not part of the loop that was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

from cotenant.checkpoint.training import data, rng
from cotenant.checkpoint.training.data import Position


class Cursor:
    """Counts epochs, batches and samples; opens loaders at the right place. Saves nothing by itself."""

    def __init__(self, differs: Callable[[str], None]) -> None:
        self.position = Position()
        self.remembers = False
        """Whether random state is worth recording: there is somewhere to save it to."""
        self._differs = differs
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
        self.position.batch = self._pending.batch = data.UNKNOWN  # until the loader says its batch size

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

    def opened(self, loader: Any, skip: str) -> Iterator[Any]:
        """The batches that are left of this epoch."""
        self._rows = data.rows_of(loader)
        if not self.remembers:
            return iter(loader)
        pending, self._pending = self._pending, None
        self._sources = data.sources_of(loader)
        if pending is not None:
            for caveat in data.caveats(loader, skip):
                self._differs(caveat)
            if pending.batch == data.UNKNOWN:
                pending.batch = self.position.batch = data.batches_for(pending.samples, loader)
            if pending.batch > 0:
                return self._fast_forward(loader, pending, skip)
            if pending.sources_now:
                self._sources.restore(pending.sources_now)
        self.position.start = rng.capture()
        self.position.sources_start = self._sources.capture()
        return iter(loader)

    def batches_left(self, loader: Any) -> int | None:
        """Of this epoch, once its loader is open; None if the loader does not know."""
        return len(loader) - self.position.batch if hasattr(loader, "__len__") else None

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
        if hasattr(loader, "__len__") and pending.batch >= len(loader):
            iterator: Iterator[Any] = iter(())
        else:
            iterator = data.iterate_from(loader, pending.batch, skip)
        if not problem:
            self._sources.restore(pending.sources_now)
        rng.restore(now)
        return iterator
