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

from cotenant.controller.domain import NOTHING, AnyEvent, Decision, Job, Reason, View, because
from cotenant.controller.policies import plugins
from cotenant.controller.policies.attained import Tiresias, TiresiasParameters
from cotenant.controller.policies.base import Parameters, Policy
from cotenant.controller.policies.castor.cost import CastorCost
from cotenant.controller.policies.castor.policy import Castor, CastorParameters
from cotenant.controller.policies.chronus import Chronus, ChronusParameters
from cotenant.controller.policies.classic import Srtf, fifo, sjf
from cotenant.controller.policies.fgd import Fgd
from cotenant.controller.policies.gfs.parameters import VARIANTS, GfsParameters
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

_ABOUT: dict[str, str] = {
    "fifo": "first come, first served",
    "sjf": "shortest expected job first among those that fit; no preemption",
    "srtf": "shortest remaining time first; newcomers preempt longer jobs",
    "srtf-full": "shortest remaining time first; every waiting job may preempt longer ones, at each event",
    "ssf": "smallest service (remaining time x GPUs) first among those that fit; no preemption",
    "f1": "log10(time) x GPUs + 870 log10(submitted): by arrival at first, ever more by size",
    "wfp3": "longest wait for its length first, wider jobs before narrower ones",
    "unicep": "longest wait for its length and width first",
    "qssf": "smallest expected GPU time first, by what jobs like it took before",
    "slurm-multifactor": "Slurm's default: age + fair share + size + class, each times a weight",
    "scorer": "one learned score of time, GPUs and wait, with its parts in every reason",
    "rltune": "RLTune: an order learned by reinforcement, a small network's",
    "srsf": "smallest remaining service first; newcomers preempt jobs with more of it",
    "tiresias": "least attained service first, in queues; needs no expected times",
    "las": "another name of tiresias",
    "interval": "srtf-full that looks at the queue every interval_s seconds only",
    "interval-60": "srtf-full once a minute (what Lazer compares with as Pollux)",
    "interval-360": "srtf-full every 6 minutes (what Lazer compares with as Muri)",
    "interval-600": "srtf-full every 10 minutes (what Lazer compares with as Optimus)",
    "patient": "smallest remaining service first; preempts only where that pays, never a job that loads",
    "castor": "SJF-BSBF: shortest first, shares devices when Theorem 1 says it pays; parts pairs that lose",
    "castor-cost": "shares when the newcomer gains more than its partners lose, against its real wait",
    "sjf-ffs": "shortest first; shares the first devices that have the memory, whatever it costs",
    "lucid": "Lucid: packs jobs of equal width whose labels say that they can share",
    "pcs": "PCS: classes by size share the devices by weight; between speed and kept predictions",
    "lazer": "Lazer: as srtf, but a preemption is deferred by a time that is learned",
    "yarn-cs": "two classes: hp first, preempts the newest spot jobs; first come, first served within each",
    "fgd": "two classes: each pod goes where it fragments least",
    "lyra": "two classes: hosts without hp jobs are lent to spot jobs and taken back whole",
    "chronus": "two classes: spot jobs hold leases of five minutes and give way when one is over",
    "gfs": "GFS: hp first; spot jobs get what the forecast leaves, and give way at the least cost",
    "gfs-e": "gfs with last week's peak in place of a forecast",
    "gfs-d": "gfs without feedback: eta stays 1",
    "gfs-s": "gfs that places by packing alone",
    "gfs-p": "gfs that preempts at random",
    "gfs-sp": "gfs-s and gfs-p together",
    "gfs-rise": "classes as in gfs; spot jobs get what the usual rise of hp demand leaves, shortest first",
}

_EXTRAS: dict[str, tuple[str, str]] = {"lazer": ("botorch", "bo")}
"""Policies whose computations need a library: its name, and the extra that brings it."""


def lacks(name: str) -> str:
    """What a policy needs and does not find here; empty if nothing. Imports nothing."""
    library, extra = _EXTRAS.get(name, ("", ""))
    if not library or importlib.util.find_spec(library) is not None:
        return ""
    return f'it learns with {library}, which is not installed: pip install ".[{extra}]" in the source folder'


UNAVAILABLE: dict[str, str] = {name: why for name in _ABOUT if (why := lacks(name))}
"""Policies that could be there, and what they lack."""

AVAILABLE: dict[str, str] = {name: about for name, about in _ABOUT.items() if name not in UNAVAILABLE}


def _gfs(name: str, parameters: Parameters) -> Policy:
    return Gfs(name, GfsParameters.parse(name, parameters), make)


