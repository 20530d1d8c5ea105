"""Slurm's own words, by its programs' names: which jobs they mean, whose, and why those wait."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from cotenant.controller.cli.verbs import SYNONYMS
from cotenant.controller.domain import JobId, Phase, reasons
from cotenant.controller.present.problem import Problem
from cotenant.controller.slurm.aliases import listings, programs
from cotenant.controller.slurm.aliases.reasons import NO_REASON, WORDS, reason_word, why_waiting
from cotenant.controller.submission.recording import user_name
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import clients as wire
from tests.building.stand_in import StandIn
from tests.controller.cli.replies import job_view, waiting
from tests.controller.station import ADMIN, BOB, Station, job

ME = Identity(name=user_name(), role="user", uid=os.getuid(), gid=os.getgid())


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Slurm = Callable[[str], Ran]


@pytest.fixture
def station(tmp_path: Path) -> Iterator[Station]:
    """Mine: 1 named train, and the array 2_0 to 2_3. Bob's: 6 named train, and 7."""
    made = Station(tmp_path / "state")
    made.ask(wire.Submit(specs=(job("train", time_limit_s=300.0),)), ME)
    tasks = tuple(job("sweep", job_id=JobId(f"new-{at}")) for at in range(4))
    made.ask(wire.Submit(specs=tasks, array_indices=(0, 1, 2, 3)), ME)
    made.ask(wire.Submit(specs=(job("train"),)), BOB)
    made.ask(wire.Submit(specs=(job("other"),)), BOB)
    yield made
    made.close()


@pytest.fixture
def asker() -> list[Identity]:
    """Who asks; a test may put another in its place."""
    return [ME]


@pytest.fixture
def slurm(
    controller: StandIn, station: Station, asker: list[Identity], capsys: pytest.CaptureFixture[str]
) -> Slurm:
    for kind in get_args(wire.AnyRequest):
        controller.says(kind, lambda body: station.ask(body, asker[0]))

    def run(line: str) -> Ran:
        name, *words = shlex.split(line)
        told = ""
        try:
            code = programs.PROGRAMS[name](words)
        except Problem as problem:
            code, told = problem.exit_code, f"{problem.message}; {problem.hint}"
        shown = capsys.readouterr()
        return Ran(code, shown.out, shown.err + told)

    return run


def left(station: Station) -> str:
    """The jobs that have not ended."""
    return " ".join(each.job_id for each in station.ask(wire.ListJobs(), ADMIN).jobs)


def ids(ran: Ran) -> str:
    assert ran.code == 0, ran
    return " ".join(line.split()[0] for line in ran.out.splitlines())


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("scancel 2_[1-3]", "1 2_0 6 7"),
        ("scancel 2_0,2_1 1", "2_2 2_3 6 7"),
        ("scancel 2_[0-3%2]", "1 6 7"),
        ("scancel 2", "1 6 7"),
        ("scancel -n train", "2_0 2_1 2_2 2_3 6 7"),
        ("scancel -t PENDING", "6 7"),
        ("scancel --me -n train", "2_0 2_1 2_2 2_3 6 7"),
        ("scancel -n other", "1 2_0 2_1 2_2 2_3 6 7"),
        ("scancel 99", "1 2_0 2_1 2_2 2_3 6 7"),
        ("scancel 99 2_[0,3] 98", "1 2_1 2_2 6 7"),
    ],
)
def test_scancel_ends_what_is_named_and_ones_own(
    line: str, rest: str, slurm: Slurm, station: Station
) -> None:
    assert slurm(line).code == 0
    assert left(station) == rest


def test_each_job_of_another_that_was_named_is_an_error_and_ones_own_end(
    slurm: Slurm, station: Station
) -> None:
    ran = slurm("scancel 1 6 7")
    assert ran.code == 4
    assert [line.removeprefix("scancel: ") for line in ran.err.splitlines()] == [
        "you cannot cancel job 6: it belongs to bob", "you cannot cancel job 7: it belongs to bob",
    ]  # fmt: skip
    assert slurm("scancel -u bob -n train").code == 4
    assert left(station) == "2_0 2_1 2_2 2_3 6 7"


def test_an_admins_filter_finds_everybodys(slurm: Slurm, station: Station, asker: list[Identity]) -> None:
    asker[0] = ADMIN
    assert slurm("scancel -n train").code == 0
    assert left(station) == "2_0 2_1 2_2 2_3 7"


