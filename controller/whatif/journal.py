"""A cluster's own days, read from its journal, and what to say beside the table of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cotenant.controller.present import screen, units
from cotenant.controller.present.problem import Problem
from cotenant.controller.sim import TaskRun
from cotenant.controller.sim.past.journal import NothingToReplay
from cotenant.controller.sim.past.replay import JournalRecord, read_journal
from cotenant.controller.store import JournalError
from cotenant.controller.submission.flags import duration_of
from cotenant.controller.whatif.problems import journal_problem


def read(where: Path | str, since: str, *, named: bool) -> JournalRecord:
    """Reads the record of a journal. Raises Problem."""
    since_s = duration_of("--since", since)
    try:
        return read_journal(where, since_s=since_s)
    except JournalError as error:
        raise journal_problem(error, named=named) from None
    except NothingToReplay as error:
        hint = "take more with a longer --since" if since else "submit jobs first"
        raise Problem("refused", str(error), hint) from None


def headline(record: JournalRecord) -> str:
    begin, end = units.local_time(record.begin_wall_s), units.local_time(record.end_wall_s)
    cluster = record.cluster
    return (
        f"{units.plural(len(record.jobs), 'job')} that arrived from {begin} to {end}, on {cluster.hosts} x "
        f"{cluster.gpus_per_host} devices, under {record.setting.policy}"
    )


def footnotes(value: dict[str, Any], record: JournalRecord, runs: Sequence[TaskRun]) -> list[str]:
    lines = [trust(value["calibration"], record.setting.policy)]
    lines += [f"left out: {units.plural(count, 'job')} ({why})" for why, count in record.excluded.items()]
    lines += [f"note: {note}" for note in record.notes]
    if any(run.summary["shared_jobs"] for run in runs):
        lines.append(f"note: what sharing costs is taken from {value['pairs']}, not from this cluster")
    return [f"  {screen.wrap_text(line, 2)}"[2:] for line in lines]


def trust(found: dict[str, Any] | None, policy: str) -> str:
    """How far a simulation of the policy of the time is from what happened."""
    if found is None:
        return f"there is no {policy} here: nothing says how far to trust the rest"
    error = found["jct_error"]
    return (
        f"trust: {found['policy']}, simulated, misses a job's real JCT by {100 * error['p50']:.0f} % "
        f"(median; {100 * error['p90']:.0f} % at P90); mean JCT is {found['jct_mean_ratio']:.2f} x real"
    )
