"""The validation's numbers as tables and as a page. Pure: everything comes from the JSON result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from experiments.castor.throughput_model.live import LiveJob
from experiments.shared.tables import said

ANSWER: Final = """
    On placements that a fit has not seen, the throughput model is off by {held:.1f} % of the step time on
    average over six applications, and by {held_worst:.1f} % for the worst. From what a profiler sees (at
    most four devices) it predicts larger placements within {seen:.1f} % on average, {seen_worst:.1f} %
    for the worst.{live}
"""
HELD_OUT: Final = """
    The data are step times of six applications by batch size and placement on up to 64 GPUs, four to a
    host (Qiao et al., OSDI 2021; Apache-2.0). An error is the mean of |predicted - measured| / measured
    over held-out rows. *By counts* holds out all placements with as many hosts and devices together. *In
    the range* is the share of rows inside the range that a prediction names, which should hold four in
    five.
"""
SEEN: Final = """
    Here the fit has only the rows that a profile of one to four devices has, and predicts all larger ones.
"""
LIVE: Final = """
    A slot is one core, which time-slices, so this says that the law fits such jobs and nothing about
    GPUs. Each job was profiled at five numbers of accumulation steps, and each inner one is predicted
    from the others; a job without a fitted model is predicted by a line through the first and the last.
"""
HOW: Final = """
    `python experiments/castor/throughput.py --live --write experiments/results/throughput.md --pictures
    docs/pictures` makes this page. The protocol stands in that file and was committed before the first
    number was looked at; one clause was added since (the largest batch of ncf was measured on one device
    only). The form of the law was chosen on the same data with another seed. A fit takes {profile:.0f} ms
    of processor time to a profile and {every:.0f} ms to every row of an application. [What the model
    is](../../docs/measuring.md).
"""


def tables(result: dict[str, Any]) -> str:
    """All tables of a result, as Markdown that also reads well in a terminal."""
    parts = []
    if "applications" in result:
        parts += [held_out(result), seen(result)]
    if "live" in result:
        parts.append(live(live_jobs(result)))
    return "\n\n".join(parts)


def page(result: dict[str, Any]) -> str:
    """The page for experiments/results."""
    facts = result["machine"]
    machine = (
        f"Machine: {facts['cores']} cores ({facts['processor']}), {facts['memory_gib']} GiB.\n"
        f"Python {facts['python']}, numpy {facts['numpy']}, scipy {facts['scipy']}. "
        f"Commit: {facts['commit']}."
    )
    fit_ms = result["fit_ms"]
    parts = [
        "# How far the throughput model is from measured step times",
        answer(result),
        "![Error of each application](../../docs/pictures/throughput-errors.svg)",
        tables(result),
        "## How this page was made",
        said(HOW, profile=fit_ms["profile"], every=fit_ms["every row"]),
        machine,
    ]
    return "\n\n".join(parts) + "\n"


def answer(result: dict[str, Any]) -> str:
    found = result["applications"].values()
    held = [100.0 * _mean(one["mean"] for one in each["held_out"]) for each in found]
    profiled = [100.0 * each["seen"]["error"]["mean"] for each in found]
    live = ""
    if "live" in result:
        errors = [100.0 * job.error() for job in live_jobs(result)]
        live = f" Real jobs on CPU slots were predicted within {min(errors):.1f} to {max(errors):.1f} %."
    return said(
        ANSWER,
        held=_mean(held),
        held_worst=max(held),
        seen=_mean(profiled),
        seen_worst=max(profiled),
        live=live,
    )


def live_jobs(result: dict[str, Any]) -> list[LiveJob]:
    return msgspec.convert(result["live"], list[LiveJob], strict=False)


# --- Six applications ----------------------------------------------------------------------------------


def held_out(result: dict[str, Any]) -> str:
    columns = ("rows", "placements", "error (%)", "95th percentile", "bias", "by counts (%)", "in the range")
    lines = ["## Placements held out", "", said(HELD_OUT), "", *_head("application", *columns)]
    for app, found in result["applications"].items():
        lines.append(
            _row(
                app,
                f"{found['rows']:,}",
                found["placements"],
                f"**{_percent(_mean(one['mean'] for one in found['held_out']))}**",
                _percent(_mean(one["p95"] for one in found["held_out"])),
                f"{100 * _mean(one['bias'] for one in found['held_out']):+.1f}",
                _percent(_mean(one["mean"] for one in found["held_out_by_counts"])),
                f"{100 * found['held_out_in_range']:.0f} %",
            )
        )
    return "\n".join(lines)


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
    lines = ["## From what a profiler sees", "", said(SEEN), "", *_head("application", *columns)]
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
    return "\n".join(lines)


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
    lines = ["## Real jobs on CPU slots", "", said(LIVE), "", *_head("job", *columns)]
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
