"""What Lazer learns, and what it predicts from it: the deferral predictor of section 4.2.

Rule: `predict` reads, `observe` writes, and `observe` needs nothing but the event, the decision and the view
after it: so recovery, which knows the recorded decision, arrives at the same memory to the last bit. What a
later `observe` must know of a prediction stands in the reason of the action that followed from it.

F, the label, is observable whatever the policy did, because arrivals are. It is the time from the decision to
the first arrival (`chain`: the last) within (t0, t0 + max p + l] that has less remaining time than the
newcomer (Eq. 2), and 0 if there is none; the sample joins when that window has closed.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from functools import cached_property
from itertools import islice
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from cotenant.controller.domain import AnyAction, Compute, Decision, Defer, Job, JobId, Phase, Place, because
from cotenant.controller.domain import events as ev
from cotenant.controller.papers.lazer import surrogate
from cotenant.controller.papers.lazer.improvement import Improvement
from cotenant.controller.papers.lazer.parameters import LazerParameters
from cotenant.controller.planning import View

LearningStage = Literal["bootstrap", "acquisition", "exploitation"]

KIND: Final = "deferral-fit"
DEFERRED: Final = "deferred"
AT_ONCE: Final = "preempts-at-once"
PREDICTED: Final = (DEFERRED, AT_ONCE)
"""Codes of reasons that carry a prediction."""
STEPS_PER_S: Final = 100
"""X is a whole number of hundredths of a second."""


class Prediction(NamedTuple):
    x_s: float
    stage: LearningStage
    gain_s: float
    """Expected improvement of f at X; 0 outside the acquisition stage, which alone looks at it."""
    load_s: float
    pause_s: float

    def operands(self) -> tuple[float | str, ...]:
        """The first operands of the reason that carries this prediction."""
        return (self.x_s, self.stage, self.gain_s, self.load_s, self.pause_s)


class PredictionWindow(msgspec.Struct, kw_only=True, array_like=True, order=True):
    """A prediction whose label is still open."""

    end_s: float
    number: int
    start_s: float
    x_s: float
    gap_s: float
    remaining_s: float
    load_s: float
    pause_s: float
    f_s: float = 0.0
    """F by what has arrived so far."""


class LearnedMemory(msgspec.Struct, kw_only=True):
    """Everything that was learned, as a value."""

    arrivals: list[float] = []
    """Times of arrival within the window, oldest first."""
    newest: int = 0
    """The greatest job number seen: a submission journalled twice arrives once."""
    predictions: int = 0
    windows: list[PredictionWindow] = []
    samples: list[surrogate.SurrogateSample] = []
    exploits: bool = False
    hyper: surrogate.Hyperparameters | None = None
    requests: int = 0
    pending: int = 0
    """The number of the fit that is not answered yet; 0 = none."""
    requested_at: int = 0
    """The number of samples when the last fit was asked for."""


class Learner:
    def __init__(self, parameters: LazerParameters, memory: LearnedMemory | None = None) -> None:
        self.parameters = parameters
        self._memory = memory if memory is not None else LearnedMemory()
        self._arrivals = deque(self._memory.arrivals)
        heapq.heapify(self._memory.windows)
        self._model: _Model | None = None

    def save(self) -> LearnedMemory:
        return msgspec.structs.replace(
            self._memory, arrivals=list(self._arrivals), windows=sorted(self._memory.windows)
        )

    # --- Reading -----------------------------------------------------------------------------------

    @property
    def samples(self) -> tuple[surrogate.SurrogateSample, ...]:
        return tuple(self._memory.samples)

    @property
    def stage(self) -> LearningStage:
        memory = self._memory
        if memory.exploits:
            return "exploitation"
        return "bootstrap" if len(memory.samples) < self.parameters.bootstrap else "acquisition"

    def describe(self) -> str:
        """The surrogate's state in words, without computing anything."""
        memory = self._memory
        open_windows = f"{len(memory.samples)} samples, {len(memory.windows)} whose outcome is not known yet"
        if memory.hyper is None:
            return f"the prior, not fitted yet; {open_windows}"
        hyper = memory.hyper
        return (
            f"a Gaussian process fitted to {memory.requested_at} of {open_windows}; "
            f"f is {hyper.mean_s:.3g} s +- {hyper.deviation_s:.3g} s, noise {hyper.noise:.2g}, "
            f"lengthscale of X {hyper.lengthscales[0]:.2g}"
        )

    def gap_s(self, now_s: float) -> float:
        """Mean time between the arrivals of the past window and one now; the whole window if there were
        none."""
        since_s = now_s - self.parameters.window_s
        stale = 0
        for at_s in self._arrivals:  # As many as the next `observe` forgets.
            if at_s > since_s:
                break
            stale += 1
        count = len(self._arrivals) - stale
        if not count:
            return self.parameters.window_s
        return (now_s - next(islice(self._arrivals, stale, None))) / count

    def predict(
        self, now_s: float, remaining_s: float, load_s: float, pause_s: float, already: int = 0
    ) -> Prediction:
        """How long to defer; `already` counts the predictions of the decision under way."""
        stage, gain_s = self.stage, 0.0
        context = surrogate.Context(self.gap_s(now_s), remaining_s, load_s, pause_s)
        if stage == "bootstrap":
            x_s = self._hypercube(self._memory.predictions + already)
        elif stage == "acquisition":
            x_s, gain_s = self._current_model().improvement.choose(context)
        else:
            x_s = self._current_model().surrogate.best_x_s(context)
        x_s = round(x_s * STEPS_PER_S) / STEPS_PER_S
        return Prediction(x_s, stage, gain_s, load_s, pause_s)

    def _hypercube(self, index: int) -> float:
        """Draws a prediction by Latin hypercube sampling: of every M predictions one falls into each of M
        equal intervals."""
        count = self.parameters.bootstrap
        draws = np.random.default_rng((self.parameters.seed, 0, index // count))
        order, place = draws.permutation(count), draws.random(count)
        i = index % count
        return float((order[i] + place[i]) / count) * self.parameters.x_max_s

    def _current_model(self) -> _Model:
        if self._model is None:
            self._model = _Model(self._memory.samples, self._memory.hyper, self.parameters)
        return self._model

    def request(self) -> Compute | None:
        """The fit to ask for, if one is due. Exploitation begins with one, over all samples."""
        memory = self._memory
        fresh = len(memory.samples) - memory.requested_at
        if memory.pending or not fresh or len(memory.samples) < self.parameters.bootstrap:
            return None
        if memory.requested_at and fresh < self.parameters.refit_every and not memory.exploits:
            return None
        inputs = surrogate.scaled_inputs(memory.samples, self.parameters.x_max_s)
        return Compute(
            request_id=memory.requests + 1,
            kind=KIND,
            payload={
                "inputs": [float(value) for value in inputs.ravel()],
                "targets": [sample.f_s for sample in memory.samples],
                "seed": self.parameters.seed,
            },
            reason=because("fit", len(memory.samples)),
        )

    # --- Writing -----------------------------------------------------------------------------------

    def observe(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        now_s, memory = view.now_s, self._memory
        gap_s = self.gap_s(now_s) if decision.actions else 0.0  # As `predict` saw it.
        self._close_windows(now_s)
        while self._arrivals and self._arrivals[0] <= now_s - self.parameters.window_s:
            self._arrivals.popleft()
        if isinstance(event, ev.JobArrived):
            self._note_arrival(view, event.spec.job_id)
        elif isinstance(event, ev.Computed) and event.request_id == memory.pending:
            memory.pending = 0
            self._take_fit(event)
        for action in decision.actions:
            if isinstance(action, Compute) and action.kind == KIND:
                memory.requests = memory.pending = action.request_id
                memory.requested_at = len(memory.samples)
            elif isinstance(action, Defer | Place) and (found := prediction_behind(action)) is not None:
                self._note_prediction(view.jobs.get(action.job_id), now_s, gap_s, found)

    def _note_arrival(self, view: View, job_id: JobId) -> None:
        job = view.jobs.get(job_id)
        if job is None or job.number <= self._memory.newest:
            return
        self._memory.newest = job.number
        if job.phase in (Phase.HELD, Phase.BLOCKED, Phase.CANCELLED):
            return
        self._arrivals.append(view.now_s)
        for window in self._memory.windows:  # Those of a minute or two, and none once it exploits.
            shorter = job.estimate.remaining_s is not None and job.estimate.remaining_s < window.remaining_s
            if shorter and (window.f_s == 0.0 or self.parameters.chain == "last"):
                window.f_s = view.now_s - window.start_s

    def _close_windows(self, now_s: float) -> None:
        memory = self._memory
        while memory.windows and memory.windows[0].end_s < now_s:
            w = heapq.heappop(memory.windows)
            context = surrogate.Context(w.gap_s, w.remaining_s, w.load_s, w.pause_s)
            memory.samples.append(surrogate.SurrogateSample(w.x_s, context, abs(w.x_s - w.f_s)))
            self._model = None
        if len(memory.samples) >= self.parameters.updates_max:
            self._exploit()

    def _note_prediction(self, job: Job | None, now_s: float, gap_s: float, found: Prediction) -> None:
        memory = self._memory
        memory.predictions += 1
        if found.stage == "acquisition" and self._is_enough(found.gain_s):
            self._exploit()
        if memory.exploits or job is None or job.estimate.remaining_s is None:
            return
        heapq.heappush(
            memory.windows,
            PredictionWindow(
                end_s=now_s + found.pause_s + found.load_s,
                number=memory.predictions,
                start_s=now_s,
                x_s=found.x_s,
                gap_s=gap_s,
                remaining_s=job.estimate.remaining_s,
                load_s=found.load_s,
                pause_s=found.pause_s,
            ),
        )

    def _is_enough(self, gain_s: float) -> bool:
        """The acquisition stage's stopping rule. Standardised f has mean 0, so the best one is as far from 0
        as the best f is below the mean; dividing both sides by the deviation changes nothing."""
        f_s = [sample.f_s for sample in self._memory.samples]
        best_s = math.fsum(f_s) / len(f_s) - min(f_s)
        return len(f_s) >= self.parameters.updates_min and gain_s < self.parameters.ei_stop * best_s

    def _exploit(self) -> None:
        self._memory.exploits = True
        self._memory.windows.clear()

    def _take_fit(self, event: ev.Computed) -> None:
        """Takes in a fit; an answer without one changes nothing."""
        usable = len(event.values) == surrogate.DIMENSIONS + 4 and all(map(math.isfinite, event.values))
        if event.error or not usable:
            return
        noise, constant, mean_s, deviation_s, *lengthscales = event.values
        if noise > 0.0 and deviation_s > 0.0 and min(lengthscales) > 0.0:
            self._memory.hyper = surrogate.Hyperparameters(
                lengthscales=tuple(lengthscales),
                noise=noise,
                constant=constant,
                mean_s=mean_s,
                deviation_s=deviation_s,
            )
            self._model = None


class _Model:
    """A cache of the fitted model: everything in it follows from the memory."""

    def __init__(
        self,
        samples: list[surrogate.SurrogateSample],
        hyper: surrogate.Hyperparameters | None,
        parameters: LazerParameters,
    ) -> None:
        known = hyper if hyper is not None else surrogate.prior([sample.f_s for sample in samples])
        self.surrogate = surrogate.Surrogate(samples, known, parameters.x_max_s)
        self._seed = (parameters.seed, 1, len(samples))

    @cached_property
    def improvement(self) -> Improvement:
        return Improvement(self.surrogate, self._seed)


def prediction_behind(action: AnyAction) -> Prediction | None:
    """The prediction behind an action, from the action's reason."""
    if action.reason.code not in PREDICTED:
        return None
    x_s, stage, gain_s, load_s, pause_s, *_ = action.reason.operands
    return Prediction(float(x_s), stage, float(gain_s), float(load_s), float(pause_s))  # type: ignore[arg-type]
