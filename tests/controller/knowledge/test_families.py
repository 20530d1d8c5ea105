"""Who is like whom, and how long a job takes as its like took."""

from __future__ import annotations

import math
from random import Random
from statistics import NormalDist, fmean, stdev
from typing import Any

import pytest

from cotenant.controller.knowledge import families, lifetimes
from cotenant.controller.knowledge.families import Family, family_of, plain_words, program_of
from tests.controller.building import spec


def family(command: str, job_id: str = "1", **more: Any) -> Family:
    return family_of(spec(job_id, argv=tuple(command.split()), **more))


@pytest.mark.parametrize(
    "number",
    ["1", "-3", "+.5", "1e-3", "1E6", "2_000", "inf", "-Infinity", "nan", "5%", "10M", "4GiB", "90s"],
)
def test_a_number_is_a_word_or_the_value_of_a_key_that_reads_as_one(number: str) -> None:
    words = ("python", "x.py", "--lr", number, f"--wd={number}", f"decay={number}", f"{number},{number}")
    assert plain_words(words) == ("python", "x.py", "--lr", "#", "--wd=#", "decay=#", "#")


@pytest.mark.parametrize("word", ["adam", "resnet18", "x1", "v2.pt", "1-2", "3d", "infant", "1.2.3"])
def test_other_words_are_no_numbers(word: str) -> None:
    assert plain_words(("python", "x.py", word)) == ("python", "x.py", word)


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python -u train.py 3", "train.py"),
        ("torchrun --nproc-per-node 2 src/train.py", "src/train.py"),
        ("python -m torch.distributed.run --nproc-per-node 2 -m pkg.train", "pkg.train"),
        ("accelerate launch --num_processes 2 train.py --lr 1", "train.py"),
        ("deepspeed train.py --deepspeed conf.json", "train.py"),
        ("/usr/bin/python3 -m pkg.train x", "pkg.train"),
        ("nice -n 10 bash run.sh", "run.sh"),
        ("sleep 5", "sleep"),
    ],
)
def test_the_program_is_the_script_or_module_behind_interpreters_and_launchers(
    command: str, program: str
) -> None:
    assert program_of(tuple(command.split())) == program


def test_a_line_for_a_shell_is_its_script_or_a_program_by_itself() -> None:
    assert program_of(("sh", "-c", "cd exp && exec python train.py --lr 3")) == "train.py"
    assert program_of(("sh", "-c", "exit 3")) == program_of(("bash", "-c", "exit 4"))
    assert program_of(("sh", "-c", "exit 3")) != program_of(("sh", "-c", "sleep 3"))
    assert program_of(("sh", "-c", "it's")) and program_of(("sh", "-c", "")) == ""


def test_a_family_is_of_one_user_and_widens_from_the_command_to_the_program() -> None:
    one = family("python x.py --lr 1 --opt adam")
    assert family("python x.py --lr 1 --opt adam --seed 3") == one
    numbers = family("python x.py --lr 2 --opt adam")
    assert numbers.command != one.command and numbers[2:] == one[2:]
    words = family("python x.py --lr 1 --opt sgd")
    assert words.numbers != one.numbers and words.program == one.program
    assert not set(filter(None, one)) & {
        *family("python x.py --lr 1 --opt adam", user="bob"),
        *family("python y.py --lr 1 --opt adam"),
    }
    assert family("python x.py --lr 1 --opt adam", gpus=2).numbers != one.numbers
    assert family("python x.py --lr 1 --opt adam", gpu_fraction=0.5).program != one.program


def test_a_sweep_is_the_tasks_of_one_array_with_the_same_words() -> None:
    one, two = family("python x.py --lr 1", "7_0"), family("python x.py --lr 2", "7_1")
    assert one.sweep == two.sweep != "" == family("python x.py --lr 1").sweep
    assert family("python x.py --lr 2", "8_1").sweep != one.sweep
    assert family("python x.py --opt 2", "7_2").sweep != one.sweep


@pytest.mark.parametrize(
    ("option", "may_be"),
    [
        ("--lr 1e-3", False), ("--epochs 30", False), ("optim.lr=0.1", False), ("model.dropout=0.1", False),
        ("--dropout .1", False), ("0.5", False), ("--max-steps 10k", False),
        ("--batch-size 64", True), ("-b 64", True), ("64", True), ("model.layers=12", True),
        ("--n_embd=768", True), ("--width-mult 1.5", True), ("--bs=8,16", True),
    ],
)  # fmt: skip
def test_a_number_that_may_be_a_size_makes_another_kind_where_memory_counts(
    option: str, may_be: bool
) -> None:
    words = ("python", "x.py", *option.split())
    assert (plain_words(words, keeps_sizes=True) == words) is may_be


