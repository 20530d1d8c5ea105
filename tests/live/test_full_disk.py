"""A disk under the agent's whole state folder that takes nothing more: running jobs end by themselves,
nothing begins anew, and once there is room everything that happened meanwhile is told."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.person import Person, at_home, when

BEGINS = """
import os, pathlib, sys, time

name = sys.argv[1]
with open(f"{name}.begun", "a") as file:
    file.write(os.environ["COTENANT_ATTEMPT"] + "\\n")
lines = 0
while not os.path.exists(f"{name}.go"):
    lines += 1
    print("line", lines, 400 * "-", flush=True)
    pathlib.Path(f"{name}.lines").write_text(str(lines))
    time.sleep(0.02)
pathlib.Path(f"{name}.over").touch()
print("over", flush=True)
"""


SIZES = "size=24m,nr_inodes=2000"


class SmallDisk:
    """A file system of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def mount(self, *words: str) -> None:
        done = subprocess.run(["mount", *words], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")

    def fill(self) -> None:
        """Nothing fits any more, not a byte."""
        for piece in (bytes(65536), b"x"):
            with open(self.place / "filler", "ab", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(piece)

    def take_all_inodes(self) -> None:
        """No file can be made; those that are there grow."""
        (self.place / "filler").mkdir()
        with contextlib.suppress(OSError):
            for number in itertools.count():
                (self.place / "filler" / str(number)).touch()

    def make_room(self) -> None:
        subprocess.run(["rm", "-r", str(self.place / "filler")], check=True)

    def forbid_writing(self) -> None:
        """What opens a file from now on finds it read-only; the kernel makes no disk so that has writers."""
        self.mount("--bind", str(self.place), str(self.place))
        self.mount("-o", "remount,bind,ro", str(self.place))

    def allow_writing(self) -> None:
        subprocess.run(["umount", "-l", str(self.place)], check=True)


KINDS: dict[str, tuple[Callable[[SmallDisk], None], Callable[[SmallDisk], None]]] = {
    "full": (SmallDisk.fill, SmallDisk.make_room),
    "no inodes": (SmallDisk.take_all_inodes, SmallDisk.make_room),
    "read-only": (SmallDisk.forbid_writing, SmallDisk.allow_writing),
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "home" / "state" / "cotenant" / "agent"
    place.mkdir(parents=True)
    made = SmallDisk(place)
    made.mount("-t", "tmpfs", "-o", f"{SIZES},mode=755", "tmpfs", str(place))
    yield made
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def person(tmp_path: Path, disk: SmallDisk) -> Iterator[Person]:
    settings = {
        "agent__devices": "cpu:3",
        "agent__heartbeat_s": "0.3",
        "policy__back_off_s": "0.5",
        "agent__user_share_mib": "8",
    }
    with at_home(tmp_path / "home", **settings) as someone:
        someone.write("job.py", BEGINS)
        yield someone


def submit(person: Person, name: str, *words: str) -> str:
    return person.submit("-J", name, *words, "--", "python3", "job.py", name)


def lines(person: Person, name: str) -> int:
    return int((person.work / f"{name}.lines").read_text() or 0)


def goes_on(person: Person, name: str, keep: Callable[[], None] = lambda: None, count: int = 60) -> None:
    """It prints more than fits into pages that its log has already. `keep`: takes what others give back."""
    before = lines(person, name)

    def has_printed() -> bool:
        keep()
        return lines(person, name) > before + count

    when(has_printed)


@pytest.mark.root
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_runs_ends_for_it_and_all_is_told(person: Person, disk: SmallDisk, kind: str) -> None:
    spoil, mend = KINDS[kind]
    ends = submit(person, "ends", "--output", "ends.out")
    stays = submit(person, "stays")
    for job, name in ((ends, "ends"), (stays, "stays")):
        person.until_state(job, "running")
        when((person.work / f"{name}.lines").exists)
    spoil(disk)
    keep = disk.fill if kind == "full" else lambda: None
    try:
        goes_on(person, "ends", keep)
        person.write("ends.go", "")
        when((person.work / "ends.over").exists)
        late = submit(person, "late")
        goes_on(person, "stays", keep)
        assert not (person.work / "late.begun").exists(), "nothing starts on such a disk"
        assert person.job(stays)["state"] == "running"
    finally:
        mend(disk)
    person.until_state(ends, "done")
    person.write("late.go", "")
    person.until_state(late, "done")
    goes_on(person, "stays")
    person.write("stays.go", "")
    person.until_state(stays, "done")
    for name in ("ends", "stays"):
        assert (person.work / f"{name}.begun").read_text() == "1\n", f"{name} began anew"
    assert len((person.work / "late.begun").read_text().splitlines()) == 1
    whole = (
        "".join(f"line {number} {400 * '-'}\n" for number in range(1, lines(person, "ends") + 1)) + "over\n"
    )
    assert (person.work / "ends.out").read_text() == whole
    for job in (ends, stays):
        shown, log = person.show(job), person.logs(job)
        assert (shown["attempt"], shown["exit_code"]) == (1, 0)
        if kind == "full":
            assert (
                "bytes of its output are missing in its log: No space left on device" in shown["output_lost"]
            )
            assert shown["reason"] == f"finished; {shown['output_lost']}"
            assert "bytes of output are missing here" in log and shown["output_lost"] in log
            assert shown["output_lost"] in " ".join(person("show", job).out.split())
        else:
            assert (shown["output_lost"], shown["reason"]) == (None, "finished")
    assert person.free_devices() == 3


GREEDY = """
import itertools, os, pathlib, time

pathlib.Path("big").write_bytes(bytes(12 << 20))
names = (f"part-{number}" for number in itertools.count())
while True:
    if os.statvfs(".").f_favail > 60:
        pathlib.Path(next(names)).touch()
    else:
        time.sleep(0.05)
"""


@pytest.mark.root
def test_who_fills_the_disk_below_a_copy_ends_in_words_and_others_do_not(
    person: Person, disk: SmallDisk
) -> None:
    """With room for a copy, of which 512 MiB stay free, and few inodes, of which 3 in 100 are left."""
    disk.mount("-o", "remount,size=1g", str(disk.place))
    other = submit(person, "other")
    person.until_state(other, "running")
    (person.work / "project").mkdir()
    (person.work / "project" / "greedy.py").write_text(GREEDY)
    words = ("submit", "--snapshot", "copy", "--", "python3", "greedy.py")
    greedy = person(*words, cwd=person.work / "project").out.strip()
    person.until(greedy, lambda job: "remove what earlier jobs left in their copies" in job["reason"])
    explained = " ".join(person("explain", greedy).out.split())
    assert "more than the 8 MiB that one user may have on its host's disk" in explained, explained
    assert person.job(other)["state"] == "running" and person.job(other)["attempt"] == 1
    person("cancel", greedy)
    person.write("other.go", "")
    person.until_state(other, "done")
    assert (person.work / "other.begun").read_text() == "1\n"
