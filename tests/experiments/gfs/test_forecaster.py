"""`python -m experiments.gfs.forecaster`: what it prints, in which form, with which exit code."""

from __future__ import annotations

import builtins
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cotenant.controller.papers.gfs.forecast import Demand
from cotenant.controller.policies import registry
from experiments.gfs.forecaster import PROGRAM, forecaster
from tests.controller.demands import rhythmic

if TYPE_CHECKING:
    from tests.experiments.conftest import Run

FIELDS = [
    "model", "mae", "rmse", "mape", "pinball_90", "pinball_95", "coverage_90", "coverage_95", "train_cpu_s",
]  # fmt: skip
QUICK = ("--models", "last-value,last-change,seasonal-naive")


def written(path: Path, demand: Demand, *, extra: str = "") -> str:
    head = ["hour", *(f"gpus_active_{name}" for name in demand.names), *([extra] if extra else [])]
    lines = [",".join(head)]
    for place, row in enumerate(demand.values.T.tolist()):
        cells = ["" if math.isnan(value) else f"{value:.3f}" for value in row]
        lines.append(",".join([str(place), *cells, *(["x"] if extra else [])]))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def run(runs: Callable[[Any, str], Run]) -> Run:
    return runs(forecaster, PROGRAM)


@pytest.fixture
def file(at_home: Path) -> str:
    return written(at_home / "demand.csv", rhythmic(500, 1, missing=0.01), extra="note")


def test_evaluate_keeps_its_contract(run: Run, file: str) -> None:
    pytest.importorskip("xgboost")
    words = ("evaluate", file, "--horizon-h", "2", "--test-last-h", "100", "-o", "json")
    result = run(*words, "--models", "last-value,xgboost-cqr")
    assert result.code == 0
    value = json.loads(result.out)
    assert value["schema"] == "forecast-evaluation/1"
    assert [list(row) for row in value["models"]] == [FIELDS, FIELDS]
    assert [row["model"] for row in value["models"]] == ["xgboost-cqr", "last-value"], "the default first"
    assert (value["horizon_h"], value["test_last_h"], value["hours"]) == (2, 100, 500)
    assert value["series"] == ["team-0", "team-1"]
    assert "columns without a meaning here: note" in result.err
    assert "hours with something missing" in result.err
    again = json.loads(run(*words, "--models", "last-value,xgboost-cqr").out)
    for row in (*value["models"], *again["models"]):
        row.pop("train_cpu_s")
    assert again == value, "one seed, one result"


def test_a_table_for_people(run: Run, file: str) -> None:
    result = run("evaluate", file, "--test-last-h", "100", *QUICK)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "2 series (team-0, team-1); 1 to 4 hours ahead from 97 origins; errors in GPUs"
    assert re.split("  +", lines[2])[:3] == ["MODEL", "MAE, GPUS", "MAE / LAST"]
    assert [line.split()[0] for line in lines[3:6]] == ["last-change", "last-value", "seasonal-naive"]
    assert lines[-1].startswith("last-change is off by ")
    assert "than the last value; " in lines[-1]


@pytest.mark.parametrize(
    ("aggregation", "says"),
    [("pool", "the total of 2 series;"), ("paper", "the total of 2 series, quantiles summed over them;")],
)
def test_the_total(run: Run, file: str, aggregation: str, says: str) -> None:
    words = ("evaluate", file, "--test-last-h", "100", *QUICK, "--aggregation", aggregation)
    assert run(*words).out.startswith(says)


WRONG = {
    "no such file": (("nowhere.csv",), 3, "nowhere.csv: there is no such file"),
    "too short": (
        ("F", "--test-last-h", "300"),
        1,
        "without the last 300 there are 200 known ones to train on",
    ),
    "no such model": (("F", "--models", "deep-ar"), 2, "there is no model 'deep-ar'; did you mean deepar?"),
    "no such column": (("F", "--columns", "gpus_active_team"), 2, "has no column 'gpus_active_team'"),
    "no date": (("F", "--start", "tomorrow"), 2, "--start 'tomorrow' is no date; write it as 2024-10-01"),
    "no dates": (("F", "--holidays", "CN"), 2, "the demand has no dates: a column `time`, or --start DATE"),
    "horizon": (("F", "--horizon-h", "25"), 2, "--horizon-h must be at most 24"),
}


