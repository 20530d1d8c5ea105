"""What the suite's jobs run on."""

from __future__ import annotations

import os
from typing import Final, Literal

import msgspec

from cotenant.mps.environment import PIPE_DIRECTORY

NO_DAEMON: Final = "/nonexistent/mps"
"""A pipe directory without a daemon: a process that looks there runs without MPS."""
PASSED_ON: Final = (
    "PATH",
    "HOME",
    "LANG",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "TMPDIR",
    "CUDA_HOME",
    "DEMO_DIGITS",
)
"""What a job sees of this shell's environment: no MPS variable, no CUDA_VISIBLE_DEVICES."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The first GPU of this machine, or a CPU slot that stands in for one in a dry run."""

    kind: Literal["cuda", "cpu"]
    cores: tuple[int, ...]
    uuid: str = ""
    name: str = "cpu"

    def environment(self) -> dict[str, str]:
        """The variables of a process that uses this device and no other."""
        passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        return {
            **passed,
            # By UUID: MPS renumbers. An empty value hides every GPU from a job of a dry run.
            "CUDA_VISIBLE_DEVICES": self.uuid,
            # Without it a daemon that somebody else runs in the default place would take our processes in.
            PIPE_DIRECTORY: NO_DAEMON,
            "PYTHONUNBUFFERED": "1",
        }
