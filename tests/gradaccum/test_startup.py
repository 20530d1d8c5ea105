"""What every Python process of a job runs first: stacks on demand, and longer time limits where GPUs are
shared."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cotenant.agent.supervisor.core import rank_messages
from cotenant.agent.supervisor.processes import ranks
from cotenant.agent.supervisor.processes.environment import STACKS_SIGNAL
from cotenant.checkpoint.talk import protocol
from cotenant.gradaccum.launch import STARTUP
from tests.building.limits import within_s
from tests.checkpoint.ranks import Warm, launch
from tests.processes import IMPORT_S

pytestmark = pytest.mark.usefixtures("warm")

STARTED = Path(__file__).parents[1] / "checkpoint" / "started.py"

WAITS = """
import sys, threading
def where_it_waits():
    print("here", flush=True)
    sys.stdin.read(1)
def beside():
    threading.Event().wait()
threading.Thread(target=beside, daemon=True).start()
where_it_waits()
print("went on", flush=True)
"""
GROUPS = """
import datetime, tempfile, torch, torch.distributed as dist
def limit_s(**given):
    store = dist.FileStore(tempfile.mktemp(), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, **given)
    own = dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout
    made = dist.new_group([0])._get_backend(torch.device("cpu")).options._timeout
    dist.destroy_process_group()
    return [own.total_seconds(), made.total_seconds()]
print(limit_s(), limit_s(timeout=datetime.timedelta(seconds=77))[0])
"""

SHARES = """
import sys, threading, types
import torch
GIB, OLD = 1 << 30, "2.6.0"
version, used, script = sys.argv[1], sys.argv[3], sys.argv[4]
sizes = [int(each) * GIB for each in sys.argv[2].split(",")]
seen, opened, told = {}, set(), threading.Condition()
cuda, memory = torch.cuda, torch.cuda.memory
torch.__version__ = version
cuda._initialized, cuda.is_initialized = True, lambda: True
cuda.device_count = lambda: len(sizes)
cuda.current_device = lambda: 0
cuda.get_device_properties = lambda no: types.SimpleNamespace(total_memory=sizes[no])
cuda.mem_get_info = lambda no: (sizes[no], sizes[no])
memory.get_allocator_backend = lambda: "native"
memory.get_per_process_memory_fraction = lambda no: seen.get(no, 1.0)
def set_fraction(fraction, no):
    with told:
        if version == OLD:
            opened.add(no)
        seen[no] = fraction
        told.notify_all()
torch._C._cuda_setMemoryFraction = set_fraction
torch._C._cuda_hasPrimaryContext = lambda no: no in opened
memory._lazy_init = lambda: None
memory._get_device_index = lambda device, optional=False: device
for call, _ in cuda._queued_calls:  # As torch does when CUDA is first used.
    try:
        call()
    except (AssertionError, AttributeError, RuntimeError):
        pass  # Its own checks, which need CUDA.
for no in used:
    opened.add(int(no))
    with told:
        told.wait_for(lambda: int(no) in seen, 60)
exec(script)
print(sorted(seen.items()), sorted(opened))
"""


def environment(**words: str) -> dict[str, str]:
    path = os.pathsep.join([str(STARTUP), *(each for each in sys.path if each)])
    return {**os.environ, "PYTHONPATH": path, **words}


@contextmanager
def waiting(**words: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=environment(**words),
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_waits_shows_the_stacks_of_all_its_threads_and_goes_on() -> None:
    with waiting(**{protocol.ENV_STACKS_SIGNAL: str(STACKS_SIGNAL)}) as process:
        assert ranks.dump([process.pid, process.pid]) == [process.pid], "once, however often it is named"
        shown = ""
        while "where_it_waits" not in shown or "in beside" not in shown:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line, shown
            shown += line
        # Only now: stacks are walked without Python's lock, and one that is left meanwhile may be gone.
        out, _ = process.communicate("x", timeout=within_s(60))
    assert (out, process.returncode) == ("went on\n", 0)


@pytest.mark.parametrize("number", ["", "0", "9", "99999", "x"])
def test_a_signal_that_cannot_be_taken_is_never_sent(number: str) -> None:
    with waiting(**{protocol.ENV_STACKS_SIGNAL: number}) as process:
        assert ranks.dump([process.pid]) == []
        out, err = process.communicate("x", timeout=within_s(60))
    assert (out, err, process.returncode) == ("went on\n", "", 0)


def test_who_cannot_show_its_stacks_is_aborted_only_if_it_shows_them_then() -> None:
    with waiting() as plain:
        assert ranks.abort_others([plain.pid]) == []
        assert plain.communicate("x", timeout=within_s(60))[0] == "went on\n"
    with waiting(PYTHONFAULTHANDLER="1") as handled:
        assert ranks.abort_others([handled.pid]) == [handled.pid]
        _, err = handled.communicate("x", timeout=within_s(60))
        assert handled.returncode == -signal.SIGABRT and "where_it_waits" in err
    with waiting(PYTHONFAULTHANDLER="1", **{protocol.ENV_STACKS_SIGNAL: str(STACKS_SIGNAL)}) as able:
        assert ranks.abort_others([able.pid]) == [], "it has shown them already"
        assert able.communicate("x", timeout=within_s(60))[0] == "went on\n"


def test_a_program_that_is_no_python_and_one_that_is_gone_are_left_alone() -> None:
    sleeping = subprocess.Popen(["sleep", "1000"])
    try:
        assert ranks.dump([sleeping.pid]) == ranks.abort_others([sleeping.pid]) == []
        assert sleeping.poll() is None
    finally:
        sleeping.kill()
        sleeping.wait()
    assert ranks.dump([sleeping.pid]) == []
    assert not ranks.catches(sleeping.pid, STACKS_SIGNAL)


def forked(warm: Warm, folder: Path, program: str, *args: str, **words: str) -> list[str]:
    """What it says after the start of a process that has torch already."""
    script = folder / "program.py"
    script.write_text("import warnings\nwarnings.simplefilter('ignore')\n" + program)
    gang = launch(warm, STARTED, folder / "run", str(script), *args, env={**words, "TMPDIR": str(folder)})
    gang.wait()
    return gang.output().splitlines()[1:]


def test_process_groups_get_their_default_time_limit_times_the_scale_unless_the_script_names_one(
    warm: Warm, tmp_path: Path
) -> None:
    said = forked(warm, tmp_path, GROUPS, **{protocol.ENV_COLLECTIVE_SCALE: "2.0"})
    assert said == ["[3600.0, 3600.0] 77.0"]


MIB_20_GIB = {protocol.ENV_MEMORY_MIB: str(20 * 1024)}


@pytest.mark.parametrize(
    ("version", "used", "seen"),
    [
        pytest.param("2.13.0", "", "[(0, 0.25), (1, 0.5)] []", id="none is opened"),
        pytest.param("2.6.0", "1", "[(1, 0.5)] [1]", id="older torch, one of two is used"),
    ],
)
def test_torch_keeps_to_its_part_of_each_device_in_any_script(
    warm: Warm, tmp_path: Path, version: str, used: str, seen: str
) -> None:
    """Set when CUDA is first used, not before: nobody's import opens a device."""
    assert forked(warm, tmp_path, SHARES, version, "80,40", used, "", **MIB_20_GIB) == [seen]


