"""What an operator can ask for: a metric and how it is measured over the jobs (PCS, section 3.2).

Rule: all are better when smaller. An objective is written `METRIC:MEASURE`, as `jct:mean` or `error:p99`; the
same metric may be asked for twice with two measures.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.sim import Outcome

METRICS: Final[dict[str, str]] = {
    "jct": "completion time in seconds",
    "error": "|JCT - told| / told",
    "unfairness": "how much later than with its equal share, as a part of that",
}


class Objective(NamedTuple):
    """One objective of several that are traded against each other."""

    metric: str
    measure: str = "mean"

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Raises ValueError."""
        metric, _, measure = text.partition(":")
        found = cls(metric, measure or "mean")
        if metric not in METRICS:
            raise ValueError(f"there is no metric {metric!r}: there are {', '.join(METRICS)}")
        if found.measure != "mean" and not (
            re.fullmatch(r"p\d{1,2}(\.\d+)?", found.measure) and float(found.measure[1:]) < 100.0
        ):
            raise ValueError(f"{text!r} is measured by mean or a percentile such as p99, got {measure!r}")
        return found

    def __str__(self) -> str:
        return f"{self.metric}:{self.measure}"

    def of(self, outcome: Outcome) -> float:
        values = _values(outcome, self.metric)
        if not len(values):
            return float("inf")
        if self.measure == "mean":
            return float(values.mean())
        return float(np.percentile(values, float(self.measure[1:])))


def _values(outcome: Outcome, metric: str) -> NDArray[np.float64]:
    done = outcome.finished
    if metric == "jct":
        return outcome.jct_s[done]
    if metric == "unfairness":
        assert outcome.fair_s is not None, "only the fluid world knows fair times"
        return np.maximum(outcome.jct_s[done] / outcome.fair_s[done] - 1.0, 0.0)
    assert outcome.predicted_s is not None, "nobody was asked"
    asked = done & np.isfinite(outcome.predicted_s)
    return np.abs(outcome.jct_s[asked] / outcome.predicted_s[asked] - 1.0)
