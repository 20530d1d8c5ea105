"""`--snapshot`: the working tree as one file, named by its SHA-256, before the job is submitted.

Rule: equal trees make equal bytes. Entries are sorted and carry no times and no owners, so tasks of an array
and repeated submissions share one snapshot. What a snapshot cannot hold is refused with its path; a file
that changes while it is read is read once more, then refused.
"""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import io
import os
import stat
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Literal, NamedTuple

from cotenant.controller.domain import job_spec
from cotenant.controller.present.snapshots import TransferProgress
from cotenant.controller.submission.options import BadSubmission
from cotenant.controller.submission.recording import NEVER

IGNORE_FILE: Final = ".cotenantignore"
NEVER_PACKED: Final = frozenset((".git", "__pycache__"))
ENVIRONMENTS: Final = ("pyvenv.cfg", "conda-meta")
"""A folder with one of these in it is an environment of Python's."""
CONTENT_FACTOR: Final = 4
"""The files may take so many times what the packed tree may."""
FILES_MAX: Final = 100_000
DEPTH_MAX: Final = 200
PATH_BYTES_MAX: Final = 3000
"""As hosts have them, which unpack it."""
LARGEST_SHOWN: Final = 3
SHOWN_SHARE: Final = 0.01
"""Of the whole: smaller files explain nothing."""
SCRIPTS: Final = (".py", ".sh", ".bash", ".slurm", ".sbatch", ".job")
LEFT_OVER_S: Final = 86_400.0
"""A packed tree that was not submitted is removed after this."""
GIT_S_MAX: Final = 60.0
LEAVE_OUT: Final = f"take it out of git or, with --snapshot copy, name it in {IGNORE_FILE}"
_MIB: Final = 1024 * 1024


class PackedTree(NamedTuple):
    snapshot: job_spec.CodeSnapshot
    names: frozenset[str]
    """Its files, links and folders, below its top."""
    untracked: tuple[str, ...] = ()
    """Files there that git neither tracks nor ignores, and that were not taken along; scripts first."""


def pack_tree(
    kind: Literal["git", "copy"], workdir: Path, more: Sequence[Path], folder: Path, size_max_mib: int
) -> PackedTree:
    """Packs the tree that a job is to run in into `folder`, under its SHA-256. `more`: files and folders that
    it takes along besides.

    Raises:
        BadSubmission: a snapshot cannot hold this tree; the text says why, and what to do.
    """
    workdir = workdir.resolve()
    top = Path(_git_text(workdir, "rev-parse", "--show-toplevel")) if kind == "git" else workdir
    names = set(_tracked(top) if kind == "git" else _below(top, _patterns(top)))
    for path in more:
        names.update(_added(top, path))
    if kind == "git" and not names:
        raise BadSubmission(
            f"--snapshot git: git tracks no file in {top}", "git add them, or take --snapshot copy"
        )
    entries = {name: _entry(top, name) for name in sorted(names, key=os.fsencode)}
    files = {name: each.st_size for name, each in entries.items() if stat.S_ISREG(each.st_mode)}
    _check_names(entries)
    _check_size(files, sum(files.values()), CONTENT_FACTOR * size_max_mib, "")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left_over in folder.iterdir():
        with suppress(FileNotFoundError):
            if left_over.stat().st_mtime < time.time() - LEFT_OVER_S:
                left_over.unlink()
    with tempfile.NamedTemporaryFile(dir=folder) as output:
        content = _write(top, entries, output)
        output.flush()
        size = os.path.getsize(output.name)
        _check_size(files, size, size_max_mib, " packed")
        output.seek(0)
        sha256 = hashlib.file_digest(output, "sha256").hexdigest()
        with suppress(FileExistsError):  # The same tree.
            os.link(output.name, folder / sha256)
    subfolder = "" if workdir == top else str(workdir.relative_to(top))
    commit, branch, dirty = _commit_of(workdir) if kind == "git" or _tracks(workdir) else ("", "", False)
    snapshot = job_spec.CodeSnapshot(
        sha256=sha256,
        kind=kind,
        size_bytes=size,
        content_bytes=content,
        files=len(files),
        top=str(top),
        subfolder=subfolder,
        commit=commit,
        branch=branch,
        dirty=dirty,
    )
    left_out = set(_untracked(top)) - names if kind == "git" else ()
    scripts_first = sorted(left_out, key=lambda name: (not name.endswith(SCRIPTS), name))
    return PackedTree(snapshot, frozenset(entries), tuple(scripts_first))


