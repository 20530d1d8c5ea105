"""Shells: a real terminal through a real client, controller, agent and supervisor, and back."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import venv
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.building.screens import Screen
from tests.live.person import COTENANT, Person, at_home

SHELL = ("/bin/sh", "-i")
PROMPT = b"READY> "

Opened = Callable[..., Screen]


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    with at_home(
        tmp_path_factory.mktemp("shells"), agent__devices="cpu:4", shell__time_limit_s="600"
    ) as person:
        yield person


@pytest.fixture
def opened(person: Person) -> Iterator[Opened]:
    """Runs `cotenant ...` on a terminal; what it started ends with the test."""
    screens: list[Screen] = []

    def begin(*words: str, **more: object) -> Screen:
        screens.append(Screen([*COTENANT, *words], person.env, person.work, **more))  # type: ignore[arg-type]
        return screens[-1]

    yield begin
    for each in screens:
        each.close()
    jobs = [job["job"] for job in person.json("queue")["jobs"]]
    if jobs:
        person("cancel", *jobs)
        person("wait", "--timeout", "60s", *jobs)


def shell(opened: Opened, *options: str, **more: object) -> tuple[Screen, str]:
    """A shell with a prompt of its own, and its job."""
    screen = opened("shell", "--env", f"PS1={PROMPT.decode()}", *options, "--", *SHELL, **more)
    screen.until(PROMPT)
    found = re.search(rb"job (\d+)", screen.shown)
    assert found is not None
    return screen, found[1].decode()


def asked(screen: Screen, line: bytes) -> bytes:
    """What a command in the shell prints."""
    at = len(screen.shown)
    screen.type(line + b"\n")
    begin = screen.until(line + b"\r\n", at)
    end = screen.until(PROMPT, begin)
    return screen.shown[begin : end - len(PROMPT)]


def test_a_shell_has_a_terminal_of_our_size_and_the_devices_of_a_job(opened: Opened, person: Person) -> None:
    screen, job = shell(opened, "-g", "2", rows=33, columns=101)
    assert b"what runs on a terminal cannot be resumed; it ends after 10m00s at most" in screen.shown
    assert asked(screen, b"stty size") == b"33 101\r\n"
    assert asked(screen, b"tty").startswith(b"/dev/pts/")
    assert asked(screen, b"echo $TERM $COTENANT_JOB") == f"xterm {job}\r\n".encode()
    shown = person.show(job)
    assert (shown["gpus"], shown["resumable"], len(shown["devices"])) == (2, False, 2)
    screen.resize(50, 132)
    screen.type(b"sleep 600; stty size\n")  # It is told while a program is in the foreground, too.
    screen.until(b"stty size\r\n")
    screen.type(b"\x03")
    screen.until(PROMPT, len(screen.shown))
    assert asked(screen, b"stty size") == b"50 132\r\n"
    screen.type(b"exit 7\n")
    assert screen.ended() == 7


def test_keys_reach_the_programs(opened: Opened) -> None:
    """Ctrl-C, Ctrl-Z and Ctrl-D are bytes until they arrive."""
    screen, _ = shell(opened)
    screen.type(b"cat\n")
    screen.until(b"cat\r\n")
    screen.type(b"one\n")
    screen.until(b"one\r\none\r\n")
    at = len(screen.shown)
    screen.type(b"\x03")
    screen.until(PROMPT, at)
    assert asked(screen, b"echo $?") == b"130\r\n"
    screen.type(b"sleep 600\n")
    screen.until(b"sleep 600\r\n")
    at = len(screen.shown)
    screen.type(b"\x1a")
    screen.until(PROMPT, at)
    assert b"sleep 600" in asked(screen, b"jobs")
    screen.type(b"kill %1; exit\n")
    screen.type(b"exit\n")
    assert screen.ended() in (0, 143)


CONDA = """
if [ "$CONDA_AUTO_ACTIVATE_BASE" != false ]; then PS1="(base) "; fi
export PATH=/opt/conda/bin:$PATH CONDA_PREFIX=/opt/conda CONDA_DEFAULT_ENV=base
hello() { echo "hello from the start-up files"; }
"""
"""As conda's part of ~/.bashrc does: whichever shell starts, its base comes first."""
ENVIRONMENTS = {
    "venv": {"VIRTUAL_ENV": "{env}"},
    "conda": {"CONDA_PREFIX": "{env}", "CONDA_DEFAULT_ENV": "mine"},
}


