"""Asks Slurm for hosts, follows what it was asked, and gives hosts back.

Rule: nothing here waits in the controller's loop: each look is a task whose calls are processes with a time
limit, and there is one look at a time. What is asked for is in the journal before `sbatch` is called, under a
name by which a controller that was killed meanwhile finds it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cotenant.controller.domain import Allocation, AllocationQueue, HostId, texts
from cotenant.controller.domain import events as ev
from cotenant.controller.slurm.alloc import programs
from cotenant.controller.slurm.alloc.deciding import AllocationPlan, decide, note_failure, proven
from cotenant.controller.slurm.alloc.programs import AllocationNews, follow, orphans
from cotenant.controller.slurm.alloc.requests import AllocationRequests, endpoint_for_others
from cotenant.controller.slurm.alloc.situations import idle_now, seen_shape, situation
from cotenant.controller.store import Core, Decided
from cotenant.controller.system import keys
from cotenant.controller.system.files import write_whole

CALL_S: Final = 60.0
ANSWER_CHARS_MAX: Final = 300
CANCEL_AGAIN_S: Final = 30.0
RECORDED_WITHIN_S: Final = 60.0

log = logging.getLogger("cotenant.controller")


class SlurmAnswer(NamedTuple):
    """The text that a program printed; `problem`: why that is not to be used."""

    text: str
    problem: str = ""


CallsSlurm = Callable[[Sequence[str], str], Awaitable[SlurmAnswer]]
"""A command and its stdin."""
Guarded = Callable[[Callable[[], None]], None]
"""Does it, and commits what it led to."""


async def call(words: Sequence[str], stdin: str = "") -> SlurmAnswer:
    """Runs one of Slurm's programs, in a process that ends with the call."""
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        return SlurmAnswer(
            "", f"{words[0]}: {error.strerror or error}: the controller must run where Slurm's commands are"
        )
    try:
        out, err = await asyncio.wait_for(process.communicate(stdin.encode()), CALL_S)
    except TimeoutError:
        return SlurmAnswer("", f"{words[0]} has not answered within {CALL_S:.0f} s")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = texts.one_line(err.decode(errors="replace").strip() or out.decode(errors="replace").strip())
        return SlurmAnswer(
            "", texts.cut_to(f"{words[0]}: {said or f'exit code {process.returncode}'}", ANSWER_CHARS_MAX)
        )
    return SlurmAnswer(out.decode(errors="replace"))


