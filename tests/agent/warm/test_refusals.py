"""Each row of the table of refusals, seen happening; and that nothing of the user's has run by then."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cotenant.agent.daemon.warm_starts import SpareSupervisor, WarmStarts, kind_of
from cotenant.agent.ipc.records import MpsClient, Order, RankOrder
from cotenant.agent.warm.client import RANKS_MAX
from cotenant.agent.warm.pool import EXPECTED_MIB, ColdRunTold, Pool, ServerReady, ServerRefused
from cotenant.agent.warm.refusals import (
    REFUSALS,
    SEEN_AT_START,
    SEEN_BEFORE,
    SEEN_BY_SERVER,
    WarmRefused,
    sentence,
)
from cotenant.agent.warm.spawn import ForkServer
from cotenant.controller.domain import Container, Launch
from cotenant.mps.environment import NOT_A_CLIENT, PIPE_DIRECTORY
from tests.agent.warm.servers import Environment, bare_environment, packages_of, said
from tests.building.orders import PLAIN, changed

# --- Seen from the order ----------------------------------------------------------------------------

ONE = RankOrder(rank=0, local_rank=0)


def order(*argv: str, **env: str) -> Order:
    return changed(PLAIN, launch=Launch(argv=argv or ("python", "train.py"), env=env), ranks=(ONE,))


def starts(tmp_path: Path, pool: Pool | None) -> WarmStarts:
    return WarmStarts(
        pool, folder=tmp_path, attempts=lambda job, attempt: tmp_path, spare=SpareSupervisor(), log=print
    )


CLIENT = MpsClient(pipe_directory="/mps", device_uuid="")
BEFORE: dict[str, list[Order]] = {
    "asked": [changed(PLAIN, launch=Launch(argv=("python", "a.py"), warm=False), ranks=(ONE,))],
    "command": [
        order("sh", "-c", "python train.py"),
        order("./train.py"),
        order("python"),
        order("python", "-c", "pass"),
        order("python", "-"),
        order("bin/python", "train.py"),
        order("python2", "train.py"),
    ],
    "container": [
        changed(PLAIN, launch=Launch(argv=("python", "a.py"), container=Container(image="a")), ranks=(ONE,))
    ],
    "options": [order("python", *words, "a.py") for words in (("-O",), ("-u", "-I"), ("-Xdev",), ("-E",))],
    "preloaded-library": [order(LD_PRELOAD="/lib/spy.so"), order(LD_AUDIT="/lib/spy.so")],
    "relative-path": [order(PYTHONPATH="src"), order(PYTHONPATH="/a::/b"), order(PYTHONPATH="/a:")],
    "mps": [
        changed(
            PLAIN, launch=Launch(argv=("torchrun", "a.py"), mode="host"), ranks=(ONE,), mps=(CLIENT,)
        )
    ],
}  # fmt: skip


@pytest.mark.parametrize("code", BEFORE)
def test_seen_in_the_order(tmp_path: Path, code: str) -> None:
    pool = Pool(memory_mib=100_000, share=0.5)
    for each in BEFORE[code]:
        warm = starts(tmp_path, pool).offer_server(each).warm
        assert (warm.why, warm.server, warm.learns) == (code, "", False), each.launch.argv
    assert starts(tmp_path, pool).offer_server(order("python3.11", "-u", "a.py")).warm.why == "first"


def test_switched_off(tmp_path: Path) -> None:
    assert starts(tmp_path, None).offer_server(order()).warm.why == "off"


def test_no_such_interpreter(tmp_path: Path) -> None:
    environment = Environment(tmp_path, "/nowhere/python")
    with pytest.raises(FileNotFoundError), environment.server():
        pass
    warm = starts(tmp_path, Pool(memory_mib=100_000, share=0.5))
    warm._start(environment.kind(), (), environment.jobside)
    missing = changed(PLAIN, launch=Launch(argv=("/nowhere/python", "train.py")), ranks=(ONE,))
    assert warm._pool is not None
    assert warm._pool.offer(environment.kind().key, 0.0)[1].why == "interpreter"
    assert kind_of(missing).interpreter == "/nowhere/python"


# --- Seen by the server ------------------------------------------------------------------------------

MODULES = {
    "import-ends": "raise SystemExit(3)",
    "user-code": "import of_the_user",
    "late-variable": "import os\nRANK = os.environ.get('RANK')",
    "environment": "import os\nos.environ['OMP_NUM_THREADS'] = '7'",
    "handler": "import signal\nsignal.signal(signal.SIGTERM, print)",
    "cuda": "",
    "dry-fork": "import os, time\nos.register_at_fork(after_in_child=lambda: time.sleep(600))",
    "threads": "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
}
"""A package that does what a server must not have done."""


def refusal(environment: Environment, *modules: str) -> str:
    with environment.server(*modules) as server:
        word = said(server)
        assert word.m == "refused", word
        return word.code


@pytest.mark.parametrize("code", [code for code in MODULES if code != "cuda"])
def test_seen_by_the_server(tmp_path: Path, code: str) -> None:
    users = tmp_path / "users"
    users.mkdir()
    (users / "of_the_user.py").write_text("")
    python = bare_environment(tmp_path / "venv", package=MODULES[code])
    environment = Environment(tmp_path, str(python), PYTHONPATH=str(users))
    assert refusal(environment, "package") == code


def test_what_every_job_has_from_us_is_nobodys_code(tmp_path: Path) -> None:
    """A package that imports `cotenant` finds that of the job-side folder, on PYTHONPATH."""
    python = bare_environment(tmp_path / "venv", package="import cotenant")
    with Environment(tmp_path, str(python)).server("package") as server:
        assert said(server).m == "ready"


def test_an_import_that_lists_all_variables_is_fine_and_its_c_code_is_kept_from_mps(tmp_path: Path) -> None:
    """What the rank gets is its own: here nothing."""
    getenv = "import ctypes\nget = ctypes.CDLL(None).getenv\nget.restype = ctypes.c_char_p\n"
    python = bare_environment(
        tmp_path / "venv",
        package=f"import os\n{getenv}listed = dict(os.environ)\nfound = get(b'{PIPE_DIRECTORY}').decode()",
    )
    script = f"import package\nprint(package.found, '{PIPE_DIRECTORY}' in package.listed)"
    (tmp_path / "script.py").write_text(f"{script}\nprint(package.get(b'{PIPE_DIRECTORY}'))")
    environment = Environment(tmp_path, str(python))
    with environment.server("package") as server:
        assert said(server).m == "ready"
        ended = environment.warm(server, (str(python), "script.py"), tmp_path)
    assert ended.outputs == {0: f"{NOT_A_CLIENT[PIPE_DIRECTORY]} False\nNone\n"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a device file")
def test_an_open_gpu(tmp_path: Path) -> None:
    """Stands in for one: the server reads the name of what is open."""
    device = Path("/dev/nvidia-cotenant-test")
    device.touch()
    try:
        source = f"held = open({str(device)!r})"
        environment = Environment(tmp_path, str(bare_environment(tmp_path / "venv", package=source)))
        assert refusal(environment, "package") == "cuda"
    finally:
        device.unlink()


def test_a_customized_environment(tmp_path: Path) -> None:
    python = bare_environment(tmp_path / "venv", sitecustomize="")
    assert refusal(Environment(tmp_path, str(python))) == "customizing"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("import os; os.environ.setdefault('A', 'b')", "pth"),
        ("import sys; sys.path.append('/x')", "pth"),
        ("import __editable___a_finder; __editable___a_finder.install()", ""),
        ("import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = 0; enabled and x.add_shim(); ", ""),
        ("/nowhere", ""),
    ],
)
def test_lines_that_run(tmp_path: Path, line: str, code: str) -> None:
    python = bare_environment(tmp_path / "venv", __editable___a_finder="def install():\n    pass\n")
    (packages_of(python) / "a.pth").write_text(line + "\n")
    environment = Environment(tmp_path, str(python))
    with environment.server() as server:
        word = said(server)
        assert (word.code, word.m) == (code, "refused" if code else "ready")


def test_a_program_in_place_of_the_interpreter(tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexport EXTRA=1\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    assert refusal(Environment(tmp_path, str(wrapper))) == "wrapper"


# --- Seen when an attempt comes ----------------------------------------------------------------------


def started(tmp_path: Path, change: Callable[[Environment, ForkServer], None], ranks: int = 1) -> str:
    """The code with which a start is refused; the script has not run."""
    environment = Environment(tmp_path, str(bare_environment(tmp_path / "venv", package="import json")))
    work = tmp_path / "work"
    work.mkdir()
    (work / "script.py").write_text("open('ran', 'w')\n")
    with environment.server("package") as server:
        assert said(server).m == "ready"
        change(environment, server)
        with pytest.raises(WarmRefused) as refused:
            environment.start(server, (environment.interpreter, "script.py"), work, ranks)
    assert not (work / "ran").exists()
    return refused.value.code


def test_a_changed_environment(tmp_path: Path) -> None:
    def install(environment: Environment, server: ForkServer) -> None:
        (packages_of(Path(environment.interpreter)) / "newer.py").write_text("")

    assert started(tmp_path, install) == "stale"


@pytest.mark.parametrize("name", ["json.py", "package", "select.cpython-311-x86_64-linux-gnu.so"])
def test_a_module_beside_the_script(tmp_path: Path, name: str) -> None:
    def put(environment: Environment, server: ForkServer) -> None:
        path = tmp_path / "work" / name
        if "." in name:
            path.write_text("")
        else:
            path.mkdir()
            (path / "__init__.py").write_text("")

    assert started(tmp_path, put) == "shadowed"


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_cannot_be(tmp_path: Path, ranks: int) -> None:
    """It has no working directory: a cold start says so better."""

    def remove(environment: Environment, server: ForkServer) -> None:
        (tmp_path / "work" / "script.py").unlink()

    assert started(tmp_path, remove, ranks) == "rank"


def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    def stop(environment: Environment, server: ForkServer) -> None:
        environment.first_word_s = 0.1
        os.kill(server.pid, signal.SIGSTOP)

    assert started(tmp_path, stop) == "silent"


def test_a_server_that_is_gone(tmp_path: Path) -> None:
    def kill(environment: Environment, server: ForkServer) -> None:
        os.kill(server.pid, 9)
        assert said(server).m == "ended"

    assert started(tmp_path, kill) == "gone"


def test_more_ranks_than_a_request_holds(tmp_path: Path) -> None:
    assert started(tmp_path, lambda *_: None, RANKS_MAX + 1) == "ranks"


def test_what_the_pool_says(tmp_path: Path) -> None:
    kind = Environment(tmp_path).kind()
    pool = Pool(memory_mib=2 * EXPECTED_MIB, share=0.4)
    assert pool.offer(kind.key, 0.0)[1].why == "first"
    pool.handle(ColdRunTold(kind=kind, modules=("a",)), 0.0)
    assert pool.offer(kind.key, 0.0)[1].why == "memory"
    pool = Pool(memory_mib=10 * EXPECTED_MIB, share=0.4)
    pool.handle(ColdRunTold(kind=kind, modules=("a",)), 0.0)
    assert pool.offer(kind.key, 0.0)[1].why == "coming"
    pool.handle(ServerReady(key=kind.key, memory_mib=100.0), 0.0)
    assert pool.offer(kind.key, 0.0)[0]
    pool.handle(ServerRefused(key=kind.key, code="threads", detail="2 of them"), 0.0)
    assert pool.offer(kind.key, 0.0)[1].why == "threads"


def test_every_row_is_here() -> None:
    before = {*BEFORE, "off", "interpreter", "ranks"}
    by_server = {*MODULES, "customizing", "pth", "wrapper"}
    at_start = {"first", "coming", "memory", "stale", "shadowed", "rank", "silent", "gone"}
    assert (before, by_server, at_start) == (set(SEEN_BEFORE), set(SEEN_BY_SERVER), set(SEEN_AT_START))
    assert all(sentence(code).startswith(REFUSALS[code]) for code in REFUSALS)
