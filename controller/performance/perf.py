"""How long an iteration takes: alone, with accumulation, and beside a co-tenant.

Sources: Castor section 4 (eq. 1 to 3, Theorem 1) as settled for this project. All times are in
seconds, memory in MiB, batch sizes per worker (one worker per device).
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from cotenant.controller.performance.indicators import Indicators
from cotenant.controller.performance.throughput import Gang, ThroughputModel

XiSource = Literal["observed", "measured", "predicted", "duty-cycle", "default"]


class SeenBatch(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows of a worker's batch a script gives its model at a time, as far as could be seen of it."""

    rows: int | None = None
    """None: not known."""
    note: str = ""
    """Where that was read, or why it is not known."""


class ProfilePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The measured needs of one worker at one sub-batch."""

    sub_batch: int
    accumulation_steps: int
    step_s: float
    """Seconds of one optimizer step: all its micro-batches, the gradient sync and the update."""
    memory_mib: float
    """Peak device memory of one worker."""
    gang: Gang | None = None
    """Where it was measured; None: on as many devices and hosts as the job has."""

    def __post_init__(self) -> None:
        if self.sub_batch < 1 or self.accumulation_steps < 1:
            raise ValueError(f"sub-batch and accumulation steps must be at least 1, got {self}")
        if not (self.step_s > 0 and self.memory_mib >= 0):
            raise ValueError(f"step time must be positive and memory not negative, got {self}")


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A job's measured behaviour when it runs alone."""

    points: tuple[ProfilePoint, ...] = ()
    duty_cycle: float | None = None
    """Share of the time in which its devices are busy, 0 to 1; None if unknown."""
    load_s: float | None = None
    """Launch to first optimizer step."""
    steps: int = 0
    """How many optimizer steps were measured."""
    accumulates: bool | None = None
    """Whether its batches can be split. True: measured so, or its library has said so; False: it has refused;
    None: not known."""
    memory_mib_peak: float | None = None
    """The most that one worker was seen to hold at the sub-batch it was started with; also of jobs that say
    nothing of their steps. None: not measured."""
    static_mib: float | None = None
    """What of that was in use between two steps, and so is whatever the sub-batch. None: not measured."""
    indicators: Indicators | None = None
    """Means and variances of Table 2 while it ran alone; None: not sampled."""
    step_s: float | None = None
    """Seconds of a step as it was started, where no batch size was known: then there are no points."""
    steps_by_devices: tuple[tuple[int, float], ...] = ()
    """Seconds of a step of one batch on so many devices, divided among them."""
    total_steps: int | None = None
    """Of the job it was measured on, as far as could be seen of its script."""
    batch: SeenBatch = SeenBatch()
    """Of that job."""
    source: str = "unknown"
    part_share: float | None = None
    """What each further part of a batch adds to a step, in steps, where other kinds were measured in parts on
    this type of device; None: none was."""
    throughput: ThroughputModel | None = None
    """Fitted to the points, where they determine it."""
    runs_alike: int = 0
    """Above 0: measured on so many jobs with other numbers in their commands, not on one of this kind."""

    def scale_memory(self, ratio: float, runs_alike: int, source: str) -> Profile:
        """The profile for a job with other numbers, which needs so many times the memory; its length is not
        that of this one."""
        points = tuple(
            msgspec.structs.replace(each, memory_mib=ratio * each.memory_mib) for each in self.points
        )
        peak_mib, static_mib = (each and ratio * each for each in (self.memory_mib_peak, self.static_mib))
        given = msgspec.structs.replace(self, points=points, memory_mib_peak=peak_mib, static_mib=static_mib)
        return msgspec.structs.replace(given, total_steps=None, runs_alike=runs_alike, source=source)

    @property
    def knows_whole(self) -> bool:
        """Whether step time and memory of the whole batch were measured: enough to share with it whole."""
        return self.point_at(1) is not None or None not in (self.step_s, self.memory_mib_peak)

    @property
    def s_max(self) -> int:
        """The most micro-batches of which something is known: those that it was measured with; what more
        would take is modelled where only one s was measured."""
        measured = self.measured_s
        return max(measured[-1], MODELLED_MAX) if len(measured) == 1 else measured[-1] if measured else 1

    @property
    def measured_s(self) -> tuple[int, ...]:
        """The numbers of micro-batches that it was measured with, ascending."""
        return tuple(sorted({point.accumulation_steps for point in self.points}))

    def add_points(self, points: tuple[ProfilePoint, ...]) -> Profile:
        """The same profile with further points, which win over those of the same s; a law fitted to fewer is
        dropped."""
        new = {point.accumulation_steps for point in points}
        kept = tuple(point for point in self.points if point.accumulation_steps not in new)
        every = sorted((*kept, *points), key=lambda point: point.accumulation_steps)
        return msgspec.structs.replace(self, points=tuple(every), throughput=None)

    def point_at(self, accumulation_steps: int, gang: Gang | None = None) -> ProfilePoint | None:
        """The measured point for exactly this s (and this gang, if one is named), or None."""
        for point in self.points:
            if point.accumulation_steps == accumulation_steps and (
                gang is None or point.gang is None or point.gang == gang
            ):
                return point
        return None


