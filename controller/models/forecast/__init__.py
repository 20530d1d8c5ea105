"""How many GPUs will be asked for in the next hours, as quantiles; evaluated, never trained."""

# fmt: off
from cotenant.controller.models.forecast import naive
from cotenant.controller.models.forecast.conformal import WINDOW, in_order, rolling
from cotenant.controller.models.forecast.demand import (
    DAY_H, MONTH_H, TOTAL, WEEK_H, Calendar, Demand, Floats, Hours,
)
from cotenant.controller.models.forecast.forecaster import Asker, Forecaster, ForecasterMemory
from cotenant.controller.models.forecast.linear import (
    LinearWeights, Table, gaussian, mean_and_spread, moving_average, windows,
)
from cotenant.controller.models.forecast.model import (
    ERRORS_MAX, HOURS_MIN, LEVELS, ErrorTable, ForecastCard, ForecastModel, ForecastModelProblem,
    LastChange, ModelFile, QuantileTrees, errors_kept, of_file, read, write,
)
from cotenant.controller.models.forecast.retraining import (
    RETRAINING_KIND, TrainerName, asked, packed, question_in, unpacked,
)
from cotenant.controller.models.forecast.rows import COLUMNS, Rows, rows_of, units
from cotenant.controller.models.forecast.scores import Scores, scores

__all__ = [
    "COLUMNS", "DAY_H", "ERRORS_MAX", "HOURS_MIN", "LEVELS", "MONTH_H", "RETRAINING_KIND", "TOTAL",
    "WEEK_H", "WINDOW", "Asker", "Calendar", "Demand", "ErrorTable", "Floats", "ForecastCard",
    "ForecastModel",
    "ForecastModelProblem", "Forecaster", "ForecasterMemory", "Hours", "LastChange", "LinearWeights",
    "ModelFile", "QuantileTrees", "Rows", "Scores", "Table", "TrainerName", "asked",
    "errors_kept", "gaussian", "in_order", "mean_and_spread", "moving_average", "naive", "of_file", "packed",
    "question_in", "read", "rolling", "rows_of", "scores", "units", "unpacked", "windows", "write",
]
# fmt: on
