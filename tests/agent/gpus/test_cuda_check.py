"""CUDA tried by an agent on GPUs that are not there: what is offered, what is tried when, and who waits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from cotenant.agent.gpus.cuda_check import UNTRIED, CudaCheck
from cotenant.agent.gpus.watchers import Timing
from tests.agent.gpus.test_gpu_watch import QUICK, Agent, until
from tests.agent.mock_gpus import ONE, TWO, MockGpus
from tests.building.limits import within_s
from tests.profiler.test_cuda_probe import contexts

NOT_UP = "CUDA does not start here: error 802 (system not yet initialized) at init: on HGX hosts the fabric"
PATIENT = msgspec.structs.replace(QUICK, start_s=within_s(60.0))


class Found:
    """What tries find."""

    def __init__(self, used: set[str] = set(), timing: Timing = PATIENT) -> None:  # noqa: B006
        self.why: list[tuple[str, str]] = []
        self.check = CudaCheck(
            (ONE, TWO),
            is_used=used.__contains__,
            found=lambda *each: self.why.append(each),
            timing=timing,
        )

    def now(self, uuid: str) -> str | None:
        return next((why for each, why in reversed(self.why) if each == uuid), None)


def told(story: Callable[[], Awaitable[Any]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(within_s(120)):
            await story()
            # What was closed ends its children before the loop does.
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

    asyncio.run(whole())


def test_what_fails_is_tried_until_it_works_and_has_the_others_tried(gpus: MockGpus) -> None:
    async def story() -> None:
        gpus.say(f"libcuda init 802 {ONE}")
        found = Found()
        found.check.start([ONE])
        await until(lambda: found.now(ONE) and found.now(TWO) is not None)
        assert (found.now(ONE) or "").startswith(NOT_UP) and found.now(TWO) == ""
        assert contexts(gpus) == [f"{TWO} /nonexistent/mps"], "no daemon takes it in"
        await until(lambda: found.check.failures[ONE] > 2)
        gpus.unsay("libcuda")
        await until(lambda: found.now(ONE) == "")
        assert not found.check.failures
        assert await found.check.answers([ONE, TWO, "GPU-of-somebody"]) == {ONE: "", TWO: ""}
        found.check.close()

    told(story)


def test_one_that_hangs_is_killed_and_whoever_waits_is_told(gpus: MockGpus) -> None:
    async def story() -> None:
        gpus.say(f"libcuda allocate -1 {ONE}")
        found = Found(timing=Timing(start_s=2.0, retry_s=1000.0, retry_s_max=1000.0, reap_s=60.0))
        first, second = (asyncio.create_task(found.check.answers([ONE])) for _ in range(2))
        hanging = "CUDA does not start here: no answer within 2 s: see `dmesg`"
        assert await first == await second == {ONE: hanging}
        [child] = [each for uuid, each in found.check._children.items() if uuid == ONE]
        assert child.returncode == -9
        assert [uuid for uuid, _ in found.why].count(ONE) == 1, "two that ask at once have one try"
        found.check.close()

    told(story)


def test_beside_others_and_where_the_library_ends_the_process(gpus: MockGpus) -> None:
    async def story() -> None:
        gpus.say("libcuda context 719")
        assert await Found(used={ONE}).check.answers([ONE]) == {ONE: ""}, "it takes no memory from them"
        gpus.say("libcuda init -11")
        found = Found()
        [why] = (await found.check.answers([TWO])).values()
        assert why == "CUDA does not start here: it ended the process (status -11): see `dmesg`"
        found.check.close()

    told(story)


def test_a_gpu_is_offered_when_cuda_works_there_and_again_after_each_recovery(
    gpus: MockGpus, tmp_path: Path
) -> None:
    gpus.say(f"libcuda init 802 {TWO}")

    async def story() -> None:
        agent = Agent(tmp_path, tries_cuda=True)
        assert {each.note for each in agent.watch.conditions().values()} == {f"suspect: {UNTRIED}"}
        agent.start()
        await until(lambda: not agent.note(ONE) and agent.note(TWO).startswith(f"suspect: {NOT_UP}"))
        assert any(line.startswith(f"{agent.devices[1].device_id}: {NOT_UP}") for line in agent.said)
        gpus.unsay("libcuda")
        await until(lambda: not agent.note(TWO) and agent.probed(ONE) and agent.probed(TWO))
        gpus.say(f"libcuda init 999 {ONE}", "xid 0 9999")
        await until(lambda: agent.note(ONE).startswith("suspect: Xid 9999"))
        agent.watch.trust()
        assert agent.note(ONE) == f"suspect: {UNTRIED}", "NVML answers, and who resumes it knows better"
        await until(lambda: "error 999" in agent.note(ONE) and "nvidia-uvm" in agent.note(ONE))
        assert "error 999" in (await agent.watch.cuda.answers([ONE, TWO]))[ONE]
        agent.watch.trust()
        assert not agent.note(ONE), "a person knows better, for instance of a library that we cannot load"
        assert "error 999" in (await agent.watch.cuda.answers([ONE]))[ONE], "until somebody asks again"
        gpus.unsay("libcuda")
        await until(lambda: not agent.note(ONE))
        assert len(agent.said) < 5, "each cause is said once"
        agent.watch.close()

    told(story)


def test_where_somebody_computes_at_the_start_cuda_works_and_nobody_is_disturbed(
    gpus: MockGpus, tmp_path: Path
) -> None:
    async def story() -> None:
        gpus.say(f"process 0 {os.getpid()} 4000 C", "gpu 0 used 4600", f"libcuda init 802 {ONE}")
        agent = Agent(tmp_path, tries_cuda=True, busy=(ONE,))
        agent.start()
        await until(lambda: agent.note(ONE).startswith("in use by pid") and not agent.note(TWO))
        assert contexts(gpus) == [f"{TWO} /nonexistent/mps"]
        agent.watch.close()

    told(story)
