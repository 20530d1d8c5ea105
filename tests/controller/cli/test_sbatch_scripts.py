"""Scripts as people bring them from Slurm, of different habits: what each asks for here, and what its author
is told. The scripts are in `sbatch/`, and are nobody's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cotenant.controller.domain import Dependency, JobId, JobSpec
from cotenant.controller.submission.build import Submission, Submitter, submission
from cotenant.controller.submission.options import BadSubmission

SCRIPTS = Path(__file__).parent / "sbatch"
ENVIRON = {"PATH": "/usr/bin:/bin", "DATA": "/mine", "EDITOR": "ed", "SLURM_JOB_ID": "77"}
HOME = Path("/home/ada")
CPUS, NODE_TASKS, NODE_GPUS = "SLURM_CPUS_PER_TASK", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS_PER_NODE"

SPECS: dict[str, dict[str, Any]] = {
    "01_single_gpu_conda": {
        "name": "finetune", "gpus": 1, "nodes": 1, "cpus": 8, "host_memory_mib": 32_768,
        "time_limit_s": 4 * 3600, "output": "%x-%j.out", CPUS: "8", "SLURM_JOB_PARTITION": "gpu",
        "notes": ["--error: both streams go to one file", "left out: --partition (line 3)"],
    },
    "02_modules_login_shell": {
        "name": "resnet", "gpus": 4, "nodes": 1, "gpu_type": "a100", "cpus": 40,
        "time_limit_s": 131_400, "organisation": "project_1234",
        "output": "resnet.%j.log", "tasks": 4, "SLURM_JOB_ACCOUNT": "project_1234",
        "argv": ("/bin/bash", "-l"), "notes": ["left out: -p (line 3)"],
    },
    "03_array_throttled": {
        "name": "sweep", "gpus": 1, "nodes": 1, "array": tuple(range(32)), "array_limit": 4,
        "output": "sweep_%A_%i.out", "SLURM_ARRAY_TASK_COUNT": "32", "SLURM_ARRAY_TASK_MAX": "31",
        "notes": ["--mem=0: main memory is not limited"],
    },
    "04_torchrun_one_node": {
        "gpus": 8, "nodes": 1, "cpus": 96, "share": "never", "time_limit_s": 172_800, "tasks": 1,
        "tasks_per_host": 1,
        "output": "torchrun-%x.%j.log", NODE_TASKS: "1", NODE_GPUS: "8", "argv": ("/usr/bin/env", "bash"),
        "notes": ["--exclusive: nobody shares its GPUs"],
    },
    "05_torchrun_many_nodes": {
        "name": "multinode-example", "gpus": 4, "nodes": 4, "cpus": 4, "tasks": 4, "gpus_per_task": 1,
        "notes": ["it runs once on each of its 4 hosts"],
    },
    "06_signal_requeue": {
        "name": "long-run", "gpus": 1, "nodes": 1, "time_limit_s": 1800, "signal": 10,
        "signal_before_s": 120.0, "signal_script": True,
        "notes": ["left out: --requeue (line 6), --open-mode (line 7)"],
    },
    "07_dependency_mail": {
        "organisation": "nlp",
        "name": "evaluate", "gpus": 1, "after": (Dependency(job_id=JobId("123")),), "SLURM_JOB_QOS": "normal",
        "notify": ("end", "fail", "ada@example.org"),
        "notes": ["--qos (line 7)"],
    },
    "08_commented_and_late": {
        "gpus": 2, "nodes": 1, "time_limit_s": 2700, "argv": ("/bin/sh",),
        "notes": ["directives behind the first command (line 8) are comments: line 9"],
    },
    "09_constraint_mem_per_cpu": {
        "gpus": 2, "features": ("a100", "nvlink"), "cpus": 12, "host_memory_mib": 12 * 4096,
        "time_limit_s": 5400,
    },
    "10_background_steps": {"name": "four-seeds", "gpus": 4, "nodes": 1, "tasks": 4},
    "11_deepspeed": {
        "name": "zero3", "gpus": 8, "nodes": 1, "gpu_type": "h100", "host_memory_mib": 921_600,
        "time_limit_s": 86_400, "output": "%u-%x-%j-%N.log", "devices_as": "index",
    },
    "12_master_addr_idiom": {
        "gpus": 8, "nodes": 2, "cpus": 48, "tasks": 8, "tasks_per_host": 4, NODE_TASKS: "4", CPUS: "12",
        "notes": ["left out: --hint (line 6)", "it runs once on each of its 2 hosts"],
    },
    "13_lightning": {
        "gpus": 4, "nodes": 2, "gpu_type": "v100", "host_memory_mib": 98_304, "tasks": 4, "tasks_per_host": 2,
        "signal": 10, "signal_before_s": 90.0, "time_limit_s": 28_800, "argv": ("/bin/bash", "-e"),
        "notes": ["it runs once on each of its 2 hosts"],
    },
    "14_array_list_and_step": {
        "gpus": 1, "array": (1, 3, 10, 15, 20), "array_limit": 2, "output": "logs/%4i-%A.txt",
        "env": {"DATA": "/data/imagenet", "EDITOR": "ed"}, "SLURM_ARRAY_TASK_MIN": "1",
    },
    "15_several_on_a_line": {
        "name": "hello", "gpus": 2, "nodes": 1, "tasks": 2, "workdir": "/scratch/ada",
        "notes": ["left out: --wckey (line 4), --comment (line 4)"],
    },
    "16_typed_gpus": {
        "gpus": 8, "nodes": 2, "gpu_type": "a100", "tasks": 8, NODE_GPUS: "4",
        "notes": ["--switches (line 5), --kill-on-invalid-dep (line 6)", "it runs once on each of its 2"],
    },
    "17_no_gpu_preprocess": {
        "name": "make shards", "gpus": 1, "nodes": 1, "host_memory_mib": 32_000, "time_limit_s": 150,
        "tasks": 16,
        "notes": ["no line asks for a GPU: it gets one on each host"],
    },
    "18_hold_export_none": {
        "gpus": 1, "nodes": 1, "hold": True, "env": {},
        "notes": ["left out: --no-requeue (line 5), --reservation (line 7)"],
    },
    "19_accelerate_many_nodes": {
        "name": "multinode", "gpus": 16, "nodes": 4, "cpus": 160, "time_limit_s": 7140, "tasks": 4,
        "tasks_per_host": 1, "output": "O-%x.%j",
        "notes": ["--error: both streams go to one file", "it runs once on each of its 4 hosts"],
    },
    "20_gpus_per_task_steps": {
        "gpus": 8, "nodes": 2, "cpus": 16, "tasks": 4, "tasks_per_host": 2, "gpus_per_task": 2,
        "notes": ["left out: --distribution (line 6), --gpu-bind (line 7)", "it runs once on each of its 2"],
    },
}  # fmt: skip
"""What differs from a job that asks for nothing."""


def submitted(path: Path) -> Submission:
    return submission((str(path),), {}, Submitter(folder=HOME, environ=ENVIRON, same_machine=False))


def plain(name: str) -> dict[str, Any]:
    asked = JobSpec(job_id=JobId("new-0"))
    spec = {field: getattr(asked, field) for field in FIELDS}
    return {
        **spec, "name": name, "gpus": 1, "output": "", "workdir": str(HOME), "array": (), "mode": "host",
        "devices_as": "", "argv": ("/bin/bash",), "env": {"DATA": "/mine", "EDITOR": "ed"},
        **dict.fromkeys(NUMBERS, 0),
    }  # fmt: skip


FIELDS = (
    "nodes", "gpu_type", "features", "cpus", "host_memory_mib", "time_limit_s", "share", "after", "hold",
    "array_limit", "organisation", "priority", "notify",
)  # fmt: skip
NUMBERS = (
    "tasks", "tasks_per_host", "gpus_per_task", "signal", "signal_before_s",
    "signal_script",
)  # fmt: skip
PLACE = ("SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST")


def told(made: Submission) -> dict[str, Any]:
    spec = made.request.specs[0]
    launch, slurm = spec.launch, spec.launch.slurm
    assert slurm
    ours = ("PATH", "COTENANT_ARRAY_INDEX", "SLURM_ARRAY_TASK_ID")
    return {
        **{field: getattr(spec, field) for field in FIELDS},
        **{field: getattr(slurm, field) for field in NUMBERS},
        "name": spec.name,
        "gpus": spec.gpus_min,
        "output": launch.output.removeprefix(f"{launch.workdir}/"),
        "workdir": launch.workdir,
        "array": made.request.array_indices,
        "mode": launch.mode,
        "devices_as": launch.devices_as,
        "argv": launch.argv[:-1],
        "env": {name: value for name, value in launch.env.items() if name not in ours},
        "variables": {name: value for name, value in slurm.variables.items() if name not in PLACE},
    }


def test_there_is_a_line_for_each_script() -> None:
    assert sorted(SPECS) == sorted(path.stem for path in SCRIPTS.iterdir())


@pytest.mark.parametrize("name", SPECS)
def test_what_a_script_asks_for(name: str) -> None:
    wanted = dict(SPECS[name])
    notes = wanted.pop("notes", [])
    variables = {each: wanted.pop(each) for each in list(wanted) if each.startswith("SLURM_")}
    made = submitted(SCRIPTS / f"{name}.sh")
    found = told(made)
    known = found.pop("variables")
    assert found == {**plain(name), **wanted}
    assert {each: known.get(each) for each in variables} == variables
    said = [note for note in made.notes if not note.startswith("on this machine")]
    assert len(said) == len(notes), said
    assert [note for note in notes if not any(note in each for each in said)] == []


def test_it_knows_where_it_was_submitted_and_its_tasks_where_they_stand() -> None:
    specs = submitted(SCRIPTS / "14_array_list_and_step.sh").request.specs
    slurm = [spec.launch.slurm for spec in specs]
    assert [each.array_position for each in slurm if each] == [0, 1, 2, 3, 4]
    assert [spec.launch.env["SLURM_ARRAY_TASK_ID"] for spec in specs] == ["1", "3", "10", "15", "20"]
    assert all(each.variables["SLURM_SUBMIT_DIR"] == "/home/ada" for each in slurm if each)


# --- What is wrong with a script --------------------------------------------------------------------


def refused(folder: Path, *lines: str) -> BadSubmission:
    path = folder / "job.sh"
    path.write_text("\n".join(("#!/bin/bash", *lines, "srun python x.py", "")))
    with pytest.raises(BadSubmission) as error:
        submitted(path)
    return error.value


def test_all_problems_are_said_at_once_with_their_lines(tmp_path: Path) -> None:
    error = refused(
        tmp_path,
        "#SBATCH --nodelist=gpu01 --gres=gpu:0",
        "#SBATCH --time=soon",
        "#SBATCH --job-name=fine",
        "#SBATCH --begin=yesterday",
        "#SBATCH --name 'open",
        "#COTENANT --gpu 3",
    )
    path = tmp_path / "job.sh"
    assert error.message == f"{path} has 6 problems"
    starts = [each.removeprefix(f"{path}:") for each in error.parts]
    assert [each.partition(":")[0] for each in starts] == ["2", "2", "3", "5", "6", "7"]
    assert "hosts have features here: --constraint FEATURE" in starts[0]
    assert "begin must be a time" in starts[3] and "did you mean --gpus?" in starts[5]


WRONG = {
    "#SBATCH --dependency=afternotok:3": "'afternotok' is not possible here; afterok:JOB and",
    "#SBATCH --dependency=singleton": "'singleton' is not possible here",
    "#SBATCH --dependency=afterok:٣": "must be job ids such as 7, 7,9, 38_[0-3] or any:7",
    "#SBATCH --array=٣": "must be indices such as 0-9",
    "#SBATCH -d afterok:3?afterany:4": "? for one of several",
    "#SBATCH --container-image=pytorch": "cotenant starts containers itself",
    "#SBATCH hetjob": "hetjob is not possible here; submit its parts as jobs of their own",
    "#SBATCH --output=%y.txt": "%y in a file name is not known; known are %A, %J, %N",
    "#SBATCH --signal=B:NOSUCH@60": "there is no signal 'NOSUCH'",
    "#SBATCH --signal=X:USR1": "must be [B:]SIGNAL[@SECONDS]",
    "#SBATCH --input=data.txt": "standard input is /dev/null here; read data.txt in the script",
    "#SBATCH --gpus-per-socket=2": "say --gpus-per-node",
    "#SBATCH --deadline=2026-12-24": "--time limits how long it runs",
    "#SBATCH --mem=lots": "--mem must be a size",
    "#SBATCH --gres=shard:2": "say the part itself, as in #COTENANT --gpus 0.25",
    "#SBATCH --gres=tape:2": "something other than gpu",
    "#SBATCH --array=0-9%none": "must have a number behind %",
    "#SBATCH --ntask=4": "unknown option --ntask; did you mean --ntasks?",
    "#SBATCH --gpus": "--gpus needs a value",
    "#SBATCH --constraint=a100|h100": "must be words separated by commas",
}


@pytest.mark.parametrize(("line", "says"), WRONG.items(), ids=WRONG.keys())
def test_what_cannot_be_honoured_is_refused_with_what_to_do(tmp_path: Path, line: str, says: str) -> None:
    error = refused(tmp_path, line)
    assert error.message.startswith(f"{tmp_path}/job.sh:2: #SBATCH") and says in error.sentence


NONE_AND_SOME = {
    "-t 0": ("time_limit_s", None), "--time=0:00:00": ("time_limit_s", None),
    "-t 0-0": ("time_limit_s", None), "-t 0:30": ("time_limit_s", 30.0),
    '-d ""': ("after", ()), "--dependency=": ("after", ()),
    "-d afterok:12_[1-3,7]:9,afterany:4_[0-8:4]": (
        "after",
        (
            *(Dependency(job_id=JobId(each)) for each in ("12_[1-3]", "12_7", "9")),
            Dependency(job_id=JobId("4_[0-8:4]"), need="any"),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("line", "wanted"), NONE_AND_SOME.items(), ids=NONE_AND_SOME.keys())
def test_no_limit_no_dependency_and_some_tasks(tmp_path: Path, line: str, wanted: tuple[str, Any]) -> None:
    path = tmp_path / "job.sh"
    path.write_text(f"#!/bin/bash\n#SBATCH {line}\n")
    name, value = wanted
    assert getattr(submitted(path).request.specs[0], name) == value


def test_a_script_that_starts_no_ranks_is_told_how_often_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/bash\n#SBATCH --gres=gpu:4\npython train.py\n")
    assert "it runs once and sees all its GPUs; --launch worker" in submitted(path).notes[0]
