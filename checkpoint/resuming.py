"""Resuming: which checkpoint, what is put back, and what differs from the run that was saved.

Rule: the newest that verifies, the same on every rank. A damaged checkpoint is skipped with a warning; one of
a newer version is refused; and starting again from step 0 although checkpoints exist is an error, unless the
user asked for it.

Rule: whatever differs is put back as well as can be, and named, in words a user understands. Exact is lost
for good with the first difference; the resume is then called equivalent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist

from cotenant.checkpoint.disk import durable, layout, save
from cotenant.checkpoint.facts import cuda_notes, unequal_facts
from cotenant.checkpoint.late_log import LateLog
from cotenant.checkpoint.talk.protocol import ENV_RESUME, RESUME_NONE, JobEnvironment
from cotenant.checkpoint.training import data, rng
from cotenant.checkpoint.training.state import TrainingState

log = LateLog("cotenant.checkpoint")


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A verified checkpoint as this rank sees it. `own` is rank 0's where this rank did not exist."""

    name: str
    manifest: layout.Manifest
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
            except layout.CheckpointError as error:  # the other ranks wait for our choice: tell them, too
                choice = _Choice(error=str(error), too_new=isinstance(error, layout.TooNew))
        if together:
            choice = _broadcast_choice(choice)
        if choice.error:
            raise (layout.TooNew if choice.too_new else layout.CheckpointError)(choice.error)
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
        except layout.Damaged as error:
            candidates.remove(name)
            _skip(skipped, f"{name} skipped: {error}")
    if resume is not None and not skipped:
        skipped.append(f"{resume}, named by {ENV_RESUME}, is not there")
    skipped.extend(f"{name} belongs to a later attempt" for name in layout.names_newest_first(root))
    if skipped:
        raise layout.CheckpointError(
            f"no checkpoint in {root} can be used ({'; '.join(skipped)}); going back to step 0 would "
            f"lose the training so far: repair one, or set {ENV_RESUME}={RESUME_NONE} to start afresh"
        )
    return _Choice()


def _broadcast_choice(choice: _Choice) -> _Choice:
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
            raise layout.Damaged(f"{directory} is not the one that rank 0 sees: is the file system shared?")
        mine = rank < manifest.world_size
        own_file = save.rank_file(rank if mine else 0)
        if rank != 0:
            layout.verify(directory, only=(save.MODEL_FILE, own_file))
        loaded = LoadedCheckpoint(
            name=choice.name,
            manifest=manifest,
            shared=durable.load_tensors(directory / save.MODEL_FILE),
            own=durable.load_tensors(directory / own_file),
            own_is_mine=mine,
            skipped=skipped,
        )
    except (layout.CheckpointError, OSError, RuntimeError) as error:
        return None, str(error)
    return loaded, ""


def _skip(skipped: list[str], why: str) -> None:
    log.warning("%s", why)
    skipped.append(why)


def put_back(
    loaded: LoadedCheckpoint,
    env: JobEnvironment,
    state: TrainingState,
    cursor: data.Cursor,
    present: Callable[[], dict[str, Any]],
) -> list[str]:
    """Restore state, position and random numbers; what differs. `present`: the facts of this attempt."""
    manifest, own = loaded.manifest, loaded.own
    differences: list[str] = []
    same_size = manifest.world_size == env.world_size
    if same_size:
        differences += state.replay_gradient_order(loaded.shared, env.world_size)
    differences += state.load(loaded.shared, own, loaded.own_is_mine)
    differences += unequal_facts(manifest.facts, present())
    differences += cuda_notes() if state.on_cuda else []
    if same_size:
        cursor.resume(own["position"], own["rng"])
        differences += rng.restore(own["rng"])
    else:
        cursor.resume_resharded(own["position"], manifest.world_size, env.world_size)
        rng.reseed(own["rng"], env.rank, env.world_size)
    return differences


IN_PARTS: Final = "batches were split, and their parts drew other random numbers (--accumulate equivalent)"


@dataclass(frozen=True)
class Resumed:
    """The checkpoint that this attempt started from. Exact: what follows equals an uninterrupted run, bit for
    bit."""

    name: str
    step: int
    exact: bool
    note: str
    proven: int = 0
    """Steps after it that came out as in the attempt before."""


@dataclass
class Lineage:
    """Written into every manifest."""

    resumed: Resumed | None = None
    exact: bool = True
    notes: list[str] = field(default_factory=list)
    history: list[tuple[int, int]] = field(default_factory=list)
    """(from step, s)."""

    def used(self, steps: int, completed: int) -> None:
        """The step after `completed` ones used `steps` accumulation steps."""
        if not self.history or self.history[-1][1] != steps:
            self.history.append((completed, steps))

    def take_over(self, name: str, manifest: layout.Manifest, differences: Iterable[str]) -> Resumed:
        """Makes this attempt go on from a checkpoint."""
        note = "; ".join(differences)
        self.history = [entry for entry in manifest.history if entry[0] < manifest.step]
        self.exact = manifest.exact and not note
        self.notes = [manifest.note] if manifest.note else []
        if note:
            self.notes.append(f"resumed from {name} with differences: {note}")
        self.resumed = Resumed(name=name, step=manifest.step, exact=not note, note=note)
        return self.resumed

    def differs(self, note: str) -> None:
        """A difference that showed only after the resume."""
        if self.resumed is None:
            return
        self.exact = False
        self.notes.append(f"resumed from {self.resumed.name}: {note}")
        joined = "; ".join(filter(None, [self.resumed.note, note]))
        self.resumed = replace(self.resumed, exact=False, note=joined)
        log.warning("the resume from %s is equivalent, not exact: %s", self.resumed.name, note)

    def drew_in_parts(self) -> None:
        """Parts of batches have drawn other random numbers than whole ones."""
        self.exact = False
        if not any(IN_PARTS in note for note in self.notes):
            self.notes.append(IN_PARTS)

    def proven(self, step: int) -> int:
        """The steps after the resume up to this one came out as in the attempt before; returns how many."""
        assert self.resumed is not None, "nothing was resumed"
        self.resumed = replace(self.resumed, proven=step - self.resumed.step)
        return self.resumed.proven

    def manifest_fields(self) -> dict[str, Any]:
        """The lineage's fields for a manifest."""
        return {"history": tuple(self.history), "exact": self.exact, "note": "; ".join(self.notes)}