def _check_names(names: Collection[str]) -> None:
    if len(names) > FILES_MAX:
        raise BadSubmission(f"--snapshot: {len(names)} files of {FILES_MAX} possible", LEAVE_OUT)
    for name in names:
        if name.count("/") >= DEPTH_MAX or len(os.fsencode(name)) > PATH_BYTES_MAX:
            raise BadSubmission(
                f"--snapshot: {name[:80]!r}... lies more than {DEPTH_MAX} folders deep or has a path of "
                f"more than {PATH_BYTES_MAX:,} bytes",
                LEAVE_OUT,
            )


def _check_size(files: Mapping[str, int], size: int, most_mib: int, how: str) -> None:
    if size > most_mib * _MIB:
        by_size = sorted(files, key=lambda name: -files[name])[:LARGEST_SHOWN]
        largest = [name for name in by_size if files[name] >= size * SHOWN_SHARE] or by_size[:1]
        which = ", ".join(f"{name} ({files[name] / _MIB:.1f} MiB)" for name in largest)
        raise BadSubmission(
            f"--snapshot: {size // _MIB} MiB{how} of {most_mib} possible; the largest files: {which}",
            f"{LEAVE_OUT}, and name data by absolute paths (snapshot.size_max_mib is the bound)",
        )


# --- What is packed ----------------------------------------------------------------------------------


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Raises BadSubmission: git cannot be asked. Which repository is meant, the folder says, and no variable
    of a hook of another."""
    own = {name: value for name, value in os.environ.items() if not NEVER.fullmatch(name)}
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_S_MAX,
            env={**own, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise BadSubmission("--snapshot git: there is no git here", "--snapshot copy needs none") from None
    except subprocess.TimeoutExpired:
        raise BadSubmission(f"--snapshot: git does not answer within {GIT_S_MAX:g} s") from None


def _git_text(folder: Path, *words: str) -> str:
    found = _git(folder, *words)
    if found.returncode:
        why = os.fsdecode(found.stderr).strip().partition("\n")[0].removeprefix("fatal: ")
        raise BadSubmission(f"--snapshot git: {folder}: {why}", "--snapshot copy takes a folder without git")
    return os.fsdecode(found.stdout).removesuffix("\n")


def _tracked(top: Path) -> Iterator[str]:
    """What git tracks, in submodules too, and is there."""
    for name in _git_text(top, "ls-files", "-z", "--cached", "--recurse-submodules").split("\0"):
        if name and os.path.isdir(top / name) and not os.path.islink(top / name):
            hint = f"git submodule update --init {name}"
            raise BadSubmission(f"--snapshot git: the submodule {name} is not checked out", hint)
        if name and os.path.lexists(top / name):
            yield name


def _untracked(top: Path) -> list[str]:
    names = _git_text(top, "ls-files", "-z", "--others", "--exclude-standard").split("\0")
    return [name for name in names if name]


def _tracks(workdir: Path) -> bool:
    """Whether a repository around the folder knows anything in it; one that does not has nothing to say."""
    try:
        return bool(_git(workdir, "ls-files", "--", ".").stdout)
    except BadSubmission:
        return False


def _commit_of(workdir: Path) -> tuple[str, str, bool]:
    """The commit, its branch, and whether tracked files differ from it; empty where there is none."""
    try:
        commit = _git(workdir, "rev-parse", "--verify", "-q", "HEAD")
    except BadSubmission:
        return "", "", False
    if commit.returncode:
        return "", "", False
    branch = _git(workdir, "symbolic-ref", "-q", "--short", "HEAD").stdout
    changes = _git(workdir, "status", "--porcelain", "--untracked-files=no").stdout
    return os.fsdecode(commit.stdout).strip(), os.fsdecode(branch).strip()[:200], bool(changes)


def _patterns(workdir: Path) -> list[str]:
    """The lines of `.cotenantignore`: names with wildcards; one with a slash in it is a path below the
    folder."""
    file = workdir / IGNORE_FILE
    lines = file.read_text(errors="surrogateescape").splitlines() if file.exists() else []
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if any(line.startswith("!") for line in found):
        raise BadSubmission(f"{IGNORE_FILE} has no lines with !", "take a path along with --snapshot-add")
    return found


def _is_ignored(path: str, patterns: Sequence[str]) -> bool:
    name = os.path.basename(path)
    return any(
        fnmatch.fnmatchcase(path if "/" in each.rstrip("/") else name, each.strip("/")) for each in patterns
    )


def _below(top: Path, patterns: Sequence[str], start: str = "") -> Iterator[str]:
    """Everything below a folder, folders too; without git's own, caches and environments."""

    def stop(error: OSError) -> None:
        raise _unreadable(str(error.filename), error)

    for parent, folders, files in os.walk(top / start, onerror=stop):
        for name in (*folders, *files):
            path = os.path.relpath(os.path.join(parent, name), top)
            is_environment = any(os.path.exists(top / path / mark) for mark in ENVIRONMENTS)
            if name not in NEVER_PACKED and not is_environment and not _is_ignored(path, patterns):
                yield path
            elif name in folders:
                folders.remove(name)


