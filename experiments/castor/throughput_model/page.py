"""The validation's numbers as tables and as a page. Pure: everything comes from the JSON result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from experiments.castor.throughput_model.live import LiveJob

LIMITS: Final = {"mean": 0.085, "worst": 0.11, "seen": 0.25}
"""Held out: mean over applications, each of them; seen: above four devices."""
HEAD: Final = """\
# How far the throughput model is from measured step times

Made by `python experiments/castor/throughput.py --live --write experiments/results/throughput.md --pictures
docs/pictures`. The protocol stands in that file and was committed before the first number was looked at; one
clause was added since (of ncf, the largest batch was measured on one device only). The form of the law
(logarithmic growth, three levels for a growth term, the priors) was chosen on the same data with another
seed: what follows is held out for the numbers of each fit, but not for the choice of the law.

[What the model is](../../docs/throughput-model.md).
"""
DATA: Final = """\
The data: step times of six applications by batch size and placement on up to 64 GPUs, four to a host (Qiao et
al., OSDI 2021; Apache-2.0). Each application is fitted on its own. An error is the mean of |predicted -
measured| / measured over held-out rows.
"""
PICTURES: Final = """\
![Error of each application](../../docs/pictures/throughput-errors.svg)

![Predicted against measured](../../docs/pictures/throughput-scatter.svg)
"""
LIVE: Final = """\
A slot is one core, which time-slices: this says that the law fits such jobs, not how GPUs behave. Each job
was profiled alone at five numbers of accumulation steps; each inner one is predicted from the others. A line
through the first and the last of the others is what a job without a fitted model is predicted by. What else
ran on these cores is in the times; how much it was stands below.
"""


def tables(result: dict[str, Any]) -> str:
    """All tables of a result, as Markdown that also reads well in a terminal."""
    parts = []
    if "applications" in result:
        parts += [held_out(result), seen(result), cost(result)]
    if "live" in result:
        parts.append(live(msgspec.convert(result["live"], list[LiveJob], strict=False)))
    return "\n\n".join(parts)


def page(result: dict[str, Any]) -> str:
    """The page for experiments/results."""
    facts = result["machine"]
    machine = (
        f"Machine: {facts['cores']} cores ({facts['processor']}), {facts['memory_gib']} GiB.\n"
        f"Python {facts['python']}, numpy {facts['numpy']}, scipy {facts['scipy']}. "
        f"Commit: {facts['commit']}."
    )
    return "\n".join([HEAD, DATA, tables(result), "", PICTURES, machine, ""])


# --- Six applications ----------------------------------------------------------------------------------


def held_out(result: dict[str, Any]) -> str:
    columns = ("rows", "placements", "error (%)", "each seed", "95th percentile", "bias", "in the range")
    lines = ["## Placements held out", "", *_head("application", *columns, "by counts (%)")]
    means, harder = [], []
    for app, found in result["applications"].items():
        seeds = [one["mean"] for one in found["held_out"]]
        means.append(_mean(seeds))
        harder.append(_mean(one["mean"] for one in found["held_out_by_counts"]))
        lines.append(
            _row(
                app,
                f"{found['rows']:,}",
                found["placements"],
                f"**{_percent(means[-1])}**",
                ", ".join(map(_percent, seeds)),
                _percent(_mean(one["p95"] for one in found["held_out"])),
                f"{100 * _mean(one['bias'] for one in found['held_out']):+.1f}",
                f"{100 * found['held_out_in_range']:.0f} %",
                _percent(harder[-1]),
            )
        )
    asked = f"asked: at most {_percent(LIMITS['mean'])} and {_percent(LIMITS['worst'])}"
    summary = (
        f"Mean over applications {_percent(_mean(means))} %, the worst {_percent(max(means))} % ({asked}). "
        f"By counts, that is with all placements of as many hosts and devices held out together: "
        f"{_percent(_mean(harder))} %, the worst {_percent(max(harder))} %. "
        f"{_unknown(result)} In the range: of the four in five that a prediction names (unknown: outside)."
    )
    return "\n".join([*lines, "", summary])


def _unknown(result: dict[str, Any]) -> str:
    found = {app: one["unknown_reach"] for app, one in result["applications"].items()}
    shares = ", ".join(f"{app} {sum(counts)}" for app, counts in found.items())
    return (
        "Rows of a reach that no other fold had are counted in all errors, though a model says that it does "
        f"not know them (by placement, over all seeds: {shares})."
    )


def seen(result: dict[str, Any]) -> str:
    applications = result["applications"]
    bands = list(next(iter(applications.values()))["seen"]["by_devices"])
    columns = (
        "rows fitted",
        "its own claim (%)",
        "error above 4 devices (%)",
        *bands,
        "bias",
        "in the range",
    )
    lines = ["## From what a profiler sees", "", *_head("application", *columns)]
    for app, found in applications.items():
        one = found["seen"]
        lines.append(
            _row(
                app,
                one["fitted_rows"],
                _percent(one["claimed"]),
                f"**{_percent(one['error']['mean'])}**",
                *(_percent(one["by_devices"][band]) for band in bands),
                f"{100 * one['error']['bias']:+.1f}",
                f"{100 * one['in_range']:.0f} %",
            )
        )
    errors = [found["seen"]["error"]["mean"] for found in applications.values()]
    summary = (
        f"Mean over applications {_percent(_mean(errors))} %, the worst {_percent(max(errors))} % "
        f"(asked: at most {_percent(LIMITS['seen'])})."
    )
    return "\n".join([*lines, "", summary])


def cost(result: dict[str, Any]) -> str:
    taken = result["fit_ms"]
    return (
        f"One fit takes {taken['profile']:.0f} ms of processor time to a profile and "
        f"{taken['every row']:.0f} ms to every row of an application (medians);\n"
        "the model's error costs one more for each part held out."
    )


# --- Live ----------------------------------------------------------------------------------------------


def live(jobs: list[LiveJob]) -> str:
    columns = (
        "workers",
        "ms at s",
        "steps",
        "error (%)",
        "of the line (%)",
        "own claim (%)",
    )
    lines = ["## Real jobs on CPU slots", "", LIVE, *_head("job", *columns)]
    for job in jobs:
        lines.append(
            _row(
                f"{job.script}, batch {job.batch_size}",
                job.workers,
                ", ".join(f"{1e3 * job.points_s[s]:.1f} at {s}" for s in sorted(job.points_s)),
                job.steps,
                f"**{_percent(job.error())}**",
                _percent(job.error(line=True)),
                job.refused if job.claimed is None else _percent(job.claimed),
            )
        )
    return "\n".join(lines)


# --- Small parts ---------------------------------------------------------------------------------------


def _head(*columns: str) -> list[str]:
    return [_row(*columns), _row("---", *["---:"] * (len(columns) - 1))]


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _mean(values: Iterable[float] | Sequence[float]) -> float:
    return float(np.mean(list(values)))


def _percent(ratio: float) -> str:
    return f"{100.0 * ratio:.1f}"
