"""How fast jobs run in a simulated world, what things cost there that no trace says, and when hosts fail.

Rule: this is the truth of the world, not what the engine believes. The engine and the policies learn it only
from events, as in production, unless `xi="measured"` gives them the table beforehand.

A job that shares devices runs at 1/xi of its own speed, with xi measured (Gavel's pairs on one V100, P100 or
K80, bundled; or a file of the same columns). Our choices, where the table is silent:

* xi below 1 is noise and counts as 1; a pair that did not run at all (out of memory) counts as not measured.
* A model is known by `model` (the mean over its batch sizes) or `model:batch`.
* A pair that is missing takes the mean of what is known of its two models: how the one fares beside any
  partner, and how any partner fares beside the other. With one unknown model it is the other's mean alone,
  with two (or jobs without a model) the mean of the table.
* One that saves leaves the device nearly idle, and so does one that loads, unless `load_duty` says that loads
  take their part of it, as they do where a slot is a core.
* With several co-tenants on a device the ratios multiply; a gang goes at the pace of its slowest device.

Rule: failures are drawn from the seed alone, host by host, each from its own stream: the same hosts fail at
the same times whatever the policy does, so that a comparison gives all policies the same failures.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np

from cotenant.controller.domain import SharingSettings, job_spec
from cotenant.controller.performance import UNBOUNDED, Interference, ShareBound, keep_bounds, maxima

BUNDLED: Final = ("gavel-v100", "gavel-p100", "gavel-k80")
COLUMNS: Final = ("model1", "batch1", "model2", "batch2", "xi1", "xi2")


@dataclass(frozen=True, kw_only=True, slots=True)
class Physics:
    """What a run's world is like. Times in seconds."""

    pairs: str = "gavel-v100"
    """One of `BUNDLED`, a file (`FILE`, or `FILE:GPU_TYPE` where it has several), or `none`: then a device
    takes one tenant, since what two would do to each other is unknown."""
    xi: str = "learned"
    """What the engine knows of pairs before the first has shared: nothing (`learned`), this table
    (`measured`), or what an installed interference model of this name says of them."""
    on_preempt: Literal["save", "lose"] = "save"
    """save: a preempted job saves its state first, which takes its pause. lose: nobody ever saves; it is
    killed at once, and begins again (the world of most published simulators)."""
    share_max: float = 0.0
    """The bound on what sharing may cost any job: a co-tenant waits where it must; 0 = none."""
    share_hp: float = 0.0
    """The bound of jobs of class hp, which then share under policies with classes too; 0 = they do not."""
    load_duty: float = 0.0
    """How busy a loading job keeps its devices, as a duty cycle. Beside others a load takes longer and slows
    them, by the duty-cycle rule (Castor section 4: the sum of both, where it is above 1); a model whose duty
    cycle is not known counts as always busy."""
    observe_s: float = 60.0
    """A job beside whom a tenant came or went reports its pace so long after the last such change, and as
    long as it shares twice more at this interval: three measurements make a verdict on a pair."""
    kill_s: float = 0.0
    """Stop request to devices free, for a job that has nothing to save (it loads, or lost a part)."""
    charge_s: float = 1.0
    """What a slow computation (a fit) takes in virtual time, whatever it took in truth: the same in every
    run, so that results do not depend on the machine."""

    def __post_init__(self) -> None:
        if self.observe_s <= 0.0 or self.kill_s < 0.0 or self.charge_s < 0.0:
            raise ValueError(f"times of a world must not be negative, got {self}")
        if not 0.0 <= self.load_duty <= 1.0:
            raise ValueError(f"load_duty must be 0 to 1, got {self.load_duty}")
        for bound in (self.share_max, self.share_hp):
            if bound and not job_spec.SHARE_MAX_MIN <= bound <= job_spec.SHARE_MAX_MAX:
                limits = f"{job_spec.SHARE_MAX_MIN} to {job_spec.SHARE_MAX_MAX:g}"
                raise ValueError(f"a bound on sharing must be {limits}, or 0 for none, got {bound}")

    @property
    def sharing(self) -> SharingSettings:
        """The bounds as the engine is told them."""
        hp_max = self.share_hp or SharingSettings().hp_max
        return SharingSettings(max=self.share_max, hp=self.share_hp > 0.0, hp_max=hp_max)


