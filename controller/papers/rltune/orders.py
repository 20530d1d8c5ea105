"""rltune: waiting jobs in an order that was learned by reinforcement, by one small network for each of
them; and what it sees of them and of the cluster, in fixed columns (Table 3).

Source: RLTune (Dongare et al., SoCC '25) sections 3 and 4. The actor scores each of 256 waiting jobs; the
highest starts first, and one that does not fit is passed over.

Rule: a column means the same in every state (the paper selects 8 of 17 per state, which would change what a
weight is about). All values are near 1 in size. The same code makes them in training, simulated and live.
CFF = 1 - sum(f^2)/(sum f)^2 over hosts with f free GPUs (equation 3 as printed is never positive). Future
availability = free - own demand - demand of the queued jobs. Both are nearly the same for all waiting
jobs, so an order cannot use them: they are the critic's.

Departs from the paper in that the columns are fixed; that with more waiting jobs than it looks at these are
the first of the base order, never the oldest, and the others follow in that order; and that a model which is
no better than ordering by size is not used: its fallback orders, and the reasons say so.

scorer: one learned score that a person can read: short, small, and waited long.

score = a * log(time) + b * log(GPUs) - c * log(1 + wait / 10 min), the lowest first, with a and c never
below 0: a job never gains by being longer, nor loses by waiting. wait^c / (time^a * GPUs^b) is the same
order. Ours; the explainable sibling of `rltune`, trained by `python -m experiments.rltune.train scorer`.
(1, 0, 0) is `sjf`, (1, 1, 0) `ssf`. Each start names the three parts, as differences from the mean of those
that wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from math import log
from typing import Final, NamedTuple

import numpy as np

from cotenant.controller.domain import NOTHING, Decision, DeviceId, Job, Reason, because
from cotenant.controller.domain import events as ev
from cotenant.controller.papers.rltune.model import BUNDLED, Floats, OrderModel, arrays, forward, read_model
from cotenant.controller.planning import Plan, SchedulingClass, View, is_possible, why_waiting
from cotenant.controller.policies.base import Stateless, is_quiet
from cotenant.controller.policies.entries import ORDER, PolicyEntry
from cotenant.controller.policies.ordered import UNKNOWN_S, remaining_key, service_key
from cotenant.controller.policies.scored import Scored, jobs_behind, waited_s
from cotenant.controller.policies.toolkit import PassingParameters, place_ordered

ACTOR: Final = (
    "log_time",
    "log_gpus",
    "log_wait",
    "log_size",
    "urgency",
    "demand_supply",
    "can_start",
    "ways",
)
"""log10 of expected seconds / 4; log2 of GPUs / 3; log10 of 1 + seconds waited / 4; log10 of time x GPUs / 5;
wait / (wait + time); GPUs / (GPUs + free ones); whether it fits now; share of hosts on which it fits now."""
CRITIC: Final = ("log_time", "log_gpus", "log_wait", "future", "fragmentation")


class Observation(NamedTuple):
    """Shape (jobs, columns)."""

    actor: Floats
    critic: Floats


def observation(plan: Plan, jobs: Sequence[Job], *, critic: bool = False) -> Observation:
    """The columns of these waiting jobs; the critic's only where asked for."""
    view = plan.view
    now_s = view.now_s
    told = [job.estimate.remaining_s for job in jobs]
    time_s = np.maximum([UNKNOWN_S if each is None else each for each in told], 1.0)
    wait_s = np.array([job.spent.queued_s + now_s - job.phase_since_s for job in jobs], dtype=np.float64)
    classes = [view.queue.class_of(job) for job in jobs]
    known: dict[SchedulingClass, tuple[float, float, float, float]] = {}
    for each in classes:
        if each not in known:
            known[each] = _class_features(plan, each)
    gpus, free, fits, ways = np.array([known[each] for each in classes]).T
    log_time, log_gpus, log_wait = np.log10(time_s), np.log2(gpus), np.log10(1.0 + wait_s)
    columns = (
        log_time / 4.0,
        log_gpus / 3.0,
        log_wait / 4.0,
        (log_time + 0.30103 * log_gpus) / 5.0,
        wait_s / (wait_s + time_s),
        gpus / (gpus + free),
        fits,
        ways,
    )
    actor = np.stack(columns, axis=1)
    if not critic:
        return Observation(actor, actor[:, :0])
    future = (free - gpus - gpus.sum()) / max(len(view.devices), 1)
    cff = np.full(len(jobs), _fragmentation(plan))
    return Observation(actor, np.stack((*columns[:3], np.clip(future, -4.0, 1.0), cff), axis=1))


def _class_features(plan: Plan, scheduling_class: SchedulingClass) -> tuple[float, float, float, float]:
    """The features of a class: GPUs, free ones of its type, whether it fits by number, share of hosts on
    which it fits."""
    gpus, free = scheduling_class.gpus, plan.view.free
    types = (scheduling_class.gpu_type,) if scheduling_class.gpu_type else free.types
    total = max((plan.free_total(type) for type in types), default=0)
    ways = sum(
        sum(1 for _ in free.hosts_with_free(type, count))
        for type in types
        for count in range(gpus, free.most(type) + 1)
    )
    return float(gpus), float(total), float(ways > 0 or total >= gpus), ways / max(len(plan.view.hosts), 1)


