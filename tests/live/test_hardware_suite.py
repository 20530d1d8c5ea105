"""The hardware suite where there is no GPU: it collects and skips cleanly, and its dry run measures a pair.

Rule: no number from here means anything; what is looked at is that the harness works, end to end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cotenant.agent.host.locks import LOCK_DIR_ENV
from hwtests import rows, summary
from hwtests.rows import Row
from tests.live.cluster import EAGER
from tests.processes import IMPORT_S

ROOT = Path(__file__).resolve().parents[2]
KEPT = "kept.jsonl"
SECONDS = ("0.8", "4", "20")
ASKS_FOR_MORE = "give it more --seconds"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it without any GPU, also on a machine that has one."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "hwtests",
            f"--keep={folder / KEPT}",
            f"--tables={folder}",
            *words,
        ],
        cwd=ROOT,
        # Two threads that wait for each other at every operation crawl where others want the cores.
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": EAGER,
            "COTENANT_CONTROLLER__ETA_SHARE": "0",
            LOCK_DIR_ENV: str(folder / "locks"),
        },
        capture_output=True,
        text=True,
        timeout=IMPORT_S,
        check=False,
    )


def suite(folder: Path, *words: str) -> list[Row]:
    return read(folder, run(folder, *words))


def measured_suite(folder: Path, *words: str) -> list[Row]:
    """With as many seconds for each measurement as it says that it needs: a busy machine makes few steps."""
    for seconds in SECONDS[:-1]:
        done = run(folder, "--seconds", seconds, *words)
        if ASKS_FOR_MORE not in done.stdout:
            return read(folder, done)
        (folder / KEPT).unlink()
    return suite(folder, "--seconds", SECONDS[-1], *words)


def read(folder: Path, done: subprocess.CompletedProcess[str]) -> list[Row]:
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return rows.read(folder / KEPT)


def test_without_a_gpu_every_test_skips_and_says_what_is_missing(tmp_path: Path) -> None:
    found = suite(tmp_path)
    assert {row.part for row in found} == set(summary.suite_parts())
    assert {row.outcome for row in found} == {"skipped"}
    assert all(row.reason and not row.measured for row in found)


def test_the_dry_run_measures_a_pair_and_writes_its_table(tmp_path: Path) -> None:
    words = ("--device", "cpu", "--pairs", "launches+launches", "-k", "slicing or table")
    found = {(row.part, row.test): row for row in measured_suite(tmp_path, *words)}
    names = set(found["pairs", "test_time_slicing[launches+launches]"].measured)
    assert {
        "launches then launches, time-slicing: xi of launches",
        "launches then launches, time-slicing: speed together",
    } <= names
    assert found["pairs", "test_the_table_can_train_a_predictor"].outcome == "passed"
    header, row = (tmp_path / "pairs-time-slicing.csv").read_text().splitlines()
    assert header.startswith("gpu_type,sharing,model1") and row.startswith("cpu,time-slicing,launches")
