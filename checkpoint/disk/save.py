"""One save by one rank: own files first, then rank 0 makes the whole a checkpoint.

Rule: ranks meet through files in the temporary directory, never through collectives, so that a save can
run beside training. Each rank leaves a record with the checksums of its files; rank 0 waits for all
records, writes the manifest, renames, reads it again. What is not renamed is not a checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, Final

from cotenant.checkpoint.disk import durable, layout
from cotenant.checkpoint.disk.layout import CheckpointError, FileEntry, Manifest
from cotenant.checkpoint.talk.protocol import MANIFEST_NAME

MODEL_FILE: Final = "model.pt"
_POLL_S_MIN: Final = 0.002
_POLL_S_MAX: Final = 0.05


class SaveFailed(CheckpointError):
    """A save that failed: the checkpoint will not exist; older ones are untouched."""


@dataclass(frozen=True)
class SaveOrder:
    """What one rank needs to know to take part in one save."""

    root: Path
    attempt: int
    step: int
    trial: int
    """Counts the tries at this step: what an earlier one left does not count."""
    rank: int
    world_size: int
    idle_s_max: float
    """Give up when nothing has changed in the directory for so long."""

    @property
    def temporary(self) -> Path:
        return self.root / layout.temporary_name(self.attempt, self.step)

    @property
    def final(self) -> Path:
        return self.root / layout.checkpoint_name(self.attempt, self.step)


@dataclass(frozen=True)
class SavePayload:
    """The content that goes into the files. `shared` is rank 0's: model, optimizer and what else all have
    alike."""

    own: Any
    shared: Any | None
    parameters_sha256: Callable[[], str]
    compare_parameters: bool
    """Ranks outside DDP may have drifted apart: then each records its parameters' checksum too."""
    manifest: Mapping[str, Any]


def rank_file(rank: int) -> str:
    return f"rank-{rank}.pt"


def write_own(order: SaveOrder, payload: SavePayload) -> str:
    """Write this rank's files and its record; returns the parameters' sha256 if it was needed."""
    os.makedirs(order.temporary, exist_ok=True)
    files: dict[str, FileEntry] = {}
    needs_sha256 = order.rank == 0 or payload.compare_parameters
    with ThreadPoolExecutor(1, thread_name_prefix="cotenant-parameters") as pool:
        hashing = pool.submit(payload.parameters_sha256) if needs_sha256 else None
        if payload.shared is not None:
            files[MODEL_FILE] = durable.write_tensors(order.temporary / MODEL_FILE, payload.shared)
        name = rank_file(order.rank)
        files[name] = durable.write_tensors(order.temporary / name, payload.own)
        sha256 = hashing.result() if hashing is not None else ""
    record = {
        "trial": order.trial,
        "files": {name: asdict(entry) for name, entry in files.items()},
        "parameters_sha256": sha256,
    }
    durable.write_json(_record(order, order.rank), record)
    return sha256


def publish(order: SaveOrder, payload: SavePayload) -> Manifest:
    """Waits, on rank 0, for every record, then turns the directory into a checkpoint and reads it again."""
    records = _wait_for_records(order)
    sha256 = records[0]["parameters_sha256"]
    differing = [r for r, record in records.items() if record["parameters_sha256"] not in ("", sha256)]
    if differing:
        raise SaveFailed(
            f"ranks {differing} hold other parameters than rank 0: only training that keeps all ranks equal "
            "(DistributedDataParallel) can be saved"
        )
    files = {
        name: FileEntry(**entry) for record in records.values() for name, entry in record["files"].items()
    }
    manifest = Manifest(
        attempt=order.attempt,
        step=order.step,
        world_size=order.world_size,
        files=files,
        parameters_sha256=sha256,
        **payload.manifest,
    )
    for rank in records:
        os.unlink(_record(order, rank))
    durable.write_bytes(order.temporary / MANIFEST_NAME, manifest.to_json())
    durable.sync_directory(order.temporary)
    os.rename(order.temporary, order.final)
    durable.sync_directory(order.root)
    return _read_again(order, manifest)


