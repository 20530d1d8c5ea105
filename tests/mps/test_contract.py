"""What the control daemon does, asserted of the stub and, where it is installed, of NVIDIA's program alike.

The rows are those of `stub/control.py`. Where drivers differ, both are accepted here, and the parsers take
both: 535 knows no `get_server_status` and writes no pid file, 550 has both.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cotenant.mps import process
from cotenant.mps.answers import Incomplete, Rejected, answer_before_sentinel, query
from cotenant.mps.channel import ControlChannel, NoDaemon, Wedged
from cotenant.mps.environment import PROTOCOL_VERSION
from cotenant.mps.process import CONTROL
from tests.building.limits import within_s
from tests.mps.conftest import STUB, TIMEOUT_S, Place, default_percentage, freeze

SENTINEL = "end-of-answer-5b20"
UUID = "GPU-11111111-2222-3333-4444-555555555555"


def impatient(place: Place) -> ControlChannel:
    return ControlChannel(pipe_directory=place.channel.pipe_directory, program=place.program, answer_s=0.3)


def raw(place: Place, command: str) -> str:
    """Without the channel: what one front end prints."""
    return answer_before_sentinel(place.run(text=query(command, SENTINEL)).stdout, SENTINEL)


def test_r1_without_a_daemon_the_front_end_fails_and_says_so(either: Place) -> None:
    done = either.run(text="get_server_list\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Cannot find MPS control daemon process" in done.stderr


def test_r2_r10_a_daemon_starts_once_and_again_after_a_kill_with_default_settings(either: Place) -> None:
    first = either.start()
    second = either.run("-d")
    assert (second.returncode, second.stdout + second.stderr) == (
        1,
        "An instance of this daemon is already running\n",
    )
    assert raw(either, "set_default_active_thread_percentage 50") == "50.0"
    assert process.end(first.identity, 10)
    assert (either.pipe / "control").exists(), "a killed daemon leaves its sockets"
    with pytest.raises(NoDaemon):
        either.channel.ask("get_server_list")
    assert either.start().identity != first.identity
    assert raw(either, "get_default_active_thread_percentage") == "100.0"


def test_r3_r14_errors_are_text_with_status_0(either: Place) -> None:
    either.start()
    done = either.run(text="get_client_list 999\nno_such_word\nterminate_client 1 2\nps -p 999\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "Server 999 not found",
        'Unknown command "no_such_word"',
        "Server 1 not found",
        "Server 1 not found!",
        "1",
        "Server 999 not found",
        "Server 999 not found",
        "",
    ]


def test_r3_r14_and_the_functions_tell_them_from_answers(either: Place) -> None:
    either.start()
    channel = either.channel
    assert channel.server_list() == ()
    assert not channel.terminate_client(1, 2)
    with pytest.raises(Rejected, match="999"):
        channel.client_list(999)
    with pytest.raises(Rejected, match="999"):
        channel.set_percentage(999, 50)


def test_r4_a_percentage_out_of_range_keeps_the_old_one(either: Place) -> None:
    either.start()
    channel = either.channel
    channel.set_default_percentage(50)
    assert raw(either, "set_default_active_thread_percentage 0") == "50.0"
    assert raw(either, "set_default_active_thread_percentage 120") == "50.0"
    with pytest.raises(Rejected, match=r"120 % was not taken: 50.0 %"):
        channel.set_default_percentage(120)
    assert default_percentage(channel) == 50.0
    assert "Invalid percentage" in (either.logs / "control.log").read_text()


def test_r5_a_memory_limit_is_shown_truncated(either: Place) -> None:
    either.start()
    assert raw(either, "get_default_device_pinned_mem_limit 0") == ""
    assert raw(either, "set_default_device_pinned_mem_limit 0 1500M") == ""
    assert raw(either, "get_default_device_pinned_mem_limit 0") == "1G"


def test_r5_a_memory_limit_by_uuid_is_dropped_without_a_word(either: Place) -> None:
    """And read back by UUID it is device 0's. So limits go by number, here and in a client's environment."""
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    either.start()
    assert raw(either, f"set_default_device_pinned_mem_limit {uuid} 4G") == ""
    assert raw(either, "get_default_device_pinned_mem_limit 0") == ""
    assert raw(either, "set_default_device_pinned_mem_limit 0 3072M") == ""
    assert raw(either, f"get_default_device_pinned_mem_limit {uuid}") == "3G"


def test_r6_a_priority_is_0_or_1(either: Place) -> None:
    either.start()
    assert raw(either, "get_default_client_priority") == "0"
    assert raw(either, "set_default_client_priority 1") == ""
    assert "must be 0 or 1" in raw(either, "set_default_client_priority 2")
    assert raw(either, "get_default_client_priority") == "1"


def test_r7_a_server_without_a_gpu_is_started_in_silence_and_dies(either: Place) -> None:
    either.tell(gpu=False)
    either.start()
    channel = either.channel
    assert raw(either, f"start_server -uid {os.getuid()}") == ""
    log = either.logs / "control.log"
    daemon = either.daemons()[0]
    while channel.server_list() or "exited with status" not in log.read_text():
        assert process.is_alive(daemon.identity)
    assert "Starting new server" in log.read_text()


def test_r8_a_second_front_end_loses_its_answer_and_the_channel_asks_again(either: Place) -> None:
    """A front end that stays connected is in everybody's way: never a wrong answer, only none."""
    either.start()
    with subprocess.Popen((either.program,), env=either.environment, stdin=subprocess.PIPE) as holder:
        while "NEW UI" not in (either.logs / "control.log").read_text():
            assert holder.poll() is None
        with pytest.raises((Incomplete, Wedged)):
            impatient(either).ask("get_default_active_thread_percentage")
        assert holder.stdin is not None
        holder.stdin.close()
    assert default_percentage(either.channel) == 100.0


