"""The study of one GPU, rehearsed end to end on a CPU slot with real controllers, agents and jobs.

Rule: no number from here means anything. The first run leaves torch's compiler out of its jobs, which halves
what they take to start; warm starts refuse such an environment, so a second run makes what needs them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.live.cluster import EAGER
from tests.processes import IMPORT_S

ROOT = Path(__file__).resolve().parents[2]
WARM = ("warm-start", "queue-cotenant")
ON_CPU = {"solos", "pairs-slices", "bound-1.10", "warm-start", "resume", "numbers", "queue-cotenant"}
"""Slices of which a rehearsal on a CPU slot runs something."""


def rehearse(folder: Path, *words: str, **environment: str) -> str:
    """What the study said; it must end well."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "experiments.gpu_study.study", "--out", str(folder)),
            *("--device", "cpu", "--rehearse", *words),
        ],
        cwd=ROOT,
        env={**os.environ, "COTENANT_CONTROLLER__ETA_SHARE": "0", **environment},
        capture_output=True,
        text=True,
        timeout=IMPORT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout


def test_the_rehearsal_makes_every_slice_once_and_writes_its_page(tmp_path: Path) -> None:
    names = [line.split()[1] for line in rehearse(tmp_path, "--list").splitlines()]
    assert set(names) > ON_CPU
    rehearse(tmp_path, "--slice", ",".join(name for name in names if name not in WARM), PYTHONPATH=EAGER)
    made = {name: (tmp_path / f"{name}.json").read_bytes() for name in ON_CPU.difference(WARM)}
    said = rehearse(tmp_path)
    for name in names:
        outcome = json.loads((tmp_path / f"{name}.json").read_text())
        assert outcome["state"] == ("done" if name in ON_CPU else "does not apply"), outcome
        assert bool(outcome["units"] if name in ON_CPU else outcome["why"]), outcome
        failures = [each["failures"] for each in outcome["units"].values() if each.get("failures")]
        assert failures == [], name
    assert {name: (tmp_path / f"{name}.json").read_bytes() for name in made} == made
    assert all(f"{name}: done before" in said for name in made), "nothing is made again"
    page = (tmp_path / "page.md").read_text()
    assert page.split("\n\n")[1].startswith("**A rehearsal on CPU slots: it shows that the study runs")
    assert "nothing about GPUs" in page and "| launches+launches | time-slicing |" in page
    pairs = json.loads((tmp_path / "pairs-slices.json").read_text())["units"]
    assert all(each["benefit"] > 0 and each["first_delay"] > 0 for each in pairs.values())
    header, row = (tmp_path / "pairs-time-slicing.csv").read_text().splitlines()
    assert header.startswith("gpu_type,sharing,model1") and row.startswith("cpu,time-slicing,launches")
    assert "test_the_loss_goes_on_where_it_was[fp32]" in (tmp_path / "hardware.md").read_text()
