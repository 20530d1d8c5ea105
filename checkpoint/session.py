"""The one object a training script makes: it resumes, counts steps, saves, and stops when asked.

Rule: everything happens at a step boundary, on all ranks alike, after the optimizer's step and before the
next forward pass. Without a root and without a supervisor this is a plain loop and touches nothing.
"""

from __future__ import annotations

import atexit
import logging
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import torch

from cotenant.checkpoint.carried import warn_of_forgotten
from cotenant.checkpoint.device_limit import SharedLimits, limit_memory
from cotenant.checkpoint.disk import saver
from cotenant.checkpoint.disk.layout import CheckpointError
from cotenant.checkpoint.disk.saver import Saver, SaveTarget
from cotenant.checkpoint.progress.loops import frames_from
from cotenant.checkpoint.progress.losses import loss_variable
from cotenant.checkpoint.resuming import Lineage, LoadedCheckpoint, Resumed, facts_now, load_newest, put_back
from cotenant.checkpoint.talk import gang, protocol
from cotenant.checkpoint.talk.agreement import Agreement, StepVerdict
from cotenant.checkpoint.talk.channel import SupervisorChannel
from cotenant.checkpoint.talk.reports import Introduction, ProgressReporter
from cotenant.checkpoint.training import data
from cotenant.checkpoint.training.data import Cursor
from cotenant.checkpoint.training.rng import Sources
from cotenant.checkpoint.training.state import Extra, TrainingState

KEEP: Final = 2
IDLE_S_MAX: Final = 120.0

log = logging.getLogger("cotenant.checkpoint")


