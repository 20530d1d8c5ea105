"""What a decision of Lazer costs, and what its search finds (Lazer section 5.4, Fig. 8e and 8f).

    python bench/lazer_decision.py [--jobs 5000] [--seeds 20] [--budget 100]

**Decisions.** The first jobs of Philly VCs run through the simulator under `lazer`; timed is the whole of
`Policy.decide` (orchestrator, predictor, completion handler: everything in the paper's Fig. 6) at each event
at which it predicted, by stage, and the predictor alone; in processor time, so that it does not depend on
what else the machine does. Fits happen outside and are reported apart.

**Efficiency.** Pairs (c, F) are recorded from simulated runs in which every preemption happens at once.
From a random start in the record, a method gets one context after the other, names an X, and is told
f = |X - F|: Bayesian optimisation (Lazer's own: hypercube, acquisition, BoTorch's fits), random search and
grid search over whole seconds (0, 1, 2, ...), as many times each. What "the best f found" means the paper
does not say, so three readings are reported: the least f of the search, the mean f while searching, and the
mean f afterwards on contexts that nobody has seen, with the X that the method recommends (Bayesian
optimisation: the posterior mean's minimum in that context; the others: the X with the least f). Beside these,
for the last reading, stands what deferring never would have cost. One source is synthetic and says so: there
F follows from the context, which shows what the search can find when there is something to find.

Prints tables, writes `lazer_decision.json` beside itself and `experiments/results/bench-lazer.md`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import machine
import numpy as np

from cotenant.controller.domain import Compute, Decision
from cotenant.controller.domain import events as ev
from cotenant.controller.papers.lazer.improvement import Improvement
from cotenant.controller.papers.lazer.learning import KIND, Learner, Prediction, prediction_behind
from cotenant.controller.papers.lazer.parameters import LazerParameters
from cotenant.controller.papers.lazer.policy import Lazer
from cotenant.controller.papers.lazer.surrogate import (
    Context,
    Hyperparameters,
    Surrogate,
    SurrogateSample,
    prior,
    scaled_inputs,
)
from cotenant.controller.planning import View
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters, Policy
from cotenant.controller.sim import Physics, Scenario, open_trace, pair_data, simulate, workload_of
from cotenant.controller.training import compute

ROOT: Final = Path(__file__).resolve().parents[1]
RESULT: Final = Path(__file__).with_suffix(".json")
PAGE: Final = ROOT / "experiments" / "results" / "bench-lazer.md"
VCS: Final = ("philly/ee9e8c", "philly/b436b2", "philly/6c71a0")
X_MAX_S: Final = 100.0
UNSEEN: Final = 200
STAGES: Final = ("bootstrap", "acquisition", "exploitation")

Row = dict[str, Any]


class Record(NamedTuple):
    """What was seen at one preemption."""

    context: Context
    f_s: float
    """F, not f: the first arrival that would have made the load futile."""


# --- Decisions ------------------------------------------------------------------------------------------


class Timed(Lazer):
    """Lazer with a stop-watch."""

    def __init__(self, parameters: LazerParameters) -> None:
        super().__init__(parameters)
        self.spent_ms: dict[str, list[float]] = defaultdict(list)
        self.x_s: dict[str, list[float]] = defaultdict(list)
        self.all_ms: list[float] = []

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        began_s = time.thread_time()
        decision = super().decide(view, event)
        spent_ms = (time.thread_time() - began_s) * 1e3
        self.all_ms.append(spent_ms)
        for found in filter(None, map(prediction_behind, decision.actions)):
            self.spent_ms[found.stage].append(spent_ms)
            self.x_s[found.stage].append(found.x_s)
        return decision


class Recorder(Learner):
    """Never defers, and keeps what it sees: with X = 0 each sample's f is F."""

    def predict(
        self, now_s: float, remaining_s: float, load_s: float, pause_s: float, already: int = 0
    ) -> Prediction:
        return Prediction(0.0, "bootstrap", 0.0, load_s, pause_s)

    def request(self) -> Compute | None:
        return None

    def _exploit(self) -> None:
        pass


@contextmanager
def made_by(maker: Callable[[Parameters], Policy]) -> Iterator[None]:
    """The simulator makes its `lazer` so."""
    usual = registry.make

    def make(name: str, parameters: Parameters) -> Policy:
        return maker(parameters) if name == "lazer" else usual(name, parameters)

    registry.make = make
    try:
        yield
    finally:
        registry.make = usual


def ran(vc: str, jobs: int, policy: Lazer) -> Row:
    scenario = Scenario(trace=vc, jobs=jobs)
    workload = workload_of(scenario, open_trace(vc), pair_data(scenario.pairs), 0)
    with made_by(lambda given: policy):
        outcome = simulate(
            workload,
            scenario.cluster,
            "lazer",
            physics=Physics(pairs=scenario.pairs, xi=scenario.xi),
            compute=compute,
        )
    return {
        "jobs": len(workload),
        "jobs_per_cpu_s": len(workload) / (outcome.cpu_s - outcome.thinking_s),
        "fits_s": outcome.thinking_s,
    }


