"""`cotenant predictor`: what it prints, in which form, with which exit code."""

from __future__ import annotations

import builtins
import gzip
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cotenant.controller.cli.offline import predictor
from cotenant.controller.models.interference import model_file
from tests.controller.invented_pairs import invented

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant

FIELDS = {"schema", "better_than_mean", "pairs", "rmse", "mae", "mean_prediction_rmse", "features"}


def quick(training: Any) -> Any:
    return ({**training.GRID[3], "trees": 25.0, "eta": 0.3},)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained once, on invented pairs."""
    pytest.importorskip("xgboost")
    from cotenant.controller.training import interference, read

    pairs = read(invented(1, models=5).encode(), "known.csv", "ours")
    path = tmp_path_factory.mktemp("model") / "model.json"
    path.write_bytes(model_file.write(interference.train([pairs], 1, candidates=quick(interference))))
    return path


def write(path: Path, text: str) -> str:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def test_train_writes_the_same_file_again(cotenant: Cotenant, at_home: Path) -> None:
    pytest.importorskip("xgboost")
    one = write(at_home / "one.csv", invented(1, models=4))
    two = write(at_home / "two.csv.gz", invented(2, models=4))
    words = ("predictor", "train", "--pairs", one, two, "--seed", "7")
    first = cotenant(*words, "--out", "a.json", "--licence", "ours")
    assert first.code == 0
    assert "trained on          one.csv" in first.out
    assert "licence of one.csv: ours; the model is under the same terms" in first.err
    again = cotenant(*words, "--out", "b.json", "--licence", "ours", "-o", "json")
    value = json.loads(again.out)
    assert (value["schema"], value["seed"]) == ("predictor/1", 7)
    assert [file["name"] for file in value["files"]] == ["one.csv", "two.csv.gz"]
    assert (at_home / "a.json").read_bytes() == (at_home / "b.json").read_bytes()
    assert sorted(path.name for path in at_home.glob(".*json*")) == [], "nothing half written is left"


def test_evaluate_keeps_its_contract(cotenant: Cotenant, at_home: Path, model: Path) -> None:
    pairs = write(at_home / "others.csv", invented(9, models=6))
    result = cotenant("predictor", "evaluate", str(model), "--pairs", pairs, "-o", "json")
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


def test_the_mean_is_that_of_the_training_not_of_the_file(
    cotenant: Cotenant, at_home: Path, model: Path
) -> None:
    rows = "model1,model2,xi1,xi2,solo1_gpu_util_pct,solo2_gpu_util_pct\nx,y,5.0,7.0,30,40\n"
    pairs = write(at_home / "one.csv", rows)
    value = json.loads(cotenant("predictor", "evaluate", str(model), "--pairs", pairs, "--json").out)
    mean = json.loads(cotenant("predictor", "show", str(model), "--json").out)["mean_xi"]
    assert value["mean_prediction_rmse"] == pytest.approx([5.0 - mean[0], 7.0 - mean[1]])


def test_missing_columns_are_missing_values_and_said(cotenant: Cotenant, at_home: Path, model: Path) -> None:
    pairs = write(at_home / "bare.csv", "xi1,xi2,astrology\n1.5,1.2,7\n1.1,,8\n")
    result = cotenant("predictor", "evaluate", str(model), "--pairs", pairs, "-o", "json")
    assert result.code == 0
    assert json.loads(result.out)["pairs"] == 2
    assert "missing in the file, and taken as missing values: gpu_util_pct, mem_util_pct, batch" in result.err
    assert "columns without a meaning here: astrology" in result.err


def test_evaluate_is_a_table_for_people(cotenant: Cotenant, at_home: Path, model: Path) -> None:
    pairs = write(at_home / "others.csv", invented(9, models=6))
    result = cotenant("predictor", "evaluate", str(model), "--pairs", pairs)
    count, head, *rows = result.out.splitlines()
    assert count == "171 pairs"
    assert head.split() == ["XI", "JOB", "1", "JOB", "2"]
    assert [row.split("  ")[0] for row in rows[:3]] == [
        "model, RMSE", "model, MAE", "mean of the training, RMSE",
    ]  # fmt: skip
    assert "lie within the model's margins" in rows[3]
    assert rows[4].startswith("on these pairs better than the mean: RMSE 0.")


def test_a_model_that_is_no_better_than_the_mean_says_so(
    cotenant: Cotenant, at_home: Path, model: Path
) -> None:
    """The bundled pairs once gave .924 against .923 of the mean, without a word."""
    useless = json.loads(model.read_bytes())
    useless["cross_validation"] |= {"rmse": [0.924, 0.924], "mean_prediction_rmse": [0.923, 0.923]}
    path = write(at_home / "useless.json", json.dumps(useless))
    shown = cotenant("predictor", "show", path)
    assert (
        "verdict             no better than the mean (RMSE 0.924 against 0.923): do not use it" in shown.out
    )
    assert json.loads(cotenant("predictor", "show", path, "--json").out)["better_than_mean"] is False
    assert json.loads(cotenant("predictor", "show", str(model), "--json").out)["better_than_mean"] is True
    pairs = write(at_home / "others.csv", "xi1,xi2\n1.5,1.5\n1.2,1.9\n1.1,2.0\n")
    judged = cotenant("predictor", "evaluate", str(model), "--pairs", pairs)
    assert "on these pairs no better than the mean (RMSE" in judged.out


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


def test_a_bad_line_is_named(cotenant: Cotenant, at_home: Path, model: Path) -> None:
    pairs = write(at_home / "bad.csv", "xi1,xi2\n1.5,1.2\n1.5,much\n")
    for words in (("evaluate", str(model), "--pairs", pairs), ("train", "--pairs", pairs, "--out", "m.json")):
        refused(cotenant("predictor", *words), 2, "bad.csv: line 3: xi2 must be a number")
    assert not (at_home / "m.json").exists()


def test_files_that_are_not_there_or_no_models(cotenant: Cotenant, at_home: Path, model: Path) -> None:
    pairs = write(at_home / "p.csv", invented(1, models=2))
    words = ("predictor", "evaluate")
    refused(cotenant(*words, "none.json", "--pairs", pairs), 3, "none.json: there is no such file")
    refused(cotenant(*words, str(model), "--pairs", "none.csv"), 3, "none.csv: there is no such file")
    refused(cotenant(*words, pairs, "--pairs", pairs), 2, "not a model; `cotenant predictor train` makes one")
    refused(cotenant("predictor", "train", "--pairs", pairs, "--out", "no/where/m.json"), 1, "is no folder")
    assert cotenant("predictor", "train", "--pairs", pairs).code == 2, "--out is needed"


def test_too_few_pairs_say_what_to_do(cotenant: Cotenant, at_home: Path) -> None:
    pytest.importorskip("xgboost")
    pairs = write(at_home / "p.csv", invented(1, models=1))
    result = cotenant("predictor", "train", "--pairs", pairs, "--out", "m.json")
    refused(result, 1, "training needs at least 20 rows of 3 pairs; `cotenant predictor export`")


def test_without_xgboost_it_says_what_to_install(
    cotenant: Cotenant, at_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "xgboost":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    pairs = write(at_home / "p.csv", invented(1))
    result = cotenant("predictor", "train", "--pairs", pairs, "--out", "m.json")
    refused(result, 1, 'pip install ".[predict]"')


# --- This cluster's own pairs ------------------------------------------------------------------------


def journals() -> Any:
    place = Path(__file__).parents[1] / "sim" / "journals.py"
    spec = importlib.util.spec_from_file_location("predictor_journals", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_export_writes_what_the_journal_has_measured(cotenant: Cotenant, at_home: Path) -> None:
    from cotenant.controller.domain import JobId, Launch
    from cotenant.controller.domain import events as ev
    from cotenant.controller.performance import Indicators, IndicatorStats, Profile

    told = journals()

    def profile(mean: float) -> Profile:
        fp32 = IndicatorStats(mean=mean, variance=0.01, source="gpm")
        return Profile(duty_cycle=mean, indicators=Indicators(FP32A=fp32))

    story = [
        (0.0, told.joined(3)),
        *(
            (
                1.0,
                told.arrived(
                    job, expected_s=100.0, launch=Launch(argv=("python", f"/x/{job}.py", "--lr", "0.1"))
                ),
            )
            for job in ("a", "b", "c")
        ),
        (2.0, ev.ProfileLearned(job_id=JobId("a"), profile=profile(0.3))),
        (3.0, ev.ProfileLearned(job_id=JobId("b"), profile=profile(0.6))),
        (4.0, ev.PairObserved(first=JobId("a"), second=JobId("b"), first_xi=1.25, second_xi=1.5)),
        (5.0, ev.PairObserved(first=JobId("a"), second=JobId("c"), first_xi=1.2, second_xi=1.1)),
    ]
    folder = told.write_journal(at_home / "state", story)
    result = cotenant("predictor", "export", "pairs.csv", "--journal", str(folder))
    assert (result.code, result.out) == (0, "")
    assert "pairs.csv: 1 pair; 1 pair without a profile of both left out" in result.err
    from cotenant.controller.training import read

    pairs = read((at_home / "pairs.csv").read_bytes(), "pairs.csv")
    assert pairs.ignored == ()
    assert pairs.groups == ("python a.py --lr #+python b.py --lr #",)
    assert pairs.names == ("gpu_util_pct", "FP32A_mean", "FP32A_variance")
    by_util = {
        round(float(util)): xi
        for util, xi in zip((pairs.first[0, 0], pairs.second[0, 0]), pairs.xi[0], strict=True)
    }
    assert by_util == {30: 1.25, 60: 1.5}


def test_export_without_pairs_or_journal_says_so(cotenant: Cotenant, at_home: Path) -> None:
    told = journals()
    folder = told.write_journal(at_home / "state", told.TWO_IN_TURN)
    refused(cotenant("predictor", "export", "p.csv", "--journal", str(folder)), 1, "no pair has been")
    refused(cotenant("predictor", "export", "p.csv", "--journal", str(at_home)), 3, "there is no journal")
