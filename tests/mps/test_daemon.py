"""One owner and its daemon, through everything that can happen to the two; nearly all on the stub."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from cotenant.mps import process
from cotenant.mps.answers import answer_before_sentinel, query
from cotenant.mps.channel import ControlChannel, LockBusy, lock_path
from cotenant.mps.daemon import Daemon, sweep
from cotenant.mps.environment import PIPE_DIRECTORY
from cotenant.mps.ownership import LOG_NAMES, SUFFIX, Owned, Spec, bound_logs
from cotenant.mps.process import CONTROL
from cotenant.mps.server_trial import NOT_READY, NOT_STARTED, PAUSES_S, ServerTrial
from cotenant.mps.servers import DaemonStatus
from cotenant.profiler.driver import process_info
from tests.mps.conftest import HAS_DRIVER, STUB, TIMEOUT_S, Place, default_percentage, freeze

UUID, OTHER = (f"GPU-{digit * 8}-2222-3333-4444-555555555555" for digit in "12")
NO_GPU = "its MPS server does not start: Failed to start : no CUDA-capable device is detected"


class Observant(ControlChannel):
    """Does not wait long for an answer of a daemon that the test has stopped, and very long for any other."""

    def ask(self, command: str) -> str:
        self._observe()
        return super().ask(command)

    def quit(self, timeout_s: float) -> bool:
        self._observe()
        return super().quit(timeout_s)

    def _observe(self) -> None:
        pids = [
            each.identity.pid
            for each in process.look_around().daemons
            if each.pipe_directory == str(self.pipe_directory)
        ]
        stopped = [pid for pid in pids if ") T " in Path(f"/proc/{pid}/stat").read_text()]
        self.answer_s = 0.1 if stopped else 30.0


class AsksOnce(ControlChannel):
    """Does not ask again where an answer is none: it would be the same."""

    def _ask_until(self, command: str, deadline_s: float) -> str:
        sentinel = "end-of-answer-0000"
        return answer_before_sentinel(self._front_end(query(command, sentinel), deadline_s).stdout, sentinel)


class Owner:
    """A daemon's owner with a clock of its own, in which long stretches pass between looks."""

    def __init__(self, place: Place, **changes: Any) -> None:
        self.now_s = 0.0
        self.is_stub = place.is_stub
        fields: dict[str, Any] = {
            "pipe_directory": PurePosixPath(place.pipe),
            "log_directory": PurePosixPath(place.logs),
            "devices": (UUID,),
            "owner": "agent-7",
            "percentage": 60.0,
            "program": place.program,
        }
        self.spec = Spec(**{**fields, **changes})
        self.daemon = self.again()

    def again(self) -> Daemon:
        """Its next life."""
        channel = Observant(pipe_directory=self.spec.pipe_directory, program=self.spec.program)
        return Daemon(self.spec, clock=lambda: self.now_s, channel=channel)

    def look(self, *, in_use: bool = False) -> DaemonStatus:
        """NVIDIA's servers never start without a GPU, and all the rest of its daemon works."""
        self.now_s += 100.0
        seen = self.daemon.look(in_use=in_use)
        if not self.is_stub and seen.why_not.startswith(NOT_STARTED):
            return replace(seen, shares=True, why_not="")
        return seen


@pytest.fixture
def owner(place: Place) -> Iterator[Owner]:
    """Of the stub's daemon, whose servers and clients a test makes."""
    made = Owner(place)
    yield made
    made.daemon.release()


@pytest.fixture
def keeper(best: Place) -> Iterator[Owner]:
    made = Owner(best)
    yield made
    made.daemon.release()


@pytest.fixture
def client() -> Iterator[subprocess.Popen[bytes]]:
    """A process that can stand for a job's."""
    with subprocess.Popen(("sleep", "1000")) as process:
        yield process
        process.kill()


def identity(standing: DaemonStatus) -> process.MpsProcessIdentity:
    assert standing.daemon is not None, standing
    return standing.daemon


def test_the_first_look_starts_it_with_our_settings_and_the_second_changes_nothing(
    keeper: Owner, best: Place
) -> None:
    first = keeper.look()
    assert (first.shares, first.why_not) == (True, "")
    (found,) = best.daemons()
    assert first.daemon == found.identity
    assert found.owner == "agent-7"
    assert "started" in first.said[0]
    environment = process.environment_of(found.identity.pid) or {}
    assert environment["CUDA_VISIBLE_DEVICES"] == UUID
    assert default_percentage(best.channel) == 60.0
    second = keeper.look()
    assert (second.daemon, second.said, second.shares) == (first.daemon, (), True)