@pytest.mark.parametrize("line", ["scancel 99_[0-3]", "squeue -j 2_[7-9]", "sacct -j 99_[0-1]"])
def test_a_range_of_which_nobody_knows_a_task_is_an_error(line: str, slurm: Slurm, station: Station) -> None:
    assert slurm(line).code == 3
    assert left(station) == "1 2_0 2_1 2_2 2_3 6 7"


@pytest.mark.parametrize(
    ("line", "jobs"),
    [
        ("squeue -h -j 2_[0-1]", "2_0 2_1"),
        ("squeue -h -j 1,99,2_[2,3]", "1 2_2 2_3"),
        ("squeue -h", "1 2_0 2_1 2_2 2_3 6 7"),
        ("sacct -n -P -o JobID -j 2_[0-1],6", "2_0 2_1 6"),
        ("sacct -n -P -o JobID -j 1.batch,1.7", "1"),
        ("sacct -n -P -o JobID -a", "1 2_0 2_1 2_2 2_3 6 7"),
        ("sacct -n -P -o JobID -u bob", "6 7"),
        ("scontrol show -o job 2_[1-2]", "JobId=2_1 JobId=2_2"),
        ("scontrol show -o jobid=6", "JobId=6"),
        ("scontrol show -o job -u bob", "JobId=6 JobId=7"),
    ],
)
def test_lists(line: str, jobs: str, slurm: Slurm) -> None:
    assert ids(slurm(line)) == jobs


