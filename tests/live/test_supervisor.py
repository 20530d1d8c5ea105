"""Supervisors with real processes: what starts, what is said, how it ends, and that nothing is left.

The ranks are small programs that speak the job-side protocol by themselves: no torch.
"""

from __future__ import annotations

import importlib.util
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.agent.host.cgroups import RANKS, AttemptCgroup, find_cgroups, sweep
from cotenant.agent.host.process_identity import identity_of, stat_of
from cotenant.agent.ipc.channel import EndedNow, FromSupervisor, SaveNow, StatusNow, StopNow, short_address
from cotenant.agent.ipc.files import read_record, write_record
from cotenant.agent.ipc.records import (
    CONTROL,
    JOB,
    LOGS,
    ORDER,
    RESULT,
    STATUS,
    SUPERVISOR,
    Order,
    ProcessIdentity,
    RankOrder,
    Result,
    Status,
)
from cotenant.agent.supervisor.processes.logs import read_log
from cotenant.agent.supervisor.processes.reaper import end_leftovers
from cotenant.controller.domain import AttemptNo, Launch
from tests.building.frames import receive_message, send_message
from tests.building.orders import changed, input_file, order_of
from tests.ports import free_port
from tests.processes import IMPORT_S

WAIT_S = IMPORT_S
"""Only a broken program takes this long; torch's launcher imports torch."""
ROOT = os.geteuid() == 0
NOBODY = 65534

RANK = """
import json, os, select, socket, sys, time

path = os.environ["COTENANT_SOCKET"]
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
inbox.bind(os.path.join(os.path.dirname(path), "rank-%d.sock" % rank))
promises, step = {}, 0

def say(m, **fields):
    out.sendto(json.dumps({"v": 1, "m": m, "rank": rank, **fields}).encode(), path)

def listen(wait_s):
    if not select.select([inbox], [], [], wait_s)[0]:
        return
    word = json.loads(inbox.recv(4096))
    key = (word["m"], word["proposal"])
    if word["phase"] == "propose":
        if key not in promises and word["step"] > step:
            promises[key] = [word["step"], False]
        say("confirm", proposal=word["proposal"], step=step, ok=key in promises)
    elif key in promises and word["phase"] == "commit":
        promises[key][1] = True
    elif key in promises and not promises[key][1]:
        del promises[key]

def obey():
    while due := [key for key, (at, _) in promises.items() if at <= step]:
        if not promises[due[0]][1]:
            listen(30.0)
            continue
        del promises[due[0]]
        say("saving", step=step)
        if rank == 0:
            say("durable", step=step, name="a1-s%d" % step, exact=True, note="")
        if due[0][0] == "stop_at":
            say("stopped", step=step)
            print("stopped at", step, flush=True)
            sys.exit(0)

say("hello", world_size=world_size, resumable="plain" not in sys.argv, accumulates=False, step=0)
while True:
    step += 1
    if step == 1:
        say("first_step", step=1)
    else:
        say("step", step=step, count=1, elapsed_s=0.01, s=1, loss=0.5)
    if "deaf" not in sys.argv:
        obey()
        listen(0.01)
    else:
        time.sleep(0.01)
"""


