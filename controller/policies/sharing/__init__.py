"""What policies that share devices use: whom a job may join, which slots are open to it, what waiting costs.

It computes with numpy; an order that shares nothing does not load it.
"""

# fmt: off
from cotenant.controller.policies.sharing.colocation import (
    CoTenant, Colocation, ColocationParameters, nobody,
)
from cotenant.controller.policies.sharing.expected_releases import (
    NEVER, ExpectedFree, ExpectedReleases, Together,
)
from cotenant.controller.policies.sharing.shareable_slots import (
    Mask, HostAndType, Ratios, ShareableSlot, ShareableSlots, is_suitable, memory_unknown,
)
from cotenant.controller.policies.sharing.sub_batches import Floats
from cotenant.controller.policies.sharing.sub_batches import (
    SubBatch, known_batches, least_slowdown, slowdown, sub_batches,
)

__all__ = [
    "NEVER", "CoTenant", "Colocation", "ColocationParameters", "ExpectedFree", "ExpectedReleases", "Mask",
    "Floats", "HostAndType", "Ratios", "ShareableSlot", "ShareableSlots", "SubBatch", "Together",
    "is_suitable", "known_batches", "least_slowdown", "memory_unknown", "nobody", "slowdown", "sub_batches",
]
# fmt: on
