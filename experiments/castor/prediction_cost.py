"""What a prediction of interference costs: our forest in numpy beside XGBoost's own, and a policy's question.

    python experiments/castor/prediction_cost.py

The model is as large as training makes them (200 trees of up to 16 leaves) and looks at all of Castor's Table
2, means and variances, of both jobs. It is trained on INVENTED numbers: what it says means nothing, what it
takes does. Each row of the table is asked many times, in this process, on one thread; in processor time, so
that it does not depend on what else the machine does. The budgets are 1 ms for one and 10 ms for 1,000.

* `forest` and `xgboost`: rows of features in, ratios out. XGBoost by `inplace_predict`, its quickest way.
* `pair`: a policy's question about two jobs, `PairTable.interference`: both ratios and the margin. `new`:
  jobs that were never asked about (features read from their profiles); `known`: asked before.
* `beside many`: one newcomer beside 1,000 partners, none asked about before; jobs known, and new.

Prints the table and writes `experiments/results/bench-predictor.md`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine
import msgspec
import numpy as np
import xgboost

from cotenant.controller.domain import Job, JobId, JobMeasurements, JobSpec, because
from cotenant.controller.knowledge import PairTable
from cotenant.controller.models.interference.features import MEANS, VARIANCES, pair_features
from cotenant.controller.models.interference.predictor import Predictor
from cotenant.controller.performance import (
    INDICATOR_NAMES,
    Indicators,
    IndicatorStats,
    InterferenceModel,
    Profile,
)
from cotenant.controller.training import boosting
from experiments.castor.interference import training
from experiments.castor.interference.pair_rows import PairRows
from experiments.shared import paths

PAGE: Final = paths.RESULTS / "bench-predictor.md"
NAMES: Final = (*MEANS, *VARIANCES)
MANY: Final = 1000
REPEATS: Final = 300


class Line(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    count: int
    p50_ms: float
    p99_ms: float
    budget_ms: float | None = None


def main() -> None:
    model, booster = trained()
    lines = [*rows(model, booster), *questions(model)]
    text = page(model, lines)
    PAGE.write_text(text)
    print(text)


def invented_jobs(count: int, seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    chance = np.random.default_rng(seed)
    means = chance.random((count, len(MEANS)))
    return np.concatenate((means, 0.1 * means * chance.random(means.shape)), axis=1).astype(np.float32)


def trained() -> tuple[InterferenceModel, boosting.Fitted]:
    first, second = invented_jobs(1500, 1), invented_jobs(1500, 2)
    noise = np.random.default_rng(3).normal(0.0, 0.05, (len(first), 2))
    xi = 1.0 + np.abs(first[:, :1] + second[:, :1] - 0.7) + 0.3 * first[:, 4:5] * second[:, 4:5] + noise
    models = tuple((f"m{n % 11}", f"m{n % 13}") for n in range(len(first)))
    pairs = PairRows(
        names=NAMES,
        first=first,
        second=second,
        xi=xi.astype(np.float64),
        groups=tuple("+".join(sorted(both)) for both in models),
        models=models,
        types=("",) * len(first),
        name="invented",
    )
    settings = training.GRID[2]
    model = training.train([pairs], 1, candidates=(settings,))
    table = training.PairColumns(pairs)
    return model, table.fit(np.ones(len(pairs), bool), settings, 1)


def rows(model: InterferenceModel, booster: boosting.Fitted) -> list[Line]:
    """Both evaluate the same trees."""
    predictor = Predictor(model)
    one, two = invented_jobs(MANY, 4), invented_jobs(MANY, 5)
    asked = pair_features(predictor.names, one, two, model.features)
    ours, theirs = predictor._forest.predict, booster.predict
    assert np.abs(ours(asked) - theirs(asked)).max() < 1e-5
    return [
        measured("forest", 1, lambda: ours(asked[:1]), 1.0),
        measured("xgboost", 1, lambda: theirs(asked[:1])),
        measured("forest", MANY, lambda: ours(asked), 10.0),
        measured("xgboost", MANY, lambda: theirs(asked)),
    ]


def questions(model: InterferenceModel) -> list[Line]:
    partners = [job(number, values) for number, values in enumerate(invented_jobs(MANY, 6).tolist())]
    newcomers = iter([job(number, v) for number, v in enumerate(invented_jobs(8 * REPEATS, 7).tolist())])
    table = PairTable(foresight=Predictor(model))
    fresh = iter([Predictor(model) for _ in range(REPEATS // 10 + 10)])
    table.interferences((next(newcomers),), partners)
    return [
        measured("pair, new", 1, lambda: table.interference(next(newcomers), partners[0]), 1.0),
        measured("pair, known", 1, lambda: table.interference(partners[1], partners[0]), 1.0),
        measured(
            "beside many, partners known",
            MANY,
            lambda: table.interferences((next(newcomers),), partners),
            10.0,
        ),
        measured(
            "beside many, all new",
            MANY,
            lambda: PairTable(foresight=next(fresh)).interferences(partners[:1], partners),
            repeats=REPEATS // 10,
        ),
    ]


def job(number: int, values: list[float]) -> Job:
    half = len(INDICATOR_NAMES)
    stats = {
        name: IndicatorStats(mean=values[at], variance=values[half + at], source="gpm")
        for at, name in enumerate(INDICATOR_NAMES)
    }
    return Job(
        spec=JobSpec(job_id=JobId(str(number))),
        number=number,
        submitted_s=0.0,
        reason=because("submitted", "ann"),
        measured=JobMeasurements(profile=Profile(indicators=Indicators(**stats))),
    )


def measured(
    what: str, count: int, ask: Callable[[], object], budget_ms: float | None = None, repeats: int = REPEATS
) -> Line:
    for _ in range(5):
        ask()
    times_ms = []
    for _ in range(repeats):
        began_s = time.process_time()
        ask()
        times_ms.append(1000.0 * (time.process_time() - began_s))
    return Line(
        what=what,
        count=count,
        p50_ms=statistics.median(times_ms),
        p99_ms=float(np.percentile(times_ms, 99)),
        budget_ms=budget_ms,
    )


def page(model: InterferenceModel, lines: list[Line]) -> str:
    leaves = (sum(model.trees.sizes) + len(model.trees.sizes)) // 2
    head = [
        "# What a prediction of interference costs",
        "",
        (
            f"The forest predicts one pair in {lines[0].p50_ms:.3f} ms of processor time, XGBoost in "
            f"{lines[1].p50_ms:.3f} ms; the budget is {lines[0].budget_ms:g} ms."
        ),
        "",
        "Made by `python experiments/castor/prediction_cost.py`, whose top says what is measured. Trained on",
        "INVENTED numbers.",
        machine.sentences(numpy=np.__version__, xgboost=xgboost.__version__),
        "",
        f"{len(model.trees.sizes)} trees, {leaves:,} leaves, {len(model.features)} features.",
        "Milliseconds of processor time, one thread.",
        "",
        "| what | asked at once | p50 (ms) | p99 (ms) | budget (ms) |",
        "| --- | --: | --: | --: | --: |",
    ]
    rows = [
        f"| {each.what} | {each.count:,} | {each.p50_ms:.3f} | {each.p99_ms:.3f} | "
        f"{'' if each.budget_ms is None else f'{each.budget_ms:g}'} |"
        for each in lines
    ]
    return "\n".join([*head, *rows]) + "\n"


if __name__ == "__main__":
    main()
