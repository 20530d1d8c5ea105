"""Commands that start their own workers: torchrun, accelerate launch, deepspeed.

Rule: they are one process per host, which learns where to meet the others; we add only what is missing.
torchrun, and every script that calls it, takes its defaults from PET_* variables, so its command line stays
untouched.
"""

from __future__ import annotations

from pathlib import PurePath

import msgspec

from cotenant.controller.domain import launcher_of


class NotLaunchable(ValueError):
    """The refusal of a job that this launcher cannot start; the text says what to do instead."""


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one host in a gang."""

    hosts: int
    host_no: int
    workers: int
    """On all hosts."""
    workers_here: int
    address: str
    port: int


def meeting_environment(meeting: Meeting) -> dict[str, str]:
    """Returns the variables that torchrun takes its defaults from."""
    return {
        "PET_NNODES": str(meeting.hosts),
        "PET_NODE_RANK": str(meeting.host_no),
        "PET_NPROC_PER_NODE": str(meeting.workers_here),
        "PET_MASTER_ADDR": meeting.address,
        "PET_MASTER_PORT": str(meeting.port),
    }


def host_command(argv: tuple[str, ...], meeting: Meeting) -> tuple[str, ...]:
    """The command line for one host.

    Raises:
        NotLaunchable: deepspeed in a way that would use devices of others, or over several hosts.
    """
    launcher = launcher_of(argv)
    if launcher == "accelerate":
        return _accelerate(argv, meeting)
    if launcher == "deepspeed":
        return _deepspeed_command(argv, meeting)
    return argv


def _accelerate(argv: tuple[str, ...], meeting: Meeting) -> tuple[str, ...]:
    given = _given_options(argv)
    wanted = {
        "num_processes": str(meeting.workers),
        "num_machines": str(meeting.hosts),
        "machine_rank": str(meeting.host_no),
        "main_process_ip": meeting.address,
        "main_process_port": str(meeting.port),
    }
    added = [word for name, value in wanted.items() if name not in given for word in (f"--{name}", value)]
    kinds = {"multi_gpu", "cpu", "use_fsdp", "use_deepspeed", "use_megatron_lm", "tpu", "config_file"}
    # With one GPU here accelerate would not notice by itself that there are more elsewhere.
    if meeting.hosts > 1 and meeting.workers_here == 1 and not kinds & given:
        added.insert(0, "--multi_gpu")
    return _insert(argv, "launch", added)


def _deepspeed_command(argv: tuple[str, ...], meeting: Meeting) -> tuple[str, ...]:
    if meeting.hosts > 1:
        raise NotLaunchable("deepspeed needs ssh between hosts: start the script with torchrun instead")
    given = _given_options(argv)
    if clash := given & {"num_gpus", "num_nodes", "include", "exclude", "hostfile"}:
        flag = sorted(clash)[0]
        raise NotLaunchable(f"deepspeed --{flag} ignores the devices this job was given: leave it out")
    added = [] if "master_port" in given else [f"--master_port={meeting.port}"]
    return _insert(argv, "deepspeed", added)


def _given_options(argv: tuple[str, ...]) -> set[str]:
    """Names of the long options, spelt with underscores; those of the script itself may be among them."""
    return {
        word[2:].partition("=")[0].replace("-", "_")
        for word in argv
        if word.startswith("--") and word != "--"
    }


def _insert(argv: tuple[str, ...], after: str, added: list[str]) -> tuple[str, ...]:
    """Behind the word that ends the launcher's own name."""
    at = next((no for no, word in enumerate(argv) if PurePath(word).name.split(".")[-1] == after), None)
    if at is None:  # `python -m deepspeed.launcher.runner`
        at = next(no for no, word in enumerate(argv) if word.startswith("deepspeed."))
    return (*argv[: at + 1], *added, *argv[at + 1 :])
