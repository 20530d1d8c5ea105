"""A real agent process with real supervisors, against the smallest possible controller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from cotenant.agent.host.devices import lock_names
from cotenant.agent.host.locks import LOCK_DIR_ENV
from cotenant.controller.domain import AgentCommand, AttemptNo, CommandId, HostId, JobId, Launch, SaveAttempt
from cotenant.controller.domain import events as ev
from cotenant.controller.system.keys import add_agent, find_key, init_cluster, read_key
from cotenant.controller.wire import (
    CommandAck,
    CommandDelivery,
    FromAgent,
    Heartbeat,
    Hello,
    HostRefused,
    LogReply,
    ReadLog,
    Renew,
    Report,
    ReportAck,
    ToAgent,
    Welcome,
    decode,
    encode,
)
from cotenant.profiler.driver import process_info
from tests.building.limits import within_s
from tests.building.orders import gang, start, stop

PATIENCE_S = within_s(60.0)
JOB = JobId("7")
ONE = AttemptNo(1)
WAITER = "echo started; while [ ! -e go ]; do sleep 0.05; done; echo done"
"""A job that runs until its working directory has a file `go`."""


class Controller:
    """Answers what must be answered, remembers everything, decides nothing."""

    def __init__(self, endpoint: str, *, secret: str = "", lease_s: float | None = None) -> None:
        self._context = zmq.Context()
        self._socket: Any = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        if secret:
            self._socket.curve_server = True
            self._socket.curve_secretkey = secret.encode()
        self._socket.bind(endpoint)
        bound: Any = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        self.endpoint = str(bound.rstrip(b"\0").decode())
        self._lease_s = lease_s
        self._command = 0
        self._hosts: dict[bytes, str] = {}
        self.hellos: list[Hello] = []
        self.events: dict[tuple[str, int], ev.FromAttempt] = {}
        self.seen: set[int] = set()
        self.logs: list[LogReply] = []
        self.beats: list[Heartbeat] = []
        self.refuses = ""

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def until(self, what: Callable[[], Any]) -> Any:
        """Work until something is true, and return it."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (found := what()):
            assert time.monotonic() < deadline_s, (
                f"not within {PATIENCE_S} s; heard {list(self.events.values())}"
            )
            if self._socket.poll(50):
                address, frame = self._socket.recv_multipart()
                self._take(address, decode(frame, FromAgent))
        return found

    def _take(self, address: bytes, message: FromAgent) -> None:
        host = self._hosts.get(address, "")
        match message:
            case Hello():
                host = self._hosts[address] = message.report.host_id
                self.hellos.append(message)
                last = max((n for h, n in self.events if h == host), default=0)
                welcome = Welcome(
                    session=message.session, lease_s=self._lease_s, reports_seen=last, journal="test"
                )
                self.say(host, HostRefused(why=self.refuses) if self.refuses else welcome)
            case Heartbeat(beat=beat):
                self.beats.append(message)
                self.say(host, Renew(beat=beat))
            case Report(sequence=sequence, event=event):
                assert self.events.setdefault((host, sequence), event) == event
                self.say(host, ReportAck(sequence=sequence))
            case CommandAck(command_id=command_id):
                self.seen.add(command_id)
            case LogReply():
                self.logs.append(message)
            case _:
                raise AssertionError(message)

    def say(self, host: str, message: ToAgent) -> None:
        """On the connection on which it last said hello."""
        newest = [address for address, name in self._hosts.items() if name == host][-1]
        self._socket.send_multipart([newest, encode(message)])

    # --- What tests ask for ------------------------------------------------------------------------

    def agent_of(self, host: str, session_not: str = "") -> Hello:
        """The hello of a start of an agent other than that one."""
        found: Hello = self.until(
            lambda: next(
                (h for h in self.hellos if h.report.host_id == host and h.session != session_not), None
            )
        )
        return found

    def order(
        self, host: str, make: Callable[[CommandId], AgentCommand], secrets: dict[str, str] | None = None
    ) -> None:
        """Send a command and wait until it is on the agent's disk."""
        self._command += 1
        number = self._command
        self.say(host, CommandDelivery(command=make(CommandId(number)), secrets=secrets or {}))
        self.until(lambda: number in self.seen)

    def start(
        self,
        workdir: Path,
        script: str = WAITER,
        host: str = "h1",
        secrets: dict[str, str] | None = None,
        **changes: Any,
    ) -> None:
        launch = Launch(
            argv=("/bin/sh", "-c", script),
            workdir=str(workdir),
            env={"PATH": os.environ["PATH"]},
            uid=os.getuid(),
            gid=os.getgid(),
        )
        plain = {"launch": launch, "gang": gang((f"{host}/cpu0",)), "master_port": 29511}
        self.order(host, lambda n: start(command=n, host=host, **{**plain, **changes}), secrets)

    def stop(self, host: str = "h1") -> None:
        self.order(host, lambda n: stop(command=n, host=host, save=False, deadline_s=5.0))

    def heard(self, kind: type[ev.FromAttempt]) -> list[Any]:
        return [event for event in self.events.values() if isinstance(event, kind)]

    def end(self) -> ev.AttemptEnded:
        ends: list[ev.AttemptEnded] = self.until(lambda: self.heard(ev.AttemptEnded))
        assert len(ends) == 1
        return ends[0]

    def log(self, host: str = "h1") -> LogReply:
        request = len(self.logs) + 1
        read = ReadLog(request=request, job_id=JOB, attempt=ONE, rank=0, offset=0, limit=10_000)
        self.say(host, read)
        reply: LogReply = self.until(lambda: next((r for r in self.logs if r.request == request), None))
        return reply


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    made = Controller(f"ipc://{tmp_path}/c.sock")
    yield made
    made.close()