def _added(top: Path, path: Path) -> Iterator[str]:
    """What `--snapshot-add` means."""
    there = path.parent.resolve() / path.name
    if not there.is_relative_to(top):
        raise BadSubmission(f"--snapshot-add {path} is not in {top}", "name it by its absolute path instead")
    if not os.path.lexists(there):
        raise BadSubmission(f"--snapshot-add {path} does not exist", "check the path", missing=True)
    name = os.path.relpath(there, top)
    if there.is_dir() and not there.is_symlink():
        yield from _below(top, (), name)
    if name != ".":
        yield name


def _entry(top: Path, name: str) -> os.stat_result:
    """What is there, if a snapshot can hold it."""
    try:
        found = os.lstat(top / name)
    except OSError as error:
        raise _unreadable(name, error) from None
    if stat.S_ISLNK(found.st_mode):
        target = os.readlink(top / name)
        inside = os.path.normpath(os.path.join(os.path.dirname(name), target))
        if not os.path.isabs(target) and inside.split("/")[0] == "..":
            raise BadSubmission(
                f"--snapshot: {name} is a link to {target}, which is not in the snapshot",
                "make it an absolute one, which stays as it is, or leave it out",
            )
    elif not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise BadSubmission(f"--snapshot: {name} is no file, folder or link", LEAVE_OUT)
    return found


def _unreadable(name: str, error: OSError) -> BadSubmission:
    return BadSubmission(f"--snapshot: {name} cannot be read: {error.strerror}", LEAVE_OUT)


# --- How it is packed --------------------------------------------------------------------------------


def _write(top: Path, entries: Mapping[str, os.stat_result], output: IO[bytes]) -> int:
    """Packs the entries. Returns how many bytes the files have."""
    progress = TransferProgress("packing", sum(each.st_size for each in entries.values()))
    content, form = 0, tarfile.GNU_FORMAT
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=output, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=form, errors="surrogateescape") as archive,
    ):
        for name, found in entries.items():
            info, data = tarfile.TarInfo(name), b""
            info.mode = stat.S_IMODE(found.st_mode) & 0o777
            if stat.S_ISLNK(found.st_mode):
                info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, os.readlink(top / name)
            elif stat.S_ISDIR(found.st_mode):
                info.type = tarfile.DIRTYPE
            else:
                data = _read(top / name, name)
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
            content += len(data)
            progress.note(content)
    progress.end()
    return content


def _read(path: Path, name: str) -> bytes:
    """The content of a file that nobody changes meanwhile."""
    for _ in range(2):
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                before = os.fstat(file.fileno())
                data = file.read()
                after = os.fstat(file.fileno())
        except OSError as error:
            raise _unreadable(name, error) from None
        if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, len(data)):
            return data
    raise BadSubmission(f"--snapshot: {name} changes while it is read", "submit when nobody writes to it")


# --- What the command means there --------------------------------------------------------------------


def words_in_tree(argv: Sequence[str], workdir: Path, tree: PackedTree) -> tuple[str, ...]:
    """The command as it is started in a copy of the tree. A packed file that is named by its absolute path is
    the copy's; a program that is not packed, such as `.venv/bin/python`, stays where it is.

    Raises:
        BadSubmission: it names a file of the working directory, or a script of the tree, that is not packed.
    """
    base, top = os.path.realpath(workdir), tree.snapshot.top
    found = []
    for at, word in enumerate(argv):
        path, is_absolute = os.path.normpath(os.path.join(base, word)), os.path.isabs(word)
        is_script = word.endswith(SCRIPTS) and path.startswith(f"{top}/")
        if os.path.relpath(path, top) in tree.names:
            inside = os.path.relpath(path, base)
            found.append((inside if at else os.path.join(".", inside)) if is_absolute else word)
        elif word.startswith("-") or not os.path.isfile(path) or (at == 0 and "/" not in word):
            found.append(word)
        elif at == 0 or (is_absolute and not is_script):
            found.append(path)
        else:
            hint = f"git add it, or --snapshot-add {word}; or name it by its absolute path"
            raise BadSubmission(f"{word} is not in the snapshot of {top}", hint)
    return tuple(found)
