"""`cotenant predictor`: what it prints, in which form, with which exit code."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cotenant.controller.cli.offline import predictor
from cotenant.controller.models.interference import model_file
from tests.controller.invented_model import a_model
from tests.controller.sim.journals import TWO_IN_TURN, write_journal, write_measured_pairs

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant


@pytest.fixture
def model(at_home: Path) -> Path:
    path = at_home / "model.json"
    path.write_bytes(model_file.write(a_model()))
    return path


def test_a_model_that_is_no_better_than_the_mean_says_so(
    cotenant: Cotenant, at_home: Path, model: Path
) -> None:
    """The bundled pairs once gave .924 against .923 of the mean, without a word."""
    useless = json.loads(model.read_bytes())
    useless["cross_validation"] |= {"rmse": [0.924, 0.924], "mean_prediction_rmse": [0.923, 0.923]}
    path = str(at_home / "useless.json")
    Path(path).write_text(json.dumps(useless))
    shown = cotenant("predictor", "show", path)
    assert (
        "verdict             no better than the mean (RMSE 0.924 against 0.923): do not use it" in shown.out
    )
    assert json.loads(cotenant("predictor", "show", path, "--json").out)["better_than_mean"] is False
    assert json.loads(cotenant("predictor", "show", str(model), "--json").out)["better_than_mean"] is True


@pytest.mark.parametrize(
    ("rmse", "mean", "is_better"),
    [
        ((0.5, 0.5), (1.0, 1.0), True),
        ((0.94, 0.94), (1.0, 1.0), True),
        ((0.96, 0.96), (1.0, 1.0), False),
        ((0.1, 1.5), (1.0, 1.0), False),
        ((0.5, None), (1.0, None), True),
        ((None, None), (None, None), False),
    ],
)
def test_better_is_by_a_twentieth_both_jobs_together(
    rmse: tuple[float | None, float | None], mean: tuple[float | None, float | None], is_better: bool
) -> None:
    assert predictor.is_better(rmse, mean) is is_better


def refused(result: Any, code: int, text: str) -> None:
    assert result.code == code
    assert result.out == ""
    assert len(result.err.splitlines()) == 1
    assert text in result.err


# --- This cluster's own pairs ------------------------------------------------------------------------


def test_export_writes_what_the_journal_has_measured(cotenant: Cotenant, at_home: Path) -> None:
    folder = write_measured_pairs(at_home / "state")
    result = cotenant("predictor", "export", "pairs.csv", "--journal", str(folder))
    assert (result.code, result.out) == (0, "")
    assert "pairs.csv: 1 pair; 1 pair without a profile of both left out" in result.err
    (row,) = csv.DictReader((at_home / "pairs.csv").read_text().splitlines())
    assert row["pair"] == "python a.py --lr #+python b.py --lr #"
    assert [row[name] for name in ("model1", "model2")] == sorted(row["pair"].split("+"), key=str)
    assert {row[f"solo{n}_gpu_util_pct"]: row[f"xi{n}"] for n in "12"} == {"30": "1.25", "60": "1.5"}
    assert {row[f"solo{n}_FP32A_mean"] for n in "12"} == {"0.3", "0.6"}


def test_export_without_pairs_or_journal_says_so(cotenant: Cotenant, at_home: Path) -> None:
    folder = write_journal(at_home / "state", TWO_IN_TURN)
    refused(cotenant("predictor", "export", "p.csv", "--journal", str(folder)), 1, "no pair has been")
    refused(cotenant("predictor", "export", "p.csv", "--journal", str(at_home)), 3, "there is no journal")
