"""What a trace is like, in numbers: for `sim trace show`, and to look before one simulates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cotenant.controller.sim.traces.trace import Floats, Trace


def describe(trace: Trace, *, gpus: int | None = None) -> dict[str, Any]:
    """Counts and statistics. Where each VC has its own clock, times between arrivals are given per VC only.

    Args:
        gpus: of the cluster that the offered load is for; None = no offered load.

    Numbers that make no sense for the trace are None, never NaN: the result goes into JSON.
    """
    one_clock = not trace.clock_per_vc
    return {
        "name": trace.name,
        "source": trace.source,
        "licence": trace.licence or None,
        "synthetic": trace.synthetic,
        "clock_per_vc": trace.clock_per_vc,
        "jobs": len(trace),
        **_jobs(trace, gpus, arrivals=one_clock),
        "users": len(trace.user.counts()) or None,
        "models": list(trace.model.counts()),
        "states": trace.state.counts(),
        "hp_jobs": int(np.count_nonzero(trace.hp)),
        "vcs": vcs(trace, gpus=gpus),
        "excluded": dict(trace.excluded),
        "notes": list(trace.notes),
    }


def vcs(trace: Trace, *, gpus: int | None = None) -> list[dict[str, Any]]:
    """One row a VC, largest first."""
    rows = []
    for vc, jobs in sorted(trace.vc.counts().items(), key=lambda each: (-each[1], each[0])):
        part = trace if len(trace.vc.counts()) == 1 and jobs == len(trace) else trace.of_vc(vc)
        rows.append({"vc": vc, "jobs": jobs, **_jobs(part, gpus, arrivals=True)})
    return rows


def offered_load(trace: Trace, gpus: int) -> float | None:
    """GPU-seconds that arrive / those that `gpus` devices have while they arrive; None without a span."""
    if trace.clock_per_vc or len(trace) < 2:
        return None
    span_s = float(trace.submit_s[-1] - trace.submit_s[0])
    return float(np.dot(trace.duration_s, trace.gpus)) / (span_s * gpus) if span_s > 0.0 else None


def _jobs(trace: Trace, gpus: int | None, *, arrivals: bool) -> dict[str, Any]:
    between_s = np.diff(trace.submit_s) if arrivals else np.empty(0)
    span_s = float(trace.submit_s[-1] - trace.submit_s[0]) if arrivals else math.nan
    return {
        "span_s": _number(span_s),
        "duration_s": statistics(trace.duration_s),
        "gpus": statistics(trace.gpus),
        "one_gpu_share": float(np.mean(trace.gpus <= 1.0)),
        "gpu_hours": float(np.dot(trace.duration_s, trace.gpus)) / 3600.0,
        "interarrival_s": statistics(between_s),
        "offered_load": None if gpus is None or not arrivals else offered_load(trace, gpus),
    }


def statistics(values: Floats) -> dict[str, float | None]:
    """Mean, quantiles and maximum; all None where there are no values."""
    names = ("mean", "p50", "p90", "p95", "p99", "max")
    if not len(values):
        return dict.fromkeys(names)
    quantiles = np.quantile(values, (0.5, 0.9, 0.95, 0.99, 1.0))
    return dict(zip(names, (float(np.mean(values)), *quantiles.tolist()), strict=True))


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