MODELLED_MAX: Final = 16
"""The most micro-batches of a job that was measured at one s."""
RECOMPUTED_SHARE: Final = 1 / 3
"""Of a step, by the forward pass: a backward pass takes twice as long as a forward pass (the usual count of
operations, 2 and 4 per parameter and row). In s parts (s - 1) / s of it are done twice, unless the script
splits its batches itself; then a modelled step is too long."""
PART_SHARE: Final = 0.035
"""Of a step, by each further part (Castor eq. 3's `a`), where no kind was measured in parts: the median of
the four jobs of experiments/results/throughput.md."""


def alone_step_s(profile: Profile | None, gang: Gang) -> float | None:
    """The step time of the whole batch, as it was measured alone; None where it was not."""
    if profile is None:
        return None
    point = profile.point_at(1, gang)
    return profile.step_s if point is None else point.step_s


def _is_of(point: ProfilePoint, gang: Gang | None) -> bool:
    return gang is None or point.gang is None or point.gang == gang


class StepModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of step times after Castor eq. 1 to 3: `t_comp(b) = a + c*b`, one gradient sync per optimizer
    step.

    The model departs from the paper in that `sync_s` is the measured remainder instead of a fit of a', c', d:
    two or three profiled points determine a, c and the remainder, and no more.
    """

    fixed_s: float
    per_sample_s: float
    sync_s: float
    batch_size: int

    def compute_s(self, sub_batch: float) -> float:
        return self.fixed_s + self.per_sample_s * sub_batch

    def step_s(self, accumulation_steps: int) -> float:
        """The step time by eq. 3 with delta -> 1 (no overlap of the last micro-batch with the sync)."""
        s = accumulation_steps
        return s * self.compute_s(self.batch_size / s) + self.sync_s


def fit_step_model(profile: Profile, batch_size: int) -> StepModel | None:
    """The step model through the profiled points, or None without any.

    `s*(a + c*B/s) + sync = (c*B + sync) + s*a`: two values of s give `a`; the split of the rest
    between c and sync does not change any prediction for this batch size, so sync is 0 here.
    """
    points = sorted(profile.points, key=lambda p: p.accumulation_steps)
    if not points:
        return None
    first, last = points[0], points[-1]
    if last.accumulation_steps > first.accumulation_steps:
        span = last.accumulation_steps - first.accumulation_steps
        fixed_s = min(max(0.0, (last.step_s - first.step_s) / span), first.step_s)
    else:
        fixed_s = 0.0
    rest_s = first.step_s - first.accumulation_steps * fixed_s
    return StepModel(
        fixed_s=fixed_s, per_sample_s=max(0.0, rest_s) / batch_size, sync_s=0.0, batch_size=batch_size
    )


def part_share(profile: Profile, batch_size: int) -> float | None:
    """What each further part adds to a step, in steps; None where fewer than two s were measured."""
    model, whole = fit_step_model(profile, batch_size), profile.point_at(1)
    if model is None or whole is None or len(profile.measured_s) < 2:
        return None
    return model.fixed_s / whole.step_s


def modelled_from(profile: Profile | None, accumulation_steps: int) -> str:
    """The source of what is known of s parts, for people; empty: it was measured, or nothing is known."""
    if profile is None or not profile.points or profile.point_at(accumulation_steps) is not None:
        return ""
    return f"modelled from s = {', '.join(map(str, profile.measured_s))}"


def modelled_points(profile: Profile) -> tuple[ProfilePoint, ...]:
    """What the parts of a batch would take that were not measured; none of a job that refuses to be split."""
    whole = profile.point_at(1)
    if whole is None or profile.accumulates is False:
        return ()
    batch_size, found = whole.sub_batch, list[ProfilePoint]()
    for s in (s for s in (2, 4, 8, 16) if s <= min(batch_size, profile.s_max)):
        time_s, needed_mib = step_s(profile, batch_size, s), memory_mib(profile, s)
        if profile.point_at(s) is None and time_s is not None and needed_mib is not None:
            sub_batch = -(-batch_size // s)
            found.append(
                ProfilePoint(sub_batch=sub_batch, accumulation_steps=s, step_s=time_s, memory_mib=needed_mib)
            )
    return tuple(found)


def step_s(
    profile: Profile, batch_size: int, accumulation_steps: int, gang: Gang | None = None
) -> float | None:
    """Seconds per optimizer step at s: measured if this s was profiled, else by a model.

    The fitted law says how a step of this gang scales from the nearest s that was measured on it; without
    such a point it is taken as it is. Without a law, or where it does not know the gang, the small model
    serves, through points of this gang alone; where these are of one s, what parts cost is a prior.

    Args:
        gang: what the job runs on; None where every point is of the job's own.
    """
    point = profile.point_at(accumulation_steps, gang)
    if point is not None:
        return point.step_s
    own = _own(profile, gang)
    law = profile.throughput
    if law is not None and gang is not None and law.knows(gang):
        return _law_step_s(law, own, batch_size, accumulation_steps, gang)
    if len(own.measured_s) == 1:
        (known,) = own.measured_s[:1]
        scale = _in_parts(accumulation_steps, profile) / _in_parts(known, profile)
        return own.points[0].step_s * scale
    model = fit_step_model(own, batch_size)
    return None if model is None else model.step_s(accumulation_steps)


def _in_parts(s: int, profile: Profile) -> float:
    """A step in s parts / one of the whole batch, where it was not measured."""
    share = PART_SHARE if profile.part_share is None else profile.part_share
    return 1.0 + RECOMPUTED_SHARE * (s - 1) / s + share * (s - 1)


def _own(profile: Profile, gang: Gang | None) -> Profile:
    if gang is None or all(point.gang is None for point in profile.points):
        return profile
    return msgspec.structs.replace(profile, points=tuple(p for p in profile.points if _is_of(p, gang)))


def _law_step_s(law: ThroughputModel, own: Profile, batch_size: int, s: int, gang: Gang) -> float:
    def predicted_s(steps: int) -> float:
        return law.coefficients.step_s(batch_size, steps, gang)

    if not own.points:
        return predicted_s(s)
    near = min(own.points, key=lambda p: (abs(p.accumulation_steps - s), p.accumulation_steps))
    return near.step_s * predicted_s(s) / predicted_s(near.accumulation_steps)


def memory_mib(profile: Profile, accumulation_steps: int) -> float | None:
    """Peak memory per device at s: measured, else interpolated over the sub-batch, else None.

    Outside the measured range the nearest measured *larger* sub-batch counts: what is in use beside its
    activations stays, where that was measured, and they shrink with the sub-batch; else all of it.
    """
    for point in profile.points:
        if point.accumulation_steps == accumulation_steps:
            return point.memory_mib
    points = sorted(profile.points, key=lambda p: p.accumulation_steps)
    below = [p for p in points if p.accumulation_steps < accumulation_steps]
    above = [p for p in points if p.accumulation_steps > accumulation_steps]
    if below and above:
        lo, hi = above[0], below[-1]
        batch = hi.sub_batch * hi.accumulation_steps
        share = (batch / accumulation_steps - lo.sub_batch) / max(1, hi.sub_batch - lo.sub_batch)
        return lo.memory_mib + min(1.0, max(0.0, share)) * (hi.memory_mib - lo.memory_mib)
    if not below:
        return None if points else profile.memory_mib_peak
    near, static_mib = below[-1], profile.static_mib
    if static_mib is None or static_mib >= near.memory_mib:
        return near.memory_mib
    return static_mib + (near.memory_mib - static_mib) * near.accumulation_steps / accumulation_steps


class Interference(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The interference ratios of a pair: iteration time when sharing / alone, one per job, >= 1."""

    first: float
    second: float
    source: XiSource
    count: int = 0
    """How many observations stand behind it (0 for rules and defaults)."""
    both: bool = False
    """Both ratios were observed; otherwise one of them, or both, come from elsewhere."""
    first_speed: float | None = None
    second_speed: float | None = None
    """1 / xi of each on average over all that it was ever observed beside; None: beside none."""
    crowded: bool = False
    """One of the two ran out of device memory beside the other: the pair is not made again."""
    faulted: bool = False
    """A fatal GPU fault struck the two together not long ago: the pair is kept apart for a time."""
    over_bound: bool = False
    """What one of the two may lose at most cannot be kept beside the other (`bounds.py`)."""
    trial: tuple[float, float] | None = None
    """What to expect of a pair that was never measured, where one of the two names a bound (`trial_ratios`).
    That is kept whatever the pair turns out to be, so a policy may try the pair even if `over_bound`."""
    margins: tuple[float, float] | None = None
    """Of a prediction: half the width of each one's interval that holds most truths; None without a model."""

    def swap(self) -> Interference:
        return msgspec.structs.replace(
            self,
            first=self.second,
            second=self.first,
            first_speed=self.second_speed,
            second_speed=self.first_speed,
            margins=self.margins and (self.margins[1], self.margins[0]),
            trial=self.trial and (self.trial[1], self.trial[0]),
        )

    def margin(self, number: Literal[0, 1]) -> float | None:
        """The margin of the first or second ratio."""
        return None if self.margins is None else self.margins[number]

    @property
    def gain(self) -> float:
        """What sharing yields beyond taking turns: 1 / xi of the one + 1 / xi of the other - 1. Below 0 the
        two get less done together than one after the other."""
        gain: float = gain_of(self.first, self.second)
        return gain