def test_killed_it_is_started_again_with_its_settings_and_that_is_said(keeper: Owner, best: Place) -> None:
    first = keeper.look()
    assert process.end(identity(first), 10)
    second = keeper.look(in_use=True)
    assert second.shares
    assert identity(second) != identity(first)
    assert "started again, since no daemon runs" in second.said[0]
    assert default_percentage(best.channel) == 60.0


def test_one_that_ends_at_once_is_not_started_in_a_circle(keeper: Owner) -> None:
    assert process.end(identity(keeper.look()), 10)
    at_once = keeper.daemon.look(in_use=False)
    assert (at_once.shares, at_once.daemon) == (False, None)
    assert "ended soon after it was started" in at_once.why_not
    assert keeper.look().shares


def test_one_that_speaks_another_version_of_the_interface_is_left_with_a_reason(
    place: Place, owner: Owner
) -> None:
    """What one of version 3 says to version 2's questions is not documented: no words are relied on."""
    place.tell(foreign="error: unrecognized command")
    owner.daemon.release()
    channel = AsksOnce(pipe_directory=owner.spec.pipe_directory, program=place.program, answer_s=30.0)
    owner.daemon = Daemon(owner.spec, clock=lambda: owner.now_s, channel=channel)
    seen = owner.look()
    assert not seen.shares
    assert "does not answer as version 2 of the control interface does" in seen.why_not
    assert "error: unrecognized command" in seen.why_not
    place.tell()
    assert owner.look().shares, "and it is asked again"


def test_wedged_it_is_replaced_by_identity_but_never_under_running_jobs(keeper: Owner) -> None:
    first = keeper.look()
    freeze(identity(first))
    assert "did not answer just now" in keeper.look(in_use=True).why_not
    waits = keeper.look(in_use=True)
    assert not waits.shares
    assert "until the jobs on its devices have ended" in waits.why_not
    assert process.is_alive(identity(first))
    renewed = keeper.look()
    assert renewed.shares
    assert "since it does not answer" in renewed.said[0]
    assert not process.is_alive(identity(first))


def test_one_that_answers_again_shares_again(keeper: Owner) -> None:
    first = keeper.look()
    freeze(identity(first))
    assert not keeper.look(in_use=True).shares
    os.kill(identity(first).pid, signal.SIGCONT)
    assert keeper.look(in_use=True).shares


def test_its_directory_made_anew_it_is_found_all_the_same_and_replaced_when_idle(
    keeper: Owner, best: Place
) -> None:
    first = keeper.look()
    shutil.rmtree(best.pipe)
    assert "removed or made anew" in keeper.look(in_use=True).why_not
    best.pipe.mkdir()
    assert "removed or made anew" in keeper.look(in_use=True).why_not
    assert [found.identity for found in best.daemons()] == [first.daemon], "no second one beside it"
    second = keeper.look()
    assert second.shares
    assert [found.identity for found in best.daemons()] == [second.daemon]


