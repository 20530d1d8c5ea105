"""How many GPUs will be training_request for in the next hours, as quantiles; evaluated, never trained."""

# fmt: off
from cotenant.controller.papers.gfs.forecast.demand import (
    DAY_H, MONTH_H, TOTAL, WEEK_H, Calendar, Demand, Floats, Hours,
)
from cotenant.controller.papers.gfs.forecast.errors import WINDOW, Scores, order_quantiles, rolling, scores
from cotenant.controller.papers.gfs.forecast.forecaster import Asker, Forecaster, ForecasterMemory
from cotenant.controller.papers.gfs.forecast.methods import (
    COLUMNS, LinearWeights, Naive, Rows, WeightTable, gaussian, last_change, last_value, last_week_peak,
    mean_and_spread, moving_average, rows_of, seasonal, units, windows,
)
from cotenant.controller.papers.gfs.forecast.model import (
    ERRORS_MAX, HOURS_MIN, LEVELS, ErrorTable, ForecastCard, ForecastModel, ForecastModelProblem,
    LastChange, ModelFile, QuantileTrees, errors_kept, read_model_file, read, write,
)
from cotenant.controller.papers.gfs.forecast.retraining import (
    RETRAINING_KIND, TrainerName, training_request, pack_model, question_in, unpack_model,
)

__all__ = [
    "COLUMNS", "DAY_H", "ERRORS_MAX", "HOURS_MIN", "LEVELS", "MONTH_H", "RETRAINING_KIND", "TOTAL",
    "WEEK_H", "WINDOW", "Asker", "Calendar", "Demand", "ErrorTable", "Floats", "ForecastCard",
    "ForecastModel", "ForecastModelProblem", "Forecaster", "ForecasterMemory", "Hours", "LastChange",
    "LinearWeights", "ModelFile", "Naive", "QuantileTrees", "Rows", "Scores", "WeightTable", "TrainerName",
    "training_request", "errors_kept", "gaussian", "order_quantiles", "last_change", "last_value",
    "last_week_peak",
    "mean_and_spread", "moving_average", "read_model_file", "pack_model", "question_in", "read", "rolling",
    "rows_of", "scores", "seasonal", "units", "unpack_model", "windows", "write",
]
# fmt: on
