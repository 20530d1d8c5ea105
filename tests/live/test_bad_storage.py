"""Disks, files and clocks that misbehave: the user is told, the job goes on, and nothing is silently lost."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.person import PATIENCE_S, SAY, Person, at_home, when

DISK_MIB = 16
TRAINER = """
import os, time, torch
from cotenant import checkpoint

torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Linear(512, 512)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
state = checkpoint.Session(net, optimizer)
print(f"begins at step {state.step}", flush=True)
while not os.path.exists("finish"):
    optimizer.zero_grad()
    net(torch.ones(1, 512)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
    state.step_done()
print("trained", flush=True)
"""


def mount(*words: str) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")


def remount(disk: Path, how: str) -> None:
    """Read-only it cannot be as long as a failed save's file is still open."""
    words = ("mount", "-o", f"remount,{how}", str(disk))
    when(lambda: subprocess.run(words, capture_output=True).returncode == 0, lambda: f"cannot {words}")


@pytest.fixture
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of its own, which can be filled and made read-only."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path_factory.mktemp("disk")
    mount("-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=755", "tmpfs", str(place))
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.root
def test_a_job_and_its_checkpoints_on_a_bad_disk(
    small_disk: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = {"agent__devices": "cpu:1", "agent__heartbeat_s": "0.3", "checkpoint__root": str(small_disk)}
    with at_home(tmp_path_factory.mktemp("p"), **settings) as person:
        person.write("train.py", TRAINER)
        job = person.submit("--", sys.executable, "train.py")
        person.until(job, trains)
        first = save(person, job)
        full_or_read_only(person, job, small_disk)
        assert person.job(job)["durable_step"] == first, "what failed does not count as saved"
        second = save(person, job)
        assert second > first

        # The newest is cut short while the job waits: it goes on from the one before.
        stop(person, job)
        stopped = person.job(job)["durable_step"]
        newest, older = checkpoints(small_disk, job)[:2]
        damaged = max((path for path in newest.iterdir()), key=lambda path: path.stat().st_size)
        os.truncate(damaged, damaged.stat().st_size // 2)
        host = go_on(person)
        text = when(lambda: t if "begins at" in (t := attempt(person, job, 2)) else None)
        step = int(older.name.rpartition("-s")[2])
        assert 0 < step < stopped
        assert f"begins at step {step}\n" in text
        assert f"{newest.name} skipped: " in text and damaged.name in text
        person.until(job, trains)

        # A bit flips in every one: that is an error which shows, and never a fresh start.
        stop(person, job)
        for folder in checkpoints(small_disk, job):
            flip(max((path for path in folder.iterdir()), key=lambda path: path.stat().st_size))
        assert person("nodes", "resume", host).code == 0
        found = person.until_state(job, "failed")
        text = attempt(person, job, 3)
        assert "begins at" not in text
        assert "going back to step 0 would lose the training so far" in text
        assert "no checkpoint in" in found["reason"], found["reason"]
        assert "can be used" in person("explain", job).out
        assert person.free_devices() == 1


def full_or_read_only(person: Person, job: str, disk: Path) -> None:
    """Neither ends the job; its output says what is wrong, and how to see it is in the explanation."""
    filler = disk / "filler"
    room = shutil.disk_usage(disk).free
    filler.write_bytes(bytes(room - 64 * 1024))
    assert person("checkpoint", job).code == 0
    when(lambda: "No space left on device" in person.logs(job), lambda: person.logs(job))
    when(lambda: "No space left" in person("explain", job).out, lambda: person("explain", job).out)
    remount(disk, "ro")
    assert person("checkpoint", job).code == 0
    when(lambda: "Read-only file system" in person.logs(job), lambda: person.logs(job))
    remount(disk, "rw")
    filler.unlink()
    found = person.job(job)
    assert (found["state"], found["attempt"]) == ("running", 1)
    before = found["step"]
    person.until(job, lambda now: now["step"] > before)


def trains(found: dict[str, Any]) -> bool:
    """It counts as running also when torch takes more than ten seconds to import; then it cannot save yet."""
    return bool(found["state"] == "running" and found["resumable"] and found["step"] > 0)


def save(person: Person, job: str) -> int:
    """Ask for a checkpoint; the step it was made at."""
    before = person.job(job)["durable_step"]
    assert person("checkpoint", job).code == 0
    found: int = person.until(job, lambda now: now["durable_step"] > before)["durable_step"]
    return found


def stop(person: Person, job: str) -> None:
    """Saved, out of its device, and kept from starting again."""
    host = person.json("nodes")["nodes"][0]["host"]
    assert person("nodes", "drain", host).code == 0
    assert person("preempt", job).code == 0
    person.until_state(job, "queued")


def go_on(person: Person) -> str:
    host: str = person.json("nodes")["nodes"][0]["host"]
    assert person("nodes", "resume", host).code == 0
    return host


def attempt(person: Person, job: str, number: int) -> str:
    return person("logs", job, "--attempt", str(number)).out


def checkpoints(disk: Path, job: str) -> list[Path]:
    """Newest first."""
    found = [path for path in disk.rglob("a*-s*") if path.is_dir() and job in path.parts[-2]]
    return sorted(found, key=lambda p: [int(part[1:]) for part in p.name.split("-")], reverse=True)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# --- The journal -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """With a job on one of two devices that nothing here may touch."""
    settings = {"agent__devices": "cpu:2", "agent__heartbeat_s": "0.3"}
    with at_home(tmp_path_factory.mktemp("p"), **settings) as made:
        waiter = "while not os.path.exists('go'): time.sleep(0.05)\nprint('undisturbed')\n"
        made.write("bystander.py", SAY + "say('first_step', step=1)\n" + waiter)
        made.submit("--", "python3", "bystander.py")
        made.until_state("1", "running")
        yield made


def test_a_journal_whose_tail_was_cut_is_read_up_to_there(person: Person) -> None:
    """What was written last is gone with its bytes; everything before it, and what runs, is not."""
    kept = person.submit("--hold", "-J", "kept", "--", "true")
    person.settle_journal()
    person.submit("--hold", "-J", "cut", "--", "true")
    person.kill_controller()
    log = person.controller_state / "journal.sqlite-wal"
    os.truncate(log, log.stat().st_size - 100)
    person.up()
    assert person.job(kept)["state"] == "held"
    assert person.until_state("1", "running")["attempt"] == 1
    again = person.submit("--hold", "-J", "again", "--", "true")
    assert person.job(again)["name"] == "again"
    assert person("cancel", kept, again).code == 0


def test_a_journal_that_is_cut_in_half_is_left_alone_and_named(person: Person) -> None:
    person.down()
    journal = person.controller_state / "journal.sqlite"
    whole = journal.read_bytes()
    os.truncate(journal, len(whole) // 2)
    answer = person("up")
    assert answer.code == 1
    assert f"{journal}: " in answer.err and "Restore it from a backup" in answer.err
    assert len(journal.read_bytes()) == len(whole) // 2, "nothing was changed"
    journal.write_bytes(whole)
    person.up()
    assert person.until_state("1", "running")["attempt"] == 1


def test_a_second_agent_is_refused_or_offers_nothing(person: Person) -> None:
    same_folder = person("agent")
    assert same_folder.code == 1
    assert "another agent" in same_folder.err and same_folder.err.count("\n") == 1, same_folder.err
    same_name = person("agent", "--state-dir", str(person.home / "second"))
    assert same_name.code == 1
    assert "another agent" in same_name.err.splitlines()[-1], same_name.err
    with person.begun("agent", "--host", "second", "--state-dir", str(person.home / "third")) as second:
        assert second.stdout is not None
        assert second.stdout.readline() == "agent second ready: 0 devices\n"
        node = next(node for node in person.json("nodes")["nodes"] if node["host"] == "second")
        assert all(not device["healthy"] for device in node["devices"])
        assert all("agent" in device["note"] for device in node["devices"])
        second.terminate()
        second.wait(PATIENCE_S)


@pytest.mark.parametrize("jump_s", [1e6, -1e6], ids=["back", "forward"])
def test_a_clock_that_jumps_between_two_runs(person: Person, jump_s: float) -> None:
    """The recorded wall clock is shifted, as if ours had been set the other way."""
    person.down()
    with sqlite3.connect(person.controller_state / "journal.sqlite") as journal:
        journal.execute("UPDATE entries SET wall_s = wall_s + ?", (jump_s,))
        journal.execute("UPDATE runs SET wall_s = wall_s + ?", (jump_s,))
    journal.close()
    person.up()
    with sqlite3.connect(person.controller_state / "journal.sqlite") as journal:
        runs = [row[0] for row in journal.execute("SELECT now_s FROM runs ORDER BY rowid")]
        times = [row[0] for row in journal.execute("SELECT now_s FROM entries ORDER BY seq")]
    journal.close()
    assert runs == sorted(runs) and times == sorted(times), "time never goes back"
    found = person.until_state("1", "running")
    assert found["attempt"] == 1 and found["run_s"] >= 0
    assert person("run", "-q", "--", "echo", "works").out == "works\n"


def test_nothing_of_it_did_any_harm(person: Person) -> None:
    person.write("go", "")
    assert person("wait", "1").code == 0
    assert person.logs("1") == "undisturbed\n"
    assert person.job("1")["attempt"] == 1
    assert person.free_devices() >= 2
