"""Compares policies of the fluid world on a trace, as JSON: `sim compare` for this world.

    python -m experiments.pcs.fluid philly/0e4a51 fifo srsf afs-l pcs:config=pred.json promise:epsilon=0.5

`prediction_error` is |JCT - told| / told over the jobs that asked at their arrival, and `unfairness` how much
later than with its equal share a job ended.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import numpy as np

from cotenant.controller.sim import Scenario, Workload, open_trace
from cotenant.controller.sim.results.summary import distribution, summarise
from experiments.pcs.fluid import FluidResult, fluid_workload, policy_named, simulate_fluid


def main(words: list[str] | None = None) -> int:
    options = parsed(words)
    chosen = [policy_named(text) for text in options.policies]
    asked = Scenario(
        trace=options.trace, format=options.format, vc=options.vc, from_s=options.from_s, jobs=options.jobs,
        load_scale=options.load_scale, noise=options.noise, hosts=options.hosts,
        gpus_per_host=options.gpus_per_host,
    )  # fmt: skip
    trace = open_trace(options.trace, format=options.format, seed=options.seed)
    workload = fluid_workload(asked, trace, options.seed)
    runs = []
    for text, (policy, parameters) in zip(options.policies, chosen, strict=True):
        outcome = simulate_fluid(
            workload, asked.cluster, policy, parameters, seed=options.seed, asked=options.asked
        )
        runs.append({"label": text, **summarise(outcome), **told_and_fair(outcome)})
    print(json.dumps({"trace": options.trace, "workload": facts(workload), "runs": runs}, indent=1))
    return 0


def told_and_fair(outcome: FluidResult) -> dict[str, Any]:
    """How wrong the predictions were, with and without the sign, and how unfair the division."""
    done = outcome.finished
    told = done & np.isfinite(outcome.predicted_s)
    error = outcome.jct_s[told] / outcome.predicted_s[told] - 1.0
    found = distribution(np.abs(error))
    return {
        "prediction_error": found and {**found, "jobs": len(error), "signed": distribution(error)},
        "unfairness": distribution(np.maximum(outcome.jct_s[done] / outcome.fair_s[done] - 1.0, 0.0)),
    }


def facts(workload: Workload) -> dict[str, Any]:
    return {"name": workload.name, "jobs": len(workload), "synthetic": workload.synthetic}


def parsed(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", help="a file, a bundled name or synth:NAME[:JOBS]")
    parser.add_argument("policies", nargs="+", help="NAME[:KEY=VALUE,...]; pcs:config=FILE[#NAME]")
    parser.add_argument("--asked", type=int, default=2500, help="so many jobs ask when they will have ended")
    parser.add_argument("--format", default="auto")
    parser.add_argument("--vc")
    parser.add_argument("--from-s", type=float)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--load-scale", type=float, default=1.0)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--gpus-per-host", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