def test_a_strangers_daemon_in_our_directory_is_named_and_left_alone(best: Place) -> None:
    stranger = best.start()
    owner = Owner(best)
    seen = owner.look()
    owner.daemon.release()
    assert not seen.shares
    assert f"pid {stranger.identity.pid} of uid {os.getuid()}" in seen.why_not
    assert process.is_alive(stranger.identity)
    assert default_percentage(best.channel) == 100.0


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: starts a process of another account")
def test_a_process_of_another_account_that_looks_like_our_daemon_is_none(
    keeper: Owner, best: Place, tmp_path: Path
) -> None:
    """It has our mark and our pipe directory in its environment, and looks like root's: /proc/PID is root's
    where a process may not read its own program."""
    first = keeper.look()
    assert first.shares
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        shell = shutil.copy("/bin/sh", name)
        os.chmod(shell, 0o711)
        with subprocess.Popen(
            [shell, "-c", "echo up; read x", process.CONTROL, "-d"],
            env={PIPE_DIRECTORY: str(best.pipe), process.OWNER_MARK: "agent-7"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            user=54_321,
            extra_groups=[],
        ) as pretender:
            assert pretender.stdout is not None
            pretender.stdout.readline()
            (found,) = (each for each in best.daemons() if each.identity.pid == pretender.pid)
            assert (found.uid, found.owner) == (54_321, "agent-7")
            assert process_info.user(pretender.pid) == "uid 54321"
            assert keeper.look(in_use=True).daemon == first.daemon
            assert keeper.look(in_use=True).shares
            pretender.kill()


USER, STRANGER = 54_321, 54_322


def ask_as(uid: int, place: Place, command: str) -> str:
    program = str(STUB / "bin" / CONTROL) if place.is_stub else place.program
    try:
        done = subprocess.run(
            (program,),
            input=f"{command}\n",
            env={**place.environment, "PATH": "/usr/local/bin:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            user=uid,
            group=uid,
            extra_groups=[],
            timeout=TIMEOUT_S,
            check=False,
        )
    except PermissionError:
        pytest.skip(f"another user may not enter the folder of {program}")
    return done.stdout + done.stderr


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it asks as other users")
def test_a_users_daemon_is_reached_by_that_user_alone_whatever_the_umask_is(either: Place) -> None:
    either.base.chmod(0o711)
    either.pipe = either.base / "run" / "mps" / "1"
    umask = os.umask(0o077)
    try:
        owner = Owner(either, client_uid=USER)
        assert owner.look().daemon is not None
    finally:
        os.umask(umask)
    for command in (
        "set_default_active_thread_percentage 10",
        "set_default_device_pinned_mem_limit 0 1G",
        f"start_server -uid {STRANGER}",
    ):
        assert "Cannot find MPS control daemon process" in ask_as(STRANGER, either, command)
    assert ask_as(USER, either, "get_default_active_thread_percentage") == "60.0\n"
    assert either.pipe.stat().st_uid == 0, "else its owner has root's daemon write through a link"
    if not either.is_stub:  # The server, which has the user's rights, comes through and says so.
        assert either.channel.ask(f"start_server -uid {USER}") == ""
        until_s = time.monotonic() + TIMEOUT_S
        while "Connecting to control daemon" not in (said := last_of(either)) and time.monotonic() < until_s:
            time.sleep(0.01)
        assert "Connecting to control daemon" in said
    either.base.chmod(0o700)
    assert process.end(identity(owner.look()), 10)
    assert f"{either.base} is closed to uid {USER}" in owner.look().why_not
    owner.daemon.release()


def last_of(place: Place) -> str:
    log = place.logs / "server.log"
    return log.read_text() if log.exists() else ""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: daemons for other users")
@pytest.mark.parametrize(("client", "mode"), [(None, 0o755), (0, 0o700), (USER, 0o750)])
def test_whom_a_pipe_directory_of_roots_lets_in(place: Place, client: int | None, mode: int) -> None:
    place.base.chmod(0o711)
    place.pipe.chmod(0o777)
    owner = Owner(place, client_uid=client)
    owner.look()
    assert stat.S_IMODE(place.pipe.stat().st_mode) == mode
    for uid in (USER, STRANGER):
        enters = subprocess.run(("test", "-x", place.pipe), user=uid, group=uid, extra_groups=[], check=False)
        assert (enters.returncode == 0) == (client in (None, uid))
    owner.daemon.release()


def test_only_its_owner_can_keep_others_from_asking_a_daemon(keeper: Owner, best: Place) -> None:
    keeper.look()
    assert default_percentage(best.channel) == 60.0
    for suffix in (".lock", SUFFIX):
        assert stat.S_IMODE((best.pipe.parent / f"{best.pipe.name}{suffix}").stat().st_mode) == 0o600


def test_a_second_daemon_beside_ours_takes_both_out_of_sharing(keeper: Owner, best: Place) -> None:
    first = keeper.look()
    shutil.rmtree(best.pipe)
    best.pipe.mkdir()
    best.run("-d", COTENANT_MPS_OWNER="agent-7")
    assert len(best.daemons()) == 2
    assert "two daemons" in keeper.look(in_use=True).why_not
    second = keeper.look()
    assert second.shares
    assert len(best.daemons()) == 1
    assert not process.is_alive(identity(first))


def test_two_owners_of_one_directory_are_one_too_many(keeper: Owner) -> None:
    keeper.look()
    with pytest.raises(Owned, match=f"belongs to pid {os.getpid()} of uid {os.getuid()}"):
        keeper.again()


def test_the_next_life_of_its_owner_goes_on_with_it(keeper: Owner, best: Place) -> None:
    first = keeper.look()
    keeper.daemon.release()
    keeper.daemon = keeper.again()
    second = keeper.look(in_use=True)
    assert second.shares
    assert second.daemon == first.daemon
    assert second.said == (f"goes on with its MPS daemon ({best.daemons()[0]}) in {best.pipe}",)


def test_it_is_known_again_by_its_mark_where_its_record_was_lost(keeper: Owner, best: Place) -> None:
    first = keeper.look()
    keeper.daemon.release()
    (best.pipe.parent / f"{best.pipe.name}.owner").write_text("{ torn")
    keeper.daemon = keeper.again()
    assert keeper.look().daemon == first.daemon


def test_stopped_it_is_gone_with_its_servers(
    owner: Owner, place: Place, client: subprocess.Popen[bytes]
) -> None:
    place.tell(gpu=True, clients=[client.pid])
    owner.look()
    (server,) = owner.look().servers
    assert [each.pid for each in server.clients] == [client.pid]
    assert owner.daemon.stop(1.0) == ""
    assert (place.daemons(), place.servers()) == ([], [])


def test_a_wedged_one_is_stopped_too(keeper: Owner, best: Place) -> None:
    freeze(identity(keeper.look()))
    assert keeper.daemon.stop(0.1) == ""
    assert best.daemons() == []


def test_what_its_owner_has_no_use_for_any_more_is_ended_and_nothing_else(keeper: Owner, best: Place) -> None:
    """Another mode, say: its pipe directories are not those of now."""
    keeper.look()
    folder = PurePosixPath(best.pipe.parent)
    assert sweep(folder, "agent-7", (), program=best.program) == [], "its owner lives"
    keeper.daemon.release()
    assert sweep(folder, "agent-8", (), program=best.program) == []
    assert sweep(folder, "agent-7", (PurePosixPath(best.pipe),), program=best.program) == []
    assert len(best.daemons()) == 1
    assert "not needed any more" in sweep(folder, "agent-7", (), program=best.program)[0]
    assert best.daemons() == []
    keeper.daemon = keeper.again()


# --- What it serves --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "devices"),
    [((UUID,), (UUID, OTHER)), ((UUID, OTHER), (OTHER,)), ((UUID, OTHER), (OTHER, UUID))],
    ids=["one was added", "one was lost", "another order"],
)
def test_one_with_other_devices_shares_those_while_it_is_in_use_and_is_replaced_when_idle(
    best: Place, before: tuple[str, ...], devices: tuple[str, ...]
) -> None:
    first = Owner(best, devices=before)
    old = first.look()
    first.daemon.release()
    owner = Owner(best, devices=devices)
    used = owner.look(in_use=True)
    assert (used.shares, used.daemon, used.serves) == (True, old.daemon, before)
    renewed = owner.look()
    assert (renewed.shares, renewed.serves) == (True, devices)
    assert "since it serves other devices" in renewed.said[0]
    assert not process.is_alive(identity(old))
    owner.daemon.release()


@pytest.mark.parametrize("limit", [False, True])
def test_one_of_another_driver_or_with_limits_of_others_takes_no_new_clients(
    best: Place, limit: bool
) -> None:
    first = Owner(best, driver="580.65")
    old = first.look()
    first.daemon.release()
    if limit:
        best.channel.ask("set_default_device_pinned_mem_limit 0 1G")
    owner = Owner(best, driver="580.65" if limit else "580.95")
    used = owner.look(in_use=True)
    assert (used.shares, used.daemon) == (False, old.daemon)
    assert "another driver, or has memory limits that are not ours" in used.why_not
    renewed = owner.look()
    assert (renewed.shares, identity(renewed) != identity(old)) == (True, True)
    assert best.channel.ask("get_default_device_pinned_mem_limit 0") == ""
    owner.daemon.release()


# --- Whether servers start -------------------------------------------------------------------------


def starts(place: Place) -> int:
    return (place.logs / "control.log").read_text().count("Starting new server")


def test_where_no_server_starts_it_is_not_shared_and_the_server_says_why(either: Place) -> None:
    """NVIDIA's own program says these very words where there is no GPU."""
    if not either.is_stub and HAS_DRIVER:
        pytest.skip("a server starts here")
    either.tell(gpu=False)
    owner = Owner(either)
    tried = [0]
    for owner.now_s in (0.0, 0.0, 29.0, 31.0, 90.0, 92.0):
        seen = owner.daemon.look(in_use=owner.now_s > 0)
        assert (seen.shares, seen.why_not) == (False, NO_GPU)
        tried.append(starts(either))  # A question whose answer was lost was asked again.
    more = [after > before for before, after in pairwise(tried)]
    assert more == [True, False, False, True, False, True], "after a pause, which doubles"
    if either.is_stub:
        either.tell()
        owner.now_s = 600.0
        assert owner.look().shares
    owner.daemon.release()


@pytest.mark.parametrize("driver", [550, 535])
def test_a_server_that_was_seen_to_work_is_ended_unless_a_job_is_about_to_use_it(
    place: Place, driver: int
) -> None:
    place.tell(driver=driver)
    for in_use in (False, True):
        owner = Owner(place)
        assert owner.look(in_use=in_use).shares
        assert len(place.channel.server_list()) == in_use
        assert owner.look(in_use=in_use).shares
        assert starts(place) == 1 + in_use
        owner.daemon.stop(1.0)
        owner.daemon.release()


def test_a_server_that_exits_with_an_error_ends_sharing_until_another_works(
    owner: Owner, place: Place
) -> None:
    assert owner.look(in_use=True).shares
    (server,) = place.servers()
    assert process.end(server.identity, 10)
    assert starts(place) == 1
    ended = owner.look(in_use=True)
    assert (ended.shares, ended.why_not) == (
        False,
        f"its MPS server (pid {server.identity.pid}) exited with status 1",
    )
    assert owner.look(in_use=True).shares
    assert starts(place) == 2


def test_a_server_that_does_not_become_ready_is_waited_for_and_no_longer(owner: Owner, place: Place) -> None:
    place.tell(starts=True)
    place.start()
    pauses: list[float] = []
    trial = ServerTrial(place.channel, owner.spec, pause=pauses.append)
    trial.look(0.0, in_use=False)
    assert (trial.why_not, tuple(pauses)) == (NOT_READY, PAUSES_S)
    place.tell()
    trial.look(31.0, in_use=False)
    assert (trial.why_not, place.channel.server_list()) == ("", ())


# --- Servers ---------------------------------------------------------------------------------------


def test_a_server_that_was_there_before_us_gets_our_settings(
    owner: Owner, place: Place, client: subprocess.Popen[bytes]
) -> None:
    owner.look()
    place.tell(gpu=True, clients=[client.pid])
    (server,) = owner.look(in_use=True).servers
    place.channel.set_percentage(server.identity.pid, 33)
    owner.daemon.release()
    owner.daemon = owner.again()
    assert owner.look(in_use=True).shares
    assert place.channel.server_percentage(server.identity.pid) == 60.0


def test_a_fault_is_told_and_nobody_joins_until_all_clients_have_gone(
    owner: Owner, place: Place, client: subprocess.Popen[bytes]
) -> None:
    place.tell(gpu=True, clients=[client.pid])
    owner.look()
    assert not owner.look(in_use=True).in_fault
    place.tell(gpu=True, clients=[client.pid], fault=True)
    ill = owner.look(in_use=True)
    assert ill.in_fault
    assert (ill.shares, ill.why_not) == (False, "its MPS server is in FAULT: every client has to end first")
    client.kill()
    client.wait()
    assert owner.daemon.look(in_use=False).shares, "it is asked at every look until it is well again"


def test_a_server_that_stays_in_fault_without_clients_is_ended(
    owner: Owner, place: Place, client: subprocess.Popen[bytes]
) -> None:
    place.tell(gpu=True, clients=[client.pid])
    owner.look()
    place.tell(gpu=True, stuck=True)
    assert "stays in FAULT" in owner.look().said[0]
    place.tell(gpu=True)
    assert owner.look().shares
    assert place.servers() == []


def test_a_server_that_goes_under_its_clients_is_a_fault(
    owner: Owner, place: Place, client: subprocess.Popen[bytes]
) -> None:
    place.tell(gpu=True, clients=[client.pid])
    owner.look()
    (server,) = owner.look(in_use=True).servers
    place.tell(gpu=False)
    assert process.end(server.identity, 10)
    (loss,) = owner.look(in_use=True).losses
    assert loss == f"its MPS server (pid {server.identity.pid}) went away under 1 clients"


def test_jobs_on_the_server_of_a_dead_daemon_keep_it_and_it_goes_after_them(
    owner: Owner, place: Place, client: subprocess.Popen[bytes]
) -> None:
    place.tell(gpu=True, clients=[client.pid])
    owner.look()
    first = owner.look(in_use=True)
    place.tell(gpu=True)
    assert process.end(identity(first), 10)
    second = owner.look(in_use=True)
    assert not second.shares
    assert "whose daemon is gone" in second.why_not
    assert process.is_alive(first.servers[0].identity)
    assert owner.look().shares
    assert not process.is_alive(first.servers[0].identity)


def test_a_driver_that_cannot_tell_a_servers_state_is_served_as_well(
    owner: Owner, place: Place, client: subprocess.Popen[bytes]
) -> None:
    place.tell(gpu=True, clients=[client.pid], driver=535)
    owner.look()
    seen = owner.look(in_use=True)
    assert seen.shares
    assert seen.servers[0].state is None


# --- Disks -----------------------------------------------------------------------------------------


def test_a_full_log_disk_keeps_nobody_from_sharing(best: Place) -> None:
    for name in LOG_NAMES:
        (best.logs / name).symlink_to("/dev/full")
    owner = Owner(best)
    assert owner.look().shares
    owner.daemon.release()


def test_a_log_folder_that_cannot_be_made_is_a_warning(best: Place) -> None:
    (best.base / "file").touch()
    owner = Owner(best, log_directory=PurePosixPath(best.base / "file" / "log"))
    seen = owner.look()
    owner.daemon.release()
    assert seen.shares
    assert "logs cannot be kept" in seen.said[1]


def test_logs_are_cut_in_place_while_it_writes_them(keeper: Owner, best: Place) -> None:
    keeper.look()
    log = best.logs / "control.log"
    log.write_bytes(b"x" * 10_000)
    bound_logs(PurePosixPath(best.logs), bytes_max=5_000)
    for _ in range(
        2
    ):  # It may answer before it writes its line, and not before it has written the one before.
        best.channel.server_list()
    assert log.read_text().startswith("["), "it goes on at the start, not behind a hole"
    assert (best.logs / "control.log.old").stat().st_size == 10_000


def test_a_program_that_does_not_start_is_quoted_and_tried_again_later(place: Place) -> None:
    program = place.base / "nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 1\n")
    program.chmod(0o755)
    owner = Owner(place, program=str(program))
    seen = owner.look()
    owner.daemon.release()
    assert not seen.shares
    assert "did not start: no such luck" in seen.why_not


