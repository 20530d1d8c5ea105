"""Hosts that another scheduler's queue brings: the package that asks for them is found by name.

Rule: nobody imports that package. Without a queue nothing of it decides anything.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from cotenant.controller.domain import Allocations, JobSpec
from cotenant.controller.executors import Executor
from cotenant.controller.store import Core

PACKAGE: Final = "cotenant.controller.slurm.alloc"


class HostAllocator(Executor, Protocol):
    """An executor that asks for hosts and gives them back."""

    @property
    def requests(self) -> object:
        """What answers questions about its queues, by methods as `api.handlers.answers_of` reads them."""

    async def close(self) -> None:
        """Ends the work of the allocator. What was asked for stays asked for: the next start finds it."""


def allocator_of(
    core: Core,
    guarded: Callable[[Callable[[], None]], None],
    *,
    endpoint: str,
    keys_dir: Path,
    every_s: float,
) -> HostAllocator:
    """The allocator of this controller. `guarded` does what it is handed and commits what that led to;
    `endpoint` is the controller's own; `every_s` is how often Slurm is asked."""
    made: HostAllocator = _package().SlurmAllocator(
        core, guarded, endpoint=endpoint, keys_dir=keys_dir, every_s=every_s
    )
    return made


def could_be_asked(allocations: Allocations, spec: JobSpec) -> bool:
    """Whether some queue could bring hosts for a job like this."""
    return bool(allocations.queues) and bool(_package().could_be_asked(allocations, spec))


def _package() -> Any:
    return import_module(PACKAGE)
