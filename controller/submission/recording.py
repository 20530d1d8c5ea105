"""What a submission takes along from where the user stands: variables, who they are, and what the command
would run as one hash: script, modules beside it, configuration files, libraries.

Rule: the job sees the recorded environment and nothing of the agent's own. Values whose names look like
secrets travel apart: they never enter journal, logs or `show`. A hash that left out something that matters
would hand a job the profile of another; so where a file is too large or cannot be read there is no hash, and
the job is measured.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.submission.options import BadSubmission

ALWAYS: Final = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "LD_LIBRARY_PATH")
HOSTS_OWN: Final = (*ALWAYS, "PYTHONHOME", "LD_PRELOAD", "HOME", "SHELL", "TMPDIR")
NEVER: Final = re.compile(
    r"_|PWD|OLDPWD|SHLVL|XDG_RUNTIME_DIR|COTENANT_.*|SLURM_.*|CUDA_MPS_.*"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|PET_.*|TORCHELASTIC_.*|GIT_(DIR|COMMON_DIR|WORK_TREE|INDEX_FILE)"
)
"""Of this shell, of the rank that submits, or of the git hook that does, not of the job; left out even by
`--export ALL`."""
SECRET: Final = re.compile(r"TOKEN|SECRET|KEY|PASSWORD", re.IGNORECASE)
ENVIRONMENT_BYTES_MAX: Final = 512 * 1024


class RecordedEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    open: dict[str, str]
    secrets: dict[str, str]


def is_secret(name: str) -> bool:
    return SECRET.search(name) is not None


def record(
    environ: Mapping[str, str],
    export: Iterable[str] = (),
    env: Iterable[tuple[str, str | None]] = (),
    *,
    of_host: bool = True,
) -> RecordedEnvironment:
    """Records the job's variables: the usual ones, those exported, and those set for it (strongest).
    `of_host` False: without those that say where programs are here, since its image says where they are.

    Raises:
        BadSubmission: a variable to copy does not exist, one is MPS's, or all together are too large.
    """
    env = list(env)
    names = set(export)
    if ours := sorted(name for name in (*names, *dict(env)) if name.startswith("CUDA_MPS_")):
        raise BadSubmission(
            f"{ours[0]}: the agent of its host says which MPS daemon a job is a client of, if of any",
            "leave it out; for a part of a GPU: --gpus 0.5",
        )
    everything = "ALL" in names
    taken = {
        name: value
        for name, value in environ.items()
        if (name in ALWAYS and "NONE" not in names) or (everything and not NEVER.fullmatch(name))
        if of_host or name not in HOSTS_OWN
    }
    if of_host and "NONE" not in names and environ.get("HOME", "") not in ("", account_home()):
        taken["HOME"] = environ["HOME"]  # Else it is the one of the account on the job's host.
    for name in sorted(names - {"ALL", "NONE"}):
        taken[name] = _own(environ, name, "--export")
    for name, value in env:
        taken[name] = _own(environ, name, "--env") if value is None else value
    size = sum(len(name) + len(value.encode(errors="replace")) for name, value in taken.items())
    if size > ENVIRONMENT_BYTES_MAX:
        raise BadSubmission(f"the job's variables take {size} bytes; {ENVIRONMENT_BYTES_MAX} are possible")
    return RecordedEnvironment(
        open={name: value for name, value in sorted(taken.items()) if not is_secret(name)},
        secrets={name: value for name, value in sorted(taken.items()) if is_secret(name)},
    )


def _own(environ: Mapping[str, str], name: str, flag: str) -> str:
    value = environ.get(name)
    if value is None:
        raise BadSubmission(
            f"{flag} {name}: you have no variable {name}", f"give it a value: --env {name}=VALUE"
        )
    return value


def account_home() -> str:
    """The home of this account in the user database; empty: it is not there."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def user_name(uid: int | None = None) -> str:
    """The name of a user, where none is said of this process's; the number of one without a name."""
    number = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


FILE_BYTES_MAX: Final = 4 * 1024 * 1024
FILES_MAX: Final = 2_000
BYTES_MAX: Final = 32 * 1024 * 1024
ENTRIES_MAX: Final = 20_000
"""Names looked at below the script's folder."""
_NO_CODE: Final = frozenset(("__pycache__", "node_modules", "site-packages"))


class _Unknown(Exception):
    """A file that the hash depends on cannot be read within the bounds."""


def code_sha256(argv: Sequence[str], workdir: Path, path: str) -> str:
    """The hash, or an empty text where the code is not known from here. `path` is the job's PATH.

    Counted in: each file that the command line names, with its content; every Python file in and below the
    folder of each Python script (of the working directory for `python -m`), which is where it imports from;
    the program's own file name and size, and the names of the packages installed in its environment, which
    carry their versions. Modules elsewhere on PYTHONPATH are known by that variable alone.
    """
    digest = hashlib.sha256()
    try:
        for label, content in _parts(argv, workdir, path):
            digest.update(f"{label}\0{len(content)}\0".encode(errors="surrogateescape"))
            digest.update(content)
    except (OSError, RuntimeError, _Unknown):  # RuntimeError: links that go in circles.
        return ""
    return digest.hexdigest()


def _parts(argv: Sequence[str], workdir: Path, path: str) -> Iterator[tuple[str, bytes]]:
    program = _program(argv[0], workdir, path)
    yield "program", f"{program}:{program.stat().st_size}".encode(errors="surrogateescape")
    yield "packages", "\n".join(_packages(program)).encode(errors="surrogateescape")
    folders = [workdir] if "-m" in argv[1:3] else []
    for word in argv[1:]:
        named = workdir / word
        if not word.startswith("-") and named.is_file():
            yield f"file {word}", _content(named)
            if named.suffix == ".py":
                folders.append(named.parent)
    if program.suffix == ".py":
        folders.append(program.parent)
    count = size = 0
    for folder in dict.fromkeys(each.resolve() for each in folders):
        for file in _modules(folder):
            content = _content(file)
            count, size = count + 1, size + len(content)
            if count > FILES_MAX or size > BYTES_MAX:
                raise _Unknown
            yield f"module {file.relative_to(folder)}", content


def _program(word: str, workdir: Path, path: str) -> Path:
    found = str(workdir / word) if "/" in word else shutil.which(word, path=path)
    if found is None:
        raise _Unknown
    return Path(found)


def _packages(program: Path) -> list[str]:
    """`torch-2.13.0.dist-info` and so on, from the environment that the program stands in."""
    places = program.parent.parent.glob("lib/python3*/site-packages")
    return sorted(
        f"{place.parent.name}/{entry.name}"
        for place in places
        for entry in place.iterdir()
        if entry.name.endswith((".dist-info", ".egg-info", ".egg-link"))
    )


def _modules(folder: Path) -> Iterator[Path]:
    """Python files in and below a folder, in a fixed order; environments and hidden folders are left out."""
    seen = 0
    for parent, folders, names in os.walk(folder):
        seen += len(folders) + len(names)
        if seen > ENTRIES_MAX:
            raise _Unknown
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _NO_CODE
            and not (Path(parent) / name / "pyvenv.cfg").exists()
        )
        yield from (Path(parent) / name for name in sorted(names) if name.endswith(".py"))


def _content(file: Path) -> bytes:
    if file.stat().st_size > FILE_BYTES_MAX:
        raise _Unknown
    return file.read_bytes()
