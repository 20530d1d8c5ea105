"""A Slurm of its own for a test: munge, slurmctld and several slurmd on this machine, in one folder.

Rule: nothing of the machine's own Slurm is read or touched. Every path is below `folder`, every port is drawn
anew on 127.0.0.1, and whoever speaks with it is given `env`. At the end jobs are cancelled first and daemons
stopped after that, by the processes that were started: a slurmstepd whose slurmd is gone would go on.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.building.limits import within_s
from tests.ports import free_port

PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
PACKAGES: Final = "slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins"
START_S: Final = within_s(30.0)
STOP_S: Final = within_s(30.0)
COMMAND_S: Final = within_s(30.0)
POLL_S: Final = 0.05
TEXT_CHARS_MAX: Final = 4000

CONF: Final = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
"""
"""What makes it private; `settings` adds to it or replaces a line of SETTINGS."""
DBD_CONF: Final = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost=localhost
DbdPort={port}
SlurmUser=root
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct
"""
"""The database is found by MYSQL_UNIX_PORT."""
DATABASE: Final = (
    "mariadbd", "--no-defaults", "--skip-networking", "--user=root", "--innodb-buffer-pool-size=64M",
    "--innodb-flush-log-at-trx-commit=0",
)  # fmt: skip
SETTINGS: Final = {
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=10000",
    "KillWait": "2",
    "MinJobAge": "300",
    "SlurmdTimeout": "30",
}


def missing_programs(*, accounting: bool = False) -> list[str]:
    """What a private Slurm would need and this machine has not got; the daemons are in a folder of root's."""
    wanted = (*PROGRAMS, *(("mariadbd", "mariadb-install-db", "slurmdbd") if accounting else ()))
    return [each for each in wanted if program(each) is None]


def program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


@contextmanager
def local_slurm(
    folder: Path,
    *,
    nodes: int = 2,
    cpus: int = 8,
    memory_mib: int = 4000,
    gpus: int = 0,
    accounting: bool = False,
    settings: Mapping[str, str] | None = None,
    partitions: Sequence[str] = ("main Default=YES",),
) -> Iterator[LocalSlurm]:
    """A running one, or a skip that says what is missing. Devices need root: their files are made here.
    `accounting`: with a database of its own, so that `sacct` answers."""
    if missing := missing_programs(accounting=accounting):
        packages = f"{PACKAGES}{' slurmdbd mariadb-server' if accounting else ''}"
        pytest.skip(f"no {', '.join(missing)} here: apt-get install --no-install-recommends {packages}")
    if (gpus or accounting) and os.geteuid():
        pytest.skip("device files of nodes, and a database for Slurm, can be made by root only")
    slurm = LocalSlurm(
        folder,
        nodes=nodes,
        cpus=cpus,
        memory_mib=memory_mib,
        gpus=gpus,
        accounting=accounting,
        settings=settings or {},
        partitions=partitions,
    )
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