class Attempt:
    """One supervisor, as an agent has it."""

    def __init__(self, folder: Path, order: Order) -> None:
        self.folder = folder
        self.order = order
        folder.mkdir(parents=True, mode=0o711)
        write_record(folder / ORDER, order)
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: socket.socket | None = None
        self.statuses: list[Status] = []
        self.ended = False

    def start(self, **fields: Any) -> Attempt:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cotenant.agent.supervisor.runtime", str(self.folder)],
            cwd="/",
            start_new_session=True,
            **fields,
        )
        return self

    def connect(self) -> socket.socket:
        self.await_file(CONTROL)
        deadline_s = time.monotonic() + WAIT_S
        while True:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(WAIT_S)
            try:
                with short_address(self.folder / CONTROL) as address:
                    connection.connect(address)
            except ConnectionRefusedError:  # The file is there a moment before anybody listens.
                connection.close()
                assert time.monotonic() < deadline_s, f"nobody listens at {self.folder / CONTROL}"
                time.sleep(0.01)
                continue
            self.connection = connection
            return connection

    def until(self, wanted: Callable[[Status], bool]) -> Status:
        """Wait for a status; the supervisor sends one with every change."""
        connection = self.connection or self.connect()
        while not self.statuses or not wanted(self.statuses[-1]):
            assert self._receive(connection), "it ended"
        return self.statuses[-1]

    def _receive(self, connection: socket.socket) -> bool:
        message = receive_message(connection, FromSupervisor)
        match message:
            case StatusNow(status=status):
                self.statuses.append(status)
            case EndedNow():
                self.ended = True
        return message is not None

    def tell(self, word: StopNow | SaveNow) -> None:
        send_message(self.connection or self.connect(), word)

    def result(self) -> Result:
        """Wait for the end, which is said once it is written."""
        connection = self.connection
        while connection is not None and self._receive(connection):
            pass
        assert self.process is not None
        assert self.process.wait(WAIT_S) == 0
        result = read_record(self.folder / RESULT, Result)
        assert result is not None
        assert connection is None or self.ended
        return result

    def log(self, rank: int = 0) -> str:
        part = read_log(self.folder / LOGS, rank, 0, 1 << 20)
        return "" if part is None else part.data.decode(errors="replace")

    def await_file(self, name: str, base: Path | None = None) -> Path:
        """Poll for a file that another process makes."""
        path = (base or self.folder) / name
        until_s = time.monotonic() + WAIT_S
        while not path.exists():
            assert time.monotonic() < until_s, f"no {path}"
            time.sleep(0.01)
        return path

    def await_line(self, name: str, base: Path) -> str:
        """The file's text once a whole line is in it: it is there before anything is."""
        path = self.await_file(name, base)
        until_s = time.monotonic() + WAIT_S
        while not (text := path.read_text()).endswith("\n"):
            assert time.monotonic() < until_s, f"no line in {path}"
            time.sleep(0.01)
        return text

    def pids(self) -> list[int]:
        """Processes whose environment says that they belong here."""
        sign = f"COTENANT_SOCKET={(self.folder / JOB).resolve()}".encode()
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                environment = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            stat = stat_of(int(name))
            if sign in environment and stat is not None and stat.state != "Z":
                found.append(int(name))
        return found

    def await_pids(self, count: int) -> list[int]:
        """Those processes once there are so many: the kernel shows a new program's environment only a moment
        after its start has succeeded."""
        until_s = time.monotonic() + WAIT_S
        while len(found := self.pids()) != count:
            assert time.monotonic() < until_s, f"{len(found)} processes instead of {count}"
            time.sleep(0.01)
        return found

    def clean(self) -> None:
        if self.connection is not None:
            self.connection.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        identity = read_record(self.folder / SUPERVISOR, ProcessIdentity)
        assert end_leftovers(self.folder, self.order, identity) == []


Make = Callable[..., Attempt]


LAUNCH_FIELDS = ("output", "uid", "gid", "workdir", "mode", "input", "errors_apart")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    attempts: list[Attempt] = []

    def attempt(*argv: str, ranks: int = 1, **fields: Any) -> Attempt:
        launch = Launch(argv=argv, workdir=str(tmp_path), env={"PATH": os.environ["PATH"]})
        base = fields.pop("base", tmp_path)
        launch_fields = {name: fields.pop(name) for name in LAUNCH_FIELDS if name in fields}
        order = order_of(
            ranks,
            attempt=AttemptNo(len(attempts) + 1),
            launch=msgspec.structs.replace(launch, **launch_fields),
            checkpoint_root=str(tmp_path / "checkpoints"),
            start_deadline_s=1800.0,
            log_bytes_max=1 << 20,
            jobside_path="",
        )
        made = Attempt(base / f"7-a{len(attempts) + 1}", changed(order, **fields))
        attempts.append(made)
        return made

    yield attempt
    for each in attempts:
        each.clean()


@pytest.fixture
def rank_program(tmp_path: Path) -> str:
    path = tmp_path / "rank.py"
    path.write_text(textwrap.dedent(RANK))
    return str(path)


def python(code: str) -> tuple[str, str, str]:
    return (sys.executable, "-c", textwrap.dedent(code))


# --- Ends ------------------------------------------------------------------------------------------


def test_a_normal_end_with_nobody_connected(make: Make) -> None:
    """The agent may be away for the whole run: the result is there."""
    attempt = make(*python("import os; print('rank', os.environ['RANK'])"), ranks=2).start()
    result = attempt.result()
    assert (result.verdict.outcome, result.verdict.exit_code) == ("finished", 0)
    assert (attempt.log(0), attempt.log(1)) == ("rank 0\n", "rank 1\n")
    status = read_record(attempt.folder / STATUS, Status)
    assert status is not None
    assert status.started
    assert sorted(path.name for path in attempt.folder.iterdir()) == [
        JOB, LOGS, ORDER, RESULT, STATUS, SUPERVISOR
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "exit_code", "detail"),
    [
        pytest.param(("sh", "-c", "echo last words; exit 1"), 1, "exit code 1: last words", id="exit 1"),
        pytest.param(
            python("import nonsense"), 1, "an import failed: ModuleNotFoundError: No module named",
            id="import",
        ),
        pytest.param(("no-such-command",), 127, "command not found on h: no-such-command", id="no command"),
        pytest.param(("/etc/passwd",), 126, "cannot execute /etc/passwd on h: Permission", id="no program"),
        pytest.param((), 126, "no command was given", id="nothing"),
    ],
)  # fmt: skip
def test_failures_of_the_user(make: Make, argv: tuple[str, ...], exit_code: int, detail: str) -> None:
    result = make(*argv).start().result()
    assert (result.verdict.outcome, result.verdict.exit_code) == ("user-failed", exit_code)
    assert result.verdict.detail.startswith(detail)