class Agents:
    """Agent processes; whatever is left of them and their jobs ends with the test."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self._folder = folder
        self._endpoint = endpoint
        self._started: list[subprocess.Popen[str]] = []
        (folder / "none.toml").touch()

    def start(self, *flags: str, host: str = "h1", state: str = "") -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "cotenant.agent", "--controller", self._endpoint, "--host", host]
        words += ["--state-dir", str(self.state(state or host)), *flags]
        if "--devices" not in flags:
            words += ["--devices", "cpu:1"]
        env = {**os.environ, LOCK_DIR_ENV: str(self._folder / "locks")}
        env["COTENANT_CONFIG"] = str(self._folder / "none.toml")
        process = subprocess.Popen(
            words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self._started.append(process)
        return process

    def state(self, name: str) -> Path:
        return self._folder / f"state-{name}"

    def supervisor_pid(self, host: str = "h1") -> int:
        path = self.state(host) / "attempts" / "7-a1" / "supervisor.json"
        pid: int = msgspec.json.decode(path.read_bytes())["pid"]
        return pid

    def end_all(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for path in self._folder.glob("state-*/attempts/*/supervisor.json"):
            kill_session(msgspec.json.decode(path.read_bytes())["pid"])


def kill_session(leader: int) -> None:
    """End a supervisor and its ranks, by their ids."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
                if session == leader:
                    os.kill(int(entry.name), signal.SIGKILL)
            except (OSError, ValueError):
                continue


@pytest.fixture
def agents(tmp_path: Path, controller: Controller) -> Iterator[Agents]:
    made = Agents(tmp_path, controller.endpoint)
    yield made
    made.end_all()


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_command_runs_and_its_end_and_output_are_reported(
    controller: Controller, agents: Agents, workdir: Path
) -> None:
    process = agents.start("--set", "agent.features=fast,big")
    hello = controller.agent_of("h1")
    assert [d.device_id for d in hello.report.devices if d.healthy] == ["h1/cpu0"]
    assert set(hello.report.features) >= {"fast", "big"}, "beside the container programs that are here"
    assert process.stdout is not None
    controller.until(lambda: controller.beats)
    assert process.stdout.readline() == "agent h1 ready: 1 device (cpu0)\n"
    controller.start(workdir, script="echo on $RANK of $WORLD_SIZE; exit 3")
    end = controller.end()
    assert (end.verdict.outcome, end.verdict.exit_code) == ("user-failed", 3)
    reply = controller.log()
    assert reply.data == b"on 0 of 1\n"
    assert reply.closed
    process.send_signal(signal.SIGTERM)
    controller.until(lambda: process.poll() is not None)
    assert process.returncode == 0


