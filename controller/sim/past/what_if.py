"""What a cluster's own past would have been under other policies, and how far to trust that.

Rule: always simulate the policy of the time as well. Its distance from what happened is the only measure of
trust in the others, so every answer shows both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from cotenant.controller.policies import registry
from cotenant.controller.sim.choices import PolicyChoice
from cotenant.controller.sim.compare import Task, TaskRun
from cotenant.controller.sim.past.replay import JournalRecord
from cotenant.controller.sim.preparing import add_knowledge
from cotenant.controller.sim.results.summary import summarise
from cotenant.controller.sim.world.knowledge import COMPLETE, Knowledge
from cotenant.controller.sim.world.physics import Physics
from cotenant.controller.sim.world.workload import Cluster

HAPPENED: Final = "what happened"
SCHEMA: Final = "whatif/1"


def policy_in_force(record: JournalRecord) -> PolicyChoice | None:
    """The policy of the time; None where it cannot be made here."""
    choice = PolicyChoice(*record.setting)
    return choice if registry.is_known(choice.name) else None


def replay_tasks(
    record: JournalRecord,
    policies: Sequence[PolicyChoice],
    *,
    pairs: str,
    seed: int,
    add_gpus: int = 0,
    knowledge: Knowledge = COMPLETE,
) -> list[Task]:
    """The policy of the time first, then those asked for; then all of them with so many more GPUs.

    Raises:
        ValueError: hosts like those there are cannot have so many.
    """
    then = policy_in_force(record)
    choices = {choice.label: choice for choice in ([then] if then else [])}
    choices.update({choice.label: choice for choice in policies})
    sharing = record.sharing
    physics = Physics(pairs=pairs, share_max=sharing.max, share_hp=sharing.hp_max if sharing.hp else 0.0)
    workload = record.workload()
    workload = add_knowledge(workload, knowledge, seed, np.ones(len(workload), np.bool_))
    sizes = {"": record.cluster}
    if add_gpus:
        sizes[f"{add_gpus} more GPU{'s' * (add_gpus > 1)}"] = grow_cluster(record.cluster, add_gpus)
    return [
        Task(
            policy=choice,
            seed=seed,
            workload=workload,
            cluster=cluster,
            physics=physics,
            ageing_s=record.ageing_s,
            differs=differs,
        )
        for differs, cluster in sizes.items()
        for choice in choices.values()
    ]


def grow_cluster(cluster: Cluster, gpus: int) -> Cluster:
    """More hosts like those there are; a single host may become a larger one.

    Raises:
        ValueError: it would take a part of a host.
    """
    each = cluster.gpus_per_host
    if gpus % each == 0:
        return replace(cluster, hosts=cluster.hosts + gpus // each)
    if cluster.hosts == 1:
        return replace(cluster, gpus_per_host=each + gpus)
    raise ValueError(f"hosts have {each} GPUs each here: add {each}, {2 * each}, ... of them, not {gpus}")


def actual_summary(record: JournalRecord) -> dict[str, Any]:
    """What happened, in the fields of a run; those that a journal cannot fill are null."""
    unknown = dict.fromkeys(("gpu_busy_ratio", "events", "wall_s", "cpu_s", "thinking_s", "rework_s"))
    left_out = {"left_out_preemptions": record.left_out_preemptions} if record.left_out_preemptions else {}
    return {"label": HAPPENED, **summarise(record.outcome()), **unknown, **left_out}


def calibration(record: JournalRecord, runs: Sequence[TaskRun]) -> dict[str, Any] | None:
    """How far the simulation of the policy of the time is from what happened; None where there is none.

    `jct_error`: |simulated - actual| / actual of each job, its median and its 90th percentile.
    `jct_mean_ratio`: mean simulated / mean actual.
    """
    then = policy_in_force(record)
    run = next((run for run in runs if then is not None and run.label == then.label), None)
    if run is None or run.outcome is None or not run.outcome.finished.any():
        return None
    done = run.outcome.finished
    actual_s = np.array([job.jct_s for job in record.jobs])[done]
    simulated_s = run.outcome.jct_s[done]
    error = np.abs(simulated_s - actual_s) / np.maximum(actual_s, 1e-9)
    p50, p90 = np.percentile(error, (50, 90))
    return {
        "policy": run.label,
        "jobs": int(done.sum()),
        "jct_error": {"p50": float(p50), "p90": float(p90)},
        "jct_mean_ratio": float(simulated_s.mean() / actual_s.mean()),
    }


def document(
    record: JournalRecord, runs: Sequence[TaskRun], *, pairs: str, begin: str, end: str
) -> dict[str, Any]:
    """The document of a replay and its runs. `begin` and `end`: the part of the journal, RFC 3339."""
    return {
        "schema": SCHEMA,
        "journal": record.journal,
        "begin_at": begin,
        "end_at": end,
        "jobs": len(record.jobs),
        "excluded": record.excluded,
        "cluster": {"hosts": record.cluster.hosts, "gpus_per_host": record.cluster.gpus_per_host},
        "policies_in_force": record.settings,
        "pairs": pairs,
        **(runs[0].task.workload.knowledge.options() if runs else {}),
        "notes": list(record.notes),
        "calibration": calibration(record, runs),
        "actual": actual_summary(record),
        "interrupted": any(run.summary["interrupted"] for run in runs),
        "runs": [run.summary for run in runs],
    }
