"""qssf: quasi-shortest service first, by what jobs like this one took before.

Source: Helios (Hu et al., SC '21) section 4.2.2, Algorithm 1: priority = GPUs x (lambda * P_roll +
(1 - lambda) * P_ml). P_roll is the mean of what this user's jobs of the same name took, the
latest counting most; of this user's jobs with as many GPUs where the name is new; of everybody's with as many
GPUs where the user is new.

Departs from there in that the estimate that every policy gets (said, or learned from earlier runs of the
command) stands for P_ml, a trained regression; and that the name is the kind of command, as for
pairs. Where there is no history the estimate counts alone, and the other way round.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from cotenant.controller.domain import AnyEvent, AttemptEnded, Decision, Job, JobId, Phase, View, kind_of
from cotenant.controller.policies.classic import UNKNOWN_S
from cotenant.controller.policies.entry import ORDER, PolicyEntry
from cotenant.controller.policies.order_options import OrderParameters
from cotenant.controller.policies.scored import Scored

KEYS_MAX = 20_000
SEEN_MAX = 1_000


class QssfParameters(OrderParameters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """lambda, and how fast the past fades."""

    history: float = 0.5
    """lambda: the share of what was seen of jobs like this one; the rest is the estimate's."""
    newest: float = 0.3
    """The share of the newest job in the mean of its kind."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.history <= 1.0 or not 0.0 < self.newest <= 1.0:
            raise ValueError("qssf: history must be 0 to 1, newest above 0 to 1")


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

    def scores(self, view: View, jobs: Sequence[Job], event: AnyEvent | None) -> Sequence[float]:
        means = ChainMap(self._lessons(view, event), self._history.mean_s)
        return [self._expected_s(job, means) * job.spec.gpus_min for job in jobs]

    def _expected_s(self, job: Job, means: Mapping[str, float]) -> float:
        told_s, share = job.remaining_s, self._asked.history
        seen_s = next((means[key] for key in _keys(job) if key in means), None)
        if seen_s is None or told_s is None:
            return UNKNOWN_S if seen_s is told_s else (told_s if seen_s is None else seen_s) or 0.0
        return share * seen_s + (1.0 - share) * told_s

    def _lessons(self, view: View, event: AnyEvent | None) -> dict[str, float]:
        """The means that the end of a job changes, with their new values."""
        job = view.jobs.get(event.job_id) if isinstance(event, AttemptEnded) else None
        history, newest = self._history, self._asked.newest
        if job is None or job.phase is not Phase.DONE or job.job_id in history.seen:
            return {}
        before_s = {key: history.mean_s.get(key, job.run_s) for key in _keys(job)}
        return {key: mean_s + newest * (job.run_s - mean_s) for key, mean_s in before_s.items()}

    def observe(self, view: View, event: AnyEvent, decision: Decision) -> None:
        lessons, history = self._lessons(view, event), self._history
        if not lessons or not isinstance(event, AttemptEnded):
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
    group=ORDER,
    choose="nobody says expected times, but users run the same jobs again and again",
)
