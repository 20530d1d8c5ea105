"""The training of `rltune`: epochs of rollouts and updates, the best by validation, and whether it is used.

Rule: a training that is stopped goes on where it was: after each epoch its whole state is on disk, beside the
model. The model that is kept is the one of the best epoch on the validation windows, epoch 0 (as it began)
included; it is active only if it is no worse there than the better of `sjf` and `ssf`.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from cotenant.controller.papers.rltune import ACTOR, Layer, ModelCard, OrderModel, Validation
from cotenant.controller.system import files
from cotenant.controller.trace_names import NAMES
from experiments.rltune.training.options import (
    PRESETS,
    EpochTold,
    OnEpoch,
    Part,
    Preset,
    TraceParts,
    TrainingOptions,
    ratio,
)
from experiments.rltune.training.rollouts import (
    Choices,
    Rollout,
    Workers,
    judge,
    roll,
    workers,
)

if TYPE_CHECKING:
    from experiments.rltune.training.ppo import ActorCritic

TRIES_MAX: Final = 4
"""Windows drawn for each that is wanted: those in which nothing is to be gained are dropped."""
LICENCE: Final = "CC-BY-4.0 (Microsoft Philly traces)"


class Baselines:
    """What the orders by size reach on the validation windows."""

    def __init__(self, parts: Sequence[Part], options: TrainingOptions, pool: Workers) -> None:
        asked = [(part, None, name, options.metric) for name in ("sjf", "ssf") for part in parts]
        found = pool.map(judge, asked)
        self.parts, self._options = parts, options
        self.sjf, self.ssf = found[: len(parts)], found[len(parts) :]

    def ratio(self, own: Sequence[float]) -> float:
        """The ratio of `own` over the base's totals."""
        return ratio(own, self.sjf if self._options.base == "sjf" else self.ssf)

    def model(
        self,
        policy: Any,
        columns: Sequence[str],
        layers: tuple[Layer, ...],
        own: Sequence[float],
        *,
        curve: Sequence[float],
        cpu_s: float,
    ) -> OrderModel:
        """Makes a model with its card; the model is active if it is no worse than the better of the two."""
        options, sjf, ssf = self._options, sum(self.sjf), sum(self.ssf)
        card = ModelCard(
            traces=options.traces,
            licence=LICENCE if set(options.traces) <= set(NAMES) else "that of the traces",
            metric=options.metric,
            base=options.base,
            preset=options.preset,
            seed=options.seed,
            cluster=f"{options.hosts} x {options.gpus_per_host} GPUs"
            + ("" if options.load is None else f", offered load {options.load:g}"),
            estimates=options.estimates,
            epochs=max(len(curve) - 1, 0),
            cpu_s=round(cpu_s, 1),
            version=version("cotenant"),
            curve=tuple(round(each, 5) for each in curve),
            validation=Validation(windows=len(self.parts), own=sum(own), sjf=sjf, ssf=ssf),
        )
        return OrderModel(
            policy=policy,
            columns=tuple(columns),
            layers=layers,
            card=card,
            window=options.window_jobs,
            active=sum(own) <= min(sjf, ssf),
            fallback="sjf" if sjf <= ssf else "ssf",
        )


def draft(options: TrainingOptions, layers: tuple[Layer, ...]) -> OrderModel:
    """A model under way: as good as any, for rollouts."""
    nothing = Validation(windows=0, own=0.0, sjf=0.0, ssf=0.0)
    card = ModelCard(
        traces=options.traces,
        licence="",
        metric=options.metric,
        base=options.base,
        preset=options.preset,
        seed=options.seed,
        cluster="",
        estimates=options.estimates,
        epochs=0,
        cpu_s=0.0,
        version="",
        validation=nothing,
        curve=(),
    )
    return OrderModel(
        policy="rltune",
        columns=ACTOR,
        layers=layers,
        card=card,
        window=options.window_jobs,
        active=True,
        fallback="sjf",
    )


def train_rltune(
    options: TrainingOptions, state: Path, tell: OnEpoch, presets: Mapping[str, Preset] = PRESETS
) -> OrderModel:
    """The best model of all epochs so far; with the same options and state file a training goes on.

    Raises:
        TraceProblem: a trace is not there, or too short.
        NoBackend: there is nothing that runs the rollouts.
    """
    from experiments.rltune.training.ppo import ActorCritic

    preset, began_s, cpu_s = presets[options.preset], time.monotonic(), time.process_time()
    traces = [TraceParts.open_for_training(name, options) for name in options.traces]
    with workers(options) as pool:
        chosen = [part for each in traces for part in each.choose(options.validation_windows)]
        baselines = Baselines(chosen, options, pool)
        learner = ActorCritic(preset, options.window_jobs, options.seed)
        run = _Run(options, baselines, learner, pool)
        run.resume(state)
        if not run.curve:
            run.validate(0.0, tell)
        for epoch in range(len(run.curve), options.epochs + 1):
            if options.minutes is not None and time.monotonic() - began_s > 60.0 * options.minutes:
                break
            kl = run.epoch(epoch, traces, preset)
            run.validate(kl, tell)
            run.keep(state, pool.cpu_s() - cpu_s)
        return baselines.model(
            "rltune",
            ACTOR,
            run.best_layers,
            run.best_own,
            curve=run.curve,
            cpu_s=run.cpu_before_s + pool.cpu_s() - cpu_s,
        )


