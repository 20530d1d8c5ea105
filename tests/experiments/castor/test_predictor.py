"""`python -m experiments.castor.predictor`: what it prints, in which form, with which exit code."""

from __future__ import annotations

import builtins
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cotenant.controller.cli.main import main
from cotenant.controller.models.interference import model_file
from experiments.castor.interference import training
from experiments.castor.interference.pair_rows import read
from experiments.castor.predictor import PROGRAM, interference
from tests.controller.invented_pairs import invented
from tests.controller.sim.journals import write_measured_pairs

if TYPE_CHECKING:
    from tests.experiments.conftest import Run

FIELDS = {"schema", "better_than_mean", "pairs", "rmse", "mae", "mean_prediction_rmse", "features"}


@pytest.fixture
def predictor(runs: Callable[[Any, str], Run]) -> Run:
    return runs(interference, PROGRAM)


QUICK = ({**training.GRID[3], "trees": 25.0, "eta": 0.3},)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained once, on invented pairs."""
    pytest.importorskip("xgboost")
    pairs = read(invented(1, models=5).encode(), "known.csv", "ours")
    path = tmp_path_factory.mktemp("model") / "model.json"
    path.write_bytes(model_file.write(training.train([pairs], 1, candidates=QUICK)))
    return path


def write(path: Path, text: str) -> str:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def test_train_writes_the_same_file_again(predictor: Run, at_home: Path) -> None:
    pytest.importorskip("xgboost")
    one = write(at_home / "one.csv", invented(1, models=4))
    two = write(at_home / "two.csv.gz", invented(2, models=4))
    words = ("train", "--pairs", one, two, "--seed", "7")
    first = predictor(*words, "--out", "a.json", "--licence", "ours")
    assert first.code == 0
    assert "trained on          one.csv" in first.out
    assert "licence of one.csv: ours; the model is under the same terms" in first.err
    again = predictor(*words, "--out", "b.json", "--licence", "ours", "-o", "json")
    value = json.loads(again.out)
    assert (value["schema"], value["seed"]) == ("predictor/1", 7)
    assert [file["name"] for file in value["files"]] == ["one.csv", "two.csv.gz"]
    assert (at_home / "a.json").read_bytes() == (at_home / "b.json").read_bytes()
    assert sorted(path.name for path in at_home.glob(".*json*")) == [], "nothing half written is left"


def test_evaluate_keeps_its_contract(predictor: Run, at_home: Path, model: Path) -> None:
    pairs = write(at_home / "others.csv", invented(9, models=6))
    result = predictor("evaluate", str(model), "--pairs", pairs, "-o", "json")
    assert result.code == 0
    value = json.loads(result.out)
    assert set(value) == FIELDS
    assert (value["schema"], value["pairs"]) == ("predictor-eval/1", 171)
    assert value["rmse"][0] < value["mean_prediction_rmse"][0]
    assert value["features"][0] == "self.gpu_util_pct"
    assert (
        "note: 15 pairs of models were in the training (ash+ash, ash+birch, ash+cedar, ash+elm, ...)"
        in result.err
    )


def test_the_mean_is_that_of_the_training_not_of_the_file(predictor: Run, at_home: Path, model: Path) -> None:
    rows = "model1,model2,xi1,xi2,solo1_gpu_util_pct,solo2_gpu_util_pct\nx,y,5.0,7.0,30,40\n"
    pairs = write(at_home / "one.csv", rows)
    value = json.loads(predictor("evaluate", str(model), "--pairs", pairs, "--json").out)
    mean = json.loads(model.read_bytes())["mean_xi"]
    assert value["mean_prediction_rmse"] == pytest.approx([5.0 - mean[0], 7.0 - mean[1]])


def test_missing_columns_are_missing_values_and_said(predictor: Run, at_home: Path, model: Path) -> None:
    pairs = write(at_home / "bare.csv", "xi1,xi2,astrology\n1.5,1.2,7\n1.1,,8\n")
    result = predictor("evaluate", str(model), "--pairs", pairs, "-o", "json")
    assert result.code == 0
    assert json.loads(result.out)["pairs"] == 2
    assert "missing in the file, and taken as missing values: gpu_util_pct, mem_util_pct, batch" in result.err
    assert "columns without a meaning here: astrology" in result.err


def test_evaluate_is_a_table_for_people(predictor: Run, at_home: Path, model: Path) -> None:
    pairs = write(at_home / "others.csv", invented(9, models=6))
    result = predictor("evaluate", str(model), "--pairs", pairs)
    count, head, *rows = result.out.splitlines()
    assert count == "171 pairs"
    assert head.split() == ["XI", "JOB", "1", "JOB", "2"]
    assert [row.split("  ")[0] for row in rows[:3]] == [
        "model, RMSE", "model, MAE", "mean of the training, RMSE",
    ]  # fmt: skip
    assert "lie within the model's margins" in rows[3]
    assert rows[4].startswith("on these pairs better than the mean: RMSE 0.")


def test_a_bad_line_is_named(predictor: Run, at_home: Path, model: Path) -> None:
    pairs = write(at_home / "bad.csv", "xi1,xi2\n1.5,1.2\n1.5,much\n")
    for words in (("evaluate", str(model), "--pairs", pairs), ("train", "--pairs", pairs, "--out", "m.json")):
        refused(predictor(*words), 2, "bad.csv: line 3: xi2 must be a number")
    assert not (at_home / "m.json").exists()


def test_files_that_are_not_there_or_no_models(predictor: Run, at_home: Path, model: Path) -> None:
    pairs = write(at_home / "p.csv", invented(1, models=2))
    words = ("evaluate",)
    refused(predictor(*words, "none.json", "--pairs", pairs), 3, "none.json: there is no such file")
    refused(predictor(*words, str(model), "--pairs", "none.csv"), 3, "none.csv: there is no such file")
    refused(
        predictor(*words, pairs, "--pairs", pairs),
        2,
        "not a model; `python -m experiments.castor.predictor train` makes one",
    )
    refused(predictor("train", "--pairs", pairs, "--out", "no/where/m.json"), 1, "is no folder")
    assert predictor("train", "--pairs", pairs).code == 2, "--out is needed"


def test_too_few_pairs_say_what_to_do(predictor: Run, at_home: Path) -> None:
    pytest.importorskip("xgboost")
    pairs = write(at_home / "p.csv", invented(1, models=1))
    result = predictor("train", "--pairs", pairs, "--out", "m.json")
    refused(result, 1, "training needs at least 20 rows of 3 pairs; `cotenant predictor export`")


def test_without_xgboost_it_says_what_to_install(
    predictor: Run, at_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "xgboost":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    pairs = write(at_home / "p.csv", invented(1))
    result = predictor("train", "--pairs", pairs, "--out", "m.json")
    refused(result, 1, 'pip install ".[predict]"')


def refused(result: Any, code: int, text: str) -> None:
    assert result.code == code
    assert result.out == ""
    assert len(result.err.splitlines()) == 1
    assert text in result.err


def test_a_model_that_is_no_better_than_the_mean_says_so(predictor: Run, at_home: Path, model: Path) -> None:
    pairs = write(at_home / "others.csv", "xi1,xi2\n1.5,1.5\n1.2,1.9\n1.1,2.0\n")
    judged = predictor("evaluate", str(model), "--pairs", pairs)
    assert "on these pairs no better than the mean (RMSE" in judged.out


CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "binary": b"\xff\xfe\x00" * 500,
    "truncated": b'{"a": ',
    "packed": gzip.compress(b"a" * 5000, mtime=0)[:30] + b"\0" * 9,
}
READS = {
    "a model to judge": ("evaluate", "odd.json", "--pairs", "pairs.csv"),
    "pairs": ("train", "--pairs", "odd.csv", "--out", "model.json"),
    "packed pairs": ("train", "--pairs", "odd.csv.gz", "--out", "model.json"),
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("words", READS.values(), ids=READS.keys())
def test_what_holds_something_else_is_exit_code_2(
    words: tuple[str, ...], content: str, predictor: Run, at_home: Path
) -> None:
    (name,) = (word for word in words if word.startswith("odd"))
    (at_home / name).write_bytes(CONTENTS[content])
    refused(predictor(*words), 2, name)


@pytest.mark.parametrize("words", READS.values(), ids=READS.keys())
def test_a_folder_is_no_file_and_what_is_not_there_is_exit_code_3(
    words: tuple[str, ...], predictor: Run, at_home: Path
) -> None:
    (name,) = (word for word in words if word.startswith("odd"))
    refused(predictor(*words), 3, name)
    (at_home / name).mkdir()
    refused(predictor(*words), 2, name)


def test_what_a_cluster_exports_is_read(at_home: Path) -> None:
    folder = write_measured_pairs(at_home / "state")
    assert main(["predictor", "export", "pairs.csv", "--journal", str(folder)]) == 0
    pairs = read((at_home / "pairs.csv").read_bytes(), "pairs.csv")
    assert pairs.ignored == ()
    assert pairs.groups == ("python a.py --lr #+python b.py --lr #",)
    assert pairs.names == ("gpu_util_pct", "FP32A_mean", "FP32A_variance")
    by_util = {
        round(float(util)): xi
        for util, xi in zip((pairs.first[0, 0], pairs.second[0, 0]), pairs.xi[0], strict=True)
    }
    assert by_util == {30: 1.25, 60: 1.5}
