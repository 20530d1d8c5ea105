"""f1, wfp3, unicep: published scores of waiting jobs, with what RLTune and RLScheduler compare.

Sources: `f1`, found by regression over simulations (Carastan-Santos and de Camargo, SC '17); `wfp3` and
`unicep`, which set the time waited against size (Tang, Lan, Desai and Buettner, CLUSTER '09; as RLTune
section 3.1 uses them). rt is the expected remaining time, n the GPUs, wt the time waited, st when it was
submitted.

Departs from there in two places where a formula fails: `unicep` divides by log2(n + 1), since log2 of one GPU
is 0; and `f1` counts st from the first arrival that the policy has seen, since on a wall clock it would be
all but a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, log10
from typing import Final

import msgspec

from cotenant.controller.domain import AnyEvent, Decision, Job, JobArrived, View
from cotenant.controller.policies.classic import UNKNOWN_S
from cotenant.controller.policies.entry import ORDER, PolicyEntry
from cotenant.controller.policies.order_options import OrderParameters
from cotenant.controller.policies.scored import Scored, waited_s


def expected_s(job: Job) -> float:
    """Expected remaining time, at least a second; `UNKNOWN_S` if nothing is known."""
    return UNKNOWN_S if job.remaining_s is None else max(job.remaining_s, 1.0)


class Wfp3(Scored):
    """-(wt/rt)^3 * n: jobs that have waited long for their length first, wide ones sooner."""

    name = "wfp3"

    def scores(self, view: View, jobs: Sequence[Job], event: AnyEvent | None) -> Sequence[float]:
        now_s = view.now_s
        return [-((waited_s(job, now_s) / expected_s(job)) ** 3) * job.spec.gpus_min for job in jobs]


class Unicep(Scored):
    """-wt/(log2(n + 1) * rt): the same, narrow ones sooner."""

    name = "unicep"

    def scores(self, view: View, jobs: Sequence[Job], event: AnyEvent | None) -> Sequence[float]:
        now_s = view.now_s
        return [-waited_s(job, now_s) / (log2(job.spec.gpus_min + 1) * expected_s(job)) for job in jobs]


class F1(Scored):
    """log10(rt) * n + 870 * log10(st)."""

    name = "f1"

    def __init__(self, parameters: OrderParameters) -> None:
        super().__init__(parameters)
        self._origin_s: float | None = None

    def scores(self, view: View, jobs: Sequence[Job], event: AnyEvent | None) -> Sequence[float]:
        origin_s = self._origin_s if self._origin_s is not None else view.now_s
        return [
            log10(expected_s(job)) * job.spec.gpus_min + 870.0 * log10(max(job.submitted_s - origin_s, 1.0))
            for job in jobs
        ]

    def observe(self, view: View, event: AnyEvent, decision: Decision) -> None:
        if self._origin_s is None and isinstance(event, JobArrived):
            self._origin_s = view.now_s

    def save(self) -> bytes:
        return msgspec.msgpack.encode(self._origin_s)

    def load(self, state: bytes) -> None:
        self._origin_s = msgspec.msgpack.decode(state, type=float | None) if state else None


F1_ENTRY: Final = PolicyEntry(
    "by a formula of length, width and arrival (F1): early jobs first, ever more the small ones",
    F1,
    OrderParameters.parse,
    group=ORDER,
    choose="a result with F1 is to be compared with",
)

WFP3: Final = PolicyEntry(
    "longest wait for its length first, wider jobs before narrower ones",
    Wfp3,
    OrderParameters.parse,
    group=ORDER,
    choose="wide jobs wait too long under sjf (WFP3)",
)

UNICEP: Final = PolicyEntry(
    "longest wait for its length and width first",
    Unicep,
    OrderParameters.parse,
    group=ORDER,
    choose="as for wfp3, with narrow jobs first (UNICEP)",
)