def test_by_default_one_sees_ones_own_and_root_all(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, everybodys = "1 2_0 2_1 2_2 2_3", "1 2_0 2_1 2_2 2_3 6 7"
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    assert ids(slurm("sacct -n -P -o JobID")) == mine
    assert ids(slurm("scontrol show job -o")).replace("JobId=", "") == mine
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert ids(slurm("sacct -n -P -o JobID")) == everybodys


@pytest.mark.parametrize("verb", ["hold", "release"])
def test_scontrol_takes_ranges(verb: str, slurm: Slurm, station: Station) -> None:
    slurm("scontrol hold 1")
    assert slurm("scontrol hold 2_[1-2],2_0").code == 0
    if verb == "release":
        assert slurm("scontrol release JobId=2_[0-2]").code == 0
    held = {each.job_id for each in station.ask(wire.ListJobs(states=(Phase.HELD,)), ADMIN).jobs}
    assert held == ({"1"} if verb == "release" else {"1", "2_0", "2_1", "2_2"})
    assert slurm("scontrol update JobId=2_[0-3] TimeLimit=1:00:00").code == 0
    assert "TimeLimit=01:00:00" in slurm("scontrol show job 2_3").out


# --- Limits and reasons -----------------------------------------------------------------------------


def test_limits(slurm: Slurm) -> None:
    assert slurm("squeue -h -o %i:%l:%L -j 1,2_0").out.split() == ["1:5:00:5:00", "2_0:UNLIMITED:UNLIMITED"]
    shown = slurm("squeue -O JobID:4,TimeLimit:.10,Reason -j 1,6").out.splitlines()
    assert shown == ["JOBITIME_LIMITREASON", "1         5:00ReqNodeNotAvail", "6    UNLIMITEDReqNodeNotAvail"]
    assert slurm("sacct -n -P -o JobID,Timelimit -j 1,6").out.split() == ["1|00:05:00", "6|UNLIMITED"]
    assert "TimeLimit=00:05:00" in slurm("scontrol show job 1").out


def test_the_time_left_is_that_to_the_limit() -> None:
    running = job_view("7", time_limit_s=300.0, load_s=10.0, run_s=40.0, pause_s=7.0)
    assert listings.JOB_FIELDS["L"].value(running) == "4:10"


REASONS = {
    "begins-later": "BeginTime", "limit-devices": "AssocMaxJobsLimit", "limit-jobs": "AssocMaxJobsLimit",
    "array-limit": "JobArrayTaskLimit", "after-job": "Dependency", "behind": "Priority",
    "priority": "Priority", "fair-share": "Priority", "first-no-devices": "Resources",
    "costs-wait": "Resources", "no-such-feature": "BadConstraints", "drained": "ReqNodeNotAvail",
}  # fmt: skip


@pytest.mark.parametrize(("code", "word"), REASONS.items())
def test_a_waiting_jobs_reason_is_slurms(code: str, word: str) -> None:
    for phase in (Phase.BLOCKED, Phase.QUEUED):
        assert why_waiting(waiting("7", "", reason_code=code, phase=phase)) == word
    assert why_waiting(job_view("7", reason_code=code)) == NO_REASON


@pytest.mark.parametrize("policy", ["cotenant", "fifo"])
def test_who_waits_behind_a_job_of_higher_priority_says_so(policy: str, tmp_path: Path) -> None:
    here = Station(tmp_path, policy=policy)
    here.join()
    while run_next(here):
        pass
    low = here.submit(ADMIN)
    high = here.submit(ADMIN, priority=5)
    views = {each.job_id: each for each in here.ask(wire.ListJobs(), ADMIN).jobs}
    assert [why_waiting(views[each]) for each in (high, low)] == ["Resources", "Priority"]
    here.close()


def run_next(station: Station) -> bool:
    """Submits a job; whether it was started."""
    job_id = station.submit(ADMIN)
    return station.core.state.engine.jobs[job_id].phase is not Phase.QUEUED


def test_what_is_held_says_so_whatever_the_code() -> None:
    held = {code: waiting("7", "", reason_code=code, phase=Phase.HELD) for code in reasons.TEMPLATES}
    words = {code: why_waiting(each) for code, each in held.items()}
    assert {words["held-by"], words["submitted"]} == {"JobHeldUser"}
    assert {words["held-infra"], words["held-idle"], words["workdir-missing"]} == {"JobHeldAdmin"}
    assert set(words.values()) == {"JobHeldUser", "JobHeldAdmin"}


@pytest.mark.parametrize("code", reasons.TEMPLATES)
def test_every_reason_of_the_domain_has_a_word(code: str) -> None:
    assert code in WORDS or any(code.startswith(each) for each in WORDS if each.endswith("-"))
    assert reason_word(code) in WORDS.values()


def test_a_newer_controllers_reason_has_none() -> None:
    assert reason_word("of-tomorrow") == NO_REASON


# --- The table of docs/slurm.md ---------------------------------------------------------------------

PAGE = Path(__file__).parents[4] / "docs" / "slurm.md"
ASKING = {"squeue", "scancel", "sacct", "sinfo", "scontrol", "seff"}
"""The programs that start no job: those are tried on a live cluster."""
VALUES = {"-u": "-u bob", "-n": "-n train", "-t": "-t PENDING", "-a": "-a"}
ROWS = re.findall(r"^\| (.*`.*) \| (.*) \|$", PAGE.read_text().partition("## In a job")[0], re.M)


def commands(before: str) -> Iterator[str]:
    """The command lines of a cell, with jobs that there are; a lone option or verb is the first one's."""
    first = ""
    for word in re.findall(r"`([^`]+)`", before):
        first = word if word.partition(" ")[0] in ASKING | {"sreport"} else first
        program, _, rest = first.partition(" ")
        if word.startswith("-"):
            word = f"{program} {VALUES.get(word, word)}"
        elif word in ("release", "requeue"):
            word = f"{program} {word} {rest.partition(' ')[2]}"
        if word.partition(" ")[0] in ASKING | {"sreport"}:
            yield re.sub(r"\b(JOB|7|14)\b", "1", word.replace("12_[1-3]", "2_[1-3]"))


TABLE = [(line, now) for before, now in ROWS for line in commands(before)]


@pytest.mark.parametrize(("line", "now"), TABLE, ids=[line for line, _ in TABLE])
def test_each_line_of_the_table_is_the_same_here_or_names_what_is(
    line: str, now: str, slurm: Slurm, asker: list[Identity]
) -> None:
    program, *_ = line.split()
    if " -u bob" in line or " update " in line:
        asker[0] = ADMIN
    named = {" ".join(words.split()[:2]) for words in re.findall(r"`(cotenant [^`]+)`", now)}
    if program not in programs.PROGRAMS:
        assert f"cotenant {SYNONYMS[program]}" in named
        return
    if " release" in line:
        slurm("scontrol hold 2_[1-3]")
    if " requeue" in line:  # Of jobs that have ended.
        slurm("scancel 2_[1-3]")
    ran = slurm(line)
    assert named
    assert ran.code == 0 or any(each in ran.err for each in named), ran


def test_the_table_was_found() -> None:
    assert len(ROWS) > 14 and {line.split()[0] for line, _ in TABLE} == ASKING | {"sreport"}
