"""docs/one-box.md is followed by five people on a machine of its own: `one_box.py` beside this file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.building.limits import within_s

pytestmark = pytest.mark.root
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "live" / "one_box.py"
APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
SYSTEM_PYTHON = "/usr/bin/python3"
NEW_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 11))"


def why_not() -> str:
    """Why the page cannot be followed here."""
    if os.geteuid() != 0:
        return "making users needs root"
    lacking = [name for name in ("useradd", "unshare", "mount") if shutil.which(name) is None]
    if lacking:
        return f"there is no {' and no '.join(lacking)} here"
    if not Path(SYSTEM_PYTHON).exists() or subprocess.run([SYSTEM_PYTHON, "-c", NEW_ENOUGH]).returncode:
        return f"{SYSTEM_PYTHON} is not there, or older than 3.11"
    layers = (
        "mount -t tmpfs t /mnt && mkdir /mnt/u /mnt/w",
        "mount -t overlay o -o lowerdir=/etc,upperdir=/mnt/u,workdir=/mnt/w /etc",
    )
    tried = subprocess.run([*APART, "sh", "-c", " && ".join(layers)], capture_output=True, text=True)
    return f"no layers can be mounted here: {tried.stderr.strip()}" if tried.returncode else ""


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
    shell = f'{sys.executable} {PROGRAM} "$@"; exit $?'  # The shell is process 1 there, and reaps orphans.
    done = subprocess.run(
        [*APART, "sh", "-c", shell, "sh", wheel, tools / "bin" / "uv", tmp_path],
        capture_output=True,
        text=True,
        timeout=within_s(400),
        check=False,
    )
    logs = "".join(f"\n== {log.name}\n{log.read_text()[-3000:]}" for log in tmp_path.glob("*.log"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    assert done.stdout.endswith("the page is true\n")
