"""How many GPUs will be asked for in the next hours, with how much doubt; evaluated, never trained."""

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
    LEVELS, ErrorTable, ForecastModel, LastChange, QuantileTrees, errors_kept, read, write,
)
from cotenant.controller.models.forecast.rows import COLUMNS, Rows, rows_of, units
from cotenant.controller.models.forecast.scores import Scores, scores

__all__ = [
    "COLUMNS", "DAY_H", "LEVELS", "MONTH_H", "TOTAL", "WEEK_H", "WINDOW", "Asker", "Calendar", "Demand",
    "ErrorTable", "Floats", "ForecastModel", "Forecaster", "ForecasterMemory", "Hours", "LastChange",
    "LinearWeights", "QuantileTrees", "Rows", "Scores", "Table", "errors_kept", "gaussian", "in_order",
    "mean_and_spread", "moving_average", "naive", "read", "rolling", "rows_of", "scores", "units",
    "windows", "write",
]
# fmt: on