def decisions(vc: str, jobs: int) -> Row:
    policy = Timed(LazerParameters())
    row = ran(vc, jobs, policy)
    stages = {
        stage: {**spread(policy.spent_ms[stage]), "mean_x_s": statistics.fmean(policy.x_s[stage])}
        for stage in STAGES
        if policy.spent_ms[stage]
    }
    predicting = [ms for stage in STAGES for ms in policy.spent_ms[stage]]
    x_s = [x for stage in STAGES for x in policy.x_s[stage]]
    late = policy.learner
    return {
        **row,
        "stages": stages,
        "with_a_prediction": spread(predicting),
        "all_events": spread(policy.all_ms),
        "predictor_alone": predictor_alone(late),
        "mean_x_s": statistics.fmean(x_s),
        "share_x_0": sum(x == 0.0 for x in x_s) / len(x_s),
        "samples": len(late.samples),
    }


def predictor_alone(learner: Learner, rounds: int = 2000) -> Row:
    """In the stage that the run ended in, contexts of its own samples."""
    contexts = [sample.context for sample in learner.samples]
    spent_ms = []
    for i in range(rounds):
        c = contexts[i % len(contexts)]
        began_s = time.thread_time()
        learner.predict(1e9, c.remaining_s, c.load_s, c.pause_s)
        spent_ms.append((time.thread_time() - began_s) * 1e3)
    return {"stage": learner.stage, **spread(spent_ms)}


def spread(spent_ms: Sequence[float]) -> Row:
    return {
        "count": len(spent_ms),
        "mean_ms": statistics.fmean(spent_ms),
        "p50_ms": float(np.percentile(spent_ms, 50)),
        "p99_ms": float(np.percentile(spent_ms, 99)),
    }


# --- Efficiency -----------------------------------------------------------------------------------------


def recorded(vc: str, jobs: int) -> list[Record]:
    policy = Lazer(LazerParameters())
    policy.learner = Recorder(policy.parameters)
    ran(vc, jobs, policy)
    return [Record(sample.context, sample.f_s) for sample in policy.learner.samples]


def synthetic(count: int, seed: int) -> list[Record]:
    """Where arrivals are dense (gap below 60 s) a shorter one comes after half of p + l, give or take 2 s;
    otherwise never."""
    draw = np.random.default_rng((seed, 3))
    made = []
    for _ in range(count):
        gap_s, remaining_s, load_s, pause_s = (float(v) for v in draw.lognormal((4.1, 7.0, 4.0, 2.0), 0.7))
        comes_s = 0.5 * (load_s + pause_s) + float(draw.normal(0.0, 2.0)) if gap_s < 60.0 else 0.0
        made.append(Record(Context(gap_s, remaining_s, load_s, pause_s), min(max(0.0, comes_s), X_MAX_S)))
    return made


class Found(NamedTuple):
    searched_s: list[float]
    """f of each search."""
    recommend: Callable[[Context], float]


def bayes(records: Sequence[Record], seed: int) -> Found:
    """Lazer's own stages up to the budget."""
    start = Learner(LazerParameters(seed=seed))
    samples: list[SurrogateSample] = []
    hyper: Hyperparameters | None = None
    for i, (context, f_s) in enumerate(records):
        if i < start.parameters.bootstrap:
            x_s = start.predict(0.0, 1.0, 1.0, 1.0, already=i).x_s
        else:
            known = hyper if hyper is not None else prior([s.f_s for s in samples])
            model = Surrogate(samples, known, X_MAX_S)
            x_s = Improvement(model, (seed, 1, i)).choose(context).x_s
        samples.append(SurrogateSample(x_s, context, abs(x_s - f_s)))
        if len(samples) % start.parameters.refit_every == 0:
            hyper = fitted(samples, seed)
    final = Surrogate(samples, hyper if hyper is not None else prior([s.f_s for s in samples]), X_MAX_S)
    return Found([s.f_s for s in samples], final.best_x_s)


def fitted(samples: list[SurrogateSample], seed: int) -> Hyperparameters:
    inputs = [float(v) for v in scaled_inputs(samples, X_MAX_S).ravel()]
    answer = compute(KIND, {"inputs": inputs, "targets": [s.f_s for s in samples], "seed": seed})
    noise, constant, mean_s, deviation_s, *lengthscales = answer.values
    return Hyperparameters(
        lengthscales=tuple(lengthscales),
        noise=noise,
        constant=constant,
        mean_s=mean_s,
        deviation_s=deviation_s,
    )


def at_random(records: Sequence[Record], seed: int) -> Found:
    chance = random.Random(seed)
    return constant(records, [float(chance.randint(0, int(X_MAX_S))) for _ in records])


def on_a_grid(records: Sequence[Record], seed: int) -> Found:
    return constant(records, [float(i % (int(X_MAX_S) + 1)) for i in range(len(records))])


