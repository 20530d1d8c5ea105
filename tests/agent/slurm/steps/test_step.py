"""How `srun` reads its words, and which tasks a step has on each host."""

from __future__ import annotations

import pytest

from cotenant.agent.slurm.steps import hostlist, layout, step

TWO = {"SLURM_JOB_NODELIST": "a,b", "SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}
ONE = {"SLURM_JOB_NODELIST": "a", "SLURM_TASKS_PER_NODE": "2"}


def tasks(words: str, env: dict[str, str]) -> list[int]:
    return layout.layout(step.read(words.split()), env).tasks


@pytest.mark.parametrize(
    ("words", "flags", "command"),
    [
        ("python train.py -n 3", {}, "python train.py -n 3"),
        ("-n4 --ntasks-per-node 2 python x.py", {"ntasks": "4", "ntasks-per-node": "2"}, "python x.py"),
        ("-n 4 -N1 -l hostname", {"ntasks": "4", "nodes": "1", "label": "yes"}, "hostname"),
        ("-lu -K1 true", {"label": "yes", "u": "yes", "kill-on-bad-exit": "1"}, "true"),
        ("--exclusive --mpi=none --cpu-bind cores true", None, "true"),
        ("--kill-on-bad-exit=0 -- -odd", {"kill-on-bad-exit": "0"}, "-odd"),
    ],
)
def test_words(words: str, flags: dict[str, str] | None, command: str) -> None:
    found = step.read(words.split())
    assert found.command == command.split()
    assert flags is None or found.flags == flags


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("-n 4", "no command was given"),
        ("-n", "-n needs a value"),
        ("--multi-prog x.conf", "start each program with an srun of its own"),
        ("--container-image=x true", "containers are not supported"),
        ("--quantum true", "--quantum is not known here: leave it out"),
        ("-n many true", "'many' is no number"),
        ("--gpus=some true", "no number of GPUs"),
        ("-w c true", "host c is none of this job's: a, b"),
        ("-x a,b true", "no host is left"),
    ],
)
def test_what_cannot_be_started(words: str, says: str) -> None:
    def plan() -> object:
        found = step.read(words.split())
        return layout.gpus(found, layout.layout(found, TWO), 0, TWO)

    with pytest.raises(step.BadStep, match=says):
        plan()


@pytest.mark.parametrize(
    ("words", "on_two", "on_one"),
    [
        ("x", [4, 4], [2]),
        ("-n 2 x", [1, 1], [2]),
        ("-n 1 x", [1, 0], [1]),
        ("-n 7 x", [4, 3], [7]),
        ("-N 1 x", [4, 0], [2]),
        ("-N 1 -n 1 -w a x", [1, 0], [1]),
        ("--ntasks-per-node=1 x", [1, 1], [1]),
        ("--ntasks-per-node=3 -n 4 x", [3, 1], [3]),
    ],
)
def test_tasks_on_each_host(words: str, on_two: list[int], on_one: list[int]) -> None:
    assert tasks(words, TWO) == on_two
    assert tasks(words, ONE) == on_one


def test_a_named_host_and_one_left_out() -> None:
    assert tasks("-w b x", TWO) == [0, 4]
    assert tasks("-x a -n 2 x", TWO) == [0, 2]
    assert tasks("--nodes=1 --ntasks=1 -w 10.0.0.1 x", TWO) == [1, 0], "as scontrol called the first one"


def test_what_a_task_is_told() -> None:
    plan = layout.layout(step.read(["x"]), TWO)
    words = layout.task_words(plan, 1, 2, 5)
    assert (words["SLURM_PROCID"], words["SLURM_LOCALID"], words["SLURM_NODEID"]) == ("6", "2", "1")
    assert (words["SLURM_NTASKS"], words["SLURM_STEP_ID"], words["SLURM_TASKS_PER_NODE"]) == (
        "8",
        "5",
        "4(x2)",
    )
    ranks = layout.rank_words(plan, 1, 2, 8)
    assert ranks == {
        "RANK": "6", "LOCAL_RANK": "2", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
    }  # fmt: skip


def test_a_task_that_starts_the_ranks_of_its_host_is_no_rank() -> None:
    launcher = layout.layout(step.read(["--ntasks-per-node=1", "torchrun"]), TWO)
    assert layout.rank_words(launcher, 0, 0, 8) == {}
    assert layout.rank_words(launcher, 1, 0, 2)["RANK"] == "1", "with a device on each host it is one"
    assert layout.may_speak(launcher, 8)
    alone = layout.layout(step.read(["-n", "1", "x"]), TWO)
    assert layout.rank_words(alone, 0, 0, 1) == {}, "a task that is alone is no rank, as under Slurm"


def test_only_the_whole_gang_speaks_for_the_job() -> None:
    def speaks(words: str) -> bool:
        return layout.may_speak(layout.layout(step.read(words.split()), TWO), 8)

    assert speaks("x") and speaks("-n 8 x")
    assert not speaks("-n 4 x") and not speaks("-n 1 x") and not speaks("-N 1 x")


@pytest.mark.parametrize(
    ("words", "env", "here", "each"),
    [
        ("x", {}, None, 0),
        ("--gpus=1 -n 1 x", {}, 1, 0),
        ("--gpus=3 x", {}, 2, 0),
        ("--gres=gpu:a100:2 x", {}, 2, 0),
        ("--gres=gpu x", {}, 1, 0),
        ("--gres=none x", {}, 0, 0),
        ("--gpus-per-task=1 x", {}, 4, 1),
        ("x", {"COTENANT_GPUS_PER_TASK": "2"}, 8, 2),
        ("--gpu-bind=single:1 x", {}, 4, 1),
        ("--gpus=1 -n1 x", {"COTENANT_GPUS_PER_TASK": "2"}, 1, 0),
    ],
)
def test_gpus_of_a_step(words: str, env: dict[str, str], here: int | None, each: int) -> None:
    found = step.read(words.split())
    plan = layout.layout(found, TWO)
    assert layout.gpus(found, plan, 0, {**TWO, **env}) == (here, each)


def test_what_a_step_passes_on() -> None:
    env = {"PATH": "/bin", "A": "1", "B": "2", "SLURM_JOB_ID": "7"}
    assert layout.export_environment(step.read(["x"]), env) == env
    assert layout.export_environment(step.read(["--export=NONE", "x"]), env) == {
        "PATH": "/bin",
        "SLURM_JOB_ID": "7",
    }
    assert layout.export_environment(step.read(["--export=B,C=3", "x"]), env) == {
        "PATH": "/bin", "B": "2", "C": "3", "SLURM_JOB_ID": "7",
    }  # fmt: skip
    assert layout.export_environment(step.read(["--export=ALL,A=9", "x"]), env) == {**env, "A": "9"}


def test_lists_of_hosts_and_of_counts() -> None:
    assert hostlist.hostnames("gpu[01-03,7],login") == ["gpu01", "gpu02", "gpu03", "gpu7", "login"]
    assert hostlist.hostnames("a-1,b") == ["a-1", "b"]
    assert hostlist.counts("2(x3),1") == [2, 2, 2, 1]


def test_a_host_without_a_name_that_leads_anywhere_is_reached_by_its_address() -> None:
    env = {"SLURM_JOB_NODELIST": "no-such-host.invalid,other", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}
    assert hostlist.address("no-such-host.invalid", env) == "10.0.0.1"
    assert hostlist.address("localhost", env) == "localhost"
