"""Scripts as people bring them from Slurm, submitted by `sbatch` as their shells would, and run for real."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.person import PATIENCE_S, Answer, Person, at_home, when

TRAIN = """
import os, pathlib, sys
place = [os.environ[name] for name in ("SLURM_PROCID", "SLURM_NTASKS", "RANK", "WORLD_SIZE", "LOCAL_RANK")]
pathlib.Path(f"rank-{place[0]}").write_text(" ".join([*place, *sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    folder = tmp_path_factory.mktemp("s")
    with at_home(folder, agent__devices="cpu:2", agent__heartbeat_s="0.3") as made:
        made("slurm-aliases", str(folder / "bin"))
        made.env["PATH"] = f"{folder / 'bin'}:{Path(sys.executable).parent}:{made.env['PATH']}"
        yield made


def shell(person: Person, line: str, text: str = "") -> Answer:
    """A line of a shell in the working folder, with the programs on its PATH."""
    done = subprocess.run(
        ["bash", "-c", line],
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=person.env,
        cwd=person.work,
    )
    return Answer(code=done.returncode, out=done.stdout, err=done.stderr)


def sbatch(person: Person, text: str, *words: str) -> str:
    script = person.write("job.sh", text)
    answer = shell(person, f"sbatch --parsable {' '.join(words)} {script}")
    assert answer.code == 0, answer
    return answer.out.strip()


def test_srun_starts_the_ranks_and_the_output_is_where_it_was_wanted(person: Person) -> None:
    person.write("train.py", TRAIN)
    job = sbatch(
        person,
        "#!/bin/bash -l\n#SBATCH -J ddp --nodes=1 --gres=gpu:2 --ntasks-per-node=2 -p gpu --time=10\n"
        "#SBATCH --output=%x-%j.out\nmodule load cuda/12\n"
        'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        'echo "$SLURM_JOB_ID $SLURM_NTASKS $SLURM_SUBMIT_DIR ${SLURM_JOB_END_TIME:+limited} $MY_DATA"\n'
        f"srun {sys.executable} train.py here\n",
    )  # fmt: skip
    done = person.until_state(job, "done")
    assert done["exit_code"] == 0
    said = (person.work / f"ddp-{job}.out").read_text().splitlines()
    assert said[-1].split() == [job, "2", str(person.work), "limited"]
    ranks = [(person.work / f"rank-{rank}").read_text() for rank in (0, 1)]
    assert ranks == ["0 2 0 2 0 here", "1 2 1 2 1 here"]
    told = shell(person, f"sacct -j {job} -X -n -P -o JobID,State,ExitCode").out
    assert told == f"{job}|COMPLETED|0:0\n"


def test_an_array_runs_as_many_tasks_as_it_may(person: Person) -> None:
    job = sbatch(
        person,
        "#!/bin/bash\n#SBATCH --gres=gpu:1 --array=0-2%1 -o arr_%A_%a.txt\n"
        'mkdir alone && echo "$SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_JOB_ID" && rmdir alone\n',
    )
    for task in range(3):
        assert person.until_state(f"{job}_{task}", "done")["exit_code"] == 0
        text = (person.work / f"arr_{job}_{task}.txt").read_text()
        assert text.split() == [job, str(task), str(int(job) + task)]


def test_a_trap_is_warned_before_the_limit_and_puts_its_job_back(person: Person) -> None:
    job = sbatch(
        person,
        "#!/bin/bash\n#SBATCH --gres=gpu:1 --time=1 --signal=B:USR1@60 -o again-%j.txt\n"
        'echo "start ${SLURM_RESTART_COUNT:-0}"\n'
        'if [ -n "$SLURM_RESTART_COUNT" ]; then echo "${SLURM_JOB_END_TIME:+limited}"; exit 0; fi\n'
        "trap 'echo warned; scontrol requeue \"$SLURM_JOB_ID\"' USR1\n"
        "sleep 600 &\nwait\n",
    )  # The signal is due at once: it waits until the trap is there.
    person.until_state(job, "done")
    said = (person.work / f"again-{job}.txt").read_text().splitlines()
    assert said[0] == "start 0" and "warned" in said and said[-2:] == ["start 1", "limited"]


def test_steps_side_by_side_and_what_squeue_and_scancel_say(person: Person) -> None:
    script = (
        "#!/bin/bash\n#SBATCH --gres=gpu:2 --ntasks=2 -J pair -o pair.txt\n"
        'for n in a b; do srun -n1 --gpus=1 bash -c "echo $n; touch $n; exec sleep 600" & done; wait\n'
    )
    answer = shell(person, "sbatch", script)
    assert answer.code == 0 and answer.out.startswith("Submitted batch job "), answer
    job = answer.out.split()[-1]
    when(lambda: all((person.work / name).exists() for name in ("a", "b")), lambda: person.logs(job))
    assert shell(person, "squeue --me -h -o '%i|%j|%T'").out == f"{job}|pair|RUNNING\n"
    assert "alloc" in shell(person, "sinfo -h").out
    assert shell(person, "scancel -n pair").code == 0
    person.until_state(job, "cancelled")
    assert shell(person, f"squeue -h -j {job}").out == ""


def test_all_problems_of_a_script_are_said_at_once(person: Person) -> None:
    script = person.write("bad.sh", "#!/bin/bash\n#SBATCH -w gpu01\n#SBATCH --time=soon\nsrun x\n")
    answer = shell(person, f"sbatch {script}")
    lines = answer.err.splitlines()
    assert (answer.code, answer.out, len(lines)) == (2, "", 3), answer
    assert lines[0] == f"error[usage]: {script} has 2 problems"
    assert f"{script}:2: #SBATCH -w" in lines[1] and f"{script}:3: #SBATCH" in lines[2]
    assert os.path.exists(script)


def test_wait_gives_the_scripts_exit_code(person: Person) -> None:
    assert shell(person, "sbatch --wait --wrap 'srun -n2 bash -c \"exit $((SLURM_PROCID + 3))\"'").code == 3
