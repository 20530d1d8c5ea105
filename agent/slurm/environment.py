"""What a script with `#SBATCH` lines finds around it: Slurm's variables, and `srun` first on its PATH.

Rule: the script runs once on each host of its gang, and the variables are those that Slurm would give it
there. `srun` itself works out from these what each task of a step gets (`steps/`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from cotenant.agent.ipc.records import Order, RankOrder
from cotenant.controller.domain import SlurmScript

PROGRAMS: Final = "steps/bin"
"""In the job-side folder."""
JOB_WORDS: Final = "COTENANT_SLURM_JOB"
"""All of them once more for `srun`: some clients (Snakemake) remove most before they start a step. In one
line: scripts read `env` by lines."""
FUNCTIONS: Final = ("srun", "scontrol", "module", "ml")
"""Functions for bash as well: a login shell makes a PATH of its own. Those that a user brought stay."""


def slurm_environment(order: Order, rank: RankOrder, path: str) -> dict[str, str]:
    """Returns the Slurm variables of a script's process on this host; `path` is its PATH. Empty for any other
    job."""
    slurm = order.launch.slurm
    if not slurm:
        return {}
    start, gang = order.start, order.gang
    own = next(at for at, member in enumerate(gang) if member.host_id == order.host_id)
    hosts = ",".join(member.host_id for member in gang)
    tasks = tasks_by_host(slurm, [len(member.devices) for member in gang])
    number = slurm.job_number(order.job_id)
    cores = len(rank.cores) or start.cpus
    known = {
        "SLURM_JOB_ID": number,
        "SLURM_JOB_NAME": start.name,
        "SLURM_JOB_USER": start.user,
        "SLURM_JOB_UID": str(order.launch.uid),
        "SLURM_JOB_GID": str(order.launch.gid),
        "SLURM_CLUSTER_NAME": "cotenant",
        "SLURM_JOB_NUM_NODES": str(len(gang)),
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_NODEID": str(own),
        "SLURMD_NODENAME": order.host_id,
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": str(sum(tasks)),
        "SLURM_TASKS_PER_NODE": counts(tasks),
        "SLURM_GPUS_ON_NODE": str(len(gang[own].devices)),
        "SLURM_GPUS": str(order.world_size),
        "SLURM_JOB_GPUS": ",".join(str(at) for at in range(len(gang[own].devices))),
        "SLURM_LAUNCH_NODE_IPADDR": start.master_address,
    }
    old_names = {
        "SLURM_JOBID": number,
        "SLURM_NNODES": known["SLURM_JOB_NUM_NODES"],
        "SLURM_NODELIST": hosts,
        "SLURM_NPROCS": known["SLURM_NTASKS"],
    }
    words = {
        **slurm.variables,
        **known,
        **old_names,
        **_cores(cores, len(gang)),
        **_array(order),
        **_times(order, slurm),
    }
    return {**words, JOB_WORDS: json.dumps(words), **_programs(order, path)}


def tasks_by_host(slurm: SlurmScript, devices: Sequence[int]) -> list[int]:
    """How many tasks a step has on each host, if it does not say."""
    hosts = len(devices)
    if slurm.tasks_per_host:
        return [slurm.tasks_per_host] * hosts
    if slurm.tasks == sum(devices):
        return list(devices)
    return (
        [slurm.tasks // hosts + (at < slurm.tasks % hosts) for at in range(hosts)]
        if slurm.tasks
        else [1] * hosts
    )


def counts(numbers: Sequence[int]) -> str:
    """Returns numbers as Slurm writes them: `2(x3),1`."""
    groups = [(number, len(list(same))) for number, same in groupby(numbers)]
    return ",".join(f"{number}(x{times})" if times > 1 else str(number) for number, times in groups)


def _cores(cores: int, hosts: int) -> dict[str, str]:
    if not cores:
        return {}
    return {"SLURM_CPUS_ON_NODE": str(cores), "SLURM_JOB_CPUS_PER_NODE": counts([cores] * hosts)}


def _array(order: Order) -> dict[str, str]:
    array, is_task, index = order.job_id.partition("_")
    return {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": index} if is_task else {}


def _times(order: Order, slurm: SlurmScript) -> dict[str, str]:
    """When the time limit ends it; and what its steps are sent before, where not the script is."""
    now_s = int(time.time())
    words = {"SLURM_JOB_START_TIME": str(now_s)}
    if order.attempt > 1:
        words["SLURM_RESTART_COUNT"] = str(order.attempt - 1)
    left_s = order.start.time_left_s
    if left_s is not None:
        words["SLURM_JOB_END_TIME"] = str(int(now_s + left_s))
        if slurm.signal and not slurm.signal_script:
            words["COTENANT_STEP_SIGNAL"] = f"{slurm.signal}@{slurm.signal_before_s:g}"
    if slurm.gpus_per_task:
        words["COTENANT_GPUS_PER_TASK"] = str(slurm.gpus_per_task)
    return words


def _programs(order: Order, path: str) -> dict[str, str]:
    if not order.jobside_path:
        return {}
    folder = f"{order.jobside_path}/{PROGRAMS}"
    functions = {f"BASH_FUNC_{name}%%": f'() {{  "{folder}/{name}" "$@"\n}}' for name in FUNCTIONS}
    own = order.launch.env
    return {"PATH": f"{folder}:{path}", **{name: text for name, text in functions.items() if name not in own}}