RatioRows = list[list[float]]
"""`[model][partner]` -> xi of the model; the last row and column stand for jobs without a model."""


class BoundRatios(NamedTuple):
    """Ratios of pairs whose bounds are kept as agents keep them: twice as many rows and columns as the table
    that they are made of, those of spot jobs, then those of hp jobs (`ratio_row`)."""

    kept: RatioRows
    """Where a pair's bounds cannot be kept, it is held to them as far as that goes."""
    lost: list[list[bool]]
    """Whether a job loses its bound beside another: then agents say so (`BOUND_LOST_S`)."""


BOUND_LOST_S: Final = 20.0
"""So long agents try to keep a bound (`agent/daemon/core/pacing.py`)."""


def bound_ratios(ratios: RatioRows, sharing: SharingSettings) -> BoundRatios:
    """Returns what bounds make of the ratios of a world."""
    spot = ShareBound(max=sharing.max) if sharing.max else UNBOUNDED
    hp = ShareBound(max=sharing.hp_max, is_own=True) if sharing.hp else spot
    kinds = [(model, bound) for bound in (spot, hp) for model in range(len(ratios))]

    def keep(one: tuple[int, ShareBound], other: tuple[int, ShareBound]) -> tuple[float, bool]:
        mine, theirs = ratios[one[0]][other[0]], ratios[other[0]][one[0]]
        pair = Interference(first=mine, second=theirs, source="default")
        held = keep_bounds(pair, one[1], other[1], sharing.guest_min)
        return held.first, held.over_bound and mine > maxima(one[1], other[1])[0]

    pairs = [[keep(one, other) for other in kinds] for one in kinds]
    return BoundRatios(
        kept=[[ratio for ratio, _ in row] for row in pairs], lost=[[lost for _, lost in row] for row in pairs]
    )


def ratio_row(model: int, hp: bool, models: int) -> int:
    """Returns the row of a job in `bound_ratios`, of so many named models."""
    return (model if model >= 0 else models) + (models + 1) * hp


class LoadRatios(NamedTuple):
    """What a loading job and its co-tenant do to each other."""

    training: tuple[float, ...]
    """By row of the ratios: beside a job of it that trains; both are slowed alike."""
    loading: float
    """Of two that load."""


