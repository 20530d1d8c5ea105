"""Jobs in rootless podman: a root agent, an ordinary user, and an image made of this machine's own files.

Rule: the account, its images and whatever podman keeps running for it go with the module.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from cotenant.agent.containers import client_environment, client_of, find_runtimes, users_rights
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import Container, JobId, JobSpec, Launch, Mount, Phase
from cotenant.controller.system.keys import add_agent, add_user, init_cluster
from cotenant.controller.wire import clients as wire
from tests.live.cluster import PATIENCE_S, Cluster
from tests.ports import block_of_ports

JOB = Path(__file__).with_name("contained_job.py")
SITE = next(Path(each) for each in sys.path if each.endswith("site-packages"))
LEFT_OUT = shutil.ignore_patterns("test", "site-packages", "ensurepip", "idlelib", "config-*", "tkinter")
PODMAN = next((each for each in find_runtimes() if each.name == "podman"), None)


def why_not() -> str:
    if os.geteuid() != 0:
        return "only root can make an account for the test"
    if PODMAN is None or shutil.which("useradd") is None:
        return "podman, newuidmap or useradd is missing"
    closed = [each for each in (*SITE.parents, *JOB.parents) if not each.stat().st_mode & 0o001]
    return f"{closed[0]} is closed to other users, and torch lies in it" if closed else ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


class Contained(Cluster):
    """A cluster with keys, whose jobs are an ordinary user's and run in containers."""

    def __init__(self, folder: Path, user: str) -> None:
        super().__init__(folder)
        entry = pwd.getpwnam(user)
        self.home, self.account = Path(entry.pw_dir), entry
        self.keys = folder / "keys"
        init_cluster(self.keys)
        add_agent(self.keys, "h1")
        self.endpoint = f"tcp://127.0.0.1:{block_of_ports()}"
        key = add_user(self.keys, user)
        self.user = Client(self.endpoint, key, timeout_s=PATIENCE_S)

    def close(self) -> None:
        self.user.close()
        super().close()

    def podman(self, *words: str) -> str:
        assert PODMAN is not None
        launch = Launch(uid=self.account.pw_uid, gid=self.account.pw_gid)
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [*client_of(PODMAN), *words],
            cwd="/",
            env=client_environment(launch.uid),
            capture_output=True,
            text=True,
            check=True,
            **users_rights(launch),
        )
        return done.stdout

    def run(self, *argv: str, mounts: tuple[Mount, ...] = (), **fields: Any) -> JobId:
        """Submits a command as the user, in the image."""
        ours = (
            Mount(source=str(SITE), target=str(SITE)),
            Mount(source=str(JOB.parent), target=str(JOB.parent)),
        )
        launch = Launch(
            argv=argv,
            workdir=str(self.home),
            env={"PYTHONPATH": str(SITE), "OMP_NUM_THREADS": "1"},
            zero_code=("checkpoint", "progress"),
            container=Container(image=fields.pop("image", "py:1"), mounts=(*ours, *mounts)),
        )
        spec = JobSpec(job_id=JobId("new-0"), launch=launch, **fields)
        return self.user.ask(wire.Submit(specs=(spec,))).job_ids[0]

    def train(self, name: str, steps: int, pace_s: float) -> JobId:
        words = ("python3", str(JOB), str(steps), str(pace_s), str(self.home / name))
        return self.run(*words, gpus_min=2, gpus_max=2, name=name)

    def await_phase(self, job_id: JobId, *phases: Phase) -> wire.Shown:
        deadline_s = time.monotonic() + PATIENCE_S
        while (shown := self.shown(job_id)).job.phase not in phases:
            assert time.monotonic() < deadline_s, (shown.job.phase, shown.job.reason)
            self.client.ask(wire.WaitJobs(job_ids=(job_id,), timeout_s=0.2), timeout_s=PATIENCE_S)
        return shown

    def await_step(self, job_id: JobId) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not self.await_phase(job_id, Phase.RUNNING).job.step:
            assert time.monotonic() < deadline_s
            self.client.ask(wire.WaitJobs(job_ids=(job_id,), timeout_s=0.2), timeout_s=PATIENCE_S)

    def log(self, job_id: JobId) -> str:
        return "".join(
            each.read_text() for each in sorted(self.state("h1").glob(f"attempts/{job_id}-a*/logs/*"))
        )

    def processes_of_user(self) -> list[int]:
        """But podman's own pause process, which it keeps for each user."""
        found = (each for each in psutil.process_iter(["uids", "name"]) if each.info["uids"] is not None)
        return [
            e.pid
            for e in found
            if e.info["uids"].real == self.account.pw_uid
            and e.info["name"] not in ("podman", "podman pause", "catatonit")
        ]

    def await_nothing_left(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while self.processes_of_user() or self.podman("ps", "--all", "--quiet"):
            assert time.monotonic() < deadline_s, self.processes_of_user()
            time.sleep(0.1)


def make_image(folder: Path) -> Path:
    """A tar with this interpreter, a shell and the libraries that they and torch need."""
    root = folder / "root"
    for name in ("bin", "usr/bin", "tmp", "proc", "sys", "dev", "etc", "run"):
        (root / name).mkdir(parents=True)
    prefix, version = Path(sys.base_prefix), f"python{sys.version_info[0]}.{sys.version_info[1]}"
    shutil.copytree(prefix / "lib" / version, root / "opt/py/lib" / version, ignore=LEFT_OUT, symlinks=True)
    (root / "opt/py/bin").mkdir()
    programs = {
        "/opt/py/bin/python3": prefix / "bin" / version,
        "/bin/sh": Path("/bin/sh"),
        "/bin/id": shutil.which("id"),
    }
    for target, source in programs.items():
        shutil.copy(str(source), f"{root}{target}")
    modules = [*root.rglob("*.so"), *(SITE / "torch/lib").glob("*.so"), *map(str, programs.values())]
    said = subprocess.run(["ldd", *map(str, modules)], capture_output=True, text=True, check=False).stdout
    for library in set(re.findall(r"(/[^ :]+\.so[^ :]*) \(", said)):
        if not library.startswith(str(SITE)):
            place = Path(f"{root}{library}")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, place)
    subprocess.run(["tar", "-C", root, "-cf", folder / "py.tar", "."], check=True)
    return folder / "py.tar"


