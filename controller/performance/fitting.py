"""The request for a job's throughput model, and what the answer means. Pure. Rule: the engine asks, a compute
worker fits, and the answer is an event. An answer names how many points it rests on: the engine drops one
about a profile that has grown since, and awaits the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cotenant.controller.performance import throughput
from cotenant.controller.performance.perf import Profile

KIND: Final = "throughput-fit"
"""Of the request, as `controller/training/kinds.py` knows it."""
SUB_BATCHES_MIN: Final = 3
"""Fewer determine no model with an error (`profiler/throughput.py`), so none is asked for."""

Payload = dict[str, str | int | float | list[float]]
Numbers = Sequence[float]

_REACHES: Final[tuple[throughput.Reach, ...]] = ("device", "host", "hosts")
_COEFFICIENTS: Final = len(throughput.Coefficients.__struct_fields__)
_HEAD: Final = 4 + len(_REACHES)
_COLUMNS: Final = ("batch_size", "accumulation_steps", "devices", "hosts", "step_s")


def measured_steps(
    profile: Profile, batch_size: int, gang: throughput.Gang
) -> tuple[throughput.MeasuredStep, ...]:
    """A profile's points as a fit wants them; a point that does not name its gang is of the job's own.

    Args:
        batch_size: samples per device and step; points of another total are taken as they were measured.
    """
    return tuple(
        throughput.MeasuredStep(
            batch_size=_batch(point.sub_batch, point.accumulation_steps, batch_size),
            accumulation_steps=point.accumulation_steps,
            gang=point.gang or gang,
            step_s=point.step_s,
        )
        for point in profile.points
    )


def _batch(sub_batch: int, accumulation_steps: int, batch_size: int) -> float:
    """The samples of a step: of 10 in 4 micro-batches of at most 3, the last is smaller."""
    same = -(-batch_size // accumulation_steps) == sub_batch
    return batch_size if same else sub_batch * accumulation_steps


def question(profile: Profile, batch_size: int, gang: throughput.Gang) -> Payload | None:
    """What to ask about a profile, or None for one that says too little."""
    if len({point.sub_batch for point in profile.points}) < SUB_BATCHES_MIN:
        return None
    steps = measured_steps(profile, batch_size, gang)
    rows = [
        (step.batch_size, step.accumulation_steps, step.gang.devices, step.gang.hosts, step.step_s)
        for step in steps
    ]
    return {name: [float(row[at]) for row in rows] for at, name in enumerate(_COLUMNS)}


def steps_in(payload: Mapping[str, object]) -> list[throughput.MeasuredStep]:
    """The measured steps of a question.

    Raises:
        ValueError: it is not one.
    """
    columns = [msgspec.convert(payload.get(name), list[float]) for name in _COLUMNS]
    if len({len(column) for column in columns}) != 1:
        raise ValueError(f"columns of unequal length: {', '.join(_COLUMNS)}")
    return [
        throughput.MeasuredStep(
            batch_size=batch_size,
            accumulation_steps=int(s),
            gang=throughput.Gang(devices=int(devices), hosts=int(hosts)),
            step_s=step_s,
        )
        for batch_size, s, devices, hosts, step_s in zip(*columns, strict=True)
    ]


def numbers(model: throughput.ThroughputModel) -> tuple[float, ...]:
    """A model as an answer's values."""
    return (
        model.error_ratio,
        model.noise,
        model.width,
        float(model.steps),
        *(float(reach in model.reaches) for reach in _REACHES),
        *msgspec.structs.astuple(model.coefficients),
        *(value for row in model.covariance for value in row),
    )


def model_of(values: Numbers) -> throughput.ThroughputModel | None:
    """The model that an answer's values mean; None for an answer of another shape."""
    if len(values) != _HEAD + _COEFFICIENTS + _COEFFICIENTS**2:
        return None
    law, rest = values[_HEAD : _HEAD + _COEFFICIENTS], values[_HEAD + _COEFFICIENTS :]
    return throughput.ThroughputModel(
        coefficients=throughput.Coefficients(
            **dict(zip(throughput.Coefficients.__struct_fields__, law, strict=True))
        ),
        reaches=tuple(reach for reach, met in zip(_REACHES, values[4:_HEAD], strict=True) if met),
        error_ratio=values[0],
        noise=values[1],
        width=values[2],
        steps=int(values[3]),
        covariance=tuple(
            tuple(rest[row * _COEFFICIENTS : (row + 1) * _COEFFICIENTS]) for row in range(_COEFFICIENTS)
        ),
    )
