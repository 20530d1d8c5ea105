"""The result of an attempt: the verdict of `exit_classifier.decide`, and its last status.

Rule: made once, when no process is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.agent.ipc.records import Order, Result, Status
from cotenant.agent.supervisor.core.edge import AllGone
from cotenant.agent.supervisor.core.exit_classifier import Cause, Ending, Exit, StartProblem, decide
from cotenant.agent.supervisor.core.stopping import StopWish


def ending_of(
    order: Order,
    status: Status,
    gone: AllGone,
    *,
    exits: Sequence[Exit],
    problem: StartProblem | None,
    cause: Cause,
    stop: StopWish | None,
    has_stopped: bool,
    silent_s: float,
    over_mib: float | None,
) -> Ending:
    """All that is known. `silent_s`: without a step; `over_mib`: host memory, if it was too much."""
    waited_for_start = cause == "start-deadline"
    return Ending(
        host_id=order.host_id,
        workdir=order.launch.workdir,
        command=order.launch.argv[0] if order.launch.argv else "",
        port=order.start.master_port,
        exits=tuple(exits),
        problem=problem,
        cause=cause,
        stop_reason=stop.reason if stop is not None else "",
        stop_step=status.stop_step,
        has_stopped=has_stopped,
        durable=status.durable,
        failed=status.failed,
        silent_s=silent_s,
        step_s=status.step_s,
        deadline_s=order.start_deadline_s if waited_for_start or stop is None else stop.allowed_s,
        host_memory_mib=order.start.host_memory_mib,
        on_cuda=any(rank.cuda_uuids for rank in order.ranks),
        memory_cap_mib=order.start.memory_cap_mib,
        memory_mib=over_mib,
        oom_kills=gone.oom_kills,
        host_oom_kills=gone.host_oom_kills,
        counts_oom=gone.counts_oom,
        tails=gone.tails,
        knows_saves=order.is_first_host,
    )


def concluded(order: Order, status: Status, ending: Ending, *, unclean: bool) -> Result:
    """`unclean`: one that was an MPS client was signalled without its daemon's help. So it was where a signal
    came from elsewhere: the kernel's, short of memory, or a person's."""
    verdict = decide(ending)
    killed = any(each.by_signal is not None and not each.was_told for each in ending.exits)
    return Result(
        status=status,
        outcome=verdict.outcome,
        exit_code=verdict.exit_code,
        detail=verdict.detail,
        workdir_missing=verdict.workdir_missing,
        out_of_memory=verdict.out_of_memory,
        cuda_fault=verdict.cuda_fault,
        host_fault=verdict.host_fault,
        unclean=unclean or (killed and bool(order.mps)),
    )
