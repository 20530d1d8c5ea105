"""A trained model in use: xi of each of a pair, with the margin of the answer; and the model as the bytes of
a file.

Rule: an answer is a function of the model and the two profiles alone, the same whichever job is named first
and however many are asked about together. Where less than half of what the model relies on (by importance) is
measured of a job, there is no answer: the duty-cycle rule is better then.

Rule: how strange a job is to the model decides how wide the answer's interval must be; no names count. A job
is as strange as its distance to the nearest job of the training: per feature in standard deviations,
logarithms where a feature spans orders of magnitude, over the root of the number of features. A missing value
counts as the training's mean. For a pair the stranger of the two counts. Errors also grow with what is
predicted: a pair that hardly slows down cannot be far off. So margins and residuals are measured in units of
`scale_of` the answer.

The factors are split conformal ones (Vovk et al., Algorithmic Learning in a Random World, section 4.6:
conditional on a category, here a band of novelty): the k-th smallest of n absolute out-of-fold residuals, k =
ceil((n + 1) * coverage). They hold as far as new pairs are like the ones left out; rows of one pair are not
independent, so the page of results shows the coverage that was measured.

Rule: a file is versioned JSON, written the same way every time and read strictly. We refuse a bad one with
the place and the reason, and never use a part of it. A model of another schema says what to do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cotenant.controller.domain import Job
from cotenant.controller.models.interference.features import UNLIMITED, Matrix, beside, names_in, of_job
from cotenant.controller.models.interference.forest import Forest, Values
from cotenant.controller.performance import (
    MODEL_SCHEMA,
    Band,
    Interference,
    InterferenceModel,
    KnownJobs,
    Profile,
)
from cotenant.controller.wire import BadMessage, decode_json

Vector = npt.NDArray[np.float64]

JOBS_MAX: Final = 256
"""Jobs kept of a training; more are thinned out evenly."""
BANDS_MAX: Final = 4
SCALE_MIN: Final = 0.2
ROWS_MIN: Final = 30
"""Residuals behind a band; fewer say nothing about a tail."""


def known_jobs(names: tuple[str, ...], jobs: Matrix) -> KnownJobs:
    """The distinct jobs of a training, scaled by their own spread."""
    values = _spread_out(np.unique(_even(names, jobs), axis=0))
    seen = ~np.isnan(values)
    counts = np.maximum(seen.sum(axis=0), 1)
    centre = np.where(seen, values, 0.0).sum(axis=0) / counts
    spread = np.sqrt((np.where(seen, values - centre, 0.0) ** 2).sum(axis=0) / counts)
    scale = np.where(spread > 0, spread, 1.0)
    rows = np.where(seen, (values - centre) / scale, 0.0)
    return KnownJobs(
        features=names,
        centre=tuple(map(_short, centre)),
        scale=tuple(map(_short, scale)),
        rows=tuple(tuple(map(_short, row)) for row in rows),
    )


class Novelty:
    """Distances to the known jobs."""

    def __init__(self, known: KnownJobs) -> None:
        self._names = known.features
        self._centre, self._scale = np.array(known.centre), np.array(known.scale)
        self._rows = np.array(known.rows).reshape(len(known.rows), len(known.features))
        self._squares = (self._rows**2).sum(axis=1)

    def of(self, jobs: Matrix) -> Vector:
        """One number per job. `jobs`: [n, len(known.features)]."""
        scaled = np.nan_to_num((_even(self._names, jobs) - self._centre) / self._scale, nan=0.0)
        # |a - b|^2 by the binomial: one matrix product in place of a cube of differences.
        squares = (scaled**2).sum(axis=1)[:, None] + self._squares - 2.0 * scaled @ self._rows.T
        nearest: Vector = np.sqrt(np.maximum(squares.min(axis=1), 0.0) / max(1, len(self._names)))
        return nearest


def scale_of(xi: Vector) -> Vector:
    """The unit of an answer's margin: SCALE_MIN where nothing slows down, more the slower it gets."""
    scale: Vector = SCALE_MIN + np.maximum(xi - 1.0, 0.0)
    return scale


