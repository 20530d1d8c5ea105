"""What a checkpoint looks like on disk: names, the manifest, which ones count.

Rule: a directory is a checkpoint only if its manifest says so and every file in it matches. Names starting
with a dot are work in progress and never read. The greatest (attempt, step) is the newest; a reader ignores
attempts above its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from cotenant.checkpoint.talk.protocol import CHECKPOINT_NAME_PATTERN, MANIFEST_NAME, MANIFEST_VERSION

MANIFEST_BYTES_MAX: Final = 16 * 2**20
_NAME = re.compile(CHECKPOINT_NAME_PATTERN)
_TEMPORARY = re.compile(r"\." + CHECKPOINT_NAME_PATTERN + r"\.tmp")
_READING = re.compile(r"\.reading-a(\d+)")
_READ_BYTES: Final = 4 * 2**20


class CheckpointError(RuntimeError):
    """Saving or loading cannot go on; the text says what, where and what to do."""


class Damaged(CheckpointError):
    """A checkpoint that cannot be trusted; an older one may do."""


class TooNew(CheckpointError):
    """Written in another version: refused, never guessed at."""


@dataclass(frozen=True)
class FileEntry:
    """Size and checksum of one file."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The contents of `manifest.json`; written last, so its presence means that all else is there."""

    job: str
    attempt: int
    step: int
    world_size: int
    files: Mapping[str, FileEntry]
    parameters_sha256: str
    facts: Mapping[str, Any]
    history: tuple[tuple[int, int], ...]
    """(from step, s): how many accumulation steps were used from which step on."""
    exact: bool
    note: str
    """Why this state may differ from an uninterrupted run's, when it is not exact."""

    def to_json(self) -> bytes:
        content: dict[str, Any] = {"version": MANIFEST_VERSION, **asdict(self)}
        content["manifest_sha256"] = _digest(content)
        return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"

    @staticmethod
    def from_json(data: bytes, where: Path) -> Manifest:
        try:
            content = json.loads(data)
            version = content["version"]
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise Damaged(f"{where}: not a manifest ({error})") from None
        if version != MANIFEST_VERSION:
            raise TooNew(
                f"{where} has manifest version {version}, this cotenant reads {MANIFEST_VERSION}: "
                "upgrade cotenant on this host"
            )
        try:
            claimed = content.pop("manifest_sha256")
            if claimed != _digest(content):
                raise Damaged(f"{where}: the manifest does not match its own checksum")
            del content["version"]
            files = {name: FileEntry(**entry) for name, entry in content.pop("files").items()}
            history = tuple((int(step), int(s)) for step, s in content.pop("history"))
            return Manifest(files=files, history=history, **content)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise Damaged(f"{where}: not a manifest ({error})") from None


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def content_sha256(manifest: Manifest) -> str:
    """A hash that identifies a manifest: ranks compare it to be sure that they read the same checkpoint."""
    return hashlib.sha256(manifest.to_json()).hexdigest()


def checkpoint_name(attempt: int, step: int) -> str:
    return f"a{attempt}-s{step}"


def parse_name(name: str) -> tuple[int, int] | None:
    """(attempt, step) of a checkpoint directory's name."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def temporary_name(attempt: int, step: int) -> str:
    return f".{checkpoint_name(attempt, step)}.tmp"


def names_newest_first(root: Path, attempt_max: int | None = None) -> list[str]:
    """Checkpoint directories by (attempt, step), without those of attempts above `attempt_max`.

    None where there is no such folder; an error where we may not read it.
    """
    try:
        found = [(key, name) for name in os.listdir(root) if (key := parse_name(name))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"cannot look for checkpoints in {root}: {error}") from error
    return [name for key, name in sorted(found, reverse=True) if attempt_max is None or key[0] <= attempt_max]


def read_manifest(directory: Path) -> Manifest:
    """The manifest, checked against its own checksum and the directory's name."""
    path = directory / MANIFEST_NAME
    try:
        with open(path, "rb") as file:
            data = file.read(MANIFEST_BYTES_MAX + 1)
    except OSError as error:
        raise Damaged(f"{directory}: no readable manifest ({error})") from None
    if len(data) > MANIFEST_BYTES_MAX:
        raise Damaged(f"{path} is larger than {MANIFEST_BYTES_MAX} bytes")
    manifest = Manifest.from_json(data, path)
    if (manifest.attempt, manifest.step) != parse_name(directory.name):
        raise Damaged(f"{path} is of a{manifest.attempt}-s{manifest.step}")
    return manifest


