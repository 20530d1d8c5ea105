"""PCS (NSDI '24): weighted fair queueing that keeps what it promises. `wfq.py` divides, in the fluid world as
live; `policy.py` decides about whole devices, `elastic.py` about those of elastic jobs."""

from cotenant.controller.policies.pcs.elastic import PCS
from cotenant.controller.policies.pcs.policy import Pcs, PcsParameters
from cotenant.controller.policies.pcs.wfq import (
    Speedup,
    WfqConfig,
    as_published,
    class_shares,
    divide,
    from_published,
    published_named,
)

__all__ = [
    "PCS", "Pcs", "PcsParameters", "Speedup", "WfqConfig",
    "as_published", "class_shares", "divide", "from_published", "published_named",
]  # fmt: skip
