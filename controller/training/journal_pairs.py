"""The pairs that a journal has measured, as a table: its entries folded, profiles and ratios collected."""

from __future__ import annotations

from pathlib import Path

from cotenant.controller.domain import events as ev
from cotenant.controller.domain.commands import AnyCommand
from cotenant.controller.engine import Engine
from cotenant.controller.sim.past.journal import NothingToReplay, follow
from cotenant.controller.training.own_pairs import Kinds

__all__ = ["NothingToReplay", "measured_pairs"]


def measured_pairs(where: Path) -> tuple[str, int, int]:
    """CSV, its rows, and how many measured pairs lack a profile; of a state folder or a journal file.

    Raises:
        JournalError: there is no journal, or it cannot be read.
        NothingToReplay: it is empty.
    """
    kinds = Kinds()

    def look(engine: Engine, event: ev.AnyEvent, _: list[AnyCommand]) -> None:
        if isinstance(event, ev.JobArrived | ev.ProfileLearned):
            job = engine.jobs.get(event.spec.job_id if isinstance(event, ev.JobArrived) else event.job_id)
            if job is not None:
                kinds.learn(job, only_type(engine))

    engine = follow(where, look)
    return kinds.table(engine.snapshot().ledger.pairs)


def only_type(engine: Engine) -> str:
    """The type of all devices, if they are of one."""
    types = {device.type for host in engine.hosts.values() for device in host.report.devices}
    return types.pop() if len(types) == 1 else ""
