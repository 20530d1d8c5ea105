"""Promise 5 for scripts that know nothing of cotenant: the result is that of the plain run, or a refusal.

Each script in `scripts/` runs as a program of its own, once without the hook and once with its batches in
four parts; what both save must be equal to 1e-12 in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoint.ranks import Gang, Supervisor, Warm, launch

pytestmark = pytest.mark.usefixtures("warm")

HERE = Path(__file__).parent
TOLERANCE = 1e-12
STEPS = 4
EQUIVALENT = {"COTENANT_ZERO_CODE": "accumulate,equivalent"}


def start(
    warm: Warm, folder: Path, script: Path, *args: str, env: Mapping[str, str] | None = None, ranks: int = 1
) -> Gang:
    words = (str(folder), "0", str(script), *args)
    return launch(warm, HERE / "counted.py", folder, *words, ranks=ranks, env=env)


def run(
    warm: Warm, folder: Path, name: str, *args: str, env: Mapping[str, str] | None = None, ranks: int = 1
) -> tuple[Path, list[dict[str, Any]]]:
    """Where the script's result is; and what was counted of each rank, and why batches stay whole."""
    saved = folder / "saved.pt"
    gang = start(warm, folder, HERE / "scripts" / f"{name}.py", str(saved), *args, env=env, ranks=ranks)
    told = gang.wait()
    return saved, [{**each, "refused": refused_in(gang.output())} for each in told]


def refused_in(output: str) -> str | None:
    return next((line for line in output.splitlines() if "batches stay whole: " in line), None)


def hooked(steps: int = STEPS, more: Mapping[str, str] | None = None) -> dict[str, str]:
    env = {"COTENANT_ZERO_CODE": "accumulate", "COTENANT_ACCUMULATION_STEPS": str(steps)}
    return {**env, **(more or {})}


def ended(warm: Warm, folder: Path, name: str, *args: str, steps: int = STEPS) -> tuple[dict[str, Any], str]:
    """What was counted of a script whose attempt the hook has ended, and the line that says why."""
    script = HERE / "scripts" / f"{name}.py"
    gang = start(warm, folder, script, str(folder / "saved.pt"), *args, env=hooked(steps))
    (told,) = gang.wait(code=1)
    lines = [line for line in gang.output().splitlines() if line.startswith("cotenant.gradaccum.Refused: ")]
    return told, lines[-1]


def apart(left: Path, right: Path) -> float:
    a, b = torch.load(left, weights_only=True), torch.load(right, weights_only=True)
    assert a.keys() == b.keys()
    return max(float((a[key].double() - b[key].double()).abs().max()) for key in a if a[key].numel())


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        # 9 steps, each of 4 parts of which 3 are computed again: 9 * (4 + 3).
        ("classification", 63),
        ("language", 42),
        ("summed", 84),
        ("mixed", 63),
        ("clipping", 63),
        ("onecycle", 84),
        ("late_zero", 63),
        ("contrastive", 84),
        ("own_loop", 112),
    ],
)
def test_a_script_gives_the_same_in_four_parts(warm: Warm, tmp_path: Path, name: str, parts: int) -> None:
    plain, _ = run(warm, tmp_path / "plain", name)
    split, (told,) = run(warm, tmp_path / "split", name, env=hooked())
    assert told["refused"] is None
    assert told["parts"] == parts, "the batches were not split as planned"
    assert apart(plain, split) <= TOLERANCE


def test_two_models_that_feed_each_other_give_the_same(warm: Warm, tmp_path: Path) -> None:
    plain, _ = run(warm, tmp_path / "plain", "adversaries")
    split, (told,) = run(warm, tmp_path / "split", "adversaries", env=hooked(3))
    assert told["refused"] is None
    assert told["parts"] > 0
    assert apart(plain, split) <= TOLERANCE


def test_a_penalty_on_a_gradient_is_refused(warm: Warm, tmp_path: Path) -> None:
    plain, _ = run(warm, tmp_path / "plain", "adversaries", "--penalty")
    left, _ = run(warm, tmp_path / "left", "adversaries", "--penalty", env=hooked(1))
    assert apart(plain, left) == 0.0, "with whole batches there is nothing to refuse"
    told, said = ended(warm, tmp_path / "ended", "adversaries", "--penalty")
    assert "differentiated again" in said
    assert told["completed"] == 0, "not one step with a wrong gradient"


@pytest.mark.parametrize("more", [(), ("--unused",)], ids=["plain", "find_unused_parameters"])
def test_two_ranks_with_a_smaller_last_batch_give_the_same(
    warm: Warm, tmp_path: Path, more: tuple[str, ...]
) -> None:
    plain, _ = run(warm, tmp_path / "plain", "gang", *more, ranks=2)
    split, told = run(warm, tmp_path / "split", "gang", *more, ranks=2, env=hooked())
    for rank in range(2):
        assert told[rank]["refused"] is None
        assert told[rank]["parts"] > 0
        assert apart(Path(f"{plain}.{rank}"), Path(f"{split}.{rank}")) <= TOLERANCE


