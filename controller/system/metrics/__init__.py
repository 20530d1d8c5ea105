"""The table of metrics, and the endpoint that answers Prometheus."""

# fmt: off
from cotenant.controller.system.metrics.endpoint import (Endpoint, open_endpoint)
from cotenant.controller.system.metrics.address import (Address, MetricsProblem)
from cotenant.controller.system.metrics.sheet import Histogram, Sheet, Sheets
from cotenant.controller.system.metrics.table import AGENT, CONTROLLER, INCIDENTS, RATES, SHARES

__all__ = [
    "AGENT", "CONTROLLER", "INCIDENTS", "RATES", "SHARES", "Address", "Endpoint", "Histogram",
    "MetricsProblem", "Sheet", "Sheets", "open_endpoint",
]
# fmt: on
