"""An end for want of device memory is told from all other ends: the pair is judged by it."""

from __future__ import annotations

import pytest

from cotenant.agent.daemon.core.remembered import Attempt
from cotenant.agent.daemon.core.reporting import from_result
from cotenant.agent.supervisor.core.exit_classifier import decide
from cotenant.agent.supervisor.core.exits import Exit
from cotenant.controller.domain import AttemptNo, CommandId, HostId, JobId
from cotenant.controller.domain import events as ev
from tests.building.endings import ending_of
from tests.building.results import result

HOST = "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory"
TAILS: dict[str, tuple[bool, bool]] = {  # On CUDA, and on a CPU slot.
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB": (True, True),
    "RuntimeError: CUDA error: out of memory": (True, True),
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": (True, True),
    HOST: (False, True),
    "MemoryError": (False, True),
    "ValueError: no memory of this": (False, False),
    "RuntimeError: CUDA error: device-side assert triggered": (False, False),
}


def test_the_controller_is_told() -> None:
    attempt = Attempt(job_id=JobId("1"), attempt=AttemptNo(1), command_id=CommandId(1))
    for out_of_memory in (True, False):
        last = result("1", outcome="user-failed", exit_code=1, out_of_memory=out_of_memory)
        *_, (ended, _) = from_result(attempt, last, HostId("a"))
        assert isinstance(ended, ev.AttemptEnded)
        assert ended.verdict.out_of_memory is out_of_memory


@pytest.mark.parametrize(("error", "wanted"), TAILS.items())
def test_the_agent_tells_it_from_other_ends(error: str, wanted: tuple[bool, bool]) -> None:
    tail = f'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n{error}\n'
    exits = (Exit(rank=0, exit_code=1),)
    for on_cuda, out_of_memory in zip((True, False), wanted, strict=True):
        verdict = decide(ending_of(*exits, gone={"tails": {0: tail}}, on_cuda=on_cuda))
        assert (verdict.outcome, verdict.out_of_memory) == ("user-failed", out_of_memory)