def test_the_source_of_an_estimate_counts_its_runs() -> None:
    assert families.runs_in_words(1, 12) == "as 12 others of this sweep"
    assert families.runs_in_words(0, 1) == "as 1 earlier run of this command"


# --- Lengths ----------------------------------------------------------------------------------------

NORMAL = NormalDist()
FAMILIES = 400
SIBLINGS = (0, 1, 2, 4, 8, 16, 32)


def errors(siblings: int, had: float, seed: int) -> list[float]:
    """|log(likely / true)| of the length of a job that outlived a share `had` of all jobs of its family, of
    so many families, each with a median and a spread of its own."""
    random, found = Random(f"{seed}:{had}"), []
    for _ in range(FAMILIES):
        middle, spread = random.gauss(math.log(600.0), 1.5), random.uniform(0.1, 0.9)
        taken = [math.exp(random.gauss(middle, spread)) for _ in range(SIBLINGS[-1])][:siblings]
        had_s = math.exp(middle + spread * NORMAL.inv_cdf(had)) if had else 0.0
        true_s = math.exp(middle + spread * NORMAL.inv_cdf(random.uniform(had, 1.0)))
        likely_s = lifetimes.left_s(taken, (), had_s)[0] if taken else max(300.0, had_s)
        found.append(abs(math.log((had_s + likely_s) / true_s)))
    return found


@pytest.mark.parametrize("had", [0.0, 0.3, 0.6, 0.9])
def test_more_siblings_never_make_the_expected_error_of_a_length_worse(had: float) -> None:
    """Within what so many families resolve: two deviations of the mean of the differences."""
    seed = 52
    before = errors(SIBLINGS[0], had, seed)
    for siblings in SIBLINGS[1:]:
        after = errors(siblings, had, seed)
        worse = [mine - other for mine, other in zip(after, before, strict=True)]
        resolution = 2.0 * stdev(worse) / math.sqrt(FAMILIES)
        assert fmean(worse) <= resolution, f"seed {seed}: {siblings} siblings, had {had}: {fmean(worse)}"
        before = after
    assert fmean(before) < 0.7 * fmean(errors(0, had, seed)), f"seed {seed}: nothing was learned"


def test_a_tenth_of_jobs_end_below_and_above_the_spread_of_many_siblings() -> None:
    random, seed, below, above = Random(7), 7, 0, 0
    for _ in range(FAMILIES):
        taken = [math.exp(random.gauss(6.0, 0.7)) for _ in range(SIBLINGS[-1])]
        true_s, (_, low_s, high_s) = math.exp(random.gauss(6.0, 0.7)), lifetimes.left_s(taken, (), 0.0)
        below, above = below + (true_s < low_s), above + (true_s > high_s)
    assert 0.06 < below / FAMILIES < 0.14 and 0.06 < above / FAMILIES < 0.14, f"seed {seed}: {below}, {above}"


def test_a_sibling_that_still_runs_counts_as_longer_than_it_has_had() -> None:
    ended = [20.0] * 15
    assert lifetimes.left_s(ended, (), 0.0)[0] == pytest.approx(20.0, rel=0.1)
    assert lifetimes.left_s(ended, [300.0], 0.0)[0] == pytest.approx(20.0, rel=0.1)
    assert lifetimes.left_s(ended, [300.0], 60.0)[0] > 2 * lifetimes.left_s(ended, (), 60.0)[0]
    few, more = lifetimes.left_s([20.0], [100.0] * 5, 0.0), lifetimes.left_s([20.0], (), 0.0)
    assert few[0] > more[0] and few[2] > more[2]


def test_a_job_that_outlives_its_siblings_needs_as_long_again_and_a_little_more() -> None:
    likely_s, low_s, high_s = lifetimes.left_s([20.0] * 16, (), 3000.0)
    assert 3000.0 <= likely_s <= 3100.0 and low_s < likely_s / 5 and high_s > 5 * likely_s
    assert likely_s < math.inf > lifetimes.left_s([1e-3], (), 1e9)[2]
