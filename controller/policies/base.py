"""What a policy is: the methods that every policy has, what it may say of itself, and what it may do besides.

Rule: nothing of a policy is found by looking for a name. What it is stands in its `Traits`; what it can do
besides deciding is one of the protocols below, which the engine asks for by `isinstance`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol, Self, get_args, runtime_checkable

import msgspec

from cotenant.controller.domain import ON_DEVICES, ClassReport, Decision, Job, Reason
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import View

Parameters = dict[str, str | int | float | bool]


UNBOUNDED: Final = float("inf")


class Within(NamedTuple):
    """The range of a parameter, to stand at its field: `x_s: Annotated[float, Within(1.0, 1e6)] = 60.0`."""

    least: float
    most: float = UNBOUNDED
    above: bool = False
    """Whether the value must be above `least`, which then is out of range itself."""

    def holds(self, value: float) -> bool:
        return self.least <= value <= self.most and not (self.above and value == self.least)

    def __str__(self) -> str:
        least, most = f"{self.least:.12g}", f"{self.most:.12g}"
        if self.most == UNBOUNDED:
            return f"above {least}" if self.above else f"at least {least}"
        return f"above {least}, at most {most}" if self.above else f"{least} to {most}"


class PolicyParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of the named options of a policy, each with its default and, if it has one, its range."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(type(self)):
            value = getattr(self, field.name)
            for within in get_args(field.type):
                if isinstance(within, Within) and not within.holds(value):
                    raise ValueError(f"{field.name} must be {within}, got {value}")

    @classmethod
    def parse(cls, parameters: Parameters) -> Self:
        """Takes a number for a text where the field is one (`thresholds_gpu_s=3250`). Raises ValueError for a
        wrong name, type or range."""
        texts = {field.name for field in msgspec.structs.fields(cls) if field.type is str}
        given = {name: str(value) if name in texts else value for name, value in parameters.items()}
        return msgspec.convert(given, cls, strict=False)


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What holds of every decision of a policy; the engine and other policies go by it."""

    shares: bool = False
    """It may put a job beside another that runs: such jobs get a limit to their memory from the start."""
    preempts: bool = False
    """Its order preempts jobs for others: then that may be done for a promised job too."""
    orders_by_size: bool = False
    """It orders jobs by size, so that late ones need to go first (`engine/stages/lateness.py`)."""
    starts_nothing: bool = False
    """Nothing may start under it, not even on a part of a device."""
    resizes: bool = False
    """It gives elastic jobs more and fewer devices: a simulation may make jobs elastic."""
    has_classes: bool = False
    """It treats the classes hp and spot by rules of its own."""
    places_by_itself: bool = False
    """It places jobs by a rule of its own, in place of best fit."""
    promised_s: float | None = None
    """How long a run of a spot job should not be preempted; None: it promises nothing."""


class Policy(Protocol):
    """A scheduling policy: it decides, and never acts. The engine asks it after every event and checks every
    answer.

    `decide` changes nothing, in the policy or anywhere; what a policy remembers changes in `observe` alone,
    which recovery calls as well, with the recorded decision. So nothing of the policy is journalled per
    event: its state is a fold over the journal, and an explicit value for snapshots (`save`, `load`).
    """

    name: str

    @property
    def traits(self) -> Traits:
        """What holds of all its decisions; the same for as long as it exists."""

    def queue_key(self, job: Job) -> tuple[float, ...]:
        """The sort key of a waiting job; must not change while it waits (the ledger keeps the queue
        sorted)."""

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        """What to do now that `event` has happened. Changes nothing."""

    def observe(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        """Learn from an event and the decision on it, now carried out; `view` is as it is afterwards."""

    def explain(self, view: View, job: Job) -> Reason:
        """Why a queued job does not run at this moment."""

    def save(self) -> bytes:
        """All that it remembers."""

    def load(self, state: bytes) -> None:
        """Takes over what `save` gave."""


@runtime_checkable
class HoldsBack(Protocol):
    """Has a rule of its own, such as a quota, that keeps waiting jobs from devices on which they fit: no
    device is kept for the priority of such a job."""

    def holds_back(self, view: View, job: Job) -> bool:
        """Whether that rule keeps this job waiting."""


@runtime_checkable
class ReportsClasses(Protocol):
    """Has classes with a quota that people ask about."""

    def report(self, view: View) -> ClassReport:
        """What is kept back from the classes, and why."""


@runtime_checkable
class TellsState(Protocol):
    """Remembers what people ask about: what it has learned, or how far it is."""

    def state_in_words(self, view: View) -> dict[str, str]:
        """What it remembers, by a short name."""


@runtime_checkable
class OrdersQueue(Protocol):
    """Has an order of waiting jobs that is not that of its queue keys."""

    def waiting(self, view: View, event: ev.AnyEvent) -> Iterable[Job]:
        """The waiting jobs in its order."""


@runtime_checkable
class TakesOver(Protocol):
    """Goes on with what the policy before it has observed."""

    def take_over(self, before: Policy) -> None:
        """Takes over what the policy before it remembers, if that is of use."""


@runtime_checkable
class Wraps(Protocol):
    """Changes where another policy places jobs, and nothing else."""

    @property
    def inner(self) -> Policy:
        """The policy that decides."""


class Stateless:
    """The base of policies that keep nothing between decisions."""

    traits: Traits = Traits()

    def observe(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        """Learns nothing."""

    def save(self) -> bytes:
        """Returns nothing, since nothing is kept."""
        return b""

    def load(self, state: bytes) -> None:
        """Takes over nothing."""
        assert not state, "this policy keeps no state"


def unwrap(policy: Policy) -> Policy:
    """The policy that decides, if this one only places for it."""
    return policy.inner if isinstance(policy, Wraps) else policy


def learns(policy: Policy) -> bool:
    """Whether a policy keeps anything between decisions: only then is there anything to `observe`."""
    if not isinstance(policy, Stateless):
        return True
    observe: object = type(policy).observe
    return observe is not Stateless.observe


def waiting_in_order(policy: Policy, view: View, event: ev.AnyEvent) -> Iterable[Job]:
    """Waiting jobs in the order of a policy."""
    return policy.waiting(view, event) if isinstance(policy, OrdersQueue) else view.queue.jobs_in_order()


QUIET: Final = frozenset((ev.ProgressSeen, ev.AttemptStarted))
"""Events after which nothing is possible that was not possible before."""


def is_quiet(view: View, event: ev.AnyEvent) -> bool:
    """Whether an event makes nothing possible that was not possible before: it only reports progress of a job
    on its devices."""
    if type(event) is not ev.CheckpointDurable:
        return type(event) in QUIET
    job = view.jobs.get(event.job_id)
    return job is None or job.phase in ON_DEVICES
