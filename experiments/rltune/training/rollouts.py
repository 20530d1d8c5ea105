"""One window under a policy that draws: its observations, its choices, and their returns.

Rule: the simulator is the one that people use, with the engine of production; the draws follow the scores of
production's policy, which would take the highest one. An order drawn by adding Gumbel noise to the logits,
with those that do not fit passed over, is the same as to draw the jobs that fit one after another.

Rollouts run in processes of their own, here or on a cluster of dask's or ray's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.domain import Decision, Job, Place
from cotenant.controller.domain import events as ev
from cotenant.controller.papers.rltune import (
    ACTOR,
    CRITIC,
    LearnedParameters,
    OrderModel,
    RlTune,
    Scorer,
    forward,
    observation,
)
from cotenant.controller.planning import Plan, View
from cotenant.controller.policies.base import Parameters, Policy
from cotenant.controller.sim import RunResult, simulate
from cotenant.controller.training import Evaluate, evaluator
from experiments.rltune.training.options import (
    Part,
    Preset,
    TrainingMetric,
    TrainingOptions,
    total,
    weights_of,
)

Floats = NDArray[np.float64]
T = TypeVar("T")


class Choices(NamedTuple):
    """Decisions drawn from one or several rollouts: shapes (n, window, columns), (n, window), (n,)."""

    actor: NDArray[np.float32]
    critic: NDArray[np.float32]
    allowed: NDArray[np.bool_]
    """Which jobs could have been chosen; False for padding."""
    chosen: NDArray[np.int64]
    log_probability: Floats
    advantage: Floats
    value: Floats
    """The returns: targets of the critic."""


class _Choice(NamedTuple):
    at_s: float
    seen: int
    """Which observation."""
    allowed: NDArray[np.bool_]
    chosen: int
    log_probability: float
    value: float


class SampledOrder(RlTune):
    """Draws its order and writes down what it chose among."""

    def __init__(self, model: OrderModel, critic: Sequence[tuple[Floats, Floats]], seed: int) -> None:
        super().__init__(LearnedParameters(), model)
        self._critic = critic
        self._generator = np.random.default_rng(seed)
        self._ranked: list[tuple[Sequence[Job], Floats]] = []
        self.seen: list[tuple[Floats, Floats]] = []
        self.choices: list[_Choice] = []

    def scores(self, plan: Plan, jobs: Sequence[Job]) -> Sequence[float]:
        seen = observation(plan, jobs, critic=True)
        logits = forward(self._layers, seen.actor)
        self._ranked = [(jobs, logits)]
        self.seen.append(seen)
        drawn: list[float] = (logits + self._generator.gumbel(size=len(jobs))).tolist()
        return drawn

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        self._ranked = []
        decision = super().decide(view, event)
        if self._ranked:
            self._note(view, *self._ranked[0], decision)
        return decision

    def _note(self, view: View, jobs: Sequence[Job], logits: Floats, decision: Decision) -> None:
        """Notes each start beside the jobs that also fitted just then; a start without a rival teaches
        nothing."""
        plan, index = Plan(view), {job.job_id: at for at, job in enumerate(jobs)}
        classes = [view.queue.class_of(job) for job in jobs]
        heads = {view.queue.class_of(job): job for job in reversed(jobs)}
        value, left, noted = None, np.ones(len(jobs), np.bool_), False
        for action in decision.actions:
            if not isinstance(action, Place) or action.job_id not in index:
                continue
            fits = {each for each, job in heads.items() if plan.find_free(job) is not None}
            allowed = left & np.array([each in fits for each in classes])
            at = index[action.job_id]
            if allowed.sum() > 1 and allowed[at]:
                if value is None:
                    value = float(forward(self._critic, flat(self.seen[-1][1], self._model.window)[None])[0])
                shifted = logits[allowed] - logits[allowed].max()
                log_probability = float(logits[at] - logits[allowed].max() - np.log(np.exp(shifted).sum()))
                self.choices.append(
                    _Choice(view.now_s, len(self.seen) - 1, allowed, at, log_probability, value)
                )
                noted = True
            left[at] = False
            plan.place(view.jobs[action.job_id], action.devices, action.reason)
        if not noted:
            self.seen.pop()


def flat(critic: Floats, window: int) -> Floats:
    """Shape (window x columns,), padded with zeros."""
    padded = np.zeros((window, len(CRITIC)))
    padded[: len(critic)] = critic
    return padded.reshape(-1)


class Rollout(NamedTuple):
    """A task of a worker: one roll-out."""

    part: Part
    model: OrderModel
    critic: Sequence[tuple[Floats, Floats]]
    metric: TrainingMetric
    base_total: float
    """Of the base order on this window, over all of its jobs."""
    preset: Preset
    decisions: int
    seed: int


def roll(asked: Rollout) -> Choices | None:
    """Decisions of one window under the drawing policy; None if nothing was to be chosen."""
    made: list[SampledOrder] = []

    def make(name: str, parameters: Parameters) -> Policy:
        made.append(SampledOrder(asked.model, asked.critic, asked.seed))
        return made[-1]

    outcome = _simulate_part(asked.part, make)
    policy = made[-1]
    if not policy.choices:
        return None
    advantage, value = _worth(policy.choices, outcome, asked)
    generator = np.random.default_rng((asked.seed, 1))
    count = min(asked.decisions, len(policy.choices))
    picked = np.sort(generator.choice(len(policy.choices), count, replace=False))
    window = asked.model.window
    actor, critic = np.zeros((count, window, len(ACTOR))), np.zeros((count, window, len(CRITIC)))
    allowed = np.zeros((count, window), np.bool_)
    for row, at in enumerate(picked.tolist()):
        choice = policy.choices[at]
        seen = policy.seen[choice.seen]
        jobs = len(seen[0])
        actor[row, :jobs], critic[row, :jobs] = seen
        allowed[row, :jobs] = choice.allowed
    chosen = [policy.choices[at] for at in picked.tolist()]
    return Choices(
        actor.astype(np.float32),
        critic.astype(np.float32),
        allowed,
        np.array([choice.chosen for choice in chosen]),
        np.array([choice.log_probability for choice in chosen]),
        advantage[picked],
        value[picked],
    )


def _simulate_part(part: Part, make: Callable[[str, Parameters], Any]) -> RunResult:
    task = part.task
    return simulate(
        task.workload, task.cluster, "sjf", physics=task.physics, seed=task.seed, make_policy=make
    )


def _worth(choices: Sequence[_Choice], outcome: RunResult, asked: Rollout) -> tuple[Floats, Floats]:
    """Advantages (generalised, gamma 1) and the returns that the critic learns from: shape (choices,)."""
    values = np.array([choice.value for choice in choices])
    if asked.preset.dense:
        rewards = -_cost_after(choices, outcome, asked.metric) / max(asked.base_total, 1e-9)
    else:
        own, base = total(outcome, asked.metric), asked.base_total
        rewards = np.zeros(len(choices))
        rewards[-1] = (base - own) / max(base, own, 1.0)
    following = np.append(values[1:], 0.0)
    advantage, carried = np.zeros(len(choices)), 0.0
    for at in range(len(choices) - 1, -1, -1):
        carried = rewards[at] + following[at] - values[at] + asked.preset.lam * carried
        advantage[at] = carried
    return advantage, advantage + values


def _cost_after(choices: Sequence[_Choice], outcome: RunResult, metric: TrainingMetric) -> Floats:
    """What waiting costs between each choice and the next, the last one's until the end. Shape (choices,)."""
    submit_s, weights = outcome.workload.submit_s, weights_of(outcome.workload, metric)
    until_s = outcome.wait_s
    at_s = np.array([*(choice.at_s for choice in choices), np.inf])
    waited = np.minimum(np.maximum(at_s[:, None] - submit_s[None], 0.0), until_s[None])
    costs: Floats = np.diff(waited @ weights)
    return costs


