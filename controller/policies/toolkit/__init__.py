"""What several policies use: victims, places kept back, orders that look at the whole queue."""

# fmt: off
from cotenant.controller.policies.toolkit.compared import Why, least_told, why_shorter, why_shortest
from cotenant.controller.policies.toolkit.in_order import (
    OrderParameters, PassingParameters, place_in_order, place_ordered,
)
from cotenant.controller.policies.toolkit.late import KeptForLate, Spared, Spares, late_waiting, spare_nobody
from cotenant.controller.policies.toolkit.pods import find_pods, reclaim
from cotenant.controller.policies.toolkit.reservations import reserve
from cotenant.controller.policies.toolkit.two_classes import ClassParameters, TwoClasses, preemptible_jobs
from cotenant.controller.policies.toolkit.victims import (
    FreedDevices, NewcomerParameters, NewcomerRule, devices_by_host, is_kept_together, longest_first,
    may_give_way, newcomers, victims_for, worth_preempting,
)
from cotenant.controller.policies.toolkit.walk import Candidates, Each
from cotenant.controller.policies.toolkit.whole_queue import (
    QueueOrder, RemembersWakeUp, find_room, is_anybody_left, rearrange,
    list_reserved, rearrange_after, take_room, whom_to_ask,
)

__all__ = [
    "Candidates", "ClassParameters", "Each", "FreedDevices", "KeptForLate", "NewcomerParameters",
    "NewcomerRule", "QueueOrder", "RemembersWakeUp", "may_give_way", "why_shortest",
    "OrderParameters", "PassingParameters", "TwoClasses", "Why",
    "devices_by_host", "find_pods", "find_room", "is_anybody_left", "is_kept_together", "late_waiting",
    "least_told", "longest_first", "newcomers", "place_in_order", "place_ordered", "preemptible_jobs",
    "rearrange", "rearrange_after", "reclaim", "reserve", "list_reserved", "Spared", "Spares", "spare_nobody",
    "take_room", "victims_for", "whom_to_ask", "why_shorter", "worth_preempting",
]
# fmt: on
