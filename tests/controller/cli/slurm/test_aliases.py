"""What the programs with Slurm's names read and print, and where they are written."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from cotenant.controller.domain import JobId, Phase
from cotenant.controller.present.problem import Problem
from cotenant.controller.slurm.aliases import launches, listings, programs
from cotenant.controller.slurm.aliases.words import Flags, read_words, sbatch_words
from cotenant.controller.submission.build import Sbatch, Submission, Submitter, submission
from cotenant.controller.submission.options import BadSubmission
from cotenant.controller.system import paths
from cotenant.controller.wire import clients as wire
from tests.controller.cli.replies import job_view

if TYPE_CHECKING:
    from tests.controller.cli.conftest import StandIn

SOME = Flags(
    values=("-u --user", "-o --format"),
    switches=("--me", "-h --noheader"),
    left_out=("-p --partition",),
    left_out_switches=("-l --long",),
)


def job(**fields: object) -> wire.JobView:
    return msgspec.structs.replace(job_view(), **fields)


@pytest.mark.parametrize(
    ("words", "flags", "rest"),
    [
        ("-u ada -h", {"--user": "ada", "--noheader": "yes"}, []),
        ("-uada --format=%i 7 8", {"--user": "ada", "--format": "%i"}, ["7", "8"]),
        ("-u ada --user=bob --form %i", {"--user": "ada,bob", "--format": "%i"}, []),
        (
            "-hl -p gpu --me",
            dict.fromkeys(("--noheader", "--long", "--me"), "yes") | {"--partition": "gpu"},
            [],
        ),
    ],
)
def test_words(words: str, flags: dict[str, str], rest: list[str]) -> None:
    assert read_words("squeue", words.split(), SOME) == (flags, rest)


@pytest.mark.parametrize(
    ("words", "says"), [("--steps", "--steps is not known here"), ("-u", "-u needs a value")]
)
def test_options_that_are_not_known_are_refused(words: str, says: str) -> None:
    with pytest.raises(Problem, match=says):
        read_words("squeue", words.split(), SOME)


# --- sbatch -----------------------------------------------------------------------------------------


def sent(folder: Path, *words: str, options: tuple[str, ...] = (), text: str | None = None) -> Submission:
    where = Submitter(folder=folder, environ={"PATH": os.environ["PATH"]})
    return submission(words, {}, where, sbatch=Sbatch(options=options, text=text))


def test_the_command_line_wins_over_the_scripts_lines_and_both_count_together(tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text("#!/bin/bash\n#SBATCH --nodes=1 --gpus-per-node=4 -J mine\npython x.py\n")
    spec = sent(tmp_path, str(script), "--lr", "3", options=("-N2", "--job-name=other")).request.specs[0]
    assert (spec.nodes, spec.gpus_min, spec.name) == (2, 8, "other")
    assert spec.launch.argv == ("/bin/bash", str(script), "--lr", "3")
    assert spec.launch.output == f"{tmp_path}/slurm-%j.out"


def test_a_script_without_a_file(tmp_path: Path) -> None:
    spec = sent(tmp_path, "wrap", options=("-a", "0-1"), text="#!/bin/sh\necho hello\n").request.specs[1]
    assert spec.launch.argv == ("/bin/sh", "-c", "#!/bin/sh\necho hello\n", "wrap")
    assert (spec.name, spec.launch.output) == ("wrap", f"{tmp_path}/slurm-%A_%i.out")
    assert spec.launch.slurm


def test_what_is_wrong_with_a_command_line_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadSubmission, match="sbatch --nodelist is not possible here"):
        sent(tmp_path, "wrap", options=("--nodelist=n1",), text="#!/bin/sh\n")
    with pytest.raises(BadSubmission, match=r"nowhere\.sh does not exist"):
        sent(tmp_path, "nowhere.sh")


@pytest.mark.parametrize(
    ("line", "options", "rest", "wrapped"),
    [
        ("--parsable -N 2 x.sh -N 3", ["--parsable", "-N", "2"], ["x.sh", "-N", "3"], None),
        ("-n4 --exclusive x.sh", ["-n4", "--exclusive"], ["x.sh"], None),
        ("--wrap=hostname -J x", ["-J", "x"], [], "hostname"),
        ("-t 10 --wrap hostname", ["-t", "10"], [], "hostname"),
    ],
)
def test_where_the_options_end(line: str, options: list[str], rest: list[str], wrapped: str | None) -> None:
    assert sbatch_words(line.split()) == (options, rest, wrapped)


# --- Listings ---------------------------------------------------------------------------------------


def test_every_phase_has_a_name_and_a_limit_is_another_end() -> None:
    assert set(listings.STATES) == set(Phase)
    assert listings.slurm_state(job(phase=Phase.FAILED, reason_code="time-limit")) == ("TIMEOUT", "TO")
    assert listings.slurm_state(job(phase=Phase.FAILED, reason_code="user-failed")) == ("FAILED", "F")


def test_a_format() -> None:
    columns = listings.parse_format("%.6i|%5j|%t|%T %%", listings.JOB_FIELDS, "squeue")
    running = job(job_id=JobId("7"), name="training", phase=Phase.RUNNING)
    assert listings.line(columns, running) == "     7|train|R|RUNNING %"
    assert listings.line(columns, None) == " JOBID|NAME |ST|STATE %"
    with pytest.raises(Problem, match="there is no field %Z here"):
        listings.parse_format("%Z", listings.JOB_FIELDS, "squeue")


def test_every_field_of_a_job_can_be_printed() -> None:
    nowhere = {"started_at": None, "ended_at": None, "devices": (), "left_s": None}
    waiting = job(phase=Phase.QUEUED, reason_code="first-no-devices", **nowhere)
    for each in (job(), waiting):
        texts = [field.value(each) for field in listings.JOB_FIELDS.values()]
        texts += [value(each) for value in listings.SACCT_FIELDS.values()]
        assert all(isinstance(text, str) for text in texts)
    assert listings.JOB_FIELDS["R"].value(waiting) == "(Resources)"
    held = job(phase=Phase.HELD, devices=())
    assert listings.JOB_FIELDS["r"].value(held) == "JobHeldUser"
    limited = job(phase=Phase.BLOCKED, reason_code="array-limit", devices=())
    assert listings.JOB_FIELDS["r"].value(limited) == "JobArrayTaskLimit"


@pytest.mark.parametrize(
    ("seconds", "short", "long"),
    [
        (4.9, "0:04", "00:00:04"),
        (184, "3:04", "00:03:04"),
        (7384, "2:03:04", "02:03:04"),
        (93784, "1-02:03:04", "1-02:03:04"),
    ],
)
def test_times(seconds: float, short: str, long: str) -> None:
    assert (listings.clock(seconds), listings.long_clock(seconds)) == (short, long)


def test_columns_of_sacct() -> None:
    assert listings.table([["A", "B"], ["12", "x" * 12]], [0, 5]) == ["         A     B", "        12 xxxxx"]


# --- Writing them -----------------------------------------------------------------------------------


def test_they_are_written_once_more_but_never_over_others(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    for _ in range(2):
        programs.slurm_aliases(str(folder))
    assert sorted(path.name for path in folder.iterdir()) == sorted(programs.PROGRAMS)
    said = subprocess.run([folder / "squeue", "--nonsense"], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (2, "")
    assert "squeue: the option --nonsense is not known here" in said.stderr
    (folder / "sinfo").write_text("#!/bin/sh\n# Slurm's\n")
    with pytest.raises(Problem, match="sinfo is there and is not from here"):
        programs.slurm_aliases(str(folder))
    assert "Slurm's" in (folder / "sinfo").read_text()


# --- Programs that ask the controller -----------------------------------------------------------------


def test_scontrol_shows_jobs_from_outside_them(
    controller: StandIn, replies: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.says(wire.ListJobs, replies.jobs(replies.job_view("7", attempt=2)))
    assert programs.scontrol(["show", "job", "7"]) == 0
    shown = capsys.readouterr().out
    for part in ("JobId=7 JobName=train\n", "JobState=RUNNING", "Restarts=1", "NodeList=laptop NumNodes=1"):
        assert part in shown
    controller.says(wire.ListJobs, wire.Failure(request_id=0, code="not-found", message="no job 9", hint=""))
    assert programs.scontrol(["show", "job", "9"]) == 1


def test_seff_says_what_is_known(
    controller: StandIn, replies: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.says(wire.ListJobs, replies.jobs(replies.done("7", run_s=65.0, load_s=5.0, pause_s=0.0)))
    assert programs.seff(["7"]) == 0
    shown = capsys.readouterr().out
    assert "State: COMPLETED (exit code 0)\n" in shown
    assert "Job Wall-clock time: 00:01:10\nOf which training: 00:01:05\n" in shown


def test_srun_sends_its_command_as_tasks_of_a_job_and_returns_its_code(
    controller: StandIn, replies: ModuleType, at_home: Path
) -> None:
    controller.says(wire.Submit, wire.Submitted(request_id=0, job_ids=(JobId("7"),)))
    ended = replies.done("7", phase=Phase.FAILED, exit_code=3, attempt=0)
    controller.says(wire.ListJobs, replies.jobs(ended))
    assert launches.srun(["-n", "2", "python", "-c", "print('a b')"]) == 3
    (request,) = controller.asked_for(wire.Submit)
    assert request.specs[0].name == "python"
    assert request.specs[0].launch.slurm.tasks == 2
    assert "exec srun python -c 'print('" in " ".join(request.specs[0].launch.argv)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("salloc --no-shell -N 1", "what is allocated ends with its command"),
        ("srun -n 2", "no command was given"),
        ("sacctmgr add user ada", "no database of accounts"),
        ("scontrol show partition", "scontrol show partition is not possible here"),
        ("squeue -O JobID,QOS", "there is no field QOS here"),
        ("squeue -t PENDIN", "there is no state PENDIN"),
        ("squeue -j 12_[1-", r"squeue: '12_\[1-' names no job"),
        ("squeue -j 12,train", "squeue: 'train' names no job"),
        ("sacct -j 12.step", "sacct: '12.step' names no job and no step"),
        ("scancel 12_[3-1]", r"scancel: '12_\[3-1\]' names no job"),
        ("scancel 12.0", "a step alone is not ended"),
        ("scontrol hold 12_x", "scontrol hold: '12_x' names no job"),
        ("scontrol show job=12_x", "scontrol show job: '12_x' names no job"),
        ("scontrol update JobId=x Priority=3", "scontrol update: 'x' names no job"),
        ("seff x", "seff: 'x' names no job"),
    ],
)
def test_what_cannot_be_is_refused_by_name(words: str, says: str) -> None:
    name, *rest = words.split()
    with pytest.raises(Problem, match=says):
        programs.PROGRAMS[name](rest)


def test_salloc_runs_a_command_and_writes_no_file(
    controller: StandIn, replies: ModuleType, at_home: Path
) -> None:
    controller.says(wire.Submit, wire.Submitted(request_id=0, job_ids=(JobId("7"),)))
    controller.says(wire.ListJobs, replies.jobs(replies.done("7", attempt=0)))
    assert launches.salloc(["-N", "2", "--gpus-per-node=4", "srun", "hostname"]) == 0
    (spec,) = controller.asked_for(wire.Submit)[0].specs
    assert (spec.nodes, spec.gpus_min, spec.name, spec.launch.output) == (2, 8, "srun", "")
    assert spec.launch.argv[2] == "#!/bin/sh\nexec srun hostname\n"


def test_a_script_is_copied_however_it_is_named(controller: StandIn, at_home: Path) -> None:
    controller.says(wire.Submit, wire.Submitted(request_id=0, job_ids=(JobId("7"),)))
    (at_home / "train.sh").write_text("#!/bin/sh\n")
    assert launches.sbatch([f"../{at_home.name}/train.sh", "--lr", "3"]) == 0
    (spec,) = controller.asked_for(wire.Submit)[0].specs
    _, copy, *words = spec.launch.argv
    assert copy.startswith(str(paths.submitted_scripts())) and words == ["--lr", "3"]


def test_scripts_of_long_ago_go(at_home: Path) -> None:
    old = paths.submitted_scripts() / "2020-01-01"
    (old / "0a").mkdir(parents=True)
    os.utime(old, (1.0, 1.0))
    kept = launches.keep_script("train.sh", b"#!/bin/sh\n")
    assert kept.read_bytes() == b"#!/bin/sh\n" and kept.name == "train.sh"
    assert launches.keep_script("train.sh", b"#!/bin/sh\n") == kept
    assert not old.exists()


def test_versions_and_one_line(
    controller: StandIn, replies: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr("sys.argv", ["programs", "sinfo", "--version"])
    assert programs.main() == 0
    assert capsys.readouterr().out.startswith("slurm 23.11.0 (cotenant ")
    controller.says(wire.ListJobs, replies.jobs(replies.job_view("7")))
    assert programs.scontrol(["show", "job", "-o", "7"]) == 0
    (shown,) = capsys.readouterr().out.splitlines()
    assert shown.startswith("JobId=7 JobName=train UserId=ada")
