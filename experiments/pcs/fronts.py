"""The front of each VC: searched on its first jobs, judged on all of it; 280 evaluations beside 1,280.

Rule: both come from one search, which is the same up to its 280th evaluation however long it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from cotenant.controller.papers.pcs import WfqConfig, published_form
from cotenant.controller.papers.pcs.preferences import (
    Found,
    Objective,
    SearchSpace,
    front_of,
    search,
)
from cotenant.controller.sim import Cluster
from cotenant.controller.training import evaluator
from experiments.pcs import runs
from experiments.pcs.fluid import FluidWindow, simulate_fluid

FEW, MANY = runs.EVALUATIONS, 1280
JUDGED: Final = 8
"""Points of a front that are run on the whole VC, evenly along it."""
BEYOND: Final = 1.1
"""The corner of the hypervolume: so many times the worst of the longer search's front."""
OBJECTIVES: Final = (Objective("jct"), Objective("error", "p99"))
ASKED: Final = 300
CLUSTER: Final = Cluster(hosts=8, gpus_per_host=8)


def file(vc: str) -> Path:
    return runs.CACHE / f"front-{vc}.json"


def run(vc: str) -> dict[str, Any]:
    """Raises NoPymoo."""
    jobs = runs.workload(vc, None, 0.0, 1.0, CLUSTER.gpus)
    window = FluidWindow(jobs.take(np.arange(runs.SEARCH_JOBS)), CLUSTER, runs.ASKED_RATIO)
    space = SearchSpace.make(window.sizes_gpu_s)
    began_s = time.process_time()
    took_s: dict[int, float] = {}
    fronts: dict[int, tuple[Found, ...]] = {}

    def tell(found: Sequence[Found]) -> None:
        if len(found) in (FEW, MANY):
            took_s[len(found)] = time.process_time() - began_s
            fronts[len(found)] = front_of(found)

    with evaluator("processes", workers=1) as evaluate:
        search(window, space, OBJECTIVES, evaluate, evaluations=MANY, seed=runs.SEED, tell=tell)
    covered = hypervolumes(fronts)
    value = {
        "vc": vc,
        "searches": [
            {
                "evaluations": number,
                "cpu_s": took_s[number],
                "covered": covered[number],
                "points": len(front),
                "judged": [judged(vc, space.config(each.point)) for each in spread(front)],
            }
            for number, front in fronts.items()
        ],
    }
    runs.keep(file(vc), value)
    return value


def hypervolumes(fronts: dict[int, tuple[Found, ...]]) -> dict[int, float]:
    """What each front dominates of the plane up to one corner."""
    from pymoo.indicators.hv import HV

    corner = BEYOND * np.max([each.values for each in fronts[MANY]], axis=0)
    measure = HV(ref_point=np.ones(2))
    return {
        number: float(measure(np.array([each.values for each in front]) / corner))
        for number, front in fronts.items()
    }


def spread(front: tuple[Found, ...]) -> list[Found]:
    places = sorted({round(place) for place in np.linspace(0, len(front) - 1, JUDGED)})
    return [front[place] for place in places]


def judged(vc: str, config: WfqConfig) -> dict[str, Any]:
    """On the whole VC."""
    jobs = runs.workload(vc, None, 0.0, 1.0, CLUSTER.gpus)
    facts = runs.facts(simulate_fluid(jobs, CLUSTER, "pcs", config.as_parameters(), asked=ASKED))
    return {"mean_jct_s": facts["mean_jct_s"], "p99": facts["errors"][99], "config": published_form(config)}
