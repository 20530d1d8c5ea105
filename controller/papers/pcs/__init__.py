"""PCS (NSDI '24): weighted fair queueing that keeps what it promises. `wfq.py` divides, in the fluid world as
live; `policy.py` decides about whole devices, `elastic.py` about those of elastic jobs."""

from cotenant.controller.papers.pcs.elastic import PCS
from cotenant.controller.papers.pcs.policy import Pcs, PcsParameters
from cotenant.controller.papers.pcs.standing import size_gpu_s
from cotenant.controller.papers.pcs.wfq import (
    WfqConfig,
    as_published,
    class_shares,
    divide,
    from_published,
    published_named,
)

__all__ = [
    "PCS", "Pcs", "PcsParameters", "WfqConfig",
    "as_published", "class_shares", "divide", "from_published", "published_named", "size_gpu_s",
]  # fmt: skip
