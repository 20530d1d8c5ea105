"""Which jobs are of one kind, and the profiles that are kept of kinds, so that the next job of one need not
be measured again.

Rule: only options that cannot change how long a step takes or how much memory it needs are left out of a
command's kind (where it writes, its seed, what it is called), by the names below; a name that could also mean
something else (`--name`, `--save`, `-o`) stays. A sweep over seeds is then one kind, and learns from its
first task.

Rule: a profile is used for a job of the same user with the same command, code and configuration, on the same
type of device and as many of them: `key_of` is all of that. A job that differs only in numbers that are no
sizes (`families.py`) gets the largest memory of those, with a margin, until it is measured itself. Where the
code is not known (it could not be read when the job was submitted) nothing is kept. The store is bounded; the
one that was used longest ago goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Final

import msgspec

from cotenant.controller.domain import JobId, JobSpec
from cotenant.controller.performance import Profile, part_share

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
SHELLS: Final = ("sh", "bash", "dash", "zsh", "ksh")


def kind_words(argv: Sequence[str]) -> tuple[str, ...]:
    """The words of a command that make it the kind of job that it is, in order."""
    return tuple(_kept_words(argv))


def _kept_words(argv: Sequence[str]) -> Iterator[str]:
    words = iter(argv)
    in_shell = bool(argv) and argv[0].rpartition("/")[2] in SHELLS
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
    """Whether the option `key` is left out of the kind of a job; `bare`: `seed=1`, as hydra has it, is an
    option as well."""
    found = _KEY.fullmatch(key)
    if found is None or not (bare or key.startswith("--")):
        return False
    name = found[1].replace("-", "_").lower()
    return name in LEFT_OUT or name.rpartition(".")[2] in LEFT_OUT


def _is_value(word: str) -> bool:
    return not word.startswith("-") or _NUMBER.fullmatch(word) is not None


def _script(text: str) -> str:
    """A line for a shell. One that is no plain list of words stays as it is."""
    import shlex

    try:
        words = shlex.split(text)
    except ValueError:
        return text
    kept = kind_words(words)
    return text if len(kept) == len(words) else shlex.join(kept)


PROFILES_MAX = 1000
COMMAND_CHARACTERS_MAX = 4_096
KEY_CHARACTERS = 12
"""People see and type keys."""


def base_key(spec: JobSpec, words: Sequence[str] | None = None) -> str:
    """Command, code and configuration, whatever devices it runs on; empty where the code is not known.
    `words`: in place of those of the command."""
    import hashlib

    if not spec.code_sha256:
        return ""
    launch = spec.launch
    left_out = NOT_CONFIGURATION | VARIABLES
    env = (f"{name}={value}" for name, value in sorted(launch.env.items()) if name not in left_out)
    parts = (
        spec.user,
        spec.code_sha256,
        launch.mode,
        launch.workdir,
        str(spec.batch_size),
        *(kind_words(launch.argv) if words is None else words),
        "",
        *env,
    )
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()


NOT_CONFIGURATION = frozenset((
    "COLUMNS", "DISPLAY", "HISTFILE", "HOSTNAME", "LINES", "MAIL", "OLDPWD", "PWD", "SHLVL", "SSH_AUTH_SOCK",
    "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "TERM", "TMPDIR", "WINDOWID", "XDG_RUNTIME_DIR",
    "XDG_SESSION_ID", "COTENANT_ACCUMULATION_SCHEDULE", "COTENANT_ARRAY_INDEX", "COTENANT_PROFILING",
    "SLURM_ARRAY_TASK_ID",
))  # fmt: skip
"""Variables of a shell, a session or a task, which say nothing about what is computed."""


def key_of(spec: JobSpec, hosts: int, device_type: str, words: Sequence[str] | None = None) -> str:
    """The key of one kind of job on so many devices of one type, over so many hosts; empty where the kind or
    the type is not known. `words`: in place of those of the command."""
    import hashlib

    base = base_key(spec, words)
    if not base or not device_type:
        return ""
    parts = (base, str(spec.gpus_min), str(hosts), device_type)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:KEY_CHARACTERS]


def beginning(argv: Sequence[str]) -> tuple[str, ...]:
    """Returns as much of a command as a person recognises it by: profiles outlive their jobs, and are
    many."""
    kept: list[str] = []
    left = COMMAND_CHARACTERS_MAX
    for word in argv:
        if len(word) + 1 > left:
            return (*kept, word[:left] + "...")
        kept.append(word)
        left -= len(word) + 1
    return tuple(kept)


class StoredProfile(msgspec.Struct, kw_only=True):
    """A profile that is kept, and what a person recognises it by."""

    base: str
    """`base_key`: the same for all numbers of devices."""
    user: str
    name: str
    command: tuple[str, ...]
    gpus: int
    hosts: int
    device_type: str
    batch_size: int | None
    profile: Profile
    learned_s: float
    """When, in seconds of the journal."""
    job_id: JobId
    """Which job it was measured on."""
    is_complete: bool = True
    used: int = 0
    """How many jobs have been given it."""
    numbers: str = ""
    """The key of its program with the same words and other numbers (`Family`)."""
    like: str = ""
    """`like_key`; empty: no other job is given it."""

    @property
    def is_usable(self) -> bool:
        """Whether it says enough to share the whole batch with it."""
        return self.is_complete or self.profile.knows_whole

    @property
    def memory_mib(self) -> float | None:
        """What the whole batch takes."""
        point = self.profile.point_at(1)
        return self.profile.memory_mib_peak if point is None else point.memory_mib


class Profiles(msgspec.Struct, kw_only=True):
    """All kept profiles by key, the one that was used longest ago first."""

    known: dict[str, StoredProfile] = {}
    outgrown_mib: dict[str, int] = {}
    """By `like_key`: what was planned by jobs like it for one that then needed more."""

    def alike(self, like: str) -> list[StoredProfile]:
        """The profiles of jobs that differ in numbers that are no sizes, the last used last; none where the
        batches that were seen show that the numbers do set the memory."""
        alike = [each for each in self.known.values() if each.like == like and each.is_usable] if like else []
        batches = {each.profile.batch.rows for each in alike} - {None}
        return alike if len(batches) <= 1 else []

    def note_outgrown(self, like: str, planned_mib: int) -> None:
        """One of these jobs needed more than what was planned for it by jobs like it."""
        before_mib = self.outgrown_mib.pop(like, 0)
        self.outgrown_mib[like] = max(before_mib, planned_mib)
        while len(self.outgrown_mib) > PROFILES_MAX:
            del self.outgrown_mib[next(iter(self.outgrown_mib))]

    def keep(self, key: str, known: StoredProfile) -> None:
        """Stores `known` in place of the profile before, unless `known` is not complete and the profile
        before says more."""
        before, points = self.known.get(key, known), len(known.profile.points)
        if not known.is_complete and (before.is_complete or len(before.profile.points) > points):
            return
        self.known.pop(key, None)
        self.known[key] = known
        while len(self.known) > PROFILES_MAX:
            del self.known[next(iter(self.known))]

    def part_share(self, device_type: str) -> float | None:
        """What a further part adds to a step, in steps: the median of the kinds that were measured in parts
        on this type of device; None without any."""
        found = [
            share
            for known in self.known.values()
            if known.device_type == device_type
            and known.batch_size
            and (share := part_share(known.profile, known.batch_size)) is not None
        ]
        return median(found) if found else None

    def revise(self, before: Profile, after: Profile) -> None:
        """More has become known of what was measured."""
        for known in self.known.values():
            if known.profile == before:
                known.profile = after

    def complete(self, job_id: JobId) -> bool:
        """Nothing more can be learned from this job; whether anything was."""
        unfinished = [
            known
            for known in self.known.values()
            if known.job_id == job_id
            and not known.is_complete
            and (known.profile.points or known.profile.indicators)
        ]
        for known in unfinished:
            known.is_complete = True
        return bool(unfinished)

    def use(self, key: str, before: Profile | None = None) -> Profile | None:
        """Returns the profile for a new job of this kind, if it says more than `before`, which the job was
        given before; an incomplete profile is returned as far as it was measured, if that is the whole batch
        at least."""
        known = self.known.get(key) if key else None
        if known is None or known.profile == before or not known.is_usable:
            return None
        del self.known[key]
        self.known[key] = known
        known.used += 1
        return known.profile

    def is_unfinished(self, profile: Profile | None) -> bool:
        """Whether it is kept and not complete: a job that was given it is measured as well."""
        return any(not known.is_complete and known.profile == profile for known in self.known.values())

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.known.pop(key, None)