class Session:
    """Restores the newest verified checkpoint when made; make it after DDP, optimizer and scheduler.

    model, optimizer, lr_scheduler: one object, or a list of them. scaler: a GradScaler. sampler: gets
    `set_epoch`. extra: a dict; values with state_dict/load_state_dict are saved once, random generators and
    plain values per rank (plain values are put back into the dict). root: where to save; by default
    COTENANT_CHECKPOINT_ROOT. accumulates: whether the script splits its batches, or why not.
    resumable_note: why nothing can be saved, where it is so. keep: how many checkpoints. idle_s_max: how long
    a save waits for ranks that do nothing. staging: rank 0 prepares host memory as large as the state after
    the first step, so that background saves stall training less.
    """

    _newest: ClassVar[weakref.ref[Session] | None] = None
    finishing: bool = False
    """The loop ends before all its steps are done: the job's budget is used."""
    _ends_loop: bool = False
    """The loop over steps is ours: it can end before its time."""

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        scaler: Any = None,
        sampler: Any = None,
        extra: Extra | None = None,
        *,
        root: str | Path | None = None,
        accumulates: bool | str | None = None,
        resumable_note: str = "",
        keep: int = KEEP,
        idle_s_max: float = IDLE_S_MAX,
        staging: bool = True,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.step = 0
        self.stopping = False
        self._env = gang.environment()
        self._state = TrainingState(model, optimizer, lr_scheduler, scaler, extra)
        self._sampler = sampler
        self._lineage = Lineage()
        self._cursor = Cursor(self._lineage.differs)
        self._loops = 0
        self._loss: Any = None
        self._stage = staging
        self._first = True
        self._loaded: LoadedCheckpoint | None = None
        """What a resume may have to put back twice; until the first step."""
        self._saver: Saver | None = None
        self._channel: SupervisorChannel | None = None
        self._progress: ProgressReporter | None = None
        self._agreement = Agreement(can_save=False)
        self._steps_used = 0
        self._report_at_s = 0.0
        self._s_changes_at: int | None = None
        self._stepped = False
        self._watched = self._watch_optimizers()
        limit_memory(self._env, self._state.cuda_device)
        if self._env.socket is not None:
            self._channel = SupervisorChannel(
                self._env.socket, self._env.rank, self._agreement, SharedLimits().keep_to
            )
        path = Path(root) if root is not None else self._env.root
        self._introduction = Introduction(self._channel, self._agreement, self._env)
        self._plain = self._channel is None and (path is None or not self._state.models)
        self._find_counter()
        if path is not None and self._state.models:
            self._restore(path, keep, idle_s_max)
        if self._channel is not None:
            self._agreement.completed = self.step
            self._introduction.say(self.step, self.resumed, accumulates, self._state.models, resumable_note)
            self._progress = ProgressReporter(self._channel, self.step)
            Session._newest = weakref.ref(self)
        gang.settle_at_exit()
        atexit.register(self._close)

    @staticmethod
    def newest() -> Session | None:
        """The one that tells a supervisor of this process's steps; None: none does."""
        return None if Session._newest is None else Session._newest()

    @property
    def resumed(self) -> Resumed | None:
        """Which checkpoint this attempt started from, None for a fresh start."""
        return self._lineage.resumed

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

    @property
    def accumulation_history(self) -> str:
        """Which s was used from which step on, in the form of COTENANT_ACCUMULATION_SCHEDULE."""
        return ",".join(f"{step}:{s}" for step, s in self._lineage.history)

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`, from 0."""
        if self._saver is not None and self._env.rank == 0:
            warn_of_forgotten(sys._getframe(1))
        for epoch in range(self._cursor.position.epoch, count):
            self._loops = 0
            self._find_counter()
            if self._sampler is not None and hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(epoch)
            self._cursor.start_epoch(epoch)
            yield epoch
            if self.stopping:
                raise SystemExit(0)  # the script caught our exit and went on: its peers are gone
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
            raise SystemExit(0)
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
        left = self._cursor.batches_left(loader)
        self._agreement.epoch = None if left is None else (self.step + left, len(loader))
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

    def step_done(self, loss: Any = None) -> None:
        """Ends a step in loops that do not use `batches`: call it last in the iteration, after the
        optimizer's step."""
        if loss is not None:
            self.report(loss)
        self._cursor.consume()
        self._complete()

    def report(self, loss: Any = None, **metrics: float) -> None:
        """The loss to show for this step (a number or a tensor with one element; it is read now and then),
        and other metrics by name, such as `val_accuracy=0.91`: numbers, at most 16 names."""
        if loss is not None:
            self._loss = loss
        if metrics and self._progress is not None:
            self._progress.note_metrics({name: float(value) for name, value in metrics.items()})

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
        return self._save(self._saver, wait=wait)

    def close(self) -> None:
        """Wait for a save under way, stop listening. Done by itself at the end of the process.

        After a call from the script the watchdog leaves it alone: it may go on without a Session.
        """
        self._introduction.stops_looking()
        self._close()

    def _close(self) -> None:
        atexit.unregister(self._close)
        self._introduction.end()
        if self._saver is not None:
            self._saver.finish()
        if self._progress is not None:
            self._progress.flush(self.step, self._steps_used, self._current_loss())
        if self._channel is not None:
            self._channel.close()

    # The step boundary.

    def _boundary(self) -> None:
        if self.stopping:
            raise SystemExit(0)  # the script caught our exit and went on: its peers are gone
        if not self._cursor.batch_is_open:
            return
        self._cursor.consume()
        if self._stepped or not self._watched:
            self._complete()

    def _complete(self) -> None:
        """Completes one step of training. Runs in every step, with cold caches: every object touched here
        counts."""
        self.step = step = self.step + 1
        self._stepped = False
        if self._plain:
            return
        counter = self._counter
        counter.completed = step
        if counter.last_steps != self._steps_used or self._first:
            self._steps_changed(counter.last_steps)
        channel = self._channel
        if channel is None:
            return
        now_s = time.perf_counter()
        if now_s >= self._report_at_s or step == self._s_changes_at:
            self._report_progress(now_s)
        verdict = channel.arrive(step)
        if verdict is not StepVerdict.GO:
            self._obey(channel, verdict)

    def _steps_changed(self, steps_used: int) -> None:
        """s is another one than in the step before, or there was none."""
        self._steps_used = steps_used
        self._lineage.used(steps_used, self.step - 1)
        if self._first:
            self._first_step_done()

    def _report_progress(self, now_s: float) -> None:
        assert self._progress is not None
        s_ends = self.step == self._s_changes_at
        self._progress.report(now_s, self.step, self._steps_used, self._current_loss(), s_ends=s_ends)
        self._report_at_s = self._progress.due_at_s
        self._s_changes_at = self._counter.change_after(self.step)

    def _first_step_done(self) -> None:
        self._first, self._loaded = False, None
        self._find_counter()
        self._state.first_step_done()
        note = getattr(sys.modules.get("sitecustomize"), "note_modules", None)
        if note is not None:  # Of `gradaccum/startup`, unless the environment has one of its own.
            note()
        own = self._own() if self._stage and self._saver is not None else None
        if own is not None and self._saver is not None:  # the optimizer has its state now
            self._saver.prepare(own)

    def _obey(self, channel: SupervisorChannel, verdict: StepVerdict) -> None:
        assert self._saver is not None, "orders are refused where nothing can be saved"
        finish = verdict is StepVerdict.FINISH and self._ends_loop
        # After a stop somebody waits for our devices: tidying can wait.
        stop = not finish and verdict in (StepVerdict.STOP, StepVerdict.FINISH)
        saved = self._save(self._saver, wait=stop or finish, tidy=not stop)
        self.finishing = finish and saved
        if self._progress is not None:
            self._progress.exclude_pause()
        if stop and saved:
            channel.tell(protocol.STOPPED, step=self.step)
            self.stopping = True
            gang.leave_together()
            self._close()
            raise SystemExit(0)

    def _save(self, saver_: Saver, *, wait: bool, tidy: bool = True) -> bool:
        if not self._agreement.can_save:  # It was not yet known when this step was agreed on.
            self._tell(protocol.FAILED, what="save", error="a resume from this step would fail")
            return False
        own = self._own()
        if own is None:
            return False
        lineage = self._lineage.manifest_fields()
        manifest = {"job": self._env.job, "facts": self._facts(), **lineage}
        return saver_.save(self.step, own, manifest, wait=wait, tidy=tidy)

    def _own(self) -> dict[str, Any] | None:
        """The rank's own state; None, and nothing can be saved, where `extra` holds what no checkpoint
        can."""
        try:
            return {**self._state.own(self._env.rank), "position": self._cursor.capture()}
        except CheckpointError as error:
            log.warning("nothing can be saved: %s", error)
            self._tell(protocol.FAILED, what="save", error=str(error))
            self.cannot_resume(str(error))
            return None

    def _current_loss(self) -> Any:
        """The current loss as the script or `gradaccum` has told it, else what the script keeps in a variable
        `loss`."""
        told = self._counter.last_loss if self._loss is None else self._loss
        return loss_variable(frames_from(sys._getframe(1))) if told is None else told

    def _find_counter(self) -> None:
        """Tell `gradaccum` how many steps are complete, if the script has imported it by now."""
        self._counter = gang.accumulation_counter()
        self._s_changes_at = self._counter.change_after(self.step)
        if not self._plain:
            self._counter.counted_for_us = True
            self._counter.completed = self.step

    def _watch_optimizers(self) -> bool:
        """Note each optimizer step: a batch without one (the script's own accumulation) ends no step."""

        def stepped(*_: Any) -> None:
            self._stepped = True

        watchable = [o for o in self._state.optimizers if isinstance(o, torch.optim.Optimizer)]
        for optimizer in watchable:
            optimizer.register_step_post_hook(stepped)
        return bool(watchable)

    # Resuming, and telling the supervisor.

    def _restore(self, root: Path, keep: int, idle_s_max: float) -> None:
        env = self._env
        try:
            attempt = gang.attempt_of(env, root)
            place = SaveTarget(
                root=root,
                job=env.job,
                attempt=attempt,
                rank=env.rank,
                world_size=env.world_size,
                keep=keep,
                idle_s_max=idle_s_max,
            )
            problem = saver.ready(place)  # before reading: older attempts delete nothing from now on
            loaded = load_newest(
                root, attempt=attempt, resume=env.resume, rank=env.rank, world_size=env.world_size
            )
            if loaded is not None:
                self._take(loaded)
            else:
                self._state.record_gradient_order(env.world_size)
        except CheckpointError as error:
            self._tell(protocol.FAILED, what="load", error=str(error))
            self.close()
            raise
        if problem is not None:
            log.warning("cannot save checkpoints in %s: %s; training goes on without", root, problem)
            self._tell(protocol.FAILED, what="save", error=f"cannot save checkpoints: {problem}")
        self._agreement.can_save = problem is None
        self._saver = Saver(place, self._state, self._tell)
        self._cursor.remembers = True

    def _take(self, loaded: LoadedCheckpoint) -> None:
        """Put a loaded checkpoint into the script's objects, and say what differs."""
        manifest, env = loaded.manifest, self._env
        self.step = manifest.step
        self._find_counter()  # the facts are about the step that comes next
        differences = put_back(loaded, env, self._state, self._cursor, self._facts)
        self._loaded = loaded
        resumed = self._lineage.take_over(loaded.name, manifest, differences)
        if env.rank == 0:
            kind = "exact" if resumed.exact else f"equivalent, not exact ({resumed.note})"
            log.warning("resumed from %s at step %d: %s", resumed.name, resumed.step, kind)

    def put_back_again(self) -> None:
        """All that the checkpoint holds, once more, in the middle of an epoch: what the script has just done
        for a new one was not part of it."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self._state.load(loaded.shared, loaded.own, loaded.own_is_mine)

    def accumulation_known(self, reason: str | None) -> None:
        """What was not known when the session was made: batches can be split (None), or why not."""
        self._introduction.accumulation_known(reason)

    def differs(self, note: str) -> None:
        """The resume is not exact, for a reason that only the caller can know."""
        self._lineage.differs(note)

    def epoch_ends(self, step: int, batches: int) -> None:
        """After which step the present epoch is over, and how many it has, for loops that do not use
        `batches`."""
        self._agreement.epoch = (step, batches)

    def look_into_data(self, state_of: Callable[[Any], Sources]) -> None:
        """What has state of its own in a loader, beside random generators."""
        self._cursor.sources_of = state_of

    def keep_within_epochs(self) -> None:
        """Never stop at the last step of an epoch, however short: what follows could need its last batch."""
        self._agreement.epoch_batches_min = 2

    def save_when_leaving(self) -> None:
        """Saves when the job leaves, and not now and then: there is nothing to prepare for saves in the
        background."""
        self._stage = False
        self._introduction.leaves_only()

    def cannot_resume(self, reason: str) -> None:
        """A resume from what was saved here would fail."""
        self._agreement.can_save = False
        self._introduction.cannot_resume(reason)

    def _tell(self, message: str, /, **fields: Any) -> None:
        if self._channel is not None:
            self._channel.tell(message, **fields)

    def _facts(self) -> dict[str, Any]:
        accumulation = gang.accumulation()
        return facts_now(
            world_size=self._env.world_size,
            sub_batch=self._env.sub_batch,
            accumulation_steps=accumulation.steps_at(self.step) if accumulation is not None else 1,
            cuda=self._state.on_cuda,
        )
