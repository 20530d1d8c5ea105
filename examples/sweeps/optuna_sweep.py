"""Optuna proposes values, cotenant runs each trial as a job, and a pruner ends the jobs that fall behind.

Start it with `python optuna_sweep.py` while `cotenant up` runs; it needs `pip install optuna cloudpickle`.
"""

import time

import optuna

import cotenant

LOOK_S = 1.0


def train(rate: float, epochs: int = 8) -> None:
    """Stands for your training: all that counts here is the line after each epoch."""
    weight = 5.0
    for epoch in range(1, epochs + 1):
        for _ in range(20):
            weight -= rate * 2 * weight
        print(f"epoch={epoch} loss={weight**2:.6f}", flush=True)
        time.sleep(1.0)


def run_trial(trial: optuna.Trial) -> float:
    """One trial is one job, which is cancelled when the pruner, an error or Ctrl-C ends the trial."""
    rate = trial.suggest_float("rate", 1e-3, 1.0, log=True)
    job = cotenant.submit(train, rate, name=f"trial-{trial.number}")
    seen = 0
    try:
        while not job.done():
            time.sleep(LOOK_S)
            told = job.metrics
            if told.get("epoch", 0) > seen:
                seen = int(told["epoch"])
                trial.report(told["loss"], seen)
                if trial.should_prune():
                    raise optuna.TrialPruned(f"job {job.id} at epoch {seen}")
        job.result()  # What went wrong in it is raised here.
        return job.metrics["loss"]
    finally:
        job.cancel()


if __name__ == "__main__":
    # This pruner needs no value of every epoch; some are over before anybody looks.
    study = optuna.create_study(pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1))
    study.optimize(run_trial, n_trials=8, n_jobs=2)
    print("best:", study.best_params, study.best_value)