def bands(residuals: Vector, novelty: Vector, coverage: float) -> tuple[Band, ...]:
    """Factors by novelty, never smaller for a stranger job. `residuals`: over `scale_of` the answers.

    The limits are quantiles of the novelty of those rows that have any; rows of known jobs are a band of
    their own. A band that would hold fewer than ROWS_MIN rows goes to its neighbour.
    """
    off = np.abs(residuals)
    strange = novelty[novelty > KNOWN_MAX]
    shares = np.arange(1, BANDS_MAX - 1) / (BANDS_MAX - 1)
    limits = [KNOWN_MAX, *(float(each) for each in np.quantile(strange, shares))] if len(strange) else []
    made: list[Band] = []
    below = -math.inf
    for limit in limits:
        inside = (novelty > below) & (novelty <= limit)
        beyond = novelty > limit
        if min(inside.sum(), beyond.sum()) < ROWS_MIN or (made and made[-1].novelty_max == limit):
            continue
        made.append(_band(_short(limit), off[inside], coverage, made))
        below = limit
    made.append(_band(None, off[novelty > below], coverage, made))
    return tuple(made)


KNOWN_MAX: Final = 1e-3
"""A job that the training holds, but for rounding."""


def band_of(bands: Sequence[Band], novelty: Vector) -> npt.NDArray[np.intp]:
    """Which band each belongs to."""
    limits = [band.novelty_max for band in bands if band.novelty_max is not None]
    return np.searchsorted(np.array(limits), novelty, side="left")


def conformal(off: Vector, coverage: float) -> float:
    """The conformal quantile; the largest residual where there are too few for the coverage."""
    rank = math.ceil((len(off) + 1) * coverage)
    return float(np.sort(off)[min(rank, len(off)) - 1])


def _band(limit: float | None, off: Vector, coverage: float, before: Sequence[Band]) -> Band:
    factor = max([conformal(off, coverage), *(band.factor for band in before)])
    return Band(novelty_max=limit, factor=_short(factor), rows=len(off))


def _even(names: tuple[str, ...], jobs: Matrix) -> Vector:
    """Logarithms where a feature spans orders of magnitude."""
    values: Vector = jobs.astype(np.float64)
    for place, name in enumerate(names):
        if name in UNLIMITED:
            values[:, place] = np.log1p(values[:, place])
    return values


def _spread_out(jobs: Vector) -> Vector:
    if len(jobs) <= JOBS_MAX:
        return jobs
    thinned: Vector = jobs[np.linspace(0, len(jobs) - 1, JOBS_MAX).round().astype(int)]
    return thinned


def _short(value: float) -> float:
    """Rounds to the digits that matter: people read model files too."""
    return float(f"{value:.6g}")


SEEN_MIN: Final = 0.5
"""The share of its features, by importance, that must be measured of a job."""
KINDS_MAX: Final = 4096
ANSWERS_MAX: Final = 65_536


class Predictor:
    """One model; remembers its answers."""

    def __init__(
        self, model: InterferenceModel, *, kinds_max: int = KINDS_MAX, answers_max: int = ANSWERS_MAX
    ) -> None:
        self._kinds_max, self._answers_max = kinds_max, answers_max
        """Raises:
        ValueError: the model names features that this version does not know, or its trees are too large.
        """
        self.model = model
        self.names = names_in(model.features)
        self._forest = Forest(model.trees, len(model.features))
        self._novelty = Novelty(model.known)
        self._factors = np.array([band.factor for band in model.bands])
        self._weights = _weights(model, self.names)
        self._kinds: dict[int, _Kind] = {}
        self._answers: dict[tuple[int, int], Interference] = {}
        self._count = 0

    def ratios(self, jobs: Matrix, others: Matrix) -> Values:
        """Raw xi of each job beside its other, which may be below 1. Columns are `names`."""
        return self._forest.predict(beside(self.names, jobs, others, self.model.features))

    def factors(self, jobs: Matrix, others: Matrix) -> Values:
        """The factor of the stranger job of each pair; x `scale_of` an answer it is the answer's margin."""
        strange = np.maximum(self._novelty.of(jobs), self._novelty.of(others))
        factors: Values = self._factors[band_of(self.model.bands, strange)]
        return factors

    def beside(self, job: Job, partners: Sequence[Job]) -> list[Interference | None]:
        """The ratios of (job, partner), at least 1; None where too little is known of one of them."""
        kind = self._kind(job)
        others = [self._kind(partner) for partner in partners]
        if not kind.enough:
            return [None] * len(others)
        asked = {other.number: other for other in others if other.enough}
        found = {number: self._remembered(kind.number, number) for number in asked}
        new = [other for number, other in asked.items() if found[number] is None]
        if new:
            found.update(self._answer(kind, new))
        return [found.get(other.number) for other in others]

    def _remembered(self, one: int, other: int) -> Interference | None:
        answer = self._answers.get((one, other))
        if answer is None and (back := self._answers.get((other, one))) is not None:
            answer = back.swapped()
        return answer

    def _answer(self, kind: _Kind, others: Sequence[_Kind]) -> dict[int, Interference]:
        """New answers, by the other's number."""
        if len(self._answers) + len(others) > self._answers_max:
            self._answers.clear()
        one = np.repeat(kind.values, len(others), axis=0)
        two = np.concatenate([other.values for other in others])
        xi = self.ratios(np.concatenate((one, two)), np.concatenate((two, one)))
        xi = np.maximum(xi, 1.0)
        factors = [max(kind.factor, other.factor) for other in others]
        margins = scale_of(xi) * np.tile(factors, 2)
        answers: dict[int, Interference] = {}
        for other, ratios, wide in zip(
            others, xi.reshape(2, -1).T.tolist(), margins.reshape(2, -1).T.tolist(), strict=True
        ):
            answer = Interference(
                first=ratios[0], second=ratios[1], source="predicted", margins=(wide[0], wide[1])
            )
            answers[other.number] = self._answers[kind.number, other.number] = answer
        return answers

    def _kind(self, job: Job) -> _Kind:
        """Jobs with one profile and batch are one kind to a model. Found by identity: profiles are values
        that never change, and comparing two of them costs more than the answer."""
        kind = self._kinds.get(id(job.profile))
        if kind is not None and kind.profile is job.profile and kind.batch_size == job.batch_size:
            return kind
        if len(self._kinds) >= self._kinds_max:
            self._kinds.clear()
            self._answers.clear()
        values = np.array([of_job(job, self.names)], np.float32)
        seen = float(self._weights[~np.isnan(values[0])].sum())
        factor = float(self._factors[band_of(self.model.bands, self._novelty.of(values))][0])
        self._count += 1
        kind = _Kind(job.profile, job.batch_size, self._count, values, seen >= SEEN_MIN, factor)
        self._kinds[id(job.profile)] = kind
        return kind


