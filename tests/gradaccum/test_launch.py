"""The launcher, and the hook at the start of an interpreter: a script cannot tell that they are there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cotenant.gradaccum import launch
from tests.processes import IMPORT_S

HERE = Path(__file__).parent
TELLING = """\
import os, sys
print(sys.argv, __name__, __file__, __spec__, __package__, sys.path[0], sorted(vars()))
print("torch" in sys.modules, any(name.startswith("cotenant") for name in sys.modules))
if "fail" in sys.argv:
    def inner():
        raise KeyError("wanted")
    inner()
sys.exit(7)
"""


def python(*words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **(env or {})}
    return subprocess.run(
        [sys.executable, *words], env=variables, capture_output=True, text=True, timeout=IMPORT_S, check=False
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "telling.py"
    path.write_text(TELLING)
    return path


@pytest.mark.parametrize("arguments", [(), ("-x", "--flag=1", "fail")], ids=["exit code", "traceback"])
def test_the_script_cannot_tell_how_it_was_started(script: Path, arguments: tuple[str, ...]) -> None:
    plain = python(str(script), *arguments)
    launched = python("-m", "cotenant.gradaccum.launch", "--steps", "2", str(script), *arguments)
    assert (launched.returncode, launched.stdout, launched.stderr) == (
        plain.returncode,
        plain.stdout,
        plain.stderr,
    )
    assert plain.returncode == (1 if "fail" in arguments else 7)
    assert plain.stdout.endswith("False False\n"), "neither torch nor cotenant is loaded for a script without"


def test_a_training_script_is_split_from_the_command_line_on(tmp_path: Path) -> None:
    script = str(HERE / "scripts" / "refused.py")
    words = (
        "-m",
        "cotenant.gradaccum.launch",
        "--steps",
        "0:3,2:1",
        script,
        str(tmp_path / "x"),
        "batchnorm",
    )
    ran = python(*words, env={"OMP_NUM_THREADS": "1"})
    assert ran.returncode == 0, ran.stderr
    assert "this script's batches stay whole: Sequential: 0: BatchNorm1d in training mode" in ran.stderr


def test_a_plain_submission_writes_nothing_although_its_batches_stay_whole(tmp_path: Path) -> None:
    words = (str(HERE / "scripts" / "refused.py"), str(tmp_path / "x"), "batchnorm")
    plain = python(*words, env={"OMP_NUM_THREADS": "1"})
    path = os.pathsep.join([str(launch.STARTUP), *(p for p in sys.path if p)])
    hooked = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "COTENANT_ZERO_CODE": "accumulate,quiet,progress"}
    ran = python(*words, env=hooked)
    assert (ran.returncode, ran.stdout, ran.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_the_environments_own_startup_file_still_runs(script: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('mine')\n")
    path = os.pathsep.join([str(own), *(p for p in sys.path if p)])
    launched = python("-m", "cotenant.gradaccum.launch", str(script), env={"PYTHONPATH": path})
    assert launched.stdout.count("mine") == 2, "once for the launcher, once for the script"


def test_a_hook_that_fails_leaves_the_script_alone(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("loaded = True\n")
    (tmp_path / "plain.py").write_text("import torch\nprint('ran', torch.loaded)\n")
    launched = python("-m", "cotenant.gradaccum.launch", str(tmp_path / "plain.py"))
    assert launched.stdout == "ran True\n"
    assert launched.stderr.count("\n") == 1
    assert "cotenant: splitting batches is off: " in launched.stderr


def test_the_environment_is_all_that_the_launcher_changes() -> None:
    env = launch.environment({"PYTHONPATH": "/mine", "X": "1"}, "accumulate", "0:2")
    assert env == {
        "X": "1",
        "PYTHONPATH": f"{launch.STARTUP}{os.pathsep}/mine",
        "COTENANT_ZERO_CODE": "accumulate",
        "COTENANT_ACCUMULATION_SCHEDULE": "0:2",
    }
    assert (launch.STARTUP / "sitecustomize.py").is_file()


@pytest.mark.parametrize("words", [(), ("--steps", "none", "x.py"), ("--steps", "0", "x.py")])
def test_wrong_usage_is_refused_at_once(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        launch.main(words)
    assert ended.value.code == 2
    assert "usage: python -m cotenant.gradaccum.launch" in capsys.readouterr().err
