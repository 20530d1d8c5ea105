"""Whatever an author's habit is, the script is resumed bit for bit or refused with the line in the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.checkpoint.habits import MODULES, NAMES, STOPS, Kind, outcome_of
from tests.checkpoint.ranks import Warm, one_warm_process

EXACT: Final = "exact"
EXPECTED: Final[dict[str, str]] = {
    "accumulation": EXACT,
    "accumulation_over_epochs": EXACT,
    "active_learning": "in the last epoch",
    "add_param_group": "line 19: the optimizer gets more parameters in the loop",
    "amp_switch": EXACT,
    "augment_default_rng": EXACT,
    "augment_numpy": EXACT,
    "augment_random": EXACT,
    "average_meter": EXACT,
    "averaged_model": EXACT,
    "batches_per_epoch": EXACT,
    "best_in_memory": EXACT,
    "best_not_copied": "best_weights['0.weight'] is no copy: it has the memory of a model",
    "blitz": EXACT,
    "bound_append": EXACT,
    "callbacks": EXACT,
    "char_steps": EXACT,
    "class_attribute": EXACT,
    "closure_logger": EXACT,
    "collate_object": EXACT,
    "confusion_matrix": EXACT,
    "context_manager": EXACT,
    "counted": EXACT,
    "csv_log": "line 21: a file is begun anew here, which the loop appends to",
    "curriculum": "its loader.dataset is another Subset than before the loop",
    "dataclass_config": EXACT,
    "dataset_cache": EXACT,
    "dataset_generator": EXACT,
    "dataset_shuffle": "line 41: loader.dataset.batches[0] is another list than before the loop",
    "decorated_main": EXACT,
    "default_argument": EXACT,
    "device_loader": EXACT,
    "distillation": EXACT,
    "dqn": EXACT,
    "dropout_schedule": EXACT,
    "early_stopping": EXACT,
    "early_stopping_class": EXACT,
    "ema_by_hand": EXACT,
    "ema_dict": EXACT,
    "endless_loader": "line 24: the loop around backward() is none over range(...)",
    "eval_mode_stays": EXACT,
    "except_everything": "line 28: it catches its own exit",
    "fit_twice": "line 37: fit() trains more than once",
    "forward_hook": EXACT,
    "freeze_then_finetune": "there is more than one training loop (lines 22 and 34)",
    "gan": EXACT,
    "gan_zip_enumerate": "line 20: the loop over batches is not over a loader with a name",
    "generator_per_epoch": EXACT,
    "global_step": EXACT,
    "gpt_steps": EXACT,
    "grad_scaler": EXACT,
    "hard_samples": "line 26: weights changes in the loop, and its loader draws by it",
    "history_alias": EXACT,
    "imported_engine/train": "its loop may be in another module",
    "imported_metrics/train": EXACT,
    "index_slices": EXACT,
    "islice_loader": "line 17: the loop over batches is not over a loader with a name",
    "keyboard_interrupt": EXACT,
    "kfold": "line 42: train_fold() trains more than once",
    "kfold_inline": "line 15: within this loop there are two around each step",
    "lambda_log": EXACT,
    "lambda_warmup": EXACT,
    "lbfgs": EXACT,
    "loader_generator": EXACT,
    "log_file": "line 29: log is a TextIOWrapper, whose state only the script knows",
    "logging_module": EXACT,
    "loss_module_state": EXACT,
    "loss_tensors": EXACT,
    "losses_in_function": EXACT,
    "lr_decay_at_epoch_start": EXACT,
    "lr_finder": "it trains before the loop that would be saved",
    "manual_sgd": "no optimizer has made a step",
    "max_steps_break": EXACT,
    "meter_in_loop": EXACT,
    "metric_object": EXACT,
    "minibatches": "line 29: the loop over batches is not over a loader with a name",
    "mnist_options": EXACT,
    "moco_queue": EXACT,
    "module_counter": EXACT,
    "nested_function": EXACT,
    "next_iter": "line 21: data_iter is a _SingleProcessDataLoaderIter, whose state only the scrip",
    "one_cycle": EXACT,
    "optimizer_anew": "line 17: SGD is made in the loop",
    "options_as_state": EXACT,
    "own_resume": EXACT,
    "own_resume_forgets": EXACT,
    "partial_log": EXACT,
    "persistent_workers": "persistent data loader workers keep random state that cannot be saved",
    "phases": "line 26: within this loop there are two around each step",
    "plateau": EXACT,
    "policy_snapshot": EXACT,
    "prefetcher": "line 27: its batches may be read ahead",
    "progress_bar": EXACT,
    "progress_bar_enumerate": "line 14: the loop over batches is over no DataLoader",
    "progress_bar_plain": EXACT,
    "pseudo_labels": EXACT,
    "queue_function": EXACT,
    "quickstart": EXACT,
    "reinforce": EXACT,
    "resampled_subset": "its loader.dataset.datasets[1] is another Subset than before the loop",
    "rewind": "line 17: a file is written before the epoch's batches, and would be again",
    "rng_per_epoch": EXACT,
    "rnn_hidden": EXACT,
    "running_loss": EXACT,
    "sample_weights": EXACT,
    "sampler_with_epoch": EXACT,
    "scheduler_anew": "line 26: CosineAnnealingLR is made in the loop",
    "scheduler_first": EXACT,
    "scheduler_restart": "line 30: CosineAnnealingLR is made in the loop",
    "seed_per_epoch": EXACT,
    "semi_supervised": "line 25: the loop over batches is not over a loader with a name",
    "shuffled_list": "line 20: the loop over batches is over no DataLoader",
    "skipped_batches": EXACT,
    "stateful_lstm": EXACT,
    "stats_in_function": "line 15: the loop around backward() is none over range(...)",
    "stream": EXACT,
    "swa": EXACT,
    "teacher_copied": "line 30: a copy is made in the loop, of what may be a module",
    "temperature": EXACT,
    "tied_weights": EXACT,
    "timing": EXACT,
    "trainer_fit": EXACT,
    "trainer_state": EXACT,
    "trainer_subclass": EXACT,
    "trange_epochs": "line 16: the loop around backward() is none over range(...)",
    "transform_object": EXACT,
    "two_optimizers": EXACT,
    "unfreeze_at_epoch": EXACT,
    "unseeded": EXACT,
    "walrus": EXACT,
    "warmup_by_hand": EXACT,
    "weighted_sampler": EXACT,
    "wgan_gp": EXACT,
    "while_max_steps": "line 34: the loop around backward() is none over range(...)",
    "while_true": "line 20: the loop around backward() is none over range(...)",
    "workers": EXACT,
    "zero_grad_forgotten": "line 17: nothing in this loop clears the gradients",
}
"""By script: exact, or the piece of the refusal that says what is in the way."""
SEEDS: Final[dict[str, int]] = {"active_learning": 2}
"""Of stops that have found something; the others have seed 0. `python -m tests.checkpoint.habits --seed N`
tries others."""


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    yield from one_warm_process(MODULES)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_exact_or_refused_and_never_silently_different(warm: Warm, tmp_path: Path, name: str) -> None:
    seed = SEEDS.get(name, 0)
    outcome = outcome_of(warm, tmp_path, name, seed)
    assert outcome.kind in (Kind.EXACT, Kind.REFUSED, Kind.UNHEARD), f"{name} with seed {seed}: {outcome}"
    expected = EXPECTED.get(name, "an entry in EXPECTED")
    if outcome.kind is Kind.EXACT:
        assert (expected, len(outcome.stops)) == (EXACT, STOPS)
    else:
        assert expected in outcome.said


def test_every_expectation_is_about_a_script() -> None:
    assert (EXPECTED.keys() | SEEDS.keys()) - set(NAMES) == set()
