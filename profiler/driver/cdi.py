"""The names of this host's GPUs in its CDI specifications, by which podman gives GPUs to containers.

Rule: a GPU goes by its UUID. An index in a specification is NVML's on the day when it was written; after a
GPU was lost or added it may be another job's. Podman 5.5 reads /etc/cdi alone, so no other folder counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

KIND: Final = "nvidia.com/gpu"
NO_NAMES: Final = (
    "/etc/cdi has no names by UUID: nvidia-ctk cdi generate --device-name-strategy=uuid "
    "--output=/etc/cdi/nvidia.yaml"
)


class _NamedDevice(msgspec.Struct, frozen=True):
    name: str | int


class _Specification(msgspec.Struct, frozen=True):
    kind: str
    devices: tuple[_NamedDevice, ...]


def why_no_names(uuids: Iterable[str], root: Path = Path("/")) -> str:
    """Why podman cannot give each of these GPUs to a container; empty if it can."""
    named: set[str | int] = set()
    for path in (root / "etc/cdi").glob("*"):
        try:  # JSON is YAML. What only root may read podman does not see, for it runs as the job's user.
            if path.suffix in (".json", ".yaml", ".yml") and path.stat().st_mode & 0o004:
                found = msgspec.yaml.decode(path.read_bytes(), type=_Specification)
                named |= {each.name for each in found.devices if found.kind == KIND}
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
            continue  # Podman skips it as well.
    return "" if named.issuperset(uuids) else NO_NAMES
