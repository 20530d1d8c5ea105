"""Hugging Face's Trainer: saved and resumed by pictures, as a loop of the script's own would be.

Rule: the Trainer keeps its loop. Its frames are pictured with those of the script, when it begins to train
and at the begin of a step: all that a Trainer, its subclass, its callbacks and its model have counted by then
is state. To resume, a Trainer begins as it did, is sent to the epoch in which it was left, gets no batches
for the steps that were made, and everything back at the begin of the next one. The loader's own generator is
each process's: it is led to where it stood.

Rule: a step counts as done when the next one begins: what the Trainer logs, evaluates and saves after it
belongs to it.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

from torch.utils.data.dataloader import _BaseDataLoaderIter

from cotenant.checkpoint import namespaces, rerun, resuming
from cotenant.checkpoint.guard import SAVING, door
from cotenant.checkpoint.picture.kinds import FrameVariables, release_variables
from cotenant.checkpoint.zerocode import looking, passes, refusals, sites, state_reader, state_writer
from cotenant.checkpoint.zerocode.resuming import TakenUp
from cotenant.checkpoint.zerocode.script_rank import ScriptRank, Watched

TRAINER: Final = "transformers.trainer"
"""The module whose functions are the loop around a step."""
ANOTHER_LOOP: Final = "the Trainer of this version of transformers has another loop"
ANOTHER: Final = "another train() begins, and a resume would take up the first one"


class Reports(Protocol):
    """What a driver needs of `zerocode.Reporter`."""

    leaves_only: bool

    @property
    def obstacle(self) -> str:
        """Why no Trainer is to be driven."""

    def driven(self, rank: TrainerRank | None, reason: str) -> None: ...


def watch(when_imported: Any, reports: Reports, watched: Watched) -> None:
    driver = _Driver(reports, watched)
    when_imported(TRAINER, driver.begin)


class _Driver:
    """Follows the first training of a process."""

    def __init__(self, reports: Reports, watched: Watched) -> None:
        self._reports, self._watched = reports, watched
        self._steps: _Steps | None = None

    def begin(self, module: Any) -> None:
        begin = module.Trainer.train

        @door
        @functools.wraps(begin)
        def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
            is_ours = SAVING.run(follow, module, self, resume_from_checkpoint)
            return begin(self, None if is_ours else resume_from_checkpoint, *args, **kwargs)

        follow = self._follow
        module.Trainer.train = train

    def _follow(self, module: Any, trainer: Any, folder: Any) -> bool | None:
        """Follows a Trainer's steps, where it could go on at one of them. Returns True where it is taken up
        by us, and not from a folder of its own."""
        line = next((each.f_lineno for each in reversed(sites.script_frames(sys._getframe(1)))), 0)
        if self._steps is not None:
            self._steps.rank_gives_up(f"line {line}: {ANOTHER}")
            return None
        is_left = next(rerun.facts_of_all(), None) is not None
        why = self._reports.obstacle or _obstacle(trainer)
        if not why and folder and not is_left:
            why = "it begins from a checkpoint folder of its own"
        if why or rerun.marks_of_newest():
            self._reports.driven(None, f"line {line}: the Trainer cannot be resumed: {why}" if why else "")
            return None
        rank = TrainerRank(self._watched, line=line, leaves_only=self._reports.leaves_only)
        self._steps = _Steps(trainer, rank, self._reports, self._watched, is_left=is_left)
        trainer.add_callback(_callback(module, self._steps))
        return is_left or None


def _obstacle(trainer: Any) -> str:
    """Why it could not go on where it was stopped; empty if it can."""
    options = trainer.args
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return "each rank holds another part of the state (DeepSpeed, FSDP)"
    if options.auto_find_batch_size:
        return "auto_find_batch_size: it may begin again with other batches"
    if options.n_gpu > 1:
        return "DataParallel over several GPUs in one process"
    if not hasattr(trainer.train_dataset, "__len__"):
        return "its data set does not say its length"
    return ""


class _Standing(NamedTuple):
    """Where a Trainer is: at the begin of a step."""

    line: int
    """Of the script, at which it trains."""
    frame: types.FrameType
    """Of the function that goes through the batches of an epoch."""

    @staticmethod
    def above(frame: types.FrameType, line: int) -> _Standing:
        """The one that called this frame.

        Raises:
            NotResumable: this version of transformers has another loop.
        """
        found = _frame_with(frame, "epoch_iterator", "batch_samples", "epoch", "update_step")
        if found is None:
            raise refusals.NotResumable(ANOTHER_LOOP)
        return _Standing(line, found)

    @property
    def batches(self) -> Any:
        """What gives the Trainer its batches."""
        return self.frame.f_locals["epoch_iterator"]

    def locate(self, reason: str) -> str:
        return f"line {self.line}: {reason}"


def _frame_with(frame: types.FrameType | None, *names: str) -> types.FrameType | None:
    """The innermost function of the Trainer's that has these variables; None: there is none."""
    while frame is not None:
        if namespaces.module_of(frame) == TRAINER and set(names) <= set(frame.f_code.co_varnames):
            return frame
        frame = frame.f_back
    return None