def wait_published(order: SaveOrder) -> None:
    """Other ranks, when they must know: return once rank 0 has published."""
    for _ in _polls(order):
        if order.final.is_dir():
            return
        if not order.temporary.is_dir() and not order.final.is_dir():
            raise SaveFailed(f"{order.temporary} is gone: rank 0 has given this save up")


def mark_failed(order: SaveOrder, error: str) -> None:
    """Tell the other ranks, and free the space; a later save or attempt removes the rest."""
    try:
        for name in (rank_file(order.rank), MODEL_FILE if order.rank == 0 else ""):
            if name and (order.temporary / name).exists():
                os.unlink(order.temporary / name)
        os.makedirs(order.temporary, exist_ok=True)
        _mark(order, order.rank).write_text(f"{order.trial} {error}")
    except OSError:
        pass  # on a full or read-only disk the others find out by waiting


def link_latest(root: Path, name: str) -> None:
    """A `latest` link for people. We never read it, so a file system without links is no failure."""
    temporary = root / ".latest.tmp"
    try:
        if temporary.is_symlink():
            temporary.unlink()
        temporary.symlink_to(name)
        os.rename(temporary, root / "latest")
    except OSError:
        pass


def _wait_for_records(order: SaveOrder) -> dict[int, dict[str, Any]]:
    records: dict[int, dict[str, Any]] = {}
    for _ in _polls(order):
        for rank in range(order.world_size):
            if rank not in records:
                record = _read_record(order, rank)
                if record is not None:
                    records[rank] = record
        if len(records) == order.world_size:
            return records
    raise AssertionError("unreachable: _polls ends by raising")


def _polls(order: SaveOrder) -> Any:
    """Yield until the caller has what it waits for; raises when a rank has failed or the directory does not
    change any more."""
    seen: tuple[Any, ...] = ()
    moved_at_s = time.monotonic()
    pause_s = _POLL_S_MIN
    while True:
        yield
        _raise_marked(order)
        now_s = time.monotonic()
        progress = _progress(order.temporary)
        if progress != seen:
            seen, moved_at_s = progress, now_s
        if now_s - moved_at_s > order.idle_s_max:
            missing = [r for r in range(order.world_size) if not _record(order, r).exists()]
            raise SaveFailed(
                f"nothing happened in {order.temporary} for {order.idle_s_max:.0f} s; missing ranks {missing}"
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _POLL_S_MAX)


def _progress(directory: Path) -> tuple[Any, ...]:
    try:
        with os.scandir(directory) as entries:
            return tuple(sorted((entry.name, entry.stat().st_size) for entry in entries))
    except FileNotFoundError:
        return ()


def _raise_marked(order: SaveOrder) -> None:
    for rank in range(order.world_size):
        try:
            trial, _, error = _mark(order, rank).read_text().partition(" ")
        except OSError:
            continue
        if trial == str(order.trial):
            raise SaveFailed(f"rank {rank}: {error}")


def _read_record(order: SaveOrder, rank: int) -> dict[str, Any] | None:
    try:
        record = json.loads(_record(order, rank).read_bytes())
    except FileNotFoundError:
        return None
    return record if record["trial"] == order.trial else None


def _read_again(order: SaveOrder, manifest: Manifest) -> Manifest:
    """The contents were compared when written; here: is what was renamed what a reader will find?"""
    found = layout.read_manifest(order.final)
    sizes = {name: os.stat(order.final / name).st_size for name in manifest.files}
    if found.files != manifest.files or any(sizes[n] != e.size_bytes for n, e in manifest.files.items()):
        shutil.rmtree(order.final, ignore_errors=True)
        raise SaveFailed(f"{order.final} does not read back as it was written")
    return found


def _record(order: SaveOrder, rank: int) -> Path:
    return order.temporary / f"rank-{rank}.json"


def _mark(order: SaveOrder, rank: int) -> Path:
    return order.temporary / f"failed-{rank}"
