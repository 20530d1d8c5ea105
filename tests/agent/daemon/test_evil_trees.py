"""Trees that were made to do harm: each is its own job's failure, in words, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.agent.daemon.trees import NoTree, TreeFetcher, read_answer
from cotenant.agent.host import trees
from cotenant.agent.host.trees import BadTree, EntryChecks
from cotenant.agent.ipc.records import Order
from cotenant.controller.domain import AttemptNo, JobId, Launch, job_spec
from cotenant.controller.wire import FetchSnapshot, SnapshotPart
from tests.building.evil_trees import EVIL, EvilTree, entry, make, of
from tests.building.limits import within_s
from tests.building.orders import order_of

MIB = 1024 * 1024
OTHER = 54_321
"""A user who is nobody else here."""
USERS = [
    pytest.param(os.getuid(), id="own"),
    pytest.param(
        OTHER,
        id="another",
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root: jobs of another user"),
    ),
]


class Host:
    """Fetches one tree from a controller that has it."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.folder = folder
        self.copies = folder / "trees" / "copies"
        self.fetcher = TreeFetcher(
            folder / "trees", 512 * MIB, send=self._answer, lease_left_s=lambda: None, **more
        )

    def _answer(self, question: FetchSnapshot) -> None:
        with (self.folder / "sent" / self.tree.sha256).open("rb") as file:
            file.seek(question.offset)
            data = file.read(MIB)
        part = SnapshotPart(
            job_id=question.job_id, attempt=question.attempt, offset=question.offset, data=data
        )
        asyncio.get_running_loop().call_soon(self.fetcher.take, part)

    def order(
        self, stream: Callable[[], Any], uid: int, *, subfolder: str = "", wait_s: float = 0.0
    ) -> Order:
        made = make(stream, self.folder / "sent")
        self.tree: job_spec.CodeSnapshot = msgspec.structs.replace(made, subfolder=subfolder)
        launch = Launch(workdir="/submitted", snapshot=self.tree, uid=uid, gid=uid)
        return order_of(
            job_id=JobId("7"), attempt=AttemptNo(1), launch=launch, checkpoint_root="/ckpt/7-e",
            start_deadline_s=wait_s or within_s(300.0),
        )  # fmt: skip

    def prepare(self, stream: Callable[[], Any], uid: int, **more: Any) -> Order | BaseException:
        order = self.order(stream, uid, **more)

        async def prepare() -> Order | BaseException:
            (found,) = await asyncio.gather(self.fetcher.prepare(order, self.tree), return_exceptions=True)
            return found

        return asyncio.run(prepare())


def failure(found: Order | BaseException) -> NoTree:
    assert isinstance(found, NoTree), found
    return found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for each in (tmp_path, *tmp_path.parents[:2]):
        each.chmod(each.stat().st_mode | 0o011)
    return tmp_path


@pytest.mark.parametrize("uid", USERS)
@pytest.mark.parametrize("tree", EVIL.values(), ids=EVIL.keys())
def test_a_tree_is_unpacked_or_fails_its_own_job(place: Path, tree: EvilTree, uid: int) -> None:
    host = Host(place)
    found = host.prepare(tree.stream, uid)
    if tree.says:
        error = failure(found)
        assert error.is_users and tree.says in str(error) and len(str(error)) < 1000
        assert list(host.copies.iterdir()) == []
        return
    assert isinstance(found, Order), found
    for path in Path(found.launch.workdir).rglob("*"):
        assert path.stat().st_uid == uid and not path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)
    assert (Path(found.launch.workdir) / "kept").read_text() == "hi\n"


@pytest.mark.parametrize(
    "subfolder", ["a\0b", "a/" * 300, "x" * 5000, "/".join(["n" * 250] * 4), ".", "a//b"]
)
def test_a_working_directory_that_cannot_be_is_its_own_jobs_failure_as_well(
    place: Path, subfolder: str
) -> None:
    found = Host(place).prepare(of(entry()), os.getuid(), subfolder=subfolder)
    if subfolder.startswith("n"):
        assert isinstance(found, Order) and Path(found.launch.workdir).is_dir()
    else:
        assert failure(found).is_users and "in the snapshot" in str(found)


