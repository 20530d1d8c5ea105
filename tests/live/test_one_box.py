"""docs/one-box.md is followed by five people on a machine of its own: `one_box.py` beside this file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.building.limits import within_s
from tests.live.one_box import run_apart, why_no_machine

pytestmark = pytest.mark.root
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "live" / "one_box.py"
SYSTEM_PYTHON = "/usr/bin/python3"
NEW_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 11))"


def why_not() -> str:
    """Why the page cannot be followed here."""
    if not Path(SYSTEM_PYTHON).exists() or subprocess.run([SYSTEM_PYTHON, "-c", NEW_ENOUGH]).returncode:
        return f"{SYSTEM_PYTHON} is not there, or older than 3.11"
    return why_no_machine()


def test_five_people_follow_the_page(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    wheel_folder, tools = tmp_path / "wheel", tmp_path / "tools"
    build: list[str | Path] = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        wheel_folder,
        ROOT,
    ]
    subprocess.run(build, check=True, capture_output=True, timeout=within_s(300))
    subprocess.run([sys.executable, "-m", "venv", tools], check=True, timeout=within_s(120))
    fetched = subprocess.run(
        [tools / "bin" / "pip", "install", "-q", "uv"], capture_output=True, text=True, timeout=within_s(300)
    )
    if fetched.returncode:
        pytest.skip(f"uv cannot be installed: {fetched.stderr.strip().splitlines()[-1]}")
    (wheel,) = wheel_folder.glob("*.whl")
    assert run_apart(PROGRAM, tmp_path, wheel, tools / "bin" / "uv").endswith("the page is true\n")
