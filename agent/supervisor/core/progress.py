"""What the ranks of one host have said so far, as a `Status`, and when to send and store it. Rule: facts
only; nothing here decides. A rank may repeat itself, and messages of different ranks come in any order, so it
keeps every fact per rank or as a maximum. It reports facts at once, progress about once a second. What an
agent that comes back late must know (a step was
agreed on, a save is durable) is on disk before anything else happens; the count of steps is only written now
and then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from math import inf
from statistics import median
from typing import Final

import msgspec

from cotenant.agent.ipc.records import Durable, Order, Status, StepClock
from cotenant.agent.supervisor.core import edge, rank_messages
from cotenant.agent.supervisor.core.printed import LOSS
from cotenant.controller.domain import METRICS_MAX, JobMetric, Parts, SeenLength, shared_by_all, texts
from cotenant.controller.performance import SeenBatch

REPORTS_KEPT: Final = 31
DURABLES_KEPT: Final = 4
FAILURES_KEPT: Final = 8
PARTS_KEPT: Final = 32
FAILURE_CHARS: Final = 300
PUBLISH_PERIOD_S: Final = 1.0
KEEP_PERIOD_S: Final = 15.0
NOBODY: Final = 1 << 30
"""Behind every rank: none has said it yet."""


class RankProgress:
    """Collects what the ranks say of their progress; `status` is what the agent gets."""

    def __init__(self, order: Order) -> None:
        self.status = Status(job_id=order.job_id, attempt=order.attempt, step=order.start.resume_step)
        self.hellos: dict[int, rank_messages.RankHello] = {}
        self.steps: dict[int, int] = {}
        self._step_times: deque[float] = deque(maxlen=REPORTS_KEPT)
        self._loss_rank = self._length_rank = self._batch_rank = self._clock_rank = NOBODY
        self._parts_rank = NOBODY
        self._told_names: set[str] = set()
        """Metrics that a rank has told."""
        self._memory_mib_peak: float | None = None

    def change(self, **fields: object) -> bool:
        """Set fields of the status; whether anything is different now."""
        changed = any(getattr(self.status, name) != value for name, value in fields.items())
        if changed:
            self.status = msgspec.structs.replace(self.status, **fields)
        return changed

    def hello(self, word: rank_messages.RankHello, ranks_expected: int) -> bool:
        """The whole host can resume if every one of its ranks can. Until all have spoken it is not known."""
        self.hellos[word.rank] = word
        self._note_step(word.rank, word.step)
        words = self.hellos.values()
        if not all(each.resumable for each in words):
            resumable: bool | None = False
        else:
            resumable = True if len(self.hellos) >= ranks_expected else None
        first = self.hellos[min(self.hellos)]
        return self.change(
            resumable=resumable,
            capabilities=shared_by_all(each.capabilities for each in words),
            start_step=first.step,
            exact=None if first.exact is None else all(each.exact is not False for each in words),
            note=next((each.note for each in words if each.note), ""),
            step=max(self.status.step, word.step),
        )

    def first_step(self, word: rank_messages.FirstStepReached) -> bool:
        self._note_step(word.rank, word.step)
        if self.status.first_step is not None:
            return False
        return self.change(first_step=word.step, watched=False, step=max(self.status.step, word.step))

    def step(self, word: rank_messages.StepDone) -> bool:
        """Takes the progress of a rank; a step is not worth a durable record by itself."""
        self._note_step(word.rank, word.step)
        if word.count > 0 and word.elapsed_s > 0.0:
            self._step_times.append(word.elapsed_s / word.count)
        fields: dict[str, object] = {"step": max(self.status.step, word.step), "step_s": self.step_s}
        if word.count > 0 and word.rank <= self._clock_rank:
            clock, self._clock_rank = self.status.clock, word.rank
            fields["clock"] = StepClock(
                steps=clock.steps + word.count,
                elapsed_s=clock.elapsed_s + word.elapsed_s,
                waited_s=clock.waited_s + word.waited_s,
                longest_s=word.longest_s,
            )
        if word.rank <= self._loss_rank and word.loss is not None:
            self._loss_rank = word.rank
            fields["loss"] = word.loss
        changed = self.change(**fields)
        changed |= self._note_parts(word)
        if word.rank > self._loss_rank:
            return changed
        told = word.metrics if word.loss is None else {**word.metrics, LOSS: word.loss}
        self._told_names |= told.keys()
        return self._note_metrics(told) or changed

    def _note_parts(self, word: rank_messages.StepDone) -> bool:
        """All ranks use the same s; those of the lowest change it in order."""
        if word.rank > self._parts_rank:
            return False
        self._parts_rank = word.rank
        parts = self.status.words.parts
        if not parts or parts[-1].s != word.s:
            parts = (*parts, Parts(from_step=max(0, word.step - max(1, word.count)), s=word.s))[-PARTS_KEPT:]
        drew = word.equivalent or self.status.words.is_equivalent
        return self._change_words(parts=parts, is_equivalent=drew)

    def note_printed(self, metrics: Iterable[tuple[str, float]]) -> bool:
        """What is printed counts for names that no rank tells."""
        printed = {name: value for name, value in metrics if name not in self._told_names}
        is_news = self.change(loss=printed.get(LOSS, self.status.loss))
        return self._note_metrics(printed) or is_news

    def _note_metrics(self, told: Mapping[str, float]) -> bool:
        """Keeps the newest names, each with the step at which its value came."""
        known = {each.name: each for each in self.status.words.metrics}
        for name, value in told.items():
            if name not in known or known[name].value != value:
                known.pop(name, None)
                known[name] = JobMetric(name=name, value=value, step=self.status.step)
        return self._change_words(metrics=tuple(known.values())[-METRICS_MAX:])

    def note_link(self, link: str) -> bool:
        """The first counts."""
        return bool(link) and not self.status.words.link and self._change_words(link=link)

    def note_lost(self, lost: str) -> bool:
        """What of the output is not kept; whether that is news: how much it is by now is none."""
        is_news = bool(lost) and not self.status.words.lost
        self._change_words(lost=texts.one_line(lost)[:FAILURE_CHARS])
        return is_news

    def _change_words(self, **fields: object) -> bool:
        return self.change(words=msgspec.structs.replace(self.status.words, **fields))

    def length(self, word: rank_messages.LengthSeen) -> bool:
        """The lowest rank's word counts: all make the same steps."""
        if word.rank > self._length_rank:
            return False
        self._length_rank = word.rank
        note = texts.one_line(word.note)[:FAILURE_CHARS]
        return self.change(length=SeenLength(steps=word.total or None, note=note))

    def batch(self, word: rank_messages.BatchSeen) -> bool:
        """The lowest rank's word counts here as well: its steps are those that are measured."""
        if word.rank > self._batch_rank:
            return False
        self._batch_rank = word.rank
        return self.change(batch=SeenBatch(rows=word.rows, note=texts.one_line(word.note)[:FAILURE_CHARS]))

    def durable(self, word: rank_messages.DurableSaid) -> bool:
        new = Durable(step=word.step, name=word.name, exact=word.exact)
        if new in self.status.durable:
            return False
        kept = sorted((*self.status.durable, new), key=lambda each: each.step)[-DURABLES_KEPT:]
        return self.change(durable=tuple(kept), saving=False)

    def note_failure(self, word: rank_messages.RankFailed) -> bool:
        self.note(f"{word.what}: {word.error}")
        if word.what == "accumulate":  # What it said it could do, it cannot: a later word counts.
            can = self.status.capabilities.forbid_splitting(word.error[:FAILURE_CHARS])
            self.change(capabilities=can)
        if word.what == "resume":
            self.change(went_otherwise=texts.one_line(" ".join(word.error.split()))[:FAILURE_CHARS])
        return self.change(saving=False) if word.what == "save" else True

    def note(self, text: str) -> None:
        """Something went wrong that does not end the attempt."""
        line = texts.one_line(" ".join(text.split()))[:FAILURE_CHARS]
        self.change(failed=(*self.status.failed, line)[-FAILURES_KEPT:])

    def note_sample(self, memory_mib: float | None, duty_cycle: float | None) -> bool:
        if memory_mib is not None:
            self._memory_mib_peak = max(memory_mib, self._memory_mib_peak or 0.0)
        return self.change(memory_mib=self._memory_mib_peak, duty_cycle=duty_cycle)

    @property
    def steps_measured(self) -> int:
        """How many reports `step_s` is the median of."""
        return len(self._step_times)

    @property
    def step_s(self) -> float | None:
        return median(self._step_times) if self._step_times else None

    def is_durable_at(self, step: int) -> bool:
        return any(each.step == step for each in self.status.durable)

    def _note_step(self, rank: int, step: int) -> None:
        self.steps[rank] = max(step, self.steps.get(rank, 0))


class Publishing:
    def __init__(self) -> None:
        self._is_news = False
        self._is_important = False
        self._published_s = -inf
        self._kept_s = -inf

    @property
    def next_alarm_s(self) -> float:
        return self._published_s + PUBLISH_PERIOD_S if self._is_news else inf

    def note_progress(self, changed: bool) -> None:
        self._is_news |= changed

    def note_change(self, changed: bool) -> None:
        """Takes note of whether a fact has changed, which is important news."""
        self._is_news |= changed
        self._is_important |= changed

    def due(self, status: Status, now_s: float) -> list[edge.Publish]:
        """What to tell now, if anything."""
        if not self._is_news or (not self._is_important and now_s < self._published_s + PUBLISH_PERIOD_S):
            return []
        keep = self._is_important or now_s >= self._kept_s + KEEP_PERIOD_S
        self._published_s = now_s
        self._kept_s = now_s if keep else self._kept_s
        self._is_news, self._is_important = False, False
        return [edge.Publish(status=status, keep=keep)]