class LocalSlurm:
    """Nodes are n1, n2, ...; jobs run as whoever runs the test."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int,
        cpus: int,
        memory_mib: int,
        gpus: int = 0,
        accounting: bool = False,
        settings: Mapping[str, str],
        partitions: Sequence[str],
    ) -> None:
        assert len(f"{folder}/munge.sock") < 100, f"{folder}: too long for a socket's path"
        self.folder = folder
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._rows = nodes * len(partitions)
        """Of `sinfo -N`: a node has one in each partition."""
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._accounting = accounting
        for name in ("state", "log", *(f"spool/{node}" for node in self.nodes)):
            (folder / name).mkdir(parents=True)
        folder.chmod(0o755)
        host = socket.gethostname().partition(".")[0]
        user = os.environ.get("USER") or "root" if os.geteuid() else "root"
        lines = [CONF.format(host=host, port=free_port(), user=user, folder=folder)]
        lines += [f"{name}={value}\n" for name, value in {**SETTINGS, **settings}.items()]
        lines += self._accounts() if accounting else ["AccountingStorageType=accounting_storage/none\n"]
        if gpus:
            lines.append("GresTypes=gpu\n")
            self._make_devices(gpus)
        shape = f"CPUs={cpus} RealMemory={memory_mib}{f' Gres=gpu:{gpus}' if gpus else ''} State=UNKNOWN"
        lines += [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} {shape}\n"
            for node in self.nodes
        ]
        lines += [f"PartitionName={each} Nodes=ALL MaxTime=INFINITE State=UP\n" for each in partitions]
        (folder / "slurm.conf").write_text("".join(lines))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainCores=no\n")
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)

    def _accounts(self) -> list[str]:
        """Its lines of slurm.conf."""
        port, conf = free_port(), self.folder / "slurmdbd.conf"
        conf.write_text(DBD_CONF.format(folder=self.folder, port=port))
        conf.chmod(0o600)
        self.env["MYSQL_UNIX_PORT"] = str(self.folder / "sql.sock")
        munge = f"Pass={self.folder}/munge.sock"  # A socket, whatever it is called.
        storage = ("Type=accounting_storage/slurmdbd", "Host=localhost", f"Port={port}", munge)
        return [f"AccountingStorage{each}\n" for each in storage]

    def _make_devices(self, count: int) -> None:
        """Files that stand in for devices: Slurm hands out numbers, and opens none of them."""
        lines = []
        for node in self.nodes:
            here = self.folder / "gpu" / node
            here.mkdir(parents=True)
            for number in range(count):
                os.mknod(here / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
            numbers = f"[0-{count - 1}]" if count > 1 else "0"
            lines.append(f"NodeName={node} Name=gpu File={here}/gpu{numbers}\n")
        (self.folder / "gres.conf").write_text("".join(lines))

    def start(self) -> None:
        self._start_munge()
        if self._accounting:
            self._start_accounting()
        self.start_controller(fresh=True)
        for node in self.nodes:
            self.start_node(node)
        self.await_said("sinfo", "-h", "-N", "-o", "%T", wanted="\n".join(["idle"] * self._rows))

    def stop(self) -> None:
        """What does not end in time is killed: a test's end must not depend on Slurm's health."""
        if self._alive("slurmctld") and self._alive("munged"):
            self.cancel_all()
        for name in reversed(list(self._daemons)):
            self._end(name)

    def cancel_all(self) -> None:
        """Every job, and wait until no process of theirs is left."""
        for _ in range(3):
            self.try_to("scancel", "--full", "--state=PENDING")
            self.try_to("scancel", "--full", "--state=RUNNING")
            self.try_to("scancel", "--signal=KILL", "--full", "--state=RUNNING")
            if self.awaited_said("squeue", "-h", "-o", "%i", wanted="", timeout_s=STOP_S / 3):
                return

    def configure(self, **settings: str) -> None:
        """For whoever reads it from now on: Slurm's programs at once, a daemon at its start."""
        with (self.folder / "slurm.conf").open("a") as conf:
            conf.writelines(f"{name}={value}\n" for name, value in settings.items())

    def start_controller(self, *, fresh: bool = False) -> None:
        """With the state that it saved, unless it is to be a fresh one."""
        self._start("slurmctld", "slurmctld", "-D", *(["-c"] if fresh else []))
        self.await_answer("scontrol", "ping", wanted="UP")

    def stop_controller(self) -> None:
        """In order: everything is saved."""
        self._end("slurmctld")

    def kill_controller(self) -> None:
        """What changed in its last seconds is not saved, and was never so when it comes back."""
        self._kill("slurmctld")

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node)

    def resume_node(self, node: str) -> None:
        """Until it takes jobs again. One that has come back by itself refuses to be resumed."""
        deadline_s = time.monotonic() + START_S
        while self.run("sinfo", "-h", "-n", node, "-o", "%T") not in ("idle", "mixed", "allocated"):
            done = self.try_to("scontrol", "update", f"NodeName={node}", "State=RESUME")
            assert time.monotonic() < deadline_s, f"{node}: {done}\n{self.said()}"
            time.sleep(POLL_S)

    def kill_node(self, node: str) -> None:
        """Its slurmd only. Steps of its jobs are processes of their own, and go on."""
        self._kill(node)

    def run(self, *words: str, stdin: str = "") -> str:
        """What a command said, without the last line's end."""
        done = self.try_to(*words, stdin=stdin)
        assert done.returncode == 0, f"{' '.join(words)}: {done.returncode}: {done.stderr}"
        return done.stdout.strip()

    def try_to(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            input=stdin,
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )

    def submit(self, *options: str, command: str = "sleep 600") -> int:
        """The number of the new job; what it says goes into the folder, unless an option says otherwise."""
        script = f"#!/bin/sh\n{command}\n"
        return int(self.run("sbatch", "--parsable", *options, stdin=script).partition(";")[0])

    def await_said(self, *words: str, wanted: str) -> None:
        """Until a command says just this. Slurm tells nobody when something changes: it has to be asked."""
        if not self.awaited_said(*words, wanted=wanted, timeout_s=START_S):
            last = self.try_to(*words)
            raise AssertionError(f"{last}: never {wanted!r}\n{self.said()}")

    def await_answer(self, *words: str, wanted: str) -> None:
        """Until a command's answer has this in it."""
        deadline_s = time.monotonic() + START_S
        while wanted not in (done := self.try_to(*words)).stdout:
            assert time.monotonic() < deadline_s, f"{' '.join(words)}: {done}\n{self.said()}"
            time.sleep(POLL_S)

    def awaited_said(self, *words: str, wanted: str, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while (done := self.try_to(*words)).returncode or done.stdout.strip() != wanted:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(POLL_S)
        return True

    def said(self) -> str:
        """The end of every daemon's log."""
        logs = sorted((self.folder / "log").iterdir())
        return "\n".join(
            f"--- {each.name}\n{each.read_text(errors='replace')[-TEXT_CHARS_MAX:]}" for each in logs
        )

    def _start_munge(self) -> None:
        files = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid"}
        files |= {"log-file": "log/munged.log", "seed-file": "munge.seed"}
        options = [f"--{name}={self.folder / file}" for name, file in files.items()]
        self._start("munged", "munged", "--foreground", "--force", *options)
        self._await((self.folder / "munge.sock").exists, "munged")

    def _start_accounting(self) -> None:
        where = f"--datadir={self.folder}/data"
        make = program("mariadb-install-db")
        assert make is not None
        quiet = ("--auth-root-authentication-method=normal", "--skip-test-db", "--user=root")
        self.run(make, "--no-defaults", where, *quiet)
        socket_path = self.folder / "sql.sock"
        self._start(
            "mariadbd", *DATABASE, where, f"--socket={socket_path}", f"--pid-file={self.folder}/sql.pid"
        )
        self._await(socket_path.exists, "mariadbd")
        self._start("slurmdbd", "slurmdbd", "-D")
        self._await(lambda: not self.try_to("sacctmgr", "-n", "list", "cluster").returncode, "slurmdbd")
        self.run("sacctmgr", "-i", "add", "cluster", "test")

    def _await(self, is_so: Callable[[], bool], name: str) -> None:
        deadline_s = time.monotonic() + START_S
        while not is_so():
            assert self._alive(name) and time.monotonic() < deadline_s, f"no {name}\n{self.said()}"
            time.sleep(POLL_S)

    def _start(self, name: str, *words: str) -> None:
        path = program(words[0])
        assert path is not None and not self._alive(name), f"{name} runs already"
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                (path, *words[1:]),
                env=self.env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _alive(self, name: str) -> bool:
        daemon = self._daemons.get(name)
        return daemon is not None and daemon.poll() is None

    def _kill(self, name: str) -> None:
        self._daemons[name].kill()
        self._daemons.pop(name).wait()

    def _end(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.terminate()
        try:
            daemon.wait(STOP_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
