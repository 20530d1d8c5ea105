"""Published orders by a score: f1, wfp3 and unicep, with what RLTune and RLScheduler compare, and qssf,
quasi-shortest service first, by what jobs like this one took before.

Sources: `f1`, found by regression over simulations (Carastan-Santos and de Camargo, SC '17); `wfp3` and
`unicep`, which set the time waited against size (Tang, Lan, Desai and Buettner, CLUSTER '09; as RLTune
section 3.1 uses them). rt is the expected remaining time, n the GPUs, wt the time waited, st when it was
submitted.

Departs from there in two places where a formula fails: `unicep` divides by log2(n + 1), since log2 of one GPU
is 0; and `f1` counts st from the first arrival that the policy has seen, since on a wall clock it would be
all but a constant.

Source of `qssf`: Helios (Hu et al., SC '21) section 4.2.2, Algorithm 1: priority = GPUs x (lambda * P_roll +
(1 - lambda) * P_ml). P_roll is the mean of what this user's jobs of the same name took, the
latest counting most; of this user's jobs with as many GPUs where the name is new; of everybody's with as many
GPUs where the user is new. Departs from there in that the estimate that every policy gets (said, or learned
from earlier runs of the command) stands for P_ml, a trained regression; and that the name is the kind of
command, as for pairs. Where there is no history the estimate counts alone, and the other way round.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log2, log10
from typing import Annotated, Final

import msgspec

from cotenant.controller.domain import Decision, Job, JobId, Phase
from cotenant.controller.domain import events as ev
from cotenant.controller.knowledge import kind_of
from cotenant.controller.planning import View
from cotenant.controller.policies.base import Within
from cotenant.controller.policies.entries import COMPARED, PolicyEntry
from cotenant.controller.policies.ordered import UNKNOWN_S
from cotenant.controller.policies.scored import Scored, expected_s, waited_s
from cotenant.controller.policies.toolkit import OrderParameters

Score = Callable[[Job, float], float]
"""Of a waiting job at a time; the lowest goes first."""


def wfp3(job: Job, now_s: float) -> float:
    """-(wt/rt)^3 * n: jobs that have waited long for their length first, wide ones sooner."""
    return -((waited_s(job, now_s) / expected_s(job)) ** 3) * job.spec.gpus_min


def unicep(job: Job, now_s: float) -> float:
    """-wt/(log2(n + 1) * rt): the same, narrow ones sooner."""
    return -waited_s(job, now_s) / (log2(job.spec.gpus_min + 1) * expected_s(job))


class ByFormula(Scored):
    """An order by a formula of the job alone."""

    def __init__(self, name: str, score: Score, parameters: OrderParameters) -> None:
        super().__init__(parameters)
        self.name, self._score = name, score

    def scores(self, view: View, jobs: Sequence[Job], event: ev.AnyEvent | None) -> Sequence[float]:
        score, now_s = self._score, view.now_s
        return [score(job, now_s) for job in jobs]


class F1(Scored):
    """log10(rt) * n + 870 * log10(st)."""

    name = "f1"

    def __init__(self, parameters: OrderParameters) -> None:
        super().__init__(parameters)
        self._origin_s: float | None = None

    def scores(self, view: View, jobs: Sequence[Job], event: ev.AnyEvent | None) -> Sequence[float]:
        origin_s = self._origin_s if self._origin_s is not None else view.now_s
        return [
            log10(expected_s(job)) * job.spec.gpus_min + 870.0 * log10(max(job.submitted_s - origin_s, 1.0))
            for job in jobs
        ]

    def observe(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        if self._origin_s is None and isinstance(event, ev.JobArrived):
            self._origin_s = view.now_s

    def save(self) -> bytes:
        return msgspec.msgpack.encode(self._origin_s)

    def load(self, state: bytes) -> None:
        self._origin_s = msgspec.msgpack.decode(state, type=float | None) if state else None


F1_ENTRY: Final = PolicyEntry(
    "by a formula of length, width and arrival (F1): early jobs first, ever more the small ones",
    F1,
    OrderParameters.parse,
    group=COMPARED,
    choose="a result with F1 is to be compared with",
)

WFP3: Final = PolicyEntry(
    "longest wait for its length first, wider jobs before narrower ones",
    lambda given: ByFormula("wfp3", wfp3, given),
    OrderParameters.parse,
    group=COMPARED,
    choose="wide jobs wait too long under sjf (WFP3)",
)

UNICEP: Final = PolicyEntry(
    "longest wait for its length and width first",
    lambda given: ByFormula("unicep", unicep, given),
    OrderParameters.parse,
    group=COMPARED,
    choose="as for wfp3, with narrow jobs first (UNICEP)",
)


KEYS_MAX = 20_000
SEEN_MAX = 1_000


class QssfParameters(OrderParameters, frozen=True, kw_only=True):
    """lambda, and how fast the past fades."""

    history: Annotated[float, Within(0.0, 1.0)] = 0.5
    """lambda: the share of what was seen of jobs like this one; the rest is the estimate's."""
    newest: Annotated[float, Within(0.0, 1.0, above=True)] = 0.3
    """The share of the newest job in the mean of its kind."""


