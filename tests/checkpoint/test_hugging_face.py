"""Hugging Face's Trainer under `--checkpoint auto`: the real one where it is installed; what is refused."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cotenant.checkpoint.zerocode import hugging_face
from cotenant.controller.cli.jobs.verify import verify

SCRIPT = Path(__file__).parent / "scripts" / "hf_trainer.py"
OPTIONS = {"ignore_data_skip": False, "auto_find_batch_size": False, "n_gpu": 1}


def test_a_stopped_trainer_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout, in the middle of an epoch of three steps."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed: pip install -r tests/requirements-frameworks.txt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shown = verify([sys.executable, str(SCRIPT), "9"], steps=10)
    assert (shown.ok, shown.exact, shown.reason) == (True, True, "")


class Trainer:
    """As much of one as is looked at before it begins."""

    def __init__(self, **changes: Any) -> None:
        self.is_deepspeed_enabled = self.is_fsdp_enabled = False
        self.train_dataset: Any = [1, 2]
        self.args = SimpleNamespace(**{**OPTIONS, **changes.pop("args", {})})
        self.__dict__.update(changes)

    def train(self, resume_from_checkpoint: Any = None) -> str:
        return f"trained from {resume_from_checkpoint}"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"is_deepspeed_enabled": True}, "DeepSpeed"),
        ({"args": {"ignore_data_skip": True}}, "find its place in the data"),
        ({"args": {"n_gpu": 2}}, "DataParallel"),
        ({"train_dataset": iter(())}, "does not say its length"),
    ],
    ids=["deepspeed", "skipped data", "several devices", "no length"],
)
def test_what_could_not_go_on_is_refused_with_the_line_and_trains_as_ever(
    changes: dict[str, Any], why: str
) -> None:
    class Refused(Trainer):
        pass

    module = types.SimpleNamespace(Trainer=Refused)
    told: list[tuple[Any, str]] = []

    def when_imported(name: str, callback: Callable[[Any], None]) -> None:
        assert name == "transformers.trainer"
        callback(module)

    hugging_face.watch(when_imported, lambda session, reason: told.append((session, reason)))
    assert Refused(**changes).train("there") == "trained from there"
    ((session, reason),) = told
    assert session is None
    assert why in reason
    assert reason.startswith(f"line {Path(__file__).read_text().splitlines().index(CALL) + 1}: ")


CALL = '    assert Refused(**changes).train("there") == "trained from there"'
