"""Hugging Face's Trainer, saved and resumed by a Session through the Trainer's own callbacks and position.

Rule: the Trainer keeps its loop. A `trainer_state.json` tells it where to go on, as one of its own checkpoint
folders would; the Session puts back model, optimizer, scheduler and random numbers from the job's
checkpoints. A step counts as done when the next one begins: what the Trainer logs, evaluates and saves after
it belongs to it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from cotenant.checkpoint.guard import SAVING, door
from cotenant.checkpoint.resuming import LoadedCheckpoint, load_newest
from cotenant.checkpoint.session import Session
from cotenant.checkpoint.talk import gang
from cotenant.checkpoint.training import rng

Begun = Callable[[Any, str], None]
"""Gets the Session, or None and the reason why there is none."""
STATE: Final = "trainer state"
"""Among what a checkpoint holds beside model and optimizer."""
STEPS_MIN: Final = 2
"""Of an epoch: it is never stopped after the last one."""
STEADY: Final = (list, tuple, TensorDataset)
"""Data sets whose rows are the same each time."""


def watch(when_imported: Any, begun: Begun) -> None:
    when_imported("transformers.trainer", lambda module: _drive(module, begun))


def _drive(module: Any, begun: Begun) -> None:
    begin = module.Trainer.train

    @door
    @functools.wraps(begin)
    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        folder = SAVING.run(_follow, module, self, begun, sys._getframe(1).f_lineno)
        if folder is None:
            return begin(self, resume_from_checkpoint, *args, **kwargs)
        with folder:
            return begin(self, folder.name, *args, **kwargs)

    module.Trainer.train = train


def _follow(module: Any, trainer: Any, begun: Begun, line: int) -> tempfile.TemporaryDirectory[str] | None:
    """Follows a Trainer's steps, where it could go on at one of them. Returns the folder that it goes on
    from; None: it begins as it would."""
    why = _obstacle(trainer)
    if why:
        begun(None, f"line {line}: the Trainer cannot be resumed: {why}")
        return None
    loaded = _newest()
    steps = _Steps(module, trainer, loaded, functools.partial(_told_place, begun, line))
    trainer.add_callback(_callback(module, steps))
    if loaded is None:
        return None
    own = loaded.own

    @door
    def put_back_later(*_: Any, **__: Any) -> None:
        """The Session puts it back, when it is made."""

    @door
    def put_random_numbers_back(*_: Any) -> None:
        SAVING.is_needed = True  # Others would be a wrong state.
        SAVING.run(rng.restore, own["rng"])
        SAVING.is_needed = False

    trainer._load_from_checkpoint, trainer._load_rng_state = put_back_later, put_random_numbers_back
    folder = tempfile.TemporaryDirectory(prefix="cotenant-")
    (Path(folder.name) / module.TRAINER_STATE_NAME).write_text(loaded.shared["extra"][STATE]["json"])
    return folder


def _told_place(begun: Begun, line: int, session: Session | None, why: str) -> None:
    begun(session, f"line {line}: the Trainer cannot be resumed: {why}" if why else "")


def _obstacle(trainer: Any) -> str:
    """Why it could not go on where it was stopped; empty if it can."""
    options = trainer.args
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return "each rank holds another part of the state (DeepSpeed, FSDP)"
    if options.ignore_data_skip or options.auto_find_batch_size:
        return "ignore_data_skip or auto_find_batch_size: it would not find its place in the data"
    if options.n_gpu > 1:
        return "DataParallel over several GPUs in one process"
    if not hasattr(trainer.train_dataset, "__len__"):
        return "its data set does not say its length"
    return ""


def _newest() -> LoadedCheckpoint | None:
    env = gang.environment()
    if env.root is None:
        return None
    attempt = gang.attempt_of(env, env.root)
    return load_newest(env.root, attempt=attempt, resume=env.resume, rank=env.rank, world_size=env.world_size)


class _Place:
    """Where the Trainer is, for the checkpoint: as it writes it down itself."""

    def __init__(self, module: Any, trainer: Any) -> None:
        self._kind = module.ExportableState
        self._trainer = trainer

    def state_dict(self) -> dict[str, str]:
        state, handler = self._trainer.state, self._trainer.callback_handler
        for each in (*handler.callbacks, self._trainer.control):
            if isinstance(each, self._kind):
                state.stateful_callbacks[type(each).__name__] = each.state()
        return {"json": json.dumps(dataclasses.asdict(state), sort_keys=True)}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Does nothing: the Trainer was told its place before it began."""


class _Steps:
    """Follows the Trainer's steps with a Session."""

    def __init__(self, module: Any, trainer: Any, loaded: LoadedCheckpoint | None, begun: Begun) -> None:
        self._module, self._trainer, self._loaded, self._begun = module, trainer, loaded, begun
        self._session: Session | None = None
        self._is_under_way = False
        """A step has begun in this process."""

    def begin(self, given: dict[str, Any]) -> None:
        if self._session is not None:
            return  # A second train() of this Trainer.
        trainer, optimizer = self._trainer, given["optimizer"]
        wrapped = trainer.model_wrapped
        self._session = session = Session(
            wrapped if isinstance(wrapped, DistributedDataParallel) else trainer.model,
            getattr(optimizer, "optimizer", optimizer),
            given["lr_scheduler"],
            trainer.accelerator.scaler,
            extra={STATE: _Place(self._module, trainer)},
            accumulates=False,  # It is not known before the first step.
        )
        SAVING.when_off.append(session.fall_silent)
        session.keep_within_epochs()
        self._begun(session, "")
        if self._loaded is not None and not _is_steady(trainer):
            session.differs("what its data draws at random is drawn anew")

    def begin_epoch(self, args: Any, state: Any, given: dict[str, Any]) -> None:
        steps = math.ceil(len(given["train_dataloader"]) / args.gradient_accumulation_steps)
        assert self._session is not None
        done = self._session.step + self._is_under_way
        self._session.epoch_ends(done + steps - state.global_step % steps, steps)
        if steps < STEPS_MIN:
            self._session.cannot_resume("an epoch has one step only, so it could not be stopped within one")

    def begin_step(self) -> None:
        self.end()
        self._is_under_way = True

    def end(self) -> None:
        if self._is_under_way and self._session is not None:
            self._session.step_done()
        self._is_under_way = False


def _callback(module: Any, steps: _Steps) -> Any:
    """What the Trainer calls. Its base is the framework's, which is there only now."""

    class CotenantSteps(module.TrainerCallback):  # type: ignore[misc]
        @door
        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            SAVING.run(steps.begin, given)

        @door
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            SAVING.run(steps.begin_epoch, args, state, given)

        @door
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            SAVING.run(steps.begin_step)

        @door
        def on_train_end(self, *_: Any, **__: Any) -> None:
            SAVING.run(steps.end)

    return CotenantSteps()


def _is_steady(trainer: Any) -> bool:
    """Whether the Trainer's batches are the same each time they are made, as far as can be known."""
    rows, collator = trainer.train_dataset, trainer.data_collator
    table = type(rows).__module__ == "datasets.arrow_dataset" and rows.format["type"] != "custom"
    return (table or isinstance(rows, STEADY)) and not getattr(collator, "mlm", False)
