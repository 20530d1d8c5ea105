"""What a user gets from `pip install cotenant`: build the wheel, test it where the sources cannot be seen.

Rule: the source tree must not help. The wheel is built from the sdist, installed into an environment of its
own, and its tests run isolated from the current folder. Only the dependencies are borrowed from the
development environment: downloading torch a second time would prove nothing.

The wheel's files are the source tree's, byte for byte, and each module is imported: what they do is tested in
the source tree. What is left depends on where we are installed: programs and data are found, a job gets our
hook, and the few tests that tests/run.py names. Arguments go to pytest in place of the whole unit set:
python tests/wheel.py tests/controller/cli. With `--cov` it measures what they cover.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from tests.building.limits import within_s  # noqa: E402

INSTALLED = ("agent", "checkpoint", "controller", "gradaccum", "mps", "profiler")
FACE = Path("controller/python/face")
"""What installs as `cotenant` itself."""
PR_SET_CHILD_SUBREAPER = 36
TRAINING = ROOT / "tests" / "checkpoint" / "scripts" / "plain_loop.py"
"""It knows nothing of us: that its steps are counted shows that our hook got into the job."""
STEPS = 3 * 13
SUBMISSION_TIMEOUT_S = within_s(180.0)
NO_MODULES = ("__main__.py", "sitecustomize.py")
"""What runs as soon as it is imported."""


def run(
    command: Sequence[str | Path], env: dict[str, str] | None = None, timeout_s: float = within_s(300.0)
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd="/", env=env, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def must(done: subprocess.CompletedProcess[str], what: str, *codes: int) -> str:
    if done.returncode not in (codes or (0,)):
        sys.exit(f"{what} failed with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    print(f"{what}: done", flush=True)
    return done.stdout


def build(folder: Path) -> Path:
    """`python -m build` makes the sdist first and the wheel from that: a gap in either shows."""
    must(
        run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]),
        "building sdist and wheel",
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Each file of the installed folders as it is there, and nothing from tests/, bench/ or experiments/."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {
        installed_as(path.relative_to(ROOT)): path.read_bytes()
        for folder in INSTALLED
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    if packed != wanted:
        missing, extra = sorted(wanted.keys() - packed.keys()), sorted(packed.keys() - wanted.keys())
        other = sorted(name for name in wanted.keys() & packed.keys() if wanted[name] != packed[name])
        sys.exit(f"missing in the wheel: {missing}; not ours: {extra}; not as in the source tree: {other}")
    print(f"contents: {len(packed)} files, as in the source tree", flush=True)


def installed_as(path: Path) -> str:
    return f"cotenant/{path.name if path.parent == FACE else path}"


def check_imports(programs: Path) -> None:
    """Every module can be imported from the wheel alone, those that only a user's job loads included."""
    names = [
        ".".join(("cotenant", *path.relative_to(ROOT).with_suffix("").parts))
        for folder in INSTALLED
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name not in NO_MODULES and path.parent != ROOT / FACE
    ]
    script = f"import importlib; [importlib.import_module(name) for name in {names!r}]"
    must(run([programs / "python", "-P", "-c", script]), f"importing all {len(names)} modules")


def environment(folder: Path, wheel: Path) -> Path:
    """A fresh environment with the wheel; returns its folder of programs."""
    must(run([sys.executable, "-m", "venv", "--without-pip", folder]), "making an environment")
    programs = folder / "bin"
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        programs / "python",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
    ]
    must(run([*pip, wheel]), "installing the wheel")
    # Last on sys.path, and .pth files in there are not read: the editable installation stays invisible.
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = "import cotenant.controller as c; print(c.__path__[0])"
    found = must(run([programs / "python", "-P", "-c", where]), "importing the package").strip()
    if not Path(found).is_relative_to(folder):
        sys.exit(f"cotenant was imported from {found}, not from the wheel")
    return programs


def unit_tests(programs: Path, only: Sequence[str], measured: bool) -> None:
    apart = [f"--ignore={ROOT}/tests/{folder}" for folder in ("simulation", "live")]
    chosen: list[str | Path] = [*only] or [ROOT / "tests", *apart]
    options: list[str | Path] = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        ROOT / "pyproject.toml",
        "--rootdir",
        ROOT,
    ]
    if measured:
        (installed,) = programs.parent.glob("lib/python*/site-packages/cotenant")
        options += [f"--cov={installed}", "--cov-report="]
    command: list[str | Path] = [programs / "python", "-P", "-m", "pytest", *options, *chosen]
    print("unit tests against the wheel:", flush=True)
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        sys.exit("unit tests failed against the wheel")


def installed(programs: Path, home: Path) -> None:
    """What only an installation has: its commands, its data, and a job that gets our hook."""
    home.mkdir(mode=0o700)
    # Nothing of ours but the programs' folder: what the wheel needs beyond it would fail here.
    env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
    env["COTENANT_LOCK_DIR"] = str(home / "locks")  # This machine may have an agent that holds its cores.
    env["OMP_NUM_THREADS"] = "1"

    def cotenant(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return run([programs / "cotenant", *words], env=env, timeout_s=SUBMISSION_TIMEOUT_S)

    checks = json.loads(must(cotenant("doctor", "-o", "json"), "the doctor", 0, 1))["checks"]
    if not checks:
        sys.exit("the doctor checked nothing")
    must(cotenant("sim", "run", "philly/0e4a51", "--policy", "fifo", "--jobs", "20"), "a trace that we ship")
    try:
        done = cotenant("run", "--", "python", TRAINING, "3")
    except subprocess.TimeoutExpired as error:
        said = [part.decode(errors="replace") for part in (error.stdout, error.stderr) if part]
        logs = [f"{log.name}: {log.read_text(errors='replace')[-4000:]}" for log in home.rglob("*.log")]
        sys.exit("\n".join([f"one submission took over {SUBMISSION_TIMEOUT_S:.0f} s", *said, *logs]))
    if "epoch 2" not in must(done, "one submission"):
        sys.exit(f"the job's output did not arrive:\n{done.stdout}\n{done.stderr}")
    job = json.loads(must(cotenant("show", "1", "-o", "json"), "its history"))
    if job["step"] != STEPS:
        sys.exit(f"the hook counted {job['step']} steps of {STEPS}")


def end_descendants() -> None:
    """`run` leaves its controller for the next `run`. We are their reaper, so all of them are below us."""
    left = psutil.Process().children(recursive=True)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=within_s(10))


def main() -> int:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        folder = Path(name)
        try:
            wheel = build(folder / "dist")
            check_contents(wheel)
            programs = environment(folder / "env", wheel)
            check_imports(programs)
            installed(programs, folder / "home")
            unit_tests(programs, [word for word in sys.argv[1:] if word != "--cov"], "--cov" in sys.argv[1:])
        finally:
            end_descendants()
    return 0


if __name__ == "__main__":
    sys.exit(main())
