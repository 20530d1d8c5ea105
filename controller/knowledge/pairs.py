"""What has been measured about pairs of jobs, and the best known interference ratio of a pair.

Sources in falling trust: this kind of pair observed live > predicted by a trained model > the duty-cycle
rule > the default. A prediction is as good as its model and profiles; one observation of the pair itself is
better than both.

Rule: what happened to a pair is kept with its ratio and never fades: where one job ran out of device memory
beside the other, neither the count nor a later measurement makes that undone. A pair that a fatal GPU fault
has struck is kept apart until its quarantine ends, the longer the more often it happened.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Final, Literal, Protocol

import msgspec

from cotenant.controller import performance
from cotenant.controller.domain import NO_BOUNDS, Job, JobSpec
from cotenant.controller.knowledge.profiles import kind_words


def signature(spec: JobSpec) -> str:
    """What makes two jobs "the same kind" for measurements: command (but for outputs, seeds and ids: see
    `profiles.py`), batch, workers, device type."""
    argv = spec.launch.argv
    find = _signature if sum(map(len, argv)) <= CACHED_CHARACTERS_MAX else _signature.__wrapped__
    return find(argv, spec.batch_size, spec.gpus_min, spec.gpu_type)


CACHED_CHARACTERS_MAX = 4_096
"""Of a command: a cache of longer ones would be large."""


@lru_cache(maxsize=4096)
def _signature(argv: tuple[str, ...], batch_size: int | None, gpus: int, gpu_type: str) -> str:
    import hashlib

    parts = (*kind_words(argv), "", str(batch_size), str(gpus), gpu_type)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


class Observed(msgspec.Struct, kw_only=True):
    """Mean interference ratio of one kind of job beside another, and how often it was seen."""

    xi: float
    count: int
    faults: int = 0
    """How often a fatal GPU fault struck the two that the one caused, or may have caused."""
    apart_until_s: float | None = None
    """Since the last one the pair is not made, until then; None: it may be."""
    out_of_memory: int = 0
    """How often the one ran out of device memory beside the other."""
    not_compared: int = 0
    """How often its pace beside the other was seen while its pace alone was unknown."""
    not_held: int = 0
    """How often the bound of the one could not be kept beside the other."""
    job: str = ""
    """For people: the kind of the one that was observed."""
    beside: str = ""
    """And of the other."""


COUNT_MAX = 20
"""Older observations fade: the mean moves by at least 1/COUNT_MAX with each new one."""
ENTRIES_MAX = 20_000
"""Kinds of pairs that are remembered, one way each; the oldest goes that never ran out of memory."""
LOSS_MIN = 0.05
"""A pair loses when it does less than 1 - LOSS_MIN of the work that taking turns would: where two only take
turns on the device (xi = 2 both) measurements scatter around 1 by about this much."""


APART_S = 86_400.0
"""A pair is kept apart for so long after the first fault that struck it, twice as long after each more."""
APART_S_MAX = 30 * 86_400.0
OBSERVATIONS = 2
"""So many measurements, both ways, make a verdict on a pair, unless a policy's parameter says otherwise."""
KINDS_KNOWN_MAX = 500
"""Kinds of jobs of which answers are kept; their square bounds the memory."""
PairKnowledge = tuple[performance.Profile | None, performance.Profile | None, performance.Interference]
"""An answer, and the two profiles that it rests on."""
PairVerdict = Literal["pays", "even", "loses", "unsure", "crowded", "faulted"]


def loses(xi: performance.Interference, observations: int) -> bool:
    """Whether sharing has been measured, both ways and often enough, to be worse than taking turns."""
    return xi.both and xi.count >= observations and xi.gain < -LOSS_MIN


def is_beyond(xi: performance.Interference, foretold: performance.Interference) -> bool:
    """Whether one of the two is slowed by more than its prediction's interval has room for; never without a
    trained model, which alone knows how far off it may be."""
    margins = foretold.margins
    return margins is not None and (
        xi.first > foretold.first + margins[0] or xi.second > foretold.second + margins[1]
    )


