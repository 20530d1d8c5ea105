"""Attempts whose ranks were forked from a server: all that holds for cold ones holds for them."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.agent.daemon.warm_starts import kind_of
from cotenant.agent.host import jobside
from cotenant.agent.host.cgroups import RANKS, SUPERVISOR, AttemptCgroup, find_cgroups, sweep
from cotenant.agent.host.process_identity import children_of, identity_of, stat_of
from cotenant.agent.ipc.channel import StopNow
from cotenant.agent.ipc.records import MODULES, WarmOffer, WatchRule
from cotenant.agent.supervisor.processes.ranks import dump
from cotenant.agent.supervisor.processes.reaper import end_leftovers
from cotenant.agent.warm.spawn import ForkServer
from cotenant.controller.domain import AttemptNo, HostId, Launch
from tests.agent.warm.servers import bare_environment, said
from tests.building.orders import order_of
from tests.live.test_supervisor import NOBODY, RANK, WAIT_S, Attempt, everybody_spoke, others_python

HOST = HostId("h")


class Host:
    """What an agent does for warm starts: a server per kind, offered to the attempts of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobside = jobside.prepare_jobside(folder / "jobside")
        self.servers: dict[str, ForkServer] = {}
        self.attempts: list[Attempt] = []

    def attempt(self, *argv: str, ranks: int = 1, warm: bool = True, **fields: Any) -> Attempt:
        launch = Launch(argv=argv, workdir=str(self.folder), env={"PATH": os.environ["PATH"]})
        offer = WarmOffer(why=fields.pop("why", ""), learns=fields.pop("learns", False))
        first_word_s = fields.pop("first_word_s", WAIT_S)
        asked = {name: fields.pop(name) for name in ("uid", "gid", "workdir") if name in fields}
        number = AttemptNo(len(self.attempts) + 1)
        order = order_of(
            ranks,
            attempt=number,
            launch=msgspec.structs.replace(launch, **asked),
            checkpoint_root=str(self.folder / "checkpoints"),
            start_deadline_s=1800.0,
            log_bytes_max=1 << 20,
            jobside_path=str(self.jobside),
            **fields,
        )
        if warm:
            offer = WarmOffer(server=str(self.server_for(order).address), first_word_s=first_word_s)
        order = msgspec.structs.replace(order, warm=offer)
        made = Attempt(self.folder / f"7-a{number}", order)
        self.attempts.append(made)
        return made

    def server_for(self, order: Any) -> ForkServer:
        kind = kind_of(order)
        if kind.key not in self.servers:
            address = self.folder / f"{len(self.servers)}.sock"
            self.servers[kind.key] = ForkServer(kind, ("msgspec",), self.jobside, address)
            assert said(self.servers[kind.key]).m == "ready"
        return self.servers[kind.key]

    @property
    def server(self) -> ForkServer:
        (only,) = self.servers.values()
        return only

    def script(self, text: str, name: str = "script.py") -> str:
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    def close(self) -> None:
        for each in self.attempts:
            each.clean()
        for server in self.servers.values():
            server.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.close()


def nanny_of(attempt: Attempt) -> int:
    """The parent of its ranks: it has their sign in its environment, and its own parent has not."""
    pids = attempt.pids()
    (nanny,) = (pid for pid in pids if (stat := stat_of(pid)) is not None and stat.parent not in pids)
    return nanny


