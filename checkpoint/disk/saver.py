"""Saves of one rank, one at a time, at once or in the background.

Rule: a save that fails harms nothing: it is reported, training goes on, older checkpoints stay. All ranks
save at the same steps, so that a step (and the number of tries at it) identifies a save.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Final

import torch

from cotenant.checkpoint.disk import layout, memory, save
from cotenant.checkpoint.disk.save import SaveOrder, SavePayload
from cotenant.checkpoint.guard import SAVING
from cotenant.checkpoint.late_log import LateLog
from cotenant.checkpoint.talk import protocol
from cotenant.checkpoint.training.snapshot import Staging, plain, reference_tensor
from cotenant.checkpoint.training.state import SavedState, tensors_sha256

EXIT_WAIT_S: Final = 600.0
"""How long a script that ended normally waits for the save it still has under way."""

log = LateLog("cotenant.checkpoint")


@dataclass(frozen=True)
class SaveTarget:
    """Where this rank saves, and as whom."""

    root: Path
    job: str
    attempt: int
    rank: int
    world_size: int
    keep: int
    idle_s_max: float


class Saver:
    """`save` returns True once the checkpoint is durable (or, in the background, once it is on its way)."""

    def __init__(self, place: SaveTarget, state: SavedState, tell: Callable[..., Any]) -> None:
        self._place = place
        self._state = state
        self._tell = tell
        self._staging = Staging()
        self._running: threading.Thread | None = None
        self._order: SaveOrder | None = None
        self._ok = False
        self._trial = 0
        self._tidies = True

    def prepare(self, own: dict[str, Any]) -> None:
        """Get the buffers for background saves ready; called once the optimizer has its state."""
        self._staging.prepare(self._gather(own))

    def save(
        self, step: int, own: dict[str, Any], manifest: Mapping[str, Any], *, wait: bool, tidy: bool = True
    ) -> bool:
        """Save the state as it is now, at a step boundary, on all ranks alike.

        Without `tidy` older checkpoints stay for the next save to delete: that takes a while, too.
        """
        self.join()
        self._tell(protocol.SAVING, step=step)
        self._tidies = tidy
        if not self._already_saved(step, wait=wait):
            again = self._order is not None and self._order.step == step
            self._trial = self._trial + 1 if again else 1
            self._order = self._new_order(step)
            try:
                self._start(self._order, own, manifest, wait)
            except Exception as error:  # noqa: BLE001  # whatever it is, training goes on
                self._note_failure(self._order, error)
        return self._ok

    def directory_of(self, step: int) -> Path:
        """Where the checkpoint of a step is, once it is durable."""
        return self._new_order(step).final

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for this rank's part of the save that is under way."""
        if self._running is not None:
            self._running.join(timeout_s)

    def finish(self) -> None:
        """Lets a save complete at the end of the process, but not after a crash (the others may be gone)."""
        crashed = getattr(sys, "last_value", None) is not None
        if not crashed:
            self.join(EXIT_WAIT_S)
            # A thread that is at work in torch when Python ends takes the process down with SIGABRT.
            self._staging.wait_prepared(EXIT_WAIT_S)

    def _new_order(self, step: int) -> SaveOrder:
        place = self._place
        return SaveOrder(
            root=place.root,
            attempt=place.attempt,
            step=step,
            trial=self._trial,
            rank=place.rank,
            world_size=place.world_size,
            idle_s_max=place.idle_s_max,
        )

    def _already_saved(self, step: int, *, wait: bool) -> bool:
        """True on all ranks or on none: where it matters, ranks other than 0 wait until they know."""
        if self._order is None or self._order.step != step:
            return False
        if self._place.rank != 0 and self._ok and wait:
            try:
                save.wait_published(self._order)
            except layout.CheckpointError:
                self._ok = False
        return self._ok

    def _gather(self, own: dict[str, Any]) -> dict[str, Any]:
        place = self._place
        parameters = place.rank == 0 or not self._state.ranks_are_alike
        return {
            "shared": self._state.shared_state() if place.rank == 0 else None,
            "own": own,
            "parameters": self._state.parameters() if parameters else {},
        }

    def _start(self, order: SaveOrder, own: dict[str, Any], manifest: Mapping[str, Any], wait: bool) -> None:
        live = self._gather(own)
        if wait:
            if self._state.on_cuda:
                torch.cuda.synchronize()  # other threads read the tensors, on streams of their own
            payload = self._payload(plain(live, reference_tensor), manifest)
            self._ok = self._run(order, payload, wait_published=True)
            return
        copied, arrived = self._staging.copy(live)
        payload = self._payload(copied, manifest)
        self._ok = True

        def run() -> None:
            memory.give_way()
            arrived()
            self._ok = self._run(order, payload, wait_published=False)

        self._running = threading.Thread(target=SAVING.door(run), name="cotenant-save", daemon=True)
        self._running.start()

    def _payload(self, tree: dict[str, Any], manifest: Mapping[str, Any]) -> SavePayload:
        return SavePayload(
            own=tree["own"],
            shared=tree["shared"],
            parameters_sha256=lambda: tensors_sha256(tree["parameters"].items()),
            compare_parameters=not self._state.ranks_are_alike and self._place.world_size > 1,
            manifest=manifest,
        )

    def _run(self, order: SaveOrder, payload: SavePayload, *, wait_published: bool) -> bool:
        try:
            save.write_own(order, payload)
            if order.rank == 0:
                self._announce(order, save.publish(order, payload))
            elif wait_published:
                save.wait_published(order)
        except Exception as error:  # noqa: BLE001  # whatever it is, training goes on
            self._note_failure(order, error)
            return False
        return True

    def _announce(self, order: SaveOrder, manifest: layout.Manifest) -> None:
        name = order.final.name
        self._tell(protocol.DURABLE, step=order.step, name=name, exact=manifest.exact, note=manifest.note)
        save.link_latest(order.root, name)
        if not self._tidies:
            return
        try:
            layout.sweep_temporaries(order.root, order.attempt, before_step=order.step)
            layout.keep_newest(order.root, order.attempt, self._place.keep)
        except OSError as error:
            log.warning("cannot tidy %s: %s", order.root, error)

    def _note_failure(self, order: SaveOrder, error: BaseException) -> None:
        self._ok = False
        log.warning(
            "the checkpoint of step %d failed: %s; training goes on, earlier checkpoints are untouched",
            order.step,
            error,
        )
        save.mark_failed(order, str(error))
        self._tell(protocol.FAILED, what="save", error=f"checkpoint of step {order.step}: {error}")


def ready(place: SaveTarget) -> str | None:
    """Make the root usable for this attempt; returns why it is not."""
    try:
        place.root.mkdir(parents=True, exist_ok=True)
        probe = place.root / f".probe-{place.rank}"
        probe.mkdir(exist_ok=True)
        shutil.rmtree(probe, ignore_errors=True)
        if place.rank == 0:
            layout.announce_reader(place.root, place.attempt)
            layout.sweep_temporaries(place.root, place.attempt)
    except OSError as error:
        return f"{error}"
    return None
