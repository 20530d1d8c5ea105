"""What MPS can do here and how it will be used, who else uses it, and who limits a GPU's memory.

Rule: every choice about MPS has its reason. Where it does not work, co-tenants time-slice, and that is said:
nothing else depends on it.
"""

from __future__ import annotations

import shlex
from typing import Final

from cotenant.controller.cli.doctor.check import Finding, check, ok, warn
from cotenant.controller.cli.doctor.facts import Facts
from cotenant.controller.cli.doctor.fixes import Fix, fix
from cotenant.controller.cli.doctor.processes import DEFAULT_PIPES, SeenProcess
from cotenant.mps.detection import DetectedHost, verdict

UNTIL_THEN: Final = "until then co-tenants time-slice"
PER_DEVICE: Final = (
    "one daemon per device (mps.mode = per-device): gangs are LOCAL_RANK 0, without NCCL's direct transports"
)
BY_CLIENTS: Final = "by MPS, or by torch where jobs time-slice"
PER_HOST: Final = "one daemon for all devices, of each user: LOCAL_RANK and NCCL as without MPS (mps.mode)"


@check("MPS")
def mps(facts: Facts) -> Finding | None:
    """None on a host without GPUs, which has its runtime folder looked at as well: what is wrong with it is
    an error of the settings. A GPU in MIG mode is not offered at all: `MIG` has said so."""
    host, mode = facts.mps, facts.loaded.settings.mps.mode
    if host is None or not facts.whole:
        return None
    if mode == "off":
        return ok("switched off (mps.mode = off): co-tenants time-slice")
    found = verdict(host)
    if not found.usable:
        return _no_mps(facts, host, found.reason)
    answers = [(gpu, verdict(host, gpu)) for gpu in facts.whole]
    refused = [(gpu, answer.reason) for gpu, answer in answers if not answer.usable]
    if len(refused) == len(answers):
        return warn(f"none: {refused[0][1]}", "co-tenants time-slice")
    words = f"{found.reason}; {PER_DEVICE if mode == 'per-device' else PER_HOST}"
    if refused:
        without = ", ".join(f"{gpu.index} ({reason.replace(gpu.uuid, 'it')})" for gpu, reason in refused)
        return warn(f"{words}; not on GPU {without}", "co-tenants time-slice there")
    if host.closed:  # Only root is told.
        words += f"; jobs of other accounts than root time-slice, since {host.closed} is closed to them"
        command = f"chmod o+x {shlex.quote(host.closed)}"
        return warn(words, "let them through, or set mps.runtime_dir", command)
    return ok(words)


def _no_mps(facts: Facts, host: DetectedHost, reason: str) -> Finding:
    if host.control_path is not None:
        return warn(f"none: {reason}", UNTIL_THEN)
    if facts.wsl:
        todo = "never install a Linux driver there: it breaks the GPU; co-tenants time-slice"
        return ok(f"none: this is WSL, whose driver is Windows's and brings none; {todo}")
    todo, command = fix("MPS", facts)
    return warn(f"none: {reason}", f"{todo}; {UNTIL_THEN}", command)


@check("memory limits", needs="answering")
def device_memory(facts: Facts) -> Finding:
    """Who enforces a job's planned part of a GPU's memory."""
    regions, gpus = facts.memory_regions, len(facts.answering)
    if regions is None:
        return ok(f"{BY_CLIENTS}; the kernel has no dmem controller (6.14 has)")
    if not regions:
        return ok(f"{BY_CLIENTS}; the driver gives the kernel no regions (615 does)")
    where = f"{regions} of {gpus} GPUs" if regions < gpus else "all GPUs"
    if not facts.memory_delegated:
        found = f"{BY_CLIENTS}; the kernel could as well (dmem, {where}), and this group may not"
        return warn(found, *fix("dmem", facts))
    return ok(f"{BY_CLIENTS}, and by the kernel (dmem) on {where}")


@check("other MPS", needs="gpus")
def mps_neighbours(facts: Facts) -> Finding | None:
    """MPS daemons that are not ours, and what one has left where CUDA looks by default. Our GPU jobs look
    only where their agent says."""
    others, left = facts.mps_daemons, facts.mps_left_by
    if others:
        words = ", ".join(f"pid {each.pid} of {each.user or 'somebody'} ({_pipes(each)})" for each in others)
        found = (
            f"MPS daemons that are not ours: {words}: no GPU job of ours becomes their client, they take "
            f"turns; other programs become one without asking ({DEFAULT_PIPES}); and a GPU that they hold in "
            "EXCLUSIVE_PROCESS mode is closed to us"
        )
        return warn(found, *_end_daemon(others[0], facts.user))
    if not left:
        return None
    found = f"{DEFAULT_PIPES} is left over from a daemon of {left}: none listens there"
    return ok(f"{found}, and no GPU job of ours looks there")


def _pipes(daemon: SeenProcess) -> str:
    return f"{daemon.pipes or 'its pipe directory cannot be read'}, since {daemon.since}"


def _end_daemon(daemon: SeenProcess, user: str) -> Fix:
    """How the owner of an MPS daemon asks it to end: it waits for its clients."""
    if daemon.pipes is None or not daemon.user:
        return Fix("have its owner stop it: echo quit | nvidia-cuda-mps-control")
    ask = f"env CUDA_MPS_PIPE_DIRECTORY={shlex.quote(daemon.pipes)} nvidia-cuda-mps-control"
    become = ""
    if daemon.user != user:
        become = f"runuser -u {daemon.user} -- " if user == "root" else f"sudo -u {daemon.user} "
    return Fix("if nobody needs it, end it (it waits for its clients)", f"echo quit | {become}{ask}")
