"""PCS: weighted fair queueing by size, between speed and predictions that hold.

Source: PCS (NSDI '24). Departs from it in that gangs are whole and that a class has an account in
device-seconds (`policy.py`). What came of it: 15 of 16 claims hold in the paper's world, where devices are a
fluid (experiments/pcs/fluid); a prediction that is kept costs 1.7 to 2.5 times the mean completion time of
srsf (experiments/results/pcs.md).

`wfq.py` divides; `policy.py` decides about whole devices, `elastic.py` about those of elastic jobs,
`standing.py` says what a class is due and holds. `preferences/` searches the trade-offs, `verbs.py` is
`cotenant policy tune pcs`.
"""

from cotenant.controller.papers.pcs.elastic import PCS
from cotenant.controller.papers.pcs.policy import Pcs, PcsParameters
from cotenant.controller.papers.pcs.standing import size_gpu_s
from cotenant.controller.papers.pcs.wfq import (
    WfqConfig,
    published_form,
    class_shares,
    divide,
    parse_published,
    published_named,
)

__all__ = [
    "PCS",
    "Pcs",
    "PcsParameters",
    "WfqConfig",
    "published_form",
    "class_shares",
    "divide",
    "parse_published",
    "published_named",
    "size_gpu_s",
]
