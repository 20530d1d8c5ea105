"""`cotenant steer slurm` against a real Slurm: the order holds, and every job gets its own priority back.

A wide job runs, so that all others wait; jobs end by the test's hand alone.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.building.command_line import Said, WarmCommandLine
from tests.building.limits import within_s
from tests.building.slurm import LocalSlurm, local_slurm

INTERVAL: tuple[str, ...] = ("--interval", "1s")
SETTLES_S = within_s(60.0)
STEER = (sys.executable, "-m", "cotenant.controller.cli.main", "steer", "slurm")


class Site:
    """A cluster, and who steers it."""

    def __init__(self, slurm: LocalSlurm, folder: Path, warm: WarmCommandLine) -> None:
        self.slurm, self.folder, self._warm = slurm, folder, warm
        self.env = {**slurm.env, "XDG_STATE_HOME": str(folder / "state")}
        self._steerers: list[subprocess.Popen[str]] = []

    def steer(self, *more: str) -> subprocess.Popen[str]:
        with (self.folder / "steer.log").open("a") as log:
            process = subprocess.Popen(
                (*STEER, *INTERVAL, *more), env=self.env, stdout=log, stderr=log, text=True
            )
        self._steerers.append(process)
        return process

    def ask(self, *words: str) -> Said:
        return self._warm(("steer", "slurm", *words), env=self.env, cwd=self.folder, timeout_s=SETTLES_S)

    def waiting(self) -> dict[int, int]:
        """Priority by number, the greatest first; without marks."""
        text = self.slurm.run("squeue", "-h", "-t", "PD", "-o", "%F %Q %j")
        rows = [line.split() for line in text.splitlines() if not line.endswith("cotenant-steer")]
        return dict(sorted(((int(a), int(b)) for a, b, _ in rows), key=lambda row: -row[1]))

    def marks(self) -> list[str]:
        return self.slurm.run("squeue", "-h", "-n", "cotenant-steer", "-o", "%A").split()

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Slurm tells nobody: it has to be asked."""
        deadline_s = time.monotonic() + SETTLES_S
        while not is_so():
            said = (self.folder / "steer.log").read_text()
            assert time.monotonic() < deadline_s, f"never {what}: {self.waiting()}\n{said}"
            time.sleep(0.1)

    def until_order(self, *jobs: int) -> None:
        """These first of all, with priorities of ours."""
        self.until(
            lambda: [each for each, p in self.waiting().items() if p >= 1_000_000_000] == list(jobs),
            f"in the order {jobs}",
        )

    def close(self) -> None:
        for process in self._steerers:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmCommandLine]:
    """Answers questions; a steerer is a program of its own."""
    with closing(WarmCommandLine(("offline",))) as made:
        yield made


def site_of(folder: Path, warm: WarmCommandLine, priority: str, **more: bool) -> Iterator[Site]:
    settings = {
        "PriorityType": f"priority/{priority}",
        "PriorityWeightJobSize": "1000",
        "PriorityCalcPeriod": "1",
    }
    (folder / "s").mkdir()
    with local_slurm(folder / "s", nodes=2, cpus=4, settings=settings, **more) as slurm:  # type: ignore[arg-type]
        found = Site(slurm, folder, warm)
        wide = slurm.submit("-N2", "--exclusive", "-t", "60")
        slurm.await_said("squeue", "-h", "-o", "%A %T", wanted=f"{wide} RUNNING")
        try:
            yield found
        finally:
            found.close()


@pytest.fixture
def site(tmp_path: Path, warm: WarmCommandLine) -> Iterator[Site]:
    yield from site_of(tmp_path, warm, "multifactor")


@pytest.fixture
def basic(tmp_path: Path, warm: WarmCommandLine) -> Iterator[Site]:
    yield from site_of(tmp_path, warm, "basic")


@pytest.fixture
def accounted(tmp_path: Path, warm: WarmCommandLine) -> Iterator[Site]:
    yield from site_of(tmp_path, warm, "multifactor", accounting=True)


