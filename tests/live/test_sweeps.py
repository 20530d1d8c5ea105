"""A grid of four tasks with a real controller and agent: values, links, a ranked report, restarts; and the
Optuna recipe with the real library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.person import Person, at_home

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "sweeps"
RUN = "http://127.0.0.1:5000/#/experiments/1/runs/"
TRAIN = f"""
import sys
lr, seed = float(sys.argv[2]), int(sys.argv[4])
print(f"View run crab at: {RUN}{{seed}}")
for step in range(3):
    print(f"step {{step}} loss {{lr * (3 - step) + seed / 10:.3f}} val_acc={{step / 10 - lr:.2f}}")
sys.exit(3 if (lr, seed) == (.1, 1) else 0)
"""
STUDY = """
import json, optuna, optuna_sweep
study = optuna.create_study(pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1))
for rate in (0.3, 0.001):
    study.enqueue_trial({"rate": rate})
study.optimize(optuna_sweep.run_trial, n_trials=2)
print(json.dumps([[trial.state.name, trial.value] for trial in study.trials]))
"""


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    home = tmp_path_factory.mktemp("h")
    with at_home(home, agent__devices="cpu:2", profiler__seconds="0") as someone:
        yield someone


def test_the_tasks_of_a_grid_are_shown_with_their_values_and_ranked(person: Person) -> None:
    person.write("train.py", TRAIN)
    command = ("--grid", "lr=.1,.01", "--grid", "seed=0..1", "--", "python", "train.py", "--lr", "{lr}")
    tried = person("submit", "--dry-run", *command, "--seed", "{seed}")
    assert tried.out.splitlines()[2] == "task 2: lr=.01 seed=0"
    array = person.submit(*command, "--seed", "{seed}")
    person("wait", array)
    assert "lr=.01 seed=1" in person("queue", array).out
    assert "lr=.1 seed=1" in person("history", array).out
    tasks = person.json("report", "--sweep", array)["sweep-tasks"]
    assert [(task["rank"], task["job"], task["value"]) for task in tasks] == [
        (1, f"{array}_2", 0.01), (2, f"{array}_0", 0.1), (3, f"{array}_3", 0.11), (None, f"{array}_1", 0.2),
    ]  # fmt: skip
    assert "exit code 3" in tasks[-1]["reason"]
    by_accuracy = person.json("report", "--sweep", array, "--metric", "val_acc:max")["sweep-tasks"]
    assert by_accuracy[0]["value"] == 0.19
    assert "told were: loss, val_acc" in person("report", "--sweep", array, "--metric", "f1").err
    person("report", "--sweep", array, "--since", "1h").refuses(2, "--since does not go with --sweep")
    person.kill_controller()
    person.up()
    shown = person.show(f"{array}_3")
    assert (shown["link"], shown["parameters"]) == (f"{RUN}1", {"lr": ".01", "seed": "1"})
    assert shown["loss"] == 0.11


def test_the_link_and_metrics_of_a_running_job_survive_a_restart_of_both_daemons(person: Person) -> None:
    script = f"import time; print('wandb: View run at {RUN}7 ', flush=True); print('loss 0.5', flush=True); "
    job = person.submit("--", "python", "-c", script + "time.sleep(600)")
    person.until(job, lambda found: found.get("link") and found["loss"])
    person.down()
    person.up()
    assert person.job(job)["link"] == f"{RUN}7"
    assert person.until(job, lambda found: found["loss"])["metrics"][0]["value"] == 0.5
    assert f"link          {RUN}7" in person("show", job).out
    person("cancel", job)
    person("wait", job)
    assert person.job(job)["loss"] == 0.5


def test_an_optuna_study_cancels_the_job_of_a_trial_that_its_pruner_ends(person: Person) -> None:
    person.env["PYTHONPATH"] = f"{EXAMPLES}:{person.env['PYTHONPATH']}"
    done = person.python(str(person.write("study.py", STUDY)))
    assert done.code == 0, done.err
    (good, value), (poor, _) = json.loads(done.out.splitlines()[-1])
    assert (good, poor) == ("COMPLETE", "PRUNED") and value < 1e-3
    jobs = {job["name"]: job["job"] for job in person.json("queue", "--all")["jobs"]}
    person.until_state(jobs["trial-0"], "done")
    person.until_state(jobs["trial-1"], "cancelled")