def test_it_does_so_where_torch_is_imported_after_the_start() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHARES, "2.13.0", "80,40", "", ""],
        env=environment(**MIB_20_GIB),
        capture_output=True,
        text=True,
        timeout=IMPORT_S,
    )
    assert (ran.stdout, ran.stderr) == ("[(0, 0.25), (1, 0.5)] []\n", "")


def test_a_script_takes_less_if_it_wants_to_and_not_more(warm: Warm, tmp_path: Path) -> None:
    script = "cuda.set_per_process_memory_fraction(0.9, 0); memory.set_per_process_memory_fraction(0.1, 1)"
    said = forked(warm, tmp_path, SHARES, "2.13.0", "80,40", "", script, **MIB_20_GIB)
    assert said == ["[(0, 0.25), (1, 0.1)] []"]


def test_a_part_that_cannot_be_kept_is_said_and_the_script_runs(warm: Warm, tmp_path: Path) -> None:
    said, seen = forked(
        warm, tmp_path, SHARES, "2.13.0", "80", "", "", **{protocol.ENV_MEMORY_MIB: "nonsense"}
    )
    assert seen == "[] []"
    assert said.startswith(
        "cotenant: holding this process to its part of the GPU is off: cotenant's own code failed: "
        "ValueError: COTENANT_MEMORY_MIB"
    )


# --- Its first step will be seen -------------------------------------------------------------------

SAYS = """
import os, socket
def say(text):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(text.encode(), os.environ["COTENANT_SOCKET"])
"""
LOOKS_FOR_TORCH = (
    SAYS
    + """
import importlib.util
assert importlib.util.find_spec("torch") is not None
say("found")
if os.environ.get("USES"):
    import torch.optim
    import torch
"""
)
USES_TORCH = (
    SAYS
    + """
say("begins")
from torch.utils.data import DataLoader
import torch
say("uses")
"""
)


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "s"))
        supervisor.setblocking(False)
        yield supervisor


def words(heard: socket.socket) -> list[str]:
    """What was said by now; the protocol's words by their names."""
    found: list[str] = []
    while True:
        try:
            said = heard.recv(4096)
        except BlockingIOError:
            return found
        word = rank_messages.parse(said)
        found.append(said.decode() if word is None else type(word).__name__)


@pytest.mark.parametrize(
    ("uses", "zero_code", "said"),
    [
        pytest.param("yes", "progress", ["found", "RankWatched", "imports"], id="it imports torch"),
        pytest.param("", "progress", ["found"], id="it only looks whether there is one"),
        pytest.param("yes", "", ["found", "imports"], id="its steps are not to be counted"),
    ],
)
def test_who_imports_torch_says_before_that_its_first_step_will_be_seen(
    heard: socket.socket, tmp_path: Path, uses: str, zero_code: str, said: list[str]
) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text(f"{SAYS}say('imports')\n")
    (torch / "optim.py").touch()
    env = environment(
        **{protocol.ENV_ZERO_CODE: zero_code, protocol.ENV_SOCKET: str(tmp_path / "s"), "USES": uses}
    )
    path = os.pathsep.join([str(STARTUP), str(tmp_path), env["PYTHONPATH"]])
    subprocess.run(
        [sys.executable, "-c", LOOKS_FOR_TORCH], env={**env, "PYTHONPATH": path}, check=True, timeout=IMPORT_S
    )
    assert words(heard) == said


@pytest.mark.parametrize("zero_code", ["progress", "accumulate,checkpoint,progress"])
def test_who_has_torch_before_the_script_says_so_when_the_script_imports_it(
    warm: Warm, heard: socket.socket, tmp_path: Path, zero_code: str
) -> None:
    env = {protocol.ENV_ZERO_CODE: zero_code, protocol.ENV_SOCKET: str(tmp_path / "s")}
    forked(warm, tmp_path, USES_TORCH, **env)
    assert words(heard) == ["begins", "RankWatched", "uses"]
