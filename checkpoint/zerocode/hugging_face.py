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

    @functools.wraps(begin)
    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        line = sys._getframe(1).f_lineno
        why = _obstacle(self)
        if why:
            begun(None, f"line {line}: the Trainer cannot be resumed: {why}")
            return begin(self, resume_from_checkpoint, *args, **kwargs)
        loaded = _newest()
        self.add_callback(_Steps(module, self, loaded, functools.partial(_told_place, begun, line)))
        if loaded is None:
            return begin(self, resume_from_checkpoint, *args, **kwargs)
        self._load_from_checkpoint = lambda *_, **__: None  # The Session puts it back, when it is made.
        self._load_rng_state = lambda *_: rng.restore(loaded.own["rng"])
        with tempfile.TemporaryDirectory(prefix="cotenant-") as folder:
            (Path(folder) / module.TRAINER_STATE_NAME).write_text(loaded.shared["extra"][STATE]["json"])
            return begin(self, folder, *args, **kwargs)

    module.Trainer.train = train


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


def _Steps(module: Any, trainer: Any, loaded: LoadedCheckpoint | None, begun: Begun) -> Any:
    """The callback that follows the Trainer's steps. Its base is the framework's, which is there only now."""

    class CotenantSteps(module.TrainerCallback):  # type: ignore[misc]
        session: Session | None = None
        under_way = False
        """A step has begun in this process."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self.session is not None:
                return  # A second train() of this Trainer.
            wrapped = trainer.model_wrapped
            optimizer = given["optimizer"]
            self.session = Session(
                wrapped if isinstance(wrapped, DistributedDataParallel) else trainer.model,
                getattr(optimizer, "optimizer", optimizer),
                given["lr_scheduler"],
                trainer.accelerator.scaler,
                extra={STATE: _Place(module, trainer)},
                accumulates=False,  # It is not known before the first step.
            )
            self.session.keep_within_epochs()
            begun(self.session, "")
            if loaded is not None and not _is_steady(trainer):
                self.session.differs("what its data draws at random is drawn anew")

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            steps = math.ceil(len(given["train_dataloader"]) / args.gradient_accumulation_steps)
            assert self.session is not None
            done = self.session.step + self.under_way
            self.session.epoch_ends(done + steps - state.global_step % steps, steps)
            if steps < STEPS_MIN:
                self.session.cannot_resume(
                    "an epoch has one step only, so it could not be stopped within one"
                )

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            assert self.session is not None
            if self.under_way:
                self.session.step_done()
            self.under_way = True

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.under_way and self.session is not None:
                self.session.step_done()
            self.under_way = False

    return CotenantSteps()


def _is_steady(trainer: Any) -> bool:
    """Whether the Trainer's batches are the same each time they are made, as far as can be known."""
    rows, collator = trainer.train_dataset, trainer.data_collator
    table = type(rows).__module__ == "datasets.arrow_dataset" and rows.format["type"] != "custom"
    return (table or isinstance(rows, STEADY)) and not getattr(collator, "mlm", False)
