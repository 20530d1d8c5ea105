"""Policies compared seed by seed: how much better or worse than the first, and how sure that is.

Rule: every policy gets the same jobs under the same seed, so differences are taken within seeds and only then
averaged. What the jobs of a seed have in common drops out of them; two separate intervals that overlap say
nothing about a difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cotenant.controller.sim.results.intervals import interval

MEASURES: Final = (("jct_s", "mean"), ("jct_s", "p50"), ("jct_s", "p95"), ("wait_s", "mean"))


def paired(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each policy against the first one, for each measure: mean difference, and half of its 95 % interval
    (Student's, of the differences). Only whole runs and seeds that both have; nothing below two seeds."""
    runs: dict[str, dict[int, Mapping[str, Any]]] = {}
    for summary in summaries:
        if not summary["interrupted"]:
            runs.setdefault(str(summary["label"]), {})[int(summary["seed"])] = summary
    labels = list(dict.fromkeys(str(summary["label"]) for summary in summaries))
    if not labels or labels[0] not in runs:
        return []
    first = runs[labels[0]]
    found = []
    for label in labels[1:]:
        both = sorted(first.keys() & runs.get(label, {}).keys())
        for name, part in MEASURES:
            here = [(runs[label][seed][name], first[seed][name]) for seed in both]
            differences = [one[part] - other[part] for one, other in here if one and other]
            if len(differences) >= 2:
                mean, half = interval(differences)
                found.append(
                    {
                        "policy": label,
                        "against": labels[0],
                        "measure": f"{name}.{part}",
                        "difference": mean,
                        "half": half,
                        "seeds": len(differences),
                    }
                )
    return found