def await_(reached: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_normal_end(host: Host) -> None:
    script = host.script("import os\nprint('rank', os.environ['RANK'])\nexit(int(os.environ['RANK']) * 3)\n")
    attempt = host.attempt(sys.executable, script, ranks=2).start()
    result = attempt.result()
    assert (result.status.launch, result.status.launch_why) == ("warm", "")
    assert (result.verdict.outcome, result.verdict.exit_code) == ("user-failed", 3)
    assert (attempt.log(0), attempt.log(1)) == ("rank 0\n", "rank 1\n")


def test_without_an_offer_it_starts_cold_and_says_why(host: Host) -> None:
    attempt = host.attempt(sys.executable, host.script("pass"), warm=False, why="first")
    result = attempt.start().result()
    assert (result.verdict.outcome, result.status.launch) == ("finished", "cold")
    assert "no server for its environment" in result.status.launch_why


def test_two_ranks_stop_at_one_step_with_their_state_saved(host: Host) -> None:
    attempt = host.attempt(sys.executable, host.script(RANK), ranks=2).start()
    status = attempt.until(everybody_spoke)
    assert status.launch == "warm"
    attempt.tell(StopNow(save=True, deadline_s=WAIT_S, reason="preempted"))
    result = attempt.result()
    assert result.verdict.outcome == "stopped"
    assert attempt.log(0) == attempt.log(1) == f"stopped at {result.step}\n"


def test_every_rank_handles_ctrl_c(host: Host) -> None:
    script = """
        import time
        try:
            print("here")
            time.sleep(1000)
        except KeyboardInterrupt:
            print("saved")
    """
    attempt = host.attempt(sys.executable, host.script(script), ranks=2).start()
    assert attempt.until(lambda status: status.started).launch == "warm"
    await_(lambda: "here" in attempt.log(0) and "here" in attempt.log(1))
    attempt.tell(StopNow(save=False, interrupt=True, deadline_s=WAIT_S, reason="cancelled"))
    verdict = attempt.result().verdict
    assert (verdict.outcome, verdict.exit_code) == ("stopped", 0)
    assert attempt.log(0) == attempt.log(1) == "here\nsaved\n"


def test_one_that_does_not_want_to_go_is_killed(host: Host) -> None:
    script = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('here')\ntime.sleep(1000)\n"
    attempt = host.attempt(sys.executable, host.script(script), ranks=2).start()
    attempt.until(lambda status: status.started)
    await_(lambda: "here" in attempt.log(0) and "here" in attempt.log(1))
    attempt.tell(StopNow(save=False, deadline_s=0.1, reason="cancelled"))
    assert attempt.result().verdict.outcome == "stopped"
    assert attempt.pids() == []


def test_grandchildren_do_not_stay_behind(host: Host) -> None:
    script = """
        import os, subprocess, sys, time
        subprocess.Popen(["sleep", "1000"])
        subprocess.Popen(["sh", "-c", "echo $$ > daemon; exec sleep 1000"], env={}, start_new_session=True)
        while not (os.path.exists("daemon") and open("daemon").read().endswith("\\n")):
            time.sleep(0.01)
    """
    attempt = host.attempt(sys.executable, host.script(script)).start()
    assert attempt.result().verdict.outcome == "finished"
    assert identity_of(int((host.folder / "daemon").read_text())) is None
    assert attempt.pids() == []


@pytest.mark.parametrize("whom", ["supervisor", "nanny", "server", "rank", "stopped nanny", "stopped server"])
def test_a_kill_at_any_point(host: Host, whom: str) -> None:
    """Nothing is left, or it goes on to its end."""
    attempt = host.attempt(sys.executable, host.script(RANK), ranks=2).start()
    attempt.until(everybody_spoke)
    nanny = nanny_of(attempt)
    rank = next(pid for pid in children_of(nanny))
    assert attempt.process is not None
    pid = {"supervisor": attempt.process.pid, "nanny": nanny, "rank": rank}.get(
        whom.removeprefix("stopped "), host.server.pid
    )
    os.kill(pid, signal.SIGSTOP if "stopped" in whom else signal.SIGKILL)
    if whom == "supervisor":
        attempt.process.wait()
        await_(lambda: attempt.pids() == [])
        assert end_leftovers(attempt.folder, attempt.order, None) == []
        return
    saves = whom.endswith("server")
    attempt.tell(StopNow(save=saves, deadline_s=WAIT_S if saves else 0.1, reason="x"))
    result = attempt.result()
    assert attempt.pids() == []
    assert identity_of(nanny) is None
    if whom.endswith("server"):
        assert [each.step for each in result.status.durable] == [result.step]
    if whom == "stopped server":
        script = host.script("print('cold')", "late.py")
        late = host.attempt(sys.executable, script, first_word_s=0.1).start().result()
        assert (late.verdict.outcome, late.status.launch) == ("finished", "cold")
        assert "did not answer in time" in late.status.launch_why
        os.kill(host.server.pid, signal.SIGCONT)


def test_a_supervisor_that_dies_before_the_gate_opens(host: Host) -> None:
    """Its ranks never run: as if nothing had been started."""
    script = host.script("open('ran', 'w')")
    attempt = host.attempt(sys.executable, script)
    os.kill(host.server.pid, signal.SIGSTOP)
    attempt.start()
    attempt.await_file("control.sock")
    assert attempt.process is not None
    attempt.process.kill()
    attempt.process.wait()
    os.kill(host.server.pid, signal.SIGCONT)
    again = host.attempt(sys.executable, host.script("pass", "again.py")).start().result()
    assert again.status.launch == "warm"  # The server has worked through both by now.
    await_(lambda: attempt.pids() == [])
    assert not (host.folder / "ran").exists()


def test_what_it_imported_is_kept_for_the_agent(host: Host) -> None:
    script = host.script("import msgspec, json\n")
    attempt = host.attempt(sys.executable, script, warm=False, learns=True).start()
    attempt.result()
    names = msgspec.json.decode((attempt.folder / MODULES).read_bytes(), type=list[str])
    assert "msgspec" in names
    assert "json" not in names


def test_a_rank_has_the_stacks_signal(host: Host) -> None:
    """Its hook was loaded by the server without our variables, and once more in the rank."""
    script = "def waits():\n    import time\n    print('here')\n    time.sleep(1000)\nwaits()\n"
    attempt = host.attempt(sys.executable, host.script(script), watch=WatchRule(floor_s=1000.0)).start()
    attempt.until(lambda status: status.started)
    await_(lambda: "here" in attempt.log())
    (rank,) = children_of(nanny_of(attempt))
    assert dump([rank]) == [rank]
    await_(lambda: "in waits" in attempt.log())
    attempt.tell(StopNow(save=False, deadline_s=1.0, reason="cancelled"))
    assert attempt.result().verdict.outcome == "stopped"


@pytest.fixture
def cgroup_root() -> Iterator[str]:
    found = find_cgroups()
    if not found.track:
        pytest.skip(f"cgroups: {found.why_not}")
    yield found.track
    sweep(found)


def test_ranks_are_in_the_attempts_control_group(host: Host, cgroup_root: str) -> None:
    script = "import subprocess as s\np = s.Popen(['sleep', '1000'])\nprint(p.pid)\np.wait()\n"
    attempt = host.attempt(sys.executable, host.script(script), ranks=2, cgroup=f"{cgroup_root}/7-a1").start()
    attempt.until(lambda status: status.started)
    await_(lambda: attempt.log(0).endswith("\n") and attempt.log(1).endswith("\n"))
    cgroup = AttemptCgroup(attempt.order, attempt.folder)
    nanny = nanny_of(attempt)
    children = {int(attempt.log(rank)) for rank in (0, 1)}
    assert set(cgroup.pids(RANKS)) == {nanny, *children_of(nanny), *children}
    assert attempt.process is not None and attempt.process.pid in cgroup.pids(SUPERVISOR)
    os.kill(nanny, signal.SIGKILL)
    assert attempt.result().verdict.outcome != "finished"
    assert cgroup.pids(RANKS) == []


@pytest.mark.root
def test_another_user() -> None:
    """His are the server and the ranks; the interpreter is the distribution's."""
    base = Path(others_python())
    with tempfile.TemporaryDirectory(prefix="cotenant-test-") as folder, closing(Host(Path(folder))) as host:
        host.folder.chmod(0o755)
        python = str(bare_environment(host.folder / "venv", base))
        script = host.script(
            "import os\nprint(os.getresuid(), os.getresgid(), os.getgroups(), os.getcwd())\n"
            "for path in ('/etc/shadow', '/proc/1/environ'):\n"
            "    try:\n        open(path)\n    except OSError as error:\n        print(error.errno)\n"
        )
        attempts = [
            host.attempt(python, script, warm=warm, workdir="/", uid=NOBODY, gid=NOBODY).start()
            for warm in (True, False)
        ]
        assert [each.result().status.launch for each in attempts] == ["warm", "cold"]
        assert attempts[0].log() == attempts[1].log()
        assert attempts[0].log().startswith(f"({NOBODY}, {NOBODY}, {NOBODY})")