def test_a_job_does_not_notice_that_its_agent_was_killed(
    controller: Controller, agents: Agents, workdir: Path
) -> None:
    first = agents.start()
    session = controller.agent_of("h1").session
    controller.start(workdir)
    controller.until(lambda: controller.heard(ev.AttemptStarted))
    controller.until(lambda: controller.log().data == b"started\n")
    supervisor = agents.supervisor_pid()
    first.kill()
    first.wait()
    agents.start()
    hello = controller.agent_of("h1", session_not=session)
    assert [(a.job_id, a.attempt, a.running) for a in hello.attempts] == [("7", 1, True)]
    assert agents.supervisor_pid() == supervisor
    (workdir / "go").touch()
    assert controller.end().verdict.outcome == "finished"
    assert controller.log().data == b"started\ndone\n", "it ran once"
    assert len(controller.heard(ev.AttemptStarted)) == 1


def test_a_secret_reaches_the_job_and_no_disk(controller: Controller, agents: Agents, workdir: Path) -> None:
    agents.start("--set", "checkpoint.every_s=7")
    controller.agent_of("h1")
    secret = "hush" + uuid.uuid4().hex
    script = f'test "$A_TOKEN" = "{secret[::-1]}" && exit 9; echo ${{#A_TOKEN}}; {WAITER}'
    controller.start(workdir, script=script, secrets={"A_TOKEN": secret})
    controller.until(lambda: controller.log().data.endswith(b"started\n"))
    assert controller.log().data == f"{len(secret)}\nstarted\n".encode()
    state = agents.state("h1")
    files = [path for path in state.rglob("*") if path.is_file()]
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    attempt = state / "attempts" / "7-a1"
    assert {attempt / "order.json", attempt / "supervisor.log"} <= set(files)
    assert (attempt / "supervisor.log").stat().st_mode & 0o777 == 0o600
    every_s = msgspec.json.decode((attempt / "order.json").read_bytes())["start"]["checkpoint_every_s"]
    assert every_s == 7.0, "the agent's own setting, not the controller's"
    (workdir / "go").touch()
    assert controller.end().verdict.outcome == "finished"


def test_a_secret_that_a_job_prints_is_in_its_log_alone(
    controller: Controller, agents: Agents, workdir: Path
) -> None:
    agents.start()
    controller.agent_of("h1")
    secret = "hush'" + uuid.uuid4().hex
    controller.start(workdir, script='echo "val=$A_TOKEN" >&2; exit 3', secrets={"A_TOKEN": secret})
    verdict = controller.end().verdict
    assert (verdict.detail, verdict.ours) == ("exit code 3: val=[secret]", "exit code 3")
    files = [path for path in agents.state("h1").rglob("*") if path.is_file()]
    holding = [path.name for path in files if secret.encode() in path.read_bytes()]
    assert {name.partition(".")[0] for name in holding} <= {"rank-0"}, holding


DAMAGE = {
    "order.json": b"[" * 100_000,
    "supervisor.json": b'{"version": 1, "job_id": "\xff"}',
    "status.json": b"",
    "token": b"",
}
"""A kind for each; what is said of every kind is in tests/agent/test_foreign_bytes.py."""


@pytest.mark.parametrize(("name", "data"), DAMAGE.items(), ids=DAMAGE.keys())
def test_a_damaged_record_is_put_aside_and_the_attempt_goes_on(
    controller: Controller, agents: Agents, workdir: Path, name: str, data: bytes
) -> None:
    first = agents.start()
    session = controller.agent_of("h1").session
    controller.start(workdir)
    controller.until(lambda: controller.log().data == b"started\n")
    supervisor = agents.supervisor_pid()
    first.kill()
    first.wait()
    state = agents.state("h1")
    path = state / name if name == "token" else state / "attempts" / "7-a1" / name
    path.write_bytes(data)
    agents.start()
    hello = controller.agent_of("h1", session_not=session)
    assert [(a.job_id, a.attempt, a.running) for a in hello.attempts] == [("7", 1, True)]
    if name != "status.json":  # Nobody but a person reads that one.
        assert path.with_name(f"{name}.damaged-1").read_bytes() == data
    (workdir / "go").touch()
    controller.until(lambda: gone(supervisor))
    assert controller.end().verdict.outcome == "finished"


def test_a_damaged_result_is_put_aside_and_its_attempt_counts_as_killed(
    controller: Controller, agents: Agents, workdir: Path
) -> None:
    first = agents.start()
    controller.agent_of("h1")
    controller.start(workdir)
    controller.until(lambda: controller.log().data == b"started\n")
    supervisor = agents.supervisor_pid()
    first.kill()
    first.wait()
    (workdir / "go").touch()
    controller.until(lambda: gone(supervisor))
    path = agents.state("h1") / "attempts" / "7-a1" / "result.json"
    path.write_bytes(path.read_bytes()[:-20] + b"\xff")
    agents.start()
    assert controller.end().verdict.outcome == "infra-failed"
    assert path.with_name("result.json.damaged-1").exists()


