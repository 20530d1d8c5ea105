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
from functools import partial
from typing import Any, Final, NamedTuple

from cotenant.controller.domain import NOTHING, AnyEvent, Decision, Job, Reason, View, because
from cotenant.controller.policies import placement, plugins
from cotenant.controller.policies.attained import Tiresias, TiresiasParameters
from cotenant.controller.policies.base import Parameters, Policy
from cotenant.controller.policies.castor.cost import CastorCost
from cotenant.controller.policies.castor.policy import Castor, CastorParameters
from cotenant.controller.policies.chronus import Chronus, ChronusParameters
from cotenant.controller.policies.classic import Srtf, fifo, sjf
from cotenant.controller.policies.cotenant import Cotenant, CotenantParameters
from cotenant.controller.policies.elastic import ElasticAfsL, ElasticMaxMin, ElasticParameters, ElasticThemis
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
from cotenant.controller.policies.pcs import ElasticPcs, Pcs, PcsParameters
from cotenant.controller.policies.qssf import Qssf, QssfParameters
from cotenant.controller.policies.remaining import IntervalParameters, IntervalPolicy, SrtfFull
from cotenant.controller.policies.service import Srsf, ssf
from cotenant.controller.policies.sjf_ffs import SjfFfs
from cotenant.controller.policies.toolkit import ClassParameters, ColocationParameters
from cotenant.controller.policies.yarn_cs import YarnCs


class PolicyOption(NamedTuple):
    """A parameter that policies take beside their own, since it says nothing of their order."""

    values: tuple[str, ...]
    """The first is the default: the policy as it is."""
    about: str
    apply: Callable[[Policy], Policy]
    """The policy with the other value."""
    why_not: Callable[[Policy], str]
    """What keeps it from taking that; empty if nothing."""


OPTIONS: Final = {
    "placement": PolicyOption(
        ("best-fit", "milp"),
        "where waiting jobs go: each to the fullest host that holds it, or several chosen together",
        placement.PlacedTogether,
        placement.why_not,
    ),
}


class PolicyEntry(NamedTuple):
    """A policy of ours."""

    about: str
    """What it is, in one line."""
    make: Callable[..., Policy]
    """Called with what `parse` gives."""
    parse: Callable[[Parameters], Any] | None = None
    """Its parameters, from those that were given; raises ValueError. None: it has none."""
    group: str = ""
    """Its heading in `cotenant policy list`."""
    choose: str = ""
    """When to choose it, in a line."""


FIRST: Final = "To begin with"
ORDER: Final = "An order alone: nobody is preempted, nothing is shared"
PREEMPT: Final = "With preemption"
SHARE: Final = "With shared devices"
KEPT: Final = "With predictions that hold"
ELASTIC: Final = "For elastic jobs"
CLASSES: Final = "Two classes, hp and spot"
GROUPS: Final = (FIRST, ORDER, PREEMPT, SHARE, KEPT, ELASTIC, CLASSES)
"""In the order in which people read them."""


def _gfs(name: str, parameters: GfsParameters) -> Policy:
    return Gfs(name, parameters, make)


def _pcs(parameters: PcsParameters) -> Policy:
    return ElasticPcs(parameters) if parameters.elastic else Pcs(parameters)


_OF_GFS: Final = {
    "gfs": (
        "hp first; spot jobs get what a forecast of hp demand leaves, and give way at the least cost",
        "hp demand has a daily rhythm that a forecast can learn (GFS)",
    ),
    "gfs-e": (
        "gfs with last week's peak in place of a forecast",
        "gfs is to be judged without its forecast",
    ),
    "gfs-d": (
        "gfs without feedback: what it keeps back is not corrected by what was wrong before",
        "gfs is to be judged without its feedback",
    ),
    "gfs-s": (
        "gfs that places by packing alone",
        "gfs is to be judged without its way of placing",
    ),
    "gfs-p": (
        "gfs that preempts at random",
        "gfs is to be judged without its way of preempting",
    ),
    "gfs-sp": (
        "gfs that places by packing alone and preempts at random",
        "gfs is to be judged with neither of the two",
    ),
    "gfs-rise": (
        "classes as in gfs; spot jobs get what the usual rise of hp demand leaves, shortest first",
        "some jobs must never wait (--class hp) and others may give way",
    ),
}