def test_r8_a_quit_that_got_lost_is_not_taken_for_done(either: Place) -> None:
    daemon = either.start()
    with subprocess.Popen((either.program,), env=either.environment, stdin=subprocess.PIPE) as holder:
        while "NEW UI" not in (either.logs / "control.log").read_text():
            assert holder.poll() is None
        with ThreadPoolExecutor(1) as thread:
            told = thread.submit(either.channel.quit, 5)
            assert process.is_alive(daemon.identity)
            assert holder.stdin is not None
            holder.stdin.close()
            assert told.result()
    assert process.end(daemon.identity, 30, 0)


def test_r8_parallel_questions_outside_the_channel_are_right_or_lost(either: Place) -> None:
    either.start()

    def attempt(_: int) -> str | None:
        try:
            return raw(either, "get_default_active_thread_percentage")
        except Incomplete:
            return None

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(attempt, range(8)))
    print(f"{answers.count(None)} of {len(answers)} answers were lost")
    assert set(answers) <= {"100.0", None}


def test_r9_a_pipe_directory_that_is_too_long_or_missing_is_no_place(either: Place) -> None:
    deep = either.base / ("x" * (88 - len(str(either.base)) - 1))
    deep.mkdir()
    assert len(str(deep)) == 88
    done = either.run("-d", CUDA_MPS_PIPE_DIRECTORY=str(deep))
    assert (done.returncode, done.stdout) == (1, "")
    done = either.run("-d", CUDA_MPS_PIPE_DIRECTORY="/nowhere/at-all")
    assert done.returncode == 1
    assert "CUDA_MPS_PIPE_DIRECTORY=/nowhere/at-all" in done.stdout + done.stderr


def test_r11_after_the_directory_was_recreated_a_second_daemon_starts(either: Place) -> None:
    first = either.start()
    shutil.rmtree(either.pipe)
    either.pipe.mkdir()
    with pytest.raises(NoDaemon):
        either.channel.ask("get_server_list")
    assert either.run("-d").returncode == 0
    assert len(either.daemons()) == 2
    assert first.identity in {found.identity for found in either.daemons()}


def test_r12_a_full_log_disk_does_not_keep_it_from_working(either: Place) -> None:
    (either.logs / "control.log").symlink_to("/dev/full")
    (either.logs / "server.log").symlink_to("/dev/full")
    either.start()
    assert default_percentage(either.channel) == 100.0


def test_r13_quit_ends_it_and_leaves_its_sockets(either: Place) -> None:
    daemon = either.start()
    assert (either.pipe / "log").exists()
    assert either.channel.quit(2)
    assert process.end(daemon.identity, 30, 0)
    assert not (either.pipe / "log").exists()
    assert (either.pipe / "control").exists()
    with pytest.raises(NoDaemon):
        either.channel.quit(2)


def test_a_wedged_daemon_is_told_from_none_and_found_again_afterwards(either: Place) -> None:
    daemon = either.start()
    freeze(daemon.identity)
    with pytest.raises(Wedged):
        impatient(either).ask("get_server_list")
    os.kill(daemon.identity.pid, signal.SIGCONT)
    assert either.channel.server_list() == ()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: it asks as another user")
def test_r17_another_user_is_refused_in_words(either: Place) -> None:
    either.start()
    for folder in (either.base, either.base / "mps", either.pipe):
        folder.chmod(0o755)
    program = str(STUB / "bin" / CONTROL) if either.is_stub else either.program
    try:
        done = subprocess.run(
            (program,),
            input="start_server -uid 4711\nquit\n",
            env={**either.environment, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            user=4711,
            timeout=within_s(30),
            check=False,
        )
    except PermissionError:
        pytest.skip(f"another user may not enter the folder of {program}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "rivilege" in done.stdout
    until_s = time.monotonic() + TIMEOUT_S
    while len(either.daemons()) > 1 and time.monotonic() < until_s:
        time.sleep(0.01)  # The genuine front end leaves a child behind, which lives for a moment.
    assert len(either.daemons()) == 1


def test_a_daemon_that_is_asked_for_version_2_of_the_interface_starts(either: Place) -> None:
    """Older programs know no versions, and do not mind."""
    either.start(**{PROTOCOL_VERSION: "2"})
    assert either.channel.server_list() == ()


def test_the_daemon_is_known_by_its_arguments_and_environment(either: Place) -> None:
    found = either.start(COTENANT_MPS_OWNER="agent-7")
    assert (found.uid, found.pipe_directory, found.owner) == (os.getuid(), str(either.pipe), "agent-7")


def test_the_stub_says_that_it_is_one(place: Place) -> None:
    assert "fake" in place.run("-v").stdout
    place.start()
    assert "fake" in (place.logs / "control.log").read_text()