def find_load_ratios(load_duty: float, duty_cycles: Sequence[float], rows: int) -> LoadRatios | None:
    """Returns the ratios of loads for a table of so many rows; None where loads leave the devices idle.

    Args:
        duty_cycles: by model; empty: none is known.
    """
    if not load_duty:
        return None
    known = [*duty_cycles, 1.0] if duty_cycles else [1.0]
    training = [max(1.0, load_duty + duty) for duty in known]
    return LoadRatios(tuple(training * (rows // len(training))), max(1.0, 2.0 * load_duty))


class RatioRow(Protocol):
    def __getitem__(self, partner: int, /) -> float: ...


class RatioTable(Protocol):
    """A table of ratios, used as `RatioRows`, which are one; others may work a ratio out when it is asked
    for."""

    def __getitem__(self, model: int, /) -> RatioRow: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PairData:
    """A table of measured ratios: xi of the first beside the second, both as `model:batch`."""

    name: str
    rows: tuple[tuple[str, str, float, float], ...]
    """(first, second, xi of the first, xi of the second)."""

    def models(self) -> tuple[str, ...]:
        """The model names it knows, without batch sizes."""
        return tuple(sorted({_model(name) for row in self.rows for name in row[:2]}))

    def ratios(self, models: tuple[str, ...]) -> RatioRows:
        """The matrix for a workload's models, holes filled as the module says."""
        exact: dict[tuple[str, str], list[float]] = defaultdict(list)
        fares: dict[str, list[float]] = defaultdict(list)
        does: dict[str, list[float]] = defaultdict(list)
        for first, second, first_xi, second_xi in self.rows:
            for one, other, xi in ((first, second, first_xi), (second, first, second_xi)):
                for name in {one, _model(one)}:
                    fares[name].append(xi)
                    for beside in {other, _model(other)}:
                        exact[name, beside].append(xi)
                for beside in {other, _model(other)}:
                    does[beside].append(xi)
        everything = fmean([xi for row in self.rows for xi in row[2:]])

        def ratio(one: str, other: str) -> float:
            if (one, other) in exact:
                return fmean(exact[one, other])
            known = [fmean(of[name]) for of, name in ((fares, one), (does, other)) if name in of]
            return fmean(known) if known else everything

        names = [*(name if name in fares else _model(name) for name in models), ""]
        return [[ratio(one, other) for other in names] for one in names]


def _model(name: str) -> str:
    return name.partition(":")[0]


class NoPairTable(ValueError):
    """Neither a bundled table nor a file."""


def pair_data(name: str) -> PairData | None:
    """The table of `Physics.pairs`; None for `none`.

    Raises:
        ValueError: no such table, no such file, or a line that cannot be read; the text says which.
    """
    if name == "none":
        return None
    if name in BUNDLED:
        data = (files("cotenant.controller.sim") / "data" / "gavel_pairs.csv.gz").read_bytes()
        return PairData(name=name, rows=_rows(data, name, name.removeprefix("gavel-")))
    typed = ":" in name and not Path(name).exists()
    path, _, gpu_type = name.rpartition(":") if typed else (name, "", "")
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        tables = ", ".join((*BUNDLED, "none"))
        raise NoPairTable(f"there is no pair table {name!r}; give a file or one of {tables}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    return PairData(name=Path(path).name, rows=_rows(data, path, gpu_type))


def _rows(data: bytes, name: str, gpu_type: str) -> tuple[tuple[str, str, float, float], ...]:
    try:
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{name}: not a CSV file, gzip'd or plain ({error})") from None
    reader = csv.DictReader(io.StringIO(text))
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"{name}: line 1: a table of pairs needs the columns {', '.join(missing)}")
    rows, types = [], set()
    for row in reader:
        here = row.get("gpu_type") or ""
        types.add(here)
        if (gpu_type and here != gpu_type) or not (row["xi1"] and row["xi2"]):
            continue
        pair = (_kind_name(row["model1"], row["batch1"]), _kind_name(row["model2"], row["batch2"]))
        first_xi, second_xi = (_xi(row[column], name, reader.line_num) for column in ("xi1", "xi2"))
        rows.append((*pair, first_xi, second_xi))
    if not gpu_type and len(types) > 1:
        choices = ", ".join(f"{name}:{one}" for one in sorted(types))
        raise ValueError(f"{name}: it holds several GPU types; name one: {choices}")
    if not rows:
        raise ValueError(f"{name}: no measured pair{f' of GPU type {gpu_type}' if gpu_type else ''}")
    return tuple(rows)


def _kind_name(model: str, batch: str) -> str:
    return f"{model}:{batch}" if batch else model


def _xi(text: str, name: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0.0:
        raise ValueError(
            f"{name}: line {line}: an interference ratio must be a positive number, got {text!r}"
        )
    return max(1.0, value)


STREAM: Final = 0xFA11
"""Keeps these draws apart from every other use of the same seed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failures:
    """Failures of hosts: each host fails after an exponential time of this mean, and is back after a fixed
    repair."""

    mean_between_s: float
    """Mean time between the end of a repair and the next failure of that host."""
    repair_s: float = 600.0

    def __post_init__(self) -> None:
        if not (self.mean_between_s > 0.0 and self.repair_s > 0.0):
            raise ValueError(f"times between failures and repairs must be positive, got {self}")

    def times(self, hosts: int, seed: int) -> FailureTimes:
        return FailureTimes(self, hosts, seed)


class FailureTimes:
    """Draws how long each host works until its next failure."""

    def __init__(self, failures: Failures, hosts: int, seed: int) -> None:
        self.repair_s = failures.repair_s
        self._mean_s = failures.mean_between_s
        self._streams = [
            np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAM, host)))
            for host in range(hosts)
        ]

    def next_s(self, host: int) -> float:
        """Seconds from now to this host's next failure."""
        return float(self._streams[host].exponential(self._mean_s))
