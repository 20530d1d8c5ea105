"""One rank of a job: counts its steps, tells its supervisor, and obeys when it is asked to save or to leave.

Rule: everything happens at a step boundary, on all ranks alike. What is saved, and how it is put back, is the
business of the two that derive from this: `session.py` for scripts that say what they consist of, and
`zerocode/` for scripts that know nothing of us.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import weakref
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Final, NoReturn

from cotenant.checkpoint import device_limit, facts, guard, late_log, resuming, unseen
from cotenant.checkpoint.disk import layout, saver
from cotenant.checkpoint.progress.loops import frames_from
from cotenant.checkpoint.progress.losses import loss_variable
from cotenant.checkpoint.talk import agreement, gang, protocol, reports
from cotenant.checkpoint.talk.channel import SupervisorChannel
from cotenant.checkpoint.training.state import SavedState

KEEP: Final = 2
IDLE_S_MAX: Final = 120.0

log = late_log.LateLog("cotenant.checkpoint")


class JobRank:
    """Counts steps and speaks with the supervisor. Without one it counts, and does nothing else."""

    _newest: ClassVar[weakref.ref[JobRank] | None] = None

    def __init__(self, state: SavedState) -> None:
        self.step = 0
        self.stopping = False
        self._env = gang.environment()
        self._state = state
        self._lineage = resuming.Lineage()
        self._loss: Any = None
        self._first = True
        self._saver: saver.Saver | None = None
        self._channel: SupervisorChannel | None = None
        self._progress: reports.ProgressReporter | None = None
        self._agreement = agreement.Agreement(can_save=False)
        self._can_open = False
        """Checkpoints can be written where they are to be."""
        self._steps_used = 0
        self._report_at_s = 0.0
        self._s_changes_at: int | None = None
        device_limit.limit_memory(self._env, state.cuda_device)
        if self._env.socket is not None:
            self._channel = SupervisorChannel(
                self._env.socket, self._env.rank, self._agreement, device_limit.SharedLimits().keep_to
            )
        self._introduction = reports.Introduction(self._channel, self._agreement, self._env)
        self._plain = self._channel is None
        """There is nobody to tell, and nowhere to save."""
        self._find_counter()
        gang.settle_at_exit()
        self._at_exit = guard.ENDING.door(self._close)
        atexit.register(self._at_exit)
        guard.REPORTING.when_off.append(self.fall_silent)

    @staticmethod
    def newest() -> JobRank | None:
        """The one that tells a supervisor of this process's steps; None: none does."""
        return None if JobRank._newest is None else JobRank._newest()

    @property
    def resumed(self) -> resuming.Resumed | None:
        """Which checkpoint this attempt started from, None for a fresh start."""
        return self._lineage.resumed

    @property
    def drives_batches(self) -> bool:
        """The loop over batches that runs now is its own: `batch` says where it is."""
        return False

    @property
    def accumulation_history(self) -> str:
        """Which s was used from which step on, in the form of COTENANT_ACCUMULATION_SCHEDULE."""
        return ",".join(f"{step}:{s}" for step, s in self._lineage.history)

    def report(self, loss: Any = None, **metrics: float) -> None:
        """The loss to show for this step (a number or a tensor with one element; it is read now and then),
        and other metrics by name, such as `val_accuracy=0.91`: numbers, at most 16 names."""
        if loss is not None:
            self._loss = loss
        if metrics and self._progress is not None:
            self._progress.note_metrics({name: float(value) for name, value in metrics.items()})

    def close(self) -> None:
        """Wait for a save under way, stop listening. Done by itself at the end of the process.

        After a call from the script the watchdog leaves it alone: it may go on without us.
        """
        self._introduction.stops_looking()
        self._close()

    def accumulation_known(self, reason: str | None) -> None:
        """What was not known when this was made: batches can be split (None), or why not."""
        self._introduction.accumulation_known(reason)

    def differs(self, note: str) -> None:
        """The resume is not exact, for a reason that only the caller can know."""
        self._lineage.differs(note)

    def cannot_resume(self, reason: str) -> None:
        """A resume from what was saved here would fail."""
        self._agreement.can_save = False
        self._introduction.cannot_resume(reason)

    def fall_silent(self, reason: str) -> None:
        """It tells no steps any more and obeys no orders; whatever else counts steps may speak."""
        JobRank._newest = None
        self.cannot_resume(reason)
        self._introduction.stops_looking()

    # For those that derive from this.

    def _introduce(self, accumulates: bool | str | None, models: list[Any], resumable_note: str) -> None:
        """Say hello, and speak for this process from now on."""
        if self._channel is None:
            return
        self._agreement.completed = self.step
        self._introduction.say(self.step, self.resumed, accumulates, models, resumable_note)
        self._progress = reports.ProgressReporter(self._channel, self.step)
        JobRank._newest = weakref.ref(self)

    def _open_checkpoints(self, root: Path, keep: int, idle_s_max: float) -> resuming.LoadedCheckpoint | None:
        """Make saves possible, and read the newest checkpoint; None: there is none.

        Raises:
            CheckpointError: going on without one would lose something.
        """
        env = self._env
        try:
            attempt = gang.attempt_of(env, root)
            place = saver.SaveTarget(
                root=root,
                job=env.job,
                attempt=attempt,
                rank=env.rank,
                world_size=env.world_size,
                keep=keep,
                idle_s_max=idle_s_max,
            )
            problem = saver.ready(place)  # before reading: older attempts delete nothing from now on
            loaded = resuming.load_newest(
                root, attempt=attempt, resume=env.resume, rank=env.rank, world_size=env.world_size
            )
        except layout.CheckpointError as error:
            self._fail_to_load(error)
        if problem is not None:
            log.warning("cannot save checkpoints in %s: %s; training goes on without", root, problem)
            self._tell(protocol.FAILED, what="save", error=f"cannot save checkpoints: {problem}")
        self._can_open = self._agreement.can_save = problem is None
        self._saver = saver.Saver(place, self._state, self._tell)
        self._plain = False
        return loaded

    def _fail_to_load(self, error: layout.CheckpointError) -> NoReturn:
        self._tell(protocol.FAILED, what="load", error=str(error))
        self.close()
        raise error

    def _take_over(self, loaded: resuming.LoadedCheckpoint, differences: list[str]) -> None:
        """The attempt goes on from a checkpoint, with these differences."""
        resumed = self._lineage.take_over(loaded.name, loaded.manifest, differences)
        if self._env.rank == 0:
            kind = "exact" if resumed.exact else f"equivalent, not exact ({resumed.note})"
            log.warning("resumed from %s at step %d: %s", resumed.name, resumed.step, kind)

    def _complete(self) -> None:
        """Completes one step of training. Runs in every step, with cold caches: every object touched here
        counts."""
        self.step = step = self.step + 1
        if self._plain:
            return
        counter = self._counter
        counter.completed = step
        if counter.last_steps != self._steps_used or self._first:
            with unseen.Unseen():
                self._steps_changed(counter.last_steps)
        channel = self._channel
        if channel is None:
            return
        now_s = perf_counter()
        if now_s >= self._report_at_s or step == self._s_changes_at:
            guard.REPORTING.run(self._report_progress, now_s)
        verdict = channel.arrive(step)
        if verdict is not agreement.StepVerdict.GO:
            self._obey(verdict)

    def _obey(self, verdict: agreement.StepVerdict) -> None:
        """Save, stop or finish: it was agreed on for this step."""
        raise NotImplementedError

    def _steps_changed(self, steps_used: int) -> None:
        """s is another one than in the step before, or there was none."""
        self._steps_used = steps_used
        self._lineage.used(steps_used, self.step - 1)
        if self._first:
            self._first = False
            self._first_step_done()

    def _first_step_done(self) -> None:
        self._find_counter()
        self._state.first_step_done()
        note = getattr(sys.modules.get("sitecustomize"), "note_modules", None)
        if note is not None:  # Of `gradaccum/startup`, unless the environment has one of its own.
            note()

    def _report_progress(self, now_s: float) -> None:
        assert self._progress is not None
        s_ends = self.step == self._s_changes_at
        with unseen.Unseen():
            self._progress.report(now_s, self.step, self._steps_used, self._current_loss(), s_ends=s_ends)
        self._report_at_s = self._progress.due_at_s
        self._s_changes_at = self._counter.change_after(self.step)

    def _save_now(self, own: dict[str, Any], *, wait: bool, tidy: bool = True) -> bool:
        """Save this rank's state, of which `own` is no other rank's."""
        assert self._saver is not None, "orders are refused where nothing can be saved"
        if not self._agreement.can_save:  # It was not yet known when this step was agreed on.
            self._tell(protocol.FAILED, what="save", error="a resume from this step would fail")
            return False
        if self._counter.before_save is not None:
            self._counter.before_save()
        if self._counter.is_equivalent:
            self._lineage.drew_in_parts()
        lineage = self._lineage.manifest_fields()
        manifest = {"job": self._env.job, "facts": self._facts(), **lineage}
        saved = self._saver.save(self.step, own, manifest, wait=wait, tidy=tidy)
        if self._progress is not None:
            self._progress.exclude_pause()
        return saved

    def _say_stopped(self) -> None:
        """The last words of a rank that has saved and leaves its devices."""
        self._tell(protocol.STOPPED, step=self.step)
        self.stopping = True
        gang.leave_together()
        self._close()

    def _close(self) -> None:
        atexit.unregister(self._at_exit)
        with contextlib.suppress(ValueError):
            guard.REPORTING.when_off.remove(self.fall_silent)
        self._introduction.end()
        if self._saver is not None:
            self._saver.finish()
        if self._progress is not None:
            self._progress.flush(self.step, self._steps_used, self._current_loss())
        if self._channel is not None:
            self._channel.close()

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

    def _tell(self, message: str, /, **fields: Any) -> None:
        if self._channel is not None:
            self._channel.tell(message, **fields)

    def _facts(self) -> dict[str, Any]:
        accumulation = gang.accumulation()
        return facts.facts_now(
            rank=self._env.rank,
            world_size=self._env.world_size,
            sub_batch=self._env.sub_batch,
            accumulation_steps=accumulation.steps_at(self.step) if accumulation is not None else 1,
            cuda=self._state.on_cuda,
        )
