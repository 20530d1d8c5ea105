"""How many GPUs will be asked for in the next hours, as quantiles; evaluated, never trained."""

# fmt: off
from cotenant.controller.papers.gfs.forecast.demand import (
    DAY_H, MONTH_H, TOTAL, WEEK_H, Calendar, Demand, Floats, Hours,
)
from cotenant.controller.papers.gfs.forecast.errors import WINDOW, correction, order_quantiles
from cotenant.controller.papers.gfs.forecast.forecaster import Asker, Forecaster, ForecasterMemory
from cotenant.controller.papers.gfs.forecast.methods import (
    COLUMNS, LinearWeights, Rows, WeightTable, gaussian, last_change, last_value, mean_and_spread,
    moving_average, rows_of, units, windows,
)
from cotenant.controller.papers.gfs.forecast.model import (
    ERRORS_MAX, HOURS_MIN, LEVELS, ErrorTable, ForecastCard, ForecastModel, ForecastModelProblem,
    LastChange, ModelFile, QuantileTrees, Scores, errors_kept, read_model_file, read, write,
)
from cotenant.controller.papers.gfs.forecast.retraining import (
    RETRAINING_KIND, TrainerName, training_request, pack_model, question_in, unpack_model,
)

__all__ = [
    "COLUMNS", "DAY_H", "ERRORS_MAX", "HOURS_MIN", "LEVELS", "MONTH_H", "RETRAINING_KIND", "TOTAL",
    "WEEK_H", "WINDOW", "Asker", "Calendar", "Demand", "ErrorTable", "Floats", "ForecastCard",
    "ForecastModel", "ForecastModelProblem", "Forecaster", "ForecasterMemory", "Hours", "LastChange",
    "LinearWeights", "ModelFile", "QuantileTrees", "Rows", "Scores", "WeightTable", "TrainerName",
    "training_request", "correction", "errors_kept", "gaussian", "order_quantiles", "last_change",
    "last_value", "mean_and_spread", "moving_average", "read_model_file", "pack_model", "question_in", "read",
    "rows_of", "units", "unpack_model", "windows", "write",
]
# fmt: on
