"""Why something was decided: a code with operands, rendered only when a person asks.

Rule: `render` is for everybody; a reason with an operand of the job's own has a template in `FOR_OTHERS`
without it. Every template states a fact that can be checked, names the jobs, hosts or numbers it is about,
and stays true after the moment has passed ("behind 41 in sjf order", not "waiting").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from math import isfinite
from typing import Final

import msgspec

from cotenant.controller.domain import texts
from cotenant.controller.domain.lengths import Length
from cotenant.controller.domain.owned import UNTOLD

Operand = str | int | float | Length
OPERANDS_MAX: Final = 10


class Reason(msgspec.Struct, frozen=True, array_like=True):
    """A code from `TEMPLATES` and the operands of its template, in order."""

    code: str
    operands: tuple[Operand, ...] = ()

    def __str__(self) -> str:
        return render(self)


def because(code: str, *operands: Operand) -> Reason:
    """Makes a reason; the code must be one of `TEMPLATES` (checked: a reason without a text is a bug)."""
    assert code in TEMPLATES, f"unknown reason code {code!r}"
    return Reason(code, operands)


def render(reason: Reason) -> str:
    """The sentence for everybody: ratios to two digits, times in one or two units, a guess as a guess."""
    return _filled(reason, ())


def render_whole(reason: Reason) -> str:
    """The sentence for who may read the job's log: with what it printed."""
    return _filled(reason, (), whole=True)


def mentions(reason: Reason, *, whole: bool = False) -> tuple[tuple[int, int], ...]:
    """Where the sentence names jobs: the beginning and the end of each number. Only an operand that its
    template has for jobs can name one: no count, no time, no text of a user's. `whole`: of the sentence that
    `render_whole` makes."""
    return render_with_jobs(reason, whole=whole)[1]


def render_with_jobs(reason: Reason, *, whole: bool = False) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The sentence of a reason, and where it names jobs."""
    places = _job_places().get(reason.code, ())
    if not places:
        return _filled(reason, (), whole=whole), ()
    found, at = list[tuple[int, int]](), 0
    parts = _filled(reason, places, whole=whole).split(_MARK)
    for place, part in enumerate(parts):
        if place % 2:
            found += [(at + each.start(), at + each.end()) for each in _JOB_NUMBER.finditer(part)]
        at += len(part)
    return "".join(parts), tuple(found)


_MARK: Final = "\x00"
_JOB_NUMBER: Final = re.compile(r"(?<![\w.-])\d{1,12}(?:_\d{1,9})?(?![\w-]|\.\d| more)")
_JOB_PLACE: Final = re.compile(
    r"(?:\b(?:[Jj]obs?|with|beside|from|preempted for|room for|preempt(?:ing|s)?|the devices of|the last of"
    r"|that of|the queue:|first)"
    r"|costs least:|leave:|preempted:) \{(\d)\}"
)


@cache
def _job_places() -> dict[str, tuple[int, ...]]:
    """By code: the operands that are jobs."""
    return {code: tuple(map(int, _JOB_PLACE.findall(text))) for code, text in TEMPLATES.items()}


def _filled(reason: Reason, marked: tuple[int, ...], *, whole: bool = False) -> str:
    for_others = None if whole else FOR_OTHERS.get(reason.code)
    template = for_others or TEMPLATES.get(reason.code)
    if template is None:  # written by a newer version: still show what is there
        return " ".join([reason.code, *map(str, reason.operands)])
    shown = [_Shown(x) for x in reason.operands]
    for place in marked:
        if place < len(shown) and isinstance(reason.operands[place], str):
            shown[place] = _Shown(f"{_MARK}{reason.operands[place]}{_MARK}")
    missing = "?" if for_others is None else UNTOLD
    return template.format(*shown, *[_Shown(missing)] * OPERANDS_MAX)


class _Shown:
    """An operand in a template. `{0}` is itself; `{0:s}` and `{0:are}` are the ending and the verb of what it
    counts: nothing and "is" for 1, "s" and "are" for any other number. Of seconds `{0:t}` is a time, `1m24s`,
    `{0:a}` one that is only expected, `about 1 min`; a `Length` is the same in both, with its source. The
    others are phrases: `{0:delays}` and `{0:would}` of what an alternative costs, or that there is none;
    `{0:parts}` and `{0:of}` of a split batch; `{0:pace}` of a slowdown."""

    __slots__ = ("_value",)

    def __init__(self, value: Operand) -> None:
        self._value = value

    def __format__(self, spec: str) -> str:
        value = _number_in(self._value) if spec == "t" else self._value
        if spec in ("s", "are"):
            return {"s": "", "are": "is"}[spec] if value == 1 else spec
        if spec in _OF_TIMES and not isinstance(value, str):
            return _OF_TIMES[spec](value)
        if spec in _OF_NUMBERS and isinstance(value, int | float):
            return _OF_NUMBERS[spec](value)
        if spec in _OF_WORDS:
            return _OF_WORDS[spec](str(value))
        return f"{value:.2f}" if isinstance(value, float) else str(value)


def _number_in(value: Operand) -> Operand:
    """Budgets are journalled as texts."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _time(value: float | Length) -> str:
    if isinstance(value, Length):
        return str(value)
    if not isfinite(value):
        return texts.rough_duration(value)
    return "less than 1s" if 0.0 < value < 0.5 else texts.duration(value)