@pytest.mark.parametrize("kind", ENVIRONMENTS)
@pytest.mark.parametrize("name", ["bash", "sh", "zsh", "fish"])
def test_a_shell_has_the_path_that_it_was_started_with(
    person: Person, opened: Opened, name: str, kind: str
) -> None:
    """What a login reads (/etc/profile here, ~/.profile, ~/.zshrc, ...) is read, and changes no PATH."""
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    env = person.home / f"my {kind}"
    if not env.exists():
        venv.create(env, symlinks=True)
    fish = person.home / "config/fish"
    fish.mkdir(parents=True, exist_ok=True)
    (fish / "config.fish").write_text("fish_add_path --path --prepend /opt/conda/bin\n")
    for file in (".profile", ".zshrc"):
        (person.home / file).write_text(CONDA)
    more = {key: value.format(env=env) for key, value in ENVIRONMENTS[kind].items()}
    path = f"{env}/bin:{person.env['PATH']}"
    with pytest.MonkeyPatch.context() as patched:
        for key, value in {**more, "PATH": path, "SHELL": program}.items():
            patched.setitem(person.env, key, value)
        screen = opened("shell", columns=2_000)
    line = 'python -c "import os, sys; print(sys.prefix, [os.environ.get(k) for k in sys.argv[1:]])" '
    screen.until(b"connects to it again")
    screen.type(f"{line}{' '.join((*more, 'PATH', 'COTENANT_KEPT', 'CONDA_AUTO_ACTIVATE'))}\n".encode())
    wanted = [*more.values(), path, None, None]
    screen.until(f"{env} {wanted}".encode())
    if name != "fish":
        screen.type(b"hello\n")
        screen.until(b"hello from the start-up files")
    assert b"(base)" not in screen.shown
    screen.type(b"exit 7\n")
    assert screen.ended() == 7


ECHO = """
import os, sys, termios, tty
tty.setraw(0)
os.write(1, b"go")
got = b""
while len(got) < 256 * 40:
    got += os.read(0, 65536)
os.write(1, got)
"""


def test_all_bytes_pass_both_ways(opened: Opened) -> None:
    screen = opened("run", "-q", "--pty", "--", sys.executable, "-c", ECHO, raw=True)
    at = screen.until(b"go")
    every = bytes(range(256)) * 40
    for start in range(0, len(every), 1024):  # A terminal takes 4 KiB before somebody reads.
        screen.type(every[start : start + 1024])
        screen.read(0.01)
    assert screen.ended() == 0
    assert screen.shown[at:] == every


def test_the_exit_code_of_a_signal_is_128_and_more(opened: Opened) -> None:
    assert opened("run", "-q", "--pty", "--", "sh", "-c", "kill -SEGV $$").ended() == 139
    assert opened("shell", "--", "no-such-program-here").ended() == 2


def test_from_a_pipe_the_end_of_input_ends_the_shell(person: Person) -> None:
    """It is typed as Ctrl-D, twice where it ends no line."""
    done = person.shell("printf 'echo $((6 * 7))\\n' | \"$@\"", "shell", "--", "/bin/sh")
    assert done.code == 0 and "42" in done.out, done
    done = person.shell("printf 'last line' | \"$@\"", "run", "--pty", "--", "cat")
    assert done.code == 0 and done.out.count("last line") == 2, done


def test_a_client_that_is_killed_ends_nothing_and_attach_shows_what_was_there(
    opened: Opened, person: Person
) -> None:
    screen, job = shell(opened)
    asked(screen, b"word=kept")
    screen.type(b"i=0; while [ $i -lt 9000 ]; do echo line $i; i=$((i+1)); done\n")
    screen.until(b"line 8999\r\n" + PROMPT)
    screen.process.kill()
    again = opened("attach", job)
    at = again.until(b"line 8999\r\n" + PROMPT)
    assert 60_000 < at < 70_000 and b"line 1000\r" not in again.shown
    assert asked(again, b"echo $word") == b"kept\r\n"
    again.type(b"\r~.")
    assert again.ended() == 0
    assert f"job {job} goes on: `cotenant attach {job}`".encode() in again.shown
    assert person.job(job)["state"] in ("loading", "running")
    assert "line 4000\n" in person.logs(job).replace("\r", "")


