"""The one object a training script makes: it resumes, counts steps, saves, and stops when asked.

Rule: everything happens at a step boundary, on all ranks alike, after the optimizer's step and before the
next forward pass. Without a root and without a supervisor this is a plain loop and touches nothing.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from cotenant.checkpoint import data, facts, layout, protocol, rng, saver
from cotenant.checkpoint.agreement import Agreement, Verdict
from cotenant.checkpoint.channel import Channel
from cotenant.checkpoint.cursor import Cursor
from cotenant.checkpoint.layout import CheckpointError
from cotenant.checkpoint.load import Loaded, load_newest
from cotenant.checkpoint.progress import Progress
from cotenant.checkpoint.saver import Place, Saver
from cotenant.checkpoint.state import Extra, TrainingState

KEEP: Final = 2
IDLE_S_MAX: Final = 120.0
LEAVE_S_MAX: Final = 30.0

log = logging.getLogger("cotenant.checkpoint")


@dataclass(frozen=True)
class Resumed:
    """Where this attempt started from. Exact: what follows equals an uninterrupted run, bit for bit."""

    name: str
    step: int
    exact: bool
    note: str


class Session:
    """Restores the newest verified checkpoint when made; make it after DDP, optimizer and scheduler.

    model, optimizer, lr_scheduler: one object, or a list of them. scaler: a GradScaler. sampler: gets
    `set_epoch`. extra: a dict; values with state_dict/load_state_dict are saved once, random generators and
    plain values per rank (plain values are put back into the dict). root: where to save; by default
    COTENANT_CHECKPOINT_ROOT. accumulates: whether the script splits its batches with `gradaccum`.
    """

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
        accumulates: bool | None = None,
        keep: int = KEEP,
        idle_s_max: float = IDLE_S_MAX,
        staging: bool = True,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.step = 0
        self.resumed: Resumed | None = None
        self.stopping = False
        self._env = _environment()
        self._state = TrainingState(model, optimizer, lr_scheduler, scaler, extra)
        self._sampler = sampler
        self._cursor = Cursor(self._differs)
        self._loops = 0
        self._loss: Any = None
        self._loss_is_theirs = False
        self._history: list[tuple[int, int]] = []
        self._notes: list[str] = []
        self._exact = True
        self._stage = staging
        self._stepped = False
        self._writable = False
        self._watched = _watch(self._state.optimizers, self)
        self._root = Path(root) if root is not None else self._env.root
        self._saver: Saver | None = None
        self._channel: Channel | None = None
        self._progress: Progress | None = None
        _limit_memory(self._env)
        self._connect()
        self._restore(keep, idle_s_max)
        self._introduce(accumulates)

    # What a script uses.

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._cursor.position.epoch

    @property
    def samples(self) -> int:
        """Samples this rank has consumed in the current epoch."""
        return self._cursor.position.samples

    @property
    def accumulation_history(self) -> str:
        """Which s was used from which step on, in the form of COTENANT_ACCUMULATION_SCHEDULE."""
        return ",".join(f"{step}:{s}" for step, s in self._history)

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`, from 0."""
        for epoch in range(self._cursor.position.epoch, count):
            self._loops = 0
            if self._sampler is not None and hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(epoch)
            self._cursor.start_epoch(epoch)
            yield epoch
            self._boundary()  # the batch loop may have been left with `break`

    def batches(self, loader: Any, skip: str = data.SKIP_AUTO) -> Iterator[Any]:
        """The batches that are left of this epoch. Asking for the next one ends a step.

        skip: how to pass what was consumed before a resume. "indices" only draws the order, "replay" loads
        and discards, "auto" replays where the loader has worker processes (they may hold random state).
        """
        if skip not in data.SKIPS:
            raise ValueError(f"skip must be one of {', '.join(data.SKIPS)}, got {skip!r}")
        if self._loops:
            raise CheckpointError(
                "one `batches` loop per epoch: iterate with `for epoch in state.epochs(n)` around it, and over "
                "other loaders (validation) directly"
            )
        self._loops += 1
        iterator = self._cursor.opened(loader, skip)
        while True:
            self._boundary()
            try:
                batch = next(iterator)
            except StopIteration:
                break
            yield self._cursor.hand_out(batch)
        self._cursor.exhaust()

    def step_done(self, loss: Any = None) -> None:
        """For loops that do not use `batches`: call it last in the iteration, after the optimizer's step."""
        if loss is not None:
            self.report(loss)
        self._cursor.consume()
        self._complete()

    def report(self, loss: Any) -> None:
        """The loss to show for this step (a number or a tensor with one element; it is read now and then)."""
        self._loss = loss
        self._loss_is_theirs = False

    def save(self, wait: bool = True) -> bool:
        """Save now; all ranks call it after the same step, last in the iteration or last in the epoch.

        True once durable, or with wait=False once on its way. False (and a warning) if it failed.
        """
        if self._saver is None:
            return False
        if self._cursor.batch_is_open:
            if self._watched and not self._stepped:
                raise CheckpointError(
                    "save() between backward() and optimizer.step(): gradients are not saved"
                )
            self.step_done()
        else:
            self._cursor.finish_epoch_early()
        return self._save(wait=wait)

    def close(self) -> None:
        """Wait for a save under way, stop listening. Called by itself at the end of the process."""
        if self._saver is not None:
            self._saver.finish()
        if self._channel is not None:
            self._channel.close()
        atexit.unregister(self.close)

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
        self.step += 1
        self._stepped = False
        if self._saver is None and self._channel is None:
            return
        steps_used = self._steps_used()
        if self._progress is not None:
            self._progress.step_done(self.step, steps_used, self._loss)
        if self._saver is not None and self._stage:
            self._stage = False
            self._saver.prepare(self._own())
        if self._channel is not None:
            verdict = self._channel.arrive(self.step)
            if verdict is not Verdict.GO:
                self._obey(verdict)

    def _obey(self, verdict: Verdict) -> None:
        saved = self._save(wait=verdict is Verdict.STOP)
        if self._progress is not None:
            self._progress.paused()
        if verdict is Verdict.STOP and saved:
            assert self._channel is not None
            self._channel.tell(protocol.STOPPED, step=self.step)
            self.stopping = True
            _leave_process_group()
            self.close()
            raise SystemExit(0)

    def _save(self, *, wait: bool) -> bool:
        assert self._saver is not None
        manifest = {
            "job": self._env.job,
            "facts": self._facts(),
            "history": tuple(self._history),
            "exact": self._exact,
            "note": "; ".join(self._notes),
        }
        return self._saver.save(self.step, self._own(), manifest, wait=wait)

    def _own(self) -> dict[str, Any]:
        return {**self._state.own(self._env.rank), "position": self._cursor.capture()}

    def _steps_used(self) -> int:
        accumulation = _accumulation()
        steps_used = 1
        if accumulation is not None:
            steps_used = accumulation.last_steps()
            accumulation.set_completed(self.step)
            if self._loss is None or self._loss_is_theirs:
                self._loss = accumulation.last_loss()
                self._loss_is_theirs = True
        if not self._history or self._history[-1][1] != steps_used:
            self._history.append((self.step - 1, steps_used))
        return steps_used

    # Resuming.

    def _restore(self, keep: int, idle_s_max: float) -> None:
        if self._root is None or not self._state.models:
            return
        env = self._env
        if env.world_size > 1 and not (dist.is_available() and dist.is_initialized()):
            raise CheckpointError("make the Session after torch.distributed.init_process_group")
        try:
            attempt = _attempt(env, self._root)
            loaded = load_newest(
                self._root, attempt=attempt, resume=env.resume, rank=env.rank, world_size=env.world_size
            )
            if loaded is not None:
                self._take(loaded)
        except CheckpointError as error:
            self._tell(protocol.FAILED, what="load", error=str(error))
            raise
        place = Place(
            root=self._root,
            job=env.job,
            attempt=attempt,
            rank=env.rank,
            world_size=env.world_size,
            keep=keep,
            idle_s_max=idle_s_max,
        )
        problem = saver.ready(place)
        if problem is not None:
            log.warning("cannot save checkpoints in %s: %s; training goes on without", self._root, problem)
            self._tell(protocol.FAILED, what="save", error=f"cannot save checkpoints: {problem}")
        self._writable = problem is None
        self._saver = Saver(place, self._state, self._tell)
        self._cursor.remembers = True
        atexit.register(self.close)

    def _take(self, loaded: Loaded) -> None:
        """Put a loaded checkpoint into the script's objects, and say what differs."""
        manifest, own = loaded.manifest, loaded.own
        self.step = manifest.step
        self._history = list(manifest.history)
        notes = self._state.load(loaded.shared, own, loaded.own_is_mine)
        accumulation = _accumulation()
        if accumulation is not None:
            accumulation.set_completed(self.step)
        notes.extend(facts.differences(manifest.facts, self._facts()))
        if self._state.on_cuda and not torch.are_deterministic_algorithms_enabled():
            notes.append(facts.CUDA_NOTE)
        if manifest.world_size == self._env.world_size:
            self._cursor.resume(own["position"], own["rng"])
            notes.extend(rng.restore(own["rng"]))
        else:
            self._cursor.resume_resharded(own["position"], manifest.world_size, self._env.world_size)
            rng.reseed(own["rng"], self._env.rank, self._env.world_size)
        note = "; ".join(notes)
        self.resumed = Resumed(name=loaded.name, step=self.step, exact=not notes, note=note)
        self._exact = manifest.exact and not notes
        self._notes = [manifest.note] if manifest.note else []
        if notes:
            self._notes.append(f"resumed from {loaded.name} with differences: {note}")
        if self._env.rank == 0:
            kind = "exact" if not notes else f"equivalent, not exact ({note})"
            log.warning("resumed from %s at step %d: %s", loaded.name, self.step, kind)

    def _differs(self, note: str) -> None:
        if self.resumed is None:
            return
        self._exact = False
        self._notes.append(note)
        self.resumed = Resumed(
            name=self.resumed.name,
            step=self.resumed.step,
            exact=False,
            note="; ".join(filter(None, [self.resumed.note, note])),
        )
        log.warning("the resume from %s is equivalent, not exact: %s", self.resumed.name, note)

    # Talking to the supervisor.

    def _connect(self) -> None:
        if self._env.socket is None:
            return
        self._agreement = Agreement(can_save=False)
        self._channel = Channel(self._env.socket, self._env.rank, self._agreement)

    def _introduce(self, accumulates: bool | None) -> None:
        """Say hello, once all that it says is known."""
        if self._channel is None:
            return
        self._agreement.completed = self.step
        self._agreement.can_save = self._saver is not None and self._writable
        listening = self._channel.open()
        resumable = listening and self._agreement.can_save
        fields: dict[str, Any] = {
            "world_size": self._env.world_size,
            "step": self.step,
            "resumable": resumable,
        }
        fields["accumulates"], reason = self._accumulates(accumulates)
        if reason:
            fields["accumulates_note"] = reason
        if self.resumed is not None:
            fields.update(resumed_from=self.resumed.name, exact=self.resumed.exact, note=self.resumed.note)
        self._channel.tell(protocol.HELLO, **fields)
        self._progress = Progress(self._channel, self.step)

    def _accumulates(self, said: bool | None) -> tuple[bool, str]:
        accumulation = _accumulation()
        if said is not None or accumulation is None:
            return bool(said), ""
        reasons = [accumulation.refusal(model) for model in self._state.models]
        reason = "; ".join(r for r in reasons if r)
        return not reason, reason

    def _tell(self, name: str, **fields: Any) -> None:
        if self._channel is not None:
            self._channel.tell(name, **fields)

    def _facts(self) -> dict[str, Any]:
        accumulation = _accumulation()
        return facts.current(
            world_size=self._env.world_size,
            sub_batch=self._env.sub_batch,
            accumulation_steps=accumulation.steps_at(self.step) if accumulation is not None else 1,
            cuda=self._state.on_cuda,
        )


