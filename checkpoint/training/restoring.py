"""Putting a loaded checkpoint into the script's objects.

Rule: whatever differs from the run that was saved is put back as well as can be, and named: a resume is exact
only if nothing is named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cotenant.checkpoint.disk.load import LoadedCheckpoint
from cotenant.checkpoint.talk.protocol import JobEnvironment
from cotenant.checkpoint.training import facts, rng
from cotenant.checkpoint.training.cursor import Cursor
from cotenant.checkpoint.training.state import TrainingState


def put_back(
    loaded: LoadedCheckpoint,
    env: JobEnvironment,
    state: TrainingState,
    cursor: Cursor,
    present: Callable[[], dict[str, Any]],
) -> list[str]:
    """Restore state, position and random numbers; what differs. `present`: the facts of this attempt."""
    manifest, own = loaded.manifest, loaded.own
    differences: list[str] = []
    same_size = manifest.world_size == env.world_size
    if same_size:
        differences += state.replay_gradient_order(loaded.shared, env.world_size)
    differences += state.load(loaded.shared, own, loaded.own_is_mine)
    differences += facts.differences(manifest.facts, present())
    if state.on_cuda and not torch.are_deterministic_algorithms_enabled():
        differences.append(facts.CUDA_NOTE)
    if same_size:
        cursor.resume(own["position"], own["rng"])
        differences += rng.restore(own["rng"])
    else:
        cursor.resume_resharded(own["position"], manifest.world_size, env.world_size)
        rng.reseed(own["rng"], env.rank, env.world_size)
    return differences