def test_bytes_that_are_no_text_do_not_end_a_supervisor(make: Make) -> None:
    said = """
        import os, socket
        out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for text in (b'{"v":1,"m":"failed","rank":0,"what":"\\xff"}', b"\\xff", b"[" * 4000,
                     b'{"v":1,"m":"failed","rank":0,"what":"x","y":' + b'{"a":' * 800,
                     b'{"v":1,"m":"failed","rank":0,"what":"\\xed\\xa0\\x80"}',
                     b'{"v":1,"m":"failed","rank":0,"what":"still heard"}'):
            out.sendto(text, os.environ["COTENANT_SOCKET"])
    """
    attempt = make(*python(said)).start()
    attempt.until(lambda status: any("still heard" in each for each in status.failed))
    assert attempt.result().verdict.outcome == "finished"


def test_a_working_directory_that_is_not_there(make: Make) -> None:
    result = make("true", workdir="/nowhere").start().result()
    assert (result.verdict.outcome, result.verdict.workdir_missing) == ("infra-failed", True)
    assert "/nowhere" in result.verdict.detail


def test_one_rank_that_cannot_start_ends_those_that_did(make: Make, tmp_path: Path) -> None:
    attempt = make("sleep", "1000", ranks=2)
    order = msgspec.structs.replace(
        attempt.order, ranks=(attempt.order.ranks[0], RankOrder(rank=1, local_rank=1, cores=(100_000,)))
    )
    write_record(attempt.folder / ORDER, order)
    result = attempt.start().result()
    assert result.verdict.outcome == "infra-failed"
    assert attempt.pids() == []


def test_a_job_that_hangs_at_start(make: Make) -> None:
    attempt = make(*python("import time; time.sleep(1000)"), start_deadline_s=1.0).start()
    result = attempt.result()
    assert result.verdict.outcome == "user-failed"
    assert "it hangs" in result.verdict.detail


def test_grandchildren_do_not_stay_behind(make: Make, tmp_path: Path) -> None:
    """Neither one in the background, nor one with a session and an environment of its own."""
    script = """
        sleep 1000 &
        env -i setsid sh -c 'echo $$ > daemon; exec sleep 1000' &
        while [ ! -s daemon ]; do :; done
    """
    attempt = make("sh", "-c", textwrap.dedent(script)).start()
    assert attempt.result().verdict.outcome == "finished"
    assert identity_of(int((tmp_path / "daemon").read_text())) is None
    assert attempt.pids() == []


def test_a_killed_rank_ends_the_gang(make: Make, rank_program: str) -> None:
    attempt = make(sys.executable, rank_program, ranks=2).start()
    attempt.until(lambda status: status.first_step is not None)
    victim = next(
        pid
        for pid in attempt.await_pids(2)
        if b"\0RANK=1\0" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    )
    os.kill(victim, signal.SIGKILL)
    attempt.tell(
        StopNow(save=False, deadline_s=5.0, reason="peer")
    )  # As the controller does: no 20 s of grace.
    result = attempt.result()
    assert attempt.pids() == []
    assert result.verdict.outcome in ("infra-failed", "stopped")


# --- Stops and saves -------------------------------------------------------------------------------


def everybody_spoke(status: Status) -> bool:
    """A few steps are made, and the last rank, which may be far behind the first, has said hello."""
    return status.step > 3 and status.resumable is not None


def test_two_ranks_stop_at_one_step_with_their_state_saved(make: Make, rank_program: str) -> None:
    attempt = make(sys.executable, rank_program, ranks=2).start()
    status = attempt.until(everybody_spoke)
    assert (status.resumable, status.first_step) == (True, 1)
    attempt.tell(StopNow(save=True, deadline_s=WAIT_S, reason="preempted"))
    result = attempt.result()
    assert result.verdict.outcome == "stopped"
    assert attempt.log(0) == attempt.log(1) == f"stopped at {result.step}\n"
    assert [each.step for each in result.status.durable] == [result.step]


