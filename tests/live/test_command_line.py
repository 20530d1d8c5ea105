"""The command line with a real controller, agent and jobs: what a user types on a first day.

The jobs are shell commands, so that nothing here waits for torch.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.building.limits import within_s

COTENANT = (sys.executable, "-m", "cotenant.controller.cli.main")
WITHIN_S = within_s(60.0)

Cotenant = Callable[..., subprocess.CompletedProcess[str]]
Begun = Callable[..., AbstractContextManager[subprocess.Popen[str]]]


@pytest.fixture(scope="module")
def cotenant(home: Path, environ: dict[str, str]) -> Iterator[Cotenant]:
    """Runs a command line. The first `run` starts a private controller, which ends with this module."""

    def run(*words: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COTENANT, *words],
            capture_output=True,
            input=input,
            text=True,
            timeout=WITHIN_S,
            env=environ,
            cwd=home,
        )

    yield run
    for process in ups(home):
        process.send_signal(signal.SIGTERM)
        process.wait(WITHIN_S)


@pytest.fixture
def begun(home: Path, environ: dict[str, str]) -> Begun:
    """Starts a command line that goes on; it ends with the block, whatever happens there."""

    @contextmanager
    def begin(*words: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [*COTENANT, *words],
            stdout=subprocess.PIPE,
            env=environ,
            cwd=home,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in background jobs
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    return begin


def ups(home: Path) -> list[psutil.Process]:
    """The `up` processes whose sockets lie here."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "up" in (process.info["cmdline"] or [])[3:4]:
            try:
                if process.environ().get("XDG_RUNTIME_DIR") == str(home):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
    return found


def test_run_starts_what_it_needs_and_returns_the_jobs_code(cotenant: Cotenant, home: Path) -> None:
    done = cotenant("run", "--", "sh", "-c", "echo from the job; pwd; exit 7")
    assert done.returncode == 7, done.stderr
    assert done.stdout == f"from the job\n{home}\n"
    assert "starting one here" in done.stderr
    again = cotenant("run", "-q", "--", "true")
    assert (again.returncode, again.stderr) == (0, "")
    assert len(ups(home)) == 1


def test_run_is_a_filter(cotenant: Cotenant, home: Path) -> None:
    """Standard input goes in; output and errors come out where they belong."""
    program = (
        "import sys\nfor line in sys.stdin: print(line.strip(), file=sys.stderr if 'x' in line else None)"
    )
    words = ("run", "-q", "--", sys.executable, "-c", program)
    lines = "".join(f"{number} {'x' * (number % 3 == 0)}\n" for number in range(30_000))
    done = cotenant(*words, input=lines)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(number) for number in range(30_000) if number % 3]
    assert done.stderr.split()[::2] == [str(number) for number in range(30_000) if number % 3 == 0]


def test_an_empty_standard_input_is_said_to_be_why(cotenant: Cotenant) -> None:
    done = cotenant("run", "--", sys.executable, "-c", "input()", input="")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        "EOFError" in done.stderr and "it read standard input, which had nothing (more) for it" in done.stderr
    )


def test_a_signal_is_128_and_more(cotenant: Cotenant) -> None:
    assert cotenant("run", "--", "sh", "-c", "kill -SEGV $$").returncode == 139


def test_what_was_recorded_is_all_a_job_sees(cotenant: Cotenant) -> None:
    done = cotenant("run", "-q", "--env", "A=1", "--env", "MY_TOKEN=hush", "--", "env")
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert (variables["A"], variables["MY_TOKEN"]) == ("1", "hush")
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} & variables.keys(), "it is no rank"
    assert "XDG_STATE_HOME" not in variables, "the agent's own environment leaks"
    shown = cotenant("queue", "--all", "-o", "id").stdout.split()[-1]
    assert "hush" not in cotenant("show", shown, "--json").stdout


def test_a_queue_from_submission_to_the_end(cotenant: Cotenant, home: Path) -> None:
    first = cotenant(
        "submit", "-J", "first", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; echo first"
    )
    first_id = first.stdout.strip()
    second = cotenant("submit", "--after", first_id, "--", "echo", "second").stdout.strip()
    held = cotenant("submit", "--hold", "--", "echo", "held").stdout.strip()
    (home / "train.yaml").write_text("command: echo from yaml\nname: yaml\ntime: 5m\n")
    third = cotenant("submit", "train.yaml").stdout.strip()
    jobs = {job["job"]: job for job in json.loads(cotenant("queue", "--json").stdout)["jobs"]}
    assert jobs[first_id]["name"] == "first"
    assert (jobs[second]["state"], jobs[held]["state"], jobs[third]["state"]) == ("blocked", "held", "queued")
    assert first_id in jobs[second]["reason"]
    assert cotenant("explain", third).stdout.strip()
    (home / "go").touch()
    assert cotenant("release", held).returncode == 0
    waited = cotenant("wait", first_id, second, third, held)
    assert waited.returncode == 0, waited.stdout
    assert cotenant("logs", second).stdout == "second\n"
    assert cotenant("logs", "-f", third).stdout == "from yaml\n"
    assert json.loads(cotenant("show", third, "--json").stdout)["spec"]["time_limit_s"] == 300


