"""What every test gets: a printed seed, no process left behind, and a clear skip where data is absent.

Rule: nothing that belongs to one package goes here; a package's own fixtures live beside its tests.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
import uuid
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # for `tests.building`

from tests.building.limits import pace, within_s  # noqa: E402
from tests.building.postgres import Postgres, one_postgres  # noqa: E402

MARK = "COTENANT_TEST_RUN"
"""Set in our environment: every process a test starts inherits it, unless it is given a clean one."""
GRACE_S = within_s(30.0)
"""How long a process that is on its way out may take: with torch in it that is half a second of a core, which
it may have to share with many."""

# `make test` must give the same verdict twice, so the default profile draws the same examples each time;
# `make soak` explores. No deadlines: tests here are not timed.
settings.register_profile("default", deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "soak", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cotenant")
    group.addoption("--first-seed", type=int, default=0, help="the first seed of tests that take one")
    group.addoption("--seeds", type=int, default=200, help="how many seeds the cluster simulation tries")


def pytest_report_header(config: pytest.Config) -> str:
    seed = f"first seed: {config.getoption('--first-seed')} (change it with --first-seed)"
    return f"{seed}; limits: {pace():.1f} x those of a quiet machine"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `cluster_seed` runs once per seed; `--first-seed N --seeds 1` replays seed N."""
    if "cluster_seed" in metafunc.fixturenames:
        first: int = metafunc.config.getoption("--first-seed")
        count: int = metafunc.config.getoption("--seeds")
        metafunc.parametrize("cluster_seed", range(first, first + count))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Torch, if it was imported, uses one thread: for a model of a few numbers others would only wait for
    work, on a core that somebody needs. Nothing becomes garbage here."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)


def put_aside() -> None:
    """What is left when no test runs (a million objects that were imported) mostly stays to the end. No later
    search for garbage looks at it, and there is one at the end of each module."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """What was put aside and is garbage now is complained about, too."""
    gc.unfreeze()
    put_aside()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed of this test's own, the same in every run; a failing test shows it."""
    first: int = request.config.getoption("--first-seed")
    value = first + zlib.crc32(request.node.nodeid.encode())
    print(f"seed: {value}")
    return value


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Traces and measurements that are too big for the repository."""
    folder = Path(os.environ.get("COTENANT_SHARED_DATA") or ROOT.parent / "shared")
    if not folder.is_dir():
        pytest.skip(
            "no shared data folder; set COTENANT_SHARED_DATA to one that has traces/ and interference/"
        )
    return folder


@pytest.fixture(scope="session", autouse=True)
def own_device_locks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Devices are locked per machine. Tests lock among themselves: this machine may have a real agent."""
    os.environ["COTENANT_LOCK_DIR"] = str(tmp_path_factory.getbasetemp() / "locks")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all tests of a run; each takes a database of its own and lets the server live."""
    with one_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """An empty database of the test's own."""
    with postgres.database() as name:
        yield postgres.url(name)


@pytest.fixture(scope="module", autouse=True)
def no_process_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail where a test module leaves a process, and end it so that the next module starts clean."""
    put_aside()  # By now the last test of the module before has let go of all that it was given.
    mark = os.environ.setdefault(MARK, uuid.uuid4().hex)
    signs = (f"{MARK}={mark}".encode(), f"{tmp_path_factory.getbasetemp()}/".encode())
    before = leftovers(signs)
    yield
    gc.collect()  # A socket or process that was never closed is complained about here, not in a later module.
    after = outlasting(leftovers(signs) - before)
    lines = [f"{pid}: {command(pid)}" for pid in sorted(after)]
    for pid in after:
        end(pid)
    if lines:
        pytest.fail("processes left behind (now killed):\n  " + "\n  ".join(lines), pytrace=False)


def leftovers(signs: tuple[bytes, ...]) -> set[int]:
    """Processes that carry one of the signs (our mark, or a path in this run's temporary folder) or share a
    session with one that does.

    Parentage says nothing here: supervisors are meant to outlive whoever started them.
    """
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    sessions = {pid: session for pid in pids - {os.getpid(), os.getppid()} if (session := session_of(pid))}
    marked = {sessions[pid] for pid in sessions if carries(pid, signs)} - {os.getsid(0)}
    return {pid for pid, session in sessions.items() if session in marked or carries(pid, signs)}


def session_of(pid: int) -> int | None:
    """None for a process that is gone or a zombie."""
    try:
        state, _, _, session, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else int(session)


def carries(pid: int, signs: tuple[bytes, ...]) -> bool:
    folder = Path(f"/proc/{pid}")
    try:
        here = bytes(folder.joinpath("cwd").readlink()) + b"/"
        text = b"\0".join(((folder / "environ").read_bytes(), (folder / "cmdline").read_bytes(), here))
    except OSError:  # Gone meanwhile, or another user's.
        return False
    return any(sign in text for sign in signs)


def outlasting(pids: set[int]) -> set[int]:
    """Those of the processes that do not end within the grace period."""
    deadline_s = time.monotonic() + GRACE_S
    return {pid for pid in pids if not ends_by(pid, deadline_s)}


def ends_by(pid: int, deadline_s: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        left_s = max(0.0, deadline_s - time.monotonic())
        return bool(select.select([descriptor], [], [], left_s)[0])
    finally:
        os.close(descriptor)


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(gone)"


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    ends_by(pid, time.monotonic() + GRACE_S)