class _Kept(msgspec.Struct, kw_only=True):
    """What is on disk between epochs, the networks' own state as torch writes it."""

    key: str
    curve: list[float]
    best_layers: tuple[Layer, ...]
    best_own: list[float]
    cpu_s: float
    networks: bytes


class _Run:
    """The state of a training."""

    def __init__(
        self, options: TrainingOptions, baselines: Baselines, learner: ActorCritic, pool: Workers
    ) -> None:
        self._options, self._baselines, self._learner, self._pool = options, baselines, learner, pool
        self.curve: list[float] = []
        self.best_layers: tuple[Layer, ...] = ()
        self.best_own: Sequence[float] = ()
        self.cpu_before_s = 0.0

    def epoch(self, epoch: int, traces: Sequence[TraceParts], preset: Preset) -> float:
        """Rollouts and one update."""
        options, generator = self._options, np.random.default_rng((self._options.seed, epoch))
        parts: list[Part] = []
        bases: list[float] = []
        for _ in range(TRIES_MAX):
            drawn = [
                traces[int(generator.integers(len(traces)))].draw(generator) for _ in range(preset.windows)
            ]
            asked = [
                (part._replace(warm=0), None, name, options.metric)
                for name in ("fifo", options.base)
                for part in drawn
            ]
            found = self._pool.map(judge, asked)
            for part, fifo, base in zip(drawn, found[: len(drawn)], found[len(drawn) :], strict=True):
                if abs(fifo - base) > 1e-9 * max(fifo, base) and len(parts) < preset.windows:
                    parts.append(part)
                    bases.append(base)
            if len(parts) >= preset.windows:
                break
        model, critic = draft(options, self._learner.layers()), self._learner.critic_arrays()
        each = -(-preset.decisions // max(len(parts), 1))
        calls = [
            (
                Rollout(
                    part,
                    model,
                    critic,
                    options.metric,
                    base,
                    preset,
                    each,
                    options.seed * 1_000_003 + epoch * 1_009 + at,
                ),
            )
            for at, (part, base) in enumerate(zip(parts, bases, strict=True))
        ]
        rolled = [choices for choices in self._pool.map(roll, calls) if choices is not None]
        if not rolled:
            return 0.0
        return self._learner.improve(
            Choices(*(np.concatenate(column) for column in zip(*rolled, strict=True)))
        )

    def validate(self, kl: float, tell: OnEpoch) -> None:
        layers = self._learner.layers()
        model = draft(self._options, layers)
        own = self._pool.map(
            judge, [(part, model, "", self._options.metric) for part in self._baselines.parts]
        )
        self.curve.append(self._baselines.ratio(own))
        if self.curve[-1] <= min(self.curve):
            self.best_layers, self.best_own = layers, own
        epoch = len(self.curve) - 1
        tell(EpochTold(epoch, self._options.epochs, self.curve[-1], min(self.curve), kl))

    def keep(self, state: Path, spent_s: float) -> None:
        from experiments.rltune.training import ppo

        networks = io.BytesIO()
        ppo.save_state(networks, self._learner.state())
        kept = _Kept(
            key=self._options.key,
            curve=self.curve,
            best_layers=self.best_layers,
            best_own=list(self.best_own),
            cpu_s=self.cpu_before_s + spent_s,
            networks=networks.getvalue(),
        )
        files.write_output(state, msgspec.msgpack.encode(kept))

    def resume(self, state: Path) -> None:
        """Where a training with the same options stopped; another one's file is left alone until the first
        epoch replaces it."""
        from experiments.rltune.training import ppo

        try:
            kept = msgspec.msgpack.decode(state.read_bytes(), type=_Kept)
        except (OSError, msgspec.DecodeError):
            return
        if kept.key != self._options.key:
            return
        self.curve, self.best_layers, self.best_own = kept.curve, kept.best_layers, kept.best_own
        self.cpu_before_s = kept.cpu_s
        self._learner.go_on(ppo.load_state(io.BytesIO(kept.networks)))
