"""Which attempts may share a fork server: those with one key.

Rule: everything that an interpreter or an import could have read is in the key, but for a short list of names
that scripts read late. The server, which has the user's rights, checks what lies on disk (packages, the
interpreter itself) before each fork.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

import msgspec

LATE: Final = frozenset((
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK",
    "ROLE_RANK", "ROLE_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "PWD", "OLDPWD", "SLURM_ARRAY_TASK_ID",
    "ROLE_NAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
))  # fmt: skip
"""Differ from rank to rank or job to job. An import that asks for one all the same is refused."""
LATE_PREFIXES: Final = (
    "MASTER_",
    "NCCL_",
    "GLOO_",
    "COTENANT_",
    "CUDA_MPS_",
    "PET_",
    "TORCHELASTIC_",
)


class ServerKind(msgspec.Struct, frozen=True, kw_only=True):
    """What a fork server is for."""

    interpreter: str
    options: tuple[str, ...]
    uid: int
    gid: int
    groups: tuple[int, ...]
    env: dict[str, str]
    """Without what is late."""

    @property
    def key(self) -> str:
        told = json.dumps([
            self.interpreter, self.options, self.uid, self.gid, sorted(self.groups), sorted(self.env.items())
        ])  # fmt: skip
        return hashlib.sha256(told.encode()).hexdigest()


def early(env: Mapping[str, str]) -> dict[str, str]:
    """What a server gets of a rank's environment."""
    return {
        name: value for name, value in env.items() if name not in LATE and not name.startswith(LATE_PREFIXES)
    }
