"""Which policies there are, how one is made by its name, and what stands in for one that is gone.

Rule: `AVAILABLE` are ours. What people may name as well (`policies/plugins.py`) is in `available()`, which
imports it: who only wants ours does not pay for it.

Rule: a controller starts whatever became of the policy that its journal names, since jobs run that need it.
Under a stand-in nothing new starts, every waiting job says why, and `cotenant policy set` ends it. It keeps
the absent one's state, so that the policy goes on where it was once its package is back.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from cotenant.controller.domain import NOTHING, AnyEvent, Decision, Job, Reason, View, because
from cotenant.controller.policies import plugins
from cotenant.controller.policies.attained import Tiresias, TiresiasParameters
from cotenant.controller.policies.base import Parameters, Policy
from cotenant.controller.policies.castor.cost import CastorCost
from cotenant.controller.policies.castor.policy import Castor, CastorParameters
from cotenant.controller.policies.chronus import Chronus, ChronusParameters
from cotenant.controller.policies.classic import Srtf, fifo, sjf
from cotenant.controller.policies.fgd import Fgd
from cotenant.controller.policies.gfs.parameters import GfsParameters
from cotenant.controller.policies.gfs.policy import Gfs
from cotenant.controller.policies.heuristics import F1, Unicep, Wfp3
from cotenant.controller.policies.lazer.parameters import LazerParameters
from cotenant.controller.policies.lazer.policy import Lazer
from cotenant.controller.policies.learned import LearnedParameters, RlTune, Scorer
from cotenant.controller.policies.lucid import Lucid, LucidParameters
from cotenant.controller.policies.lyra import Lyra
from cotenant.controller.policies.multifactor import Multifactor, MultifactorParameters
from cotenant.controller.policies.newcomers import NewcomerParameters
from cotenant.controller.policies.order_options import OrderParameters, PassingParameters
from cotenant.controller.policies.patient import Patient, PatientParameters
from cotenant.controller.policies.pcs import Pcs, PcsParameters
from cotenant.controller.policies.qssf import Qssf, QssfParameters
from cotenant.controller.policies.remaining import IntervalParameters, IntervalPolicy, SrtfFull
from cotenant.controller.policies.service import Srsf, ssf
from cotenant.controller.policies.sjf_ffs import SjfFfs
from cotenant.controller.policies.toolkit import ColocationParameters
from cotenant.controller.policies.yarn_cs import YarnCs


class PolicyEntry(NamedTuple):
    """A policy of ours."""

    about: str
    """What it is, in one line."""
    make: Callable[..., Policy]
    """Called with what `parse` gives."""
    parse: Callable[[Parameters], Any] | None = None
    """Its parameters, from those that were given; raises ValueError. None: it has none."""


def _gfs(name: str, parameters: GfsParameters) -> Policy:
    return Gfs(name, parameters, make)


_OF_GFS: Final = {
    "gfs": "GFS: hp first; spot jobs get what the forecast leaves, and give way at the least cost",
    "gfs-e": "gfs with last week's peak in place of a forecast",
    "gfs-d": "gfs without feedback: eta stays 1",
    "gfs-s": "gfs that places by packing alone",
    "gfs-p": "gfs that preempts at random",
    "gfs-sp": "gfs-s and gfs-p together",
    "gfs-rise": "classes as in gfs; spot jobs get what the usual rise of hp demand leaves, shortest first",
}

OURS: Final[dict[str, PolicyEntry]] = {
    "fifo": PolicyEntry(
        "first come, first served",
        fifo,
        OrderParameters.parse,
    ),
    "sjf": PolicyEntry(
        "shortest expected job first among those that fit; no preemption",
        sjf,
        PassingParameters.parse,
    ),
    "srtf": PolicyEntry(
        "shortest remaining time first; newcomers preempt longer jobs",
        Srtf,
        NewcomerParameters.parse,
    ),
    "srtf-full": PolicyEntry(
        "shortest remaining time first; every waiting job may preempt longer ones, at each event",
        SrtfFull,
    ),
    "ssf": PolicyEntry(
        "smallest service (remaining time x GPUs) first among those that fit; no preemption",
        ssf,
        PassingParameters.parse,
    ),
    "f1": PolicyEntry(
        "log10(time) x GPUs + 870 log10(submitted): by arrival at first, ever more by size",
        F1,
        OrderParameters.parse,
    ),
    "wfp3": PolicyEntry(
        "longest wait for its length first, wider jobs before narrower ones",
        Wfp3,
        OrderParameters.parse,
    ),
    "unicep": PolicyEntry(
        "longest wait for its length and width first",
        Unicep,
        OrderParameters.parse,
    ),
    "qssf": PolicyEntry(
        "smallest expected GPU time first, by what jobs like it took before",
        Qssf,
        QssfParameters.parse,
    ),
    "slurm-multifactor": PolicyEntry(
        "Slurm's default: age + fair share + size + class, each times a weight",
        Multifactor,
        MultifactorParameters.parse,
    ),
    "scorer": PolicyEntry(
        "one learned score of time, GPUs and wait, with its parts in every reason",
        Scorer,
        LearnedParameters.parse,
    ),
    "rltune": PolicyEntry(
        "RLTune: an order learned by reinforcement, a small network's",
        RlTune,
        LearnedParameters.parse,
    ),
    "srsf": PolicyEntry(
        "smallest remaining service first; newcomers preempt jobs with more of it",
        Srsf,
        NewcomerParameters.parse,
    ),
    "tiresias": PolicyEntry(
        "least attained service first, in queues; needs no expected times",
        Tiresias,
        TiresiasParameters.parse,
    ),
    "las": PolicyEntry(
        "another name of tiresias",
        Tiresias,
        TiresiasParameters.parse,
    ),
    "interval": PolicyEntry(
        "srtf-full that looks at the queue every interval_s seconds only",
        partial(IntervalPolicy, "interval"),
        IntervalParameters.parse,
    ),
    "interval-60": PolicyEntry(
        "srtf-full once a minute (what Lazer compares with as Pollux)",
        lambda: IntervalPolicy("interval-60", IntervalParameters(interval_s=60.0)),
    ),
    "interval-360": PolicyEntry(
        "srtf-full every 6 minutes (what Lazer compares with as Muri)",
        lambda: IntervalPolicy("interval-360", IntervalParameters(interval_s=360.0)),
    ),
    "interval-600": PolicyEntry(
        "srtf-full every 10 minutes (what Lazer compares with as Optimus)",
        lambda: IntervalPolicy("interval-600", IntervalParameters(interval_s=600.0)),
    ),
    "patient": PolicyEntry(
        "smallest remaining service first; preempts only where that pays, never a job that loads",
        Patient,
        PatientParameters.parse,
    ),
    "castor": PolicyEntry(
        "SJF-BSBF: shortest first, shares devices when Theorem 1 says it pays; parts pairs that lose",
        Castor,
        CastorParameters.parse,
    ),
    "castor-cost": PolicyEntry(
        "shares when the newcomer gains more than its partners lose, against its real wait",
        CastorCost,
        ColocationParameters.parse,
    ),
    "sjf-ffs": PolicyEntry(
        "shortest first; shares the first devices that have the memory, whatever it costs",
        SjfFfs,
        ColocationParameters.parse,
    ),
    "lucid": PolicyEntry(
        "Lucid: packs jobs of equal width whose labels say that they can share",
        Lucid,
        LucidParameters.parse,
    ),
    "pcs": PolicyEntry(
        "PCS: classes by size share the devices by weight; between speed and kept predictions",
        Pcs,
        PcsParameters.parse,
    ),
    "lazer": PolicyEntry(
        "Lazer: as srtf, but a preemption is deferred by a time that is learned",
        Lazer,
        LazerParameters.parse,
    ),
    "yarn-cs": PolicyEntry(
        "two classes: hp first, preempts the newest spot jobs; first come, first served within each",
        YarnCs,
    ),
    "fgd": PolicyEntry(
        "two classes: each pod goes where it fragments least",
        Fgd,
    ),
    "lyra": PolicyEntry(
        "two classes: hosts without hp jobs are lent to spot jobs and taken back whole",
        Lyra,
    ),
    "chronus": PolicyEntry(
        "two classes: spot jobs hold leases of five minutes and give way when one is over",
        Chronus,
        ChronusParameters.parse,
    ),
    **{
        name: PolicyEntry(about, partial(_gfs, name), partial(GfsParameters.parse, name))
        for name, about in _OF_GFS.items()
    },
}
"""By name, in the order in which people are shown them."""

_EXTRAS: dict[str, tuple[str, str]] = {"lazer": ("botorch", "bo")}
"""Policies whose computations need a library: its name, and the extra that brings it."""


def lacks(name: str) -> str:
    """What a policy needs and does not find here; empty if nothing. Imports nothing."""
    library, extra = _EXTRAS.get(name, ("", ""))
    if not library or importlib.util.find_spec(library) is not None:
        return ""
    return f'it learns with {library}, which is not installed: pip install ".[{extra}]" in the source folder'


UNAVAILABLE: dict[str, str] = {name: why for name in OURS if (why := lacks(name))}
"""Policies that could be there, and what they lack."""

AVAILABLE: dict[str, str] = {name: entry.about for name, entry in OURS.items() if name not in UNAVAILABLE}


def available() -> dict[str, str]:
    """Ours, then those of other packages: name -> what it is, in one line."""
    return AVAILABLE | {
        name: found.about for name, found in _theirs().items() if isinstance(found, plugins.PluginPolicy)
    }


def about(name: str) -> str:
    """What a policy is, in one line; empty where there is no such policy."""
    return AVAILABLE[name] if name in AVAILABLE else available().get(name, "")


def unavailable() -> dict[str, str]:
    """Those that could be there, and what keeps them away."""
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
    """Whether `make` would have one of this name."""
    return name in AVAILABLE or name in available() or (plugins.is_path(name) and not why_not(name))


def why_not(name: str) -> str:
    """What keeps a policy of this name from being made; empty if nothing."""
    try:
        make(name, {})
    except ValueError as error:
        return str(error)
    return ""


def defaults(name: str) -> Parameters:
    """The parameters a policy takes, with their defaults (those of the paper); none where there is no such
    policy."""
    if (entry := OURS.get(name)) is not None:
        return entry.parse({}).as_parameters() if entry.parse else {}
    try:
        return dict(plugins.find(name).defaults)
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
    if entry is None:
        return plugins.make(name, parameters)
    return entry.make(entry.parse(parameters)) if entry.parse else entry.make()


class MissingPolicy:
    """Starts nothing."""

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
