"""Choosing and reading the checkpoint to resume from: the newest that verifies, the same on every rank.

Rule: a damaged checkpoint is skipped with a warning; one of a newer version is refused; and starting
again from step 0 although checkpoints exist is an error, unless the user asked for it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from cotenant.checkpoint.disk import durable, layout
from cotenant.checkpoint.disk.layout import CheckpointError, Damaged, Manifest, TooNew
from cotenant.checkpoint.disk.save import MODEL_FILE, rank_file
from cotenant.checkpoint.talk.protocol import ENV_RESUME, RESUME_NONE

log = logging.getLogger("cotenant.checkpoint")


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A verified checkpoint as this rank sees it. `own` is rank 0's where this rank did not exist."""

    name: str
    manifest: Manifest
    shared: dict[str, Any]
    own: dict[str, Any]
    own_is_mine: bool
    skipped: tuple[str, ...]
    """Why newer ones were not taken."""


@dataclass(frozen=True)
class _Choice:
    """What rank 0 tells the others: exactly one of a name, an error, or neither (nothing to resume)."""

    name: str = ""
    manifest_sha256: str = ""
    error: str = ""
    too_new: bool = False


def load_newest(
    root: Path, *, attempt: int, resume: str | None, rank: int, world_size: int
) -> LoadedCheckpoint | None:
    """The checkpoint to resume from, or None for a fresh start. A collective once torch.distributed is."""
    if resume == RESUME_NONE:
        return None
    together = dist.is_available() and dist.is_initialized() and world_size > 1
    chooses = rank == 0 or not together
    candidates: list[str] | None = None
    skipped: list[str] = []
    while True:
        choice = _Choice()
        if chooses:
            try:
                candidates = _candidates(root, attempt, resume) if candidates is None else candidates
                choice = _choose(root, candidates, skipped, resume)
            except CheckpointError as error:  # the others wait for our choice: tell them, too
                choice = _Choice(error=str(error), too_new=isinstance(error, TooNew))
        if together:
            choice = _from_rank_0(choice)
        if choice.error:
            raise (TooNew if choice.too_new else CheckpointError)(choice.error)
        if not choice.name:
            return None
        loaded, problem = _read(root, choice, rank, tuple(skipped))
        problems = [problem]
        if together:
            problems = [""] * world_size
            dist.all_gather_object(problems, problem)
        failed = [f"rank {r}: {p}" if together else p for r, p in enumerate(problems) if p]
        if not failed:
            return loaded
        _skip(skipped, f"{choice.name} skipped: {'; '.join(failed)}")
        candidates = [name for name in candidates or [] if name != choice.name]


def _candidates(root: Path, attempt: int, resume: str | None) -> list[str]:
    names = layout.names_newest_first(root, attempt)
    if resume in names:
        names = [resume] + [name for name in names if name != resume]
    return names


def _choose(root: Path, candidates: list[str], skipped: list[str], resume: str | None) -> _Choice:
    """The first candidate that verifies completely; raises where starting afresh would lose something."""
    for name in list(candidates):
        try:
            manifest = layout.verify(root / name)
            return _Choice(name=name, manifest_sha256=layout.content_sha256(manifest))
        except Damaged as error:
            candidates.remove(name)
            _skip(skipped, f"{name} skipped: {error}")
    if resume is not None and not skipped:
        skipped.append(f"{resume}, named by {ENV_RESUME}, is not there")
    skipped.extend(f"{name} belongs to a later attempt" for name in layout.names_newest_first(root))
    if skipped:
        raise CheckpointError(
            f"no checkpoint in {root} can be used ({'; '.join(skipped)}); going back to step 0 would "
            f"lose the training so far: repair one, or set {ENV_RESUME}={RESUME_NONE} to start afresh"
        )
    return _Choice()


def _from_rank_0(choice: _Choice) -> _Choice:
    box: list[Any] = [vars(choice)]
    dist.broadcast_object_list(box, src=0)
    return _Choice(**box[0])


def _read(
    root: Path, choice: _Choice, rank: int, skipped: tuple[str, ...]
) -> tuple[LoadedCheckpoint | None, str]:
    """Read and check this rank's part of what rank 0 chose."""
    directory = root / choice.name
    try:
        manifest = layout.read_manifest(directory)
        if layout.content_sha256(manifest) != choice.manifest_sha256:
            raise Damaged(f"{directory} is not the one that rank 0 sees: is the file system shared?")
        mine = rank < manifest.world_size
        own_file = rank_file(rank if mine else 0)
        if rank != 0:
            layout.verify(directory, only=(MODEL_FILE, own_file))
        loaded = LoadedCheckpoint(
            name=choice.name,
            manifest=manifest,
            shared=durable.load_tensors(directory / MODEL_FILE),
            own=durable.load_tensors(directory / own_file),
            own_is_mine=mine,
            skipped=skipped,
        )
    except (CheckpointError, OSError, RuntimeError) as error:
        return None, str(error)
    return loaded, ""


def _skip(skipped: list[str], why: str) -> None:
    log.warning("%s", why)
    skipped.append(why)