def test_an_end_that_nobody_saw_is_reported_by_the_next_agent(
    controller: Controller, agents: Agents, workdir: Path
) -> None:
    first = agents.start()
    session = controller.agent_of("h1").session
    controller.start(workdir)
    controller.until(lambda: controller.heard(ev.AttemptStarted))
    supervisor = agents.supervisor_pid()
    first.kill()
    first.wait()
    (workdir / "go").touch()
    controller.until(lambda: gone(supervisor))
    agents.start()
    controller.agent_of("h1", session_not=session)
    assert controller.end().verdict.outcome == "finished"


@pytest.mark.parametrize("agent_too", [False, True], ids=["alone", "with its agent"])
def test_a_killed_supervisor_leaves_no_process_and_a_clear_end(
    controller: Controller, agents: Agents, workdir: Path, agent_too: bool
) -> None:
    first = agents.start()
    controller.agent_of("h1")
    controller.start(workdir, script="echo $$ > pid; setsid sh -c 'echo $$ > child; sleep 600' & wait")
    child = workdir / "child"
    controller.until(lambda: child.exists() and child.read_text())
    if agent_too:
        first.kill()
        first.wait()
    os.kill(agents.supervisor_pid(), signal.SIGKILL)
    if agent_too:
        agents.start()
    end = controller.end()
    assert end.verdict.outcome == "infra-failed"
    assert "its supervisor was killed" in end.verdict.detail
    assert gone(int((workdir / "pid").read_text()))
    assert gone(int(child.read_text()))


def test_a_stop_ends_the_job_and_a_late_start_stays_refused(
    controller: Controller, agents: Agents, workdir: Path
) -> None:
    agents.start()
    controller.agent_of("h1")
    controller.start(workdir)
    controller.until(lambda: controller.heard(ev.AttemptStarted))
    controller.stop()
    assert controller.end().verdict.outcome == "stopped"
    controller.start(workdir)
    assert len(controller.heard(ev.AttemptStarted)) == 1
    assert len(controller.heard(ev.AttemptEnded)) == 1


def test_a_plain_script_counts_as_running_after_a_while(
    controller: Controller, agents: Agents, workdir: Path
) -> None:
    agents.start()
    controller.agent_of("h1")
    controller.start(workdir)
    [event] = controller.until(lambda: controller.heard(ev.FirstStepDone))
    assert event.step == 0
    controller.order("h1", lambda n: SaveAttempt(command_id=n, host_id=HostId("h1"), job_id=JOB, attempt=ONE))
    (workdir / "go").touch()
    assert controller.end().verdict.outcome == "finished", "a save that nobody can do ends nothing"


def test_a_missing_working_directory_is_named(controller: Controller, agents: Agents, workdir: Path) -> None:
    agents.start()
    controller.agent_of("h1")
    controller.start(workdir / "nowhere")
    end = controller.end()
    assert end.verdict.workdir_missing
    assert f"{workdir}/nowhere does not exist on h1" in end.verdict.detail


def test_a_second_agent_does_not_offer_the_device_and_says_who_does(
    controller: Controller, agents: Agents, workdir: Path
) -> None:
    first = agents.start()
    controller.agent_of("h1")
    agents.start(host="h2")
    [device] = controller.agent_of("h2").report.devices
    assert not device.healthy
    user = process_info.user(os.getpid())
    assert f"in use by the agent of {user} (pid {first.pid}, since " in device.note
    # Without its agent a job still has its device.
    controller.start(workdir)
    controller.until(lambda: controller.heard(ev.AttemptStarted))
    first.kill()
    first.wait()
    agents.start(host="h3")
    [device] = controller.agent_of("h3").report.devices
    assert not device.healthy
    assert "jobs of an agent that has ended still run on it" in device.note
    # And its own agent gets it back.
    session = controller.hellos[0].session
    agents.start(host="h1")
    [device] = controller.agent_of("h1", session_not=session).report.devices
    assert device.healthy
    assert lock_names(device)
    (workdir / "go").touch()
    assert controller.end().verdict.outcome == "finished"