def test_a_save_on_request_and_training_goes_on(make: Make, rank_program: str) -> None:
    attempt = make(sys.executable, rank_program).start()
    attempt.until(lambda status: status.first_step is not None)
    attempt.tell(SaveNow())
    saved = attempt.until(lambda status: bool(status.durable))
    attempt.until(lambda status: status.step > saved.durable[0].step)
    attempt.tell(StopNow(save=False, deadline_s=5.0, reason="cancelled"))
    assert attempt.result().verdict.outcome == "stopped"


def test_a_job_that_ignores_every_request_is_killed_at_the_deadline(make: Make, rank_program: str) -> None:
    attempt = make("sh", "-c", 'trap "" TERM; exec "$0" "$1" deaf', sys.executable, rank_program).start()
    attempt.until(lambda status: status.first_step is not None)
    attempt.tell(StopNow(save=True, deadline_s=0.5, reason="preempted"))
    result = attempt.result()
    assert result.verdict.outcome == "stopped"
    assert "did not save and stop within 0 s" in result.verdict.detail
    assert "no checkpoint was made" in result.verdict.detail


def test_a_plain_script_gets_sigterm(make: Make, tmp_path: Path) -> None:
    code = """
        import signal, sys, time
        def leave(*_):
            print("saved by myself", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, leave)
        open("ready", "w").close()
        while True:  # A signal that comes just before a `pause` would not end it.
            time.sleep(0.05)
    """
    attempt = make(*python(code)).start()
    attempt.await_file("ready", tmp_path)
    attempt.tell(StopNow(save=True, deadline_s=WAIT_S, reason="preempted"))
    result = attempt.result()
    assert (result.verdict.outcome, result.verdict.detail) == ("stopped", "ended on request (preempted)")
    assert attempt.log() == "saved by myself\n"


def test_a_new_agent_hears_the_whole_status_and_bad_ones_are_sent_away(make: Make, rank_program: str) -> None:
    attempt = make(sys.executable, rank_program).start()
    attempt.until(lambda status: status.first_step is not None)
    first = attempt.connection
    noisy = attempt.connect()
    noisy.sendall(b"\xff" * 100)
    while receive_message(noisy, FromSupervisor) is not None:
        pass
    noisy.close()
    attempt.statuses.clear()
    attempt.connect()
    assert attempt.until(lambda status: True).first_step == 1
    assert first is not None
    assert receive_message(first, FromSupervisor) is not None, "the first agent is still served"
    first.close()
    attempt.tell(StopNow(save=True, deadline_s=WAIT_S, reason="x"))
    assert attempt.result().verdict.outcome == "stopped"