def verify(directory: Path, only: tuple[str, ...] | None = None) -> Manifest:
    """Read every file (or those in `only`) and compare size and checksum; raises Damaged or TooNew."""
    manifest = read_manifest(directory)
    for name in sorted(manifest.files) if only is None else only:
        entry = manifest.files.get(name)
        if entry is None:
            raise Damaged(f"{directory}: {name} is not in the manifest")
        path = directory / name
        try:
            size_bytes = os.stat(path).st_size
            if size_bytes != entry.size_bytes:
                raise Damaged(f"{path} has {size_bytes} bytes, the manifest says {entry.size_bytes}")
            if file_sha256(path) != entry.sha256:
                raise Damaged(f"{path} does not match its sha256")
        except OSError as error:
            raise Damaged(f"{path} cannot be read ({error})") from None
    return manifest


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        while True:
            count = file.readinto(buffer)
            if not count:
                return digest.hexdigest()
            digest.update(buffer[:count])


def announce_reader(root: Path, attempt: int) -> None:
    """Tell older attempts that may still be alive to delete nothing from now on."""
    with open(root / f".reading-a{attempt}", "wb"):
        pass


def newest_reader(root: Path) -> int:
    """The greatest attempt that has announced itself or saved here, 0 if none."""
    attempts = [key[0] for name in names_newest_first(root)[:1] if (key := parse_name(name))]
    for name in os.listdir(root) if root.is_dir() else []:
        match = _READING.fullmatch(name)
        if match:
            attempts.append(int(match[1]))
    return max(attempts, default=0)


def sweep_temporaries(root: Path, attempt: int, before_step: int = 0) -> None:
    """Remove what older attempts, or this one before `before_step`, left half-written."""
    for name in os.listdir(root):
        match = _TEMPORARY.fullmatch(name)
        if match and (int(match[1]), int(match[2])) < (attempt, before_step):
            shutil.rmtree(root / name, ignore_errors=True)
        reading = _READING.fullmatch(name)
        if reading and int(reading[1]) < attempt:
            _unlink(root / name)


def keep_newest(root: Path, attempt: int, keep: int) -> list[str]:
    """Delete own and older attempts' checkpoints beyond the newest `keep`; returns what was deleted.

    The caller has just verified the newest. Nothing is deleted once a later attempt has shown itself: it
    may be reading.
    """
    if newest_reader(root) > attempt:
        return []
    whole = [name for name in names_newest_first(root, attempt) if _looks_whole(root / name)]
    if len(whole) < keep:
        return []
    oldest_kept = parse_name(whole[keep - 1])
    assert oldest_kept is not None
    gone = [
        name for name in names_newest_first(root, attempt) if (parse_name(name) or oldest_kept) < oldest_kept
    ]
    for name in gone:
        _unlink(root / name / MANIFEST_NAME)  # from here on nobody takes what is left for a checkpoint
        shutil.rmtree(root / name, ignore_errors=True)
    return gone


def _looks_whole(directory: Path) -> bool:
    """Whether a cheap look finds the manifest and sizes right. Only used to decide what is worth keeping."""
    try:
        manifest = read_manifest(directory)
        return all(os.stat(directory / n).st_size == e.size_bytes for n, e in manifest.files.items())
    except (CheckpointError, OSError):
        return False


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
