"""GPM through NVIDIA's own Python bindings, down to a C library of ours: versions, places and order of what
is passed are theirs, and a fake module would not notice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "gpm_library" / "gpm.c"
LIBRARY = "libnvidia-ml.so.1"
READ = """
import json, math, time
from cotenant.profiler.indicators.counters import Unsupported
from cotenant.profiler.driver.library import open_library
from cotenant.profiler.indicators.gpm import Gpm, PERIOD_S

gpm = Gpm(open_library(), ["GPU-1", "GPU-2"])
try:
    assert gpm.read() is None, "nothing to compare with"
    time.sleep(PERIOD_S)
    known, other = gpm.read().devices
    print(json.dumps({n.value: v for n, v in known.items() if not math.isnan(v)}), len(known), other)
except Unsupported as problem:
    print(problem)
print(gpm.problems())
gpm.close()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for LD_LIBRARY_PATH."""
    folder, compiler = tmp_path_factory.mktemp("gpm"), shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) here")
    words = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{LIBRARY}"]
    done = subprocess.run(
        [*words, "-o", str(folder / LIBRARY), str(SOURCE)], capture_output=True, text=True, check=False
    )
    if "stdio.h: No such file" in done.stderr:
        pytest.skip("the C library's headers are not installed here")
    assert done.returncode == 0, done.stderr
    return folder


def read(library: Path, **more: str) -> tuple[list[str], str]:
    env = {**os.environ, "LD_LIBRARY_PATH": str(library), **more}
    done = subprocess.run([sys.executable, "-c", READ], env=env, capture_output=True, text=True, check=False)
    return done.stdout.splitlines(), done.stderr


def test_values_units_and_directions_are_those_of_the_library(library: Path) -> None:
    (values, problems), said = read(library)
    known, _, rest = values.partition("} ")
    mib = float(1 << 20)
    assert json.loads(known + "}") == {
        "GRACT": 0.5, "PCITX": 3 * mib, "PCIRX": 7 * mib, "NVLRX": 11 * mib, "NVLTX": 9 * mib,
    }, said  # fmt: skip
    assert rest == "13 {}", "all were asked for, and nothing of a device that is not there"
    assert problems.startswith("['', 'NVML: ")
    assert said.splitlines()[-1] == "samples left: 0"


def test_a_gpu_that_is_lost_is_said_and_its_samples_are_given_back(library: Path) -> None:
    (problem, _), said = read(library, LOST="1")
    assert problem == "NVML: a GPU has fallen off the bus"
    assert said.splitlines()[-1] == "samples left: 0"
