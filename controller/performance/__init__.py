"""How fast jobs go: what was measured of them, and the models that are fitted to it.

Rule: pure values and arithmetic; nothing here knows a job, a device or a host.
"""

from typing import TYPE_CHECKING, Final

from cotenant.controller.faces import lazy_face

if TYPE_CHECKING:
    from cotenant.controller.performance.bounds import *  # noqa: F403
    from cotenant.controller.performance.fitting import *  # noqa: F403
    from cotenant.controller.performance.indicators import *  # noqa: F403
    from cotenant.controller.performance.interference import *  # noqa: F403
    from cotenant.controller.performance.perf import *  # noqa: F403
    from cotenant.controller.performance.throughput import *  # noqa: F403
    from cotenant.controller.performance.visits import *  # noqa: F403

# fmt: off
_HOMES: Final = {
    "bounds": ("UNBOUNDED", "ShareBound", "keep_bounds", "leaves_too_little", "maxima", "trial_ratios"),
    "fitting": ("measured_steps", "numbers", "steps_in"),
    "indicators": ("INDICATOR_NAMES", "IndicatorStats", "Indicators"),
    "interference": (
        "INTERFERENCE_MODELS", "LEAF", "MODEL_SCHEMA", "Band", "CrossValidation", "InterferenceModel",
        "KnownJobs", "Training", "TrainingFile", "Trees", "Trial",
    ),
    "perf": (
        "DEFAULT_XI", "RATIO_STEPS_MIN", "Interference", "Profile", "ProfilePoint", "SeenBatch", "XiSource",
        "alone_step_s", "duty_cycle_rule", "fit_step_model", "gain_of", "memory_mib", "modelled_from",
        "modelled_points", "pair_timing", "part_share", "shared_ends", "step_s",
    ),
    "throughput": (
        "OVERLAP", "Coefficients", "Gang", "MeasuredStep", "Reach", "SpeedCurve", "ThroughputModel",
        "curve_of", "sized_gang",
    ),
    "visits": (
        "CHOICES_MAX", "COUNTED_STEPS_MIN", "SCHEDULE_VARIABLE", "WARM_UP_STEPS", "Visit", "parse_schedule",
        "plan_visits", "schedule_text",
    ),
}
# fmt: on
_MODULES: Final = ("fitting", "perf")
if not TYPE_CHECKING:
    __all__ = [*_MODULES, *(name for names in _HOMES.values() for name in names)]
    __getattr__ = lazy_face(globals(), _HOMES)
