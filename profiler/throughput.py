"""The throughput model of one job, with its error, or the reason why there is none.

Rule: no model without an error, and no error from the points that made it. A fit that has not seen a step's
gang (or, where no other gang has its reach, the step itself) predicts that step; how far it is off is the
model's error. Where the points cannot say this there is no model, and a caller goes by what was
measured.

Departs from Castor section 3.1, which names no fitting method, loss or prior.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from cotenant.controller.domain import Reason, because
from cotenant.controller.performance import MeasuredStep, Reach, ThroughputModel
from cotenant.profiler import step_law

# --- The model -------------------------------------------------------------------------------------


FOLDS_MAX: Final = 10
"""With more gangs than that several are left out together."""
FOLDS_MIN: Final = 3
ERROR_RATIO_MAX: Final = 0.5
"""Above this the law does not describe the job."""
IN_RANGE: Final = 0.8
REACHES: Final[tuple[Reach, ...]] = ("device", "host", "hosts")


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """A measured step, and what a fit to the others predicts for it."""

    step: MeasuredStep
    predicted_s: float

    @property
    def error_ratio(self) -> float:
        """|predicted - measured| / measured."""
        return abs(self.predicted_s / self.step.step_s - 1.0)


def fit(steps: Sequence[MeasuredStep]) -> ThroughputModel | Reason:
    """The model of these steps, or why they do not determine one.

    Raises:
        SciPyMissing: no SciPy here.
    """
    table = step_law.StepTable.make(steps)
    if (refusal := undetermined_reason(table)) is not None:
        return refusal
    held_out = hold_out(steps)
    if len({(h.step.gang, h.step.sub_batch) for h in held_out}) < FOLDS_MIN:
        return because("throughput-no-error", len(steps), FOLDS_MIN)
    errors = [h.error_ratio for h in held_out]
    error_ratio = float(np.mean(errors))
    if error_ratio > ERROR_RATIO_MAX:
        return because("throughput-error", round(100 * error_ratio), len(held_out))
    logs = np.array([np.log(h.predicted_s / h.step.step_s) for h in held_out])
    noise = max(float(np.sqrt(np.mean(logs**2))), step_law.NOISE_MIN)
    solution = step_law.solve(table)
    open_ = step_law.covariance(solution, table, noise)
    # A reach of which no step could be predicted without itself has no error, so it is not known.
    met = {h.step.gang.reach for h in held_out}
    return ThroughputModel(
        coefficients=solution.coefficients,
        reaches=tuple(reach for reach in REACHES if reach in met),
        error_ratio=error_ratio,
        noise=noise,
        covariance=tuple(tuple(map(float, row)) for row in open_),
        width=_width(len(steps) - len(step_law.free_coefficients(table))),
        steps=len(steps),
    )


def undetermined_reason(table: step_law.StepTable, *, spare: int = 1) -> Reason | None:
    """Why these rows cannot tell the law's numbers apart with some to spare, or None if they can."""
    if len(np.unique(table.sub_batch)) < 2:
        size = float(table.sub_batch[0]) if len(table.sub_batch) else 0.0
        return because("throughput-one-batch", len(table.sub_batch), size)
    needed = len(_determined_coefficients(table)) + spare
    if len(table.step_s) < needed:
        return because("throughput-few", len(table.step_s), needed)
    return None


def _determined_coefficients(table: step_law.StepTable) -> list[int]:
    """The coefficients that points must determine: the overlap has a default to lean on."""
    return step_law.free_coefficients(table)[: -1 if (table.devices > 1).any() else None]


def hold_out(steps: Sequence[MeasuredStep]) -> list[HeldOut]:
    """Predicts each step without its gang, or without itself alone where no other gang has its reach.

    Steps of which the others say nothing are left out of the result.
    """
    table = step_law.StepTable.make(steps)
    found: list[HeldOut] = []
    for rows in _folds(steps):
        rest = table.only(~rows)
        if undetermined_reason(rest, spare=0) is not None:
            continue
        known = {step.gang.reach for step, out in zip(steps, rows, strict=True) if not out}
        wanted = [step for step, out in zip(steps, rows, strict=True) if out and step.gang.reach in known]
        if not wanted:
            continue
        predicted = step_law.solve(rest).predict(step_law.StepTable.make(wanted))
        found += [HeldOut(step=s, predicted_s=float(p)) for s, p in zip(wanted, predicted, strict=True)]
    return found


def _folds(steps: Sequence[MeasuredStep]) -> Iterator[NDArray[np.bool_]]:
    """Which rows to leave out together, at most `FOLDS_MAX` times."""
    gangs = {step.gang for step in steps}
    kinds = [sum(gang.reach == step.gang.reach for gang in gangs) for step in steps]
    keys = [
        (step.gang.hosts, step.gang.devices, -1 if others > 1 else row)
        for row, (step, others) in enumerate(zip(steps, kinds, strict=True))
    ]
    order = {key: number % FOLDS_MAX for number, key in enumerate(sorted(set(keys)))}
    fold = np.array([order[key] for key in keys])
    for number in sorted(set(order.values())):
        yield fold == number


def _width(freedom: int) -> float:
    """Standard deviations to each side of a range that holds four of five, for so many degrees of freedom."""
    special = importlib.import_module("scipy.special")
    return float(special.stdtrit(max(1, freedom), (1.0 + IN_RANGE) / 2.0))
