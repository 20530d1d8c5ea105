"""Training of learned orders: what is drawn, updates, going on where it stopped, other places to run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cotenant.controller.papers.rltune import SJF_WEIGHTS
from cotenant.controller.sim import TraceProblem
from experiments.rltune.training import (
    PRESETS,
    EpochTold,
    NoBackend,
    TrainingMetric,
    TrainingOptions,
    train_rltune,
    train_scorer,
)
from experiments.rltune.training.evolution import evolution
from experiments.rltune.training.options import Part, TraceParts
from experiments.rltune.training.rollouts import Choices, Rollout, judge, roll, workers
from experiments.rltune.training.train import draft

SMALL = TrainingOptions(
    traces=("philly/ee9e8c",), load=0.7, epochs=1, hosts=2, window_jobs=48, validation_windows=2, workers=1
)


@pytest.fixture(scope="module")
def parts() -> TraceParts:
    return TraceParts("philly/ee9e8c", SMALL)


@pytest.fixture(scope="module")
def choices(parts: TraceParts) -> Choices:
    found = rolled(parts.window_at(2000))
    assert found is not None
    return found


def rolled(part: Part, seed: int = 0) -> Choices | None:
    from experiments.rltune.training.ppo import ActorCritic

    learner = ActorCritic(PRESETS["paper"], SMALL.window_jobs, 0)
    model, base = draft(SMALL, learner.layers()), judge(part, None, "sjf", "bsld")
    return roll(Rollout(part, model, learner.critic_arrays(), "bsld", base, PRESETS["warm"], 40, seed))


def test_training_never_looks_at_the_last_tenth(parts: TraceParts) -> None:
    jobs = len(parts.whole.workload)
    chosen = parts.choose(3)
    generator = np.random.default_rng(0)
    drawn = [parts.draw(generator) for _ in range(50)]
    assert all(len(part.task.workload) - part.warm == SMALL.window_jobs for part in (*chosen, *drawn))
    row = {job_id: number for number, job_id in enumerate(parts.whole.workload.job_ids)}
    newest = [max(row[job_id] for job_id in part.task.workload.job_ids) for part in (*chosen, *drawn)]
    assert max(newest[: len(chosen)]) < 0.9 * jobs
    assert max(newest[len(chosen) :]) < 0.8 * jobs


def test_a_trace_too_short_to_train_on_still_judges() -> None:
    wide = SMALL._replace(window_jobs=600)
    assert len(TraceParts("philly/ee9e8c", wide).window_at(0).task.workload) == 600
    with pytest.raises(TraceProblem, match="too few to train on"):
        TraceParts.open_for_training("philly/ee9e8c", wide)


def test_what_is_drawn_was_allowed_and_as_likely_as_it_says(choices: Choices) -> None:
    assert len(choices.chosen) > 5
    rows = np.arange(len(choices.chosen))
    assert choices.allowed[rows, choices.chosen].all()
    assert (choices.allowed.sum(axis=1) > 1).all(), "a decision without a rival says nothing"
    assert (choices.log_probability < 0.0).all()


def test_the_networks_compute_what_the_policy_computed(choices: Choices) -> None:
    """torch and numpy agree about every drawn decision."""
    import torch

    from experiments.rltune.training.ppo import ActorCritic

    learner = ActorCritic(PRESETS["paper"], SMALL.window_jobs, 0)
    with torch.no_grad():
        again = learner._log_probability(
            torch.from_numpy(choices.actor).double(),
            torch.from_numpy(choices.allowed),
            torch.from_numpy(choices.chosen),
        )
    np.testing.assert_allclose(again.numpy(), choices.log_probability, atol=1e-5)


def test_one_seed_draws_the_same_and_another_does_not(parts: TraceParts, choices: Choices) -> None:
    again, other = rolled(parts.window_at(2000)), rolled(parts.window_at(2000), seed=1)
    assert again is not None and other is not None
    for one, two in zip(choices, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert len(other.chosen) != len(choices.chosen) or not np.array_equal(other.chosen, choices.chosen)


def test_an_update_makes_what_paid_more_likely(choices: Choices) -> None:
    import torch

    from experiments.rltune.training.ppo import ActorCritic

    learner = ActorCritic(msgspec.structs.replace(PRESETS["paper"], kl_max=1.0), SMALL.window_jobs, 0)
    advantage = np.where(np.arange(len(choices.chosen)) % 2 == 0, 1.0, -1.0)
    asked = choices._replace(advantage=advantage)
    columns = (
        torch.from_numpy(choices.actor).double(),
        torch.from_numpy(choices.allowed),
        torch.from_numpy(choices.chosen),
    )
    learner.improve(asked)
    with torch.no_grad():
        moved = learner._log_probability(*columns).numpy() - choices.log_probability
    assert moved[advantage > 0].mean() > moved[advantage < 0].mean()


def test_a_warm_start_is_sjf(parts: TraceParts) -> None:
    from experiments.rltune.training.ppo import ActorCritic

    model = draft(SMALL, ActorCritic(PRESETS["warm"], SMALL.window_jobs, 0).layers())
    part = parts.window_at(2000)
    own = judge(part, model, "", "bsld")
    sjf, fifo = (judge(part, None, name, "bsld") for name in ("sjf", "fifo"))
    assert own == pytest.approx(sjf, rel=0.02)
    assert own < 0.8 * fifo


def test_a_training_that_was_stopped_goes_on_to_the_same_model(tmp_path: Path) -> None:
    told: list[EpochTold] = []
    small = msgspec.structs.replace(PRESETS["warm"], warm_start=False, windows=2, decisions=20)
    presets: dict[str, Any] = {"warm": small}
    whole = train_rltune(SMALL._replace(epochs=2), tmp_path / "whole", told.append, presets)
    train_rltune(SMALL._replace(epochs=1), tmp_path / "parts", told.append, presets)
    rest = train_rltune(SMALL._replace(epochs=2), tmp_path / "parts", told.append, presets)
    assert [each.epoch for each in told] == [0, 1, 2, 0, 1, 2]
    assert rest.layers == whole.layers
    assert rest.card.curve == whole.card.curve and len(rest.card.curve) == 3
    assert rest.active == (
        rest.card.validation.own <= min(rest.card.validation.sjf, rest.card.validation.ssf)
    )


def test_scorer_begins_as_sjf_and_is_never_chosen_worse() -> None:
    told: list[EpochTold] = []
    model = train_scorer(SMALL._replace(epochs=1), told.append)
    assert told[0].validation == pytest.approx(1.0)
    assert model.card.validation.own <= model.card.validation.sjf
    assert len(model.layers[0].weights) == len(SJF_WEIGHTS)


def test_the_search_finds_a_minimum() -> None:
    wanted = np.array([0.3, -1.2, 2.0])
    search = evolution(
        np.zeros(3), 0.5, lambda points: [float(((p - wanted) ** 2 * (1, 10, 100)).sum()) for p in points],
        np.random.default_rng(0),
    )  # fmt: skip
    found: Iterator[Any] = (next(search) for _ in range(60))
    *_, last = found
    np.testing.assert_allclose(last, wanted, atol=1e-2)


def test_a_cluster_of_dasks_gives_what_this_process_gives(parts: TraceParts) -> None:
    distributed = pytest.importorskip(
        "distributed", reason="dask.distributed is not installed: pip install distributed"
    )
    metric: TrainingMetric = "bsld"
    calls = [(parts.window_at(begin), None, "sjf", metric) for begin in (500, 2000)]
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        there = SMALL._replace(backend="dask", address=cluster.scheduler_address)
        with workers(there) as pool:
            assert pool.map(judge, calls) == [judge(*call) for call in calls]


def test_a_cluster_that_is_not_there_is_said() -> None:
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("ray is installed")
    on_ray = SMALL._replace(backend="ray")
    with pytest.raises(NoBackend, match="ray, which is not installed"), workers(on_ray):
        pass


def test_a_policy_loads_no_torch() -> None:
    code = (
        "import sys; from cotenant.controller.policies import registry; "
        "registry.make('rltune', {}); registry.make('scorer', {}); "
        "import experiments.rltune.training; print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "False"
