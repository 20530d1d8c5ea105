"""`--snapshot` for somebody at a terminal: jobs run the tree that was there when they were submitted."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.live.person import Person, at_home, when

TRAIN = (
    "import os, part\nprint(part.WORD, os.getcwd(), os.environ['COTENANT_SUBMIT_DIR'])\nopen('out', 'w')\n"
)
MIB = 1024 * 1024


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    with at_home(tmp_path / "home", agent__devices="cpu:2") as someone:
        someone.env["XDG_CACHE_HOME"] = str(someone.home / "cache")
        yield someone


def project(person: Person) -> Path:
    """A repository with a script that imports what lies beside it."""
    folder = person.work / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "part.py").write_text("WORD = 'first'\n")
    (folder / "notes.txt").write_text("not tracked\n")
    git = ("git", "-c", "user.name=ann", "-c", "user.email=ann@example.org")
    for words in (("init", "-q", "-b", "main"), ("add", "*.py"), ("commit", "-q", "-m", "one")):
        subprocess.run([*git, *words], cwd=folder, check=True)
    return folder


def submit(person: Person, folder: Path, *words: str) -> str:
    answer = person("submit", *words, cwd=folder)
    assert answer.code == 0, answer
    return answer.out.strip()


def trees(person: Person) -> list[Path]:
    """What the controller keeps."""
    return sorted((person.controller_state / "trees").glob("of-*/*"))


def test_a_job_that_waits_runs_what_was_submitted_also_where_the_folder_is_not(person: Person) -> None:
    folder = project(person)
    words = ("--snapshot", "git", "--hold", "--", "python", "train.py")
    first, same = submit(person, folder, *words), submit(person, folder, *words)
    assert len(trees(person)) == 1, "two jobs of one tree share one upload"
    (folder / "part.py").write_text("WORD = 'second'\n")
    second = submit(person, folder, *words)
    assert len(trees(person)) == 2
    shutil.move(folder, person.work / "elsewhere")
    person("release", first, same, second)
    for job, word in ((first, "first"), (same, "first"), (second, "second")):
        person.until_state(job, "done")
        said, where, submitted_in = person.logs(job).split()
        assert (said, submitted_in) == (word, str(folder))
        shown = person.show(job)
        assert shown["copies"] == [f"{shown['devices'][0].partition('/')[0]}:{where}"]
        assert (Path(where) / "out").exists() and not (Path(where) / "notes.txt").exists()
        tree = shown["spec"]["launch"]["snapshot"]
        assert (tree["kind"], tree["branch"], tree["files"], tree["dirty"]) == (
            "git",
            "main",
            2,
            word == "second",
        )
    page = person("show", second).out
    assert "with changes, 2 files" in page and f"a copy of {folder}" in page


def test_the_tasks_of_an_array_share_a_tree_and_each_has_its_own_copy(person: Person) -> None:
    folder = project(person)
    array = submit(person, folder, "--snapshot", "copy", "-a", "0-1", "--", "sh", "-c", "cat notes.txt; pwd")
    for task in (f"{array}_0", f"{array}_1"):
        person.until_state(task, "done")
    assert len(trees(person)) == 1
    told = [person.logs(f"{array}_{at}").splitlines() for at in range(2)]
    assert [words[0] for words in told] == ["not tracked"] * 2 and told[0][1] != told[1][1]


def test_an_agent_that_is_killed_in_the_middle_of_a_fetch_goes_on(person: Person) -> None:
    folder = project(person)
    (folder / "weights.bin").write_bytes(random.Random(7).randbytes(96 * MIB))
    job = submit(person, folder, "--snapshot", "git", "--snapshot-add", "weights.bin", "--hold", "--", "ls")
    packed = person.home / "state" / "cotenant" / "agent" / "trees" / "packed" / "of-"
    person("release", job)
    part = when(lambda: next((each for each in packed.glob("*.part") if each.stat().st_size), None))
    assert person.process is not None
    (agent,) = [
        child
        for child in psutil.Process(person.process.pid).children()
        if "cotenant.agent" in child.cmdline()
    ]
    agent.kill()
    person.down()
    came = part.stat()
    assert 0 < came.st_size < 96 * MIB, "killed in the middle"
    person.up()
    person.until_state(job, "done")
    assert part.with_suffix("").stat().st_ino == came.st_ino, "it went on with what had come"
    assert "weights.bin" in person.logs(job)


def test_what_a_snapshot_cannot_hold_is_refused_before_anything_is_sent(person: Person) -> None:
    folder = project(person)
    os.mkfifo(folder / "pipe")
    person("submit", "--snapshot", "copy", "--", "ls", cwd=folder).refuses(
        2, "pipe is no file, folder or link"
    )
    (folder / ".cotenantignore").write_text("pipe\n")
    (folder / "new.py").write_text("")
    words = ("submit", "--snapshot", "git", "--", "python", "new.py")
    person(*words, cwd=folder).refuses(2, "new.py is not in the snapshot", "--snapshot-add new.py")
    person.env["COTENANT_SNAPSHOT__SIZE_MAX_MIB"] = "1"
    (folder / "large").write_bytes(random.Random(7).randbytes(2 * MIB))
    answer = person("submit", "--snapshot", "copy", "--", "ls", cwd=folder)
    answer.refuses(2, "2 MiB packed of 1 possible", "large (2.0 MiB)", ".cotenantignore")
    assert trees(person) == []


def test_a_job_whose_tree_is_gone_says_so_and_blames_no_host(person: Person) -> None:
    folder = project(person)
    job = submit(person, folder, "--snapshot", "git", "--hold", "--", "python", "train.py")
    (tree,) = trees(person)
    tree.unlink()
    person("release", job)
    failed = person.until_state(job, "failed")
    assert "has no snapshot" in failed["reason"] and "cotenant submit --snapshot git" in failed["reason"]
    assert person.free_devices() == 2
