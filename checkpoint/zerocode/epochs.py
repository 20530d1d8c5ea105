"""The beginnings of a script's passes through its loaders: what the order of each was drawn from.

Rule: a loader draws its order when it is asked for its batches. A new process draws it again from the states
in which the generators of random numbers were then, goes past the batches that were used, and only then puts
back the states of the moment that was saved. Batches that are gone past are not loaded, where nothing but
display stands between the loop and its loader, and no worker process keeps a state of its own.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, IterableDataset

from cotenant.checkpoint.guard import SAVING, door
from cotenant.checkpoint.picture import Picture, generator_roots
from cotenant.checkpoint.picture.ownership import is_scripts_own
from cotenant.checkpoint.progress.loops import Loaders
from cotenant.checkpoint.training import rng
from cotenant.checkpoint.zerocode.refusals import NotResumable
from cotenant.checkpoint.zerocode.sites import LoopSite, script_frames

STARTS_MAX: Final = 4
"""Loaders that one loop goes through side by side."""
DISPLAYS: Final = ("tqdm", "rich", "cotenant")
FRAMES_BETWEEN_MAX: Final = 8

States = list[tuple[str, Any, Any]]
"""(name, generator, state): the name is for those that the whole process shares."""


class EpochStarts:
    """Notes, for the loop that began last at each place, what its loaders drew their order from."""

    def __init__(self, loaders: Loaders) -> None:
        self._loaders = loaders
        self._starts: dict[tuple[int, int], tuple[int, list[States]]] = {}
        """By frame and line: after which step the loop there began, and what its loaders drew from."""
        self._steps = 0
        self.skip: LoaderSkip | None = None
        """In a resumed process: where the loop that begins now was left."""

    def begin(self) -> None:
        original = DataLoader.__iter__

        @door
        @functools.wraps(original)
        def __iter__(loader: DataLoader[Any]) -> Any:
            is_taken_up = self.skip is not None and self.skip.set_back()
            SAVING.run(self._note, loader)
            batches = original(loader)
            if is_taken_up and self.skip is not None:
                batches = self.skip.go_past(loader, batches)
            SAVING.run(self._loaders.began, loader, getattr(batches, "behind", batches))
            return batches

        DataLoader.__iter__ = __iter__  # type: ignore[method-assign]

    def note_step(self) -> None:
        """A loop that begins now at the same place is another pass."""
        self._steps += 1

    def of(self, frame: types.FrameType, lines: set[int], before: Picture) -> list[Any]:
        """What the loaders of the loop at these lines of this frame drew their order from, each generator by
        its path in the picture.

        Raises:
            NotResumable: a generator was made in the loop.
        """
        here = (each for (at, line), each in self._starts.items() if at == id(frame) and line in lines)
        _, starts = next(here, (0, []))
        if len(starts) > STARTS_MAX:
            raise NotResumable(f"one loop goes through more than {STARTS_MAX} loaders")
        written = []
        for states in starts:
            named = []
            for name, generator, state in states:
                node = before.node_of(generator)
                if node is None and not name:
                    raise NotResumable("a loader draws from a generator that was made in the loop")
                named.append([name or node.path, _plain(state)])  # type: ignore[union-attr]
            written.append(named)
        return written

    def _note(self, loader: Any) -> None:
        frames = script_frames(sys._getframe(2))
        if not frames:
            return
        key = id(frames[-1]), frames[-1].f_lineno
        states = [(name, each, rng.generator_state(each)) for name, each in _generators(loader)]
        since, before = self._starts.get(key, (-1, []))
        self._starts[key] = self._steps, [*(before if since == self._steps else []), states]


def _generators(loader: Any) -> Iterator[tuple[str, Any]]:
    """Those of the process, and those that the loader and its samplers hold."""
    yield from generator_roots()
    parts = [loader, *(vars(loader).get(name) for name in ("sampler", "batch_sampler", "dataset"))]
    parts.append(getattr(parts[2], "__dict__", {}).get("sampler"))
    seen: set[int] = set()
    for part in parts:
        for each in getattr(part, "__dict__", {}).values() if part is not None else ():
            if id(each) not in seen and rng.is_generator(each):
                seen.add(id(each))
                yield "", each


def _plain(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.tolist()
    if isinstance(state, dict):
        return {key: _plain(each) for key, each in state.items()}
    return [_plain(each) for each in state] if isinstance(state, (list, tuple)) else state


class LoaderSkip:
    """Gives the loaders of one loop their batches from where they were left."""

    def __init__(self, starts: list[Any], site: LoopSite, generator_at: Callable[[str], Any]) -> None:
        self._starts, self._site, self._generator_at = list(starts), site, generator_at

    def set_back(self) -> bool:
        """Sets the generators to where they stood when the loop's next loader was asked for its batches;
        False: there is none, and this loader is another loop's."""
        if not self._starts:
            return False
        for name, (kind, state) in self._starts.pop(0):
            generator = self._generator_at(name)
            if generator is not None:
                torch_state = torch.tensor(state, dtype=torch.uint8) if kind == "torch" else state
                rng.set_generator(generator, kind, torch_state)
        return True

    def go_past(self, loader: DataLoader[Any], batches: Any) -> Any:
        """The loader's batches from where the loop was left."""
        indices = getattr(batches, "_sampler_iter", None)
        is_plain = loader.num_workers == 0 and not isinstance(loader.dataset, IterableDataset)
        passed = self._site.passed
        if not passed or indices is None or not is_plain or not self._is_shown_only(sys._getframe(2)):
            return batches  # What is between loads each batch, as it did.
        for _ in range(passed):
            next(indices, None)
        batches._num_yielded = passed
        return PassedBatches(batches, passed)

    def _is_shown_only(self, frame: types.FrameType | None) -> bool:
        """Whether nothing but display stands between the loop and its loader."""
        for _ in range(FRAMES_BETWEEN_MAX):
            if frame is None:
                return False
            code, name = frame.f_code, str(frame.f_globals.get("__name__", ""))
            if (code.co_filename, code.co_name, frame.f_lineno) == self._site[:3]:
                return True
            if is_scripts_own(name) or name.partition(".")[0] not in DISPLAYS:
                return False
            frame = frame.f_back
        return False


class PassedBatches:
    """A loader's iterator behind so many batches that nobody looks at."""

    def __init__(self, batches: Any, passed: int) -> None:
        self.behind, self._left = batches, passed

    def __iter__(self) -> PassedBatches:
        return self

    def __next__(self) -> Any:
        if self._left:
            self._left -= 1
            return None
        return next(self.behind)

    def __len__(self) -> int:
        return len(self.behind)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)