@pytest.mark.parametrize(("words", "code", "says"), WRONG.values(), ids=WRONG.keys())
def test_what_goes_wrong_is_one_line(
    run: Run, file: str, words: tuple[str, ...], code: int, says: str
) -> None:
    result = run("evaluate", *(file if word == "F" else word for word in words))
    assert result.code == code
    last = result.err.splitlines()[-1]
    assert last.startswith("error[")
    assert says in last


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"hour,gpus_active_a\n0,1\n1,-2\n", "odd.csv:3: column gpus_active_a: '-2' is negative"),
        *((odd, "odd.csv") for odd in (b"", b"\xff\xfe\x00" * 500, b'{"a": ', b"\x1f\x8b\x08\0" * 9)),
    ],
)
def test_a_bad_file_is_told_with_its_place(run: Run, at_home: Path, content: bytes, says: str) -> None:
    (at_home / "odd.csv").write_bytes(content)
    result = run("evaluate", "odd.csv")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(f"error[usage]: {says}")


def test_without_its_library_a_model_is_left_out_and_told(
    run: Run, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = builtins.__import__

    def without(name: str, *more: Any, **others: Any) -> Any:
        if name == "xgboost":
            raise ImportError(name)
        return found(name, *more, **others)

    monkeypatch.setattr(builtins, "__import__", without)
    words = ("evaluate", file, "--test-last-h", "100", "--models", "xgboost-cqr,last-value")
    result = run(*words, "-o", "json")
    assert result.code == 0
    assert [row["model"] for row in json.loads(result.out)["models"]] == ["last-value"]
    assert 'xgboost-cqr is not judged: it needs xgboost: pip install ".[gfs]"' in result.err


def test_holidays_are_taken_where_dates_are_known(run: Run, file: str) -> None:
    pytest.importorskip("holidays")
    words = ("evaluate", file, "--test-last-h", "100", *QUICK, "--start", "2024-09-20")
    assert run(*words, "--holidays", "DE-BY").code == 0
    result = run(*words, "--holidays", "Atlantis")
    assert result.code == 2
    assert "--holidays Atlantis: there are no holidays of 'Atlantis'" in result.err


# --- `train` --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "library"), [("xgboost-cqr", "xgboost"), ("orglinear", "torch")])
def test_train_writes_a_model_with_its_card(
    run: Run, file: str, at_home: Path, model: str, library: str
) -> None:
    pytest.importorskip(library)
    words = ("train", file, "--model", model, "--horizon-h", "2", "--test-last-h", "100")
    result = run(*words, "--out", "one.json", "--licence", "ours", "-o", "json")
    assert result.code == 0, result.err
    value = json.loads(result.out)
    assert (value["schema"], value["model"], value["hours"]) == ("forecast-training/1", model, 500)
    assert value["series"] == ["team-0", "team-1", "total"]
    card = value["card"]
    assert (card["file"], card["licence"], card["test_last_h"]) == ("demand.csv", "ours", 100)
    assert 0 < card["scores"]["mae"] < card["last_value"]["mae"]
    assert registry.make("gfs", {"model": str(at_home / "one.json")}).name == "gfs"


def test_one_seed_gives_one_file(run: Run, file: str, at_home: Path) -> None:
    """Of the model that is trained soonest; that trees are the same is in `training/test_forecast.py`."""
    pytest.importorskip("torch")
    words = ("train", file, "--model", "orglinear", "--horizon-h", "2", "--test-last-h", "100")
    for out in ("one.json", "two.json"):
        assert run(*words, "--out", out).code == 0
    assert (at_home / "one.json").read_bytes() == (at_home / "two.json").read_bytes()


WRONG_TRAININGS = {
    "no out": (("F",), 2, "--out"),
    "no folder": (("F", "--out", "nowhere/m.json"), 1, "nowhere is no folder"),
    "too short": (("F", "--out", "m.json", "--test-last-h", "300"), 1, "there are 200 known ones to train"),
    "no such file": (("nowhere.csv", "--out", "m.json"), 3, "nowhere.csv: there is no such file"),
    "not a model": (("F", "--out", "m.json", "--model", "last-value"), 2, "--model"),
}


@pytest.mark.parametrize(("words", "code", "says"), WRONG_TRAININGS.values(), ids=WRONG_TRAININGS.keys())
def test_what_goes_wrong_with_a_training_is_one_line(
    run: Run, file: str, at_home: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    result = run("train", *(file if word == "F" else word for word in words))
    assert result.code == code
    last = result.err.splitlines()[-1]
    assert last.startswith("error[")
    assert says in last
    assert not (at_home / "m.json").exists()
