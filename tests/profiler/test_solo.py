"""The measured run, with jobs of a few lines that speak the job-side protocol or do not.

Their step times are waits of known length and their memory is a block of known size, so the numbers can
be checked.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest

from cotenant.profiler.ranks import RankCommand, Seat
from cotenant.profiler.run import ProfileFailed, RunPlan, RunProgress
from cotenant.profiler.solo import measure_solo
from tests.building.limits import within_s

SEAT = Seat(cores=(min(os.sched_getaffinity(0)),))
QUICK = RunPlan(measured_s_min=0.3, deadline_s=within_s(60.0))

SPEAKING = """
import json, os, socket, sys, time

accumulates = sys.argv[1] == "accumulates"
rank = int(os.environ["RANK"])
turns = [tuple(map(int, part.split(":"))) for part in os.environ["COTENANT_ACCUMULATION_SCHEDULE"].split(",")]
line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
line.connect(os.environ["COTENANT_SOCKET"])

def say(name, **fields):
    line.send(json.dumps({"v": 1, "m": name, "rank": rank, **fields}).encode())

line.send(b"not a datagram of ours")
held = 0
say("hello", world_size=1, resumable=True, accumulates=accumulates, step=0)
for step in range(1, 100000):
    s = [s for start, s in turns if start < step][-1] if accumulates else 1
    began_s = time.monotonic()
    if s != held:
        held, block = s, bytearray(128 * 1024 * 1024 // s)
    for _ in range(s):
        time.sleep(0.03)
    if step == 1:
        say("first_step", step=1)
    say("step", step=step, count=1, elapsed_s=time.monotonic() - began_s, s=s, loss=None)
"""
BUSY = "import time\nwhile time.monotonic_ns(): pass"
"""Only a kill ends it."""
GRANDCHILD = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {BUSY!r}], start_new_session=True)
raise SystemExit("crashed on purpose")
"""


def command(code: str, *arguments: str, folder: Path) -> RankCommand:
    env = {name: os.environ[name] for name in ("PATH", "COTENANT_TEST_RUN") if name in os.environ}
    return RankCommand(argv=(sys.executable, "-c", code, *arguments), workdir=str(folder), env=env)


def test_step_time_and_memory_at_each_sub_batch(tmp_path: Path) -> None:
    stages: list[RunProgress] = []
    run = measure_solo(
        command(SPEAKING, "accumulates", folder=tmp_path), [SEAT], plan=QUICK, progress=stages.append
    )
    half, whole = run.points
    assert (half.accumulation_steps, whole.accumulation_steps) == (2, 1)
    assert half.step_s > whole.step_s >= 0.03
    assert whole.memory_mib - half.memory_mib > 50
    assert run.memory_mib_peak >= whole.memory_mib
    assert min(half.steps, whole.steps) >= QUICK.steps_min
    assert 0.0 < run.load_s < run.wall_s
    assert 0.0 <= run.duty_cycle < 0.9
    assert stages[-1].stage == "done"

    profile = run.profile(batch_size=33)
    assert [point.sub_batch for point in profile.points] == [17, 33]
    assert profile.source == "cpu"
    assert profile.steps == half.steps + whole.steps


def test_a_job_that_does_not_accumulate_is_measured_whole(tmp_path: Path) -> None:
    run = measure_solo(command(SPEAKING, "never", folder=tmp_path), [SEAT], plan=QUICK)
    assert [point.accumulation_steps for point in run.points] == [1]
    assert any("does not accumulate" in note for note in run.notes)


def test_two_ranks_are_one_gang(tmp_path: Path) -> None:
    run = measure_solo(command(SPEAKING, "accumulates", folder=tmp_path), [SEAT, SEAT], plan=QUICK)
    assert len(run.points) == 2
    # Memory is that of the rank that needs most, not of both together.
    assert run.memory_mib_peak < 2 * 128


def test_a_plain_script_still_gets_duty_cycle_and_memory(tmp_path: Path) -> None:
    plan = RunPlan(hello_timeout_s=0.3, blind_s=1.0, deadline_s=within_s(60.0))
    run = measure_solo(command(BUSY, folder=tmp_path), [SEAT], plan=plan)
    assert run.points == ()
    assert math.isnan(run.load_s)
    assert run.duty_cycle > 0.8
    assert run.memory_mib_peak > 1
    assert any("does not use the job-side library" in note for note in run.notes)
    assert run.profile(batch_size=8).load_s is None


def test_a_job_that_ends_early_gives_what_was_seen(tmp_path: Path) -> None:
    code = "block = bytearray(40 * 1024 * 1024)\nimport time\ntime.sleep(0.2)"
    run = measure_solo(command(code, folder=tmp_path), [SEAT], plan=QUICK)
    assert run.memory_mib_peak > 40
    assert any("ended by itself" in note for note in run.notes)


def test_the_deadline_ends_a_job_that_never_steps(tmp_path: Path) -> None:
    run = measure_solo(command(BUSY, folder=tmp_path), [SEAT], plan=RunPlan(deadline_s=0.5))
    assert any("deadline of 0.5 s" in note for note in run.notes)


def test_a_crash_is_told_with_the_last_line_and_takes_its_descendants_along(tmp_path: Path) -> None:
    """That the grandchild is gone is checked by the module's own fixture."""
    with pytest.raises(ProfileFailed, match=r"rank 0 exited with code 1 .*crashed on purpose"):
        measure_solo(command(GRANDCHILD, folder=tmp_path), [SEAT], plan=QUICK)


def test_a_killed_rank_is_told_by_its_signal(tmp_path: Path) -> None:
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"
    with pytest.raises(ProfileFailed, match="ended by signal 11"):
        measure_solo(command(code, folder=tmp_path), [SEAT], plan=QUICK)


def test_an_interrupted_measurement_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(_: RunProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_solo(command(BUSY, folder=tmp_path), [SEAT, SEAT], plan=QUICK, progress=interrupt)


@pytest.mark.parametrize("what", ["command", "folder"])
def test_what_cannot_start_is_refused_in_one_line(what: str, tmp_path: Path) -> None:
    argv = ("/nowhere/train",) if what == "command" else (sys.executable, "-c", "pass")
    folder = tmp_path if what == "command" else tmp_path / "missing"
    with pytest.raises(ProfileFailed, match=r"cannot start: No such file.*check command and folder"):
        measure_solo(RankCommand(argv=argv, workdir=str(folder), env={}), [SEAT])
