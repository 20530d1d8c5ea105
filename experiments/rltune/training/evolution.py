"""The training of `scorer`: three weights, by an evolution strategy that begins at sjf's.

Source: CMA-ES (Hansen, "The CMA evolution strategy: a tutorial"), with its default constants; three numbers
need nothing larger. The weights of time and wait are held at 0 and above by taking their absolute values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from cotenant.controller.papers.rltune import SCORED, SJF_WEIGHTS, Layer, OrderModel
from experiments.rltune.training.options import EpochTold, OnEpoch, TraceParts, TrainingOptions
from experiments.rltune.training.rollouts import judge, workers
from experiments.rltune.training.train import Baselines, draft

SIGMA: Final = 0.3
TRAINING_WINDOWS: Final = 12
Floats = NDArray[np.float64]


def train_scorer(options: TrainingOptions, tell: OnEpoch) -> OrderModel:
    """An epoch is one generation; each is judged on the same training windows.

    Raises: as `train_rltune`.
    """
    cpu_s = time.process_time()
    traces = [TraceParts.open_for_training(name, options) for name in options.traces]
    generator = np.random.default_rng(options.seed)
    with workers(options) as pool:
        chosen = [part for each in traces for part in each.choose(options.validation_windows)]
        baselines = Baselines(chosen, options, pool)
        practice = [traces[at % len(traces)].draw(generator) for at in range(TRAINING_WINDOWS)]
        begun = pool.map(judge, [(part, None, options.base, options.metric) for part in practice])

        def costs(generation: list[Floats]) -> list[float]:
            calls = [
                (part, _model(options, each), "", options.metric) for each in generation for part in practice
            ]
            found = pool.map(judge, calls)
            rows = [found[at : at + len(practice)] for at in range(0, len(found), len(practice))]
            # The geometric mean of ratios: a window of long waits is not all that counts.
            return [
                math.fsum(math.log((own + 1.0) / (base + 1.0)) for own, base in zip(row, begun, strict=True))
                for row in rows
            ]

        curve: list[float] = []
        best: tuple[float, Floats, list[float]] | None = None
        search = evolution(np.array(SJF_WEIGHTS), SIGMA, costs, generator)
        for epoch in range(options.epochs + 1):
            mean = np.array(SJF_WEIGHTS) if epoch == 0 else next(search)
            model = _model(options, mean)
            own = pool.map(judge, [(part, model, "", options.metric) for part in chosen])
            curve.append(baselines.ratio(own))
            if best is None or curve[-1] < best[0]:
                best = curve[-1], mean, own
            tell(EpochTold(epoch, options.epochs, curve[-1], best[0], 0.0))
        assert best is not None
        return baselines.model(
            "scorer", SCORED, _layers(best[1]), best[2], curve=curve, cpu_s=pool.cpu_s() - cpu_s
        )


def _layers(point: Floats) -> tuple[Layer, ...]:
    a, b, c = (float(each) for each in point)
    return (Layer(weights=((abs(a),), (b,), (abs(c),)), biases=(0.0,)),)


def _model(options: TrainingOptions, point: Floats) -> OrderModel:
    return msgspec.structs.replace(draft(options, _layers(point)), policy="scorer", columns=SCORED)


def evolution(mean: Floats, sigma: float, costs: object, generator: np.random.Generator) -> Iterator[Floats]:
    """The mean after each generation. `costs`: of several points, the lower the better."""
    assert callable(costs)
    n = len(mean)
    count = 4 + int(3 * math.log(n))
    parents = count // 2
    share = math.log(parents + 0.5) - np.log(np.arange(1, parents + 1))
    share /= share.sum()
    mu = 1.0 / float((share**2).sum())
    c_sigma = (mu + 2) / (n + mu + 5)
    damping = 1 + 2 * max(0.0, math.sqrt((mu - 1) / (n + 1)) - 1) + c_sigma
    c_c = (4 + mu / n) / (n + 4 + 2 * mu / n)
    c_1 = 2 / ((n + 1.3) ** 2 + mu)
    c_mu = min(1 - c_1, 2 * (mu - 2 + 1 / mu) / ((n + 2) ** 2 + mu))
    expected = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
    covariance, path, path_sigma = np.eye(n), np.zeros(n), np.zeros(n)
    generations = 0
    while True:
        generations += 1
        values, vectors = np.linalg.eigh(covariance)
        root = vectors @ np.diag(np.sqrt(np.maximum(values, 1e-20))) @ vectors.T
        steps = [root @ generator.standard_normal(n) for _ in range(count)]
        order = np.argsort(costs([mean + sigma * step for step in steps]), kind="stable")[:parents]
        best = np.array([steps[at] for at in order])
        step = share @ best
        mean = mean + sigma * step
        inverse = vectors @ np.diag(1.0 / np.sqrt(np.maximum(values, 1e-20))) @ vectors.T
        path_sigma = (1 - c_sigma) * path_sigma + math.sqrt(c_sigma * (2 - c_sigma) * mu) * (inverse @ step)
        length = float(np.linalg.norm(path_sigma))
        fresh = length / math.sqrt(1 - (1 - c_sigma) ** (2 * generations)) < (1.4 + 2 / (n + 1)) * expected
        path = (1 - c_c) * path + fresh * math.sqrt(c_c * (2 - c_c) * mu) * step
        late = (not fresh) * c_c * (2 - c_c)
        covariance = (
            (1 - c_1 - c_mu) * covariance
            + c_1 * (np.outer(path, path) + late * covariance)
            + c_mu * (best.T * share) @ best
        )
        sigma *= math.exp(c_sigma / damping * (length / expected - 1))
        yield mean