def _expected(value: float | Length) -> str:
    return str(value) if isinstance(value, Length) else texts.rough_duration(value)


_OF_TIMES: Final[dict[str, Callable[[float | Length], str]]] = {
    "t": _time,
    "a": _expected,
    "delays": lambda value: f"delays the jobs involved by {_expected(value)} in all",
    "would": lambda value: f"would delay them by {_expected(value)}",
}
_OF_NUMBERS: Final[dict[str, Callable[[float], str]]] = {
    "parts": lambda value: "whole batches" if value == 1 else f"batches in {value} parts",
    "pace": lambda value: "not slowed down" if value < 1.005 else f"each step {value:.2f} times as long",
}
_OF_WORDS: Final[dict[str, Callable[[str], str]]] = {
    "delays": lambda word: f"delays the jobs involved by an {word} time",
    "would": lambda word: (
        "is not possible" if word == "impossible" else f"would delay them by an {word} time"
    ),
    "of": lambda word: "" if word == "all" else f" of {word}",
}


TEMPLATES: Final[dict[str, str]] = {
    # Arrival and eligibility.
    "submitted": "submitted by {0}",
    "no-hosts": "no host has joined yet",
    "no-usable-host": "no host can take work now: {0}",
    "hosts-away": "no host that could hold it can take work now: {0}",
    "never-fits": "needs {0} device{0:s}{1}; the largest possible placement here has {2}",
    "no-such-type": "no device of type {0}; this cluster has {1}",
    "no-such-feature": "no host has the feature {0}",
    "no-containers": "no host can run its image {0}: it needs one with {1} (see `cotenant nodes -o wide`)",
    "needs-memory": "needs {0} MiB per device; the largest device offers {1} MiB",
    "needs-cpus": "needs {0} cores on one host; the largest host has {1}",
    "needs-host-memory": "needs {0} MiB of main memory on one host; the largest host has {1} MiB",
    "would-fit": "it would fit on what is free now after `cotenant set {0} {1}`",
    "needs-one-host": "needs {0} cores and {1} MiB of main memory on one host, and no host has both",
    "again-by": "queued again by {0} after it had ended as {1}",
    "set-by": "{1}, set by {0}",
    "after-job": "waits for job {0} to finish{1}",
    "array-limit": "waits for another task of array {0}: at most {1} of them at once",
    "begins-later": "does not start before the time that --begin names, {0:t} after it came",
    "after-failed": "job {0}, which it depends on, ended as {1}",
    "back-off": "retries in {0:t} after {1}",
    "stray": "{0} still ends an attempt of it that the journal lost when it was restored",
    "restored": "may still run on a host that has not joined since the journal was restored; waits {0:t}",
    "number-taken": "attempt {0} ran on {1} before the journal was restored; the next has another number",
    "held-by": "held by {0}",
    "limit-devices": "{0} may hold {1} device{1:s} at once, {2} {2:are} taken or next in the queue, and this "
    "needs {3}",
    "limit-jobs": "{0} may run {1} job{1:s} at once, and so many run or are next in the queue",
    "limit-never": "needs {0} devices, and {1} may hold {2} at once",
    "fair-share": "{0} has used {1} device-hours of late (decayed); {2} has used {3}, so job {4} goes first",
    "priority": "job {0} has priority {1}, this one {2}",
    "held-by-users": "devices are held by {0}",
    "held-infra": "held after {0} infrastructure failures in a row; the last: {1}",
    "pinned": "its checkpoint is on {0}, which is {1}",
    "workdir-missing": "working directory {0} does not exist on {1}",
    "fetching": "its host fetches its snapshot: {0} of {1} MiB",
    "pulling": "its image comes to {0}: {1}",
    # Waiting.
    "behind-others": "behind job {0}{1}",
    "behind": "behind job {0} in {1} order",
    "behind-no-devices": "behind job {0} in {1} order; it needs {3} device{3:s}, and {2} {2:are} free",
    "booking-serves": "{1} device{1:s} of its owner's reservation {0}",
    "booking-ask-again": "jobs got reserved devices instead of those that were meant for them",
    "booking-makes-room": "makes room for {0}, who has reserved its devices ({1})",
    "booking-keeps-back": "kept back: there it would run into the time that {0} has reserved ({1})",
    "booking-now": "{0} device{0:s} that would suit it {0:are} reserved for {1} ({2}) for another {3:t}",
    "booking-ahead": "{0} device{0:s} that would suit it {0:are} reserved for {1} ({2}) in {3:t}: it starts "
    "there only if it ends before that by a time limit (-t), or can resume and is of class spot",
    "booking-lent": "{0} device{0:s} that would suit it {0:are} lent by {1} ({2}): only jobs that can resume "
    "and are of class spot start there",
    "promise-due": "promised to end in {0:t}: its devices are kept for it, and now is the time",
    "promise-makes-room": "makes room for job {0}, which was promised an end: it must start in {1:t}",
    "promise-keeps-back": "kept back: there it would break the promise given to job {0}",
    "promise-off": "no ends are promised here (policy.promises is false)",
    "promise-no-length": "nothing tells how long job {0} takes: --expect or --iterations would say it",
    "promise-behind-unknown": "it would wait for job {0}, and nothing tells how long that takes",
    "promise-no-room": "no time can be found at which enough devices will be free",
    "promise-not-now": "it does not wait in the queue from the start: it is held, or waits for others",
    "promise-too-many": "more than {0} jobs are ahead of it: no end can be promised",
    "promise-outlived": "it takes longer than the {0:t} that were expected of it",
    "promise-blocked": "job {0} had not left {1} by the time that was expected",
    "promise-failed": "{0} of its attempts ended before it was through",
    "promise-no-devices": "too few devices took work by the time that it had to start",
    "promise-withdrawn": "its owner held or cancelled it, or its program failed",
    "kept": "needs {0} device{0:s}: {1} {1:are} free and kept for it; enough should be free in {2:a}",
    "kept-unforeseen": "needs {0} device{0:s}: {1} {1:are} free and kept for it; nothing tells when enough "
    "will be free",
    "kept-for": "what is free is kept for job {0} of priority {1}, which needs {2} device{2:s} and is "
    "expected to start in {3:a}: this job would not end before",
    "kept-for-unforeseen": "what is free is kept for job {0} of priority {1}, which needs {2} device{2:s}; "
    "nothing tells when it can start",
    "behind-aged": "behind job {0}, which has waited {1:t} and goes first",
    "first-no-devices": "first in {0} order; it needs {2} device{2:s}, and {1} {1:are} free",
    "fragmented": "{0} device{0:s} {0:are} free, but not the {1} it needs together on one host",
    "placed-together": "{0}; where, was chosen together with {1} other job{1:s}",
    "no-host-room": "needs {0} core{0:s} and {1} MiB of main memory on each host; {2} has {5} free "
    "device{5:s}, and {3} core{3:s}{4} left",
    "next-event": "fits now; it starts with the next decision",
    "outlives": "no job that could be preempted has longer to run than this job, which has {0:t}",
    "outlives-service": "no job that could be preempted has more GPU time left than this job: {0:t}",
    "outranks-nobody": "no job that could be preempted comes after this one in queue {0} of attained service",
    "gains-nothing": "has {0:t} to run, and no running job has enough more left to make preempting it pay",
    "not-earned": "job {0} may be preempted in {1:a}: before that it has to train as long as it loaded, and "
    "ten times what its interruptions cost",
    "load-earned": "then a job that runs has earned its load, and may be preempted",
    "devices-soon": "enough devices become free by themselves before a preemption would be of use",
    "looks-every": "{0} looks at the queue every {1:t} and starts nothing in between",
    "next-demotion": "the next running job reaches the end of its queue",
    "quota-withheld": "class spot, and withheld: it needs {0} device{0:s}, and spot jobs may take {1} "
    "more; {2} "
    "{2:are} free, the others are kept for hp jobs that wait ({3}) or are expected within {4} h ({5})",
    "quota-eta": "class spot, and withheld: it needs {0} device{0:s}, and spot jobs may take {1} more: "
    "their quota is "
    "{2}, {3} left by the demand forecast for class hp in {4} h, times eta {5}",
    "hosts-rest": "class spot; the hosts with enough free devices had many evictions within a day and "
    "take none",
    "none-lent": "class spot; no host without jobs of class hp has the {0} device{0:s} it needs",
    "quota-update": "the quota of spot jobs is looked at again",
    "next-class": "the next class of jobs is asked",
    "policy-absent": "nothing starts under policy {0}, which this controller no longer has: {1}",
    "wfq-behind": "behind job {0} in class {1}, which is first come, first served; the class is due {2} "
    "devices and holds {3}",
    "wfq-no-credit": "first of class {0}, which is due {1} devices and holds {2}: its {3} device{3:s} would "
    "exceed that for longer than the class has saved up",
    "wfq-waits": "first of class {0}, which is due {1} devices and holds {2}; the {3} device{3:s} it needs "
    "become free when others have ended or have had their turn",
    "wfq-look": "then a class has saved up for its next job, or a turn is over",
    "elastic-none": "its part of the devices under {0} is none yet",
    "elastic-waits": "its part under {1} is {0} device{0:s}, which become free when others have ended or "
    "have had their lease",
    "elastic-look": "then somebody has had its lease",
    "elastic-place": "its part under {0} is {1} device{1:s}, and {2} {2:are} free together",
    "elastic-grows": "given {1} devices instead of {0}, as is its part under {2}: it should end {3:a} "
    "earlier, and saving and loading cost {4:a}",
    "elastic-shrinks": "given {1} device{1:s} instead of {0}, as is its part under {2}: job {3} gets the "
    "others",
    "elastic-preempted": "preempted for {0}: its part of the devices under {1} is none now",
    "own": "{0}",
    "not-preemptible": "the devices it needs are held by jobs that cannot be preempted: {0}",
    # Placement.
    "free-devices-in-order": "next in {0} order and {1} free device{1:s} {1:are} enough",
    "backfilled-before": "ahead of job {1}, the first in {0} order: it is expected to end before the "
    "devices that job {1} needs are free, in {2:a}",
    "backfilled-apart": "ahead of job {1}, the first in {0} order, on devices that job {1} does not need "
    "when it is expected to start, in {2:a}",
    "multifactor": "place {0} by priority {1} (age) + {2} (fair share) + {3} (size) + {4} (class)",
    "learned-order": "place {0} in the learned order, place {1} in {2} order",
    "learned-inactive": "the model of {0} was no better than ordering by size where it was tried: {1} orders",
    "scored": "rank {0}: {1} ({2}) {3}, {4} ({5} GPU{5:s}) {6}, waited {7} {8}",
    "priority-first": "priority {0} goes before job {1}, which the policy wanted to start there",
    "turn-comes": "moves to the front of the queue in {0:a} at the latest, by when fifo would have served it",
    "turn-late": "its turn has come: it goes first as soon as fewer late jobs are before it",
    "turn": "waited {0:t}, by when fifo would have served it, and goes first",
    "turn-preempts": "is late and takes the devices of {0}",
    "turn-preempted": "makes room for {0}, which is late",
    "aged": "waited over {0:t} and goes first",
    "preempts": "has {0:t} left; job {2}, which makes room, has {1:t}",
    "takes-place": "takes the place of job {0}, a task of its array: {1} free device{1:s} {1:are} enough",
    "devices-being-left": "next in {0} order; the {1} device{1:s} it needs {1:are} being left for it",
    "wfq-place": "first of class {0}, which is due {1} devices and held {2}; {3} free device{3:s} {3:are} "
    "enough",
    "wfq-preempts": "first of class {0}, which is due {1} devices and held {2}: {3} of a class above its "
    "share makes room",
    "preempts-service": "has {0:t} of GPU time left; job {2}, which makes room, has {1:t}",
    "preempts-attained": "stands in queue {0} by attained service, before the last of {2} in queue {1}, "
    "which makes room",
    "preempts-and-gains": "has {0:t} to run, and switching costs {1:t}; job {3}, which makes room, has {2:t} "
    "left",
    "sharing-pays": "sharing with job {0} pays: on average the two end after {1:a}, one after the other "
    "after {2:a} (sub-batch {3}, {4} accumulation step{4:s}, own slowdown {5}, partner's {6}, source: {7})",
    "sharing-loses": "sharing with {0} does not pay: on average the two would end after {1:a}, and one after "
    "the other after {2:a}",
    "sharing-gains": "sharing with {0} gains more than it costs: it should end in {1:a} instead of waiting "
    "{2:a} and running {3:a}, and {0} should end {4:a} later in all ({6:parts}{5:of}, {7:pace})",
    "costs-share": "shares with {0}, which {2:delays}; waiting {1:would}, preempting {3:would}; it should "
    "end in {4:a}, in {6:parts}{5:of}, {7:pace}",
    "costs-preempt": "preempts {3}, with longer to run than the switch costs; this {2:delays}, waiting "
    "{0:would}, sharing {1:would}",
    "costs-wait": "waits, which {0:delays}; sharing {1:would}; preempting {2:would}{3}",
    "sharing-costs": "sharing with {0} does not pay: compared with waiting {2:a}, this job would gain {1:a}, "
    "and job {0} would lose {3:a}",
    "sharing-slows": "sharing with {0} does not pay: slowed {1} and {2} times, the two get less done than "
    "taking turns",
    "sharing-no-memory": "even {1} does not fit beside {0}: {2} MiB needed, {3} MiB left",
    "sharing-first-fit": "shares with {0}, the first that leaves room (sub-batch {1}, {2} accumulation "
    "step{2:s}, {3} MiB needed, {4} MiB left)",
    "sharing-packs": "packed with {0}: labels {1} and {2} by the mean speeds {3} and {4} beside others, and "
    "it has {5:t} of GPU time left against {6:t}",
    "packing-width": "no packing of {0} GPUs: only up to {1} are packed",
    "packing-no-equal": "no job with exactly {0} GPU{0:s} to itself is there to be packed with",
    "packing-labels": "no packing with {0}: labels {1} and {2} by the mean speeds {3} and {4} beside "
    "others; their sum is above {5}",
    "packing-longer": "no packing with {0}: this job has {1:t} of GPU time left, more than {2} times the "
    "{3:t} of job {0}",
    "sharing-unknown": "cannot share with {0}: {1}",
    "sharing-memory-soon": "cannot share with {0} yet: the peak memory of job {1} is not known; it is known "
    "about a minute after job {2} starts",
    "sharing-trial": "cannot share with {0} yet: what sharing with {1} costs it has not been measured yet",
    "sharing-slowest": "sharing with {0} alone would pay, but not with all who hold the {1} devices it needs",
    "sharing-nobody": "no job to share with holds a device that this one could use",
    "sharing-too-few": "{0} free and {1} shareable devices; {2} are needed",
    "sharing-spread": "a gang over {0} hosts does not share devices",
    "sharing-part": "this job asks for a part of a device ({0}) and is put beside nobody but other parts",
    "sharing-off": "this job was submitted with --share never",
    "sharing-alone": "this job ran out of device memory while it shared ({0} x), so it runs alone",
    "sharing-crowded": "no sharing with {0}: jobs of these two kinds have run out of device memory together",
    "sharing-outgrown": "this job needed more device memory than was planned for it, so it runs alone",
    "sharing-faults": "this job caused a fatal GPU fault while it shared, or may have caused several, so it "
    "runs alone",
    "sharing-bound": "no sharing with {0}: what sharing may cost one of the two (--share max=, [sharing]) "
    "cannot be kept beside the other",
    "sharing-faulted": "no sharing with {0}: a fatal GPU fault struck jobs of these two kinds together; they "
    "are kept apart for a time (`cotenant pairs` says how long)",
    "sharing-uid": "cannot share with {0}: under MPS both must be the same user's",
    "sharing-parted": "no sharing with {0}: the two have shared before, and one of them was stopped",
    "sharing-followed": "no sharing with {0}: the next task of its array takes its place, and this job was "
    "preempted before",
    "sharing-lost": "no sharing with {0}: jobs of these two kinds were measured to be slowed {1} and {2} "
    "times together, worse than taking turns",
    "promise-held": "its end is promised: {0} are kept for it, in {1:t} at the latest",
    "ahead": "ahead of it in the queue: {0}",
    "leave-first": "first {0} {1} to end or make room{2}",
    # Deferred preemption. The first five operands of two of these carry the prediction.
    "deferred": "preempting {5} for it is put off by {0:t} ({1}, expected gain {2:a}; it would take {3:t} "
    "to load and up to {4:t} to make room)",
    "preempts-at-once": "has {6:t} left; job {5}, which has {7:t}, makes room at once: deferral {0:t} ({1}, "
    "expected gain {2:a}; {3:t} to load, up to {4:t} to make room)",
    "deferred-until": "preempting {0} for it is put off for another {1:t}",
    "fit": "{0} samples to learn from",
    "forecast-training": "{0} is trained on {2} hours of the demand of {1}",
    # Preemption and ends.
    "evicts": "class hp: makes {0} spot job{0:s} leave, which costs least: {1}, with {2:t} of GPU time "
    "since their last "
    "checkpoints",
    "evicted-for-hp": "gave way to job {0} of class hp: of all spot jobs that could have made room it "
    "was among "
    "those that cost least ({1:t} of GPU time since its last checkpoint)",
    "evicts-for-hp": "class hp: makes {0} spot job{0:s} leave: {1}",
    "evicted-fragments": "gave way to job {0} of class hp, on the host that this fragments least",
    "evicted-server": "gave way to job {0} of class hp, as its host is taken back whole",
    "lease-over": "gave way to job {0} of class hp when its lease of {1:t} was over",
    "lease-end": "the next lease of a spot job ends",
    "evicted-newest": "gave way to job {0} of class hp, as one of the spot jobs that began last",
    "preempted-for": "preempted for job {0}, which has {1:t} left; this job has {2:t}",
    "preempted-service": "preempted for {0}, which has {1:t} of GPU time left; this job has {2:t}",
    "wfq-preempted": "preempted for {0}: class {1} holds {2} devices more than it is due, class {3} less",
    "preempted-attained": "preempted for {0}, which stands before it in queue {1}; this one is in queue {2} "
    "after {3:t} of GPU time",
    "preempted-and-gains": "preempted for {0}, which has {1:t} to run; this job has {3:t} left, more than "
    "that and {2:t} for switching",
    "reservation-replaced": "job {0} has taken over another's reservation",
    "requeued-by": "put back in the queue by {0}",
    "preempted-by-user": "preempted by {0}",
    "idle-warn": "holds its devices idle: no kernel, step or input for {0:t}",
    "idle-share": "holds its devices idle: no kernel, step or input for {0:t}; until it works again others "
    "may use them",
    "idle-word": "holds its devices idle: no kernel, step or input for {0:t}; it is stopped in {1:t} "
    "unless it does anything before",
    "idle-stop": "stopped after {0:t} in which it held its devices idle: no kernel, step or input",
    "idle-over": "works again after {0:t} in which it held its devices idle",
    "held-idle": "saved and held after {0:t} in which it held its devices idle; `cotenant release {1}` "
    "lets it go on from there",
    "beside-idle": "beside job {0}, which holds its devices idle; it leaves when that works again",
    "idle-works": "leaves the devices of job {0}, which works again",
    "parted-bound": "parted from {0}, whose steps took {1} times as long as alone although this one waited: "
    "they may take {2} times as long",
    "parted-loss": "parted from {0}: together they were measured to be slowed {1} and {2} times, worse than "
    "taking turns",
    "parted-surprise": "parted from {0}: together they were measured to be slowed {1} and {2} times, worse "
    "than taking turns, where at most {3} and {4} had been predicted",
    "parted-theorem": "parted from {0}: slowed {1} and {2} times as measured, the two would end after {3:a} "
    "on average, against {4:a} if this one goes on later, its pause and load counted twice",
    "crowded-out": "ran out of device memory beside {0} ({1}); this pair is not made again, and the job "
    "goes on alone",
    "outgrown": "ran out of the {0} MiB of device memory that were planned for it so that others may share "
    "its devices; it goes on alone, without a limit",
    "outmodelled": "ran out of the {0} MiB of device memory that its batch in {1} parts was thought to need, "
    "which nobody had measured; parts are taken to save nothing from now on",
    "otherwise": "it did not go on as it was left ({0}); it begins again at step {1}, and is never preempted",
    "unsplit": "its batches cannot be split after all ({0}); it goes on with whole ones",
    "gpu-fault": "{0}",
    "mps-limit": "each of its processes that opens a GPU may use its part of the {0} MiB that were planned "
    "for a worker (MPS limits processes): as many parts as such processes were seen of one, one on a first "
    "attempt; `--env COTENANT_CUDA_PROCESSES=N` says it from the start. torch is held to it as well, and "
    "alone where the job is no client of MPS (`show` says so)",
    "torch-limit": "torch in each of its processes is held to its part of the {0} MiB of each of its GPUs "
    "that were planned for a worker; what a process takes past torch (its CUDA context, NCCL) is not limited",
    "kernel-limit": "the kernel holds the job to the {0} MiB of each of its GPUs that were planned for it, "
    "whatever its processes are",
    "no-memory-limit": "nothing limits its GPU memory: {0}",
    "not-offered": "device {0} is not offered: {1}",
    "trouble": "{0}",
    "holds-alone": "alone on its devices",
    "holds-part": "holds a part ({0}) of its device, whose other parts are free",
    "holds-part-beside": "holds a part ({0}) of its device, beside {1}",
    "holds-beside": "shares its devices with {0}",
    "holds-beside-measured": "shares its devices with {0}: a step takes {1} times as long as alone, as "
    "measured",
    "co-tenants-by-mps": "on {0} co-tenants run at once, through MPS",
    "co-tenants-by-mps-noted": "on {0} co-tenants run at once, through MPS ({1})",
    "alone-on-mig": "{0} is {1}",
    "co-tenants-take-turns": "on {0} co-tenants take turns (time-slicing): {1}",
    "resumed-exact": "resumed exactly at step {0}",
    "resumed-equivalent": "resumed at step {0}, equivalent but not exact: {1}",
    "waits-for-victims": "its devices are held: {0} must save and leave first",
    "cancelled-by": "cancelled by {0}",
    "time-limit": "reached its time limit of {0:t}",
    "time-limit-loading": "reached its time limit of {0:t} while it was still loading; it does not queue "
    "again (--requeue-at-limit), since each time would only repeat the load",
    "budget": "its budget of {0:t} of training is used",
    "checkpoint-deadline": "no checkpoint within {0:t} after the stop request; goes back to step {1}",
    "finished": "finished",
    "finished-lost": "finished; {0}",
    "profiled": "its profile is complete, which is all it ran for",
    "user-failed": "failed: {0}",
    "infra-failed": "the infrastructure failed it: {0}",
    "stopped-as": "{0}",
    "host-lost": "host {0} is lost ({1})",
    "host-silent": "host {0} is silent; the job keeps its devices until it answers "
    "or `cotenant nodes lost {0}`",
    "host-silent-lease": "host {0} is silent; the job goes on there, or elsewhere once the lease has ended",
    "host-changed": "the devices of host {0} changed while it waited for them",
    "not-answering": "host {0} does not answer",
    "gang-peer-ended": "another part of the gang ended on {0}",
    "fenced": "no attempt of this number should run on {0}",
    "drained": "host {0} is drained",
    "leaving": "host {0} is given back ({1}): jobs that can resume save and go on elsewhere",
    "suspect": "host {0} had {1} infrastructure failures in a row; "
    "`cotenant nodes resume {0}` trusts it again at once",
    # Why there is no throughput model of a job.
    "throughput-one-batch": "all {0} measured steps have micro-batches of {1} samples: what a micro-batch "
    "costs by itself and what a sample adds cannot be told apart",
    "throughput-few": "{0} measured steps do not determine a throughput model; it takes {1}",
    "throughput-no-error": "{0} measured steps determine a throughput model, but not its error: fewer than "
    "{1} can be predicted from the others",
    "throughput-error": "no throughput model: it is off by {0} % on average over {1} steps it has not seen",
    # The engine's refusals of a policy's action.
    "refused-phase": "refused {0}: the job is {1}",
    "refused-devices": "refused {0}: device {1} is not available ({2})",
    "refused-host-room": "{0}: {1} has {2} core{2:s} and {3} main memory left",
    "refused-gang": "refused {0}: {1} devices given, {2} to {3} needed",
    "refused-lease": "refused to resize job {0}: it has trained for {1:t} on its devices, and gets {2:t} at "
    "least",
    "refused-size": "refused {0}: a step of {1} samples cannot be divided equally among {2} workers",
    "refused-rigid": "refused to resize job {0}: {1}",
    "refused-limit": "refused {0}: {1} may hold {2} devices at once and would hold {3}",
    "refused-limit-jobs": "refused {0}: {1} may run {2} job{2:s} at once, and so many run",
    "refused-memory": "refused {0}: {1} MiB planned on {2}, {3} MiB left",
    "part-beside": "a part ({0}) beside others of {1}: {2} of it were taken, the least left that is enough",
    "part-undivided": "{0} cannot be divided: nothing there would hold this job to its part",
    "part-alone": "this job asks for a part of a device ({0}) but holds one alone: {1}",
    "part-beside-whole": "{0} is held as a whole by job {1}",
    "part-no-room": "{0} has {1} left of itself; the part that is asked for is {2}",
    "part-no-memory": "{0} has {1} MiB left beside its parts; this one needs {2} MiB",
    "part-uid": "{0} has parts of another user's jobs, and under MPS all must be one user's",
    "part-crowded": "{0} has {1} parts already, as many as a device may have",
    "part-frees": "a device that was meant for a part is left to others",
    "part-waits": "of {0} divided device{0:s} none has a part ({1}) left: {2}",
    "refused-part": "refused {0}: {1}",
    "refused-tenants": "refused {0}: {1} already has {2} tenants",
    "refused-uid": "refused {0}: tenants of {1} must have one uid under MPS",
    "refused-accumulation": "refused {0}: {1} accumulation steps are not possible ({2})",
    "refused-time": "refused to wake at {0:t}",
    "refused-resumable": "refused to preempt {0}: it cannot resume",
    "refused-profiling": "refused: nobody is preempted for a job that only runs to be measured",
    "refused-priority": "refused to preempt {0}: its priority {1} is higher than that of {2}",
    "refused-class": "refused to preempt {0}: it has class hp",
}

FOR_OTHERS: Final[dict[str, str]] = {
    "finished-lost": "finished; some of its output could not be written",
    "back-off": "retries in {0:t} after {2}",
    "held-infra": "held after {0} infrastructure failures in a row; the last: {2}",
    "no-containers": "no host can run its image: it needs one with {1} (see `cotenant nodes -o wide`)",
    "workdir-missing": "its working directory does not exist on {1}",
    "pulling": "its image comes to {0}",
    "user-failed": "failed: {1}",
    "infra-failed": "the infrastructure failed it: {1}",
    "stopped-as": "{1}",
    "gpu-fault": "{1}",
    "trouble": "something failed that did not end it",
    "otherwise": "it did not go on as it was left; it begins again at step {1}, and is never preempted",
    "unsplit": "its batches cannot be split after all; it goes on with whole ones",
    "resumed-equivalent": "resumed at step {0}, equivalent but not exact",
}
"""Reasons with an operand of the job's own (what it printed, what its command names): the same without it. Of
most of them the last operand is what we say ourselves."""
