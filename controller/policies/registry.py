"""Which policies there are, how one is made by its name, and what stands in for one that is gone.

Rule: nothing is imported before it is named. `CORE` are the policies that a lab runs; those of published
systems (`controller/papers/`) and those of other packages come in by entry points (`policies/plugins.py`).
Rule: a controller starts even if the policy that its journal names is gone, since running jobs need it. Under
a stand-in nothing new starts, every waiting job says why, and `cotenant policy set` ends it. It keeps the
absent one's state, so that the policy goes on where it was once its package is back.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Final, cast

import msgspec

from cotenant.controller.domain import NOTHING, Decision, Job, Reason, because
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import View
from cotenant.controller.policies import plugins
from cotenant.controller.policies.base import Parameters, Policy, Traits
from cotenant.controller.policies.entries import GROUPS as GROUPS  # Others know the registry alone.
from cotenant.controller.policies.entries import PlacementRule, PolicyEntry

CORE: Final = {
    name: f"cotenant.controller.policies.{place}"
    for name, place in {
        "fifo": "ordered:FIFO",
        "sjf": "ordered:SJF",
        "srtf": "ordered:SRTF",
        "ssf": "ordered:SSF",
        "slurm-multifactor": "multifactor:SLURM_MULTIFACTOR",
        "srsf": "ordered:SRSF",
        "tiresias": "attained:TIRESIAS",
        "las": "attained:LAS",
        "patient": "patient:PATIENT",
        "castor": "castor.policy:CASTOR",
        "cotenant": "cotenant:COTENANT",
        "castor-cost": "castor.cost:CASTOR_COST",
    }.items()
}
"""Name -> where its `PolicyEntry` is, in the order in which people are shown them."""


BEST_FIT: Final = "best-fit"
PLACEMENT: Final = "placement"
"""A parameter of every policy beside its own: where waiting jobs go. By best fit each goes to the fullest
host that holds it; an installed package may bring other ways (`milp` chooses several together)."""


def placements() -> tuple[str, ...]:
    """The values of `placement`, the default first. Imports nothing."""
    return (BEST_FIT, *plugins.find_entry_points(plugins.PLACEMENTS))


@cache
def ours() -> dict[str, PolicyEntry]:
    """Every policy of this package, by name: the lab's, then those of papers. Imports them."""
    published = {
        name: plugins.load(point)
        for name, point in plugins.find_entry_points().items()
        if plugins.is_ours(point)
    }
    return {name: find(name) for name in CORE} | {
        name: entry for name, entry in published.items() if name not in CORE
    }


def is_ours(name: str) -> bool:
    """Whether a policy of this name belongs to this package. Imports nothing."""
    return name in CORE or (
        name in plugins.find_entry_points() and plugins.is_ours(plugins.find_entry_points()[name])
    )


@cache
def find(name: str) -> PolicyEntry:
    """A policy of this package, by its name; imports that one only.

    Raises:
        KeyError: it is not one of this package.
    """
    if name in CORE:
        return cast(PolicyEntry, plugins.load_from(CORE[name]))
    if not is_ours(name):
        raise KeyError(name)
    return cast(PolicyEntry, plugins.load(plugins.find_entry_points()[name]))


def lacks(name: str) -> str:
    """What a policy needs and does not find here; empty if nothing."""
    needs = find(name).needs if is_ours(name) else None
    if needs is None or importlib.util.find_spec(needs[0]) is not None:
        return ""
    library, extra = needs
    return f'it learns with {library}, which is not installed: pip install ".[{extra}]" in the source folder'


@cache
def ours_available() -> dict[str, str]:
    """The policies of this package that can be made here: name -> what it is, in one line."""
    return {name: entry.about for name, entry in ours().items() if not lacks(name)}


def heading(name: str) -> dict[str, str]:
    """The heading of a policy in `cotenant policy list`, and when to choose it; none for a policy that is not
    ours."""
    if not is_ours(name):
        return {}
    entry = find(name)
    return {"group": entry.group, "choose": entry.choose}


def available() -> dict[str, str]:
    """Ours, then those of other packages: name -> what it is, in one line."""
    return ours_available() | {
        name: found.about for name, found in _theirs().items() if isinstance(found, plugins.PluginPolicy)
    }


def about(name: str) -> str:
    """What a policy is, in one line; empty where there is no such policy."""
    if is_ours(name):
        return "" if lacks(name) else find(name).about
    return available().get(name, "")


