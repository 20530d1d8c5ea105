"""A rank that was forked is what a cold start would be: the same program, run both ways, says the same."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.agent.warm.forkserver import server as forkserver
from cotenant.agent.warm.spawn import ForkServer
from tests.agent.warm.servers import Environment, bare_environment, said

LOOKS_AROUND = """
import os, resource, signal, stat, sys, threading
print(__name__, __file__, __package__, __spec__, __doc__, __annotations__, __cached__, type(__loader__))
print(sorted(globals()))
print(sys.argv, sys.orig_argv, sys.path, sys.flags, sys.executable, sys.prefix, sys.warnoptions)
print(os.getcwd(), os.umask(0), sorted(os.sched_getaffinity(0)), os.nice(0))
print(sorted(os.environ.items()))
print([signal.getsignal(n) for n in (1, 2, 3, 10, 13, 15, 17)], signal.pthread_sigmask(0, ()))
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.encoding, stream.errors, stream.line_buffering, stream.isatty(), stream.name, stream.mode)
    print(getattr(stream, "write_through", None), stat.S_IFMT(os.fstat(stream.fileno()).st_mode))
    print(stream.name == "<stdin>" or stream.seekable())
print(sorted(int(fd) for fd in os.listdir("/proc/self/fd")))
print(threading.current_thread().name, threading.active_count())
print(threading.main_thread().native_id == os.getpid())
print([resource.getrlimit(n) for n in range(8)])
print(sys.excepthook, sys.getrecursionlimit(), sys.gettrace(), sys.modules["__main__"].__file__)
import beside
print(beside.__file__, beside.__name__)
"""

PROCESSES = """
import multiprocessing, os, sys
def work(number):
    return number * 2, __name__ == "__main__", os.getpid() != parent
parent = int(os.environ.get("PARENT_PID", os.getpid()))
os.environ["PARENT_PID"] = str(parent)
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            print(method, pool.map(work, range(3)))
        child = context.Process(target=sys.exit, args=(7,))
        child.start()
        child.join()
        print(child.exitcode)
"""

ELSEWHERE = """
import sys
print(__name__, __package__, __file__, sys.argv, sys.path[0])
1 / 0
"""

HOOK = """
import sys, traceback
def hook(kind, error, trace):
    for each in (trace, error.__traceback__):
        print(kind, error, [frame.name for frame in traceback.extract_tb(each)])
sys.excepthook = hook
def f():
    raise ValueError("no")
f()
"""

PACKAGE = """
import decimal, json, os
class Leaks:
    text = b""
    def __del__(self, write=os.write):
        write(1, self.text)
kept = Leaks()
kept.itself = kept
"""
"""A package with an object that only the collector can free, as those of nanobind (triton) are."""

PROGRAMS = {
    "a cycle that is freed at the end": "import package\npackage.kept.text = b'freed'\nprint('hello')\n",
    "what it sees": LOOKS_AROUND,
    "an uncaught error": "def f():\n    raise ValueError('no')\n\nf()\n",
    "an error within an error": "try:\n    1 / 0\nexcept ArithmeticError as e:\n    raise KeyError from e\n",
    "an error in a thread": "import threading as t\na = t.Thread(target=int, args='x')\na.start()\n",
    "a hook of its own": HOOK,
    "no Python": "def f(:\n",
    "an exit code": "import sys\nsys.exit(7)\n",
    "an exit with words": "import sys\nsys.exit('enough')\n",
    "an exit at once": "import os\nprint('a', flush=True)\nos._exit(9)\n",
    "an interrupt": "raise KeyboardInterrupt\n",
    "a signal": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n",
    "words at exit": "import atexit\natexit.register(print, 'bye')\nprint('hello')\n",
    "a thread that outlives the script": (
        "import threading\nthreading.Timer(0.05, lambda: print('late')).start()\nprint('early')\n"
    ),
    "processes": PROCESSES,
    "an import of itself": "import __main__\nx = 1\nprint(__main__.x, __main__.__dict__ is globals())\n",
    "pickles": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)\n",
    "a data class": "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int'\nprint(A(1))\n",
}
"""Scripts, by what they show."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("warm")
    return Environment(folder, str(bare_environment(folder / "venv", package=PACKAGE)))


@pytest.fixture(scope="module")
def server(environment: Environment) -> Iterator[ForkServer]:
    with environment.server("package") as server:
        assert said(server).m == "ready"
        yield server


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_script_is_what_it_is_cold(
    environment: Environment, server: ForkServer, tmp_path: Path, source: str
) -> None:
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "script.py").write_text(source)
    argv = (environment.interpreter, "script.py", "one", "--two")
    assert environment.warm(server, argv, tmp_path) == environment.cold(argv, tmp_path)


READS = LOOKS_AROUND + "print(sys.stdin.seekable(), sys.stdin is sys.__stdin__, list(sys.stdin))"


def test_its_standard_input_is_what_it_is_cold(
    environment: Environment, server: ForkServer, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "script.py").write_text(READS)
    environment.input = tmp_path / "input"
    environment.input.write_bytes("first\r\nsecond \u00fc\nlast".encode() + b"\xff")
    argv = (environment.interpreter, "script.py")
    try:
        warm, cold = environment.warm(server, argv, tmp_path), environment.cold(argv, tmp_path)
    finally:
        environment.input = None
    assert warm == cold
    assert "True True ['first" in cold.one[1]


