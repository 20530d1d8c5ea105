"""What two jobs did to each other: ratios, benefits, and the table of pairs, from what was seen. Pure.

Rule: everything is a ratio of times measured on the same device in the same run of the suite. What has no
measurement has an empty cell.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from cotenant.controller.models.interference.features import VOCABULARY
from cotenant.controller.performance import Indicators, Profile
from hwtests.jobs import Job

Mode = Literal["mps", "time-slicing"]
COLUMNS: Final = (
    "gpu_type", "sharing", "model1", "batch1", "amp1", "model2", "batch2", "amp2",
    "xi1", "xi2", "norm1", "norm2", "count1", "count2", "solo1", "solo2",
)  # fmt: skip
SOLO: Final = ("samples_per_s", "mem_mib")


class TooFew(Exception):
    """Not enough steps to say anything; the text says how many there were."""


class Solo(msgspec.Struct, frozen=True, kw_only=True):
    """One job alone on the device."""

    job: Job
    profile: Profile
    step_s: float
    load_s: float
    """From launch to the end of the first step."""
    memory_mib: float
    """At its peak."""
    indicators: Indicators


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One of two that share, at some time."""

    name: str
    launched_s: float
    step: int
    """Steps done."""
    step_s: float
    """Beside the other."""


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """Two jobs that ran together once; `first` was there before."""

    first: str
    second: str
    mode: Mode
    first_step_s: float
    second_step_s: float
    first_xi: float
    second_xi: float
    speed: float
    """Sum of both speeds, each in its own solo speeds: above 1 sharing did more in the same time."""
    benefit: float
    """The newcomer's: (time for its steps if it had waited for the other's) / (that when shared)."""
    first_delay: float
    """The incumbent's time since its launch over what its steps take it alone."""


def together(first: Seen, second: Seen, now_s: float, solos: tuple[Solo, Solo], mode: Mode) -> Sharing:
    """What one run of two showed until now. What their steps take alone is a load and so many solo steps."""
    ratios = (first.step_s / solos[0].step_s, second.step_s / solos[1].step_s)
    alone_s = [
        solo.load_s + seen.step * solo.step_s for seen, solo in zip((first, second), solos, strict=True)
    ]
    waited_s = max(0.0, alone_s[0] - (second.launched_s - first.launched_s)) + alone_s[1]
    return Sharing(
        first=first.name,
        second=second.name,
        mode=mode,
        first_step_s=first.step_s,
        second_step_s=second.step_s,
        first_xi=ratios[0],
        second_xi=ratios[1],
        speed=1 / ratios[0] + 1 / ratios[1],
        benefit=waited_s / (now_s - second.launched_s),
        first_delay=(now_s - first.launched_s) / alone_s[0],
    )


class PairMean(msgspec.Struct, frozen=True, kw_only=True):
    """One pair in one mode, over its runs in both orders; model1 and model2 in alphabetical order."""

    models: tuple[str, str]
    mode: Mode
    xi: tuple[float, float]
    count: int
    speed: float
    benefit: float


def averaged(runs: Iterable[Sharing]) -> list[PairMean]:
    """One row per pair and mode."""
    groups: dict[tuple[tuple[str, str], Mode], list[tuple[float, float, Sharing]]] = {}
    for run in runs:
        forward = run.first <= run.second
        models = (run.first, run.second) if forward else (run.second, run.first)
        ratios = (run.first_xi, run.second_xi) if forward else (run.second_xi, run.first_xi)
        groups.setdefault((models, run.mode), []).append((*ratios, run))
    return [
        PairMean(
            models=models,
            mode=mode,
            xi=(statistics.fmean(row[0] for row in rows), statistics.fmean(row[1] for row in rows)),
            count=len(rows),
            speed=statistics.fmean(row[2].speed for row in rows),
            benefit=statistics.fmean(row[2].benefit for row in rows),
        )
        for (models, mode), rows in sorted(groups.items())
    ]


def table(means: Sequence[PairMean], solos: Mapping[str, Solo], gpu_type: str) -> str:
    """CSV in the schema of the public tables of pairs (`controller.tuning.pair_rows` reads it)."""
    rows = [_row(mean, solos, gpu_type) for mean in means]
    seen = [name for name in VOCABULARY if any(row.get(f"solo{n}_{name}") for row in rows for n in (1, 2))]
    used = [f"solo{n}_{name}" for n in (1, 2) for name in seen]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, *used, "pair"], lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(mean: PairMean, solos: Mapping[str, Solo], gpu_type: str) -> dict[str, str]:
    row = {"gpu_type": gpu_type, "sharing": mean.mode, "pair": "+".join(mean.models)}
    for n, (model, ratio) in enumerate(zip(mean.models, mean.xi, strict=True), start=1):
        solo = solos[model]
        row |= {
            f"model{n}": model,
            f"batch{n}": str(solo.job.batch_size),
            f"amp{n}": "1" if solo.job.precision == "bf16" else "0",
            f"xi{n}": _text(ratio),
            f"norm{n}": _text(1 / ratio),
            f"count{n}": str(mean.count),
            f"solo{n}": _text(1 / solo.step_s),
            f"solo{n}_samples_per_s": _text(solo.job.batch_size / solo.step_s),
            f"solo{n}_mem_mib": _text(solo.memory_mib),
        }
        for name in solo.indicators.measured:
            stats = solo.indicators.stats_of(name)
            row |= {
                f"solo{n}_{name}_mean": _text(stats.mean),
                f"solo{n}_{name}_variance": _text(stats.variance),
            }
    return row


def _text(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.6g}"
