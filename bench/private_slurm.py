"""A Slurm of one's own, for comparison: two nodes of two pretend GPUs on 127.0.0.1, gone afterwards.

Needs Debian's slurmctld, slurmd, slurm-client, munge and slurm-wlm-basic-plugins, and root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_UP_TIMEOUT_S = 30.0

_CONF = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
SlurmctldPort=16817
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=5
MinJobAge=60
MaxJobCount=20000
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port=16819 CPUs=8 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port=16820 CPUs=8 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 OverSubscribe=FORCE:2 MaxTime=INFINITE State=UP
"""


class SlurmMissing(Exception):
    """Slurm cannot run here; the text says what is missing."""


class PrivateSlurm:
    """Started in a folder of its own; every daemon is ended by its pid file."""

    def __init__(self) -> None:
        missing = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
        if missing:
            raise SlurmMissing(f"not installed: {', '.join(missing)}")
        if os.getuid() != 0:
            raise SlurmMissing("the comparison starts Slurm's daemons, which needs root")
        self.folder = Path(tempfile.mkdtemp(prefix="cotenant-slurm-"))
        self.env = {"PATH": _PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self) -> PrivateSlurm:
        try:
            self._configure()
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, *command: str) -> str:
        """The output of one of Slurm's commands."""
        done = subprocess.run(
            command, env=self.env, cwd=self.folder, check=True, capture_output=True, text=True, timeout=60
        )
        return done.stdout

    def _configure(self) -> None:
        self.folder.chmod(0o755)
        for name in ("state", "spool/n1", "spool/n2", "log", "gpu/n1", "gpu/n2"):
            (self.folder / name).mkdir(parents=True)
        gres = []
        for node in ("n1", "n2"):
            for gpu in (0, 1):
                os.mknod(self.folder / f"gpu/{node}/gpu{gpu}", 0o20666, os.makedev(1, 3))
            gres.append(f"NodeName={node} Name=gpu File={self.folder}/gpu/{node}/gpu[0-1]\n")
        (self.folder / "gres.conf").write_text("".join(gres))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainCores=no\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        host = socket.gethostname().partition(".")[0]
        (self.folder / "slurm.conf").write_text(_CONF.format(host=host, folder=self.folder))

    def _start(self) -> None:
        f = self.folder
        self.run(
            "munged", "--force", f"--key-file={f}/munge.key", f"--socket={f}/munge.sock",
            f"--pid-file={f}/munged.pid", f"--log-file={f}/log/munged.log", f"--seed-file={f}/munge.seed",
        )  # fmt: skip
        self.run("slurmctld", "-c")
        self.run("slurmd", "-c", "-N", "n1")
        self.run("slurmd", "-c", "-N", "n2")
        deadline_s = time.monotonic() + _UP_TIMEOUT_S
        while True:
            with contextlib.suppress(subprocess.CalledProcessError):
                if self.run("sinfo", "-h", "-o", "%t %D").strip() == "idle 2":
                    return
            if time.monotonic() > deadline_s:
                raise SlurmMissing(f"the private Slurm did not come up; logs were in {f}/log")
            time.sleep(0.1)

    def close(self) -> None:
        for name in ("slurmd-n1.pid", "slurmd-n2.pid", "slurmctld.pid", "munged.pid"):
            path = self.folder / name
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(path.read_text()), signal.SIGTERM)
        deadline_s = time.monotonic() + 10.0
        while list(self.folder.glob("*.pid")) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        shutil.rmtree(self.folder, ignore_errors=True)