_MAKERS: dict[str, Callable[[Parameters], Policy]] = {
    "fifo": lambda parameters: fifo(OrderParameters.parse(parameters)),
    "sjf": lambda parameters: sjf(PassingParameters.parse(parameters)),
    "f1": lambda parameters: F1(OrderParameters.parse(parameters)),
    "wfp3": lambda parameters: Wfp3(OrderParameters.parse(parameters)),
    "unicep": lambda parameters: Unicep(OrderParameters.parse(parameters)),
    "qssf": lambda parameters: Qssf(QssfParameters.parse(parameters)),
    "scorer": lambda parameters: Scorer(LearnedParameters.parse(parameters)),
    "rltune": lambda parameters: RlTune(LearnedParameters.parse(parameters)),
    "slurm-multifactor": lambda parameters: Multifactor(MultifactorParameters.parse(parameters)),
    "srtf": lambda parameters: Srtf(NewcomerParameters.parse(parameters)),
    "srtf-full": lambda parameters: SrtfFull(),
    "ssf": lambda parameters: ssf(PassingParameters.parse(parameters)),
    "srsf": lambda parameters: Srsf(NewcomerParameters.parse(parameters)),
    "tiresias": lambda parameters: Tiresias(TiresiasParameters.parse(parameters)),
    "las": lambda parameters: Tiresias(TiresiasParameters.parse(parameters)),
    "interval": lambda parameters: IntervalPolicy("interval", IntervalParameters.parse(parameters)),
    "interval-60": lambda parameters: IntervalPolicy("interval-60", IntervalParameters(interval_s=60.0)),
    "interval-360": lambda parameters: IntervalPolicy("interval-360", IntervalParameters(interval_s=360.0)),
    "interval-600": lambda parameters: IntervalPolicy("interval-600", IntervalParameters(interval_s=600.0)),
    "patient": lambda parameters: Patient(PatientParameters.parse(parameters)),
    "castor": lambda parameters: Castor(CastorParameters.parse(parameters)),
    "castor-cost": lambda parameters: CastorCost(ColocationParameters.parse(parameters)),
    "sjf-ffs": lambda parameters: SjfFfs(ColocationParameters.parse(parameters)),
    "lucid": lambda parameters: Lucid(LucidParameters.parse(parameters)),
    "pcs": lambda parameters: Pcs(PcsParameters.parse(parameters)),
    "lazer": lambda parameters: Lazer(LazerParameters.parse(parameters)),
    "yarn-cs": lambda parameters: YarnCs(),
    "fgd": lambda parameters: Fgd(),
    "lyra": lambda parameters: Lyra(),
    "chronus": lambda parameters: Chronus(ChronusParameters.parse(parameters)),
    **{name: partial(_gfs, name) for name in VARIANTS},
}

_DEFAULTS: dict[str, Parameters] = {
    "fifo": OrderParameters().as_parameters(),
    "sjf": PassingParameters().as_parameters(),
    "ssf": PassingParameters().as_parameters(),
    "f1": OrderParameters().as_parameters(),
    "wfp3": OrderParameters().as_parameters(),
    "unicep": OrderParameters().as_parameters(),
    "qssf": QssfParameters().as_parameters(),
    "scorer": LearnedParameters().as_parameters(),
    "rltune": LearnedParameters().as_parameters(),
    "slurm-multifactor": MultifactorParameters().as_parameters(),
    "patient": PatientParameters().as_parameters(),
    "castor": CastorParameters().as_parameters(),
    "castor-cost": ColocationParameters().as_parameters(),
    "sjf-ffs": ColocationParameters().as_parameters(),
    "lucid": LucidParameters().as_parameters(),
    "interval": IntervalParameters().as_parameters(),
    "las": TiresiasParameters().as_parameters(),
    "tiresias": TiresiasParameters().as_parameters(),
    "pcs": PcsParameters().as_parameters(),
    "lazer": LazerParameters().as_parameters(),
    "srsf": NewcomerParameters().as_parameters(),
    "srtf": NewcomerParameters().as_parameters(),
    "chronus": ChronusParameters().as_parameters(),
    **{name: GfsParameters.parse(name, {}).as_parameters() for name in VARIANTS},
}


def available() -> dict[str, str]:
    """Ours, then those of other packages: name -> what it is, in one line."""
    return AVAILABLE | {
        name: found.about for name, found in _theirs().items() if isinstance(found, plugins.PluginPolicy)
    }


def unavailable() -> dict[str, str]:
    """Those that could be there, and what keeps them away."""
    return UNAVAILABLE | {name: why for name, why in _theirs().items() if isinstance(why, str)}


def _theirs() -> dict[str, plugins.PluginPolicy | str]:
    """What other packages offer, or what is wrong with it. A name of ours stays ours."""
    found: dict[str, plugins.PluginPolicy | str] = {}
    for name in plugins.offered():
        if name not in _ABOUT:
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
    if name in _ABOUT:
        return dict(_DEFAULTS.get(name, {}))
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
    maker = _MAKERS.get(name)
    if maker is None:
        if name not in plugins.offered() and not plugins.is_path(name):
            raise ValueError(f"no policy {name!r}; there are {', '.join(available())}")
        plugins.find(name)
        maker = partial(plugins.make, name)
    missing = lacks(name)
    if missing:
        raise ValueError(f"policy {name} is not available: {missing}")
    unknown = set(parameters) - set(defaults(name))
    if unknown:
        takes = ", ".join(defaults(name)) or "no parameters"
        raise ValueError(f"policy {name} has no parameter {', '.join(sorted(unknown))}; it takes {takes}")
    return maker(parameters)


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
