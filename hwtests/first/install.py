"""Install what a kit carries beside this machine's torch: `python -m hwtests.first.install`, in the kit.

Rule: no network, no root, no pip. Wheels are archives: those that fit this Python are unpacked into an
environment of their own (made without ensurepip, which distributions leave out), and what this machine has is
linked into it. So no variable or file of pip's settings has a say, the kit's versions come first, and no
`.pth` file of the machine runs: one that starts code would keep every fork server from starting, which says
nothing about a GPU.
"""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

KIT: Final = Path(__file__).resolve().parents[2]
INSTALLED: Final = ".installed"
PYTHONS: Final = ((3, 11), (3, 12))
LEFT_OUT: Final = frozenset(("__pycache__", "pip", "setuptools", "wheel", "_distutils_hack"))


class CannotInstall(Exception):
    """Why, and what to do, in a sentence."""


def install(kit: Path) -> Path:
    """The interpreter of the kit's environment, made where it is not yet.

    Raises:
        CannotInstall: this Python is none that the kit has wheels for, or makes no environment.
    """
    home = kit / ".venv"
    python = home / "bin" / "python"
    if (home / INSTALLED).exists():
        return python
    if sys.version_info[:2] not in PYTHONS:
        raise CannotInstall(
            f"Python {sys.version_info[0]}.{sys.version_info[1]}: the kit has wheels for 3.11 and 3.12; "
            "name one of them that has torch: PYTHON=/path/to/python3"
        )
    shutil.rmtree(home, ignore_errors=True)
    words = [sys.executable, "-m", "venv", "--without-pip", str(home)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotInstall(
            f"{sys.executable} makes no environment: {(done.stdout + done.stderr).strip()[-300:]}"
        )
    site = home / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for wheel in choose_wheels(
        sorted(path.name for path in (kit / "wheels").glob("*.whl")), sys.version_info[:2]
    ):
        unpack(kit / "wheels" / wheel, site)
    link_machine(site, machine_folders(sys.path, (home,)))
    write_scripts(site, home / "bin")
    (home / INSTALLED).touch()
    return python


def choose_wheels(names: Iterable[str], version: tuple[int, ...]) -> list[str]:
    """Those for this Python: pure ones, its own, and those of the stable interface of an older one."""
    own = f"cp{version[0]}{version[1]}"
    chosen = []
    for name in names:
        pythons, interfaces = name.removesuffix(".whl").split("-")[-3:-1]
        stable = [int(tag[3:]) for tag in pythons.split(".") if re.fullmatch(r"cp3\d+", tag)]
        is_stable = "abi3" in interfaces.split(".") and any(minor <= version[1] for minor in stable)
        if own in pythons.split(".") or "py3" in pythons.split(".") or is_stable:
            chosen.append(name)
    return chosen


def unpack(wheel: Path, site: Path) -> None:
    """Its packages; what a wheel would put elsewhere (scripts, headers) is left out."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            first, _, rest = name.partition("/")
            if first.endswith(".data"):
                kind, _, rest = rest.partition("/")
                if kind in ("purelib", "platlib") and rest and not rest.endswith("/"):
                    target = site / rest
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(name))
            else:
                archive.extract(name, site)


def machine_folders(path: Sequence[str], but: Sequence[Path]) -> list[Path]:
    """This interpreter's folders of packages: all that it searches but the standard library and the kit."""
    library = Path(sysconfig.get_path("stdlib")).resolve()
    found: list[Path] = []
    for each in path:
        folder = Path(each).resolve() if each else KIT
        is_library = folder == library or folder == library / "lib-dynload" or not folder.is_dir()
        if (
            is_library
            or folder == KIT
            or folder in found
            or any(one in (folder, *folder.parents) for one in but)
        ):
            continue
        found.append(folder)
    return found


def link_machine(site: Path, folders: Iterable[Path]) -> None:
    """Link what those folders hold and the environment has not, the first of a name."""
    ours = {project_of(path.name) for path in site.iterdir() if path.suffix == ".dist-info"}
    for folder in folders:
        for entry in sorted(folder.iterdir()):
            is_package = entry.is_dir() or entry.suffix in (".py", ".so")
            is_metadata = entry.suffix in (".dist-info", ".egg-info")
            if not is_package or entry.name in LEFT_OUT or entry.name.startswith("."):
                continue
            if is_metadata and project_of(entry.name) in ours:
                continue
            target = site / entry.name
            if not target.exists() and not target.is_symlink():
                target.symlink_to(entry)


def project_of(metadata: str) -> str:
    """The project's name, as names are compared, of `Some_Name-1.2.dist-info`."""
    return re.sub(r"[-_.]+", "-", metadata.partition("-")[0]).lower()


def write_scripts(site: Path, folder: Path) -> None:
    """The commands of the wheels."""
    for path in site.glob("*.dist-info/entry_points.txt"):
        if path.parent.is_symlink():
            continue
        parser = configparser.ConfigParser(interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read(path)
        for name, place in parser["console_scripts"].items() if parser.has_section("console_scripts") else ():
            module, _, function = place.partition("[")[0].strip().partition(":")
            script = folder / name
            script.write_text(
                f"#!{folder / 'python'}\nimport sys\nfrom {module} import {function.split('.')[0]}\n"
                f"sys.exit({function}())\n"
            )
            script.chmod(0o755)


def main() -> int:
    try:
        print(install(KIT))
    except CannotInstall as problem:
        print(f"gpu-kit: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