class PairSeen(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one kind of pair, for people. `first` is the smaller of the two keys."""

    first: str
    second: str
    keys: tuple[str, str] = ("", "")
    """Their `signature`s."""
    first_xi: float | None
    second_xi: float | None
    first_count: int
    second_count: int
    first_out_of_memory: int
    second_out_of_memory: int
    first_not_compared: int = 0
    second_not_compared: int = 0
    faults: int = 0
    apart_until_s: float | None = None

    @property
    def xi(self) -> performance.Interference | None:
        """None unless both ways were observed."""
        if self.first_xi is None or self.second_xi is None:
            return None
        count = min(self.first_count, self.second_count)
        return performance.Interference(
            first=self.first_xi, second=self.second_xi, source="observed", count=count, both=True
        )

    def verdict(self, observations: int) -> PairVerdict:
        """Returns the verdict on the pair. crowded: one job ran out of device memory beside the other;
        faulted: the pair is kept apart after a GPU fault; unsure: not measured often enough both ways; pays,
        even, loses: by what sharing yields beyond taking turns."""
        if self.first_out_of_memory or self.second_out_of_memory:
            return "crowded"
        if self.apart_until_s is not None:
            return "faulted"
        xi = self.xi
        if xi is None or xi.count < observations:
            return "unsure"
        return "loses" if loses(xi, observations) else "pays" if xi.gain > LOSS_MIN else "even"


class PairModel(Protocol):
    """A trained model, as the table asks it."""

    def ratios_beside(self, job: Job, partners: Sequence[Job]) -> Sequence[performance.Interference | None]:
        """The ratios of (job, partner) for each partner; None where the model knows too little of one."""


class PairTable:
    """Observed ratios, one way each: (this kind, beside that kind) -> xi. And a model for the others."""

    def __init__(
        self, entries: dict[str, Observed] | None = None, foresight: PairModel | None = None
    ) -> None:
        self.entries: dict[str, Observed] = entries if entries is not None else {}
        self._of: dict[str, dict[str, None]] = {}
        """Kind -> keys of its entries, in their order."""
        for key in self.entries:
            self._of.setdefault(_kind_in(key), {})[key] = None
        self._speeds: dict[str, float | None] = {}
        """Kind -> mean speed beside others, worked out when it is asked for."""
        self._known: dict[str, dict[str, PairKnowledge]] = {}
        """Answers of `interference` without a model, by both kinds; dropped when a kind is observed again."""
        self.foresight = foresight
        """Configuration, not state: never saved with the entries. So are the three below."""
        self.sharing = NO_BOUNDS
        self.share_max_of: Mapping[str, float] = {}
        """The bounds of organisations whose jobs have one of their own."""
        self.asked_for: Container[str] = ()
        """The rare wishes of jobs; "bound" is among them once a job has named a bound."""

    def observe(self, job: Job, partner: Job, xi: float) -> None:
        """Take in one measurement; below 1 is noise and counts as 1."""
        seen = self._entry(job, partner)
        seen.count = min(COUNT_MAX, seen.count + 1)
        seen.xi += (max(1.0, xi) - seen.xi) / seen.count
        self._speeds.pop(signature(job.spec), None)

    def note_crowding(self, job: Job, partner: Job) -> None:
        """The job ran out of device memory beside the partner, whatever their bounds are."""
        self._entry(job, partner, bounded=False).out_of_memory += 1

    def note_not_held(self, job: Job, partner: Job) -> None:
        """What sharing may cost the job could not be kept beside the partner."""
        self._entry(job, partner).not_held += 1

    def not_compared(self, job: Job, partner: Job) -> None:
        """The job was seen beside the partner, and what it takes alone is unknown."""
        self._entry(job, partner).not_compared += 1

    def note_fault(self, job: Job, partner: Job, now_s: float) -> tuple[str, float]:
        """A fatal GPU fault struck the two, and the job caused it or may have. Returns the pair's key, for
        `reunite`, and when its quarantine ends."""
        entry = self._entry(job, partner, bounded=False)
        entry.faults += 1
        key = self._key(job, partner, bounded=False)
        until_s = now_s + min(APART_S_MAX, APART_S * 2.0 ** min(entry.faults - 1, 16))
        entry.apart_until_s = max(until_s, entry.apart_until_s or 0.0)
        return key, entry.apart_until_s

    def reunite(self, key: str, now_s: float) -> None:
        """The quarantine of a pair ends, unless it was struck again meanwhile."""
        entry = self.entries.get(key)
        if entry is not None and entry.apart_until_s is not None and entry.apart_until_s <= now_s:
            entry.apart_until_s = None
            self._forget(_kind_in(key))

    def know(self, spec: JobSpec, partner: JobSpec, xi: float) -> None:
        """A ratio that was measured beforehand, trusted like as many observations as count at most."""
        kind = signature(spec)
        key = f"{kind}:{signature(partner)}"
        self._forget(kind)
        self.entries[key] = Observed(xi=max(1.0, xi), count=COUNT_MAX)
        self._of.setdefault(kind, {})[key] = None
        self._speeds.pop(kind, None)

    def interference(self, first: Job, second: Job) -> performance.Interference:
        """The ratios of (first, second); each side from the best source there is for it."""
        return self.interferences((first,), (second,))[0][0]

    def interferences(
        self, jobs: Sequence[Job], partners: Sequence[Job]
    ) -> list[list[performance.Interference]]:
        """Returns the ratios of each of `jobs` beside each of `partners`; kinds are looked up once for all
        pairs."""
        if self.has_bounds:
            return self._keep_all(jobs, partners)
        others = [(signature(partner.spec), partner) for partner in partners]
        return [self._ratios_beside(job, signature(job.spec), partners, others) for job in jobs]

    @property
    def has_bounds(self) -> bool:
        """Whether any job has a bound."""
        return self.sharing.is_on or bool(self.share_max_of) or "bound" in self.asked_for

    @property
    def shares_hp(self) -> bool:
        """Whether jobs of class hp may have a co-tenant under policies with classes."""
        return self.sharing.hp

    def bound_of(self, job: Job) -> performance.ShareBound:
        """What sharing may cost the job: what it names, else its organisation, else its class where such jobs
        share, else the cluster's."""
        sharing, own_max = self.sharing, job.spec.share_max
        if own_max is not None:
            return (
                performance.ShareBound(max=own_max, is_own=True) if own_max != inf else performance.UNBOUNDED
            )
        if (organisation_max := self.share_max_of.get(job.spec.organisation)) is not None:
            return performance.ShareBound(max=organisation_max, is_own=True)
        if job.spec.job_class == "hp" and sharing.hp:
            return performance.ShareBound(max=sharing.hp_max, is_own=True)
        return performance.ShareBound(max=sharing.max) if sharing.max else performance.UNBOUNDED

    def _keep_all(self, jobs: Sequence[Job], partners: Sequence[Job]) -> list[list[performance.Interference]]:
        """Returns `_keep` of each pair, worked out once for those that are alike."""
        known: dict[tuple[object, object], performance.Interference] = {}
        others = [(self._likeness(partner), partner) for partner in partners]

        def keep(job: Job, mine: object, partner: Job, theirs: object) -> performance.Interference:
            if (mine, theirs) not in known:
                known[mine, theirs] = self._keep(job, partner)
            return known[mine, theirs]

        return [
            [keep(job, mine, partner, theirs) for theirs, partner in others]
            for job, mine in ((job, self._likeness(job)) for job in jobs)
        ]

    def _likeness(self, job: Job) -> object:
        """Returns what decides how a job fares beside others, and they beside it; a trained model may look
        at more."""
        if self.foresight is not None:
            return job.number
        return signature(job.spec), self.bound_of(job), id(job.measured.profile), job.spec.launch.can_wait

    def _keep(self, job: Job, partner: Job) -> performance.Interference:
        """The ratios of a pair while the bounds of both are kept. What was measured under the same bounds has
        the pauses in it already."""
        bounds = self.bound_of(job), self.bound_of(partner)
        one, two = self.entries.get(self._key(job, partner)), self.entries.get(self._key(partner, job))
        plain = [(signature(partner.spec), partner)]
        (xi,) = self._ratios_beside(job, signature(job.spec), (partner,), plain)
        was_seen = one is not None and one.count > 0 and two is not None and two.count > 0
        if one is not None and two is not None and was_seen:
            xi = msgspec.structs.replace(
                xi, first=one.xi, second=two.xi, source="observed", count=min(one.count, two.count), both=True
            )
        guest_min, counts = self.sharing.guest_min, min(performance.maxima(*bounds)) != inf
        kept = performance.keep_bounds(xi, *bounds, guest_min)
        cannot_wait = (bounds[0].is_own and not partner.spec.launch.can_wait) or (
            bounds[1].is_own and not job.spec.launch.can_wait
        )
        was_lost = any(each is not None and each.not_held for each in (one, two))
        over_bound = (
            cannot_wait
            or (counts and was_lost)
            or (was_seen and performance.leaves_too_little(kept, *bounds, guest_min))
            or (kept.over_bound and not self._may_be_tried(job, partner, xi))
        )
        is_known = cannot_wait or was_lost or was_seen or xi.source not in ("default", "duty-cycle")
        trial = None if is_known else self._expect_trial(job, partner, xi)
        if (kept.over_bound, kept.trial) == (over_bound, trial):
            return kept
        return msgspec.structs.replace(kept, over_bound=over_bound, trial=trial)

    def _expect_trial(
        self, job: Job, partner: Job, xi: performance.Interference
    ) -> tuple[float, float] | None:
        """The ratios of a pair that may be tried; None where not one of the two names a bound, or the other
        would be left too little."""
        bounds = self.bound_of(job), self.bound_of(partner)
        if bounds[0].is_own == bounds[1].is_own:
            return None
        busy = [
            p.duty_cycle if p is not None else None for p in (job.measured.profile, partner.measured.profile)
        ]
        trial = performance.trial_ratios(xi, *bounds, (busy[0], busy[1]))
        return trial if trial[bounds[0].is_own] <= 1.0 / self.sharing.guest_min else None

    def _may_be_tried(self, job: Job, partner: Job, xi: performance.Interference) -> bool:
        """Whether two of whom nothing is known share for once: the bound is held all the same, and a minute
        together tells. Not where both have one: pausing either would cost it its own."""
        return (
            xi.source == "default"
            and not xi.count
            and inf in performance.maxima(*map(self.bound_of, (job, partner)))
        )

    def _key(self, job: Job, partner: Job, *, bounded: bool = True) -> str:
        """The key of an entry: both kinds, with their own bounds if one has such. Under the cluster's bound,
        which all others have, a pair is known as it is here; what was seen before it was set fades."""
        one, other = signature(job.spec), signature(partner.spec)
        mine, theirs = map(self._own_max, (job, partner)) if bounded else (inf, inf)
        return f"{one}:{other}" if mine == theirs == inf else f"{one}@{mine:g}:{other}@{theirs:g}"

    def _own_max(self, job: Job) -> float:
        bound = self.bound_of(job)
        return bound.max if bound.is_own else inf

    def _ratios_beside(
        self, job: Job, mine: str, partners: Sequence[Job], others: Sequence[tuple[str, Job]]
    ) -> list[performance.Interference]:
        if self.foresight is not None:  # It answers a thousand together in the time of a few alone.
            self.foresight.ratios_beside(job, partners)
            return [self._best(job, partner, mine, kind) for kind, partner in others]
        if mine not in self._known:
            if len(self._known) >= KINDS_KNOWN_MAX:
                self._known.clear()
            self._known[mine] = {}
        known, profile = self._known[mine], job.measured.profile
        return [
            known[kind][2]
            if kind in known and known[kind][0] is profile and known[kind][1] is partner.measured.profile
            else self._learn(known, job, partner, mine, kind)
            for kind, partner in others
        ]

    def _learn(
        self, known: dict[str, PairKnowledge], first: Job, second: Job, mine: str, theirs: str
    ) -> performance.Interference:
        if len(known) >= KINDS_KNOWN_MAX:
            known.clear()
        found = self._best(first, second, mine, theirs)
        known[theirs] = first.measured.profile, second.measured.profile, found
        return found

    def _best(self, first: Job, second: Job, mine: str, theirs: str) -> performance.Interference:
        rule = self.expect(first, second)
        if mine not in self._of and theirs not in self._of:
            return rule
        one, two = self.entries.get(f"{mine}:{theirs}"), self.entries.get(f"{theirs}:{mine}")
        one_count = one.count if one is not None else 0
        two_count = two.count if two is not None else 0
        return performance.Interference(
            first=one.xi if one is not None and one_count else rule.first,
            second=two.xi if two is not None and two_count else rule.second,
            source="observed" if one_count or two_count else rule.source,
            count=min(one_count, two_count) or one_count or two_count,
            both=one_count > 0 and two_count > 0,
            first_speed=self._speed(mine),
            second_speed=self._speed(theirs),
            crowded=(one is not None and one.out_of_memory > 0)
            or (two is not None and two.out_of_memory > 0),
            faulted=(one is not None and one.apart_until_s is not None)
            or (two is not None and two.apart_until_s is not None),
        )

    def list_seen(self) -> list[PairSeen]:
        """Every kind of pair of which something was seen live, each once, the oldest first."""
        found: dict[tuple[str, str], PairSeen] = {}
        for key, entry in self.entries.items():
            one, _, other = key.partition(":")
            pair = (min(one, other), max(one, other))
            if not entry.job or pair in found:
                continue
            there, back = self.entries.get(f"{pair[0]}:{pair[1]}"), self.entries.get(f"{pair[1]}:{pair[0]}")
            names = (entry.job, entry.beside) if one == pair[0] else (entry.beside, entry.job)
            found[pair] = PairSeen(
                first=names[0],
                second=names[1],
                keys=pair,
                first_xi=there.xi if there is not None and there.count else None,
                second_xi=back.xi if back is not None and back.count else None,
                first_count=there.count if there is not None else 0,
                second_count=back.count if back is not None else 0,
                first_out_of_memory=there.out_of_memory if there is not None else 0,
                second_out_of_memory=back.out_of_memory if back is not None else 0,
                first_not_compared=there.not_compared if there is not None else 0,
                second_not_compared=back.not_compared if back is not None else 0,
                faults=sum(e.faults for e in {id(e): e for e in (there, back) if e is not None}.values()),
                apart_until_s=max(
                    (e.apart_until_s for e in (there, back) if e is not None and e.apart_until_s is not None),
                    default=None,
                ),
            )
        return list(found.values())

    def expect(self, first: Job, second: Job) -> performance.Interference:
        """The ratios to assume of a pair that was never seen."""
        if self.foresight is not None:
            (foreseen,) = self.foresight.ratios_beside(first, (second,))
            if foreseen is not None:
                return foreseen
        return performance.duty_cycle_rule(first.measured.profile, second.measured.profile)

    def _speed(self, kind: str) -> float | None:
        from statistics import fmean

        if kind not in self._speeds:
            seen = [self.entries[key] for key in self._of.get(kind, ())]
            self._speeds[kind] = (
                fmean([1.0 / entry.xi for entry in seen if entry.count])
                if any(entry.count for entry in seen)
                else None
            )
        return self._speeds[kind]

    def _forget(self, kind: str) -> None:
        """The answers about a kind of job, and about others beside it."""
        self._known.pop(kind, None)
        for beside in self._known.values():
            if kind in beside:
                del beside[kind]

    def _entry(self, job: Job, partner: Job, *, bounded: bool = True) -> Observed:
        """Returns the entry of `job` beside `partner`, which is about to be changed; the entry is made where
        there is none. `bounded`: what it holds is so under their bounds only."""
        key = self._key(job, partner, bounded=bounded)
        kind = signature(job.spec)
        self._forget(kind)
        entry = self.entries.get(key)
        if entry is None:
            self._make_room()
            entry = self.entries[key] = Observed(xi=1.0, count=0)
            self._of.setdefault(kind, {})[key] = None
        if not entry.job:
            one, other = map(self._own_max, (job, partner)) if bounded else (inf, inf)
            entry.job, entry.beside = kind_of(job.spec, one), kind_of(partner.spec, other)
        return entry

    def _make_room(self) -> None:
        """Removes one entry from a full table for the one that comes in: a simulation with a larger table
        beforehand keeps its size."""
        if len(self.entries) >= ENTRIES_MAX:
            harmless = (
                key for key, entry in self.entries.items() if not entry.out_of_memory and not entry.faults
            )
            oldest = next(harmless, None) or next(iter(self.entries))
            kind = _kind_in(oldest)
            self._forget(kind)
            del self.entries[oldest], self._of[kind][oldest]
            self._speeds.pop(kind, None)


def _kind_in(key: str) -> str:
    """The kind of the first job that an entry's key names, without its bound."""
    return key.partition(":")[0].partition("@")[0]


KIND_CHARS = 60


def kind_of(spec: JobSpec, share_max: float = inf) -> str:
    """The kind of a job for people: what it runs, on how many devices, with which batch, its bound."""
    words = [word.rpartition("/")[2] if number == 0 else word for number, word in enumerate(spec.launch.argv)]
    command = " ".join(words) or spec.name or "no command"
    if len(command) > KIND_CHARS:
        command = command[: KIND_CHARS - 3] + "..."
    batch = f", batch {spec.batch_size}" if spec.batch_size is not None else ""
    gpus = f" x{spec.gpus_min}" if spec.gpus_min > 1 else ""
    bound = f", bound {share_max:g}" if share_max != inf else ""
    return f"{command}{gpus}{batch}{bound}"


_ASKED: Final = re.compile(r"( x\d+)?(, batch \d+)?(, bound [\d.e+-]+)?$")


def public_kind(kind: str) -> str:
    """The kind as who may not read the command sees it: its program, and on what."""
    asked = _ASKED.search(kind)
    return kind.partition(" ")[0].rstrip(",") + " ..." + (asked[0] if asked else "")