def test_bfloat16_differs_by_no_more_than_its_own_rounding(warm: Warm, tmp_path: Path) -> None:
    plain, _ = run(warm, tmp_path / "plain", "mixed", "--float32")
    split, (told,) = run(warm, tmp_path / "split", "mixed", "--float32", env=hooked())
    assert told["refused"] is None
    assert told["parts"] > 0
    assert apart(plain, split) <= 2e-2


def test_a_schedule_changes_s_while_the_script_runs(warm: Warm, tmp_path: Path) -> None:
    schedule = {"COTENANT_ACCUMULATION_SCHEDULE": "0:1,2:2,5:5"}
    plain, _ = run(warm, tmp_path / "plain", "classification")
    split, (told,) = run(warm, tmp_path / "split", "classification", env=hooked(more=schedule))
    assert told["parts"] == 3 * 3 + 4 * 9, "two steps whole, three in 2 parts, four in 5 parts"
    assert apart(plain, split) <= TOLERANCE


REFUSED = {
    "batchnorm": "0: BatchNorm1d in training mode normalises over its whole batch",
    "centred": "its rows depend on each other",
    "shared": "its rows depend on each other",
    "shuffled": "its forward pass draws random numbers",
    "dropout": "its forward pass draws random numbers (torch's random numbers)",
    "droppath": "its forward pass draws random numbers",
    "counting": "its forward pass changes first.calls",
    "attribute": "its forward pass changes first.extra",
    "aside": "its forward pass changes KEPT",
    "buffer": "its forward pass changes first.seen",
    "states": "it returns 2 rows for 1 samples",
    "inplace": "its forward pass changes its inputs in place",
    "scalar": "one number for the whole batch",
    "hook": "has a hook (",
    "compiled": "torch.compile",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_differ_is_refused_and_runs_untouched(warm: Warm, tmp_path: Path, kind: str) -> None:
    plain, _ = run(warm, tmp_path / "plain", "refused", kind)
    left, (told,) = run(warm, tmp_path / "left", "refused", kind, env=hooked())
    assert REFUSED[kind] in told["refused"]
    assert told["parts"] == 0
    assert apart(plain, left) == 0.0, "a refused script must run as if nobody had looked at it"


@pytest.mark.parametrize("kind", ["dropout", "droppath"])
def test_noise_of_each_element_is_split_where_an_equivalent_run_is_allowed(
    warm: Warm, tmp_path: Path, kind: str
) -> None:
    _, (told,) = run(warm, tmp_path, "refused", kind, env=hooked(3, more=EQUIVALENT))
    assert told["refused"] is None
    assert told["parts"] == 6 * 5


def test_noise_that_mixes_rows_is_refused_even_there(warm: Warm, tmp_path: Path) -> None:
    _, (told,) = run(warm, tmp_path, "refused", "shuffled", env=hooked(3, more=EQUIVALENT))
    assert "its rows depend on each other" in told["refused"]


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(("kind", "can"), [("none", True), ("batchnorm", False)])
def test_the_supervisor_hears_what_the_script_can_do(
    warm: Warm, tmp_path: Path, kind: str, can: bool, steps: int
) -> None:
    script = HERE / "scripts" / "refused.py"
    with Supervisor(tmp_path / "s", 1) as supervisor:
        env = hooked(steps, supervisor.env(tmp_path / "root", attempt=1))
        gang = start(warm, tmp_path / "run", script, str(tmp_path / "x.pt"), kind, env=env)
        if steps > 1 and not can:  # Memory was planned for parts: it goes on whole in another attempt.
            gang.wait(code=1)
            (failed,) = supervisor.wait_for("failed")
            assert failed["what"] == "accumulate"
            assert "BatchNorm1d" in failed["error"]
            return
        gang.wait()
        (hello,) = supervisor.wait_for("hello")
        supervisor.wait_for("step", s=steps, step=6)
        supervisor.wait_for("first_step", step=1)
    assert hello["accumulates"] is can
    assert ("BatchNorm1d" in hello["accumulates_note"]) is not can
    assert hello["resumable"] is False


def test_a_script_that_splits_its_own_batches_is_left_alone(warm: Warm, tmp_path: Path) -> None:
    trainer = HERE.parent / "checkpoint" / "trainer.py"
    steps = {"COTENANT_ACCUMULATION_STEPS": "2", "COTENANT_ZERO_CODE": "equivalent"}  # It has dropout.
    (plain,) = launch(warm, trainer, tmp_path / "plain", "--epochs", "1", env=steps).wait()
    words = ("--epochs", "1")
    env = hooked(2, {"COTENANT_ZERO_CODE": "accumulate,equivalent"})
    gang = start(warm, tmp_path / "hooked", trainer, *words, env=env)
    (told,) = gang.wait()
    assert (told["parts"], refused_in(gang.output())) == (0, None)
    assert f'"sha256": "{plain["sha256"]}"' in gang.output()