def _environment() -> protocol.Environment:
    env = protocol.Environment.read(os.environ)
    if env.protocol > protocol.PROTOCOL_VERSION:
        log.warning(
            "COTENANT_PROTOCOL=%d, this cotenant speaks %d: running as a plain script; upgrade it in this environment",
            env.protocol,
            protocol.PROTOCOL_VERSION,
        )
        env = replace(env, socket=None, root=None)
    if dist.is_available() and dist.is_initialized():
        env = replace(env, rank=dist.get_rank(), world_size=dist.get_world_size())
    return env


def _attempt(env: protocol.Environment, root: Path) -> int:
    """The supervisor's number; for a plain script with a root the next one that is free."""
    if env.attempt is not None:
        return env.attempt
    box = [layout.newest_reader(root) + 1 if env.rank == 0 else 0]
    if env.world_size > 1:
        dist.broadcast_object_list(box, src=0)
    return box[0]


def _accumulation() -> Any:
    """`cotenant.gradaccum`, if the script has imported it: the two packages do not import each other."""
    return sys.modules.get(f"{__package__.rpartition('.')[0]}.gradaccum")


def _watch(optimizers: list[Any], session: Session) -> bool:
    """Note each optimizer step: a batch that ends without one (the script's own accumulation) is no boundary."""

    def stepped(*_: Any) -> None:
        session._stepped = True

    watchable = [o for o in optimizers if isinstance(o, torch.optim.Optimizer)]
    for optimizer in watchable:
        optimizer.register_step_post_hook(stepped)
    return bool(watchable)


def _limit_memory(env: protocol.Environment) -> None:
    if env.memory_fraction is not None and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(env.memory_fraction)


def _leave_process_group() -> None:
    """All ranks are here. Meet once more, so that nobody's peer is gone while it still shuts down."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    try:
        if dist.get_backend() == "gloo":
            dist.monitored_barrier(timeout=timedelta(seconds=LEAVE_S_MAX))
        else:
            dist.barrier()
    except RuntimeError as error:
        log.warning("the other ranks did not leave together with this one: %s", error)
    dist.destroy_process_group()
