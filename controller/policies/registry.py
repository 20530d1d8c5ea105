"""Which policies there are, how one is made by its name, and what stands in for one that is gone.

Rule: `AVAILABLE` are ours. Plug-ins (`policies/plugins.py`) are in `available()`, which imports them: code
that only wants ours does not pay for it. Rule: a controller starts even if the policy that its journal names
is gone, since running jobs need it.
Under a stand-in nothing new starts, every waiting job says why, and `cotenant policy set` ends it. It keeps
the absent one's state, so that the policy goes on where it was once its package is back.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Final, NamedTuple

from cotenant.controller.domain import NOTHING, AnyEvent, Decision, Job, Reason, View, because
from cotenant.controller.policies import placement, plugins
from cotenant.controller.policies.attained import LAS, TIRESIAS
from cotenant.controller.policies.base import (
    CLASSES,
    ELASTIC,
    FIRST,
    KEPT,
    ORDER,
    PREEMPT,
    SHARE,
    Parameters,
    Policy,
    PolicyEntry,
)
from cotenant.controller.policies.baselines import CHRONUS, FGD, LYRA, YARN_CS
from cotenant.controller.policies.castor.cost import CASTOR_COST
from cotenant.controller.policies.castor.policy import CASTOR
from cotenant.controller.policies.classic import FIFO, SJF, SRSF, SRTF, SSF
from cotenant.controller.policies.cotenant import COTENANT
from cotenant.controller.policies.elastic import AFS_L, MAX_MIN, THEMIS
from cotenant.controller.policies.gfs.policy import entries as gfs_entries
from cotenant.controller.policies.lazer.policy import LAZER
from cotenant.controller.policies.learned import RLTUNE, SCORER
from cotenant.controller.policies.lucid import LUCID
from cotenant.controller.policies.multifactor import SLURM_MULTIFACTOR
from cotenant.controller.policies.patient import PATIENT
from cotenant.controller.policies.pcs import PCS
from cotenant.controller.policies.remaining import (
    INTERVAL,
    INTERVAL_60,
    INTERVAL_360,
    INTERVAL_600,
    SRTF_FULL,
)
from cotenant.controller.policies.scored import F1_ENTRY, QSSF, UNICEP, WFP3
from cotenant.controller.policies.sjf_ffs import SJF_FFS


class PolicyOption(NamedTuple):
    """A parameter that policies take beside their own, since it does not concern their order."""

    values: tuple[str, ...]
    """The first is the default: the policy as it is."""
    about: str
    apply: Callable[[Policy], Policy]
    """The policy with the other value."""
    why_not: Callable[[Policy], str]
    """Why a policy cannot take the option; empty if it can."""


OPTIONS: Final = {
    "placement": PolicyOption(
        ("best-fit", "milp"),
        "where waiting jobs go: each to the fullest host that holds it, or several chosen together",
        placement.PlacedTogether,
        placement.why_not,
    ),
}


OURS: Final[dict[str, PolicyEntry]] = {
    "fifo": FIFO,
    "sjf": SJF,
    "srtf": SRTF,
    "srtf-full": SRTF_FULL,
    "ssf": SSF,
    "f1": F1_ENTRY,
    "wfp3": WFP3,
    "unicep": UNICEP,
    "qssf": QSSF,
    "slurm-multifactor": SLURM_MULTIFACTOR,
    "scorer": SCORER,
    "rltune": RLTUNE,
    "srsf": SRSF,
    "tiresias": TIRESIAS,
    "las": LAS,
    "interval": INTERVAL,
    "interval-60": INTERVAL_60,
    "interval-360": INTERVAL_360,
    "interval-600": INTERVAL_600,
    "patient": PATIENT,
    "castor": CASTOR,
    "cotenant": COTENANT,
    "castor-cost": CASTOR_COST,
    "sjf-ffs": SJF_FFS,
    "lucid": LUCID,
    "pcs": PCS,
    "max-min": MAX_MIN,
    "afs-l": AFS_L,
    "themis": THEMIS,
    "lazer": LAZER,
    "yarn-cs": YARN_CS,
    "fgd": FGD,
    "lyra": LYRA,
    "chronus": CHRONUS,
    **gfs_entries(lambda name, parameters: make(name, parameters)),
}
"""By name, in the order in which people are shown them."""

GROUPS: Final = (FIRST, ORDER, PREEMPT, SHARE, KEPT, ELASTIC, CLASSES)
"""Their headings, in the order in which people read them."""


def lacks(name: str) -> str:
    """What a policy needs and does not find here; empty if nothing. Imports nothing."""
    needs = OURS[name].needs if name in OURS else None
    if needs is None or importlib.util.find_spec(needs[0]) is not None:
        return ""
    library, extra = needs
    return f'it learns with {library}, which is not installed: pip install ".[{extra}]" in the source folder'


UNAVAILABLE: dict[str, str] = {name: why for name in OURS if (why := lacks(name))}
"""Policies that are not available, and what they lack."""

AVAILABLE: dict[str, str] = {name: entry.about for name, entry in OURS.items() if name not in UNAVAILABLE}


def heading(name: str) -> dict[str, str]:
    """Its heading in `cotenant policy list`, and when to choose it; none for a policy that is not ours."""
    entry = OURS.get(name)
    return {"group": entry.group, "choose": entry.choose} if entry else {}


def available() -> dict[str, str]:
    """Ours, then those of other packages: name -> what it is, in one line."""
    return AVAILABLE | {
        name: found.about for name, found in _theirs().items() if isinstance(found, plugins.PluginPolicy)
    }


def about(name: str) -> str:
    """What a policy is, in one line; empty where there is no such policy."""
    return AVAILABLE[name] if name in AVAILABLE else available().get(name, "")


def unavailable() -> dict[str, str]:
    """Policies that are not available, each with why."""
    return UNAVAILABLE | {name: why for name, why in _theirs().items() if isinstance(why, str)}


def _theirs() -> dict[str, plugins.PluginPolicy | str]:
    """What other packages offer, or what is wrong with it. A name of ours stays ours."""
    found: dict[str, plugins.PluginPolicy | str] = {}
    for name in plugins.offered():
        if name not in OURS:
            try:
                found[name] = plugins.find(name)
            except ValueError as error:
                found[name] = str(error)
    return found


def is_known(name: str) -> bool:
    """Whether `make` knows a policy of this name."""
    return name in AVAILABLE or name in available() or (plugins.is_path(name) and not why_not(name))


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
    options: Parameters = {option: each.values[0] for option, each in OPTIONS.items()}
    if (entry := OURS.get(name)) is not None:
        return (entry.parse({}).as_parameters() if entry.parse else {}) | options
    try:
        return options | dict(plugins.find(name).defaults)
    except ValueError:
        return {}


def make(name: str, parameters: Parameters) -> Policy:
    """A fresh policy.

    Raises:
        ValueError: unknown name, unknown parameter, a value out of range, or a missing library; the text
            says what to do.
    """
    entry = OURS.get(name)
    if entry is None:
        if name not in plugins.offered() and not plugins.is_path(name):
            raise ValueError(f"no policy {name!r}; there are {', '.join(available())}")
        plugins.find(name)
    missing = lacks(name)
    if missing:
        raise ValueError(f"policy {name} is not available: {missing}")
    unknown = set(parameters) - set(defaults(name))
    if unknown:
        takes = ", ".join(defaults(name)) or "no parameters"
        raise ValueError(f"policy {name} has no parameter {', '.join(sorted(unknown))}; it takes {takes}")
    theirs = plugins.find(name).defaults if entry is None else {}
    options = {option: parameters[option] for option in OPTIONS.keys() & parameters.keys() - theirs.keys()}
    own = {option: value for option, value in parameters.items() if option not in options}
    if entry is None:
        policy = plugins.make(name, own)
    else:
        policy = entry.make(entry.parse(own)) if entry.parse else entry.make()
    return _with_options(policy, options)


def _with_options(policy: Policy, options: Parameters) -> Policy:
    for name, value in sorted(options.items()):
        option = OPTIONS[name]
        if value not in option.values:
            raise ValueError(
                f"policy {policy.name}: {name} is one of {', '.join(option.values)}, got {value!r}"
            )
        if value == option.values[0]:
            continue
        if why := option.why_not(policy):
            raise ValueError(f"policy {policy.name} cannot have {name}={value}: {why}")
        policy = option.apply(policy)
    return policy


class MissingPolicy:
    """Starts nothing."""

    starts_nothing = True

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        self._why = why
        self._state = b""

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return ()

    def decide(self, view: View, event: AnyEvent) -> Decision:
        return NOTHING

    def observe(self, view: View, event: AnyEvent, decision: Decision) -> None:
        pass

    def explain(self, view: View, job: Job) -> Reason:
        return because("policy-absent", self.name, self._why)

    def save(self) -> bytes:
        return self._state

    def load(self, state: bytes) -> None:
        self._state = state


def make_or_stand_in(name: str, parameters: Parameters) -> Policy:
    """The policy; a stand-in that says why where it cannot be made."""
    try:
        return make(name, parameters)
    except ValueError as error:
        return MissingPolicy(name, str(error))


def make_for_roll_outs(name: str, parameters: Parameters) -> Policy:
    """The policy without options: a roll-out asks it thousands of times, and an option costs more time than
    it changes the ends of jobs."""
    own = {each: value for each, value in parameters.items() if name not in OURS or each not in OPTIONS}
    return make_or_stand_in(name, own)
