"""How fast jobs of a trace are on more devices: measured curves, and what a job without one gets.

Rule: a curve is a measurement of a model (Hwang et al., AFS, NSDI '21, as published with PCS); a job takes
that of its model. Our choices, where the table is silent:

* A trace that names none of these models gets them drawn by the seed, as PCS draws them.
* A job whose model was measured on too few devices takes the first curve, in order of names, that was
  measured on enough. A job wider than every curve is refused: nobody knows how fast it is.
* What the trace says of a job (a time on so many devices) is its work in device-seconds at the pace of one
  device alone: time x devices. So alone on all of its devices it takes longer than the trace says, as its
  curve falls behind; published PCS reads the trace the same way.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import replace
from functools import cache
from importlib.resources import files

import numpy as np

from cotenant.controller.sim.traces.table import decode_utf_8, unpack_gzip
from cotenant.controller.sim.traces.trace import TraceProblem
from cotenant.controller.sim.world.workload import Workload


@cache
def measured_speedups() -> dict[str, tuple[float, ...]]:
    """Model -> speedup on 1, 2 ... devices."""
    file = "pcs_scaling.csv.gz"
    packed = (files("cotenant.controller.sim") / "data" / file).read_bytes()
    found: dict[str, list[float]] = defaultdict(list)
    for row in csv.DictReader(decode_utf_8(unpack_gzip(packed, file), file).splitlines()):
        found[row["model"]].append(float(row["speedup"]))
        assert int(row["gpus"]) == len(found[row["model"]]), "a curve has no gaps"
    return {model: tuple(values) for model, values in found.items()}


@cache
def speedup(model: str, gpus: int) -> tuple[float, ...]:
    """The speedups, on 1, 2 ... devices, of a job of that model that uses at most so many.

    Raises: TraceProblem: no curve is as wide.
    """
    curves = measured_speedups()
    own = curves.get(model, ())
    if len(own) < gpus:
        wide = [name for name in sorted(curves) if len(curves[name]) >= gpus]
        if not wide:
            most = max(map(len, curves.values()))
            raise TraceProblem(
                f"a job of {gpus} GPUs has no speedup curve: the widest was measured on {most}",
                hint="use a smaller cluster: jobs wider than it are left out",
            )
        own = curves[wide[0]]
    return own[:gpus]


def curve_scaled_workload(workload: Workload) -> Workload:
    """The workload with the same jobs, whose times are those alone on all of their devices, as their curves
    say."""
    gpus = workload.gpus.astype(np.float64)
    alone = gpus / np.array([curve[-1] for curve in speedups_of(workload)])
    return replace(workload, duration_s=workload.duration_s * alone, expected_s=workload.expected_s * alone)


def elastic_workload(workload: Workload) -> Workload:
    """Jobs of `by_curve` that take any number of devices up to all of theirs."""
    return replace(workload, speedups=tuple(speedups_of(workload)))


def speedups_of(workload: Workload) -> list[tuple[float, ...]]:
    """The speedups of each job on 1, 2 ... devices up to all of its own, in the order of the jobs."""
    names = (*workload.models, "")  # -1, no model, is the last.
    return [
        speedup(names[model], gpus)
        for model, gpus in zip(workload.model.tolist(), workload.gpus.tolist(), strict=True)
    ]
