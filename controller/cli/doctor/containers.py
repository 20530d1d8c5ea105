"""Whether a job's container can start on this machine: one is tried, of this machine's own programs.

Rule: it changes nothing. Its folders are temporary, it needs no image, and it has a time limit.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.controller.domain import RUNTIMES

TRY_S_MAX: Final = 20.0
QUEUES: Final = "/dev/mqueue"
PODMAN: Final = (
    "--log-level=error --cgroup-manager=cgroupfs {oci} --root={made}/s --runroot={made}/r "
    "run --rm --pid=host --ipc=host --network=host --userns=keep-id "
    "--mount=type=bind,source=/usr,destination=/usr,ro --rootfs {made}/inside /usr/bin/true"
)
WORDS: Final = {
    "podman": PODMAN,
    "apptainer": "--silent exec --bind=/usr {made}/inside /usr/bin/true",
    "docker": "info",
}
"""What is tried: a container with the namespaces that jobs have; of docker, whose containers need an image,
whether its daemon answers."""


class TriedContainer(NamedTuple):
    """What came of it; nothing was said where it has started."""

    program: str
    said: str = ""
    is_tried: bool = True


def run_bounded(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=TRY_S_MAX, check=False, cwd="/")


def try_container(
    run: Callable[[list[str]], subprocess.CompletedProcess[str]] = run_bounded,
    path: str | None = None,
    uid: int | None = None,
) -> TriedContainer | None:
    """Starts one by the first program that is here; None: there is none. Root's jobs have no containers, so
    root only looks for what all of them need."""
    program = next(filter(None, (shutil.which(each, path=path) for each in RUNTIMES)), None)
    if program is None:
        return None
    name = os.path.basename(program)
    if (os.geteuid() if uid is None else uid) == 0:
        why = "" if os.path.isdir(QUEUES) else f"statfs {QUEUES}: no such file or directory"
        return TriedContainer(name, why, is_tried=False)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        for each in ("usr", "proc", "sys", "dev", "etc", "run", "tmp"):
            Path(made, "inside", each).mkdir(parents=True)
        for link in filter(lambda each: os.path.islink(f"/{each}"), ("bin", "lib", "lib64")):
            Path(made, "inside", link).symlink_to(f"usr/{link}")
        runtimes = ("crun", "runc") if os.path.exists("/sys/fs/cgroup/cgroup.controllers") else ("runc",)
        oci = next((f"--runtime={each}" for each in runtimes if shutil.which(each)), "")
        try:
            done = run([program, *shlex.split(WORDS[name].format(made=made, oci=oci))])
        except subprocess.TimeoutExpired as late:
            return TriedContainer(name, f"it did not come back within {late.timeout:g} s")
    last = (done.stderr or done.stdout).strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return TriedContainer(name, last[0].replace(made, "...") if done.returncode else "")