def three(site: Site) -> tuple[int, int, int]:
    """Of ten, three and six minutes; the second is an array."""
    submit = site.slurm.submit
    return submit("-n4", "-t", "10"), submit("-n1", "-t", "3", "--array=1-3"), submit("-n2", "-t", "6")


def test_jobs_stand_in_our_order_and_get_their_own_priorities_back(site: Site) -> None:
    long, short, middle = three(site)
    held = site.slurm.submit("-n1", "-t", "1", "--hold")
    after = site.slurm.submit("-n1", "-t", "1", f"--dependency=afterok:{long}")
    own = site.waiting()
    shown = json.loads(site.ask("--dry-run", "-o", "json").out)
    assert [row["job"] for row in shown["steered-jobs"]] == [short, middle, long]
    assert site.waiting() == own and not site.marks(), "a dry run changes nothing"

    steerer = site.steer()
    site.until_order(short, middle, long)
    assert site.waiting()[held] == 0 and site.waiting()[after] == own[after]
    told = site.ask("explain", str(middle)).out
    assert "is 2 of 3 by sjf" in told and "set by a steerer; it stays" in told, told
    assert "it is held" in site.ask("explain", str(held)).err

    site.slurm.run("scontrol", "hold", str(middle))  # By an administrator, after we had touched it.
    newest = site.slurm.submit("-n1", "-t", "1")
    site.until_order(newest, short, long)
    steerer.send_signal(signal.SIGTERM)
    assert steerer.wait(SETTLES_S) == 0
    now = site.waiting()
    assert {each: now[each] for each in (long, short, held, after)} == {
        each: own[each] for each in (long, short, held, after)
    }
    assert now[middle] == 0, "what somebody holds stays held"
    assert not site.marks()


def test_what_a_killed_steerer_left_is_released_by_the_next_one_or_by_hand(site: Site) -> None:
    long, short, middle = three(site)
    own = site.waiting()
    first = site.steer()
    site.until_order(short, middle, long)
    first.kill()
    first.wait()
    assert site.waiting() != own and len(site.marks()) == 1

    second = site.steer("--order", "srtf")
    site.until(lambda: "were released" in (site.folder / "steer.log").read_text(), "released at the start")
    site.until_order(short, middle, long)
    assert len(site.marks()) == 1, "the dead one's mark is taken over"
    second.kill()
    second.wait()
    done = site.ask("release")
    assert done.code == 0, done.err
    assert site.waiting() == own and not site.marks()


@pytest.mark.parametrize("kind", ["stopped", "killed"])
def test_a_restart_of_slurmctld_is_survived(site: Site, kind: str) -> None:
    long, short, middle = three(site)
    own = site.waiting()
    steerer = site.steer()
    site.until_order(short, middle, long)
    if kind == "killed":
        saved = site.slurm.folder / "state" / "job_state"
        then = time.time()
        site.until(lambda: saved.exists() and saved.stat().st_mtime > then, "saved: a kill forgets seconds")
        site.slurm.kill_controller()
    else:
        site.slurm.stop_controller()
    site.slurm.start_controller()
    newest = site.slurm.submit("-n1", "-t", "1")
    site.until_order(newest, short, middle, long)
    assert steerer.poll() is None and len(site.marks()) == 1
    steerer.send_signal(signal.SIGTERM)
    assert steerer.wait(SETTLES_S) == 0
    assert {each: site.waiting()[each] for each in own} == own


def test_one_steers_a_cluster(site: Site) -> None:
    three(site)
    site.steer()
    site.until(lambda: len(site.marks()) == 1 and min(site.waiting().values()) >= 1_000_000_000, "steered")
    same_file = site.ask(*INTERVAL)
    assert same_file.code == 1 and "has it" in same_file.err, same_file
    other_file = site.ask(*INTERVAL, "--state", str(site.folder / "other.json"))
    assert other_file.code == 1 and "steers this cluster" in other_file.err, other_file
    assert len(site.marks()) == 1 and min(site.waiting().values()) >= 1_000_000_000, "and nothing was undone"


