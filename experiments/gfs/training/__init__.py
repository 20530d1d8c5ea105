"""Forecasters of demand judged on demand that was kept out, beside those that a controller trains."""

# fmt: off
from experiments.gfs.training.demand_file import DemandFile, read
from experiments.gfs.training.evaluate import (
    MODELS, Answers, ForecastEvaluation, Judged, SeriesAggregation, TooFewHours, evaluate,
)

__all__ = [
    "MODELS", "Answers", "DemandFile", "ForecastEvaluation", "Judged", "SeriesAggregation", "TooFewHours",
    "evaluate", "read",
]
# fmt: on
