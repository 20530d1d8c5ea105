"""Trees come to a host in parts, once for all jobs of a tree, and only as they should be."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.agent.daemon.core.state import AgentState
from cotenant.agent.daemon.spool import Spool
from cotenant.agent.daemon.trees import NoTree, TreeFetcher
from cotenant.agent.ipc.records import Order
from cotenant.controller.domain import AttemptNo, HostId, JobId, Launch, job_spec
from cotenant.controller.submission.packing import pack_tree
from cotenant.controller.wire import CommandDelivery, FetchSnapshot, SnapshotPart, Welcome
from tests.agent.daemon.test_edge_parts import runtime_in
from tests.building import orders
from tests.building.hosts import agent_config, cpu, host
from tests.building.orders import gang, order_of

MIB = 1024 * 1024


class Desk:
    """A controller with one tree, which gives it in small parts."""

    def __init__(self, folder: Path, *, part_bytes: int = 40) -> None:
        self.top = folder / "top"
        (self.top / "sub").mkdir(parents=True)
        (self.top / "sub" / "a.py").write_text("print()")
        self.tree = pack_tree("copy", self.top / "sub", (), folder / "sent", 1).snapshot
        self.tree = msgspec.structs.replace(self.tree, top=str(self.top / "sub"))
        self.data = (folder / "sent" / self.tree.sha256).read_bytes()
        self.part_bytes, self.missing = part_bytes, ""
        self.asked: list[int] = []
        self.left_s: float | None = None
        self.deaf = 0
        """So many questions get no answer."""
        self.fetcher = TreeFetcher(
            folder / "trees", MIB, send=self.answer, lease_left_s=lambda: self.left_s, answer_s=0.01
        )

    def answer(self, question: FetchSnapshot) -> None:
        self.asked.append(question.offset)
        if self.deaf:
            self.deaf -= 1
            return
        data = self.data[question.offset : question.offset + self.part_bytes]
        part = SnapshotPart(
            job_id=question.job_id, attempt=question.attempt, offset=question.offset, data=data,
            missing=self.missing,
        )  # fmt: skip
        asyncio.get_running_loop().call_soon(self.fetcher.take, part)

    def order(self, job: str = "7", env: dict[str, str] | None = None) -> Order:
        launch = Launch(workdir="/submitted", snapshot=self.tree, env=env or {}, uid=0, gid=0)
        return order_of(
            job_id=JobId(job), attempt=AttemptNo(1), launch=launch, checkpoint_root=f"/ckpt/{job}-e"
        )

    def prepare(self, *orders: Order) -> list[Any]:
        async def all_of_them() -> list[Any]:
            prepared: list[Awaitable[Order]] = [self.fetcher.prepare(each, self.tree) for each in orders]
            return await asyncio.gather(*prepared, return_exceptions=True)

        return asyncio.run(all_of_them())


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_two_jobs_fetch_a_tree_once_and_have_a_copy_each(desk: Desk) -> None:
    one, other = desk.prepare(desk.order("7"), desk.order("8"))
    assert desk.asked == list(range(0, len(desk.data), 40))
    assert {Path(each.launch.workdir).name for each in (one, other)} == {"7-e", "8-e"}
    for each in (one, other):
        assert (Path(each.launch.workdir) / "a.py").read_text() == "print()"
        assert each.launch.env["COTENANT_SUBMIT_DIR"] == "/submitted"


def test_a_job_knows_the_commit_of_its_tree_and_git_finds_no_other_repository(
    desk: Desk, tmp_path: Path
) -> None:
    """The folder of copies lies in a repository, as a home folder of dotfiles is one."""
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "dotfiles"], check=True)
    desk.tree = msgspec.structs.replace(desk.tree, commit="c0de" * 10, dirty=True)
    (order,) = desk.prepare(desk.order(env={"GIT_CEILING_DIRECTORIES": "/home"}))
    env = order.launch.env
    assert (env["COTENANT_SNAPSHOT_COMMIT"], env["COTENANT_SNAPSHOT_CHANGED"]) == ("c0de" * 10, "1")
    assert env["GIT_CEILING_DIRECTORIES"] == f"{desk.fetcher.folder / 'copies'}:/home"
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=order.launch.workdir, env={**os.environ, **env}, capture_output=True
    )
    assert asked.returncode and b"not a git repository" in asked.stderr


def test_a_later_attempt_finds_its_copy_as_it_left_it(desk: Desk) -> None:
    (first,) = desk.prepare(desk.order())
    (Path(first.launch.workdir) / "out").write_text("1")
    asked = list(desk.asked)
    (second,) = desk.prepare(desk.order())
    assert (Path(second.launch.workdir) / "out").read_text() == "1" and desk.asked == asked


def test_what_has_come_is_not_fetched_again(desk: Desk, tmp_path: Path) -> None:
    part = tmp_path / "trees" / "packed" / "of-" / f"{desk.tree.sha256}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(desk.data[:80])
    desk.deaf = 2
    desk.prepare(desk.order())
    assert desk.asked[:4] == [80, 80, 80, 120], "a part that does not come is asked for again"


def test_folders_of_the_tree_on_pythonpath_are_the_copys(desk: Desk) -> None:
    top = desk.tree.top
    (order,) = desk.prepare(desk.order(env={"PYTHONPATH": f"{top}:/lib:{top}/src:{top}s"}))
    copy = order.launch.workdir
    assert order.launch.env["PYTHONPATH"] == f"{copy}:/lib:{copy}/src:{top}s"


def spoil(desk: Desk) -> None:
    desk.data = desk.data[:-1] + b"?"


def lose(desk: Desk) -> None:
    desk.missing = "the controller has none"


def run_out(desk: Desk) -> None:
    desk.left_s, desk.deaf = 0.0, 1


def shorten(desk: Desk) -> None:
    desk.data = desk.data[:50]


def lie(desk: Desk) -> None:
    desk.tree = msgspec.structs.replace(desk.tree, content_bytes=1)


WRONG = {
    "damaged": (spoil, "its snapshot came damaged twice", False),
    "missing": (lose, "the controller has none", True),
    "a lease that ends": (run_out, "its lease ran out", False),
    "too short": (shorten, "shorter than it should be", True),
    "more than was announced": (lie, "more than was announced", True),
}


@pytest.mark.parametrize(("go_wrong", "says", "is_users"), WRONG.values(), ids=WRONG.keys())
def test_without_its_tree_an_attempt_does_not_start(
    desk: Desk, go_wrong: Callable[[Desk], None], says: str, is_users: bool, tmp_path: Path
) -> None:
    go_wrong(desk)
    (error,) = desk.prepare(desk.order())
    assert isinstance(error, NoTree) and says in str(error) and error.is_users == is_users
    assert not list((tmp_path / "trees" / "copies").iterdir()) and desk.fetcher.preparing == {}


def test_a_host_that_cannot_write_is_to_blame(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "trees").write_text("in the way")
    (error,) = desk.prepare(desk.order())
    assert isinstance(error, NoTree) and not error.is_users and "cannot unpack its snapshot" in str(error)


def test_a_copy_goes_with_its_jobs_checkpoints_and_what_was_begun_at_the_next_start(desk: Desk) -> None:
    (order,) = desk.prepare(desk.order())
    assert str(desk.fetcher.copy_of(order.checkpoint_root)) == order.launch.workdir
    begun = desk.fetcher.copy_of("x").with_name(".unpacking-1")
    begun.mkdir()
    desk.fetcher.remove_left_over()
    assert not begun.exists() and Path(order.launch.workdir).exists()


def test_the_name_of_a_tree_is_its_sha256_and_nothing_else(desk: Desk) -> None:
    assert hashlib.sha256(desk.data).hexdigest() == desk.tree.sha256
    for wrong in ("../x", "0" * 63, "A" * 64):
        with pytest.raises(ValueError, match="SHA-256"):
            msgspec.structs.replace(desk.tree, sha256=wrong)
    with pytest.raises(ValueError, match="must lie in the snapshot"):
        job_spec.CodeSnapshot(**{**msgspec.structs.asdict(desk.tree), "subfolder": "a/../.."})


def test_an_attempt_that_is_to_stop_while_its_tree_is_fetched_ends_at_once(
    desk: Desk, tmp_path: Path
) -> None:
    h1, key = HostId("h1"), (JobId("7"), AttemptNo(1))
    spool = Spool(tmp_path / "spool")
    spool.load()
    state = AgentState(agent_config(report=host(h1, cpu("h1/cpu0")), session="s1", uid=os.geteuid()))
    runtime = runtime_in(tmp_path, state, spool)
    launch = Launch(argv=("x",), workdir="/w", snapshot=desk.tree, uid=os.geteuid())
    start = orders.start("7", 1, 1, host=h1, launch=launch, gang=gang(("h1/cpu0",)))

    async def play() -> None:
        running = asyncio.create_task(runtime.run())
        await asyncio.sleep(0)
        runtime._heard(Welcome(session="s1", lease_s=None, reports_seen=0))
        runtime._heard(CommandDelivery(command=start))
        await asyncio.sleep(0)
        assert list(runtime._trees.preparing) == [key] and state.memory.attempts[key].ended is None
        runtime._heard(CommandDelivery(command=orders.stop("7", 1, 2, host=h1, save=True)))
        ended = state.memory.attempts[key].ended
        assert ended is not None and ended.verdict.outcome == "never-started"
        runtime.leave()
        await running

    asyncio.run(play())
