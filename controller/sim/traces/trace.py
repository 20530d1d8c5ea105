"""A trace: what was submitted to a cluster, when, and how long it ran, in columns; what is wrong with one,
said once: file, line, column, what, and what to do; and what it is like in numbers, for `sim trace show`,
and to look before one simulates.

Rule: a trace holds only what its source recorded (or what its generator drew, and then `synthetic` says so).
Estimates, load times and whatever else a source never has are added by `preparing.prepare`, from a seed.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.sim.world.workload import JobSource


class TraceProblem(ValueError):
    """The input was refused. `message` says where and what; `hint` is what to try next and may be empty."""

    def __init__(
        self, what: str, *, file: str = "", line: int | None = None, column: str = "", hint: str = ""
    ) -> None:
        place = ":".join([file, *([] if line is None else [str(line)])]) if file else ""
        if not file and line is not None:
            place = f"line {line}"
        parts = [place, f"column {column}" if column else "", what]
        self.message = ": ".join(part for part in parts if part)
        self.hint = hint
        self.file = file
        self.line = line
        self.column = column
        super().__init__(self.message)


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean X?`, or nothing where no known word is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""


def show_value(value: str) -> str:
    """A value as it stands in a message: quoted, and short."""
    return repr(value if len(value) <= 40 else value[:37] + "...")


Floats = NDArray[np.float64]
RowSelection = NDArray[np.int64] | NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """A column of text, each name kept once. `codes` has shape (n,): index into `names`, -1 = none."""

    codes: NDArray[np.int32]
    names: tuple[str, ...]

    @classmethod
    def make(cls, values: Sequence[str]) -> Labels:
        """Names in order of first appearance; an empty text is none."""
        names = dict.fromkeys(values)
        names.pop("", None)
        if not names:
            return cls.none(len(values))
        code = {name: number for number, name in enumerate(names)} | {"": -1}
        return cls(
            codes=np.fromiter((code[value] for value in values), np.int32, len(values)), names=(*names,)
        )

    @classmethod
    def none(cls, rows: int) -> Labels:
        return cls(codes=np.full(rows, -1, np.int32), names=())

    @classmethod
    def same(cls, name: str, rows: int) -> Labels:
        return cls(codes=np.zeros(rows, np.int32), names=(name,))

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def known(self) -> bool:
        """Whether any row has a name."""
        return bool(np.any(self.codes >= 0))

    def take(self, rows: RowSelection) -> Labels:
        return Labels(codes=self.codes[rows], names=self.names)

    def used(self) -> Labels:
        """The column with only the names that some row has."""
        used, codes = np.unique(self.codes, return_inverse=True)
        first = 1 if len(used) and used[0] < 0 else 0
        names = tuple(self.names[code] for code in used[first:].tolist())
        return Labels(codes=(codes - first).astype(np.int32), names=names)

    def texts(self) -> list[str]:
        """The texts of the column, one a row, empty where there is none."""
        names = (*self.names, "")
        return [names[code] for code in self.codes.tolist()]

    def counts(self) -> dict[str, int]:
        """Rows by name, in order of `names`; rows without one are not counted."""
        numbers = np.bincount(self.codes[self.codes >= 0], minlength=len(self.names))
        return {name: int(number) for name, number in zip(self.names, numbers, strict=True) if number}


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedJobs(JobSource):
    """What every source says of each of n jobs: columns of shape (n,)."""

    source: str
    """Who recorded it, or how it was made: cited wherever results are shown."""
    licence: str = ""
    """Of the data; empty = unknown, the user's own file."""
    submit_s: Floats
    """On the source's own time axis."""
    duration_s: Floats
    """Execution without queueing."""
    gpus: Floats
    """Of the whole job; below 1 for a part of a shared device."""
    notes: Sequence[str] = ()
    """What a reader did that the user should know (rows put in order, ...)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace(RecordedJobs):
    """n jobs, in order of submission, within each VC if `clock_per_vc`; lengths and GPUs are above 0."""

    user: Labels
    vc: Labels
    organisation: Labels
    model: Labels
    gpu_type: Labels
    state: Labels
    hp: NDArray[np.bool_]
    """Class hp (never preempted); False where the source has no classes."""
    clock_per_vc: bool = False
    """Times restart at 0 in every VC: VCs must not be put on one time axis."""

    def __post_init__(self) -> None:
        n = len(self.submit_s)
        for each in dataclasses.fields(self):
            column = getattr(self, each.name)
            if isinstance(column, np.ndarray | Labels):
                assert len(column) == n, f"column {each.name} has {len(column)} rows, not {n}"
        assert len(self.job_ids) in (0, n) and len(self.submissions) in (0, n)
        for numbers in (self.submit_s, self.duration_s, self.gpus):
            assert bool(np.all(np.isfinite(numbers)))
        assert bool(np.all(self.duration_s > 0.0)) and bool(np.all(self.gpus > 0.0))
        assert self.clock_per_vc or bool(np.all(np.diff(self.submit_s) >= 0.0)), "not in order of submission"

    def __len__(self) -> int:
        return len(self.submit_s)

    def take(self, rows: RowSelection) -> Trace:
        """The trace with only these rows, in this order (indices or a mask)."""
        n = len(self)
        chosen = np.arange(n)[rows]
        columns: dict[str, Any] = {
            each.name: column.take(chosen) if isinstance(column, Labels) else column[chosen]
            for each in dataclasses.fields(self)
            if isinstance(column := getattr(self, each.name), np.ndarray | Labels)
        }
        for name in ("job_ids", "submissions"):
            if said := getattr(self, name):
                columns[name] = tuple(said[row] for row in chosen.tolist())
        return dataclasses.replace(self, **columns)

    def vc_trace(self, vc: str) -> Trace:
        """The jobs of one VC, on its own clock if it has one.

        Raises:
            TraceProblem: there is no such VC.
        """
        if vc not in self.vc.names or not np.any(rows := self.vc.codes == self.vc.names.index(vc)):
            raise TraceProblem(
                f"{self.name} has no VC {vc}", hint=nearest(vc, self.vc.names) or self._vcs_hint()
            )
        name = f"{self.name}/{vc}" if len(self.vc.counts()) > 1 else self.name
        return dataclasses.replace(self.take(rows), name=name, clock_per_vc=False)

    def single_clock_trace(self, vc: str | None = None) -> Trace:
        """The jobs of `vc`, or all of them where they share a time axis.

        Raises:
            TraceProblem: no such VC, or times restart in every VC and none was named.
        """
        if vc is not None:
            return self.vc_trace(vc)
        if not self.clock_per_vc:
            return self
        if len(counts := self.vc.counts()) == 1:
            return self.vc_trace(next(iter(counts)))
        raise TraceProblem(
            f"{self.name} has {len(counts)} VCs, each with its own clock: their times cannot be put together",
            hint=f"choose one with --vc: {self._vcs_text()}",
        )

    def _vcs_hint(self) -> str:
        return f"it has {self._vcs_text()}" if self.vc.known else "it has no column vc: leave --vc out"

    def _vcs_text(self) -> str:
        counts = sorted(self.vc.counts().items(), key=lambda each: (-each[1], each[0]))
        shown = ", ".join(f"{name} ({number:,} jobs)" for name, number in counts[:20])
        return shown + (f" and {len(counts) - 20} more" if len(counts) > 20 else "")


def describe(trace: Trace, *, gpus: int | None = None) -> dict[str, Any]:
    """Counts and statistics of a trace. Where each VC has its own clock, times between arrivals are given per
    VC only.

    Args:
        gpus: of the cluster that the offered load is for; None = no offered load.

    Numbers that make no sense for the trace are None, never NaN: the result goes into JSON.
    """
    one_clock = not trace.clock_per_vc
    return {
        "name": trace.name,
        "source": trace.source,
        "licence": trace.licence or None,
        "synthetic": trace.synthetic,
        "clock_per_vc": trace.clock_per_vc,
        "jobs": len(trace),
        **_jobs(trace, gpus, arrivals=one_clock),
        "users": len(trace.user.counts()) or None,
        "models": list(trace.model.counts()),
        "states": trace.state.counts(),
        "hp_jobs": int(np.count_nonzero(trace.hp)),
        "vcs": vcs(trace, gpus=gpus),
        "excluded": dict(trace.excluded),
        "notes": list(trace.notes),
    }


def vcs(trace: Trace, *, gpus: int | None = None) -> list[dict[str, Any]]:
    """Counts and statistics of each VC, one row a VC, largest first."""
    rows = []
    for vc, jobs in sorted(trace.vc.counts().items(), key=lambda each: (-each[1], each[0])):
        part = trace if len(trace.vc.counts()) == 1 and jobs == len(trace) else trace.vc_trace(vc)
        rows.append({"vc": vc, "jobs": jobs, **_jobs(part, gpus, arrivals=True)})
    return rows


def offered_load(trace: Trace, gpus: int) -> float | None:
    """GPU-seconds that arrive / those that `gpus` devices have while they arrive; None without a span."""
    if trace.clock_per_vc or len(trace) < 2:
        return None
    span_s = float(trace.submit_s[-1] - trace.submit_s[0])
    return float(np.dot(trace.duration_s, trace.gpus)) / (span_s * gpus) if span_s > 0.0 else None


def _jobs(trace: Trace, gpus: int | None, *, arrivals: bool) -> dict[str, Any]:
    between_s = np.diff(trace.submit_s) if arrivals else np.empty(0)
    span_s = float(trace.submit_s[-1] - trace.submit_s[0]) if arrivals else math.nan
    return {
        "span_s": _number(span_s),
        "duration_s": statistics(trace.duration_s),
        "gpus": statistics(trace.gpus),
        "one_gpu_share": float(np.mean(trace.gpus <= 1.0)),
        "gpu_hours": float(np.dot(trace.duration_s, trace.gpus)) / 3600.0,
        "interarrival_s": statistics(between_s),
        "offered_load": None if gpus is None or not arrivals else offered_load(trace, gpus),
    }


def statistics(values: Floats) -> dict[str, float | None]:
    """Mean, quantiles and maximum; all None where there are no values."""
    names = ("mean", "p50", "p90", "p95", "p99", "max")
    if not len(values):
        return dict.fromkeys(names)
    quantiles = np.quantile(values, (0.5, 0.9, 0.95, 0.99, 1.0))
    return dict(zip(names, (float(np.mean(values)), *quantiles.tolist()), strict=True))


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