def test_a_mark_from_elsewhere_counts_until_it_is_over(site: Site) -> None:
    slurm = site.slurm
    mark = slurm.submit("--hold", "--job-name=cotenant-steer", "-t", "1")

    def sign(until_s: float) -> None:
        comment = f"cotenant-steer/1;elsewhere;7;{until_s:.0f};/there.json"
        slurm.run("scontrol", "update", f"jobid={mark}", f"admincomment={comment}")

    sign(time.time() + 3600.0)
    refused = site.ask(*INTERVAL)
    assert refused.code == 1 and "elsewhere (pid 7) steers this cluster" in refused.err, refused
    assert site.marks() == [str(mark)]
    sign(time.time() - 1.0)
    site.steer()
    site.until(lambda: len(site.marks()) == 1 and site.marks() != [str(mark)], "taken over")
    site.until(
        lambda: "/there.json there" in (site.folder / "steer.log").read_text(), "told where its file is"
    )


def test_where_slurm_is_away_at_the_end_nothing_is_forgotten(site: Site) -> None:
    long, short, middle = three(site)
    own = site.waiting()
    steerer = site.steer()
    site.until_order(short, middle, long)
    site.slurm.configure(MessageTimeout="3")  # So long do Slurm's programs try again, each; else 10 s.
    site.slurm.stop_controller()
    steerer.send_signal(signal.SIGTERM)
    assert steerer.wait(SETTLES_S) == 1
    assert "run cotenant steer slurm release" in (site.folder / "steer.log").read_text()
    site.slurm.start_controller()
    assert site.ask("release").code == 0
    assert site.waiting() == own and not site.marks()


def test_no_more_than_asked_for_is_set_in_a_round(site: Site) -> None:
    jobs = [site.slurm.submit("-n1", "-t", str(minutes)) for minutes in (5, 4, 3, 2)]
    site.steer("--changes", "1")
    site.until_order(*reversed(jobs))
    rounds = [
        line for line in (site.folder / "steer.log").read_text().splitlines() if "jobs in order" in line
    ]
    assert len(rounds) == 4 and all("1 set" in line for line in rounds), rounds


def test_under_basic_released_jobs_keep_the_order_in_which_they_came(basic: Site) -> None:
    long, short, middle = three(basic)
    steerer = basic.steer()
    basic.until_order(short, middle, long)
    steerer.send_signal(signal.SIGTERM)
    assert steerer.wait(SETTLES_S) == 0
    assert list(basic.waiting()) == [long, short, middle]


def test_run_times_are_learned_from_the_accounts(accounted: Site) -> None:
    slurm = accounted.slurm
    slurm.cancel_all()
    for number in (1, 2):
        slurm.submit("-n1", "-t", "30", "-J", f"brief-{number}", command="true")
    slurm.await_said("squeue", "-h", "-o", "%i", wanted="")
    wanted = "brief-1|COMPLETED\nbrief-2|COMPLETED"
    words = ("sacct", "-a", "-X", "-n", "-P", "-S", "now-1hours", "-o", "JobName,State")
    slurm.await_said(*words, "-s", "CD", "-E", "now", wanted=wanted)
    wide = slurm.submit("-N2", "--exclusive", "-t", "60")
    slurm.await_said("squeue", "-h", "-o", "%A %T", wanted=f"{wide} RUNNING")
    unknown = slurm.submit("-n1", "-t", "2", "-J", "unknown")
    like = slurm.submit("-n1", "-t", "30", "-J", "brief-3")
    rows = json.loads(accounted.ask("--dry-run", "-o", "json").out)["steered-jobs"]
    assert [row["job"] for row in rows] == [like, unknown], rows
    assert rows[0]["why"] == "the median of the last 2 of this user's jobs of this name, limit and partition"
    assert rows[0]["expected_s"] < 60.0
