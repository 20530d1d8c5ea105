"""What a rank tells its supervisor: who it is, how many steps took how long, and what memory they needed.

Rule: each hello is complete: whoever heard only the last one knows everything. It promises to resume only
while a listener hears the orders.

Rule: training waits for nothing here, neither a device (a loss on a GPU is copied in the background and
reported when it has arrived, one report later) nor a supervisor, which then has less of a profile.
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any, Final

import torch

from cotenant.checkpoint.resuming import Resumed
from cotenant.checkpoint.talk import gang, memory, pace, protocol
from cotenant.checkpoint.talk.agreement import Agreement
from cotenant.checkpoint.talk.channel import SupervisorChannel

METRICS_MAX: Final = 16


class Introduction:
    """The hello of a rank to its supervisor. `channel` None: there is no supervisor, and nobody to introduce
    oneself to."""

    def __init__(
        self, channel: SupervisorChannel | None, agreement: Agreement, env: protocol.JobEnvironment
    ) -> None:
        self._channel = channel
        self._agreement = agreement
        self._env = env
        self._fields: dict[str, Any] = {}

    def say(
        self,
        step: int,
        resumed: Resumed | None,
        accumulates: bool | str | None,
        models: list[Any],
        resumable_note: str,
    ) -> None:
        """Once all that it says is known. accumulates: the script's own word, a str is why not."""
        channel = self._channel
        if channel is None:
            return
        fields: dict[str, Any] = {"world_size": self._env.world_size, "step": step}
        is_open = channel.open()
        fields["looks"] = is_open
        fields["resumable"] = is_open and self._agreement.can_save
        fields["accumulates"], fields["accumulates_note"] = _accumulates(accumulates, models)
        if resumed is not None:
            fields["resumed_from"] = resumed.name
            fields["exact"], fields["note"] = resumed.exact, resumed.note
        if not fields["resumable"] and resumable_note:
            fields["resumable_note"] = resumable_note
        channel.tell(protocol.HELLO, **fields)
        self._fields = fields

    def accumulation_known(self, reason: str | None) -> None:
        """Batches can be split (None), or why not."""
        self._correct(accumulates=reason is None, accumulates_note=reason or "")

    def cannot_resume(self, reason: str) -> None:
        self._correct(resumable=False, resumable_note=reason)

    def can_resume(self) -> None:
        """What was not known when this was said: a resume would go well."""
        self._correct(resumable=True, resumable_note="")

    def resume_proven(self, steps: int) -> None:
        """So many steps after the resume came out as in the attempt before."""
        self._correct(proven=steps)

    def leaves_only(self) -> None:
        """Says that the job need not be saved now and then."""
        self._correct(leaves_only=True)

    def stops_looking(self) -> None:
        """Makes the watchdog leave the job alone from now on."""
        if self._fields:
            self._correct(looks=False)

    def end(self) -> None:
        self._fields = {}

    def _correct(self, **fields: Any) -> None:
        if self._channel is not None and self._fields:
            self._fields.update(fields)
            self._channel.tell(protocol.HELLO, **self._fields)


def _accumulates(said: bool | str | None, models: list[Any]) -> tuple[bool, str]:
    if isinstance(said, str):
        return False, said
    accumulation = gang.accumulation()
    if said is not None or accumulation is None:
        return bool(said), ""
    reasons = [accumulation.refusal(model) for model in models]
    reason = "; ".join(reason for reason in reasons if reason)
    return not reason, reason


class ProgressReporter:
    """Rate-limits the `step` datagrams of one rank. Between reports a step costs one comparison."""

    def __init__(self, channel: SupervisorChannel, step: int) -> None:
        self.due_at_s = 0.0
        """When the next report is due, by `time.perf_counter()`; the first step always is."""
        self._channel = channel
        self._first = True
        self._reported_step = step
        self._reported_at_s = perf_counter()
        self._memory = memory.MemoryReports(channel.report, step)
        self._loss = _LossReader()
        self._metrics: dict[str, float] = {}
        self._has_new_metrics = False

    def note_metrics(self, metrics: dict[str, float]) -> None:
        """Takes metrics for the next report. What is no number (NaN) is left out, as a loss would be."""
        finite = {name[:64]: value for name, value in metrics.items() if math.isfinite(value)}
        self._metrics = dict(list({**self._metrics, **finite}.items())[-METRICS_MAX:])
        self._has_new_metrics = True

    def report(self, now_s: float, step: int, steps_used: int, loss: Any, *, s_ends: bool = False) -> None:
        """`step` steps are complete, and a report is due. s_ends: the next step uses another s: no report is
        about both."""
        steps, elapsed_s = step - self._reported_step, now_s - self._reported_at_s
        if self._first:  # No times: this session may have been made at the end of that step.
            self._first, steps, elapsed_s = False, 0, 0.0
            self._channel.tell(protocol.FIRST_STEP, step=step)
        self._say(step, steps, elapsed_s, steps_used, loss)
        self._memory.report_if_due(now_s, step, steps_used, s_ends=s_ends)
        self._reported_at_s = perf_counter() if s_ends else now_s
        self.due_at_s = now_s + protocol.STEP_REPORT_PERIOD_S

    def flush(self, step: int, steps_used: int, loss: Any) -> None:
        """Say what the rate limit held back: a job that ends well is seen at its last step."""
        if step > self._reported_step or self._has_new_metrics:
            # No times: what lies between here and the last step was not training.
            self._say(step, 0, 0.0, steps_used, loss)

    def exclude_pause(self) -> None:
        """Time until now was not spent on steps (a save): do not count it."""
        self._reported_at_s = perf_counter()
        pace.pace_here().leave_out()

    def _say(self, step: int, count: int, elapsed_s: float, steps_used: int, loss: Any) -> None:
        waited_s, longest_s = pace.pace_here().take()
        self._channel.report(
            protocol.STEP,
            step=step,
            count=count,
            elapsed_s=round(elapsed_s, 6),
            s=steps_used,
            loss=self._loss.read(loss),
            waited_s=round(waited_s, 6),
            longest_s=round(longest_s, 6),
            **({"equivalent": True} if gang.accumulation_counter().is_equivalent else {}),
            **({"metrics": self._metrics} if self._metrics else {}),
        )
        self._reported_step, self._has_new_metrics = step, False


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
