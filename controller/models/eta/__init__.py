"""When jobs end: past lengths beside their estimates, past errors, and what follows from them. Pure."""

# fmt: off
from cotenant.controller.models.eta.calibration import ENOUGH, calibrated, errors_of, interval_of
from cotenant.controller.models.eta.lengths import Lengths, strata
from cotenant.controller.models.eta.pools import ArrivalSeen, EtaError, KnownLength, Pools
from cotenant.controller.models.eta.scores import FAIR, score

__all__ = [
    "ENOUGH", "FAIR", "ArrivalSeen", "EtaError", "KnownLength", "Lengths", "Pools", "calibrated",
    "errors_of", "interval_of", "score", "strata",
]
# fmt: on
