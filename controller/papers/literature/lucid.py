"""lucid: pack jobs of equal width that are known to share well.

Source: Lucid (ASPLOS '23) section 4.3, the "indolent" packing, as Castor section 9.1 compares with it and as
settled here. Waiting jobs stand in the order of remaining time x GPUs; free devices first; else a job is put
beside the first one that

* holds exactly as many GPUs as it needs, at most `gpus_max`, all of them alone: no gang is packed in part;
* leaves room for its whole batch: Lucid does not split batches;
* is light enough together with it: each kind of job has a label, 0, 1 or 2, by its mean speed beside others
  (at least `tiny`, at least `medium`, below), and the two labels sum up to at most `labels_max`;
* has at least half as much left: the newcomer's GPU time is at most `longer_max` times the partner's.

Departs from Lucid in that the mean speed is what has been observed of the kind of job beside any other; for a
kind that was never observed it is what the best source there is says of this very pair, and where nothing is
known the label is `unknown_label` (Lucid asks a model that was trained on counters beforehand); and in that a
pair measured to lose is parted (`part=false`: never).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal, NamedTuple

from cotenant.controller.domain import Job, Reason, because
from cotenant.controller.performance import Interference, XiSource
from cotenant.controller.planning import Plan, View, peak_mib
from cotenant.controller.policies import sharing
from cotenant.controller.policies.base import Within
from cotenant.controller.policies.entries import COMPARED, PolicyEntry
from cotenant.controller.policies.ordered import service_key


class LucidParameters(sharing.ColocationParameters, frozen=True, kw_only=True):
    """The named options of the policy; the defaults are Lucid's, but for `part`."""

    gpus_max: Annotated[int, Within(1)] = 8
    """Wider jobs are not packed."""
    tiny: float = 0.95
    medium: float = 0.85
    """Least mean speeds beside others, of 1 alone, for labels 0 and 1."""
    unknown_label: Annotated[int, Within(0, 2)] = 1
    """The label of a kind of which nothing is known: it is packed with light ones, and so becomes known."""
    labels_max: Annotated[int, Within(0)] = 2
    longer_max: Annotated[float, Within(0.0, above=True)] = 2.0
    """Newcomer's GPU time / partner's, at most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.medium <= self.tiny <= 1.0:
            raise ValueError(f"speeds must be 0 < medium <= tiny <= 1, got {self.medium} and {self.tiny}")


Speed = float | Literal["unknown"]


class LabelledPair(NamedTuple):
    """Two jobs as Lucid sees them."""

    mine: int
    theirs: int
    mine_speed: Speed
    their_speed: Speed
    mine_gpu_s: float
    their_gpu_s: float


class Lucid(sharing.Colocation):
    """A policy that packs a job with its first match."""

    name = "lucid"
    queue_key = staticmethod(service_key)

    def __init__(self, parameters: LucidParameters) -> None:
        self.parameters = parameters
        super().__init__(self.parameters)

    def join(self, plan: Plan, job: Job, slots: sharing.ShareableSlots) -> sharing.CoTenant | None:
        needed = peak_mib(job, 1)
        mine_s = job.known_left_s(plan.view.now_s)
        if job.spec.gpus > self.parameters.gpus_max or mine_s is None or needed is None:
            return None
        for slot in equals(plan.view, job, slots):
            refusal, seen = self._match(plan.view, job, slots, slot, needed)
            if refusal is None and seen is not None:
                return sharing.CoTenant(slot.devices, 1, because("sharing-packs", slot.partner.job_id, *seen))
        return None

    def _match(
        self, view: View, job: Job, slots: sharing.ShareableSlots, slot: sharing.ShareableSlot, needed: int
    ) -> tuple[Reason | None, LabelledPair | None]:
        """Why the job is not packed with this tenant, or how the two look."""
        partner, limits = slot.partner, self.parameters
        mine_s, left_s = job.known_left_s(view.now_s), partner.known_left_s(view.now_s)
        if left_s is None or mine_s is None:
            unknown = partner if left_s is None else job
            why = f"the length of job {unknown.job_id} is unknown: give --iterations or --expect"
            return because("sharing-unknown", partner.job_id, why), None
        if needed > slot.left_mib:
            return because(
                "sharing-no-memory", partner.job_id, "its whole batch", needed, slot.left_mib
            ), None
        gpus = job.spec.gpus
        if mine_s > limits.longer_max * left_s:
            mine_gpu_s, their_gpu_s = mine_s * gpus, left_s * gpus
            told = (partner.job_id, mine_gpu_s, limits.longer_max, their_gpu_s)
            return because("packing-longer", *told), None
        again = slots.why_not_again(job, partner)
        if again is not None:
            return again, None
        mine_speed, their_speed = speeds(slots.interference(job, partner))
        mine, theirs = self.label(mine_speed), self.label(their_speed)
        if mine + theirs > limits.labels_max:
            told_labels = (partner.job_id, mine, theirs, mine_speed, their_speed, limits.labels_max)
            return because("packing-labels", *told_labels), None
        return None, LabelledPair(mine, theirs, mine_speed, their_speed, mine_s * gpus, left_s * gpus)

    def label(self, speed: Speed) -> int:
        """The label of a job with this speed. 0: shares with any; 1: some; 2: only the lightest."""
        if speed == "unknown":
            return self.parameters.unknown_label
        return 0 if speed >= self.parameters.tiny else 1 if speed >= self.parameters.medium else 2

    def why_not(self, plan: Plan, job: Job, slots: sharing.ShareableSlots) -> Reason | None:
        if job.spec.gpus > self.parameters.gpus_max:
            return because("packing-width", job.spec.gpus, self.parameters.gpus_max)
        view, scheduling_class = plan.view, plan.view.queue.class_of(job)
        needed, told = peak_mib(job, 1), None
        for slot in equals(view, job, slots):
            if needed is None:
                why = f"the memory that job {job.job_id} needs is not known"
                return because("sharing-unknown", slot.partner.job_id, why)
            refusal, _ = self._match(view, job, slots, slot, needed)
            if refusal is None:
                return None
            told = refusal
        if told is not None:
            return told
        if any(slot.admits(view, job, scheduling_class) for slot in slots):
            return because("packing-no-equal", job.spec.gpus)
        return sharing.nobody(slots)


def equals(view: View, job: Job, slots: sharing.ShareableSlots) -> Iterator[sharing.ShareableSlot]:
    """Tenants of as many devices as the job needs, all of which they hold alone, on one host."""
    scheduling_class = view.queue.class_of(job)
    for slot in slots:
        placement = slot.partner.placement
        assert placement is not None
        if not len(slot.devices) == job.spec.gpus == len(placement.devices) or job.spec.nodes > 1:
            continue
        if slot.admits(view, job, scheduling_class):
            yield slot


def speeds(xi: Interference) -> tuple[Speed, Speed]:
    """Mean speeds beside others; of this very pair where a kind was never seen beside another."""
    mine = _speed(xi.first_speed, xi.first, xi.source)
    return mine, _speed(xi.second_speed, xi.second, xi.source)


def _speed(mean: float | None, xi: float, source: XiSource) -> Speed:
    if mean is not None:
        return mean
    return "unknown" if source == "default" else 1.0 / xi


LUCID: Final = PolicyEntry(
    "puts two jobs of equal width together if each keeps its devices little enough busy (Lucid)",
    Lucid,
    LucidParameters.parse,
    group=COMPARED,
    choose="a simple rule of utilisation is to be compared with",
)
