"""A script that goes on from a checkpoint: its loops are taken up where they were left.

Rule: the script runs up to the loop as it did, and there gets back what it had. First at the outermost loop,
so that the functions that lead to the innermost one are called with what they were called with; then, in the
innermost loop, everything once more, because what the script has just done on its way was not part of what
was left. Then everything that it can reach is compared with what was saved. What differs ends this attempt.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

from cotenant.checkpoint.guard import AttemptEnds, describe
from cotenant.checkpoint.picture import Picture, generator_roots
from cotenant.checkpoint.picture.kinds import FrameVariables
from cotenant.checkpoint.marks import BEFORE, ITEMS, RUNS, TAKES
from cotenant.checkpoint.rerun import folders_of_newest, written_of_newest
from cotenant.checkpoint.resuming import LoadedCheckpoint
from cotenant.checkpoint.seeds import end_seeds
from cotenant.checkpoint.zerocode.passes import LoaderSkip, WrittenPass
from cotenant.checkpoint.zerocode.files import allow_made_again, put_back_files
from cotenant.checkpoint.zerocode.looking import roots_of
from cotenant.checkpoint.zerocode.proof import Shown
from cotenant.checkpoint.zerocode.refusals import NotResumable
from cotenant.checkpoint.zerocode.script_rank import ScriptRank, Watched
from cotenant.checkpoint.zerocode.sites import GIVEN, LoopSite, script_frames
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
        self._skips: dict[int, LoaderSkip] = {}
        self._bound: dict[int, types.FrameType] = {}
        self._is_back = False

    def begin(self) -> None:
        """Wait for the loops."""
        allow_made_again(folders_of_newest())
        self._watched.files.written |= written_of_newest()
        self._watched.files.when_destroyed = self._refuse_to_destroy
        for name, mark in (
            (BEFORE, self._before),
            (ITEMS, self._items),
            (RUNS, self._runs),
            (TAKES, self._takes),
        ):
            setattr(builtins, name, mark)
        atexit.register(self._end)

    def _end(self) -> None:
        """The script is over, and was not taken up: that is not its end."""
        if not self._is_back:
            rank = self._rank or self._make_rank()
            with contextlib.suppress(AttemptEnds):
                rank.end_attempt("the script has not come to the loop in which it was left")
            os._exit(1)

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
        if self._reader is None:
            return
        self._guarded(self._bind, frame)
        passes = [WrittenPass(*each) for each in self._own["passes"][number]]
        # What a loop goes over may ask its loaders for batches at once.
        self._skips[number] = skip = LoaderSkip(passes, self._sites[number], self._generator_at)
        self._watched.passes.skip = skip if passes else None
        if number == len(self._sites) - 1 and self._sites[number].passed == -1:
            self._guarded(self._put_everything_back, frame)

    def _items(self, line: int, items: Any) -> Any:
        frame = sys._getframe(1)
        number = None if self._is_back or self._reader is None else self._number(frame, line)
        if number is None:
            return items
        iterator = self._guarded(self._advance, items, number)
        self._watched.passes.skip = None
        if number == len(self._sites) - 1:
            self._guarded(self._put_everything_back, frame)
        return iterator

    def _runs(self, first: int, last: int, *names: str) -> bool:
        """Whether a statement runs: not if it was done before the script was left. What shows where a loop is,
        or goes over its items, is made anew."""
        frame = sys._getframe(1)
        if self._is_back or self._reader is None:
            return True
        if self._leads_on(frame, first, last):
            self._guarded(self._bind, frame)
            return True
        return not self._reader.of_each_process.isdisjoint(names)

    def _takes(self, first: int, last: int, end: int) -> bool | None:
        frame = sys._getframe(1)
        if self._is_back or self._reader is None or not self._leads_on(frame, first, end):
            return None
        return self._leads_on(frame, first, last)

    def _leads_on(self, frame: types.FrameType, first: int, last: int) -> bool:
        """Whether the script was left somewhere at these lines."""
        file = frame.f_code.co_filename
        return any(file == at and first <= line <= last for at, line in self._own["way"])

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
        self._reader, self._picture = Reader(
            self._own["state"], picture, self._watched.passes, self._generator_at
        ), picture
        missing = self._reader.put_back()
        if missing:
            raise NotResumable(
                f"what comes before its loop came out otherwise: {', '.join(missing[:4])} is not there"
            )

    def _bind(self, frame: types.FrameType) -> None:
        """Give a function its variables before it goes on: what set them does not run again."""
        assert self._reader is not None
        path, value = roots_of(script_frames(frame))[-1]
        if isinstance(value, FrameVariables) and id(frame) not in self._bound:
            self._bound[id(frame)] = frame
            self._reader.keep_of_each_process({path: frame})
            self._reader.put_back_frames({path: frame})

    def _advance(self, items: Any, number: int) -> Iterator[Any]:
        """An iterator that has given what was used before."""
        iterator, passed, skip = iter(items), self._sites[number].passed, self._skips[number]
        for _ in range(passed):
            next(iterator, None)
        if passed == GIVEN:
            given = WrittenPass(*self._own["passes"][number][0]).given
            while not skip.batches or skip.batches[0]._num_yielded < given:
                next(iterator)
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
        self._reader.keep_of_each_process(inner)
        self._picture.put_back()  # What was done on the way here.
        missing = [*self._reader.put_back(), *self._reader.put_back_frames(inner)]
        if missing:
            raise NotResumable(f"its loop was reached by another way: {', '.join(missing[:4])} not there")
        put_back_files(self._own["files"])
        wrong = Shown(*self._own["shown"]).difference(Shown.by(Picture(roots_of(frames))))
        if wrong:
            raise NotResumable(OTHERWISE.format(wrong))
        self._is_back = True
        self._bound.clear()
        self._picture.let_tensors_go()
        self._watched.passes.note_step()
        assert self._rank is not None and self._loaded is not None
        self._rank.taken_up(self._loaded)
