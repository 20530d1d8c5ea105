"""Trainers of others: the real ones where they are installed; what is refused."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cotenant.checkpoint.zerocode import hugging_face
from cotenant.checkpoint.zerocode.script_rank import Watched
from cotenant.controller.cli.jobs.verify import verify
from tests.checkpoint.habits import MODULES, STOPS, Kind, outcome_of
from tests.checkpoint.ranks import Warm, one_warm_process

SCRIPTS = Path(__file__).parent / "scripts"
OPTIONS = {"auto_find_batch_size": False, "n_gpu": 1}


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    installed = filter(importlib.util.find_spec, ("transformers", "accelerate"))
    yield from one_warm_process((*MODULES, *(f"{name}.{INSIDE[name]}" for name in installed)))


INSIDE = {"transformers": "trainer", "accelerate": "data_loader"}


def need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -r tests/requirements-frameworks.txt")


def test_a_stopped_trainer_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout, in the middle of an epoch of three steps."""
    need("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shown = verify([sys.executable, str(SCRIPTS / "hf_trainer.py"), "9"], steps=10)
    assert (shown.ok, shown.exact, shown.reason) == (True, True, "")


@pytest.mark.parametrize(
    ("name", "package", "loader"),
    [
        ("counters", "transformers", ""),
        ("evaluating", "transformers", ""),
        ("accelerated", "accelerate", ""),
        ("accelerated", "accelerate", "use_seedable_sampler"),
        ("accelerated", "accelerate", "dispatch_batches"),
    ],
)
def test_what_a_trainer_has_counted_and_logged_is_that_of_a_run_that_nobody_stops(
    warm: Warm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    name: str,
    package: str,
    loader: str,
) -> None:
    need(package)
    monkeypatch.setenv("LOADER", loader)
    outcome = outcome_of(warm, tmp_path, name, seed, SCRIPTS / "trainers")
    assert (outcome.kind, len(outcome.stops)) == (Kind.EXACT, STOPS), outcome
    assert any(outcome.proven) or max(outcome.stops) - min(outcome.stops) < STOPS, outcome


@pytest.mark.parametrize(
    ("name", "package", "loader", "reason"),
    [
        ("opaque", "transformers", "", "line 33: `trainer.hash` is a _hashlib.HASH, into which nobody can"),
        ("accelerated", "torchdata", "use_stateful_dataloader", "a loader gives its batches by a torchdata."),
        (
            "lightning_folds",
            "lightning",
            "",
            "no loop of the script calls backward() or step()",
        ),
    ],
)
def test_what_cannot_be_taken_up_is_refused_before_the_first_stop(
    warm: Warm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    package: str,
    loader: str,
    reason: str,
) -> None:
    need(package)
    monkeypatch.setenv("LOADER", loader)
    outcome = outcome_of(warm, tmp_path, name, scripts=SCRIPTS / "trainers")
    assert (outcome.kind, outcome.stops) == (Kind.REFUSED, ()), outcome
    assert reason in outcome.said


def test_a_trainer_that_did_not_get_everything_back_makes_no_step(warm: Warm, tmp_path: Path) -> None:
    need("transformers")
    outcome = outcome_of(warm, tmp_path, "forgetful", scripts=SCRIPTS / "trainers")
    assert outcome.kind is Kind.LOST, outcome
    assert "came out otherwise than in the attempt that was left: `listing.steps` was" in outcome.said


class Trainer:
    """As much of one as is looked at before it begins."""

    def __init__(self, **changes: Any) -> None:
        self.is_deepspeed_enabled = self.is_fsdp_enabled = False
        self.train_dataset: Any = [1, 2]
        self.args = SimpleNamespace(**{**OPTIONS, **changes.pop("args", {})})
        self.__dict__.update(changes)

    def train(self, resume_from_checkpoint: Any = None) -> str:
        return f"trained from {resume_from_checkpoint}"


class Reports:
    """Hears what becomes of a Trainer."""

    leaves_only, obstacle = False, ""

    def __init__(self) -> None:
        self.told: list[tuple[Any, str]] = []

    def driven(self, rank: Any, reason: str) -> None:
        self.told.append((rank, reason))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"is_deepspeed_enabled": True}, "DeepSpeed"),
        ({"args": {"auto_find_batch_size": True}}, "it may begin again with other batches"),
        ({"args": {"n_gpu": 2}}, "DataParallel"),
        ({"train_dataset": iter(())}, "does not say its length"),
        ({}, "begins from a checkpoint folder of its own"),
    ],
    ids=["deepspeed", "other batches", "several devices", "no length", "a folder"],
)
def test_what_could_not_go_on_is_refused_with_the_line_and_trains_as_ever(
    changes: dict[str, Any], why: str
) -> None:
    class Refused(Trainer):
        pass

    module = types.SimpleNamespace(Trainer=Refused)
    reports = Reports()

    def when_imported(name: str, callback: Callable[[Any], None]) -> None:
        assert name == "transformers.trainer"
        callback(module)

    hugging_face.watch(when_imported, reports, Watched())
    assert Refused(**changes).train("there") == "trained from there"
    ((rank, reason),) = reports.told
    assert rank is None
    assert why in reason
    assert reason.startswith(f"line {Path(__file__).read_text().splitlines().index(CALL) + 1}: ")


CALL = '    assert Refused(**changes).train("there") == "trained from there"'