def test_an_array_is_one_number(cotenant: Cotenant) -> None:
    number = cotenant(
        "submit", "--array", "3,5", "--", "sh", "-c", "echo task $COTENANT_ARRAY_INDEX"
    ).stdout.strip()
    assert cotenant("wait", number).returncode == 0
    assert [cotenant("logs", f"{number}_{index}").stdout for index in (3, 5)] == ["task 3\n", "task 5\n"]


def test_refusals_have_their_exit_codes(cotenant: Cotenant) -> None:
    assert cotenant("submit", "-g", "64", "--", "true").returncode == 6
    assert cotenant("show", "99999").returncode == 3
    assert cotenant("cancel", "99999").returncode == 3
    assert cotenant("nodes", "drain", "nowhere").returncode == 3
    assert cotenant("policy", "set", "magic").returncode == 2
    failed = cotenant("submit", "--", "false").stdout.strip()
    assert cotenant("wait", failed).returncode == 1
    assert cotenant("cancel", failed).returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_run_ends_a_job_that_does_not_handle_it(
    cotenant: Cotenant, begun: Begun, number: signal.Signals
) -> None:
    with begun("run", "--", "sh", "-c", "echo started; sleep 600") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "started\n"
        running.send_signal(number)
        assert running.wait(WITHIN_S) == 128 + number
    assert json.loads(cotenant("queue", "--json").stdout)["jobs"] == []


SAVES = """
import sys, time
try:
    print("started", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("saves", flush=True)
    {after}
"""


@pytest.mark.parametrize(("after", "code"), [("print('saved')", 0), ("sys.exit(3)", 3), ("raise", 130)])
def test_a_script_handles_ctrl_c_and_run_returns_what_it_ended_with(
    cotenant: Cotenant, begun: Begun, after: str, code: int
) -> None:
    with begun("run", "--", sys.executable, "-c", SAVES.format(after=after)) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "started\n"
        running.send_signal(signal.SIGINT)
        assert running.stdout.readline() == "saves\n"
        assert running.wait(WITHIN_S) == code
    newest, *_ = json.loads(cotenant("queue", "--ended", "--json").stdout)["jobs"]
    assert (newest["state"], newest["exit_code"], newest["attempt"]) == ("cancelled", code, 1)
    assert newest["reason"].startswith("cancelled by ")


def test_a_second_ctrl_c_cancels_a_script_that_goes_on(cotenant: Cotenant, begun: Begun, home: Path) -> None:
    after = "time.sleep(600)"
    with begun("run", "--", sys.executable, "-c", SAVES.format(after=after)) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "started\n"
        running.send_signal(signal.SIGINT)
        assert running.stdout.readline() == "saves\n"
        running.send_signal(signal.SIGINT)
        assert running.wait(WITHIN_S) == 130
    assert json.loads(cotenant("queue", "--json").stdout)["jobs"] == []


def test_policy_and_nodes(cotenant: Cotenant) -> None:
    assert cotenant("policy", "set", "sjf").returncode == 0
    assert json.loads(cotenant("policy", "show", "--json").stdout)["policy"] == "sjf"
    (node,) = json.loads(cotenant("nodes", "--json").stdout)["nodes"]
    assert [device["device"] for device in node["devices"]] == [f"{node['host']}/cpu0"]
    assert cotenant("nodes", "drain", node["host"]).returncode == 0
    assert json.loads(cotenant("nodes", "--json").stdout)["nodes"][0]["state"] == "drained"
    assert cotenant("nodes", "resume", node["host"]).returncode == 0
    assert "policy sjf" in cotenant("top", "--once").stdout
    assert cotenant("doctor").returncode == 0


def test_jobs_live_on_when_up_is_stopped(cotenant: Cotenant, begun: Begun, home: Path) -> None:
    (old,) = ups(home)
    job = cotenant(
        "submit", "--", "sh", "-c", "echo $$ > pid; while [ ! -e end ]; do sleep 0.05; done"
    ).stdout.strip()
    pid = when(lambda: (home / "pid").read_text().strip() if (home / "pid").exists() else "")
    old.send_signal(signal.SIGTERM)
    old.wait(WITHIN_S)
    alone = cotenant("queue")
    assert (alone.returncode, "no controller is running; from the journal" in alone.stderr) == (0, True)
    assert psutil.pid_exists(int(pid))
    with begun("up") as up:
        assert up.stdout is not None
        assert up.stdout.readline().startswith("controller ready")
        assert up.stdout.readline().startswith("agent ready")
        (home / "end").touch()
        assert cotenant("wait", job).returncode == 0
        up.send_signal(signal.SIGINT)
        assert up.wait(WITHIN_S) == 0


