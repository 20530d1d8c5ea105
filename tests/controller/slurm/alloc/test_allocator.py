"""The allocator with a Slurm of a few lines: what is journalled before it is asked for, and found again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.controller.domain import AllocationQueue, AllocationTerms, HostId, HostShape
from cotenant.controller.domain import events as ev
from cotenant.controller.slurm.alloc.allocator import (
    SlurmAllocator,
    SlurmAnswer,
)
from cotenant.controller.slurm.alloc.allocator import call as really
from cotenant.controller.slurm.alloc.requests import endpoint_for_others
from cotenant.controller.system import keys
from tests.controller.station import Station, hello, report, run_one

NODE = "NodeName=n1 CPUTot=8 RealMemory=4000 Gres=(null) Partitions=main"


def nothing() -> None: ...


def killed() -> None:
    raise KeyboardInterrupt


class Slurm:
    """Jobs by number: state, node and name."""

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[str, str, str]] = {}
        self.calls: list[tuple[str, ...]] = []
        self.down = ""
        self.refuses = ""
        self.before_sbatch: Callable[[], None] = nothing
        self.after_sbatch: Callable[[], None] = nothing

    async def __call__(self, words: Sequence[str], stdin: str) -> SlurmAnswer:
        self.calls.append(tuple(words))
        if self.down:
            return SlurmAnswer("", self.down)
        match words[0]:
            case "squeue":
                rows = (f"{n}|{state}|{node}|None|{name}" for n, (state, node, name) in self.jobs.items())
                return SlurmAnswer("\n".join(rows))
            case "sbatch":
                self.before_sbatch()
                if self.refuses:
                    return SlurmAnswer("", self.refuses)
                name = next(each.partition("=")[2] for each in words if each.startswith("--job-name="))
                number = str(len(self.calls))
                self.jobs[number] = ("PENDING", "", name)
                self.after_sbatch()
                return SlurmAnswer(f"{number}\n")
            case "scancel":
                for number in words[1:]:
                    self.jobs.pop(number, None)
            case "scontrol":
                return SlurmAnswer(NODE if words[2] == "node" else "PartitionName=main Default=YES")
        return SlurmAnswer("")

    def starts(self) -> str:
        """All of them; the number of the last."""
        for number, (_, _, name) in self.jobs.items():
            self.jobs[number] = ("RUNNING", "n1", name)
        return next(reversed(self.jobs))

    def called(self, program: str) -> int:
        return sum(words[0] == program for words in self.calls)


class Site:
    """A controller without its socket, and the allocator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.slurm = Slurm()
        self.endpoint = "tcp://head:7070"
        keys.init_cluster(folder / "keys")
        self.start()

    def start(self) -> None:
        self.station = Station(self.folder / "state")
        self.allocator = SlurmAllocator(
            self.station.core,
            self._guarded,
            endpoint=self.endpoint,
            keys_dir=self.folder / "keys",
            every_s=1.0,
            call=self.slurm,
        )

    def _guarded(self, work: Callable[[], None]) -> None:
        work()
        self.station.settle()

    def restart(self) -> None:
        self.station.close()
        self.start()

    def look(self, times: int = 1, after_s: float = 1.0) -> None:
        for _ in range(times):
            self.station.time_s += after_s
            asyncio.run(self.allocator.look())

    def add(self, **more: Any) -> None:
        plain: dict[str, Any] = {"max_hosts": 2, "time_limit_s": 600.0, "idle_s": 10.0, **more}
        shape = HostShape(devices=1, kind="cpu")
        terms = AllocationTerms(name="s", shape=shape, folder=str(self.folder / "shared"), **plain)
        queue = AllocationQueue(terms=terms, python="python")
        self._guarded(
            lambda: void(
                self.station.core.happen(ev.AllocationQueueChanged(name="s", queue=queue, why="added"))
            )
        )

    def change(self, **changes: Any) -> None:
        queue = msgspec.structs.replace(self.queue, **changes)
        self._guarded(
            lambda: void(self.station.core.happen(ev.AllocationQueueChanged(name="s", queue=queue)))
        )

    @property
    def queue(self) -> AllocationQueue:
        return self.station.core.state.allocations.queues["s"]

    @property
    def states(self) -> list[str]:
        return [each.state for each in self.station.core.state.allocations.open.values()]

    def joins(self, number: str) -> None:
        self.station.agent_says(b"agent-s-1", hello_of("s-1", number), keys.local_identity())


def hello_of(name: str, number: str) -> Any:
    return msgspec.structs.replace(hello(name), report=report(name, allocation=number))