@pytest.fixture(scope="module")
def contained() -> Iterator[Contained]:
    folder = Path(tempfile.mkdtemp(prefix="ct", dir="/tmp"))  # pytest's folders are closed to other users.
    folder.chmod(0o755)
    user = f"ct{os.getpid()}"
    subprocess.run(["useradd", "--create-home", "--home-dir", folder / "home", user], check=True)
    cluster = Contained(folder, user)
    try:
        cluster.podman("import", "--change", "ENV PATH=/opt/py/bin:/bin", str(make_image(folder)), "py:1")
        cluster.add_controller("policy.name=fifo").start()
        cluster.add_agent("h1", "agent.devices=cpu:2", f"agent.keys_dir={cluster.keys}").start()
        yield cluster
        cluster.print_logs()
    finally:
        cluster.close()
        with suppress(psutil.Error):
            for each in psutil.process_iter(["uids"]):
                if each.info["uids"] is not None and each.info["uids"].real == cluster.account.pw_uid:
                    each.send_signal(signal.SIGKILL)
        subprocess.run(["userdel", "--force", user], check=False, capture_output=True)
        for place in (folder, Path(f"/tmp/podman-run-{cluster.account.pw_uid}")):
            shutil.rmtree(place, ignore_errors=True)


def test_a_gang_is_preempted_and_resumed_bit_for_bit(contained: Contained) -> None:
    undisturbed = contained.train("undisturbed", 40, 0.0)
    job = contained.train("disturbed", 40, 0.1)
    contained.await_phase(undisturbed, Phase.DONE)
    contained.await_step(job)
    contained.client.ask(wire.ChangeJobs(job_ids=(job,), verb="preempt"))
    shown = contained.await_phase(job, Phase.DONE, Phase.FAILED)
    assert [each.outcome for each in shown.attempts] == ["preempted", "finished"]
    assert shown.attempts[1].exact
    assert 0 < shown.attempts[1].start_step < 40
    assert (contained.home / "disturbed").read_text() == (contained.home / "undisturbed").read_text()
    assert f"contained in podman as {contained.account.pw_uid}" in contained.log(job)
    contained.await_nothing_left()


def test_nothing_outlives_its_supervisor(contained: Contained) -> None:
    job = contained.train("killed", 4000, 0.1)
    contained.await_step(job)
    pid = contained.supervisor("h1", job, 1)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    contained.await_phase(job, Phase.BLOCKED)
    contained.client.ask(wire.ChangeJobs(job_ids=(job,), verb="cancel"))
    contained.await_phase(job, Phase.CANCELLED)
    contained.await_nothing_left()


def test_exit_codes_signals_and_mounts_are_those_of_the_command(contained: Contained) -> None:
    (contained.home / "data").write_text("seen")
    mount = (Mount(source=str(contained.home / "data"), target="/data/there", read_only=True),)
    jobs = {
        contained.run("sh", "-c", "read x < /data/there; echo $x; id -u; exit 7", mounts=mount): 7,
        contained.run("python3", "-c", "import os; os.abort()"): 128 + signal.SIGABRT,
        contained.run("no-such-program"): 127,
        contained.run("true", mounts=(Mount(source="/root", target="/data"),)): None,
    }
    for job, code in jobs.items():
        assert contained.await_phase(job, Phase.FAILED).job.exit_code == code
    first, *_, last = jobs
    assert contained.log(first).split() == ["seen", str(contained.account.pw_uid)]
    assert "cannot read /root" in contained.shown(last).job.reason
    contained.await_nothing_left()