def _frames_of(frame: types.FrameType) -> list[types.FrameType]:
    """The script's own frames and those of its Trainer, the outermost first."""
    return sites.script_frames(frame, also=TRAINER)


def _generator_of(batches: Any) -> types.FrameType | None:
    """The frame of Accelerate's generator, where one gives the batches."""
    frame = batches.gi_frame if type(batches) is types.GeneratorType else None
    return frame if frame is not None and namespaces.module_of(frame) == passes.GENERATORS else None


def _loaders(batches: Any) -> Any:
    """What a loader of torch gives its batches by, itself or behind Accelerate's generator; None: another
    kind of loader."""
    generator = _generator_of(batches)
    found = batches if generator is None else generator.f_locals.get("dataloader_iter")
    return found if issubclass(type(found), (_BaseDataLoaderIter, passes.PassedBatches)) else None


class TrainerRank(ScriptRank):
    """Saves and leaves at the begin of a Trainer's step."""

    def __init__(self, watched: Watched, *, line: int, leaves_only: bool) -> None:
        super().__init__(watched, why_not="", leaves_only=leaves_only)
        self._line = line
        self.is_over = False
        """The Trainer has made its last step."""

    def _wait(self) -> None:
        """The turn is over already."""
        try:
            standing = _Standing.above(sys._getframe(1), self._line)
            self._end_turn(standing.frame, standing)
            release_variables(_frames_of(standing.frame))
        except refusals.NotResumable as error:
            self._fail(self.locate(str(error)))

    def locate(self, reason: str) -> str:
        return f"line {self._line}: {reason}"

    def roots(self, frame: types.FrameType) -> list[tuple[str, Any]]:
        return [*looking.roots_of(_frames_of(frame)), *self._watched.passes.generators()]

    def _write_place(self, standing: Any, writer: state_writer.StateWriter) -> dict[str, Any]:
        names = standing.frame.f_locals
        batches, generator = standing.batches, _generator_of(standing.batches)
        loaders = _loaders(batches)
        begun = None if loaders is None else self._watched.passes.find(loaders)
        if begun is None:
            raise refusals.NotResumable(
                f"`{standing.frame.f_code.co_name}().epoch_iterator` is a {type(batches).__name__}: only "
                "loaders of torch, and those that Accelerate makes of them, can be taken up"
            )
        self._leave_generators(writer)
        writer.leave_to_each_process(batches)
        return {
            "epoch": names["epoch"],
            "update_step": names["update_step"],
            "at": -1 if generator is None else generator.f_lasti,
            "pass": list(begun.write(writer)),
        }

    def end_training(self) -> None:
        """After the last step it is left no more."""
        self.is_over = True
        self._end_proof()
        self._complete()
        self._agreement.can_save = False