# --- Turns -----------------------------------------------------------------------------------------

ASKER = """
import sys
from pathlib import Path, PurePosixPath
from cotenant.mps.channel import ControlChannel
channel = ControlChannel(pipe_directory=PurePosixPath(sys.argv[1]), program=sys.argv[2],
    answer_s=60, lock_wait_s=60)
print([float(channel.ask("get_default_active_thread_percentage")) for _ in range(2)])
"""


def test_questions_of_eight_processes_are_all_answered(best: Place) -> None:
    """The same, without turns, loses answers: see the contract's R8."""
    best.start()
    command = (sys.executable, "-c", ASKER, str(best.pipe), best.program)
    askers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    assert [asker.communicate()[0] for asker in askers] == ["[100.0, 100.0]\n"] * 8


def test_who_never_gets_a_turn_is_told_so_once_with_who_holds_the_lock(keeper: Owner, best: Place) -> None:
    keeper.look()
    command = ("flock", str(lock_path(PurePosixPath(best.pipe))), "sh", "-c", "echo mine; exec sleep 1000")
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        waiting = ControlChannel(
            pipe_directory=PurePosixPath(best.pipe), program=best.program, lock_wait_s=0.05
        )
        with pytest.raises(LockBusy, match=f"held all the time .by pid {holder.pid}"):
            waiting.ask("get_server_list")
        keeper.daemon._channel.lock_wait_s = 0.05
        (note,) = keeper.look().said
        assert f"{lock_path(PurePosixPath(best.pipe))} is held all the time (by pid {holder.pid}" in note
        assert (keeper.look().said, keeper.look().shares) == ((), True)
        os.killpg(holder.pid, signal.SIGKILL)
    assert best.channel.server_list() == ()


# --- The genuine program ---------------------------------------------------------------------------


def test_killed_wedged_displaced_and_stopped(either: Place) -> None:
    """The whole life, also of NVIDIA's own daemon where it is installed."""
    owner = Owner(either)
    first = owner.look()
    assert first.shares, first
    assert process.end(identity(first), 10)
    second = owner.look(in_use=True)
    assert (second.shares, identity(second) != identity(first)) == (True, True)
    freeze(identity(second))
    owner.look(in_use=False)
    third = owner.look()
    assert "since it does not answer" in third.said[0]
    shutil.rmtree(either.pipe)
    fourth = owner.look()
    assert "made anew" in fourth.said[0]
    assert [found.identity for found in either.daemons()] == [fourth.daemon]
    assert owner.daemon.stop(2.0) == ""
    assert either.daemons() == []
    owner.daemon.release()
