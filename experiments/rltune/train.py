"""`python -m experiments.rltune.train`: an order learned from a trace, a model for `rltune` or `scorer`.

The policies and the reader of their models are the product's (`controller/papers/rltune`); how a model comes
about is here, as RLTune's authors have it: PPO for `rltune`, and for `scorer` an evolution strategy.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from cotenant.controller.cli.frame.command import argument, option
from cotenant.controller.cli.frame.output import FormFlag, show_one
from cotenant.controller.cli.offline.backends import AddressFlag, BackendFlag, WorkersFlag
from cotenant.controller.cli.offline.options import estimates_of
from cotenant.controller.papers.rltune import OrderModel, encode_model
from cotenant.controller.present import screen, units
from cotenant.controller.present.problem import Problem
from cotenant.controller.system.files import write_output
from cotenant.controller.whatif.choices import convert_errors
from experiments.rltune.training import (
    EpochTold,
    NoBackend,
    OnEpoch,
    TrainingOptions,
    train_rltune,
    train_scorer,
)
from experiments.shared import program

PROGRAM: Final = "python -m experiments.rltune.train"

NameArgument = Annotated[
    Literal["rltune", "scorer"], argument(metavar="rltune|scorer", help="What to train.")
]
TracesFlag = Annotated[
    str, option("--trace", metavar="A,B,...", help="Files, or bundled names (`cotenant sim trace list`).")
]
ModelFlag = Annotated[str, option("--out", metavar="FILE", help="The model.", show_default="NAME.json")]
MetricFlag = Annotated[
    Literal["wait", "bsld", "jct"], option("--metric", metavar="wait|bsld|jct", help="To be made small.")
]
BaseFlag = Annotated[
    Literal["sjf", "ssf"], option("--base", metavar="sjf|ssf", help="The order it is to improve on.")
]
PresetFlag = Annotated[
    Literal["warm", "paper"],
    option("--preset", metavar="warm|paper", help="warm: begins as sjf; paper: from nothing, as published."),
]
EpochsFlag = Annotated[int, option("--epochs", metavar="N", min=1, max=10_000, help="In all.")]
MinutesFlag = Annotated[
    float | None, option("--minutes", metavar="M", help="Begin no epoch after so long; run again to go on.")
]
HostsFlag = Annotated[int, option("--hosts", metavar="H", min=1, max=100_000, help="Hosts.")]
GpusFlag = Annotated[int, option("--gpus-per-host", metavar="G", min=1, max=1_024, help="GPUs of each host.")]
LoadFlag = Annotated[
    float | None,
    option("--load", metavar="L", help="Move arrivals so that each trace offers this much work."),
]
EstimateNoiseFlag = Annotated[
    str, option("--estimate-noise", metavar="exact|lognormal:S|limit", help="The lengths that it gets.")
]
SeedFlag = Annotated[int, option("--seed", metavar="S", min=0, help="Of everything that is drawn.")]


def train(
    name: NameArgument,
    trace: TracesFlag,
    out: ModelFlag = "",
    metric: MetricFlag = "bsld",
    base: BaseFlag = "sjf",
    preset: PresetFlag = "warm",
    epochs: EpochsFlag = 20,
    minutes: MinutesFlag = None,
    hosts: HostsFlag = 8,
    gpus_per_host: GpusFlag = 8,
    load: LoadFlag = None,
    estimate_noise: EstimateNoiseFlag = "exact",
    seed: SeedFlag = 0,
    backend: BackendFlag = "processes",
    address: AddressFlag = "",
    workers: WorkersFlag = None,
    form: FormFlag = "table",
) -> None:
    """Learn an order of waiting jobs from a trace, on simulated windows of it.

    The last tenth of each trace is never looked at; the tenth before it chooses among the epochs and
    decides whether the model is used at all: only if it is no worse there than the better of sjf and ssf. A
    training of rltune that is stopped goes on when it is asked for again. rltune needs torch to be trained,
    and neither it nor scorer needs it to be used.

    \b
    For example:
      python -m experiments.rltune.train rltune --trace philly/6c71a0,philly/ee9e8c --load 0.7 --minutes 10
      python -m experiments.rltune.train scorer --trace jobs.csv --metric wait --epochs 10 --out scorer.json
      cotenant sim compare jobs.csv --policies sjf,rltune:model=rltune.json --windows 20
    """
    path = Path(out or f"{name}.json").expanduser()
    if not path.parent.is_dir():
        raise Problem("usage", f"--out {path}: there is no folder {path.parent}", "make it first")
    if name == "scorer" and preset == "paper":
        raise Problem("usage", "presets are of rltune", "leave --preset out")
    noise, limits = estimates_of(estimate_noise=estimate_noise)
    options = TrainingOptions(
        traces=tuple(dict.fromkeys(word.strip() for word in trace.split(",") if word.strip())), metric=metric,
        base=base, preset=preset, seed=seed, epochs=epochs, hosts=hosts, gpus_per_host=gpus_per_host,
        load=load, noise=noise, limits=limits, backend=backend, workers=workers,
        address=address, minutes=minutes,
    )  # fmt: skip
    began_s = time.monotonic()
    try:
        with convert_errors():
            model = _train_model(name, options, path, lambda told: _tell(told, time.monotonic() - began_s))
    except NoBackend as error:
        raise Problem("failed", str(error), "or leave --backend out") from None
    write_output(path, encode_model(model))
    show_one(form, _model_document(model, path), str(path), model, lambda found: page(found, path))


def _train_model(name: str, options: TrainingOptions, path: Path, tell: OnEpoch) -> OrderModel:
    """Trains the model of the policy `name`. Raises Problem: torch is not installed."""
    if name == "scorer":
        return train_scorer(options, tell)
    try:
        return train_rltune(options, path.with_suffix(".training"), tell)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise Problem(
            "refused",
            "rltune is trained with torch, which is not installed",
            'pip install ".[train]" in the source folder',
        ) from None


def _tell(told: EpochTold, spent_s: float) -> None:
    """A line of the validation curve, on standard error."""
    screen.tell(
        f"epoch {told.epoch:>3}/{told.epochs}  {spent_s:6.0f} s  validation {told.validation:.4f} "
        f"of the base (best {told.best:.4f})"
    )


def _model_document(model: OrderModel, path: Path) -> dict[str, object]:
    card = msgspec.to_builtins(model.card)
    return {
        "schema": "order-training/1",
        "policy": model.policy,
        "file": str(path),
        "active": model.active,
        "fallback": model.fallback,
        "card": card,
    }


def page(model: OrderModel, path: Path) -> str:
    """The model card, for a person."""
    card = model.card
    found, better = card.validation, min(card.validation.sjf, card.validation.ssf)
    change = 100.0 * (found.own / better - 1.0) if better else 0.0
    against = f"{card.metric} {change:+.1f} % against {model.fallback} on {found.windows} validation windows"
    lines = [
        f"{path}: a model of {model.policy}, trained on {', '.join(card.traces)} ({card.licence})",
        f"  {card.cluster}, estimates {card.estimates}, seed {card.seed}, preset {card.preset}",
        f"  {units.plural(card.epochs, 'epoch')}, {card.cpu_s:.0f} s of CPU",
        f"  {against}: " + ("it is used" if model.active else f"it is not used, {model.fallback} orders"),
    ]
    if model.policy == "scorer":
        a, b, c = (row[0] for row in model.layers[0].weights)
        lines.append(f"  wait^{c:.2f} / (time^{a:.2f} x GPUs^{b:.2f}), the highest first")
    lines.append(f"  use it: cotenant sim compare TRACE --policies sjf,{model.policy}:model={path}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(program.run(train, PROGRAM))