REFUSED = {
    "more slots than cores": (("--devices", "cpu:1000"), 6, "more slots than this host has cores"),
    "no such devices": (("--devices", "cpus"), 2, "is not one of auto, cpu:N"),
    "no CUDA": (("--devices", "cuda:77"), 6, "cuda"),
    "tcp without keys": (("--controller", "tcp://127.0.0.1:1"), 2, "needs keys"),
    "a setting that does not exist": (("--set", "agent.devise=cpu:1"), 2, "agent.devise"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_said_in_one_line(agents: Agents, case: str) -> None:
    flags, code, text = REFUSED[case]
    process = agents.start(*flags)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert text in errors
    assert errors.count("\n") == 1, errors


def test_one_agent_per_state_folder(controller: Controller, agents: Agents) -> None:
    first = agents.start()
    controller.agent_of("h1")
    _, errors = (second := agents.start(host="h2", state="h1")).communicate(timeout=PATIENCE_S)
    assert second.returncode == 1
    assert f"another agent (pid {first.pid}) works in" in errors


def test_a_refused_agent_ends_with_the_reason(controller: Controller, agents: Agents) -> None:
    controller.refuses = "this key belongs to h9"
    process = agents.start()
    controller.until(lambda: process.poll() is not None)
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "refused this agent: this key belongs to h9" in errors


def test_tcp_speaks_curve(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    init_cluster(keys)
    add_agent(keys, "h1")
    assert find_key(keys, host="h1").server == read_key(keys / "controller.key").public
    controller = Controller("tcp://127.0.0.1:*", secret=read_key(keys / "controller.key").secret)
    agents = Agents(tmp_path, controller.endpoint)
    try:
        agents.start("--keys-dir", str(keys))
        assert controller.agent_of("h1").report.host_id == "h1"
        controller.until(lambda: controller.beats)
    finally:
        agents.end_all()
        controller.close()


@pytest.fixture
def unit() -> Iterator[Path]:
    """A control group of its own for an agent, as systemd gives one to a unit."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    trees = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"]
    if os.geteuid() != 0 or not trees:
        pytest.skip("needs root and a cgroup v2 tree, to put the agent into a group of its own")
    group = trees[0] / f"cotenant-test-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    if not (group / "cgroup.kill").exists():
        group.rmdir()
        pytest.skip("this kernel has no cgroup.kill (Linux 5.14)")
    yield group
    deadline_s = time.monotonic() + PATIENCE_S
    while (group / "cgroup.procs").read_text() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    group.rmdir()


@pytest.mark.root
def test_a_kill_of_the_agents_whole_group_spares_its_jobs(
    controller: Controller, agents: Agents, workdir: Path, unit: Path
) -> None:
    first = agents.start()
    (unit / "cgroup.procs").write_text(str(first.pid))
    session = controller.agent_of("h1").session
    controller.start(workdir)
    controller.until(lambda: controller.log().data == b"started\n")
    assert int((unit / "cgroup.procs").read_text()) == first.pid, "nobody else is in there"
    (unit / "cgroup.kill").write_text("1")
    first.wait()
    agents.start()
    assert [a.running for a in controller.agent_of("h1", session_not=session).attempts] == [True]
    (workdir / "go").touch()
    assert controller.end().verdict.outcome == "finished"
    assert controller.log().data == b"started\ndone\n"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: starts a job of another user")
def test_a_root_agent_runs_a_job_as_its_user() -> None:
    with tempfile.TemporaryDirectory(prefix="cotenant-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        workdir = folder / "work"
        workdir.mkdir()
        os.chown(workdir, 12345, 12345)
        controller = Controller(f"ipc://{folder}/c.sock")
        agents = Agents(folder, controller.endpoint)
        try:
            agents.start()
            controller.agent_of("h1")
            script = (
                "id -u; id -g; cat ../state-h1/spool; touch here; ls $COTENANT_CHECKPOINT_ROOT && echo ok"
            )
            launch = Launch(
                argv=("/bin/sh", "-c", script),
                workdir=str(workdir),
                env={"PATH": os.environ["PATH"]},
                uid=12345,
                gid=12345,
            )
            controller.start(workdir, launch=launch)
            assert controller.end().verdict.outcome == "finished"
            output = controller.log().data.decode()
            assert output.startswith("12345\n12345\n")
            assert "spool: Permission denied" in output
            assert output.endswith("ok\n")
            assert (workdir / "here").stat().st_uid == 12345
        finally:
            agents.end_all()
            controller.close()
