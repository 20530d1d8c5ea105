"""A table of jobs whose columns somebody names: `submit=created,start=began,end=ended,gpus=nodes*4`.

Rule: the user says which column is which, and a value says by its form what it is: a number of seconds, a
date, `1-02:03:04`, Slurm's list of resources. Nothing else is guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from cotenant.controller.sim.traces.batch_logs import gpus_of
from cotenant.controller.sim.traces.drafting import Source, clock_s, elapsed_s, times_from_first
from cotenant.controller.sim.traces.table import separator_of, table
from cotenant.controller.sim.traces.trace import Trace, TraceProblem, nearest, show_value

FIELDS: Final = ("submit", "start", "end", "duration", "gpus", "user", "id")
EPOCH_S_MAX: Final = 1e11
"""The year 5138: a greater number counts milliseconds, or less."""
_SCALED: Final = re.compile(r"(.+?)\s*([*/])\s*([0-9]{1,6}(?:\.[0-9]{1,6})?)")
MOMENT: Final = "a time: seconds since 1970 (not milliseconds), or like 2020-06-09 18:41:01"
LENGTH: Final = "a duration: seconds, or like 1-02:03:04"
COUNT: Final = "a number of GPUs, or resources like cpu=8,gres/gpu=2"


def column_map(text: str) -> dict[str, str]:
    """The column of each field.

    Raises:
        TraceProblem: it does not read like the example above, or a field is missing.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, column = (each.strip() for each in part.partition("="))
        if name not in FIELDS or not (equals and column):
            what = f"{show_value(part.strip())} is not FIELD=COLUMN"
            raise TraceProblem(what, hint=nearest(name, FIELDS) or f"fields are {', '.join(FIELDS)}")
        if name in found:
            raise TraceProblem(f"{name} is there twice")
        found[name] = column
    missing = [name for name in ("submit", "gpus") if name not in found]
    if "duration" not in found and not {"start", "end"} <= found.keys():
        missing.append("duration, or start and end")
    if missing:
        example = "as in --map submit=created,duration=seconds,gpus=nodes*4"
        raise TraceProblem(f"no column is given for {'; '.join(missing)}", hint=example)
    return found


def read_mapped(text: str, columns: Mapping[str, str], *, name: str) -> Trace:
    """Raises TraceProblem where a column is missing, a value cannot be read, or no job is left."""
    scaled = _SCALED.fullmatch(columns["gpus"])
    columns = {**columns, "gpus": scaled[1] if scaled else columns["gpus"]}
    factor = 1.0 if scaled is None else float(scaled[3]) ** (1 if scaled[2] == "*" else -1)
    needed = tuple(dict.fromkeys(columns.values()))
    jobs = table(text, name, wanted=needed, required=needed, quotes=separator_of(text) != "|")
    moment = {
        field: jobs.parse_column(columns[field], moment_s, MOMENT)
        for field in ("submit", "start", "end")
        if field in columns
    }
    texts = {to: columns[field] for field, to in (("user", "user"), ("id", "job_ids")) if field in columns}
    return Source(name, texts).trace(
        jobs,
        name,
        submit_s=times_from_first(moment["submit"]),
        duration_s=jobs.parse_column(columns["duration"], length_s, LENGTH)
        if "duration" in columns
        else moment["end"] - moment["start"],
        gpus=jobs.parse_column(columns["gpus"], gpu_count, COUNT) * factor,
    )


def moment_s(text: str) -> float:
    """Seconds since 1970 that `text` stands for, as a date or a number. Raises ValueError: neither a date nor
    seconds since 1970."""
    seconds = _number(text)
    if seconds is None:
        return clock_s(text)
    if abs(seconds) > EPOCH_S_MAX:
        raise ValueError(text)
    return seconds


def length_s(text: str) -> float:
    """The duration that `text` states, in seconds. Raises ValueError: no duration."""
    seconds = _number(text)
    return elapsed_s(text) if seconds is None else seconds


def gpu_count(text: str) -> float:
    """The number of GPUs that `text` states. Raises ValueError: no number of GPUs."""
    count = _number(text)
    if count is None:
        if text.strip() and "=" not in text and "gpu" not in text:
            raise ValueError(text)
        return gpus_of(text)[0] if text.strip() else math.nan
    if count < 0.0:
        raise ValueError(text)
    return count


def _number(text: str) -> float | None:
    """The finite number that `text` states. None: it is none."""
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return None
    return value if np.isfinite(value) else None
