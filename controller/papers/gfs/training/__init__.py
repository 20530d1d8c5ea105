"""Fits forecasters of demand, and judges them on demand that was kept out."""

# fmt: off
from cotenant.controller.papers.gfs.training.evaluate import (
    MODELS, SeriesAggregation, Answers, ForecastEvaluation, Judged, TooFewHours, evaluate,
)
from cotenant.controller.papers.gfs.training.reading import DemandFile, NoHolidays, days_of, read
from cotenant.controller.papers.gfs.training.train import Effort, train

__all__ = [
    "MODELS", "SeriesAggregation", "Answers", "DemandFile",
    "Effort", "ForecastEvaluation", "Judged", "NoHolidays",
    "TooFewHours", "days_of", "evaluate", "read", "train",
]
# fmt: on
