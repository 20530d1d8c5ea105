"""What a policy sees and what it changes: the view, the plan, how jobs stand on devices together, and why one
does not run.

Rule: pure; nothing here decides for a policy.
"""

from typing import TYPE_CHECKING, Final

from cotenant.controller.faces import lazy_face

if TYPE_CHECKING:
    from cotenant.controller.planning.ahead import *  # noqa: F403
    from cotenant.controller.planning.plan import *  # noqa: F403
    from cotenant.controller.planning.tenancy import *  # noqa: F403
    from cotenant.controller.planning.view import *  # noqa: F403
    from cotenant.controller.planning.why import *  # noqa: F403

# fmt: off
_HOMES: Final = {
    "ahead": ("QueueStanding",),
    "plan": ("Freed", "HostType", "Plan"),
    "tenancy": (
        "PARTS_MAX", "ROUNDING", "HeldPart", "cores_of", "fraction_of", "held_part", "is_being_measured",
        "part_mib", "part_to_get", "peak_mib", "tenant_mib", "why_alone", "why_no_part",
    ),
    "view": (
        "LENT", "FreeHosts", "HoldingsView", "HpDemand", "KeptFrom", "PairsView", "QueueView", "RunningView",
        "SchedulingClass", "SizesView", "View", "hard_s", "is_barred", "scheduling_class_of",
        "scheduling_class_of_spec", "staying_class_of", "suits",
    ),
    "why": (
        "first_aged", "is_aged_waiting", "is_possible", "why_behind_aged", "why_impossible",
        "why_no_host_room", "why_too_large", "why_waiting", "LACK_DEVICES",
    ),
}
# fmt: on
if not TYPE_CHECKING:
    __all__ = [*(name for names in _HOMES.values() for name in names)]
    __getattr__ = lazy_face(globals(), _HOMES)