def constant(records: Sequence[Record], tried_s: Sequence[float]) -> Found:
    """Recommends the X that had the least f, whatever the context."""
    f_s = [abs(x_s - record.f_s) for x_s, record in zip(tried_s, records, strict=True)]
    best_s = tried_s[f_s.index(min(f_s))]
    return Found(f_s, lambda context: best_s)


METHODS: Final[dict[str, Callable[[Sequence[Record], int], Found]]] = {
    "bayes": bayes,
    "random": at_random,
    "grid": on_a_grid,
}


def efficiency(records: Sequence[Record], seeds: int, budget: int) -> Row:
    kept: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in METHODS}
    never: list[float] = []
    curves: dict[str, list[list[float]]] = {name: [] for name in METHODS}
    for seed in range(seeds):
        first = random.Random(seed).randrange(len(records) - budget - UNSEEN)
        search = records[first : first + budget]
        unseen = records[first + budget : first + budget + UNSEEN]
        never.append(statistics.fmean(r.f_s for r in unseen))
        for name, method in METHODS.items():
            found = method(search, seed)
            kept[name]["least_f_s"].append(min(found.searched_s))
            kept[name]["mean_f_searching_s"].append(statistics.fmean(found.searched_s))
            after = [abs(found.recommend(r.context) - r.f_s) for r in unseen]
            kept[name]["mean_f_after_s"].append(statistics.fmean(after))
            curves[name].append([float(v) for v in np.minimum.accumulate(found.searched_s)])
    return {
        "records": len(records),
        "share_f_above_0": sum(r.f_s > 0.0 for r in records) / len(records),
        "mean_f_if_never_deferred_s": interval(never),
        "methods": {
            name: {reading: interval(values) for reading, values in readings.items()}
            for name, readings in kept.items()
        },
        "best_so_far_s": {
            name: [round(float(v), 4) for v in np.mean(curve, axis=0)] for name, curve in curves.items()
        },
    }


def interval(values: Sequence[float]) -> Row:
    """Mean over the seeds, and a 95 % bootstrap interval of it."""
    draw = np.random.default_rng(0)
    means = draw.choice(np.array(values), size=(2000, len(values))).mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    return {"mean": statistics.fmean(values), "low": float(low), "high": float(high), "seeds": len(values)}


# --- Telling --------------------------------------------------------------------------------------------


def page(result: Row) -> str:
    slowest = max(row["with_a_prediction"]["mean_ms"] for row in result["decisions"].values())
    lines = [
        "# Lazer: what a decision costs, what its search finds",
        "",
        f"A decision with a prediction takes at most {slowest:.3f} ms of processor time on average, where",
        "the paper has 7.1 ms.",
        "",
        "## Decisions",
        "",
        "Milliseconds of processor time for all of Fig. 6, at events with a prediction.",
        "",
        "| trace | stage | mean | p99 |",
        "| --- | --- | --: | --: |",
    ]
    for vc, row in result["decisions"].items():
        alone = row["predictor_alone"]
        lines += [
            f"| {vc} | acquisition | {cells(row['stages']['acquisition'])} |",
            f"| {vc} | all stages | {cells(row['with_a_prediction'])} |",
            f"| {vc} | predictor alone, {alone['stage']} | {cells(alone)} |",
        ]
    lines += [
        "",
        "## Efficiency (Fig. 8e)",
        "",
        f"{result['budget']} searches, {result['seeds']} seeds; means of the objective f in seconds while",
        "searching, and afterwards (95 %).",
        "",
    ]
    methods = list(next(iter(result["efficiency"].values()))["methods"])
    lines += [
        f"| contexts | {' | '.join(methods)} | never defer |",
        "| --- |" + " --: |" * (len(methods) + 1),
    ]
    for source, row in result["efficiency"].items():
        told = [
            f"{found['mean_f_searching_s']['mean']:.2f}, {within(found['mean_f_after_s'])}"
            for found in row["methods"].values()
        ]
        lines.append(f"| {source} | {' | '.join(told)} | {within(row['mean_f_if_never_deferred_s'])} |")
    made = "`python bench/lazer_decision.py` makes this page; its top says how this is measured."
    return "\n".join([*lines, "", made, machine.sentences(numpy=np.__version__), ""])


def cells(s: Row) -> str:
    return f"{s['mean_ms']:.3f} | {s['p99_ms']:.3f}"


def within(value: Row) -> str:
    return f"{value['mean']:.2f} ({value['low']:.2f} to {value['high']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budget", type=int, default=100)
    asked = parser.parse_args()
    sources = {f"recorded, {vc}": recorded(vc, asked.jobs) for vc in VCS}
    sources["synthetic"] = synthetic(2000, 0)
    result: Row = {
        "seeds": asked.seeds,
        "budget": asked.budget,
        "decisions": {vc: decisions(vc, asked.jobs) for vc in VCS},
        "efficiency": {
            name: efficiency(records, asked.seeds, asked.budget) for name, records in sources.items()
        },
        "machine": machine.facts(numpy=np.__version__),
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    PAGE.write_text(page(result))
    print(page(result))


if __name__ == "__main__":
    main()
