"""Flags, YAML files and scripts become the same typed specification; what is wrong is named with its line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from cotenant.controller.domain import WEBHOOK_VARIABLE, Container, Dependency, JobSpec, Mount
from cotenant.controller.submission.build import Submission, Submitter, submission
from cotenant.controller.submission.moments import moment
from cotenant.controller.submission.options import BY_KEY, OPTIONS, BadSubmission, Option, Options, read
from cotenant.controller.submission.recording import account_home, is_secret, record
from cotenant.controller.submission.yaml_file import read_job_file
from cotenant.controller.wire import clients as wire

PYTHON = ("python3", "-c", "pass")
ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/home/ada", "HF_TOKEN": "hush", "LANG": "C"}


def given(**texts: str) -> Options:
    return {key: read(BY_KEY[key], (text,), BY_KEY[key].flag) for key, text in texts.items()}


def submitted(
    folder: Path,
    *words: str,
    flags: Options | None = None,
    environ: Mapping[str, str] = ENVIRON,
    same_machine: bool = True,
    command_only: bool = False,
) -> Submission:
    where = Submitter(folder=folder, environ=environ, same_machine=same_machine)
    return submission(words or PYTHON, flags or {}, where, command_only=command_only)


def spec_of(folder: Path, *words: str, **texts: str) -> JobSpec:
    return submitted(folder, *words, flags=given(**texts)).request.specs[0]


def refused(folder: Path, *words: str, **texts: str) -> str:
    with pytest.raises(BadSubmission) as error:
        spec_of(folder, *words, **texts)
    assert "\n" not in error.value.message
    return f"{error.value.message}; {error.value.hint}"


def file(path: Path, text: str, mode: int = 0o644) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


# --- Flags ------------------------------------------------------------------------------------------


def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    assert "is a folder; name a file in it" in refused(tmp_path, output="logs")
    assert "does not exist; mkdir -p" in refused(tmp_path, output="nowhere/x")
    assert spec_of(tmp_path, output="logs/%j.out").launch.output == f"{tmp_path}/logs/%j.out"
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    file(tmp_path / "closed", "", 0o444)
    (tmp_path / "logs").chmod(0o555)
    for output, place in (("closed", "closed"), ("logs/%j.out", "logs")):
        assert f"you may not write to {tmp_path / place}" in refused(tmp_path, output=output)


def test_every_flag_reaches_the_specification(tmp_path: Path) -> None:
    measured = file(
        tmp_path / "profile.json",
        json.dumps(
            {
                "schema": "profile/1",
                "points": [{"sub_batch": 8, "accumulation_steps": 1, "step_s": 0.1, "memory_mib": 9}],
            }
        ),
    )
    spec = spec_of(
        tmp_path, *PYTHON,
        gpus="4", nodes="2", time="2h", expect="90", mem="8G", cpus="3", host_mem="16G", name="x",
        batch_size="64", iterations="100", share="never", gpu_type="NVIDIA-H200", constraint="nvlink,ib",
        workdir=str(tmp_path), output="out-%j.txt", retries="2", requeue_at_limit="4",
        env="A=1", after="3,any:4_1", launch="host",
        hold="yes", profile=str(measured), resumable="yes", accumulate="mean", checkpoint="auto",
        watchdog="90s", notify="fail,a@x.org", idle="Warn:5m, stop:2h",
        priority="-7", organisation="vision", link="https://a.example/{job}", begin="2099-01-01T00:00+00:00",
        image="a/b:1", mount="/data:/d:ro", devices_as="index",
        **{"class": "hp"},
    )  # fmt: skip
    assert spec.launch.container == Container(
        image="a/b:1", mounts=(Mount(source="/data", target="/d", read_only=True),)
    )
    assert (spec.gpus_min, spec.gpus_max, spec.nodes) == (4, 4, 2)
    assert (spec.time_limit_s, spec.expected_s) == (7200, 5400)
    assert (spec.memory_mib, spec.cpus, spec.host_memory_mib) == (8192, 3, 16_384)
    assert (spec.name, spec.batch_size, spec.iterations, spec.retries) == ("x", 64, 100, 2)
    assert spec.requeues == 4
    assert spec.notify == ("fail", "a@x.org")
    assert (spec.priority, spec.organisation) == (-7, "vision")
    assert (spec.share, spec.job_class, spec.gpu_type, spec.features) == (
        "never",
        "hp",
        "NVIDIA-H200",
        ("nvlink", "ib"),
    )
    assert (spec.hold, spec.resumable) == (True, True)
    assert spec.begin_s == 4_070_908_800
    assert spec.link == "https://a.example/{job}"
    assert spec.after == (Dependency(job_id="3"), Dependency(job_id="4_1", need="any"))  # type: ignore[arg-type]
    assert spec.profile is not None and spec.profile.points[0].sub_batch == 8
    launch = spec.launch
    assert (launch.workdir, launch.output, launch.mode) == (str(tmp_path), f"{tmp_path}/out-%j.txt", "host")
    assert launch.env["A"] == "1"
    assert (launch.watchdog_s, launch.devices_as, spec.idle) == (90, "index", "warn:5m,stop:2h")
    assert launch.zero_code == ("checkpoint", "progress"), "a job that never shares is never split"
    assert set(BY_KEY) - {"array", "export", "by", "promise", "if_possible", "snapshot"} == {
        "gpus", "nodes", "time", "budget", "expect", "mem", "cpus", "host_mem", "name", "batch_size",
        "iterations", "share", "class", "gpu_type", "constraint", "workdir", "output", "retries", "env",
        "after", "launch", "hold", "profile", "resumable", "cold", "accumulate", "checkpoint", "watchdog",
        "progress", "priority", "organisation", "requeue_at_limit", "notify", "begin", "idle", "link", "grid",
        "snapshot_add", "image", "mount", "devices_as",
    }, "a new option needs its line here"  # fmt: skip


def test_deepspeed_gets_indices_unless_it_was_said_otherwise(tmp_path: Path) -> None:
    found = []
    for words, flags in (
        (("env", "A=1", "deepspeed", "train.py"), {}),
        (("deepspeed", "train.py"), {"devices_as": "uuid"}),
        (("torchrun", "train.py"), {}),
    ):
        made = submitted(tmp_path, *words, flags=given(**flags), same_machine=False, command_only=True)
        found.append(made.request.specs[0].launch.devices_as)
    assert found == ["index", "uuid", ""]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ("accumulate", "quiet", "leave")),
        ({"share": "never"}, ("leave",)),
        ({"batch_size": "64"}, ("accumulate", "leave")),
        ({"batch_size": "64", "accumulate": "mean"}, ("accumulate", "mean", "leave")),
        ({"accumulate": "equivalent"}, ("accumulate", "equivalent", "leave")),
        ({"accumulate": "mean,equivalent"}, ("accumulate", "mean", "equivalent", "leave")),
        ({"accumulate": "equivalent", "share": "never"}, ("leave",)),
        ({"batch_size": "64", "accumulate": "never"}, ("leave",)),
        ({"batch_size": "64", "share": "never"}, ("leave",)),
        ({"accumulate": "auto"}, ("accumulate", "leave")),
        ({"checkpoint": "auto"}, ("accumulate", "quiet", "checkpoint")),
        ({"checkpoint": "never"}, ("accumulate", "quiet")),
        ({"checkpoint": "auto", "resumable": "no"}, ("accumulate", "quiet")),
        ({"resumable": "yes"}, ("accumulate", "quiet")),
        ({"checkpoint": "auto", "resumable": "yes"}, ("accumulate", "quiet", "checkpoint")),
        ({"batch_size": "64", "checkpoint": "auto"}, ("accumulate", "checkpoint")),
    ],
    ids=str,
)
def test_the_hook_is_asked_for_where_it_can_be_of_use(
    tmp_path: Path, given: dict[str, str], words: tuple[str, ...]
) -> None:
    assert spec_of(tmp_path, *PYTHON, **given).launch.zero_code == (*words, "progress")
    unasked = {"leave"} | ({"accumulate", "quiet"} if "quiet" in words else set())
    unwatched = spec_of(tmp_path, *PYTHON, **given, progress="never").launch
    asked = tuple(word for word in words if word not in unasked)
    assert unwatched.zero_code == asked, "nobody splits or saves what is not to be watched"


@pytest.mark.parametrize(
    ("texts", "word"), [({}, None), ({"checkpoint": "auto"}, "checkpoint"), ({"checkpoint": "never"}, None)]
)
def test_a_user_whose_scripts_are_never_saved_can_ask_for_it(
    tmp_path: Path, texts: dict[str, str], word: str | None
) -> None:
    where = Submitter(folder=tmp_path, environ=ENVIRON, same_machine=True, saves_scripts=False)
    (spec,) = submission(PYTHON, given(**texts), where).request.specs
    assert {"leave", "checkpoint"} & set(spec.launch.zero_code) == ({word} if word else set())


@pytest.mark.parametrize(("given", "seconds"), [("auto", None), ("off", 0.0), ("Never", 0.0), ("2h", 7200.0)])
def test_the_watchdog_is_declared_or_switched_off(tmp_path: Path, given: str, seconds: float | None) -> None:
    assert spec_of(tmp_path, *PYTHON, watchdog=given).launch.watchdog_s == seconds
    assert spec_of(tmp_path, *PYTHON).launch.watchdog_s is None


WRONG_FLAGS = {
    "a watchdog of no length": ("watchdog", "0s", "must be above 0"),
    "no GPUs": ("gpus", "0", "--gpus must be at least 1"),
    "fewer than no GPUs": ("gpus", "-2", "--gpus must be at least 1"),
    "too many GPUs": ("gpus", "99999999999", "at most"),
    "GPUs in words": ("gpus", "two", "--gpus must be a whole number, got 'two'"),
    "a malformed array": ("array", "1..5", "--array must be indices"),
    "an array with no number behind %": ("array", "0-9%", "must have a number behind %"),
    "an array of which none may run": ("array", "0-9%0", "must let at least 1 task run"),
    "an unknown class": ("class", "gold", "must be hp or spot"),
    "no duration": ("time", "soon", "--time must be a duration"),
    "what may be split in no known way": ("accumulate", "mean,never", "must be auto, mean, equivalent,"),
    "no variable": ("env", "1A=2", "must be NAME=VALUE"),
    "a grid without values": ("grid", "lr", "--grid must be NAME=VALUES"),
    "a grid with an empty value": ("grid", "lr=1,", "must have values of 1 to 128 characters"),
    "a grid with an empty range": ("grid", "seed=4..0", "has an empty range"),
    "a grid with a value twice": ("grid", "seed=0..4,3", "has a value twice"),
    "too many values of a grid": ("grid", "seed=0..999999999999", "may have 1000 values"),
    "a grid that nothing uses": ("grid", "seed=0..4", "--grid seed is not used"),
    "a grid with a secret's name": ("grid", "token=0..4", "this name is a secret's"),
    "a link with a password": ("link", "https://a:b@c.example", "--link must be http(s)://"),
    "no job": ("after", "mine", "must be job ids"),
    "an output of two lines": ("output", "a\nb", "--output must be a path in one line, got 'a\\nb'"),
    "an index too far": ("array", "1000000", "with indices up to 999999"),
    "a begin that no job sees": ("begin", "9999-01-01", "--begin must lie before the year 3000"),
    "no profile": ("profile", "/nowhere.json", "does not exist"),
}


@pytest.mark.parametrize(("key", "text", "says"), WRONG_FLAGS.values(), ids=WRONG_FLAGS.keys())
def test_a_wrong_flag_is_refused(tmp_path: Path, key: str, text: str, says: str) -> None:
    assert says in refused(tmp_path, *PYTHON, **{key: text})


def test_gpus_that_do_not_divide_over_the_hosts(tmp_path: Path) -> None:
    asked = {"gpus": "3", "nodes": "2", "launch": "worker"}
    assert "gpus 3 is not a multiple of nodes 2" in refused(tmp_path, *PYTHON, **asked)


def test_less_than_a_gpu_is_a_part_of_one(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, *PYTHON, gpus="0.25")
    assert (spec.gpus_min, spec.gpus_max, spec.gpu_fraction, spec.size) == (1, 1, 0.25, 0.25)
    assert "must be at least 0.01" in refused(tmp_path, *PYTHON, gpus="0.001")
    assert "must be a whole number" in refused(tmp_path, *PYTHON, gpus="1.5")


def test_a_range_of_gpus_is_an_elastic_job_with_a_batch(tmp_path: Path) -> None:
    joins = ("python3", "-c", "if args.ddp: torch.distributed.init_process_group()  # RANK", "--ddp")
    spec = spec_of(tmp_path, *joins, gpus="1-4", batch_size="8")
    assert (spec.gpus_min, spec.gpus_max, spec.is_elastic) == (1, 4, True)
    assert spec.launch.gives_ranks(1), "it may have had more before"
    told = submitted(tmp_path, *joins, flags=given(gpus="1-4", batch_size="8")).notes
    assert told[0].startswith(
        "1-4 processes, one per GPU: the text behind -c line 1 calls init_process_group"
    )
    assert refused(tmp_path, *joins, gpus="1-4") == (
        "--gpus 1-4: an elastic job must say its batch; add --batch-size N, per worker on 4 GPUs: a step "
        "keeps it on fewer"
    )
    assert "must be a number or MIN-MAX" in refused(tmp_path, *joins, gpus="4-1", batch_size="8")
    assert "cannot be divided equally among 2" in refused(tmp_path, *joins, gpus="2-3", batch_size="5")


def test_nodes_alone_mean_one_gpu_on_each(tmp_path: Path) -> None:
    assert spec_of(tmp_path, *PYTHON, nodes="2", launch="worker").gpus_min == 2


def test_one_process_has_one_host_and_is_not_elastic(tmp_path: Path) -> None:
    assert [spec_of(tmp_path, *PYTHON, gpus=text).nodes for text in ("1", "2", "0.5")] == [0, 1, 0]
    assert spec_of(tmp_path, *PYTHON, gpus="2", nodes="1").nodes == 1
    assert refused(tmp_path, *PYTHON, gpus="4", nodes="2") == (
        "--nodes 2: one process uses the GPUs of one host: the text behind -c makes no process group; "
        "--launch worker starts one per GPU, --launch host one per host"
    )
    assert refused(tmp_path, *PYTHON, gpus="1-4", launch="process") == (
        "--gpus 1-4: one process cannot be elastic; --launch worker starts one process per GPU"
    )
    assert spec_of(tmp_path, *PYTHON, gpus="4", nodes="2", launch="host").nodes == 2
    spawns = ("python3", "-c", "torch.multiprocessing.spawn(f)")
    assert [spec_of(tmp_path, *spawns, gpus=text).nodes for text in ("1", "2")] == [0, 1]
    assert "starts its workers itself" in refused(tmp_path, *spawns, gpus="4", nodes="2")


def test_a_job_of_several_gpus_is_told_how_often_it_is_started_unless_it_was_said(tmp_path: Path) -> None:
    file(tmp_path / "t.py", "import torch.distributed as dist\ndist.init_process_group()\n")
    words = ("python3", "t.py")
    assert submitted(tmp_path, *words, flags=given(gpus="2")).notes == (
        "2 processes, one per GPU: t.py line 2 calls init_process_group (--launch process starts it once)",
    )
    assert submitted(tmp_path, *PYTHON, flags=given(gpus="2")).notes == (
        (
            "one process that sees 2 GPUs of one host: the text behind -c makes no process group "
            "(--launch worker starts one per GPU)"
        ),
    )
    assert submitted(tmp_path, *words).notes == submitted(tmp_path).notes == ()
    for mode in ("worker", "host", "process"):
        made = submitted(tmp_path, *words, flags=given(gpus="2", launch=mode))
        assert (made.request.specs[0].launch.mode, made.notes) == (mode, ())


def test_scripts_of_one_sweep_start_alike(tmp_path: Path) -> None:
    for name, text in {"a": "", "b": "pass", "ddp": "torch.distributed.init_process_group()"}.items():
        file(tmp_path / f"{name}.py", text)
    words = ("python3", "{s}.py")
    assert spec_of(tmp_path, *words, grid="s=a,b").launch.mode == "process"
    assert refused(tmp_path, *words, grid="s=a,ddp") == (
        "the scripts of this sweep do not start alike; say how: --launch"
    )
    assert spec_of(tmp_path, *words, grid="s=a,ddp", launch="worker").launch.gives_ranks(1)


def test_an_array_is_one_task_per_index(tmp_path: Path) -> None:
    request = submitted(tmp_path, flags=given(array="1,5")).request
    assert request.array_indices == (1, 5)
    assert [spec.job_id for spec in request.specs] == ["new-0", "new-1"]
    assert [spec.launch.env["COTENANT_ARRAY_INDEX"] for spec in request.specs] == ["1", "5"]
    assert not any(spec.array_limit for spec in request.specs)
    assert submitted(tmp_path, flags=given(array="0-9%2")).request.specs[9].array_limit == 2


# --- What is taken along ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("home", "recorded"),
    [("/scratch/ada", {"HOME": "/scratch/ada"}), (account_home(), {}), ("", {}), (None, {})],
)
def test_a_home_that_is_not_the_accounts_is_the_jobs_as_well(
    home: str | None, recorded: dict[str, str]
) -> None:
    environ = {} if home is None else {"HOME": home}
    assert record(environ).open == recorded
    assert record(environ, export=("NONE",)).open == {}
    assert record({"HOME": "/a"}, env=(("HOME", "/b"),)).open == {"HOME": "/b"}


def test_the_usual_variables_are_recorded_and_no_others(tmp_path: Path) -> None:
    environ = {
        **ENVIRON,
        "HOME": account_home(),
        "VIRTUAL_ENV": "/v",
        "CONDA_PREFIX": "/c",
        "PYTHONPATH": "/p",
        "LD_LIBRARY_PATH": "/l",
    }
    launch = submitted(tmp_path, environ=environ).request.specs[0].launch
    assert set(launch.env) == {"PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "LD_LIBRARY_PATH"}


def test_secrets_travel_apart(tmp_path: Path) -> None:
    request = submitted(tmp_path, flags=given(env="WANDB_API_KEY=abc", export="HF_TOKEN")).request
    assert request.secrets == {"WANDB_API_KEY": "abc", "HF_TOKEN": "hush"}
    launch = request.specs[0].launch
    assert launch.secrets == ("HF_TOKEN", "WANDB_API_KEY")
    assert "abc" not in str(request.specs) and "hush" not in str(request.specs)


@pytest.mark.parametrize("name", ["HF_TOKEN", "my_secret", "AWS_ACCESS_KEY_ID", "DB_PASSWORD", "key"])
def test_what_looks_like_a_secret(name: str) -> None:
    assert is_secret(name)


def test_export_all_leaves_out_what_belongs_to_this_shell() -> None:
    ours = {
        "PWD": "/",
        "COTENANT_JOB": "3",
        "SLURM_JOB_ID": "1",
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
    }
    taken = record({"A": "1", **ours, "PATH": "/bin"}, ("ALL",))
    assert taken.open == {"A": "1", "PATH": "/bin"}


def test_export_none_takes_nothing_but_what_is_set() -> None:
    assert record({"PATH": "/bin"}, ("NONE",), (("B", "2"),)).open == {"B": "2"}


def test_a_variable_to_copy_must_exist(tmp_path: Path) -> None:
    assert "you have no variable NOPE" in refused(tmp_path, *PYTHON, env="NOPE")


def test_whose_mps_client_a_job_is_nobody_says_but_its_host() -> None:
    pipe = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}
    for export, env in (((), tuple(pipe.items())), (tuple(pipe), ())):
        with pytest.raises(BadSubmission, match="CUDA_MPS_PIPE_DIRECTORY: the agent of its host says"):
            record(pipe, export, env)


def test_too_many_variables_are_refused() -> None:
    with pytest.raises(BadSubmission, match="bytes"):
        record({"A": "x" * 1_000_000}, ("A",))


# --- The command ------------------------------------------------------------------------------------


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    assert "no command 'trian'" in refused(tmp_path, "trian")
    assert "did you mean python" in refused(tmp_path, "pyhton3", "x.py")


def test_on_a_cluster_the_same_is_a_note(tmp_path: Path) -> None:
    made = submitted(tmp_path, "trian", same_machine=False)
    assert "no command 'trian'" in made.notes[0]


def test_a_script_that_does_not_exist(tmp_path: Path) -> None:
    file(tmp_path / "train.py", "")
    assert "trian.py does not exist in" in refused(tmp_path, "python3", "trian.py")
    assert "did you mean train.py?" in refused(tmp_path, "python3", "-u", "trian.py")
    assert "nothing to run" in refused(tmp_path, "python3")


def test_a_program_that_is_not_executable(tmp_path: Path) -> None:
    file(tmp_path / "train.py", "")
    file(tmp_path / "with_shebang", "#!/bin/sh\n")
    assert "start it with python ./train.py" in refused(tmp_path, "./train.py")
    assert "chmod +x ./with_shebang" in refused(tmp_path, "./with_shebang")
    assert "did you mean python train.py?" in refused(tmp_path, "train.py")
    assert "is a folder" in refused(tmp_path, "./")


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert "working directory" in refused(tmp_path, *PYTHON, workdir="nowhere")


@pytest.mark.parametrize("program", ["docker", "podman", "apptainer", "/usr/bin/singularity"])
def test_containers_are_refused_plainly(tmp_path: Path, program: str) -> None:
    assert "name the image with --image" in refused(tmp_path, program, "run", "image")


def test_nothing_to_run(tmp_path: Path) -> None:
    with pytest.raises(BadSubmission, match="no command"):
        submission((), {}, Submitter(folder=tmp_path, environ={}))


# --- YAML -------------------------------------------------------------------------------------------


def test_a_yaml_file_says_what_flags_say(tmp_path: Path) -> None:
    path = file(
        tmp_path / "job.yaml",
        "command: python3 -c 'print(1)'\ngpus: 2\ntime: 10:30\nclass: hp\nhold: no\n"
        "env:\n  A: no\n  MY_TOKEN: 3\nafter: [3, any:4]\nconstraint: [nvlink, ib]\nexport: [HOME]\n",
    )
    made = submitted(tmp_path, str(path))
    spec = made.request.specs[0]
    assert spec.launch.argv == ("python3", "-c", "print(1)")
    assert (spec.gpus_min, spec.time_limit_s, spec.job_class, spec.hold) == (2, 630, "hp", False)
    assert spec.launch.env["A"] == "no", "YAML must not make a boolean of it"
    assert made.request.secrets == {"MY_TOKEN": "3"}
    assert [d.job_id for d in spec.after] == ["3", "4"]
    assert spec.features == ("nvlink", "ib")


@pytest.mark.parametrize("key", list(BY_KEY))
def test_every_option_is_a_yaml_key(tmp_path: Path, key: str) -> None:
    path = file(tmp_path / "job.yaml", f"command: x\n{key}: ''\n")
    problem = ""
    try:
        read_job_file(path)
    except BadSubmission as error:
        problem = error.message
    assert "unknown key" not in problem


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = file(tmp_path / "job.yaml", "command: [python3, -c, pass]\ngpus: 2\nenv: {A: 1, B: 1}\n")
    spec = spec_of(tmp_path, str(path), gpus="1", env="A=2")
    assert spec.gpus_min == 1
    assert (spec.launch.env["A"], spec.launch.env["B"]) == ("2", "1")


WRONG_YAML = {
    "unknown key": ("command: x\ngpu: 2\n", ":2: unknown key 'gpu'; did you mean gpus?"),
    "container": ("command: x\ncontainer: y\n", ":2: cotenant starts containers itself"),
    "no command": ("gpus: 2\n", "there is no `command`"),
    "wrong value": ("command: x\n\ngpus: -1\n", ":3: gpus must be at least 1"),
    "given twice": ("command: x\ngpus: 1\ngpus: 2\n", ":3: 'gpus' is given twice, first in line 2"),
    "not YAML": ("command: [x\n", "not valid YAML"),
    "a list": ("- x\n", "must be keys and values"),
    "nested": ("command: x\ngpus: {a: 1}\n", ":2: gpus must be one value, got names and values"),
    "a list for a number": ("command: x\ngpus: [1]\n", ":2: gpus must be one value, got a list"),
    "a variable twice": ("command: x\nenv: {A: 1, A: 2}\n", ":2: env gives A twice"),
    "a variable without a value": ("command: x\nenv: {A: }\n", ":2: env: A has no value"),
    "a list for a key": ("command: x\n? [a]\n: 1\n", ":2: a key must not be nested"),
    "a tag": ("command: !!python/object/apply:os.system [x]\ngpus: {}\n", ":2: gpus"),
    "unclosed quote": ("command: python 'x\n", "no closing quotation"),
}


@pytest.mark.parametrize(("text", "says"), WRONG_YAML.values(), ids=WRONG_YAML.keys())
def test_a_wrong_yaml_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = file(tmp_path / "job.yaml", text)
    assert f"{path}" in (problem := refused(tmp_path, str(path)))
    assert says in problem


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_a_list_is_for_options_that_take_one(tmp_path: Path, option: Option) -> None:
    path = file(tmp_path / "job.yaml", f"command: x\n{option.key}: [[1]]\n")
    with pytest.raises(BadSubmission, match=rf"job.yaml:2: {option.key} must (not be nested|be one value)"):
        read_job_file(path)
    path = file(tmp_path / "job.yaml", f"command: x\n{option.key}: {{1: 1}}\n")
    with pytest.raises(BadSubmission, match=rf"job.yaml:2: {option.key} must be"):
        read_job_file(path)
    path = file(tmp_path / "job.yaml", f"command: x\n{option.key}:\n")
    with pytest.raises(BadSubmission, match=rf"job.yaml:2: {option.key} has no value"):
        read_job_file(path)


def test_a_yaml_file_that_does_not_exist(tmp_path: Path) -> None:
    file(tmp_path / "train.yaml", "")
    assert "did you mean" in refused(tmp_path, str(tmp_path / "trian.yaml"))


def test_flags_behind_the_file_are_not_lost_in_silence(tmp_path: Path) -> None:
    path = file(tmp_path / "job.yaml", "command: x\n")
    assert "flags go before it" in refused(tmp_path, str(path), "-g", "2")


# --- Scripts ----------------------------------------------------------------------------------------


def test_a_script_with_our_lines(tmp_path: Path) -> None:
    path = file(
        tmp_path / "train.sh",
        "#!/bin/bash -l\n# a comment\n#COTENANT -g 2 --time=1h --name 'my run'\n#COTENANT --hold --env A=1\n"
        "\npython train.py\n#COTENANT --gpus 7\n",
    )
    spec = spec_of(tmp_path, str(path), "arg")
    assert spec.launch.argv == ("/bin/bash", "-l", str(path), "arg")
    assert (spec.gpus_min, spec.time_limit_s, spec.name, spec.hold) == (2, 3600, "my run", True)
    assert spec.launch.env["A"] == "1"


def test_a_slurm_script(tmp_path: Path) -> None:
    path = file(
        tmp_path / "job.slurm",
        "#!/bin/bash\n#SBATCH -J hello --gres=gpu:a100:2 -N2\n#SBATCH --ntasks-per-node=2 -c 3 --mem=64G\n"
        "#SBATCH --mail-type=ALL -p long\n#SBATCH -o log-%A_%a.txt --dependency=afterok:3:4\n#SBATCH -a 1-2\n"
        "#SBATCH --time=1-0 --exclusive\n#COTENANT --mem 4G\nsrun python x.py\n",
    )
    made = submitted(tmp_path, str(path))
    spec = made.request.specs[0]
    assert (spec.name, spec.gpus_min, spec.nodes, spec.gpu_type) == ("hello", 4, 2, "a100")
    assert (spec.cpus, spec.host_memory_mib, spec.memory_mib) == (6, 65_536, 4096)
    assert (spec.time_limit_s, spec.share) == (86_400, "never")
    assert [d.job_id for d in spec.after] == ["3", "4"]
    assert spec.launch.output == f"{tmp_path}/log-%A_%i.txt"
    assert spec.launch.env["SLURM_ARRAY_TASK_ID"] == "1"
    notes = "\n".join(made.notes)
    assert "left out: -p (line 4)" in notes
    assert spec.notify == ("start", "end", "fail", "preempt", "idle")
    assert spec.launch.mode == "host", "srun starts the ranks"


def test_a_script_that_starts_torchrun_runs_once_per_host(tmp_path: Path) -> None:
    path = file(tmp_path / "t.sh", "#!/bin/sh\n#COTENANT -g 2\ntorchrun --nproc-per-node 2 train.py\n")
    assert spec_of(tmp_path, str(path)).launch.mode == "host"


WRONG_SCRIPTS = {
    "unknown flag": ("#!/bin/sh\n#COTENANT --gpu 2\n", ":2: #COTENANT: unknown option --gpu; did you mean"),
    "unknown Slurm flag": ("#!/bin/sh\n\n#SBATCH --gpu=2\n", ":3: #SBATCH: unknown option --gpu"),
    "another resource": ("#!/bin/sh\n#SBATCH --gres=tape:2\n", "something other than gpu"),
    "no value": ("#!/bin/sh\n#COTENANT -g\n", ":2: #COTENANT: -g needs a value"),
    "a container": ("#!/bin/sh\n#COTENANT --container x\n", "cotenant starts containers itself"),
    "not an option": ("#!/bin/sh\n#COTENANT gpus 2\n", "'gpus' is not an option"),
    "an unknown pattern": ("#!/bin/sh\n#SBATCH -o %y.txt\n", "%y"),
    "an open quote": ("#!/bin/sh\n#COTENANT --name 'x\n", ":2: #COTENANT: no closing quotation"),
    "no shebang": ("#COTENANT -g 2\n", "has no first line such as #!/bin/bash"),
    "zero GPUs": ("#!/bin/sh\n#SBATCH -G 0\n", "-G must be at least 1"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "says"), WRONG_SCRIPTS.values(), ids=WRONG_SCRIPTS.keys())
def test_a_wrong_script_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = file(tmp_path / "train.sh", text)
    assert str(path) in (problem := refused(tmp_path, str(path)))
    assert says in problem


def test_after_dashes_a_script_is_a_command(tmp_path: Path) -> None:
    path = file(tmp_path / "train.sh", "#!/bin/sh\n#COTENANT -g 2\n", 0o755)
    spec = submitted(tmp_path, str(path), command_only=True).request.specs[0]
    assert (spec.launch.argv, spec.gpus_min) == ((str(path),), 1)


# --- Promised ends ----------------------------------------------------------------------------------

NOON = datetime(2026, 5, 1, 12, 0, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+90m", "2026-05-01T13:30:00+02:00"),
        ("14:05", "2026-05-01T14:05:00+02:00"),
        ("9:30", "2026-05-02T09:30:00+02:00"),
        ("2026-05-01T12:30", "2026-05-01T12:30:00+02:00"),
        ("2026-05-01T12:30:00+00:00", "2026-05-01T12:30:00+00:00"),
    ],
)
def test_a_time_to_come_is_in_the_zone_of_whoever_writes_it(text: str, expected: str) -> None:
    assert moment(text, NOON).isoformat() == expected


@pytest.mark.parametrize("text", ["2026-05-01T11:00", "25:00", "+0m", "soon", ""])
def test_a_time_that_is_none_or_has_passed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must (be a time such as \+2h|lie ahead)"):
        moment(text, NOON)


def test_a_promise_is_asked_for_in_seconds_from_now(tmp_path: Path) -> None:
    asked = submitted(tmp_path, flags=given(by="+2h", if_possible="yes")).request.promise
    assert asked is not None
    assert asked.within_s == pytest.approx(7200.0, abs=60.0)
    assert asked.is_optional
    assert submitted(tmp_path, flags=given(promise="yes")).request.promise == wire.PromiseAsked()
    assert submitted(tmp_path).request.promise is None


def test_promises_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    assert "leave one of them out" in refused(tmp_path, by="+2h", promise="yes")
    assert "promises nothing" in refused(tmp_path, if_possible="yes")


# --- Being told -------------------------------------------------------------------------------------

ANNA = ("end", "preempt", "anna@lab.example")
TOLD: dict[str, tuple[str | None, tuple[str, ...], tuple[str, ...]]] = {
    "as the settings say": (None, ANNA, ANNA),
    "an address alone is nothing to be told of": (None, ("anna@lab.example",), ()),
    "other kinds, to the usual address": ("fail,start", ANNA, ("start", "fail", "anna@lab.example")),
    "the usual kinds, to another address": ("b@x.org", ANNA, ("end", "preempt", "b@x.org")),
    "an address, and no usual kinds": ("b@x.org", (), ("end", "b@x.org")),
    "all": ("all", (), ("start", "end", "fail", "preempt", "idle")),
    "nothing, whatever is usual": ("none", ANNA, ()),
}


@pytest.mark.parametrize(("given", "usual", "told"), TOLD.values(), ids=TOLD.keys())
@pytest.mark.parametrize("webhook", ["", "https://hooks.example/t0ken"])
def test_of_what_and_where_one_is_told(
    tmp_path: Path, given: str | None, usual: tuple[str, ...], told: tuple[str, ...], webhook: str
) -> None:
    flags = {"notify": read(BY_KEY["notify"], (given,), "--notify")} if given is not None else {}
    where = Submitter(folder=tmp_path, environ=os.environ, notify=usual, webhook=webhook)
    request = submission(PYTHON, flags, where, command_only=True).request
    assert request.specs[0].notify == told
    has_webhook = bool(webhook and told)
    assert request.secrets == ({WEBHOOK_VARIABLE: webhook} if has_webhook else {})
    assert request.specs[0].launch.secrets == ((WEBHOOK_VARIABLE,) if has_webhook else ())


MAIL_LINES = {
    "--mail-type=BEGIN,FAIL": ("start", "fail"),
    "--mail-type=TIME_LIMIT,TIME_LIMIT_90": ("fail",),
    "--mail-type=TIME_LIMIT_50": (),
    "--mail-type=NONE": (),
    "--mail-user=a@x.org": (),
    "--mail-user=a@x.org --mail-type=end": ("end", "a@x.org"),
    "--mail-user=ada --mail-type=REQUEUE": ("preempt",),
}


@pytest.mark.parametrize(("line", "told"), MAIL_LINES.items())
def test_slurm_s_mail(tmp_path: Path, line: str, told: tuple[str, ...]) -> None:
    path = file(tmp_path / "job.sh", f"#!/bin/bash\n#SBATCH {line}\npython x.py\n")
    assert spec_of(tmp_path, str(path)).notify == told


def test_a_type_of_mail_that_slurm_does_not_know_is_refused(tmp_path: Path) -> None:
    path = file(tmp_path / "job.sh", "#!/bin/bash\n#SBATCH --mail-type=FAILS\npython x.py\n")
    with pytest.raises(BadSubmission, match="'FAILS' is not known") as caught:
        spec_of(tmp_path, str(path))
    assert "FAIL" in caught.value.hint