def test_the_folders_of_many_deep_entries_are_counted() -> None:
    checks = EntryChecks(1)

    def fill() -> None:
        for at in range(trees.FOLDERS_MAX):
            checks.check(tarfile.TarInfo(f"{at}/" + "b/" * 190 + "f"))

    with pytest.raises(BadTree, match="needs more folders than a snapshot may have"):
        fill()
    assert sum(checks._is_folder.values()) <= trees.FOLDERS_MAX


def test_entries_are_counted() -> None:
    checks = EntryChecks(1, entries_max=2)
    checks.check(tarfile.TarInfo("a"))
    checks.check(tarfile.TarInfo("b"))
    with pytest.raises(BadTree, match="one entry more"):
        checks.check(tarfile.TarInfo("c"))


# --- Any end of what unpacks -------------------------------------------------------------------------

UNPACKERS = {
    "killed": ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
    "out of processor time": ("import os; os.kill(os.getpid(), 24)", "was ended by SIGXCPU"),
    "a mistake": ("raise ZeroDivisionError", "gave no answer (exit code 1)"),
    "no answer": ("pass", "gave no answer (exit code 0)"),
    "nonsense": ("print('[[[[')", "gave no answer (exit code 0)"),
    "another answer": ("print('[1, 2, 3]')", "gave no answer"),
    "an endless answer": ("while True: print('x' * 4096)", "gave no answer"),
    "a deep answer": ("print('[' * 9000)", "gave no answer"),
    "good words, bad end": ("import sys; print('[\"\", 0]', flush=True); sys.exit(3)", "(exit code 3)"),
    "quota": ("print('[\"the quota of its user is used up\", 122]')", "the quota of its user"),
    "a disk that is not full": ("print('[\"No space left on device\", 28]')", "No space left"),
}


@pytest.mark.parametrize(("program", "says"), UNPACKERS.values(), ids=UNPACKERS.keys())
def test_any_end_of_the_process_is_the_jobs_own_failure(place: Path, program: str, says: str) -> None:
    host = Host(place, unpacker=(sys.executable, "-c", program))
    error = failure(host.prepare(of(entry()), os.getuid()))
    assert error.is_users and says in str(error), error
    assert list(host.copies.iterdir()) == []


def test_a_process_that_never_ends_is_ended(place: Path) -> None:
    note = f"import os; open({str(place / 'pid')!r}, 'w').write(str(os.getpid()))"
    program = f"{note}\nwhile True: pass"
    host = Host(place, unpacker=(sys.executable, "-c", program))
    error = failure(host.prepare(of(entry()), os.getuid(), wait_s=3.0))
    assert error.is_users and "was not unpacked after 3 s (agent.start_deadline_s)" in str(error)
    if (place / "pid").exists():  # A slow machine may not have come so far.
        with pytest.raises(ProcessLookupError):
            os.kill(int((place / "pid").read_text()), 0)


def test_a_disk_that_we_see_to_fail_is_the_hosts(place: Path) -> None:
    copies = place / "trees" / "copies"
    program = f"import os, shutil; shutil.rmtree({str(copies)!r}); print('[\"Input/output error\", 5]')"
    error = failure(Host(place, unpacker=(sys.executable, "-c", program)).prepare(of(entry()), os.getuid()))
    assert not error.is_users and "cannot unpack its snapshot" in str(error)


def test_a_program_that_is_not_there_is_the_hosts_failure(place: Path) -> None:
    host = Host(place, unpacker=(str(place / "nothing"),))
    assert not failure(host.prepare(of(entry()), os.getuid())).is_users


def test_every_signal_has_words() -> None:
    for number in range(1, signal.NSIG):
        assert "was ended by " in read_answer(-number, b"").why


def test_an_attempt_that_is_to_stop_ends_what_unpacks_for_it(place: Path) -> None:
    ready = place / "ready"
    os.mkfifo(ready)
    note = f"file = os.open({str(ready)!r}, os.O_WRONLY); os.write(file, b'%d' % os.getpid())"
    program = f"import os, signal; {note}; os.close(file); signal.pause()"
    host = Host(place, unpacker=(sys.executable, "-c", program))
    order = host.order(of(entry()), os.getuid())

    async def play() -> int:
        preparing = asyncio.create_task(host.fetcher.prepare(order, host.tree))
        pid = int(await asyncio.to_thread(ready.read_text))
        preparing.cancel()
        await asyncio.gather(preparing, return_exceptions=True)
        return pid

    pid = asyncio.run(play())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert list(host.copies.iterdir()) == []
