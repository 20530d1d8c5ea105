"""Progress reports: how many steps took how long, at which s, with which loss.

Rule: nothing here waits for a device. A loss on a GPU is copied in the background and reported when it has
arrived, one report later.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from cotenant.checkpoint.talk import protocol
from cotenant.checkpoint.talk.channel import SupervisorChannel


class ProgressReporter:
    """Rate-limits the `step` datagrams of one rank. Between reports a step costs one comparison."""

    def __init__(self, channel: SupervisorChannel, step: int) -> None:
        self.due_at_s = 0.0
        """When the next report is due, by `time.perf_counter()`; the first step always is."""
        self._channel = channel
        self._first = True
        self._reported_step = step
        self._reported_at_s = time.perf_counter()
        self._loss = _LossReader()

    def report(self, now_s: float, step: int, steps_used: int, loss: Any) -> None:
        """`step` steps are complete, and a report is due."""
        if self._first:
            self._first = False
            self._channel.tell(protocol.FIRST_STEP, step=step)
        self._say(step, step - self._reported_step, now_s - self._reported_at_s, steps_used, loss)
        self._reported_at_s = now_s
        self.due_at_s = now_s + protocol.STEP_REPORT_PERIOD_S

    @property
    def reported_step(self) -> int:
        return self._reported_step

    def flush(self, step: int, steps_used: int, loss: Any) -> None:
        """Say what the rate limit held back: a job that ends well is seen at its last step."""
        if step > self._reported_step:
            # No times: what lies between here and the last step was not training.
            self._say(step, 0, 0.0, steps_used, loss)

    def paused(self) -> None:
        """Time until now was not spent on steps (a save): do not count it."""
        self._reported_at_s = time.perf_counter()

    def _say(self, step: int, count: int, elapsed_s: float, steps_used: int, loss: Any) -> None:
        self._channel.report(
            protocol.STEP,
            step=step,
            count=count,
            elapsed_s=round(elapsed_s, 6),
            s=steps_used,
            loss=self._loss.read(loss),
        )
        self._reported_step = step


class _LossReader:
    """Turns a loss into a float without waiting for the device it is on."""

    def __init__(self) -> None:
        self._host: torch.Tensor | None = None
        self._arrived: torch.cuda.Event | None = None

    def read(self, loss: Any) -> float | None:
        if isinstance(loss, torch.Tensor):
            if loss.numel() != 1:
                return None
            if loss.is_cuda:
                return self._read_cuda(loss.detach())
            loss = loss.detach().item()
        if isinstance(loss, (int, float)) and math.isfinite(loss):
            return float(loss)
        return None

    def _read_cuda(self, loss: torch.Tensor) -> float | None:
        value = None
        if self._host is not None and self._arrived is not None and self._arrived.query():  # type: ignore[no-untyped-call]
            value = self.read(float(self._host.item()))
            self._host = None
        if self._host is None:
            self._host = torch.empty((), dtype=torch.float32, pin_memory=True)
            self._host.copy_(loss.reshape(()), non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()
        return value
