"""The search for PCS's trade-offs: its space, its course whoever evaluates it, and what people see of it."""

import importlib.util
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.cli.main import main
from cotenant.controller.papers.pcs import WfqConfig, published_named
from cotenant.controller.papers.pcs.preferences import (
    JobWindow,
    Objective,
    SearchSpace,
    find_front,
    parse_objectives,
)
from cotenant.controller.papers.pcs.preferences.search import (
    CLASSES_MAX,
    Found,
    Point,
    front_of,
    thresholds,
    weights,
)
from cotenant.controller.sim import Cluster, Scenario, open_trace, scenario
from cotenant.controller.training import evaluator
from tests.building.limits import within_s

UNIT = st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4)


@settings(max_examples=60)
@given(sizes=st.lists(st.floats(1.0, 1e8), min_size=2, max_size=60), unit=UNIT)
def test_every_point_is_a_valid_configuration(sizes: list[float], unit: list[float]) -> None:
    space = SearchSpace.make(sizes)
    config = space.config(space.point(unit))
    assert 1 <= len(config.weights) <= CLASSES_MAX
    assert sum(config.weights) == pytest.approx(1.0)
    assert min(config.weights) >= 1e-3 / 1.01


def test_a_class_holds_sizes_that_vary_no_more_than_allowed() -> None:
    sizes = sorted(np.random.default_rng(3).lognormal(8.0, 2.0, 400).tolist())
    for variation in (0.1, 0.5, 2.0):
        ends = [0.0, *thresholds(sizes, variation), float("inf")]
        for low, high in pairwise(ends):
            inside = np.array([size for size in sizes if low < size <= high])
            assert np.var(inside) / np.mean(inside) ** 2 <= variation + 1e-9


def test_the_job_that_overflows_a_class_opens_the_next_one() -> None:
    assert thresholds([1.0, 1.0, 1.0, 100.0, 100.0, 5000.0], 0.5) == [1.0, 100.0]
    assert thresholds([5.0, 5.0, 5.0], 0.05) == []


def test_weights_fall_or_rise_and_never_vanish() -> None:
    assert weights(3, 0.0) == pytest.approx((1 / 3,) * 3)
    assert weights(8, 3.0)[-1] == pytest.approx(1e-3, rel=0.01)
    assert weights(2, -1.0) == pytest.approx((0.26894, 0.73106), abs=1e-4)


def test_a_front_holds_what_nothing_beats() -> None:
    point = Point(1.0, 0.0, 0.5, 0.1)
    found = [Found(point, values) for values in ((3.0, 1.0), (1.0, 3.0), (2.0, 2.0), (2.0, 2.5), (1.0, 3.0))]
    assert [each.values for each in front_of(found)] == [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]


@pytest.mark.parametrize("text", ["speed", "jct:median", "jct:p100", "error:99", ""])
def test_an_objective_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"metric|percentile"):
        Objective.parse(text)


def test_one_objective_is_traded_against_nothing() -> None:
    for text in ("jct", "error,error:mean"):
        with pytest.raises(ValueError, match="two"):
            parse_objectives(text)


def windows(jobs: int) -> list[JobWindow]:
    """The first so many jobs, and so many after them."""
    asked_for = Scenario(trace="philly/ed69ec", pairs="none", hosts=1, gpus_per_host=4)
    workload = scenario.workload_of(asked_for, open_trace(asked_for.trace), None, 0)
    parts = [workload.take(np.arange(first, first + jobs)) for first in (0, jobs)]
    return [JobWindow(part, asked_for.cluster, 0.1) for part in parts]