def judge(part: Part, model: OrderModel | None, policy: str, metric: TrainingMetric) -> float:
    """The metric of the jobs that count, with the policy that takes the highest score."""
    if model is None:
        task = part.task
        outcome = simulate(task.workload, task.cluster, policy, physics=task.physics, seed=task.seed)
    else:
        outcome = _simulate_part(part, lambda name, parameters: made_of(model))
    return total(outcome, metric, part.warm)


def made_of(model: OrderModel) -> Policy:
    return (Scorer if model.policy == "scorer" else RlTune)(LearnedParameters(), model)


# --- In parallel -------------------------------------------------------------------------------------


class Workers:
    """Runs calls in parallel; the results do not depend on the number of workers."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._elsewhere_s = 0.0

    def map(self, function: Callable[..., T], calls: Sequence[tuple[Any, ...]]) -> list[T]:
        found = list(self._evaluate(_time_call, [(function, call) for call in calls]))
        self._elsewhere_s += sum(spent_s for process, spent_s, _ in found if process != os.getpid())
        return [result for _, _, result in found]

    def cpu_s(self) -> float:
        """Processor seconds of this process, and of what was computed for it in others."""
        return time.process_time() + self._elsewhere_s


def _time_call(function: Callable[..., T], call: tuple[Any, ...]) -> tuple[int, float, T]:
    began_s = time.process_time()
    result = function(*call)
    return os.getpid(), time.process_time() - began_s, result


@contextmanager
def workers(options: TrainingOptions) -> Iterator[Workers]:
    """Opens the workers that the options ask for. Raises NoBackend: there is nothing that could run them."""
    with evaluator(options.backend, workers=options.workers, address=options.address) as evaluate:
        yield Workers(evaluate)
