"""What several policies use: victims, co-location, orders that look at the whole queue."""

# fmt: off
from cotenant.controller.policies.toolkit.backfilling import Backfill, place_ordered, reserve
from cotenant.controller.policies.toolkit.colocation import (
    CoTenant, Colocation, ColocationParameters, nobody,
)
from cotenant.controller.policies.toolkit.expected_releases import ExpectedReleases, Together
from cotenant.controller.policies.toolkit.in_order import place_in_order
from cotenant.controller.policies.toolkit.pods import find_pods, reclaim
from cotenant.controller.policies.toolkit.shareable_slots import (
    Mask, Place, ShareableSlot, ShareableSlots, is_suitable,
)
from cotenant.controller.policies.toolkit.sub_batches import (
    Numbers, SubBatch, known_batches, least_slowdown, slowdown, sub_batches,
)
from cotenant.controller.policies.toolkit.two_classes import ClassParameters, TwoClasses, preemptible_jobs
from cotenant.controller.policies.toolkit.victims import (
    FreedDevices, is_kept_together, longest_first, victims_for, worth_preempting,
)
from cotenant.controller.policies.toolkit.wake_up import WakeUp
from cotenant.controller.policies.toolkit.whole_queue import (
    NewcomersOnly, Why, find_room, is_anybody_left, rearrange, reserved, take_room, whom_to_ask,
)

__all__ = [
    "Backfill", "ClassParameters", "CoTenant", "Colocation", "ColocationParameters", "ExpectedReleases",
    "FreedDevices", "Mask", "NewcomersOnly", "Numbers", "Place", "ShareableSlot",
    "ShareableSlots", "SubBatch", "Together", "TwoClasses", "WakeUp", "Why", "find_pods", "find_room",
    "is_anybody_left", "is_kept_together", "is_suitable", "known_batches", "least_slowdown",
    "longest_first", "nobody", "place_in_order", "place_ordered", "preemptible_jobs", "rearrange",
    "reclaim", "reserve", "reserved", "slowdown", "sub_batches", "take_room", "victims_for",
    "whom_to_ask", "worth_preempting",
]
# fmt: on
