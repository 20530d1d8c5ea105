"""The first nine minutes on a GPU: the questions to the product, rehearsed on a CPU slot with real jobs.

Rule: no answer from here means anything. A busy machine may cut a question off; none may end with an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.processes import IMPORT_S

ROOT = Path(__file__).resolve().parents[2]
OF_PRODUCT = ("doctor", "share", "resume", "bits", "warm")


def test_questions_to_the_product_end_with_facts(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hwtests.first.run", "--out", str(tmp_path), "--device", "cpu"),
            *("--only", ",".join(("machine", *OF_PRODUCT))),
        ],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=IMPORT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    assert set(found) == {"machine", *OF_PRODUCT}
    for name, one in found.items():
        log = (tmp_path / "raw" / f"{name}.log").read_text()
        assert one["state"] in ("over", "cut off") and one["facts"], f"{name}: {one} {log}"
    assert "A rehearsal" in (tmp_path / "page.md").read_text()
