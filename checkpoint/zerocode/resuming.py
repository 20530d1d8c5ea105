"""A script that goes on from a checkpoint: its loops are taken up where they were left.

Rule: the script runs up to the loop as it did, and there gets back what it had. First at the outermost loop,
so that the functions that lead to the innermost one are called with what they were called with; then, in the
innermost loop, everything once more, because what the script has just done on its way was not part of what
was left. Then everything that it can reach is compared with what was saved. What differs ends this attempt.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

from cotenant.checkpoint.guard import describe
from cotenant.checkpoint.picture import Picture, generator_roots
from cotenant.checkpoint.rerun import BEFORE, ITEMS, folders_of_newest, written_of_newest
from cotenant.checkpoint.resuming import LoadedCheckpoint
from cotenant.checkpoint.seeds import end_seeds
from cotenant.checkpoint.zerocode.epochs import LoaderSkip
from cotenant.checkpoint.zerocode.files import allow_made_again, put_back_files
from cotenant.checkpoint.zerocode.looking import roots_of
from cotenant.checkpoint.zerocode.proof import Shown
from cotenant.checkpoint.zerocode.refusals import NotResumable
from cotenant.checkpoint.zerocode.script_rank import ScriptRank, Watched
from cotenant.checkpoint.zerocode.sites import LoopSite, script_frames
from cotenant.checkpoint.zerocode.written import Reader

OTHERWISE: Final = (
    "what comes before its loop came out otherwise than in the attempt that was left: {}. Seed what it draws, and "
    "leave out what depends on the time, the folder or the order of a set"
)


class Resumption:
    """Takes one script up where it was left."""

    def __init__(self, make_rank: Callable[[], ScriptRank], watched: Watched) -> None:
        """`make_rank()` is called at the first of the loops."""
        self._make_rank, self._watched = make_rank, watched
        self._rank: ScriptRank | None = None
        self._loaded: LoadedCheckpoint | None = None
        self._own: dict[str, Any] = {}
        self._sites: list[LoopSite] = []
        self._reader: Reader | None = None
        self._picture: Picture | None = None
        self._is_back = False

    def begin(self) -> None:
        """Wait for the loops."""
        allow_made_again(folders_of_newest())
        self._watched.files.written |= written_of_newest()
        self._watched.files.when_destroyed = self._refuse_to_destroy
        setattr(builtins, BEFORE, self._before)
        setattr(builtins, ITEMS, self._items)

    # What the marks call.

    def _before(self, line: int) -> None:
        frame = sys._getframe(1)
        if self._rank is None:
            self._rank = self._make_rank()
            self._guarded(self._load, self._rank)
        number = None if self._is_back else self._number(frame, line)
        if number is None:
            return
        if number == 0 and self._reader is None:
            self._guarded(self._begin_loop, frame, line)
        if number != len(self._sites) - 1 or self._reader is None:
            return
        if self._sites[number].passed < 0:
            self._guarded(self._put_everything_back, frame)
        elif self._own["epochs"]:  # What the loop goes over may ask its loaders for batches at once.
            self._watched.epochs.skip = LoaderSkip(
                self._own["epochs"], self._sites[number], self._generator_at
            )

    def _items(self, line: int, items: Any) -> Any:
        frame = sys._getframe(1)
        number = None if self._is_back or self._reader is None else self._number(frame, line)
        if number is None:
            return items
        site, is_last = self._sites[number], number == len(self._sites) - 1
        iterator = self._guarded(self._advance, items, site.passed)
        if is_last:
            self._watched.epochs.skip = None
            self._guarded(self._put_everything_back, frame)
        return iterator

    def _number(self, frame: types.FrameType, line: int) -> int | None:
        """Which of the loops that were left begins at this line; None: none of them."""
        code = frame.f_code
        places = [(site.file, site.function, site.line) for site in self._sites]
        place = (code.co_filename, code.co_name, line)
        return places.index(place) if place in places else None

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        """What goes wrong here must not end in a run that looks resumed."""
        assert self._rank is not None
        try:
            return function(*args)
        except NotResumable as error:
            self._rank.end_attempt(str(error))
        except Exception as error:  # noqa: BLE001  # whatever it is, this is not the run that was left
            self._rank.end_attempt(describe(error))

    def _refuse_to_destroy(self, reason: str) -> None:
        rank = self._rank = self._rank or self._make_rank()
        rank.end_attempt(reason)

    # What happens there.

    def _load(self, rank: ScriptRank) -> None:
        self._loaded = rank.take_up()
        self._own = self._loaded.own
        self._sites = [LoopSite(*site) for site in self._own["sites"]]

    def _begin_loop(self, frame: types.FrameType, line: int) -> None:
        frames = script_frames(frame)
        picture = Picture(roots_of(frames), digests=True)
        self._watched.look.take(picture, frame, line)
        self._watched.files.enter_loop()
        end_seeds()
        self._reader, self._picture = Reader(self._own["state"], picture), picture
        missing = self._reader.put_back()
        if missing:
            raise NotResumable(
                f"what comes before its loop came out otherwise: {', '.join(missing[:4])} is not there"
            )

    def _advance(self, items: Any, passed: int) -> Iterator[Any]:
        """An iterator that has given what was used before."""
        iterator = iter(items)
        for _ in range(passed):
            next(iterator, None)
        return iterator

    def _generator_at(self, name: str) -> Any:
        shared = dict(generator_roots())
        if name in shared:
            return shared[name]
        nodes = self._picture.nodes if self._picture is not None else []
        return next((node.value for node in nodes if node.path == name), None)

    def _put_everything_back(self, frame: types.FrameType) -> None:
        assert self._reader is not None
        frames = script_frames(frame)
        inner = {path: value.frame for path, value in roots_of(frames) if hasattr(value, "frame")}
        assert self._picture is not None
        self._picture.put_back()  # What was done on the way here.
        missing = [*self._reader.put_back(), *self._reader.put_back_frames(inner)]
        if missing:
            raise NotResumable(f"its loop was reached by another way: {', '.join(missing[:4])} not there")
        put_back_files(self._own["files"])
        wrong = Shown(*self._own["shown"]).difference(Shown.by(Picture(roots_of(frames))))
        if wrong:
            raise NotResumable(OTHERWISE.format(wrong))
        self._is_back = True
        self._picture.let_tensors_go()
        self._watched.epochs.note_step()
        assert self._rank is not None and self._loaded is not None
        self._rank.taken_up(self._loaded)