def unavailable() -> dict[str, str]:
    """Policies that are not available, each with why."""
    return {name: why for name in ours() if (why := lacks(name))} | {
        name: why for name, why in _theirs().items() if isinstance(why, str)
    }


def _theirs() -> dict[str, plugins.PluginPolicy | str]:
    """What other packages offer, or what is wrong with it. A name of ours stays ours."""
    found: dict[str, plugins.PluginPolicy | str] = {}
    for name in plugins.find_entry_points():
        if not is_ours(name):
            try:
                found[name] = plugins.find(name)
            except ValueError as error:
                found[name] = str(error)
    return found


def is_known(name: str) -> bool:
    """Whether `make` knows a policy of this name."""
    if is_ours(name):
        return not lacks(name)
    return name in available() or (plugins.is_path(name) and not why_not(name))


def why_not(name: str) -> str:
    """Why a policy of this name cannot be made; empty if it can."""
    try:
        make(name, {})
    except ValueError as error:
        return str(error)
    return ""


def defaults(name: str) -> Parameters:
    """The parameters a policy takes, with their defaults (those of the paper); none where there is no such
    policy."""
    placement: Parameters = {PLACEMENT: BEST_FIT}
    if is_ours(name):
        parse = find(name).parse
        return (msgspec.structs.asdict(parse({})) if parse else {}) | placement
    try:
        return placement | dict(plugins.find(name).defaults)
    except ValueError:
        return {}


def make(name: str, parameters: Parameters) -> Policy:
    """Makes a policy by its name.

    Raises:
        ValueError: unknown name, unknown parameter, a value out of range, or a missing library; the text
            says what to do.
    """
    if not is_ours(name):
        if name not in plugins.find_entry_points() and not plugins.is_path(name):
            raise ValueError(f"no policy {name!r}; there are {', '.join(available())}")
        plugins.find(name)
    elif missing := lacks(name):
        raise ValueError(f"policy {name} is not available: {missing}")
    unknown = set(parameters) - set(defaults(name))
    if unknown:
        takes = ", ".join(defaults(name)) or "no parameters"
        raise ValueError(f"policy {name} has no parameter {', '.join(sorted(unknown))}; it takes {takes}")
    own = dict(parameters)
    placement = own.pop(PLACEMENT, BEST_FIT) if _takes_placement(name) else BEST_FIT
    if is_ours(name):
        entry = find(name)
        policy = entry.make(entry.parse(own)) if entry.parse else entry.make()
    else:
        policy = plugins.make(name, own)
    return _apply_placement(policy, placement)


def _takes_placement(name: str) -> bool:
    """Whether `placement` is ours to apply: a policy may have a parameter of that name itself."""
    return is_ours(name) or PLACEMENT not in plugins.find(name).defaults


def _apply_placement(policy: Policy, value: str | int | float | bool) -> Policy:
    if value not in placements():
        raise ValueError(
            f"policy {policy.name}: {PLACEMENT} is one of {', '.join(placements())}, got {value!r}"
        )
    if value == BEST_FIT:
        return policy
    rule: PlacementRule = plugins.load(plugins.find_entry_points(plugins.PLACEMENTS)[str(value)])
    if why := rule.why_not(policy):
        raise ValueError(f"policy {policy.name} cannot have {PLACEMENT}={value}: {why}")
    return rule.apply(policy)


class MissingPolicy:
    """A stand-in for a policy that cannot be made: it starts nothing, and says why."""

    traits = Traits(starts_nothing=True)

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        self._why = why
        self._state = b""

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return ()

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        return NOTHING

    def observe(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        pass

    def explain(self, view: View, job: Job) -> Reason:
        return because("policy-absent", self.name, self._why)

    def save(self) -> bytes:
        return self._state

    def load(self, state: bytes) -> None:
        self._state = state


def make_or_stand_in(name: str, parameters: Parameters) -> Policy:
    """Makes a policy by its name, or a stand-in that says why it cannot be made."""
    try:
        return make(name, parameters)
    except ValueError as error:
        return MissingPolicy(name, str(error))


def make_for_roll_outs(name: str, parameters: Parameters) -> Policy:
    """The policy with best fit: a roll-out asks it thousands of times, and another placement costs more time
    than it changes the ends of jobs."""
    kept = {each: value for each, value in parameters.items() if not is_ours(name) or each != PLACEMENT}
    return make_or_stand_in(name, kept)
