"""Frameworks that accumulate by themselves, the real ones: the result is that of the plain run.

They are no dependencies of ours, so each test needs its framework beside torch:
`pip install transformers accelerate lightning`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import cotenant.gradaccum

HERE = Path(__file__).parent
STARTUP = Path(cotenant.gradaccum.__file__).parent / "startup"
TOLERANCE = 1e-12
HOOK = {"COTENANT_PROTOCOL": "1", "COTENANT_JOB": "1", "COTENANT_ATTEMPT": "1"}


def hooked_environment(words: str) -> dict[str, str]:
    """With the zero-code hook, asked for these words, with s = 4; without words no hook."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "LIGHTNING_DISABLE_TELEMETRY": "1"}
    if words:
        path = os.pathsep.join(filter(None, (str(STARTUP), env.get("PYTHONPATH", ""))))
        env |= {**HOOK, "PYTHONPATH": path, "COTENANT_ZERO_CODE": words, "COTENANT_ACCUMULATION_STEPS": "4"}
    return env


def run(name: str, saved: Path, *, words: str = "") -> list[str]:
    """What the script printed. `words`: what the zero-code hook is asked for, with s = 4; empty: no hook."""
    script = HERE / "scripts" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(script), str(saved)],
        env=hooked_environment(words),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in (done.stdout + done.stderr).splitlines() if "cotenant" in line or "knob" in line]


@pytest.mark.parametrize(
    ("name", "package", "words", "knob"),
    [
        ("transformers_trainer", "transformers", "accumulate", "knob: 4 steps of 4 rows"),
        ("accelerate_loop", "accelerate", "accumulate,mean", "knob: 8 steps of 4 rows"),
        ("lightning_fit", "lightning", "accumulate,mean", "knob: 4 steps of 4 rows"),
        # Nobody vouches for a mean: the modules are split instead, and the knob stays where it was.
        ("accelerate_loop", "accelerate", "accumulate", "knob: 2 steps of 16 rows"),
        ("lightning_fit", "lightning", "accumulate", "knob: 1 steps of 16 rows"),
    ],
)
def test_in_four_parts_it_gives_what_the_whole_batch_gives(
    tmp_path: Path, name: str, package: str, words: str, knob: str
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package}")
    plain, split = tmp_path / "plain.pt", tmp_path / "split.pt"
    run(name, plain)
    said = run(name, split, words=words)
    assert said == [knob], "nothing was refused"
    a, b = torch.load(plain, weights_only=True), torch.load(split, weights_only=True)
    apart = max(float((a[key] - b[key]).abs().max()) for key in a)
    assert 0.0 < apart <= TOLERANCE, "equal to the bit: nothing was split"


@pytest.mark.parametrize(
    ("kind", "words", "steps", "reason"),
    [
        ("drops", "accumulate", 0, "the losses of micro-batches are not that of the whole batch"),
        ("own", "accumulate", 0, "the losses of micro-batches are not that of the whole batch"),
        ("noise", "accumulate", 0, "computing the loss draws random numbers"),
        ("masks", "accumulate", 0, "computing the loss draws random numbers"),
        ("later", "accumulate", 3, "the losses of micro-batches are not that of the whole batch"),
        ("noise", "accumulate,equivalent", 8, ""),
    ],
)
def test_a_trainer_whose_knob_is_wrong_ends_before_the_step(
    tmp_path: Path, kind: str, words: str, steps: int, reason: str
) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed: pip install transformers")
    script = HERE / "scripts" / "transformers_wrong.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "saved.pt"), kind],
        env=hooked_environment(words),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == [f"steps: {steps}"], done.stderr
    refused = [line for line in done.stderr.splitlines() if line.startswith("cotenant.gradaccum.Refused: ")]
    assert (done.returncode, len(refused)) == ((1, 1) if reason else (0, 0)), done.stderr
    assert all(reason in line for line in refused)


@pytest.mark.parametrize(
    ("name", "package", "words"),
    [
        ("lightning_wrong", "lightning", "accumulate,mean"),
        ("accelerate_noise", "accelerate", "accumulate,mean"),
    ],
)
def test_what_a_user_vouches_for_in_vain_ends_before_the_step(
    tmp_path: Path, name: str, package: str, words: str
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package}")
    script = HERE / "scripts" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(script)],
        env=hooked_environment(words),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "cotenant.gradaccum.Refused: " in done.stderr
    assert done.stdout.splitlines()[-1:] == ["steps: 0"]