class SlurmAllocator:
    """All queues of `cotenant alloc`. Costs nothing where there is none."""

    def __init__(
        self,
        core: Core,
        guarded: Guarded,
        *,
        endpoint: str,
        keys_dir: Path,
        every_s: float,
        call: CallsSlurm = call,
    ) -> None:
        self._core, self._guarded, self._call = core, guarded, call
        self._endpoint = endpoint_for_others(endpoint)
        self._keys_dir, self._every_s = keys_dir, every_s
        self._task: asyncio.Task[None] | None = None
        self._next_s = 0.0
        self._idle_since_s: dict[HostId, float] = {}
        self._cancelled_s: dict[str, float] = {}
        self._written: dict[str, str] = {}
        self.why: dict[str, str] = {}
        """By queue: what was decided last, in a sentence."""
        self.requests = AllocationRequests(core, endpoint, self.why)

    @property
    def undelivered(self) -> int:
        return 0

    def carry_out(self, decided: Decided) -> None:
        """A changed queue makes the next look due at once."""
        if isinstance(decided.event, ev.AllocationQueueChanged):
            self._next_s = 0.0

    def rebuilt(self) -> None:
        """Only idle times are kept outside the journal; they begin anew."""
        self._idle_since_s.clear()

    def tick(self) -> None:
        now_s, state = self._core.clock.now_s(), self._core.state.allocations
        if self._task is not None or self._core.stuck or now_s < self._next_s:
            return
        if state.queues or state.open:
            self._next_s = now_s + self._every_s
            self._task = asyncio.get_running_loop().create_task(self._look_and_go_on())

    async def close(self) -> None:
        """What is asked for stays asked for: the next start finds it."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    # --- A look ------------------------------------------------------------------------------------

    async def _look_and_go_on(self) -> None:
        try:
            await self.look()
        except Exception:  # The next look may succeed; the log says what failed.
            log.exception("a look at Slurm failed")
        finally:
            self._task = None

    async def look(self) -> None:
        """What Slurm has, what follows from that, and what is asked for."""
        answer = await self._call(programs.squeue(os.getuid()), "")
        if not answer.problem:
            rows = programs.rows(answer.text)
            await self._follow(rows)
            await self._end_orphans(rows)
        self._note_idle()
        for name in list(self._core.state.allocations.queues):
            queue = self._core.state.allocations.queues.get(name)
            if queue is not None:
                await self._serve(queue, answer.problem)

    async def _follow(self, rows: Sequence[programs.SlurmRow]) -> None:
        state, hosts = self._core.state.allocations, self._core.state.engine.hosts
        for news in follow(list(state.open.values()), rows, hosts, self._core.clock.now_s()):
            await self._record(*self._events_of(news))
            if news.allocation.state == "ending":
                await self._cancel(news.allocation)
        ending = [each for each in state.open.values() if each.state == "ending" and each.slurm_id]
        for each in ending:
            if self._core.clock.now_s() - self._cancelled_s.get(each.name, 0.0) >= CANCEL_AGAIN_S:
                await self._cancel(each)

    def _events_of(self, news: AllocationNews) -> list[ev.AnyEvent]:
        allocation, now_s = news.allocation, self._core.clock.now_s()
        events: list[ev.AnyEvent] = [ev.AllocationChanged(allocation=allocation)]
        if news.lost is not None:
            events.append(ev.HostLost(host_id=news.lost, by="allocation"))
        queue = self._core.state.allocations.queues.get(allocation.queue)
        if queue is not None and news.failed:
            changed = note_failure(queue, allocation.why, now_s)
            events.append(ev.AllocationQueueChanged(name=queue.name, queue=changed))
        if queue is not None and allocation.state == "working":
            host = self._core.state.engine.hosts[allocation.host_id]
            changed, why = proven(queue, seen_shape(host))
            if changed != queue:
                events.append(ev.AllocationQueueChanged(name=queue.name, queue=changed, why=why))
        return events

    async def _end_orphans(self, rows: Sequence[programs.SlurmRow]) -> None:
        prefix = programs.prefix_of(self._core.journal.name)
        if left := orphans(rows, self._core.state.allocations.open, prefix):
            log.warning(
                "Slurm jobs %s were asked for by a history that is lost: ending them", ", ".join(left)
            )
            await self._call(programs.scancel(left), "")

    def _note_idle(self) -> None:
        now_s, idle = self._core.clock.now_s(), idle_now(self._core.state.engine.ledger)
        self._idle_since_s = {host_id: self._idle_since_s.get(host_id, now_s) for host_id in idle}

    # --- A queue -----------------------------------------------------------------------------------

    async def _serve(self, queue: AllocationQueue, problem: str) -> None:
        problem = await self._publish(queue) or problem or await self._check(queue)
        queue = self._core.state.allocations.queues.get(queue.name, queue)
        allocations = tuple(self._core.state.allocations.allocations_of(queue.name))
        now_s, view = self._core.clock.now_s(), self._core.state.engine.ledger
        plan = decide(situation(view, queue, allocations, now_s, self._idle_since_s, problem))
        self.why[queue.name] = plan.why
        await self._give_back(queue, plan)
        for host_id in plan.submit:
            if not await self._submit(queue.name, host_id, plan.why):
                break
        if queue.is_removed and not allocations:
            await self._forget(queue)

    async def _publish(self, queue: AllocationQueue) -> str:
        """Write the controller's address into the queue's folder, where hosts read it. Returns why they could
        not use it."""
        if not self._endpoint:
            return "hosts cannot reach this controller: start it with --endpoint tcp://0.0.0.0:PORT"
        if self._written.get(queue.name) != self._endpoint:
            try:
                await asyncio.to_thread(write_access, Path(queue.terms.folder), self._endpoint)
            except OSError as error:
                return f"{queue.terms.folder} cannot be written: {error.strerror or error}"
            self._written[queue.name] = self._endpoint
        return ""

    async def _check(self, queue: AllocationQueue) -> str:
        """Checks, once, whether Slurm has nodes of this shape. Returns why it cannot be asked."""
        if queue.is_checked or queue.paused or queue.is_removed:
            return ""
        found = []
        for what in ("partition", "node"):
            answer = await self._call(programs.scontrol_show(what), "")
            if answer.problem:
                return answer.problem
            found.append(programs.records(answer.text))
        wrong = programs.why_impossible_here(queue, *found)
        changed = msgspec.structs.replace(queue, paused=wrong, is_checked=not wrong)
        await self._record(ev.AllocationQueueChanged(name=queue.name, queue=changed, why=wrong))
        return ""

    async def _give_back(self, queue: AllocationQueue, plan: AllocationPlan) -> None:
        hosts = self._core.state.engine.hosts
        for host_id, why in plan.leave:
            if host_id in hosts and not hosts[host_id].drained_by:
                await self._record(ev.HostLeaving(host_id=host_id, by=why))
        for name, why in plan.cancel:
            allocation = self._core.state.allocations.open.get(name)
            if allocation is not None and allocation.state != "ending":
                ending = allocation.move("ending", self._core.clock.now_s(), why)
                if await self._record(ev.AllocationChanged(allocation=ending)):
                    await self._cancel(ending)

    async def _cancel(self, allocation: Allocation) -> None:
        self._cancelled_s[allocation.name] = self._core.clock.now_s()
        if len(self._cancelled_s) > len(self._core.state.allocations.open) + 100:
            self._cancelled_s = {allocation.name: self._core.clock.now_s()}
        answer = await self._call(programs.scancel([allocation.slurm_id]), "")
        if answer.problem:
            log.warning("allocation %s: %s", allocation.name, answer.problem)

    async def _submit(self, name: str, host_id: HostId, why: str) -> bool:
        """Into the journal first, then to Slurm; False: no more of them now."""
        queue, now_s = self._core.state.allocations.queues[name], self._core.clock.now_s()
        number = f"{programs.prefix_of(self._core.journal.name)}{name}-{queue.next_number}"
        asked = Allocation(name=number, queue=name, host_id=host_id, since_s=now_s, asked_s=now_s, why=why)
        counted = msgspec.structs.replace(queue, next_number=queue.next_number + 1)
        if not await self._record(
            ev.AllocationQueueChanged(name=name, queue=counted), ev.AllocationChanged(allocation=asked)
        ):
            return False
        try:
            await asyncio.to_thread(write_key, self._keys_dir, Path(queue.terms.folder), host_id)
        except (OSError, keys.KeyProblem) as error:
            return await self._note_failure(asked, f"no key for {host_id}: {error}")
        answer = await self._call(programs.sbatch(queue, asked), programs.script(queue, asked))
        if answer.problem:
            return await self._note_failure(asked, answer.problem)
        try:
            slurm_id = programs.submitted_id(answer.text)
        except ValueError as error:
            return await self._note_failure(asked, str(error))
        pending = asked.move("pending", self._core.clock.now_s(), "Slurm lets it wait", slurm_id=slurm_id)
        return await self._record(ev.AllocationChanged(allocation=pending))

    async def _note_failure(self, asked: Allocation, why: str) -> bool:
        """Raises nothing, returns False: nothing more is asked for in this look."""
        now_s, queue = self._core.clock.now_s(), self._core.state.allocations.queues.get(asked.queue)
        events: list[ev.AnyEvent] = [ev.AllocationChanged(allocation=asked.move("over", now_s, why))]
        if queue is not None:
            events.append(ev.AllocationQueueChanged(name=queue.name, queue=note_failure(queue, why, now_s)))
        await self._record(*events)
        return False

    async def _forget(self, queue: AllocationQueue) -> None:
        """Remove the queue and its keys."""
        await self._record(ev.AllocationQueueChanged(name=queue.name, queue=None, why="removed"))
        self.why.pop(queue.name, None)
        await asyncio.to_thread(remove_keys, self._keys_dir, queue)

    async def _record(self, *events: ev.AnyEvent) -> bool:
        """Whether they are in the journal, and durable."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def settle(is_durable: bool) -> None:
            if not done.done():
                done.set_result(is_durable)

        def happen() -> None:
            try:
                for event in events:
                    self._core.happen(event)
            except Exception:
                settle(False)
                raise
            self._core.run_after_commit(lambda: settle(True), otherwise=lambda: settle(False))

        self._guarded(happen)
        with suppress(TimeoutError):
            return await asyncio.wait_for(done, RECORDED_WITHIN_S)
        return False  # The state was read back meanwhile, and this with it: the next look sees what is true.


# --- Files that agents read --------------------------------------------------------------------------


def write_access(folder: Path, endpoint: str) -> None:
    """Where the controller is, for agents on other hosts and for nobody else."""
    for each in (folder, folder / "logs"):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(folder / programs.ENDPOINT_FILE, f"{endpoint}\n".encode())


def write_key(keys_dir: Path, folder: Path, host_id: HostId) -> None:
    """A key that speaks for this host alone, made once."""
    made = keys_dir / f"agent-{host_id}.key"
    if not made.exists():
        keys.add_agent(keys_dir, host_id, force=True)
    write_whole(programs.key_file(folder, host_id), made.read_bytes())


def remove_keys(keys_dir: Path, queue: AllocationQueue) -> None:
    for slot in range(1, queue.terms.max_hosts + 1):
        host_id = queue.host(slot)
        made = keys_dir / f"agent-{host_id}.key"
        if made.exists():
            keys.remove(keys_dir, f"agent@{host_id}")
            made.unlink(missing_ok=True)
        programs.key_file(Path(queue.terms.folder), host_id).unlink(missing_ok=True)