def test_half_of_the_jobs_ask_and_an_end_is_wrong_only_if_later_jobs_come_first() -> None:
    """One device. Nobody passes the long job under fifo; under srsf the last one does."""
    (jobs, _), two_s = windows(4), np.array([0.0, 2.0, 4.0, 6.0])
    lengths_s = np.array([1000.0, 500.0, 9000.0, 10.0])
    workload = replace(
        jobs.workload, submit_s=two_s, duration_s=lengths_s, expected_s=lengths_s, gpus=np.ones(4, np.int32)
    )
    window = JobWindow(workload, Cluster(hosts=1, gpus_per_host=1), 0.5)
    fifo, srsf = window.measure("fifo"), window.measure("srsf")
    assert fifo["error"] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert len(srsf["error"]) == 2 and srsf["error"][0] > 0.0 and srsf["error"][1] == pytest.approx(0.0)
    assert all(len(run[name]) == 4 for run in (fifo, srsf) for name in ("jct", "unfairness"))
    assert fifo["unfairness"].min() >= 0.0
    assert window.sizes_gpu_s == lengths_s.tolist()


def test_a_search_tells_how_far_it_is_and_ends_with_a_front() -> None:
    pytest.importorskip("pymoo", reason="the search needs pymoo (extra pcs)")
    (train, test), told = windows(20), list[int]()
    objectives = parse_objectives("jct,error:p99")
    with evaluator("processes", workers=1) as evaluate:
        value = find_front(
            train,
            test,
            objectives,
            evaluate,
            evaluations=180,
            seed=5,
            tell=lambda found: told.append(len(found)),
        )
    assert told == list(range(1, 181))
    points = [tuple(point["train"].values()) for point in value["front"]]
    assert points == sorted(points)
    assert value["beside"][0]["policy"] == "fifo"
    assert value["beside"][0]["test"]["error:p99"] == pytest.approx(0.0, abs=1e-9)


def front_of_a_program(words: str) -> list[dict[str, object]]:
    """In a process of its own, whose helpers end with it."""
    run = "import sys; from cotenant.controller.cli.main import main; sys.exit(main(sys.argv[1:]))"
    small = f"{SMALL} --train-jobs 15 --test-jobs 15 --asked 0.1"
    given = f"{small} --evaluations 72 --seed 5 -o json {words}".split()
    said = subprocess.run(
        [sys.executable, "-c", run, *given], capture_output=True, text=True, timeout=within_s(60.0)
    )
    assert said.returncode == 0, said.stderr
    found: list[dict[str, object]] = json.loads(said.stdout)["front"]
    return found


def test_who_evaluates_does_not_change_what_is_found() -> None:
    """One process, two of them, and a cluster of dask's on this machine."""
    pytest.importorskip("pymoo", reason="the search needs pymoo (extra pcs)")
    pytest.importorskip("distributed", reason="dask.distributed is not installed")
    alone = front_of_a_program("--workers 1")
    assert front_of_a_program("--workers 2") == alone
    assert front_of_a_program("--backend dask --workers 1") == alone


SMALL = "policy tune pcs philly/ed69ec --hosts 1 --gpus-per-host 4"


def test_the_front_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pymoo", reason="the search needs pymoo (extra pcs)")
    words = f"{SMALL} --train-jobs 40 --test-jobs 40 --evaluations 8 --workers 1"
    assert main(f"{words} -o json".split()) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == "pcs-front/1"
    assert value["front"][0]["train"].keys() == {"jct:mean", "error:mean"}
    assert isinstance(published_named(value, value["front"][0]["name"]), WfqConfig)
    assert main(words.split()) == 0
    assert "judged on the 40 after them" in capsys.readouterr().out
    assert main(f"{words} -o svg".split()) == 0
    assert ElementTree.fromstring(capsys.readouterr().out).tag.endswith("svg")
    assert main(f"{words} --objectives jct:mean".split()) == 2
    assert "two objectives" in capsys.readouterr().err


def test_a_cluster_whose_library_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("ray is installed")
    words = f"{SMALL} --train-jobs 10 --test-jobs 10 --evaluations 8 --backend ray"
    assert main(words.split()) == 1
    assert "--backend ray needs ray, which is not installed: pip install ray" in capsys.readouterr().err


def test_a_file_that_is_no_configuration_is_not_taken(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text('{"class_thresholds": [1, 2]}')
    assert main(["policy", "set", "pcs", f"config={tmp_path / 'none.json'}"]) == 3
    assert main(["policy", "set", "pcs", f"config={tmp_path / 'bad.json'}"]) == 2
    assert "no configuration of PCS" in capsys.readouterr().err