class _Steps:
    """Follows the Trainer's steps."""

    def __init__(
        self, trainer: Any, rank: TrainerRank, reports: Reports, watched: Watched, *, is_left: bool
    ) -> None:
        self._trainer, self._rank, self._reports, self._watched = trainer, rank, reports, watched
        self._way: _WayBack | None = None
        """To where the Trainer was left."""
        self._is_left = is_left
        self._has_begun = False
        self._is_under_way = False
        """A step has begun in this process."""

    def rank_gives_up(self, reason: str) -> None:
        self._rank.give_up(reason)

    def begin(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        frame = _frame_with(sys._getframe(1), "epochs_trained")
        if frame is None:
            self._reports.driven(None, self._rank.locate(ANOTHER_LOOP))
            return
        frames = _frames_of(frame)
        if self._is_left:
            self._way = _WayBack(self._trainer, self._rank, self._watched, frame)
        else:
            self._watched.look.look_at(frames)
            self._rank.begin(accumulates=False)  # It is not known before the first step.
        release_variables(frames)
        self._reports.driven(self._rank, "")

    def begin_epoch(self) -> None:
        if self._way is not None:
            self._way.begin_epoch()

    def begin_step(self) -> None:
        if self._rank.is_over:
            return
        if self._way is not None:
            self._way.arrive(sys._getframe(1))
            self._way = None
        elif self._is_under_way:
            self._rank.note_step()
        self._is_under_way = True

    def end(self) -> None:
        if self._is_under_way and not self._rank.is_over:
            self._rank.end_training()


class _WayBack:
    """Leads a Trainer that has begun anew to where the one before it was left."""

    def __init__(self, trainer: Any, rank: TrainerRank, watched: Watched, frame: types.FrameType) -> None:
        """`frame`: of the Trainer's loop over epochs, which has not begun."""
        self._trainer, self._rank, self._passes = trainer, rank, watched.passes
        self._loaded: resuming.LoadedCheckpoint = rank.take_up()
        self._taken_up = TakenUp(rank, watched, self._loaded)
        rank.run_or_end(self._send_to_epoch, frame)

    def _send_to_epoch(self, frame: types.FrameType) -> None:
        own = self._loaded.own
        self._taken_up.begin(_frames_of(frame), [])
        self._passes.take_up()
        variables = FrameVariables(frame)
        variables.bind({**variables.variables, "epochs_trained": own["epoch"]})
        self._left, self._written = own["update_step"], passes.WrittenPass(*own["pass"])

        @door
        def get_batch_samples(batches: Any, *_: Any) -> Any:
            return SAVING.run(self._rank.run_or_end, self._batches_of_step, batches, seen=True)

        self._own = self._trainer.__dict__.get("get_batch_samples")
        """The Trainer's, where an object has one of its own."""
        self._trainer.get_batch_samples = get_batch_samples

    def begin_epoch(self) -> None:
        """The next loader that is asked for its batches is the one of this epoch."""
        self._passes.skip = _Skip(self._written, self._taken_up.reader)

    def _batches_of_step(self, batches: Any) -> Any:
        """None for a step that was made; for the one that was left, its own."""
        if self._left:
            self._left -= 1
            return [], None
        while not self._stands(batches):
            next(batches)
        self._passes.skip = None
        standing = _Standing.above(sys._getframe(1), 0)
        path = looking.roots_of(_frames_of(standing.frame))[-1][0]
        variable = functools.partial(self._taken_up.reader.variable_of, path)
        return variable("batch_samples"), variable("num_items_in_batch")

    def _stands(self, batches: Any) -> bool:
        """Whether the batches that were used are behind."""
        loaders, generator = _loaders(batches), _generator_of(batches)
        if loaders is None or loaders._num_yielded < self._written.given:
            return False
        return generator is None or generator.f_lasti == self._loaded.own["at"]

    def arrive(self, frame: types.FrameType) -> None:
        """The step that was left has begun: everything gets back what it held."""
        self._rank.run_or_end(self._arrive, frame)

    def _arrive(self, frame: types.FrameType) -> None:
        standing = _Standing.above(frame, 0)
        del self._trainer.get_batch_samples
        if self._own is not None:
            self._trainer.get_batch_samples = self._own
        for path, variables in self._own_variables(standing):
            loaders = variables.variables.get(path)
            if type(loaders) is passes.PassedBatches:
                variables.bind({**variables.variables, path: loaders.behind})
        self._taken_up.put_everything_back(self._rank.roots(standing.frame))
        release_variables(_frames_of(standing.frame))

    @staticmethod
    def _own_variables(standing: _Standing) -> Iterator[tuple[str, FrameVariables]]:
        """Where a loader's batches are held, each with the name of the variable."""
        yield "epoch_iterator", FrameVariables(standing.frame)
        generator = _generator_of(standing.batches)
        if generator is not None:
            yield "dataloader_iter", FrameVariables(generator)


class _Skip(passes.LoaderSkip):
    """Goes past all batches that were given: what was in the last of them is put back."""

    def __init__(self, written: passes.WrittenPass, reader: state_reader.StateReader) -> None:
        super().__init__([written], sites.LoopSite(TRAINER, "", 0, 0, written.given), reader)

    def _is_shown_only(self, _: Any) -> bool:
        return True


def _callback(module: Any, steps: _Steps) -> Any:
    """What the Trainer calls. Its base is the framework's, which is there only now."""

    class CotenantSteps(module.TrainerCallback):  # type: ignore[misc]
        @door
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            SAVING.run(steps.begin)

        @door
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            SAVING.run(steps.begin_epoch)

        @door
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            SAVING.run(steps.begin_step)

        @door
        def on_train_end(self, *_: Any, **__: Any) -> None:
            SAVING.run(steps.end)

    return CotenantSteps()