def test_torchruns_workers_stop_together_whatever_torchrun_says(make: Make, rank_program: str) -> None:
    """One process is started, and it learns how many workers to start, and where they meet, from us."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    attempt = make(
        sys.executable,
        "-m",
        "torch.distributed.run",
        rank_program,
        ranks=2,
        mode="host",
        master_port=free_port(),
    )
    order = msgspec.structs.replace(attempt.order, ranks=attempt.order.ranks[:1])
    write_record(attempt.folder / ORDER, order)
    attempt.start()
    status = attempt.until(everybody_spoke)
    assert status.resumable, "both workers have said hello"
    attempt.tell(StopNow(save=True, deadline_s=WAIT_S, reason="preempted"))
    result = attempt.result()
    assert (result.verdict.outcome, result.verdict.detail) == (
        "stopped",
        f"saved and stopped at step {result.step}",
    )
    assert attempt.log().count(f"stopped at {result.step}") == 2


# --- Kills and signals -----------------------------------------------------------------------------


def test_a_killed_supervisor_takes_its_ranks_along(make: Make, rank_program: str) -> None:
    attempt = make(sys.executable, rank_program, ranks=2).start()
    attempt.until(lambda status: status.first_step is not None)
    descriptors = [os.pidfd_open(pid) for pid in attempt.await_pids(2)]
    assert attempt.process is not None
    attempt.process.kill()
    attempt.process.wait()
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], WAIT_S)[0]
        os.close(descriptor)
    assert not (attempt.folder / RESULT).exists()


def test_what_outlives_a_killed_supervisor_is_found_and_ended(make: Make, tmp_path: Path) -> None:
    """A launcher's workers are nobody's children then. One has cleared its environment, one its session."""
    script = """
        env -i sh -c 'echo $$ > one; exec sleep 1000' &
        setsid sh -c 'echo $$ > two; exec sleep 1000' &
        wait
    """
    attempt = make("sh", "-c", textwrap.dedent(script)).start()
    pids = [int(attempt.await_line(name, tmp_path)) for name in ("one", "two")]
    assert attempt.process is not None
    attempt.process.kill()
    attempt.process.wait()
    assert all(identity_of(pid) is not None for pid in pids)
    identity = read_record(attempt.folder / SUPERVISOR, ProcessIdentity)
    assert end_leftovers(attempt.folder, attempt.order, identity) == []
    assert all(identity_of(pid) is None for pid in pids)


def test_strangers_are_left_alone(make: Make, tmp_path: Path) -> None:
    """An attempt of the same number under another agent has the same job and attempt in its environment."""
    other = make("sleep", "1000").start()
    other.until(lambda status: status.started)
    before = other.await_pids(1)
    elsewhere = tmp_path / "other agent" / "7-a1"
    elsewhere.mkdir(parents=True)
    assert end_leftovers(elsewhere, other.order, None) == []
    assert other.pids() == before


def test_terminal_signals_do_not_end_a_job(make: Make, rank_program: str) -> None:
    attempt = make(sys.executable, rank_program).start()
    attempt.until(lambda status: status.first_step is not None)
    assert attempt.process is not None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        attempt.process.send_signal(number)
    step = attempt.statuses[-1].step
    attempt.until(lambda status: status.step > step)
    attempt.tell(StopNow(save=True, deadline_s=WAIT_S, reason="x"))
    assert attempt.result().verdict.outcome == "stopped"


@pytest.mark.parametrize("sender", ["somebody", "the job"])
def test_only_a_signal_from_outside_to_the_supervisor_as_well_is_a_shutdown(
    make: Make, tmp_path: Path, sender: str
) -> None:
    """A host that shuts down signals both; a job that does has ended itself."""
    code = f"""
        import os, signal, time
        open("ready", "w").close()
        if {sender == "the job"}:
            os.kill(os.getppid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        while True:
            time.sleep(0.05)
    """
    attempt = make(*python(code)).start()
    attempt.await_file("ready", tmp_path)
    if sender == "somebody":
        assert attempt.process is not None
        (rank,) = attempt.await_pids(1)
        attempt.process.send_signal(signal.SIGTERM)
        os.kill(rank, signal.SIGTERM)
    verdict = attempt.result().verdict
    wanted = "infra-failed" if sender == "somebody" else "user-failed"
    assert (verdict.outcome, verdict.exit_code) == (wanted, 128 + signal.SIGTERM), verdict


def test_ranks_have_default_signals(make: Make) -> None:
    code = """
        import signal
        print([n for n in (1, 2, 15) if signal.getsignal(n) is signal.SIG_IGN], signal.pthread_sigmask(0, []))
    """
    attempt = make(*python(code)).start()
    attempt.result()
    assert attempt.log() == "[] set()\n"


def test_an_attempt_is_started_at_most_once(make: Make, tmp_path: Path) -> None:
    attempt = make("sh", "-c", "echo ran >> runs").start()
    attempt.result()
    again = subprocess.run(
        [sys.executable, "-m", "cotenant.agent.supervisor.runtime", str(attempt.folder)],
        cwd="/",
        capture_output=True,
        timeout=WAIT_S,
    )
    assert again.returncode == 3
    assert b"was started before" in again.stderr
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_ranks_do_not_inherit_what_the_supervisor_holds(make: Make) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    code = "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1])"
    attempt = make(*python(code)).start(pass_fds=(write_end,))
    os.close(write_end)
    attempt.result()
    os.close(read_end)
    assert attempt.log() == "[0, 1, 2]\n"


# --- Logs, sockets, rights, limits -----------------------------------------------------------------


def test_a_flood_of_output_costs_bounded_disk_and_little_time(make: Make) -> None:
    attempt = make(
        "sh", "-c", "yes 0123456789 | head -c 3000000; echo the end", log_bytes_max=100_000
    ).start()
    assert attempt.result().verdict.outcome == "finished"
    files = list((attempt.folder / LOGS).iterdir())
    assert sum(path.stat().st_size for path in files) <= 100_000
    text = attempt.log()
    assert text.startswith("0123456789\n")
    assert read_log(attempt.folder / LOGS, 0, -8, 100).data == b"the end\n"  # type: ignore[union-attr]


def test_standard_error_is_told_apart_only_where_that_is_asked_for(make: Make, tmp_path: Path) -> None:
    words = "echo out; echo err >&2; head -c 20000 /dev/zero >&2"
    attempt = make("sh", "-c", words, errors_apart=True, output="both.txt").start()
    assert attempt.result().verdict.outcome == "finished"
    logs = attempt.folder / LOGS
    apart = {False: b"", True: b""}
    offset = 0
    while (part := read_log(logs, 0, offset, 4000, errors_apart=True)) and part.next_offset > offset:
        apart[part.is_error] += part.data
        offset = part.next_offset
    assert apart == {False: b"out\n", True: b"err\n" + bytes(20_000)}
    assert sorted((tmp_path / "both.txt").read_bytes().replace(bytes(20_000), b"").split()) == [
        b"err",
        b"out",
    ]
    plain = make("sh", "-c", "echo out; echo err >&2; echo more").start()
    assert plain.result().verdict.outcome == "finished"
    assert plain.log() == "out\nerr\nmore\n", "one stream, in the order of its writes"
    assert not (plain.folder / LOGS / "rank-0.errors").exists()


@pytest.mark.parametrize("stale", [False, True])
def test_a_job_reads_the_file_that_was_meant_and_no_other(make: Make, tmp_path: Path, stale: bool) -> None:
    """The place in /proc of a `run` that is gone may be another process's by now."""
    source = tmp_path / "input"
    source.write_text("skipped\nread\n")
    meant = input_file(source)
    if stale:
        source.rename(tmp_path / "before")
        source.write_text("another's\n")
    attempt = make("cat", input=msgspec.structs.replace(meant, offset=8)).start()
    assert attempt.result().verdict.outcome == "finished"
    assert attempt.log() == ("" if stale else "read\n")


def test_the_users_own_output_file(make: Make, tmp_path: Path) -> None:
    attempt = make("echo", "hello", output="out-%j-%a-%r.txt", ranks=2).start()
    attempt.result()
    assert (tmp_path / "out-7-1-0.txt").read_text() == (tmp_path / "out-7-1-1.txt").read_text() == "hello\n"


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("/nowhere/out.txt", "No such file or directory"),
        ("/tmp", "Is a directory"),
        ("/dev/full", "No space left on device"),
        ("/tmp/a\0b", "embedded null byte"),
    ],
)
def test_an_output_file_that_cannot_be_written_ends_nothing_and_is_told(
    make: Make, output: str, why: str
) -> None:
    attempt = make("echo", "hello", output=output).start()
    result = attempt.result()
    lost = f"its output could not be written to {output}: {why}".replace("\0", "\\x00")
    assert (result.verdict.outcome, result.verdict.detail) == ("finished", lost)
    assert result.status.words.lost == lost
    assert "hello\n" in attempt.log() and "; it is in this log]" in attempt.log()