def test_up_takes_over_what_run_has_started_and_down_ends_it(
    cotenant: Cotenant, begun: Begun, home: Path
) -> None:
    script = "echo $$ > pid-2; while [ ! -e end-2 ]; do sleep 0.05; done; exit 7"
    with begun("run", "--", "sh", "-c", script) as run:
        pid = when(lambda: (home / "pid-2").read_text().strip() if (home / "pid-2").exists() else "")
        (old,) = ups(home)
        with begun("up") as up:
            assert up.stdout is not None
            assert up.stdout.readline().startswith("controller ready")
            assert up.stdout.readline().startswith("agent ready")
            assert [each.pid for each in ups(home)] == [up.pid] != [old.pid]
            assert psutil.pid_exists(int(pid)), "the job goes on"
            second = cotenant("up")
            assert second.returncode == 1
            assert f"already answers at ipc://{home}" in second.stderr
            assert f"(`cotenant up`, pid {up.pid}); use it, or end it: cotenant down" in second.stderr
            asked = cotenant("down")
            assert asked.returncode == 1
            assert "(sh); what runs goes on without a controller" in asked.stderr
            assert "say --yes" in asked.stderr
            (home / "end-2").touch()
            assert run.wait(WITHIN_S) == 7, "who waits for the job has not noticed"
            done = cotenant("down")
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith("ended: controller and agent at ")
            assert up.wait(WITHIN_S) == 0
    assert ups(home) == []
    again = cotenant("down", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["message"] == "nothing to end: no controller answers"


def test_down_cancels_first_where_it_is_asked_to(cotenant: Cotenant, begun: Begun, home: Path) -> None:
    with begun("up") as up:
        assert up.stdout is not None
        assert "agent ready" in up.stdout.readline() + up.stdout.readline()
        job = cotenant("submit", "--", "sleep", "1000").stdout.strip()
        when(lambda: str(json.loads(cotenant("show", job, "--json").stdout)["devices"] or ""))
        done = cotenant("down", "--cancel", "--yes", "--json")
        assert (done.returncode, json.loads(done.stdout)["cancelled"]) == (0, [job])
        assert f"cancelling 1 job: {job} (sleep)" in done.stderr
        assert up.wait(WITHIN_S) == 0


MAKE_ROOM = """
from cotenant.controller.cli.setup.demo import make_room
from cotenant.controller.client.asking import loaded_settings
from cotenant.controller.system.paths import client_endpoint
make_room(client_endpoint(loaded_settings().settings))
"""
"""What `demo` does first, without the minutes that follow."""


def test_the_demo_makes_room_where_run_keeps_an_idle_cluster_and_only_there(
    cotenant: Cotenant, begun: Begun, home: Path, environ: dict[str, str]
) -> None:
    def make_room() -> str:
        """The problem that it raises, or what it says."""
        words = (sys.executable, "-c", MAKE_ROOM)
        done = subprocess.run(words, env=environ, cwd=home, capture_output=True, text=True, timeout=WITHIN_S)
        return done.stderr

    make_room()  # Of the tests before.
    assert make_room() == "", "there is no cluster"
    script = "echo > pid-3; while [ ! -e end-3 ]; do sleep 0.05; done"
    with begun("run", "--", "sh", "-c", script) as run:
        when(lambda: "started" if (home / "pid-3").exists() else "")
        assert "holds the CPU slots that the demo needs, for 1 job" in make_room()
        (home / "end-3").touch()
        assert run.wait(WITHIN_S) == 0
    (kept,) = ups(home)
    assert f"`cotenant run` (pid {kept.pid}) is idle and ends, to make room" in make_room()
    assert ups(home) == []
    with begun("up") as up:
        assert up.stdout is not None
        assert "agent ready" in up.stdout.readline() + up.stdout.readline()
        assert f"`cotenant up` (pid {up.pid}) holds the CPU slots that the demo needs" in make_room()
        up.send_signal(signal.SIGINT)
        assert up.wait(WITHIN_S) == 0


def when(value: Callable[[], str]) -> str:
    """The value once it is there."""
    deadline_s = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline_s:
        if found := value():
            return found
        time.sleep(0.05)
    raise AssertionError("it never happened")
