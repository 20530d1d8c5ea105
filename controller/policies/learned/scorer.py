"""scorer: one learned score that a person can read: short, small, and waited long.

score = a * log(time) + b * log(GPUs) - c * log(1 + wait / 10 min), the lowest first, with a and c never
below 0: a job never gains by being longer, nor loses by waiting. wait^c / (time^a * GPUs^b) is the same
order. Ours; the explainable sibling of `rltune`, trained by `cotenant policy train scorer`. (1, 0, 0) is
`sjf`, (1, 1, 0) `ssf`.

Each start names the three parts, as differences from the mean of those that wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Final

from cotenant.controller.domain import AnyEvent, Job, Reason, View, because
from cotenant.controller.policies.classic import UNKNOWN_S
from cotenant.controller.policies.entry import ORDER, PolicyEntry
from cotenant.controller.policies.learned.model import OrderModel, read_model
from cotenant.controller.policies.learned.rltune import LearnedParameters
from cotenant.controller.policies.scored import Scored, waited_s

SCORED: Final = ("log_time", "log_gpus", "log_wait")
SJF_WEIGHTS: Final = (1.0, 0.0, 0.0)
WAIT_S: Final = 600.0
FALLBACKS: Final = {"sjf": SJF_WEIGHTS, "ssf": (1.0, 1.0, 0.0)}


class Scorer(Scored):
    """Lowest score first."""

    name = "scorer"

    def __init__(self, parameters: LearnedParameters, model: OrderModel | None = None) -> None:
        super().__init__(parameters)
        self._model = model if model is not None else read_model(parameters.model, self.name, SCORED)
        learned = tuple(row[0] for row in self._model.layers[0].weights)
        self.weights = learned if self._model.active else FALLBACKS[self._model.fallback]

    def parts(self, view: View, jobs: Sequence[Job]) -> list[tuple[float, float, float]]:
        """What time, GPUs and wait add to the score of each."""
        now_s, (a, b, c) = view.now_s, self.weights
        return [
            (
                a * log(UNKNOWN_S if job.remaining_s is None else max(job.remaining_s, 1.0)),
                b * log(job.spec.gpus_min),
                -c * log(1.0 + waited_s(job, now_s) / WAIT_S),
            )
            for job in jobs
        ]

    def scores(self, view: View, jobs: Sequence[Job], event: AnyEvent | None) -> Sequence[float]:
        return [sum(parts) for parts in self.parts(view, jobs)]

    def why(self, view: View, job: Job, rank: int) -> Reason:
        waiting = [each for head in view.heads() for each in view.queue(view.scheduling_class(head))]
        every = self.parts(view, waiting)
        means = [sum(column) / len(every) for column in zip(*every, strict=True)]
        (own,) = self.parts(view, [job])
        time, gpus, wait = (mean - part for mean, part in zip(means, own, strict=True))
        length_s = job.remaining_s
        if not self._model.active:
            return because("learned-inactive", self.name, self._model.fallback)
        return because(
            "scored",
            rank,
            "short" if time >= 0.0 else "long",
            "unknown" if length_s is None else span(length_s),
            _signed(time),
            "small" if gpus >= 0.0 else "wide",
            job.spec.gpus_min,
            _signed(gpus),
            span(waited_s(job, view.now_s)),
            _signed(wait),
        )


def _signed(number: float) -> str:
    return f"{number:+.1f}"


def span(seconds: float) -> str:
    """A time span in the unit that a person would use."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"


SCORER: Final = PolicyEntry(
    "one learned score of time, GPUs and wait, with its parts in every reason",
    Scorer,
    LearnedParameters.parse,
    group=ORDER,
    choose="you have trained one on a trace like your load, and `whatif` shows that it gains",
)
