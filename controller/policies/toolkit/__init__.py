"""What several policies use: victims, co-location, orders that look at the whole queue."""

# fmt: off
from cotenant.controller.policies.toolkit.colocation import (
    CoTenant, Colocation, ColocationParameters, nobody,
)
from cotenant.controller.policies.toolkit.expected_releases import (
    NEVER, ExpectedFree, ExpectedReleases, Together,
)
from cotenant.controller.policies.toolkit.in_order import (
    Backfill, OrderParameters, PassingParameters, place_in_order, place_ordered,
)
from cotenant.controller.policies.toolkit.late import KeptForLate, late_waiting
from cotenant.controller.policies.toolkit.pods import find_pods, reclaim
from cotenant.controller.policies.toolkit.reservations import reserve
from cotenant.controller.policies.toolkit.shareable_slots import (
    Mask, Numbers, Place, ShareableSlot, ShareableSlots, SubBatch, is_suitable, known_batches,
    least_slowdown, slowdown, sub_batches,
)
from cotenant.controller.policies.toolkit.two_classes import ClassParameters, TwoClasses, preemptible_jobs
from cotenant.controller.policies.toolkit.victims import (
    FreedDevices, NewcomerParameters, NewcomerRule, is_kept_together, longest_first, newcomers, victims_for,
    worth_preempting,
)
from cotenant.controller.policies.toolkit.whole_queue import (
    NewcomersOnly, WakeUp, Why, find_room, is_anybody_left, rearrange, reserved, take_room, whom_to_ask,
)

__all__ = [
    "NEVER", "Backfill", "ClassParameters", "CoTenant", "Colocation", "ColocationParameters",
    "ExpectedFree", "KeptForLate", "late_waiting", "ExpectedReleases", "FreedDevices", "Mask",
    "NewcomerParameters", "NewcomerRule", "NewcomersOnly", "Numbers", "OrderParameters",
    "PassingParameters", "Place", "ShareableSlot", "ShareableSlots", "SubBatch", "Together", "TwoClasses",
    "WakeUp", "Why", "find_pods", "find_room", "is_anybody_left", "is_kept_together", "is_suitable",
    "known_batches", "least_slowdown", "longest_first", "newcomers", "nobody", "place_in_order",
    "place_ordered", "preemptible_jobs", "rearrange", "reclaim", "reserve", "reserved", "slowdown",
    "sub_batches", "take_room", "victims_for", "whom_to_ask", "worth_preempting",
]
# fmt: on