def gain_of(first: Any, second: Any) -> Any:
    """`Interference.gain` of one pair, or, given arrays of ratios, of many at once."""
    return 1.0 / first + 1.0 / second - 1.0


RATIO_STEPS_MIN: Final = 30
"""Steps from which a measured ratio is told: of fewer, one slow step makes another ratio."""
DEFAULT_XI = 1.5
"""For a pair without any data: between a perfect (1.0) and a time-sliced (2.0) pair."""


def duty_cycle_rule(first: Profile | None, second: Profile | None) -> Interference:
    """`max(1, uA + uB)` from the solo duty cycles (time-slicing), or the default without them."""
    u_first = first.duty_cycle if first is not None else None
    u_second = second.duty_cycle if second is not None else None
    if u_first is None or u_second is None:
        return Interference(first=DEFAULT_XI, second=DEFAULT_XI, source="default")
    xi = max(1.0, u_first + u_second)
    return Interference(first=xi, second=xi, source="duty-cycle")


class PairTiming(msgspec.Struct, frozen=True, kw_only=True):
    """The times of Theorem 1: average completion time of a pair, now shared or one after the other."""

    shared_s: float
    sequential_s: float

    @property
    def pays(self) -> bool:
        return self.shared_s < self.sequential_s


def pair_timing(
    newcomer_remaining_s: float,
    partner_remaining_s: float,
    newcomer_xi: float,
    partner_xi: float,
    newcomer_stretch: float = 1.0,
) -> PairTiming:
    """Compare *start now, shared* with *start when the partner ends* (Castor Theorem 1).

    Only the two ends matter (the average is linear in the insertion time). Both times are REMAINING
    seconds alone at full batch. `newcomer_stretch` >= 1 is what accumulation alone costs it, and it
    keeps its sub-batch after the partner has left. Departs from the paper's sign rule, which picks
    the worse end in its case 1 for about half of random pairs: both ends are computed instead.
    """
    assert newcomer_xi >= 1.0 and partner_xi >= 1.0 and newcomer_stretch > 0.0
    alone_s = newcomer_remaining_s * newcomer_stretch
    newcomer_end_s, partner_end_s = shared_ends(alone_s, partner_remaining_s, newcomer_xi, partner_xi)
    sequential_s = (partner_remaining_s + partner_remaining_s + newcomer_remaining_s) / 2
    return PairTiming(shared_s=(newcomer_end_s + partner_end_s) / 2, sequential_s=sequential_s)


def shared_ends(first_s: float, second_s: float, first_xi: float, second_xi: float) -> tuple[float, float]:
    """When two jobs end that share from now on, the survivor going on alone at its own speed."""
    first_shared, second_shared = first_s * first_xi, second_s * second_xi
    if first_shared <= second_shared:
        left_s = second_s - first_shared / second_xi
        return first_shared, first_shared + left_s
    left_s = first_s - second_shared / first_xi
    return second_shared + left_s, second_shared
