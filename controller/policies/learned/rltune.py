"""rltune: waiting jobs in an order that was learned by reinforcement, by one small network for each of them.

Source: RLTune (Dongare et al., SoCC '25) sections 3 and 4. The actor scores each of 256 waiting jobs; the
highest starts first, and one that does not fit is passed over.

Departs from the paper in that the columns are fixed (`features.py`); that with more waiting jobs than it
looks at these are the first of the base order, never the oldest, and the others follow in that order; and
that a model which is no better than ordering by size is not used: its fallback orders, and the reasons say
so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

from cotenant.controller.domain import NOTHING, AnyEvent, Decision, DeviceId, Job, Plan, Reason, View, because
from cotenant.controller.policies.base import Stateless, is_possible, is_quiet, why_waiting
from cotenant.controller.policies.classic import by_remaining
from cotenant.controller.policies.entry import ORDER, PolicyEntry
from cotenant.controller.policies.learned.features import ACTOR, observation
from cotenant.controller.policies.learned.model import BUNDLED, OrderModel, arrays, forward, read_model
from cotenant.controller.policies.order_options import PassingParameters
from cotenant.controller.policies.service import by_service
from cotenant.controller.policies.toolkit import place_ordered

BASES = {"sjf": by_remaining, "ssf": by_service}


class LearnedParameters(PassingParameters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the model is."""

    model: str = BUNDLED
    """A file that `cotenant policy train` wrote, on the controller's machine; `bundled`: the one that comes
    with cotenant."""


class RlTune(Stateless):
    """Highest score first."""

    name = "rltune"

    def __init__(self, parameters: LearnedParameters, model: OrderModel | None = None) -> None:
        self.parameters = parameters
        self._model = model if model is not None else read_model(parameters.model, self.name, ACTOR)
        self._base = BASES[self._model.card.base if self._model.active else self._model.fallback]
        self._layers = arrays(self._model.layers)

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return self._base(job)

    def scores(self, plan: Plan, jobs: Sequence[Job]) -> Sequence[float]:
        """The score of each of these jobs; the highest goes first."""
        scores: list[float] = forward(self._layers, observation(plan, jobs).actor).tolist()
        return scores

    def ranked(self, plan: Plan, jobs: Sequence[Job]) -> list[Job]:
        """These jobs, which come in the base order; aged ones first."""
        if len(jobs) < 2 or not self._model.active:
            return list(jobs)
        scores = self.scores(plan, jobs)
        keyed = sorted(
            (not job.aged, -score, job.number, job) for job, score in zip(jobs, scores, strict=True)
        )
        return [entry[-1] for entry in keyed]

    def waiting(self, view: View, event: AnyEvent) -> Iterator[Job]:
        """All, in order."""
        queue = view.queued()
        return chain(self.ranked(Plan(view), list(islice(queue, self._model.window))), queue)

    def decide(self, view: View, event: AnyEvent) -> Decision:
        if not view.queued_count() or not view.free.everywhere or is_quiet(view, event):
            return NOTHING
        plan, backfill = Plan(view), self.parameters.backfill
        if backfill == "any" and all(plan.find_free(head) is None for head in view.heads()):
            return NOTHING
        queue = view.queued()
        first = list(islice(queue, self._model.window))
        ordered = self.ranked(plan, first)

        def why(job: Job, devices: tuple[DeviceId, ...]) -> Reason:
            return self.why(job, first, ordered)

        place_ordered(plan, chain(ordered, queue), self.name, backfill, why)
        return plan.decision()

    def why(self, job: Job, first: Sequence[Job], ordered: Sequence[Job]) -> Reason:
        """The job's place in the learned order, and in the base order."""
        if not self._model.active:
            return because("learned-inactive", self.name, self._model.fallback)
        learned, before = ([each.number for each in jobs] for jobs in (ordered, first))
        if job.number not in learned:
            return because("free-devices-in-order", self._model.card.base, job.spec.gpus)
        places = (jobs.index(job.number) + 1 for jobs in (learned, before))
        return because("learned-order", *places, self._model.card.base)

    def explain(self, view: View, job: Job) -> Reason:
        first = list(islice(view.queued(), self._model.window))
        ordered = self.ranked(Plan(view), first)
        ahead = next((each for each in chain(ordered, view.queued()) if is_possible(view, each)), None)
        return why_waiting(view, job, self.name if self._model.active else self._model.fallback, ahead)


RLTUNE: Final = PolicyEntry(
    "an order learned by reinforcement, by a small network (RLTune)",
    RlTune,
    LearnedParameters.parse,
    group=ORDER,
    choose="as for scorer; so far it has not beaten ssf in our simulations",
)