def test_a_deep_folder_gets_short_socket_addresses(make: Make, rank_program: str, tmp_path: Path) -> None:
    shallow = make(sys.executable, rank_program)
    deep = Attempt(tmp_path / ("deep" * 25) / "7-a1", shallow.order)
    try:
        deep.start()
        deep.until(lambda status: status.first_step is not None)
        short = (deep.folder / JOB).resolve()
        assert len(str(short)) < 60
        deep.tell(StopNow(save=True, deadline_s=WAIT_S, reason="x"))
        assert deep.result().verdict.outcome == "stopped"
        assert not short.exists()
    finally:
        deep.clean()


def test_memory_over_the_request_ends_the_job_where_no_cgroup_does(make: Make) -> None:
    code = "import signal; x = bytearray(300 << 20); signal.pause()"
    result = make(*python(code), host_memory_mib=100).start().result()
    assert result.verdict.outcome == "user-failed"
    assert "MiB of host memory; it may use 100 MiB (see --host-mem" in result.verdict.detail


def test_what_the_processes_use_is_measured(make: Make) -> None:
    code = "x = bytearray(64 << 20)\nwhile True: pass"
    attempt = make(*python(code))
    core = min(os.sched_getaffinity(0))
    order = msgspec.structs.replace(attempt.order, ranks=(RankOrder(rank=0, local_rank=0, cores=(core,)),))
    write_record(attempt.folder / ORDER, order)
    attempt.start()
    # The first sample may come before it has got its memory, or before it got to a core at all.
    status = attempt.until(lambda status: (status.memory_mib or 0.0) > 64 and bool(status.duty_cycle))
    assert (status.memory_mib or 0.0) < 200
    assert (status.duty_cycle or 0.0) <= 1.0
    attempt.tell(StopNow(save=False, deadline_s=1.0, reason="x"))
    attempt.result()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter; pytest's own is closed to them."""
    folder = Path(tempfile.mkdtemp(prefix="cotenant-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def others_python() -> str:
    found = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    if found is None or not ROOT:
        pytest.skip("needs root, and a python that other users may execute")
    return found


@pytest.mark.root
def test_root_gives_up_its_rights_before_the_command_runs(make: Make, open_folder: Path) -> None:
    code = """
        import os, sys
        print(os.getresuid(), os.getresgid(), os.getgroups())
        for path in sys.argv[1:]:
            try:
                print("opened", path, open(path, "a"))
            except PermissionError:
                print("no")
    """
    folder = open_folder / "7-a1"
    forbidden = [str(folder / name) for name in (ORDER, RESULT, CONTROL, f"{LOGS}/x")]
    attempt = make(
        others_python(), "-c", textwrap.dedent(code), *forbidden,
        base=open_folder, workdir=str(open_folder), uid=NOBODY, gid=NOBODY,
    )  # fmt: skip
    attempt.start().result()
    ids = f"({NOBODY}, {NOBODY}, {NOBODY})"
    assert attempt.log() == f"{ids} {ids} [{NOBODY}]\n" + "no\n" * len(forbidden)
    assert {path.stat().st_uid for path in (folder / LOGS).iterdir()} == {NOBODY}
    assert (folder / JOB).stat().st_uid == NOBODY
    assert (folder / ORDER).stat().st_uid == 0


@pytest.mark.root
def test_another_user_can_talk_to_the_supervisor(make: Make, open_folder: Path) -> None:
    program = open_folder / "rank.py"
    program.write_text(RANK)
    attempt = make(
        others_python(), str(program), base=open_folder, workdir="/", uid=NOBODY, gid=NOBODY
    ).start()
    attempt.until(lambda status: status.first_step is not None)
    attempt.tell(StopNow(save=True, deadline_s=WAIT_S, reason="x"))
    assert attempt.result().verdict.outcome == "stopped"


@pytest.mark.root
def test_a_folder_that_the_user_may_not_enter_does_not_keep_the_ranks_from_talking(
    make: Make, open_folder: Path, tmp_path: Path
) -> None:
    program = open_folder / "rank.py"
    program.write_text(RANK)
    attempt = make(others_python(), str(program), workdir="/", uid=NOBODY, gid=NOBODY).start()
    attempt.until(lambda status: status.first_step is not None)
    assert not (attempt.folder / JOB).resolve().is_relative_to(tmp_path)
    attempt.tell(StopNow(save=True, deadline_s=WAIT_S, reason="x"))
    assert attempt.result().verdict.outcome == "stopped"


HOSTILE = """
import os, socket, sys
canary = sys.argv[1]
own = os.path.dirname(os.environ["COTENANT_SOCKET"])
outer = os.path.dirname(own)

def attempt(act, *words):
    try:
        act(*words)
        print(act.__name__, "worked", flush=True)
    except OSError as error:
        print(act.__name__, error.errno, flush=True)

for folder in (own, outer):
    attempt(os.rename, folder, folder + "-aside")
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
out.sendto(b'{"v":1,"m":"hello","rank":0,"world_size":1,"resumable":true,"accumulates":false,"step":0}',
           own + "/cotenant.sock")
out.sendto(b'{"v":1,"m":"first_step","rank":0,"step":1}', own + "/cotenant.sock")
attempt(os.symlink, canary + "/listener", own + "/rank-0.sock")
attempt(os.unlink, own + "/cotenant.sock")
attempt(os.symlink, canary + "/file", own + "/cotenant.sock")
attempt(os.symlink, canary, own + "/folder")
sys.stdin.read()
os.system("sleep 600")
"""


@pytest.mark.root
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_links_that_a_user_puts_in_his_sockets_place_lead_nowhere(
    make: Make, open_folder: Path, killed: bool
) -> None:
    if not ROOT:
        pytest.skip("needs root")
    program, canary = open_folder / "hostile.py", open_folder / "canary"
    program.write_text(HOSTILE)
    canary.mkdir()
    (canary / "file").write_text("gold")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as listener:
        listener.bind(str(canary / "listener"))
        before = {path.name: path.stat() for path in (canary, *canary.iterdir())}
        attempt = make(
            others_python(), str(program), str(canary), workdir="/", uid=NOBODY, gid=NOBODY
        ).start()
        attempt.until(lambda status: status.first_step is not None)
        short = (attempt.folder / JOB).resolve().parent
        assert short.name.startswith("cotenant-")
        if killed:
            assert attempt.process is not None
            attempt.process.kill()
            attempt.process.wait()
            assert end_leftovers(attempt.folder, attempt.order, None) == []
        else:
            attempt.tell(StopNow(save=True, deadline_s=1.0, reason="x"))
            attempt.result()
        with pytest.raises(BlockingIOError):  # What was for the rank is not said to root's own socket.
            listener.recv(100)
        after = {path.name: path.stat() for path in (canary, *canary.iterdir())}
    assert [(s.st_ino, s.st_mode, s.st_uid, s.st_mtime_ns) for s in after.values()] == [
        (s.st_ino, s.st_mode, s.st_uid, s.st_mtime_ns) for s in before.values()
    ]
    assert (canary / "file").read_text() == "gold"
    assert not short.exists()
    if not killed:  # Else nobody may have read them.
        assert attempt.log().splitlines()[:2] == ["rename 13", "rename 1"]


@pytest.mark.root
def test_output_is_opened_with_the_users_rights(make: Make, open_folder: Path) -> None:
    attempt = make("echo", "x", workdir="/", uid=NOBODY, gid=NOBODY, output=str(open_folder / "taken"))
    if not ROOT:
        pytest.skip("needs root")
    result = attempt.start().result()
    assert not (open_folder / "taken").exists()
    assert "Permission denied" in result.status.words.lost


@pytest.fixture
def cgroup_root() -> Iterator[str]:
    found = find_cgroups()
    if not found.track:
        pytest.skip(found.why_not)
    yield found.track
    sweep(found)


def test_a_group_that_was_just_made_is_left_to_its_supervisor(cgroup_root: str) -> None:
    """Its ranks are not in it yet, and the agent that cleans up may be another."""
    new = Path(cgroup_root) / "another-agents"
    new.mkdir()
    sweep(find_cgroups())
    new.rmdir()  # Raises where it was taken away.


def test_ranks_live_in_a_cgroup_of_their_own_and_none_escapes(
    make: Make, cgroup_root: str, tmp_path: Path
) -> None:
    script = "env -i setsid sh -c 'echo $$ > daemon; exec sleep 1000' & wait"
    attempt = make("sh", "-c", script, cgroup=f"{cgroup_root}/7-a1").start()
    attempt.until(lambda status: status.started)
    cgroup = AttemptCgroup(attempt.order, attempt.folder)
    daemon = int(attempt.await_line("daemon", tmp_path))
    assert daemon in cgroup.pids(RANKS)
    assert attempt.process is not None
    assert attempt.process.pid not in cgroup.pids(RANKS)
    attempt.process.kill()
    attempt.process.wait()
    identity = read_record(attempt.folder / SUPERVISOR, ProcessIdentity)
    assert end_leftovers(attempt.folder, attempt.order, identity) == []
    assert identity_of(daemon) is None


def test_a_cgroup_ends_what_uses_more_memory_than_it_asked_for(make: Make, cgroup_root: str) -> None:
    attempt = make(*python("x = bytearray(300 << 20)"), cgroup=f"{cgroup_root}/7-a1", host_memory_mib=100)
    if not AttemptCgroup(attempt.order, attempt.folder).limits_memory:
        pytest.skip("no memory controller for cgroups here")
    result = attempt.start().result()
    assert (result.verdict.outcome, result.verdict.exit_code) == ("user-failed", 137)
    assert "100 MiB" in result.verdict.detail


def test_a_kill_for_memory_of_a_process_s_process_is_said(make: Make, cgroup_root: str) -> None:
    hog = "subprocess.run([sys.executable, '-c', 'x = bytearray(300 << 20)'])"
    code = f"import subprocess, sys; {hog}; sys.exit(3)"
    attempt = make(*python(code), cgroup=f"{cgroup_root}/7-a1", host_memory_mib=100)
    if not AttemptCgroup(attempt.order, attempt.folder).limits_memory:
        pytest.skip("no memory controller for cgroups here")
    result = attempt.start().result()
    assert (result.verdict.outcome, result.verdict.exit_code) == ("user-failed", 3)
    assert (
        "one of its processes was killed for using more host memory than the 100 MiB" in result.verdict.detail
    )


def test_device_memory_that_the_kernel_does_not_limit_is_torch_s_to_limit_and_that_is_said(
    make: Make, cgroup_root: str
) -> None:
    if find_cgroups().device_memory:
        pytest.skip("the kernel here has the controller dmem")
    attempt = make(
        *python("import os; print('told', os.environ['COTENANT_MEMORY_MIB'])"),
        cgroup=f"{cgroup_root}/7-a1",
        memory_cap_mib=4096,
        torch_limit_mib=4096,
        device_regions=("nvidia/00000000:02:00.0/vidmem",),
    )
    assert attempt.start().result().verdict.outcome == "finished"
    assert "told 4096" in attempt.log()
    status = read_record(attempt.folder / STATUS, Status)
    assert status is not None
    assert [line.partition(": dmem.max: ")[0] for line in status.failed] == [
        "device memory is not limited by the kernel"
    ]