def _fragmentation(plan: Plan) -> float:
    free = np.array([plan.free_on(host_id) for host_id in plan.view.hosts], dtype=float)
    total = float(free.sum())
    return 1.0 - float((free**2).sum()) / total**2 if total else 0.0


BASES = {"sjf": remaining_key, "ssf": service_key}


class LearnedParameters(PassingParameters, frozen=True, kw_only=True):
    """The options that say where the model is."""

    model: str = BUNDLED
    """A file that `python -m experiments.rltune.train` wrote, on the controller's machine; `bundled`: the one
    that comes with cotenant."""


class RlTune(Stateless):
    """A policy that starts the job with the highest score first."""

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

    def rank(self, plan: Plan, jobs: Sequence[Job]) -> list[Job]:
        """Ranks `jobs`, which come in the base order: aged ones first, then by rank (priority, fair
        share)."""
        if len(jobs) < 2 or not self._model.active:
            return list(jobs)
        scores = self.scores(plan, jobs)
        keyed = sorted(
            (plan.view.queue.order_key(job)[0], -score, job.number, job)
            for job, score in zip(jobs, scores, strict=True)
        )
        return [entry[-1] for entry in keyed]

    def waiting(self, view: View, event: ev.AnyEvent) -> Iterator[Job]:
        """Yields all waiting jobs, in order."""
        queue = view.queue.jobs_in_order()
        return chain(self.rank(Plan(view), list(islice(queue, self._model.window))), queue)

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        if not view.queue or not view.free.everywhere or is_quiet(view, event):
            return NOTHING
        plan, backfill = Plan(view), self.parameters.backfill
        if backfill == "any" and all(plan.find_free(head) is None for head in view.queue.heads()):
            return NOTHING
        queue = view.queue.jobs_in_order()
        first = list(islice(queue, self._model.window))
        ordered = self.rank(plan, first)

        def why(job: Job, devices: tuple[DeviceId, ...]) -> Reason:
            return self.why(job, first, ordered)

        place_ordered(plan, chain(ordered, queue), self.name, backfill, why)
        return plan.decision()

    def explain_order(
        self, view: View, first: Sequence[Job], ordered: Sequence[Job]
    ) -> Callable[[Job, int], Reason]:
        """The reason of each job's place in `ordered`, 1 being the first; `first` is the base order."""
        return lambda job, rank: self.why(job, first, ordered)

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
        first = list(islice(view.queue.jobs_in_order(), self._model.window))
        ordered = self.rank(Plan(view), first)
        ahead = next(
            (each for each in chain(ordered, view.queue.jobs_in_order()) if is_possible(view, each)), None
        )
        return why_waiting(view, job, self.name if self._model.active else self._model.fallback, ahead)


RLTUNE: Final = PolicyEntry(
    "an order learned by reinforcement, by a small network (RLTune)",
    RlTune,
    LearnedParameters.parse,
    group=ORDER,
    choose="as for scorer; so far it has not beaten ssf in our simulations",
    tools={"train": "python -m experiments.rltune.train rltune"},
)


SCORED: Final = ("log_time", "log_gpus", "log_wait")
SJF_WEIGHTS: Final = (1.0, 0.0, 0.0)
WAIT_S: Final = 600.0
FALLBACKS: Final = {"sjf": SJF_WEIGHTS, "ssf": (1.0, 1.0, 0.0)}


class Scorer(Scored):
    """A policy that starts the job with the lowest score first."""

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
                a
                * log(UNKNOWN_S if job.estimate.remaining_s is None else max(job.estimate.remaining_s, 1.0)),
                b * log(job.spec.gpus_min),
                -c * log(1.0 + waited_s(job, now_s) / WAIT_S),
            )
            for job in jobs
        ]

    def scores(self, view: View, jobs: Sequence[Job], event: ev.AnyEvent | None) -> Sequence[float]:
        return [sum(parts) for parts in self.parts(view, jobs)]

    def explain_order(
        self, view: View, first: Sequence[Job], ordered: Sequence[Job]
    ) -> Callable[[Job, int], Reason]:
        """The reason of each job's place in `ordered`, 1 being the first."""
        return lambda job, rank: self.why(view, job, rank)

    def why(self, view: View, job: Job, rank: int) -> Reason:
        every = self.parts(view, jobs_behind(view, view.queue.heads()))
        means = [sum(column) / len(every) for column in zip(*every, strict=True)]
        (own,) = self.parts(view, [job])
        time, gpus, wait = (mean - part for mean, part in zip(means, own, strict=True))
        length_s = job.estimate.remaining_s
        if not self._model.active:
            return because("learned-inactive", self.name, self._model.fallback)
        return because(
            "scored",
            rank,
            "short" if time >= 0.0 else "long",
            "unknown" if length_s is None else span(length_s),
            _signed_text(time),
            "small" if gpus >= 0.0 else "wide",
            job.spec.gpus_min,
            _signed_text(gpus),
            span(waited_s(job, view.now_s)),
            _signed_text(wait),
        )


def _signed_text(number: float) -> str:
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
    tools={"train": "python -m experiments.rltune.train scorer"},
)