class DurationHistory(msgspec.Struct, kw_only=True):
    """Means by what jobs have in common; and which ends are counted, for an end may be reported twice."""

    mean_s: dict[str, float] = {}
    seen: dict[JobId, float] = {}


class Qssf(Scored):
    """Smallest expected GPU time first."""

    name = "qssf"

    def __init__(self, parameters: QssfParameters) -> None:
        super().__init__(parameters)
        self._asked = parameters
        self._history = DurationHistory()

    def scores(self, view: View, jobs: Sequence[Job], event: ev.AnyEvent | None) -> Sequence[float]:
        means = ChainMap(self._lessons(view, event), self._history.mean_s)
        return [self._expected_s(job, means) * job.spec.gpus_min for job in jobs]

    def _expected_s(self, job: Job, means: Mapping[str, float]) -> float:
        told_s, share = job.estimate.remaining_s, self._asked.history
        seen_s = next((means[key] for key in _keys(job) if key in means), None)
        if seen_s is None or told_s is None:
            return UNKNOWN_S if seen_s is told_s else (told_s if seen_s is None else seen_s) or 0.0
        return share * seen_s + (1.0 - share) * told_s

    def _lessons(self, view: View, event: ev.AnyEvent | None) -> dict[str, float]:
        """The means that the end of a job changes, with their new values."""
        job = view.jobs.get(event.job_id) if isinstance(event, ev.AttemptEnded) else None
        history, newest = self._history, self._asked.newest
        if job is None or job.phase is not Phase.DONE or job.job_id in history.seen:
            return {}
        before_s = {key: history.mean_s.get(key, job.spent.run_s) for key in _keys(job)}
        return {key: mean_s + newest * (job.spent.run_s - mean_s) for key, mean_s in before_s.items()}

    def observe(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        lessons, history = self._lessons(view, event), self._history
        if not lessons or not isinstance(event, ev.AttemptEnded):
            return
        history.seen[event.job_id] = view.now_s
        if len(history.seen) > SEEN_MAX:
            del history.seen[next(iter(history.seen))]
        for key, mean_s in lessons.items():
            history.mean_s.pop(key, None)
            history.mean_s[key] = mean_s
        while len(history.mean_s) > KEYS_MAX:
            del history.mean_s[next(iter(history.mean_s))]

    def save(self) -> bytes:
        return msgspec.msgpack.encode(self._history)

    def load(self, state: bytes) -> None:
        self._history = msgspec.msgpack.decode(state, type=DurationHistory) if state else DurationHistory()


def _keys(job: Job) -> Iterator[str]:
    """Keys that the job shares with similar ones, the closest first."""
    spec = job.spec
    user = f"{spec.organisation}/{spec.user}"
    yield f"{user} {spec.gpus_min} {kind_of(spec)}"
    yield f"{user} {spec.gpus_min}"
    yield f"{spec.gpus_min}"


QSSF: Final = PolicyEntry(
    "smallest expected GPU time first, by what jobs like it took before (Helios)",
    Qssf,
    QssfParameters.parse,
    group=COMPARED,
    choose="nobody says expected times, but users run the same jobs again and again",
)