def test_the_newest_client_has_the_terminal(opened: Opened) -> None:
    first, job = shell(opened)
    second = opened("attach", job)
    second.until(PROMPT)
    first.until(f"job {job} has another client now and goes on".encode())
    assert first.ended() == 0
    assert asked(second, b"echo $((1 + 1))") == b"2\r\n"


def test_a_shell_outlives_its_agent_and_its_controller(opened: Opened, person: Person) -> None:
    screen, _ = shell(opened)
    asked(screen, b"word=kept")
    assert person.process is not None
    person.kill_controller()
    person.up()
    assert asked(screen, b"echo $word") == b"kept\r\n"
    agents = [
        child
        for child in psutil.Process(person.process.pid).children(recursive=True)
        if "cotenant.agent" in child.cmdline()
    ]
    for each in agents or [psutil.Process(person.process.pid)]:
        each.kill()
    person.process.wait()
    person.process.communicate()
    person.process = None
    person.up()
    assert asked(screen, b"echo still $word") == b"still kept\r\n"


def test_while_it_waits_it_says_why_and_ctrl_c_cancels_it(opened: Opened, person: Person) -> None:
    shell(opened, "-g", "4")
    screen = opened("shell", "--", *SHELL)
    screen.until(b"queued")
    screen.type(b"\x03")
    screen.until(b"cancelled by")
    assert screen.ended() == 130
    job = re.search(rb"job (\d+) cancelled by", screen.shown)
    assert job is not None and person.job(job[1].decode())["state"] == "cancelled"


def test_a_client_that_is_told_to_end_leaves_the_shell(opened: Opened, person: Person) -> None:
    screen, job = shell(opened)
    screen.process.terminate()
    assert screen.ended() == 143
    assert person.job(job)["state"] in ("loading", "running")
    person("cancel", job)
    assert person.until_state(job, "cancelled")["state"] == "cancelled"


def test_a_client_that_stalls_stops_its_own_job_and_nobody_else(opened: Opened, person: Person) -> None:
    """50 MB for a client that does not read: they stay where they come from, and none of them is lost."""
    flood = "echo begin; yes 123456789 | head -c 50000000; echo e"
    screen = opened("run", "-q", "--pty", "--", "sh", "-c", flood, raw=True)
    screen.until(b"begin\r\n123")
    (job,) = (job["job"] for job in person.json("queue")["jobs"])
    daemons = [process for process in cotenant_processes(person) if process.pid != screen.process.pid]
    before = {process: process.memory_info().rss for process in daemons}
    quick, _ = shell(opened)
    for number in range(50):  # Others are served meanwhile, and the host is not taken to be silent.
        assert asked(quick, b"echo $((%d * 2))" % number) == b"%d\r\n" % (2 * number)
    assert [node["state"] for node in person.json("nodes")["nodes"]] == ["ok"]
    for process, rss in before.items():
        assert process.memory_info().rss < rss + 30e6, process.cmdline()
    assert person.job(job)["state"] in ("loading", "running")
    digest, size = hashlib.sha256(), 0
    rest = screen.shown[screen.shown.index(b"begin\r\n") + len(b"begin\r\n") :]
    while screen.process.poll() is None or rest:
        digest.update(rest)
        size += len(rest)
        screen.shown = b""
        rest = screen.read(0.5)
    assert screen.process.returncode == 0
    whole = b"123456789\r\n" * 5_000_000 + b"e\r\n"
    assert size == len(whole) and digest.digest() == hashlib.sha256(whole).digest()


def cotenant_processes(person: Person) -> list[psutil.Process]:
    """Agent, controller and supervisors of this person."""
    found = []
    for process in psutil.process_iter():
        try:
            is_ours = "cotenant." in " ".join(process.cmdline())
            if is_ours and process.environ().get("HOME") == str(person.home):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