class _Kind:
    """What the model knows of jobs with one profile."""

    __slots__ = ("batch_size", "enough", "factor", "number", "profile", "values")

    def __init__(
        self,
        profile: Profile | None,
        batch_size: int | None,
        number: int,
        values: Matrix,
        enough: bool,
        factor: float,
    ) -> None:
        self.profile, self.batch_size = profile, batch_size
        self.number, self.values, self.enough, self.factor = number, values, enough, factor


def _weights(model: InterferenceModel, names: tuple[str, ...]) -> Values:
    """The importance of each of a job's features, over all columns that need it; they sum to 1."""
    weights = np.zeros(len(names))
    for column, importance in zip(model.features, model.importances, strict=True):
        weights[names.index(column.partition(".")[2])] += importance
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(names), 1.0 / len(names))


BYTES_MAX: Final = 16 * 1024 * 1024
"""A model is configuration and is journalled with it."""


class ModelProblem(ValueError):
    """A file that is no usable model; the text says why, in one line."""


class _Tag(msgspec.Struct):
    schema: str


def write(model: InterferenceModel) -> bytes:
    """One line per part; the same model, the same bytes."""
    parts = msgspec.to_builtins(model)
    lines = [f"{_json(name)}: {_json(value)}" for name, value in parts.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def read(data: bytes, name: str) -> InterferenceModel:
    """The model in a file's bytes, ready to be used by this version.

    Raises:
        ModelProblem: no JSON, no model, of another version, or with numbers that contradict each other.
    """
    if len(data) > BYTES_MAX:
        raise ModelProblem(f"{name}: more than {BYTES_MAX} bytes; is it a model?")
    try:
        tag: _Tag = decode_json(data, _Tag, bytes_max=BYTES_MAX)
    except BadMessage as error:
        raise ModelProblem(f"{name}: not a model; `cotenant predictor train` makes one ({error})") from None
    schema = tag.schema
    if schema != MODEL_SCHEMA:
        kind, _, version = schema.partition("/")
        newer = kind == MODEL_SCHEMA.partition("/")[0] and version.isdecimal()
        hint = "upgrade cotenant" if newer else "`cotenant predictor train` makes one"
        raise ModelProblem(f"{name}: its schema is {schema!r}, this version reads {MODEL_SCHEMA!r}; {hint}")
    try:
        model: InterferenceModel = decode_json(data, InterferenceModel, bytes_max=BYTES_MAX)
        Predictor(model)
    except ValueError as error:  # BadMessage is one.
        raise ModelProblem(f"{name}: a damaged model: {error}") from None
    return model


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
