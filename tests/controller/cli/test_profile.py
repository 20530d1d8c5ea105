"""`cotenant profile` and `submit --profile`: what is queued, what is said, what the code of a command is."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from cotenant.controller.domain import JobId, Phase
from cotenant.controller.performance import (
    INDICATOR_NAMES,
    Gang,
    Indicators,
    IndicatorStats,
    Profile,
    ProfilePoint,
)
from cotenant.controller.submission.recording import FILES_MAX, code_sha256
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import profile_view, throughput_view, utc

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn

POINTS = tuple(
    ProfilePoint(sub_batch=8 // s, accumulation_steps=s, step_s=0.1 + 0.02 * s, memory_mib=300.0 / s)
    for s in (1, 2)
)
MEASURED = Profile(
    points=POINTS,
    duty_cycle=0.5,
    load_s=3.0,
    steps=40,
    memory_mib_peak=300.0,
    indicators=Indicators(
        SMACT=IndicatorStats(mean=0.5, variance=0.01, source="cpu", count=20, period_s=0.5)
    ),
    source="in place",
)


def known(key: str = "abcdef123456", profile: Profile = MEASURED, **more: Any) -> wire.KnownProfile:
    fields: dict[str, Any] = {
        "key": key, "user": "ada", "name": "train", "command": ("python", "train.py"), "gpus": 1, "hosts": 1,
        "device_type": "cpu", "batch_size": 8, "is_complete": True, "learned_at": utc(1_763_629_100.0),
        "used": 2, "job_id": JobId("7"), **msgspec.structs.asdict(profile_view(profile)),
        "throughput": throughput_view(profile, 8, Gang()),
    }  # fmt: skip
    return wire.KnownProfile(**{**fields, **more})


def test_profiles_of_one_name_differ_in_their_commands_and_times(
    controller: StandIn, cotenant: Cotenant
) -> None:
    commands = (("python", "train.py", "--lr", "0.1"), ("python", "train.py", "--lr", "0.2"))
    rows = [known(f"key{at}", command=each) for at, each in enumerate(commands)]
    controller.says(wire.ListProfiles, known_list(*rows))
    head, *lines = cotenant("profile", "list", "-o", "wide").out.splitlines()
    assert "LEARNED" in head
    assert [line.endswith(shlex.join(each)) for line, each in zip(lines, commands, strict=True)] == [
        True,
        True,
    ]
    assert len({line.partition(" ")[2] for line in lines}) == 2


def known_list(*profiles: wire.KnownProfile, profile_s: float = 60.0) -> wire.KnownProfiles:
    return wire.KnownProfiles(request_id=0, profiles=profiles, profile_s=profile_s, load_s=5.0)


@pytest.fixture
def cluster(controller: StandIn, replies: ModuleType, at_home: Path) -> StandIn:
    """Two hosts that reach each other, with four and two devices; every job ends measured."""
    (at_home / "train.py").write_text("torch.distributed.init_process_group()")
    (at_home / "python").write_text("#!/bin/sh\n")
    (at_home / "python").chmod(0o755)
    views = []
    for host, count in (("a", 4), ("b", 2)):
        devices = [replies.device(f"cpu{at}", host) for at in range(count)]
        views.append(replies.node(host, *devices, address="10.0.0.1"))
    controller.says(wire.GetStatus, replies.status())
    controller.says(wire.ListNodes, replies.nodes(*views))
    controller.says(wire.ListProfiles, known_list())
    controller.says(
        wire.Submit,
        lambda request: wire.Submitted(
            request_id=0, job_ids=tuple(JobId(str(20 + at)) for at in range(len(request.specs)))
        ),
    )
    controller.says(
        wire.WaitJobs, lambda request: replies.jobs(*(_ended(replies, each) for each in request.job_ids))
    )
    controller.says(wire.ShowJob, lambda request: _shown(replies, controller, request.job_id))
    return controller


def _ended(replies: ModuleType, job_id: str) -> wire.JobView:
    job: wire.JobView = replies.done(job_id, load_s=2.0, run_s=8.0, reason="its profile is complete", gpus=2)
    return job


def _shown(replies: ModuleType, controller: StandIn, job_id: str) -> wire.Shown:
    spec = controller.asked_for(wire.Submit)[-1].specs[0]
    reply: wire.Shown = replies.shown(_ended(replies, job_id), spec, (), MEASURED)
    return reply


# --- The series -------------------------------------------------------------------------------------


def test_the_full_series_is_one_job_for_each_power_of_two_and_two_hosts_at_most(
    cluster: StandIn, cotenant: Cotenant
) -> None:
    result = cotenant("profile", "--batch-size", "8", "--", "./python", "train.py")
    assert result.code == 0, result.err
    [submit] = cluster.asked_for(wire.Submit)
    assert [(spec.gpus, spec.nodes) for spec in submit.specs] == [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2)]
    for spec in submit.specs:
        assert spec.launch.env["COTENANT_PROFILING"] == "1"
        assert (spec.profiling, spec.share, spec.batch_size) == ("only", "never", 8)
    assert len({spec.code_sha256 for spec in submit.specs}) == 1 and submit.specs[0].code_sha256
    # 13 devices for a load of 5 s and 60 s each.
    assert (
        "5 jobs on 1, 2, 4, 2 over 2 hosts, 4 over 2 hosts devices, about 14m05s of device time" in result.err
    )
    assert "1m40s of device time were used; 14m05s were expected" in result.err
    assert "without --batch-size" not in result.err
    assert result.out.splitlines()[0].split()[:5] == ["GPUS", "HOSTS", "JOB", "S", "SUB-BATCH"]
    assert len(result.out.splitlines()) == 1 + 5 * len(POINTS)


def test_a_script_that_is_one_process_is_measured_on_one_host(
    cluster: StandIn, cotenant: Cotenant, at_home: Path
) -> None:
    (at_home / "train.py").write_text("print()")
    assert (
        "3 jobs on 1, 2, 4 devices, each one process" in cotenant("profile", "--", "./python", "train.py").err
    )
    [submit] = cluster.asked_for(wire.Submit)
    assert [(spec.gpus, spec.nodes) for spec in submit.specs] == [(1, 1), (2, 1), (4, 1)]


def test_the_series_as_json_says_all_that_was_measured_and_names_what_was_not(
    cluster: StandIn, cotenant: Cotenant
) -> None:
    result = cotenant("profile", "-g", "2", "-N", "1", "-o", "json", "--", "./python", "train.py")
    document = json.loads(result.out)
    assert "--batch-size" not in result.err, "the size is read from the loader"
    assert document["schema"] == "profile/1"
    assert document["device_time_s"] == {"estimated": 3 * 65.0, "measured": 2 * 20.0}
    assert [(c["gpus"], c["hosts"]) for c in document["configurations"]] == [(1, 1), (2, 1)]
    first = document["configurations"][0]
    assert [point["accumulation_steps"] for point in first["points"]] == [1, 2]
    assert list(first["indicators"]) == list(INDICATOR_NAMES)
    smact, fp32 = first["indicators"]["SMACT"], first["indicators"]["FP32A"]
    assert (smact["mean"], smact["variance"], smact["source"]) == (0.5, 0.01, "cpu")
    assert (smact["count"], smact["period_s"]) == (20, 0.5)
    assert fp32 == {"mean": None, "variance": None, "source": None, "count": 0, "period_s": None}


def test_ctrl_c_cancels_what_is_left_and_shows_what_was_measured(
    cluster: StandIn, cotenant: Cotenant, replies: ModuleType
) -> None:
    cancelled: list[Any] = []

    def wait(request: wire.WaitJobs) -> wire.Jobs:
        if cancelled:
            return jobs(request, Phase.CANCELLED)
        if len(cluster.asked_for(wire.WaitJobs)) > 1:
            import signal

            os.kill(os.getpid(), signal.SIGINT)
        return jobs(request, Phase.RUNNING)

    def jobs(request: wire.WaitJobs, phase: Phase) -> wire.Jobs:
        reply: wire.Jobs = replies.jobs(*(replies.job_view(each, phase=phase) for each in request.job_ids))
        return reply

    def change(request: wire.ChangeJobs) -> wire.Done:
        cancelled.append(request)
        return wire.Done(request_id=0)

    cluster.says(wire.WaitJobs, wait)
    cluster.says(wire.ChangeJobs, change)
    result = cotenant("profile", "-g", "1", "-N", "1", "--", "./python", "train.py")
    assert result.code == 130
    assert [(each.verb, each.job_ids) for each in cancelled] == [("cancel", ("20",))]
    assert result.out


def test_a_controller_that_profiles_nothing_is_said_so(cluster: StandIn, cotenant: Cotenant) -> None:
    cluster.says(wire.ListProfiles, known_list(profile_s=0.0))
    result = cotenant("profile", "--", "./python", "train.py")
    assert result.code == 1 and "set profiler.seconds above 0" in result.err
    assert cluster.asked_for(wire.Submit) == []


def test_a_type_that_nobody_has_can_never_be_profiled(cluster: StandIn, cotenant: Cotenant) -> None:
    result = cotenant("profile", "--gpu-type", "NVIDIA-H200", "--", "./python", "train.py")
    assert result.code == 6 and "no host here has a device of type NVIDIA-H200" in result.err


def test_submit_with_the_full_profile_puts_the_series_first_and_the_job_behind_it(
    cluster: StandIn, cotenant: Cotenant
) -> None:
    result = cotenant("submit", "--profile", "full", "-g", "2", "--", "./python", "train.py")
    assert (result.code, result.out) == (0, "25\n"), result.err
    [submit] = cluster.asked_for(wire.Submit)
    *series, job = submit.specs
    assert [spec.profiling for spec in series] == ["only"] * 5
    assert [(each.job_id, each.need) for each in job.after] == [(spec.job_id, "any") for spec in series]
    assert (job.gpus, job.profiling) == (2, "auto")
    assert "COTENANT_PROFILING" not in job.launch.env
    assert "profiling first: 5 jobs" in result.err


def test_a_job_file_can_ask_for_the_series_and_run_cannot(
    cluster: StandIn, cotenant: Cotenant, at_home: Path
) -> None:
    (at_home / "job.yaml").write_text("command: ./python train.py\nprofile: full\n")
    assert cotenant("submit", "job.yaml").out == "25\n"
    result = cotenant("run", "--profile", "full", "--", "./python", "train.py")
    assert result.code == 2 and "it is for submit" in result.err


@pytest.mark.parametrize(("word", "profiling"), [("auto", "auto"), ("never", "never")])
def test_submit_may_ask_for_the_profile_in_place_or_for_none(
    cluster: StandIn, cotenant: Cotenant, word: str, profiling: str
) -> None:
    assert cotenant("submit", "--profile", word, "--", "./python", "train.py").code == 0
    assert cluster.asked_for(wire.Submit)[0].specs[0].profiling == profiling


# --- What is kept -----------------------------------------------------------------------------------


def test_profile_list_and_show(controller: StandIn, cotenant: Cotenant) -> None:
    controller.says(wire.ListProfiles, known_list(known(), known("fedcba654321", gpus=4, hosts=2)))
    table = cotenant("profile", "list", "-o", "wide").out.splitlines()
    assert table[1].split()[:8] == ["abcdef123456", "train", "ada", "1", "cpu", "8", "1,2", "0.12s"]
    assert "4/2 hosts" in table[2]
    document = json.loads(cotenant("profile", "list", "-o", "json").out)
    assert document["schema"] == "known-profiles/1"
    assert document["known-profiles"][0]["schema"] == "known-profile/1"
    page = cotenant("profile", "show", "abc").out
    assert "not measured" in page and "0.01" in page and "python train.py" in page
    assert json.loads(cotenant("profile", "show", "abc", "-o", "json").out)["key"] == "abcdef123456"
    assert cotenant("profile", "show", "nothing").code == 3


def test_commands_that_differ_in_numbers_are_one_line_and_shown_one_by_one(
    controller: StandIn, cotenant: Cotenant
) -> None:
    larger = msgspec.structs.replace(MEASURED, points=(msgspec.structs.replace(POINTS[0], memory_mib=420.0),))
    words: dict[str, Any] = {"family": "fa0000000000", "family_run_s": (20.0, 90.0)}
    words["family_words"] = ("python", "train.py", "--lr", "#")
    rows = [
        known(f"key{at}", each, command=("python", "train.py", "--lr", f"0.{at}"), **words)
        for at, each in enumerate((MEASURED, larger))
    ]
    alone = known("other0000000", command=("python", "other.py", "3"), family="fb0000000000")
    controller.says(wire.ListProfiles, known_list(*rows, alone))
    table = [" ".join(line.split()) for line in cotenant("profile", "list").out.splitlines()]
    assert table[1].startswith("fa0000000000 train") and table[1].endswith("python train.py --lr #")
    assert "300M to 420M" in table[1] and " 2 20s to 1m30s " in table[1]
    assert table[2].startswith("other0000000") and table[2].endswith("python other.py 3")
    assert len(json.loads(cotenant("profile", "list", "-o", "json").out)["known-profiles"]) == 3
    shown = cotenant("profile", "show", "fa0").out
    assert "--lr 0.0" in shown and "--lr 0.1" in shown and "other.py" not in shown


def test_profile_forget(controller: StandIn, cotenant: Cotenant) -> None:
    lines = ("profile abc is forgotten",)
    controller.says(wire.ForgetProfiles, wire.Done(request_id=0, lines=lines))
    assert cotenant("profile", "forget", "abc").out == "profile abc is forgotten\n"
    cotenant("profile", "forget", "--all")
    assert [each.keys for each in controller.asked_for(wire.ForgetProfiles)] == [("abc",), ()]
    assert cotenant("profile", "forget").code == 2


# --- The code of a command --------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {
        "train.py": "import model",
        "model.py": "x = 1",
        "config.yaml": "lr: 1",
        "data.csv": "1,2",
        "pack/part.py": "y = 1",
        ".hidden/z.py": "z = 1",
        "venv/pyvenv.cfg": "",
        "venv/lib/z.py": "z = 1",
        "bin/python": "#!/bin/sh",
        "lib/python3.11/site-packages/torch-2.13.0.dist-info/METADATA": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "bin/python").chmod(0o755)
    return tmp_path


COMMAND = ("bin/python", "train.py", "--config", "config.yaml")
Change = Callable[[Path], object]
MATTERS: dict[str, Change] = {
    "the script": lambda t: (t / "train.py").write_text("import other"),
    "a module beside it": lambda t: (t / "model.py").write_text("x = 2"),
    "a module of a package below": lambda t: (t / "pack/part.py").write_text("y = 2"),
    "a new module": lambda t: (t / "new.py").write_text(""),
    "a configuration file that is named": lambda t: (t / "config.yaml").write_text("lr: 2"),
    "an installed package's version": lambda t: (
        t / "lib/python3.11/site-packages/torch-2.13.0.dist-info"
    ).rename(t / "lib/python3.11/site-packages/torch-2.14.0.dist-info"),
}
DOES_NOT: dict[str, Change] = {
    "a file that is not named": lambda t: (t / "data.csv").write_text("3,4"),
    "a hidden folder": lambda t: (t / ".hidden/z.py").write_text("z = 2"),
    "an environment beside the script": lambda t: (t / "venv/lib/z.py").write_text("z = 2"),
    "when a file was written": lambda t: os.utime(t / "train.py", (1, 1)),
}


@pytest.mark.parametrize("change", MATTERS.values(), ids=MATTERS.keys())
def test_what_matters_changes_the_code(tree: Path, change: Change) -> None:
    before = code_sha256(COMMAND, tree, "/usr/bin")
    change(tree)
    assert before and code_sha256(COMMAND, tree, "/usr/bin") not in ("", before)


@pytest.mark.parametrize("change", DOES_NOT.values(), ids=DOES_NOT.keys())
def test_what_does_not_matter_does_not(tree: Path, change: Change) -> None:
    before = code_sha256(COMMAND, tree, "/usr/bin")
    change(tree)
    assert before == code_sha256(COMMAND, tree, "/usr/bin")


def test_what_is_too_much_to_read_is_no_code_at_all(tree: Path) -> None:
    for number in range(FILES_MAX):
        (tree / f"part_{number}.py").touch()
    assert code_sha256(COMMAND, tree, "/usr/bin") == ""
    assert code_sha256(("no-such-program",), tree, "/nowhere") == ""
