"""The kit: a folder with everything that the first nine minutes and the study need on a machine without
network, except torch.

    python -m experiments.gpu_study.kit [--out dist/gpu-kit]

Rule: what is carried is pinned in requirements-dev.txt, tracked by git, and free to pass on: no traces of
others. The digits on which jobs train are taken out of scikit-learn's wheel, which with scipy would be larger
than the kit may be.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).resolve().parent
LIMIT_MIB: Final = 60.0
MIB: Final = 2**20
PYTHONS: Final = ("3.11", "3.12")
PLATFORMS: Final = ("manylinux2014_x86_64", "manylinux_2_27_x86_64", "manylinux_2_28_x86_64")
TREE: Final = (
    "hwtests",
    "experiments/__init__.py",
    "experiments/shared",
    "experiments/gpu_study",
    "pyproject.toml",
    "LICENSE",
    "NOTICE",
)
"""What the study runs from its own folder; cotenant itself comes as a wheel."""
SCRIPTS: Final = ("first.sh", "run.sh", "find_python.sh")
LEFT_OUT: Final = frozenset(("torch", "scipy", "matplotlib", "xgboost-cpu", "scikit-learn"))
DIGITS: Final = "sklearn/datasets/data/digits.csv.gz"
LARGEST: Final = 5
"""Files that an error names."""


class TooLarge(Exception):
    """The kit is over its limit; the text names its largest files."""


def build(out: Path) -> float:
    """Make the kit anew; its size in MiB.

    Raises:
        TooLarge: it would not be carried.
        subprocess.CalledProcessError: a wheel is not to be had; pip has said which.
    """
    if out.exists():
        if not (out / "COMMIT").exists() and any(out.iterdir()):
            raise SystemExit(f"gpu-kit: {out} holds something else: take another --out, or remove it")
        shutil.rmtree(out)
    wheels = out / "wheels"
    wheels.mkdir(parents=True)
    tell("our wheel")
    call_pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(ROOT))
    pins = read_pins((ROOT / "requirements-dev.txt").read_text())
    for python in PYTHONS:
        tell(f"wheels for Python {python}")
        download(wheels, python, list_requirements((ROOT / "pyproject.toml").read_text(), pins), pins)
    tell("the digits, and what the study runs")
    take_digits(out, pins)
    copy_tree(out)
    return check_size(out)


def tell(text: str) -> None:
    print(f"gpu-kit: {text}", flush=True)


def call_pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *words], check=True)


def read_pins(text: str) -> dict[str, str]:
    """Name -> version, of lines `name==version`."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return {name.lower(): version for name, sign, version in (line.partition("==") for line in lines) if sign}


def list_requirements(project: str, pins: Mapping[str, str]) -> list[str]:
    """What a controller and an agent need, and the hardware suite's pytest, each pinned.

    Raises:
        KeyError: a dependency is not pinned.
    """
    asked = tomllib.loads(project)["project"]["dependencies"]
    names = [*(each.partition(">")[0].strip().lower() for each in asked), "pytest"]
    return [f"{name}=={pins[name]}" for name in names]


def download(wheels: Path, python: str, wanted: Sequence[str], pins: Mapping[str, str]) -> None:
    """Wheels for one Python, with what they need; constrained to our pins, without what is left out."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as limits:
        limits.writelines(f"{name}=={pins[name]}\n" for name in pins if name not in LEFT_OUT)
        limits.flush()
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        tags = ["--python-version", python, "--implementation", "cp", *platforms, "--only-binary=:all:"]
        call_pip("download", *tags, "--constraint", limits.name, "-d", str(wheels), *wanted)


def take_digits(out: Path, pins: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        call_pip(
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "-d",
            name,
            f"scikit-learn=={pins['scikit-learn']}",
        )
        (wheel,) = Path(name).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (out / "digits.csv.gz").write_bytes(archive.read(DIGITS))
            licence = next(each for each in archive.namelist() if each.endswith("/COPYING"))
            (out / "digits-licence.txt").write_bytes(archive.read(licence))


def copy_tree(out: Path) -> None:
    for name in list_tree():
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    for script in SCRIPTS:
        shutil.copy2(HERE / script, out / script)
    shutil.copy2(HERE / "kit.md", out / "README.md")
    (out / "COMMIT").write_text(ask_git("rev-parse", "--short", "HEAD").strip() + "\n")


def list_tree() -> list[str]:
    """Tracked files of the study: nothing that only lies about here gets into a kit."""
    return ask_git("ls-files", "--", *TREE).splitlines()


def ask_git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def check_size(out: Path, limit_mib: float = LIMIT_MIB) -> float:
    """The kit's size in MiB.

    Raises:
        TooLarge: it is over the limit.
    """
    sizes = {str(path.relative_to(out)): path.stat().st_size for path in out.rglob("*") if path.is_file()}
    size_mib = sum(sizes.values()) / MIB
    if size_mib > limit_mib:
        raise TooLarge(
            f"{out} has {size_mib:.1f} MiB, and may have {limit_mib:g}: {name_largest(sizes.items())}"
        )
    return size_mib


def name_largest(sizes: Iterable[tuple[str, int]]) -> str:
    largest = sorted(sizes, key=lambda each: -each[1])[:LARGEST]
    return ", ".join(f"{name} {size / MIB:.1f}" for name, size in largest)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="gpu-kit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "gpu-kit", metavar="FOLDER")
    options = parser.parse_args()
    try:
        size_mib = build(options.out)
    except (TooLarge, subprocess.CalledProcessError) as problem:
        print(f"gpu-kit: {problem}", file=sys.stderr)
        return 1
    tell(f"{options.out}: {size_mib:.1f} MiB; carry it to the machine, start first.sh there, then run.sh")
    return 0


if __name__ == "__main__":
    sys.exit(main())
