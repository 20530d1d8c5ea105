"""An end for want of device memory is told from all other ends: the pair is judged by it."""

from __future__ import annotations

import pytest

from cotenant.agent.ends import Ending, Exit, decide

CPU = "DefaultCPUAllocator"
TAILS: dict[str, bool] = {
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB": True,
    "RuntimeError: CUDA error: out of memory": True,
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": True,
    f"RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. {CPU}: can't allocate memory": True,
    f"RuntimeError: {CPU}: not enough memory: you tried to allocate 8 bytes.": True,
    "ValueError: no memory of this": False,
    "RuntimeError: CUDA error: device-side assert triggered": False,
}


@pytest.mark.parametrize(("error", "wanted"), TAILS.items())
def test_the_agent_tells_it_from_other_ends(error: str, wanted: bool) -> None:
    tail = f'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n{error}\n'
    exits = (Exit(rank=0, exit_code=1),)
    ending = Ending(host_id="a", workdir="/", command="x", port=1, exits=exits, tails={0: tail})
    verdict = decide(ending)
    assert (verdict.outcome, verdict.out_of_memory) == ("user-failed", wanted)
