"""What of a command makes it the kind of job that it is: not where it writes, its seed, or what it is called.

Rule: only options that cannot change how long a step takes or how much memory it needs are left out, by the
names below; a name that could also mean something else (`--name`, `--save`, `-o`) stays. A sweep over seeds
is then one kind, and learns from its first task.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

OUTPUTS: Final = """
    out out_dir out_file out_path outdir outfile output output_dir output_file output_folder output_path
    save_dir save_folder save_path save_to savedir results results_dir results_path result_dir
    log_dir log_file log_path logdir logfile logging_dir tensorboard_dir tb_dir tb_log_dir wandb_dir
    checkpoint_dir checkpoints_dir ckpt_dir snapshot_dir snapshot_path export_dir dump_dir
    run_dir exp_dir experiment_dir work_dir default_root_dir hydra.run.dir hydra.sweep.dir hydra.sweep.subdir
"""
SEEDS: Final = "seed seeds random_seed manual_seed rng_seed data_seed torch_seed numpy_seed seed_everything"
IDS: Final = """
    run_name run_id run_tag exp_name exp_id experiment_name experiment_id job_id task_id trial_id
    wandb_name wandb_run_name wandb_run_id wandb_group wandb_tags wandb_notes hydra.job.name
"""
MEETING: Final = "master_port master_addr rdzv_id rdzv_endpoint main_process_port main_process_ip"
"""Where a launcher's workers find each other."""
LEFT_OUT: Final = frozenset(f"{OUTPUTS} {SEEDS} {IDS} {MEETING}".split())

VARIABLES: Final = frozenset((
    "EXPERIMENT_NAME", "EXP_NAME", "LOG_DIR", "MASTER_PORT", "MLFLOW_RUN_ID", "OUTPUT_DIR", "OUT_DIR",
    "PYTHONHASHSEED", "RANDOM_SEED", "RUN_ID", "RUN_NAME", "SEED", "WANDB_DIR", "WANDB_NAME", "WANDB_NOTES",
    "WANDB_RUN_GROUP", "WANDB_RUN_ID", "WANDB_TAGS",
))  # fmt: skip
"""The same, of the environment."""

_KEY: Final = re.compile(r"(?:--?|\+{1,2})?([A-Za-z_][\w.-]*)")
_NUMBER: Final = re.compile(r"-\d+(\.\d+)?")
_SHELLS: Final = ("sh", "bash", "dash", "zsh", "ksh")


def kind_words(argv: Sequence[str]) -> tuple[str, ...]:
    """The words of a command that make it the kind of job that it is, in order."""
    return tuple(_kept(argv))


def _kept(argv: Sequence[str]) -> Iterator[str]:
    words = iter(argv)
    in_shell = bool(argv) and argv[0].rpartition("/")[2] in _SHELLS
    word = next(words, None)
    while word is not None:
        following = next(words, None)
        key, is_set, _ = word.partition("=")
        if not _is_left_out(key, bare=bool(is_set)):
            yield word
        elif not is_set and following is not None and _is_value(following):
            following = next(words, None)
        if in_shell and word == "-c" and following is not None:
            following = _script(following)
        word = following


def _is_left_out(key: str, *, bare: bool) -> bool:
    """bare: `seed=1`, as hydra has it, is an option as well."""
    found = _KEY.fullmatch(key)
    if found is None or not (bare or key.startswith("--")):
        return False
    name = found[1].replace("-", "_").lower()
    return name in LEFT_OUT or name.rpartition(".")[2] in LEFT_OUT


def _is_value(word: str) -> bool:
    return not word.startswith("-") or _NUMBER.fullmatch(word) is not None


def _script(text: str) -> str:
    """A line for a shell. One that is no plain list of words stays as it is."""
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    kept = kind_words(words)
    return text if len(kept) == len(words) else shlex.join(kept)
