"""The options of a training, and what its presets fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import msgspec

from cotenant.controller.training.parallel import Backend

Metric = Literal["wait", "bsld", "jct"]


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of one way to train."""

    warm_start: bool
    """The actor begins as the base order: its logits are fitted to -20 log(time) first."""
    clip: float = 0.2
    actor_rate: float
    critic_rate: float
    iterations_max: int
    """Of each network, over the decisions of an epoch."""
    kl_max: float
    """Above this divergence the actor stays as it is until the next epoch."""
    lam: float = 0.97
    windows: int
    """Of an epoch."""
    decisions: int
    """Drawn from those of an epoch."""
    dense: bool
    """Reward as time passes: minus what all waiting jobs lose meanwhile, over the base's total. Else once, at
    the end: (base - own) / max(base, own, 1)."""


PRESETS: Final[dict[str, Preset]] = {
    "warm": Preset(
        warm_start=True, actor_rate=2e-3, critic_rate=2e-3, iterations_max=20, kl_max=0.015, windows=16,
        decisions=700, dense=True,
    ),
    "paper": Preset(
        warm_start=False, actor_rate=3e-4, critic_rate=1e-3, iterations_max=80, kl_max=0.01, windows=100,
        decisions=4_000, dense=False,
    ),
}  # fmt: skip
"""`paper`: RLTune section 4, as far as it says; gamma is 1 in both."""


class TrainingOptions(NamedTuple):
    """Everything that the result depends on, the traces apart."""

    traces: tuple[str, ...]
    metric: Metric = "bsld"
    base: Literal["sjf", "ssf"] = "sjf"
    preset: str = "warm"
    seed: int = 0
    epochs: int = 20
    hosts: int = 8
    gpus_per_host: int = 8
    load: float | None = None
    """Arrivals are moved together or apart until this much work is offered; None: as in the trace."""
    noise: float = 0.0
    limits: bool = False
    window_jobs: int = 256
    validation_windows: int = 12
    """Of each trace, from the part between training and test."""
    backend: Backend = "processes"
    workers: int | None = None
    address: str = ""
    """Of a cluster that runs the rollouts; empty: one is started here."""
    minutes: float | None = None
    """No epoch begins after so long; None: all do."""

    @property
    def key(self) -> str:
        """Trainings with the same key continue each other."""
        same = self._replace(epochs=0, backend="processes", workers=None, address="", minutes=None)
        return repr(same)

    @property
    def estimates(self) -> str:
        return "limit" if self.limits else f"lognormal:{self.noise:g}" if self.noise else "exact"


class EpochTold(NamedTuple):
    """After an epoch (0: before the first)."""

    epoch: int
    epochs: int
    validation: float
    """The metric on the validation windows, over the base's; below 1 it is better."""
    best: float
    kl: float


Tell = Callable[[EpochTold], None]
