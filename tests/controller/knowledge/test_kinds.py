"""Which command lines are one kind of job: a table of what people type."""

from __future__ import annotations

import shlex

import pytest

from cotenant.controller.domain import JobSpec, Launch
from cotenant.controller.knowledge import signature
from cotenant.controller.knowledge.profiles import base_key, kind_words
from tests.controller.building import spec

SAME = (
    ("python train.py 50 10 --out outa", "python train.py 50 10 --out outb"),
    ("python train.py --output-dir=runs/1 --epochs 3", "python train.py --output_dir runs/2 --epochs 3"),
    ("python main.py --seed 1 --lr 0.1", "python main.py --seed=42 --lr 0.1"),
    ("python main.py --seed -1 --lr 0.1", "python main.py --lr 0.1"),
    ("python -m pkg.train --manual-seed 3 -b 8", "python -m pkg.train -b 8 --manual-seed 4"),
    ("torchrun --nproc-per-node 2 --rdzv-id 7 t.py", "torchrun --nproc-per-node 2 --rdzv-id 8 t.py"),
    ("torchrun --master-port=29500 t.py", "torchrun --master_port 29501 t.py"),
    ("accelerate launch --main_process_port 1 t.py", "accelerate launch --main_process_port 2 t.py"),
    ("python run_clm.py --logging_dir a --run_name x", "python run_clm.py --logging_dir b --run_name y"),
    ("python train.py seed=1 model=resnet", "python train.py seed=2 model=resnet"),
    ("python train.py hydra.run.dir=a +trainer.seed=1", "python train.py hydra.run.dir=b +trainer.seed=2"),
    ("python cli.py fit --seed_everything 1", "python cli.py fit --seed_everything 2"),
    ("python cli.py --trainer.default_root_dir a fit", "python cli.py --trainer.default_root_dir b fit"),
    ("bash -c 'python t.py --seed 1 --lr 1'", "bash -c 'python t.py --seed 2 --lr 1'"),
    ("python t.py --wandb-run-id abc --wandb-group g", "python t.py --wandb-run-id def"),
)
APART = (
    ("python train.py --lr 0.1", "python train.py --lr 0.2"),
    ("python train.py 50 outa", "python train.py 50 outb"),
    ("python train.py --model-name a", "python train.py --model-name b"),
    ("python train.py --name resnet18", "python train.py --name resnet50"),
    ("python train.py --seed 1 --hidden 64", "python train.py --seed 1 --hidden 128"),
    ("python train.py -o adam", "python train.py -o sgd"),
    ("python train.py model=a", "python train.py model=b"),
    ("python train.py --save big.yaml", "python train.py --save small.yaml"),
    ("bash -c 'python t.py --lr 1'", "bash -c 'python t.py --lr 2'"),
    ("python train.py --out a --layers 2", "python train.py --out a --layers 3"),
)


def spec_of(line: str) -> JobSpec:
    return spec(1, argv=tuple(shlex.split(line)), code_sha256="c")


@pytest.mark.parametrize(("one", "other"), SAME)
def test_outputs_seeds_and_ids_make_no_kind(one: str, other: str) -> None:
    first, second = spec_of(one), spec_of(other)
    assert first.launch.argv != second.launch.argv
    assert sorted(kind_words(first.launch.argv)) == sorted(kind_words(second.launch.argv))
    if "-b 8" not in one:  # Whose order differs as well.
        assert signature(first) == signature(second) and base_key(first) == base_key(second) != ""


@pytest.mark.parametrize(("one", "other"), APART)
def test_what_could_change_a_step_makes_another_kind(one: str, other: str) -> None:
    first, second = spec_of(one), spec_of(other)
    assert signature(first) != signature(second) and base_key(first) != base_key(second)


def test_a_seed_in_the_environment_makes_no_kind() -> None:
    def key(**env: str) -> str:
        return base_key(JobSpec(job_id="1", code_sha256="c", launch=Launch(argv=("x",), env=env)))  # type: ignore[arg-type]

    assert key(SEED="1", WANDB_RUN_ID="a") == key(SEED="2") != key(HIDDEN="2")


def test_an_option_without_a_value_takes_none_away() -> None:
    assert kind_words(("t.py", "--seed", "--deep")) == ("t.py", "--deep")
    assert kind_words(("t.py", "--out")) == ("t.py",)
    assert kind_words(("bash", "-c", "echo 'half --seed")) == ("bash", "-c", "echo 'half --seed")
    assert kind_words(()) == ()