def void(value: object) -> None:
    """For callbacks whose answer nobody needs."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.station.close()


def test_a_host_is_asked_for_joins_and_is_given_back_when_it_is_idle(site: Site) -> None:
    site.add()
    site.look()
    assert site.slurm.called("sbatch") == 0 and "no job waits" in site.allocator.why["s"]
    job_id = site.station.submit()
    site.look()
    assert site.states == ["pending"]
    assert (site.folder / "shared" / "endpoint").read_text() == "tcp://head:7070\n"
    for name in ("endpoint", "s-1.key"):
        assert (site.folder / "shared" / name).stat().st_mode & 0o777 == 0o600
    number = site.slurm.starts()
    site.look()
    assert site.states == ["starting"]
    site.joins(number)
    site.look()
    assert site.states == ["working"] and site.queue.seen is not None and site.queue.seen.devices == 1
    assert site.station.core.state.engine.jobs[job_id].phase == "loading"
    assert site.slurm.called("sbatch") == 1
    run_one(site.station, b"agent-s-1", job_id)
    site.look(15)
    assert (site.slurm.jobs, site.states) == ({}, []), "idle for long enough"
    assert site.station.core.state.engine.hosts[HostId("s-1")].lost


def test_a_controller_killed_while_it_asks_finds_its_request_again(site: Site) -> None:
    site.add()
    site.station.submit()
    site.slurm.before_sbatch = lambda: check(site.states == ["submitting"], "it is in the journal first")

    site.slurm.after_sbatch = killed
    with pytest.raises(KeyboardInterrupt):
        site.look()
    site.slurm.after_sbatch = nothing
    site.restart()
    assert site.states == ["submitting"]
    site.look(3)
    assert site.states == ["pending"] and site.slurm.called("sbatch") == 1, "no second one"


def test_what_a_restored_journal_has_lost_is_ended(site: Site) -> None:
    site.add()
    site.slurm.jobs = {
        "7": ("RUNNING", "n1", f"cotenant-{site.station.core.journal.name[:8]}-s-9"),
        "8": ("RUNNING", "n1", "somebody-else"),
    }
    site.look()
    assert list(site.slurm.jobs) == ["8"]


def test_after_a_refusal_it_waits_and_says_why(site: Site) -> None:
    site.slurm.refuses = "sbatch: error: invalid account"
    site.add()
    site.station.submit()
    site.look(5)
    assert site.slurm.called("sbatch") == 1 and site.states == []
    assert "1 request in a row brought no host (sbatch: error: invalid account)" in site.allocator.why["s"]
    site.slurm.refuses = ""
    site.look(after_s=60.0)
    assert site.states == ["pending"]


def test_while_squeue_does_not_answer_nothing_is_over(site: Site) -> None:
    site.add()
    site.station.submit()
    site.look()
    site.slurm.down = "squeue: no route to the controller"
    site.look(3, after_s=1000.0)
    assert site.states == ["pending"]
    assert "Slurm cannot be: squeue: no route" in site.allocator.why["s"]


def test_hosts_are_told_where_the_controller_has_moved_to_although_slurm_does_not_answer(site: Site) -> None:
    site.add()
    site.look()
    site.endpoint, site.slurm.down = "tcp://other:7070", "squeue: no route to the controller"
    site.restart()
    site.look()
    assert (site.folder / "shared" / "endpoint").read_text() == "tcp://other:7070\n"


def test_a_shape_that_no_node_has_is_never_asked_for(site: Site) -> None:
    site.add(options=("-p", "nope"))
    site.station.submit()
    site.look(2)
    assert site.slurm.called("sbatch") == 0
    assert site.queue.paused == "there is no partition nope; there are main"
    assert "alloc resume s" in site.allocator.why["s"]


def test_a_removed_queue_takes_back_its_requests_and_keys(site: Site) -> None:
    site.add()
    site.station.submit()
    site.look()
    site.change(is_removed=True)
    site.look(3)
    assert site.slurm.jobs == {} and site.states == []
    assert site.station.core.state.allocations.queues == {}
    assert list((site.folder / "shared").glob("*.key")) == []
    assert not (site.folder / "keys" / "agent-s-1.key").exists()


def test_a_host_whose_slurm_job_ends_is_lost_at_once(site: Site) -> None:
    site.add()
    job_id = site.station.submit()
    site.look()
    site.joins(site.slurm.starts())
    site.look(2)
    site.slurm.jobs.clear()
    site.look()
    assert site.station.core.state.engine.hosts[HostId("s-1")].lost
    assert site.station.core.state.engine.jobs[job_id].phase == "queued"
    site.look()
    assert site.states == ["pending"], "and the next is asked for, under the same name"


def test_a_program_that_is_not_there_or_fails_says_so(tmp_path: Path) -> None:
    missing = asyncio.run(really(["no-such-program"]))
    assert missing.text == "" and "no-such-program: No such file" in missing.problem
    failing = asyncio.run(really(["sh", "-c", "echo bad >&2; exit 3"]))
    assert failing.problem == "sh: bad"
    assert asyncio.run(really(["cat"], "hello")) == SlurmAnswer("hello")


def test_where_others_find_the_controller() -> None:
    assert endpoint_for_others("tcp://10.0.0.1:7") == "tcp://10.0.0.1:7"
    assert endpoint_for_others("tcp://0.0.0.0:7").startswith("tcp://")
    assert "0.0.0.0" not in endpoint_for_others("tcp://0.0.0.0:7")
    assert endpoint_for_others("ipc:///run/c.sock") == ""


def check(true: bool, why: str) -> None:
    assert true, why
