"""What a model may know of a job: numbers measured while it ran alone. The vocabulary, and a job's values.

Rule: never a name, never a label. A file's column becomes a feature only if it is in this vocabulary, and
the vocabulary holds nothing that was measured while sharing. The same names mean the same things whether
the values come from a file (`experiments/castor`) or from a live job's profile (here), so that a model
trained on the one can be asked about the other.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from cotenant.controller.domain import Job
from cotenant.controller.performance import INDICATOR_NAMES

Matrix = npt.NDArray[np.float32]

COUNTED: Final = ("batch", "samples_per_s", "steps_per_s", "mem_mib")
SWITCHES: Final = ("amp",)
PERCENTAGES: Final = ("gpu_util_pct", "mem_util_pct")
MEANS: Final = tuple(f"{name}_mean" for name in INDICATOR_NAMES)
VARIANCES: Final = tuple(f"{name}_variance" for name in INDICATOR_NAMES)

VOCABULARY: Final = (
    *PERCENTAGES,
    "mem_mib",
    "samples_per_s",
    "steps_per_s",
    "batch",
    *SWITCHES,
    *MEANS,
    *VARIANCES,
)
"""Of one job. `mem_mib` as the driver reports it; throughputs per device; a batch per device; `amp` 0 or 1;
Table 2 in the units of `profiler/indicators/sources.py`, except that variances are of those units squared."""
UNLIMITED: Final = frozenset(
    (*COUNTED, *(name for name in (*MEANS, *VARIANCES) if name.startswith(("PCI", "NVL", "NET"))))
)
"""Features that span orders of magnitude: distances use their logarithms."""
ADDED_UP: Final = frozenset((*PERCENTAGES, "mem_mib", *MEANS))
"""Features whose sum over two tenants says how full the device gets."""

OCCUPANCY: Final = frozenset((*PERCENTAGES, "GRACT_mean", "SMACT_mean", "DRAMA_mean"))
"""Features of how busy a job keeps a device: the higher for either job, the longer both take."""

SELF, OTHER, SUM = "self.", "other.", "sum."


def columns_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of a model that knows these of each job."""
    sums = [SUM + name for name in names if name in ADDED_UP]
    return (*(SELF + name for name in names), *(OTHER + name for name in names), *sums)


def names_in(columns: tuple[str, ...]) -> tuple[str, ...]:
    """The vocabulary's words that these columns need.

    Raises:
        ValueError: a column that is none of ours.
    """
    names = {column: column.partition(".")[2] for column in columns}
    for column, name in names.items():
        if not column.startswith((SELF, OTHER, SUM)) or name not in VOCABULARY:
            raise ValueError(f"there is no feature {column!r} in this version of cotenant")
    return tuple(name for name in VOCABULARY if name in names.values())


def pair_features(names: tuple[str, ...], jobs: Matrix, others: Matrix, columns: tuple[str, ...]) -> Matrix:
    """Rows of a model: each job beside its other.

    Args:
        names: of the columns of both matrices.
        jobs, others: [n, len(names)], NaN where missing; a sum with a missing part is missing.
        columns: which columns are wanted.
    """
    at = {name: place for place, name in enumerate(names)}
    # Column after column: as it is filled here, and as a forest reads it.
    rows = np.empty((len(jobs), len(columns)), np.float32, order="F")
    for place, column in enumerate(columns):
        kind, _, name = column.partition(".")
        one, two = jobs[:, at[name]], others[:, at[name]]
        rows[:, place] = one if kind == "self" else two if kind == "other" else one + two
    return rows


def job_features(job: Job, names: tuple[str, ...]) -> tuple[float, ...]:
    """A live job's values, from its profile; NaN where it has none.

    Throughput, batch and memory are those of the whole batch (s = 1), per device as everywhere.
    """
    values = dict.fromkeys(names, math.nan)
    profile = job.measured.profile
    if job.batch_size is not None:
        values["batch"] = float(job.batch_size)
    if profile is None:
        return tuple(values[name] for name in names)
    if profile.duty_cycle is not None:
        values["gpu_util_pct"] = 100.0 * profile.duty_cycle
    whole = profile.point_at(1)
    if whole is not None:
        values["mem_mib"], values["steps_per_s"] = whole.memory_mib, 1.0 / whole.step_s
        values["samples_per_s"] = whole.sub_batch / whole.step_s
    if profile.indicators is not None:
        for name in INDICATOR_NAMES:
            stats = profile.indicators.stats_of(name)
            values[f"{name}_mean"] = math.nan if stats.mean is None else stats.mean
            values[f"{name}_variance"] = math.nan if stats.variance is None else stats.variance
            # Where NVML is the source, this is what nvidia-smi calls memory utilisation.
            if name == "DRAMA" and stats.source == "nvml" and stats.mean is not None:
                values["mem_util_pct"] = 100.0 * stats.mean
    return tuple(values[name] for name in names)
