"""The one object a training script makes: it resumes, counts steps, saves, and stops when asked.

Rule: everything happens at a step boundary, on all ranks alike, after the optimizer's step and before the
next forward pass. Without a root and without a supervisor this is a plain loop and touches nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from cotenant.checkpoint import carried, guard, late_log, rank, resuming
from cotenant.checkpoint.disk.layout import CheckpointError
from cotenant.checkpoint.talk import agreement, gang, protocol
from cotenant.checkpoint.training import data, state

log = late_log.LateLog("cotenant.checkpoint")


class Session(rank.JobRank):
    """Restores the newest verified checkpoint when made; make it after DDP, optimizer and scheduler.

    model, optimizer, lr_scheduler: one object, or a list of them. scaler: a GradScaler. sampler: gets
    `set_epoch`. extra: a dict; values with state_dict/load_state_dict are saved once, random generators and
    plain values per rank (plain values are put back into the dict). root: where to save; by default
    COTENANT_CHECKPOINT_ROOT. accumulates: whether the script splits its batches, or why not.
    resumable_note: why nothing can be saved, where it is so. keep: how many checkpoints. idle_s_max: how long
    a save waits for ranks that do nothing. staging: rank 0 prepares host memory as large as the state after
    the first step, so that background saves stall training less.
    """

    finishing: bool = False
    """The loop ends before all its steps are done: the job's budget is used."""
    _ends_loop: bool = False
    """The loop over steps is ours: it can end before its time."""
    _batches_a_step: int = 1
    """As the script's own accumulation had it last."""
    _batches_since_step: int = 0
    _epoch_batches: int | None = None
    """None: the loader does not know."""

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        scaler: Any = None,
        sampler: Any = None,
        extra: state.Extra | None = None,
        *,
        root: str | Path | None = None,
        accumulates: bool | str | None = None,
        resumable_note: str = "",
        keep: int = rank.KEEP,
        idle_s_max: float = rank.IDLE_S_MAX,
        staging: bool = True,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        training = state.TrainingState(model, optimizer, lr_scheduler, scaler, extra)
        super().__init__(training)
        self._training = training
        self._sampler = sampler
        self._cursor = data.Cursor(self._lineage.differs)
        self._loops = 0
        self._stage = staging
        self._stepped = False
        self._watched = self._watch_optimizers()
        path = Path(root) if root is not None else self._env.root
        if path is not None and training.models:
            self._restore(path, keep, idle_s_max)
        self._introduce(accumulates, training.models, resumable_note)

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._cursor.position.epoch

    @property
    def batch(self) -> int:
        """Batches this rank has consumed in the current epoch; negative if it is not known yet."""
        return self._cursor.position.batch

    @property
    def drives_batches(self) -> bool:
        """The loop over batches that runs now is its own: `batch` says where it is."""
        return self._loops > 0

    @property
    def samples(self) -> int:
        """Samples this rank has consumed in the current epoch, as far as the loader knows its batch size."""
        return self._cursor.samples

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`, from 0."""
        if self._saver is not None and self._env.rank == 0:
            guard.REPORTING.run(carried.warn_of_forgotten, sys._getframe(1))
        for epoch in range(self._cursor.position.epoch, count):
            self._loops = 0
            self._find_counter()
            if self._sampler is not None and hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(epoch)
            self._cursor.start_epoch(epoch)
            yield epoch
            if self.stopping:
                raise guard.AttemptEnds(0)  # the script caught our exit and went on: its peers are gone
            if self._cursor.batch_is_open:  # Its loop was left with `break`: it wants no more of this epoch.
                self._cursor.leave_epoch()
                if self._stepped or not self._watched:
                    self._complete()
            if self.finishing:
                break
        gang.settle()

    def iterations(self, count: int) -> Iterator[int]:
        """The steps that are left of `count`, from 0, of a loop that draws its batches by itself."""
        self._ends_loop = True
        for number in range(self._cursor.position.epoch, count):
            self._agreement.epoch = (self.step + count - number, count)
            self._cursor.start_epoch(number)
            yield number
            self._cursor.start_epoch(number + 1)
            if self._stepped or not self._watched:
                self._complete()
            if self.finishing:
                break
        gang.settle()

    def batches(self, loader: Any, skip: str = data.SKIP_AUTO) -> Iterator[Any]:
        """The batches that are left of this epoch. Asking for the next one ends a step.

        skip: how to pass what was consumed before a resume. "indices" only draws the order, "replay" loads
        and discards, "auto" replays where the loader has worker processes (they may hold random state).
        """
        if skip not in data.SKIPS:
            raise ValueError(f"skip must be one of {', '.join(data.SKIPS)}, got {skip!r}")
        if self.stopping:
            raise guard.AttemptEnds(0)
        if self._loops:
            if self.finishing:
                return
            raise CheckpointError(
                "one `batches` loop per epoch: put `for epoch in state.epochs(n)` around it, and iterate "
                "over other loaders (validation) directly"
            )
        self._loops += 1
        self._ends_loop = True
        self._check_rows(loader)
        iterator = self._cursor.open_epoch(loader, skip)
        self._epoch_batches = len(loader) if hasattr(loader, "__len__") else None
        self._foresee_end(self.step)
        cursor = self._cursor
        for batch in iterator:
            cursor.batch_is_open = True
            yield batch
            self._boundary()
            if self.finishing:
                break
        self._cursor.exhaust()

    def _check_rows(self, loader: Any) -> None:
        """An elastic job's steps are of the same batch on any number of workers, or it does not train."""
        wanted, rows = self._env.step_batch, data.rows_of(loader)
        if wanted is None or rows is None or rows[0] * self._env.world_size == wanted[0] * wanted[1]:
            return
        error = (
            f"a step has {rows[0]} x {self._env.world_size} rows here, and {wanted[0]} x {wanted[1]} as this "
            f"elastic job was submitted (--batch-size {wanted[0]}): make the loader with "
            "batch_size=cotenant.gradaccum.batch_size(ROWS)"
        )
        self._tell(protocol.FAILED, what="load", error=error)
        raise CheckpointError(error)

    def _foresee_end(self, step: int) -> None:
        """Tells the agreement which step after `step` is the last one of the epoch. None is where its last
        batches make no whole step: what follows the loop finds what they have left."""
        batches, each = self._epoch_batches, self._batches_a_step
        epoch = None
        if batches is not None and (batches - self._cursor.position.batch) % each == 0:
            last = step + (batches - self._cursor.position.batch) // each
            epoch = last, max(1, batches // each)
        self._agreement.epoch = epoch

    def step_done(self, loss: Any = None) -> None:
        """Ends a step in loops that do not use `batches`: call it last in the iteration, after the
        optimizer's step."""
        if loss is not None:
            self.report(loss)
        self._consume()
        self._complete()

    def save(self, wait: bool = True) -> bool:
        """Saves now; all ranks call it after the same step, last in the iteration or last in the epoch.

        Returns True once the checkpoint is durable, or with wait=False once it is on its way. Returns False
        (and warns) if it failed.
        """
        if self._saver is None:
            return False
        if self._cursor.batch_is_open:
            if self._watched and not self._stepped:
                raise CheckpointError("save() before optimizer.step(): gradients are not saved")
            self.step_done()
        else:
            self._cursor.finish_epoch_early()
        return self._save(wait=wait)

    # The step boundary.

    def _boundary(self) -> None:
        if self.stopping:
            raise guard.AttemptEnds(0)  # the script caught our exit and went on: its peers are gone
        if not self._cursor.batch_is_open:
            return
        self._consume()
        if self._stepped or not self._watched:
            self._complete()

    def _consume(self) -> None:
        self._cursor.consume()
        self._batches_since_step += 1

    def _complete(self) -> None:
        self._stepped = False
        taken, self._batches_since_step = self._batches_since_step, 0
        if taken and taken != self._batches_a_step:
            self._batches_a_step = taken
            self._foresee_end(self.step + 1)
        super()._complete()

    def _first_step_done(self) -> None:
        super()._first_step_done()
        own = self._own() if self._stage and self._saver is not None else None
        if own is not None and self._saver is not None:  # the optimizer has its state now
            self._saver.prepare(own)

    def _obey(self, verdict: agreement.StepVerdict) -> None:
        finish = verdict is agreement.StepVerdict.FINISH and self._ends_loop
        # After a stop somebody waits for our devices: tidying can wait.
        stop = not finish and verdict in (agreement.StepVerdict.STOP, agreement.StepVerdict.FINISH)
        saved = self._save(wait=stop or finish, tidy=not stop)
        self.finishing = finish and saved
        if stop and saved:
            self._say_stopped()
            raise guard.AttemptEnds(0)

    def _save(self, *, wait: bool, tidy: bool = True) -> bool:
        own = self._own()
        return own is not None and self._save_now(own, wait=wait, tidy=tidy)

    def _own(self) -> dict[str, Any] | None:
        """The rank's own state; None, and nothing can be saved, where `extra` holds what no checkpoint
        can."""
        try:
            return {**self._training.own(self._env.rank), "position": self._cursor.capture()}
        except CheckpointError as error:
            log.warning("nothing can be saved: %s", error)
            self._tell(protocol.FAILED, what="save", error=str(error))
            self.cannot_resume(str(error))
            return None

    def _watch_optimizers(self) -> bool:
        """Note each optimizer step: a batch without one (the script's own accumulation) ends no step."""

        def stepped(*_: Any) -> None:
            self._stepped = True

        watchable = [o for o in self._training.optimizers if isinstance(o, torch.optim.Optimizer)]
        for optimizer in watchable:
            optimizer.register_step_post_hook(stepped)
        return bool(watchable)

    # Resuming, and telling the supervisor.

    def _restore(self, root: Path, keep: int, idle_s_max: float) -> None:
        loaded = self._open_checkpoints(root, keep, idle_s_max)
        try:
            if loaded is not None:
                self._take(loaded)
            else:
                self._training.record_gradient_order(self._env.world_size)
        except CheckpointError as error:
            self._fail_to_load(error)
        self._cursor.remembers = True

    def _take(self, loaded: resuming.LoadedCheckpoint) -> None:
        """Put a loaded checkpoint into the script's objects, and say what differs."""
        self.step = loaded.manifest.step
        self._find_counter()  # the facts are about the step that comes next
        self._take_over(
            loaded, resuming.put_back(loaded, self._env, self._training, self._cursor, self._facts)
        )
