"""What a user gets from `pip install cotenant`: build the wheel, test it where the sources cannot be seen.

Rule: the source tree must not help. The wheel is built from the sdist, installed into an environment of its
own, and its tests run isolated from the current folder. Only the dependencies are borrowed from the
development environment: downloading torch a second time would prove nothing.

The wheel's files are the source tree's, byte for byte, and each module is imported: what they do is tested in
the source tree. What is left depends on where we are installed: programs and data are found, a job gets our
hook, and the few tests that tests/run.py names. Who installs us with uv or pipx has an environment without
torch, and jobs in another: that is tried with each version of Python that is here. Arguments go to pytest in
place of the whole unit set: python tests/wheel.py tests/controller/cli. With `--cov` it measures what they
cover.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from tests.building.limits import within_s  # noqa: E402

EXAMPLES = Path("examples/demo")
"""What installs as `cotenant.examples`: programs that jobs run, so nothing imports them."""
INSTALLED = ("agent", "checkpoint", "controller", "gradaccum", "mps", "profiler", str(EXAMPLES))
FACE = Path("controller/python/face")
"""What installs as `cotenant` itself."""
HYDRA_PLUGINS = Path("controller/integrations/hydra_plugins")
"""What installs at the top level, where Hydra looks."""
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
    if path.parent == HYDRA_PLUGINS:
        return f"{path.parent.name}/{path.name}"
    if path.parent == EXAMPLES:
        return f"cotenant/examples/{path.name}"
    return f"cotenant/{path.name if path.parent == FACE else path}"


def check_imports(programs: Path) -> None:
    """Every module can be imported from the wheel alone, those that only a user's job loads included."""
    names = [
        installed_as(path.relative_to(ROOT)).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for folder in INSTALLED
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name not in NO_MODULES and path.parent not in (ROOT / FACE, ROOT / EXAMPLES)
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


VERSIONS = ("3.11", "3.12", "3.13")
"""Of Python, under which a person may install us."""


def tools(folder: Path, wheel: Path) -> None:
    """What `uv tool install` and `pipx install` give, with each Python that is here; two at a time."""
    must(run([sys.executable, "-m", "venv", folder / "tools"]), "making an environment for uv and pipx")
    programs = folder / "tools" / "bin"
    fetched = run([programs / "pip", "install", "-q", "uv", "pipx"])
    if fetched.returncode != 0:
        print(
            f"uv and pipx: skipped, the package index has none: {fetched.stderr.strip()[-300:]}", flush=True
        )
        return
    of_jobs = folder / "jobs"  # A person's own environment: torch, and nothing of ours.
    must(run([sys.executable, "-m", "venv", "--without-pip", of_jobs]), "making a person's environment")
    (site,) = of_jobs.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    people: list[tuple[Path, Path, str]] = []
    for version in VERSIONS:
        python = interpreter(programs / "uv", version)
        if python is None:
            print(f"uv with Python {version}: skipped, there is no such interpreter here", flush=True)
            continue
        place = folder / f"uv-{version}"
        env = {"UV_TOOL_DIR": str(place), "UV_TOOL_BIN_DIR": str(place / "bin"), "UV_LINK_MODE": "copy"}
        install: list[str | Path] = [programs / "uv", "tool", "install", "-q", "--python", python, wheel]
        must(run(install, env={**os.environ, **env}), f"uv tool install, Python {version}")
        people.append((place, of_jobs, f"uv, Python {version}"))
    place = folder / "pipx"
    env = {"PIPX_HOME": str(place), "PIPX_BIN_DIR": str(place / "bin")}
    install = [programs / "pipx", "install", "--python", sys.executable, wheel]
    must(run(install, env={**os.environ, **env}), "pipx install")
    people.append((place, of_jobs, "pipx"))
    with ThreadPoolExecutor(2) as at_once:
        for each in [at_once.submit(person, *one) for one in people]:
            each.result()


def interpreter(uv: Path, version: str) -> Path | None:
    """One that starts: ours, or one that uv or pyenv knows."""
    if sys.version.startswith(f"{version}."):
        return Path(sys.executable)
    asks: tuple[list[str | Path], ...] = (
        [uv, "python", "find", "--no-python-downloads", version],
        ["pyenv", "whence", "--path", f"python{version}"],
    )
    for command in asks:
        with suppress(FileNotFoundError):
            for line in run(command).stdout.splitlines():
                if run([line, "-c", ""]).returncode == 0:
                    return Path(line)
    return None


def person(place: Path, of_jobs: Path, what: str) -> None:
    """Somebody who has `cotenant` from there, and torch in an environment of their own."""
    if found := [*place.glob("**/site-packages/torch")]:
        sys.exit(f"{what}: torch came along: {found}")
    home = place / "home"
    home.mkdir(mode=0o700)
    env = {
        "PATH": f"{of_jobs}/bin:{place}/bin:/usr/bin:/bin",
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home),
    }
    env |= {
        "COTENANT_LOCK_DIR": str(home / "locks"),
        "OMP_NUM_THREADS": "1",
        "COTENANT_AGENT__DEVICES": "cpu:1",
    }
    program = place / "bin" / "cotenant"

    def cotenant(*words: str | Path) -> str:
        said = f"{what}: cotenant {' '.join(map(str, words))}"
        return must(run([program, *words], env=env, timeout_s=SUBMISSION_TIMEOUT_S), said)

    cotenant("--help")
    with subprocess.Popen([program, "up"], env=env, cwd="/", stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        if not any("agent ready" in line for line in up.stdout):
            sys.exit(f"{what}: `cotenant up` ended with {up.wait()}")
        cotenant("submit", "--", "sh", "-c", "echo plain")
        cotenant("wait", "1")
        if "plain" not in cotenant("logs", "1"):
            sys.exit(f"{what}: the plain command's output did not arrive")
        cotenant("run", "--", "python", TRAINING, "3")
        if json.loads(cotenant("show", "2", "-o", "json"))["step"] != STEPS:
            sys.exit(f"{what}: the hook did not reach the person's own interpreter")
        up.terminate()


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
            tools(folder, wheel)
            unit_tests(programs, [word for word in sys.argv[1:] if word != "--cov"], "--cov" in sys.argv[1:])
        finally:
            end_descendants()
    return 0


if __name__ == "__main__":
    sys.exit(main())
