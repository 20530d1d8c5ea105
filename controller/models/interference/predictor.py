"""A trained model in use: xi of each of a pair, with the margin of the answer.

Rule: an answer is a function of the model and the two profiles alone, the same whichever job is named first
and however many are asked about together. Where less than half of what the model relies on (by importance) is
measured of a job, there is no answer: the duty-cycle rule is better then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from cotenant.controller import performance
from cotenant.controller.domain import Job
from cotenant.controller.models.interference import bands, features, forest

SEEN_MIN: Final = 0.5
"""The share of its features, by importance, that must be measured of a job."""
KINDS_MAX: Final = 4096
ANSWERS_MAX: Final = 65_536


class Predictor:
    """A predictor of interference that asks one model and remembers its answers."""

    def __init__(
        self,
        model: performance.InterferenceModel,
        *,
        kinds_max: int = KINDS_MAX,
        answers_max: int = ANSWERS_MAX,
    ) -> None:
        self._kinds_max, self._answers_max = kinds_max, answers_max
        """Raises:
        ValueError: the model names features that this version does not know, or its trees are too large.
        """
        self.model = model
        self.names = features.names_in(model.features)
        self._forest = forest.Forest(model.trees, len(model.features))
        self._novelty = bands.Novelty(model.known)
        self._factors = np.array([band.factor for band in model.bands])
        self._weights = _weights(model, self.names)
        self._kinds: dict[int, _Kind] = {}
        self._answers: dict[tuple[int, int], performance.Interference] = {}
        self._count = 0

    def ratios(self, jobs: features.Matrix, others: features.Matrix) -> forest.Values:
        """Raw xi of each job beside its other, which may be below 1. Columns are `names`."""
        return self._forest.predict(features.pair_features(self.names, jobs, others, self.model.features))

    def factors(self, jobs: features.Matrix, others: features.Matrix) -> forest.Values:
        """The factor of the stranger job of each pair; x `scale_of` an answer it is the answer's margin."""
        strange = np.maximum(self._novelty.score(jobs), self._novelty.score(others))
        factors: forest.Values = self._factors[bands.band_of(self.model.bands, strange)]
        return factors

    def ratios_beside(self, job: Job, partners: Sequence[Job]) -> list[performance.Interference | None]:
        """The ratios of (job, partner), at least 1; None where too little is known of one of them."""
        kind = self._kind(job)
        others = [self._kind(partner) for partner in partners]
        if not kind.enough:
            return [None] * len(others)
        asked = {other.number: other for other in others if other.enough}
        found = {number: self._remembered_answer(kind.number, number) for number in asked}
        new = [other for number, other in asked.items() if found[number] is None]
        if new:
            found.update(self._answer(kind, new))
        return [found.get(other.number) for other in others]

    def _remembered_answer(self, one: int, other: int) -> performance.Interference | None:
        answer = self._answers.get((one, other))
        if answer is None and (back := self._answers.get((other, one))) is not None:
            answer = back.swap()
        return answer

    def _answer(self, kind: _Kind, others: Sequence[_Kind]) -> dict[int, performance.Interference]:
        """New answers, by the other's number."""
        if len(self._answers) + len(others) > self._answers_max:
            self._answers.clear()
        one = np.repeat(kind.values, len(others), axis=0)
        two = np.concatenate([other.values for other in others])
        xi = self.ratios(np.concatenate((one, two)), np.concatenate((two, one)))
        xi = np.maximum(xi, 1.0)
        factors = [max(kind.factor, other.factor) for other in others]
        margins = bands.scale_of(xi) * np.tile(factors, 2)
        answers: dict[int, performance.Interference] = {}
        for other, ratios, wide in zip(
            others, xi.reshape(2, -1).T.tolist(), margins.reshape(2, -1).T.tolist(), strict=True
        ):
            answer = performance.Interference(
                first=ratios[0], second=ratios[1], source="predicted", margins=(wide[0], wide[1])
            )
            answers[other.number] = self._answers[kind.number, other.number] = answer
        return answers

    def _kind(self, job: Job) -> _Kind:
        """Jobs with one profile and batch are one kind to a model. Found by identity: profiles are values
        that never change, and comparing two of them costs more than the answer."""
        kind = self._kinds.get(id(job.measured.profile))
        if kind is not None and kind.profile is job.measured.profile and kind.batch_size == job.batch_size:
            return kind
        if len(self._kinds) >= self._kinds_max:
            self._kinds.clear()
            self._answers.clear()
        values = np.array([features.job_features(job, self.names)], np.float32)
        seen = float(self._weights[~np.isnan(values[0])].sum())
        factor = float(self._factors[bands.band_of(self.model.bands, self._novelty.score(values))][0])
        self._count += 1
        kind = _Kind(job.measured.profile, job.batch_size, self._count, values, seen >= SEEN_MIN, factor)
        self._kinds[id(job.measured.profile)] = kind
        return kind


class _Kind:
    """What the model knows of jobs with one profile."""

    __slots__ = ("batch_size", "enough", "factor", "number", "profile", "values")

    def __init__(
        self,
        profile: performance.Profile | None,
        batch_size: int | None,
        number: int,
        values: features.Matrix,
        enough: bool,
        factor: float,
    ) -> None:
        self.profile, self.batch_size = profile, batch_size
        self.number, self.values, self.enough, self.factor = number, values, enough, factor


def _weights(model: performance.InterferenceModel, names: tuple[str, ...]) -> forest.Values:
    """The importance of each of a job's features, over all columns that need it; they sum to 1."""
    weights = np.zeros(len(names))
    for column, importance in zip(model.features, model.importances, strict=True):
        weights[names.index(column.partition(".")[2])] += importance
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(names), 1.0 / len(names))
