"""Policies compared seed by seed, or window by window: how much better or worse than the first, how surely.

Rule: every policy gets the same jobs under the same seed, so differences are taken within seeds and only then
averaged. What the jobs of a seed have in common drops out of them; two separate intervals that overlap say
nothing about a difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cotenant.controller.sim.results.bootstrap import Ratio, ratio
from cotenant.controller.sim.results.intervals import interval

MEASURES: Final = (("jct_s", "mean"), ("jct_s", "p50"), ("jct_s", "p95"), ("wait_s", "mean"))
RATIOS: Final = (("wait_ratio", "wait_s"), ("bsld_ratio", "bsld"), ("jct_ratio", "jct_s"))


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


def paired_windows(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each policy against the first one: ratios of means over the counted jobs of all windows, with intervals
    over windows. Several seeds of a window are one block. Only whole runs that both have."""
    whole = [summary for summary in summaries if not summary["interrupted"]]
    runs = {(str(s["label"]), int(s["window"]), int(s["seed"])): s for s in whole}
    labels = list(dict.fromkeys(str(summary["label"]) for summary in summaries))
    found = []
    for label in labels[1:]:
        both = sorted(key[1:] for key in runs if key[0] == label and (labels[0], *key[1:]) in runs)
        if not both:
            continue
        ratios: dict[str, dict[str, Any] | None] = {}
        for title, name in RATIOS:
            blocks: dict[int, tuple[float, float]] = {}
            for window, seed in both:
                here, there = (runs[one, window, seed][name] for one in (label, labels[0]))
                if here is not None and there is not None:
                    mine, other = blocks.get(window, (0.0, 0.0))
                    blocks[window] = (mine + here["mean"], other + there["mean"])
            ratios[title] = _told(ratio([[list(blocks.values())]]))
        windows = len({window for window, _ in both})
        found.append({"policy": label, "against": labels[0], "windows": windows, **ratios})
    return found


def _told(found: Ratio | None) -> dict[str, Any] | None:
    return None if found is None else found._asdict()