OURS: Final[dict[str, PolicyEntry]] = {
    "fifo": PolicyEntry(
        "first come, first served",
        fifo,
        OrderParameters.parse,
        group=FIRST,
        choose="you have no idea yet: nobody is surprised",
    ),
    "sjf": PolicyEntry(
        "shortest expected job first among those that fit; no preemption",
        sjf,
        PassingParameters.parse,
        group=FIRST,
        choose="jobs have expected times and cannot resume",
    ),
    "srtf": PolicyEntry(
        "shortest remaining time first; newcomers preempt longer jobs",
        Srtf,
        NewcomerParameters.parse,
        group=FIRST,
        choose="jobs have expected times and resume, and short ones must not wait behind long ones",
    ),
    "srtf-full": PolicyEntry(
        "shortest remaining time first; every waiting job may preempt longer ones, at each event",
        SrtfFull,
        group=PREEMPT,
        choose="preempting costs next to nothing; else srtf or patient",
    ),
    "ssf": PolicyEntry(
        "smallest service (remaining time x GPUs) first among those that fit; no preemption",
        ssf,
        PassingParameters.parse,
        group=ORDER,
        choose="as for sjf, where some jobs are much wider than others",
    ),
    "f1": PolicyEntry(
        "by a formula of length, width and arrival (F1): early jobs first, ever more the small ones",
        F1,
        OrderParameters.parse,
        group=ORDER,
        choose="a result with F1 is to be compared with",
    ),
    "wfp3": PolicyEntry(
        "longest wait for its length first, wider jobs before narrower ones",
        Wfp3,
        OrderParameters.parse,
        group=ORDER,
        choose="wide jobs wait too long under sjf (WFP3)",
    ),
    "unicep": PolicyEntry(
        "longest wait for its length and width first",
        Unicep,
        OrderParameters.parse,
        group=ORDER,
        choose="as for wfp3, with narrow jobs first (UNICEP)",
    ),
    "qssf": PolicyEntry(
        "smallest expected GPU time first, by what jobs like it took before (Helios)",
        Qssf,
        QssfParameters.parse,
        group=ORDER,
        choose="nobody says expected times, but users run the same jobs again and again",
    ),
    "slurm-multifactor": PolicyEntry(
        "Slurm's default: waiting time, fair share, size and class, each times a weight",
        Multifactor,
        MultifactorParameters.parse,
        group=ORDER,
        choose="people come from Slurm and want its order",
    ),
    "scorer": PolicyEntry(
        "one learned score of time, GPUs and wait, with its parts in every reason",
        Scorer,
        LearnedParameters.parse,
        group=ORDER,
        choose="you have trained one on a trace like your load, and `whatif` shows that it gains",
    ),
    "rltune": PolicyEntry(
        "an order learned by reinforcement, by a small network (RLTune)",
        RlTune,
        LearnedParameters.parse,
        group=ORDER,
        choose="as for scorer; so far it has not beaten ssf in our simulations",
    ),
    "srsf": PolicyEntry(
        "smallest remaining service (time x GPUs) first; newcomers preempt jobs with more of it",
        Srsf,
        NewcomerParameters.parse,
        group=PREEMPT,
        choose="as for srtf, where some jobs are much wider than others",
    ),
    "tiresias": PolicyEntry(
        "least service received so far first, in queues; needs no expected times (Tiresias)",
        Tiresias,
        TiresiasParameters.parse,
        group=FIRST,
        choose="nobody knows how long jobs take, and jobs resume",
    ),
    "las": PolicyEntry(
        "another name of tiresias",
        Tiresias,
        TiresiasParameters.parse,
        group=PREEMPT,
        choose="you know it by this name",
    ),
    "interval": PolicyEntry(
        "srtf-full that looks at the queue every interval_s seconds only",
        partial(IntervalPolicy, "interval"),
        IntervalParameters.parse,
        group=PREEMPT,
        choose="srtf-full preempts too often",
    ),
    "interval-60": PolicyEntry(
        "srtf-full once a minute (what Lazer compares with as Pollux)",
        lambda: IntervalPolicy("interval-60", IntervalParameters(interval_s=60.0)),
        group=PREEMPT,
        choose="a result of Lazer's paper is to be compared with",
    ),
    "interval-360": PolicyEntry(
        "srtf-full every 6 minutes (what Lazer compares with as Muri)",
        lambda: IntervalPolicy("interval-360", IntervalParameters(interval_s=360.0)),
        group=PREEMPT,
        choose="a result of Lazer's paper is to be compared with",
    ),
    "interval-600": PolicyEntry(
        "srtf-full every 10 minutes (what Lazer compares with as Optimus)",
        lambda: IntervalPolicy("interval-600", IntervalParameters(interval_s=600.0)),
        group=PREEMPT,
        choose="a result of Lazer's paper is to be compared with",
    ),
    "patient": PolicyEntry(
        "smallest remaining service first; preempts only where that pays, never a job that loads",
        Patient,
        PatientParameters.parse,
        group=FIRST,
        choose="jobs have expected times and resume: the best mean time of ours on most traces",
    ),
    "castor": PolicyEntry(
        "shortest first; two jobs share devices when both together finish sooner so; parts pairs that lose",
        Castor,
        CastorParameters.parse,
        group=FIRST,
        choose="jobs leave devices half idle",
    ),
    "cotenant": PolicyEntry(
        "weighs sharing, preempting and waiting by what all concerned lose, and does what costs least",
        Cotenant,
        CotenantParameters.parse,
        group=FIRST,
        choose="jobs have expected times and resume, and leave devices half idle",
    ),
    "castor-cost": PolicyEntry(
        "as castor, but weighs what the newcomer gains against what its partners lose and its real wait",
        CastorCost,
        ColocationParameters.parse,
        group=SHARE,
        choose="waits are long, and castor shares too rarely",
    ),
    "sjf-ffs": PolicyEntry(
        "shortest first; shares the first devices that have the memory, whatever it costs",
        SjfFfs,
        ColocationParameters.parse,
        group=SHARE,
        choose="sharing at any price is to be compared with",
    ),
    "lucid": PolicyEntry(
        "puts two jobs of equal width together if each keeps its devices little enough busy (Lucid)",
        Lucid,
        LucidParameters.parse,
        group=SHARE,
        choose="a simple rule of utilisation is to be compared with",
    ),
    "pcs": PolicyEntry(
        "classes by size share the devices by weight; between speed and predictions that hold (PCS)",
        _pcs,
        PcsParameters.parse,
        group=KEPT,
        choose="it matters more to people when their job ends than that it ends early",
    ),
    "max-min": PolicyEntry(
        "equal numbers of devices for elastic jobs; what a job cannot use goes to the others",
        ElasticMaxMin,
        ElasticParameters.parse,
        group=ELASTIC,
        choose="elastic jobs of many people are to get the same",
    ),
    "afs-l": PolicyEntry(
        "elastic jobs get devices one by one where these shorten most, short jobs first (AFS-L)",
        ElasticAfsL,
        ElasticParameters.parse,
        group=ELASTIC,
        choose="jobs are elastic (--gpus MIN-MAX) and the mean completion time counts",
    ),
    "themis": PolicyEntry(
        "elastic jobs furthest behind their fair finish time first, as many devices as they can use (Themis)",
        ElasticThemis,
        ElasticParameters.parse,
        group=ELASTIC,
        choose="jobs are elastic and nobody is to fall behind an equal share",
    ),
    "lazer": PolicyEntry(
        "as srtf, but a preemption is put off by a time that is learned from your load (Lazer)",
        Lazer,
        LazerParameters.parse,
        group=PREEMPT,
        choose="loading and saving are slow against jobs' lengths, as with large models",
    ),
    "yarn-cs": PolicyEntry(
        "two classes: hp first, preempts the newest spot jobs; by arrival, and whoever fits passes",
        YarnCs,
        ClassParameters.parse,
        group=CLASSES,
        choose="the simplest rule for two classes is to be compared with",
    ),
    "fgd": PolicyEntry(
        "two classes; leaves the least splinters of free devices; by arrival, and whoever fits passes (FGD)",
        Fgd,
        ClassParameters.parse,
        group=CLASSES,
        choose="gangs wait though enough devices are free, scattered over hosts",
    ),
    "lyra": PolicyEntry(
        "two classes: whole hosts are lent to spot jobs, the shortest first, and whoever fits passes",
        Lyra,
        ClassParameters.parse,
        group=CLASSES,
        choose="hp jobs are services that come and go by whole hosts (Lyra)",
    ),
    "chronus": PolicyEntry(
        "two classes: spot jobs give way when a lease is over; by arrival, and whoever fits passes",
        Chronus,
        ChronusParameters.parse,
        group=CLASSES,
        choose="spot jobs must be sure of five minutes at a time (Chronus)",
    ),
    **{
        name: PolicyEntry(
            about,
            partial(_gfs, name),
            partial(GfsParameters.parse, name),
            group=CLASSES,
            choose=choose,
        )
        for name, (about, choose) in _OF_GFS.items()
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
    """The policy without options: a roll-out asks it thousands of times, and what an option takes each time
    is more than what it changes of when jobs end."""
    own = {each: value for each, value in parameters.items() if name not in OURS or each not in OPTIONS}
    return make_or_stand_in(name, own)