@pytest.mark.parametrize("words", [("./inner/script.py",), ("-m", "inner.script", "x"), ("-m", "inner")])
def test_from_another_folder_or_as_a_module(
    environment: Environment, server: ForkServer, tmp_path: Path, words: tuple[str, ...]
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    for name in ("script.py", "__main__.py"):
        (inner / name).write_text(
            "import sys\nprint(__name__, __package__, __file__, sys.argv, sys.path[0])\n1 / 0\n"
        )
    argv = (environment.interpreter, *words)
    assert environment.warm(server, argv, tmp_path) == environment.cold(argv, tmp_path)


def test_an_unbuffered_interpreter(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nprint(sys.flags, sys.stdout.write_through)\n")
    argv = (environment.interpreter, "-u", "script.py")
    with environment.server("package", options=("-u",)) as server:
        assert said(server).m == "ready"
        assert environment.warm(server, argv, tmp_path) == environment.cold(argv, tmp_path)


def test_two_ranks_have_random_numbers_of_their_own(
    environment: Environment, server: ForkServer, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(
        "import random, multiprocessing, tempfile\n"
        "print(random.random(), multiprocessing.current_process().authkey.hex())\n"
    )
    ended = environment.warm(server, (environment.interpreter, "script.py"), tmp_path, ranks=2)
    assert ended.codes == {0: 0, 1: 0}
    assert not set(ended.outputs[0].split()) & set(ended.outputs[1].split())


def test_signals_reach_the_group_and_its_end_is_told(
    environment: Environment, server: ForkServer, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(
        "import signal, sys, time\n"
        "def leave(*_):\n    print('asked'); sys.exit(5)\n"
        "signal.signal(signal.SIGTERM, leave)\nprint('here')\nsignal.pause()\n"
    )
    running = environment.start(server, (environment.interpreter, "script.py"), tmp_path, ranks=2)
    running.wait_until(lambda: all(b"here\n" in each for each in running.outputs))
    running.nanny.signal(signal.SIGTERM)
    ended = running.wait()
    running.close()
    assert ended.codes == {0: 5, 1: 5}
    assert ended.outputs == {0: "here\nasked\n", 1: "here\nasked\n"}


def test_what_a_rank_leaves_behind_is_ended(
    environment: Environment, server: ForkServer, tmp_path: Path
) -> None:
    """A process in a session of its own, whose parent is gone: it holds the output, which ends with it."""
    (tmp_path / "script.py").write_text(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
        "    if os.fork() == 0:\n        time.sleep(600)\n    os._exit(0)\n"
    )
    running = environment.start(server, (environment.interpreter, "script.py"), tmp_path)
    running.wait_until(lambda: running.codes == {0: 0})
    running.nanny.clear()
    running.wait()
    running.close()


def test_ranks_die_with_their_nanny(environment: Environment, server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import time\nprint('here')\ntime.sleep(600)\n")
    running = environment.start(server, (environment.interpreter, "script.py"), tmp_path, ranks=2)
    running.wait_until(lambda: all(b"here" in each for each in running.outputs))
    running.nanny.kill()
    running.wait_until(lambda: running.nanny.is_gone and not running._open)
    running.close()


def test_its_imports_stand_behind_those_who_train_and_its_starts_do_not(
    environment: Environment, tmp_path: Path
) -> None:
    if not Path("/proc/self/autogroup").exists():
        pytest.skip("this kernel has no autogroups")

    def nice_of(server: ForkServer) -> str:
        return (Path("/proc") / str(server.pid) / "autogroup").read_text().split()[-1]

    (tmp_path / "script.py").write_text("print(open('/proc/self/autogroup').read())\n")
    with environment.server("package") as server:
        assert nice_of(server) == "19"
        assert said(server).m == "ready"
        assert nice_of(server) == "0", "who waits for a start waits for it"
        told = environment.warm(server, (environment.interpreter, "script.py"), tmp_path)
    assert "nice 0" in str(told)


def test_ranks_outlive_their_server(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys, time\nprint('here')\nwhile True: time.sleep(0.01)\n")
    with environment.server("package") as server:
        assert said(server).m == "ready"
        running = environment.start(server, (environment.interpreter, "script.py"), tmp_path)
        running.wait_until(lambda: b"here" in running.outputs[0])
    running.nanny.signal(signal.SIGINT)
    ended = running.wait()
    running.close()
    assert ended.codes == {0: -signal.SIGINT}
    assert "KeyboardInterrupt" in ended.outputs[0]


def test_only_what_somebody_would_miss_is_looked_at_when_a_rank_ends() -> None:
    class Closes:
        def __del__(self) -> None:
            pass

    function = type("nb_func", (), {"__module__": "nanobind"})
    missed = {
        kind: forkserver._is_missed_unless_freed(kind) for kind in (Closes, function, socket.socket, dict)
    }
    assert missed == {Closes: True, function: True, socket.socket: False, dict: False}
