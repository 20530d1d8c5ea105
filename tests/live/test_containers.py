"""Jobs in rootless podman: a root agent, an ordinary user, and an image made of this machine's own files.

Rule: the account, its images and whatever podman keeps running for it go with the module.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
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

from cotenant.agent.containers.command_lines import client_of
from cotenant.agent.containers.processes import client_environment, users_rights
from cotenant.agent.containers.runtimes import find_runtimes
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import Container, JobId, JobSpec, Launch, Mount, Phase
from cotenant.controller.system.keys import add_agent, add_user, init_cluster
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.building.screens import Screen
from tests.live.cluster import PATIENCE_S, Cluster
from tests.live.person import COTENANT
from tests.ports import block_of_ports, free_port

JOB = Path(__file__).with_name("contained_job.py")
SITE = next(Path(each) for each in sys.path if each.endswith("site-packages"))
LEFT_OUT = shutil.ignore_patterns("test", "site-packages", "ensurepip", "idlelib", "config-*", "tkinter")
PODMAN = next((each for each in find_runtimes() if each.name == "podman"), None)


def why_not() -> str:
    if os.geteuid() != 0:
        return "only root can make an account for the test"
    if PODMAN is None or shutil.which("useradd") is None:
        return "podman, newuidmap or useradd is missing"
    if not Path("/dev/mqueue").is_dir():
        return (
            "podman starts no container on a machine without /dev/mqueue (mount -t mqueue mqueue /dev/mqueue)"
        )
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
        self.key = add_user(self.keys, user)
        self.user = Client(self.endpoint, self.key, timeout_s=PATIENCE_S)

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

    def await_explained(self, job_id: JobId, words: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while words not in (lines := self.client.ask(wire.Explain(job_id=job_id)).explanation.lines)[0]:
            assert time.monotonic() < deadline_s, lines
            self.client.ask(wire.WaitJobs(job_ids=(job_id,), timeout_s=0.2), timeout_s=PATIENCE_S)

    def await_step(self, job_id: JobId) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not self.await_phase(job_id, Phase.RUNNING).job.step:
            assert time.monotonic() < deadline_s
            self.client.ask(wire.WaitJobs(job_ids=(job_id,), timeout_s=0.2), timeout_s=PATIENCE_S)

    def await_resumable(self, job_id: JobId) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not self.await_phase(job_id, Phase.RUNNING).job.resumable:
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
        cluster.add_controller("policy.name=fifo", "policy.back_off_s=0.5").start()
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
    contained.await_resumable(job)
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
    contained.await_phase(job, Phase.BLOCKED, Phase.LOADING)
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


def users_environment(contained: Contained) -> dict[str, str]:
    """Of root, with the user's key."""
    folder = contained.folder / "client"
    folder.mkdir(exist_ok=True)
    shutil.copy(contained.key, folder)
    shutil.chown(folder / contained.key.name, contained.account.pw_uid)
    return {
        **os.environ,
        "COTENANT_CONTROLLER__ENDPOINT": contained.endpoint,
        "COTENANT_CONTROLLER__KEYS_DIR": str(folder),
    }


def test_a_container_has_its_users_key_and_the_controllers_endpoint(contained: Contained) -> None:
    ask = (
        "import os; print(os.environ['COTENANT_CONTROLLER__ENDPOINT']); "
        "key = os.environ['COTENANT_CONTROLLER__KEYS_DIR']; "
        "print(key, len(open(key).read()), os.listdir(os.path.dirname(key)))"
    )
    submitted = subprocess.run(
        [*COTENANT, "submit", "--image", "py:1", "--", "python3", "-c", ask],
        env=users_environment(contained),
        cwd=contained.home,
        capture_output=True,
        text=True,
        check=True,
    )
    job = JobId(submitted.stdout.strip())
    contained.await_phase(job, Phase.DONE, Phase.FAILED)
    key = contained.folder / "client" / contained.key.name
    size = key.stat().st_size
    assert contained.log(job) == f"{contained.endpoint}\n{key} {size} {[key.name]}\n"


def test_a_shell_has_a_terminal_in_the_container(contained: Contained) -> None:
    """Also what is typed or piped before it is there: the end of it ends the shell."""
    env = users_environment(contained)
    words = [*COTENANT, "shell", "--image", "py:1"]
    piped = subprocess.run(
        words,
        env=env,
        cwd=contained.home,
        input=b"echo $((6 * 7))\n",
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert piped.returncode == 0 and b"42\r\n" in piped.stdout and b"not found" not in piped.stdout, (
        piped.stdout,
        piped.stderr,
    )
    screen = Screen(words, env, contained.home)
    try:
        screen.until(b"connects to it again")
        screen.type(b"echo $((7 * 8))\n")
        prompted = screen.until(b"56\r\n")
        screen.resize(50, 132)
        screen.type(b"python3 -c 'import os; print(os.get_terminal_size(), os.getuid())'\n")
        uid = contained.account.pw_uid
        screen.until(f"os.terminal_size(columns=132, lines=50) {uid}\r\n".encode(), prompted)
        screen.type(b"exit 7\n")
        assert screen.ended() == 7
    finally:
        screen.close()
    contained.await_nothing_left()


class Registry:
    """Debian's docker-registry on a port of its own, with the user's image in it."""

    def __init__(self, contained: Contained) -> None:
        self.port, self._folder = free_port(), contained.folder / "registry"
        self.where = f"127.0.0.1:{self.port}"
        self._folder.mkdir()
        self._config = self._folder / "config.yml"
        self._config.write_text(
            "version: 0.1\nlog: {accesslog: {disabled: false}}\n"
            f"storage: {{filesystem: {{rootdirectory: {self._folder}/data}}}}\n"
            f"http: {{addr: '{self.where}'}}\n"
        )
        settings = contained.home / ".config/containers"
        settings.mkdir(parents=True, exist_ok=True)
        settings.joinpath("registries.conf").write_text(
            f'[[registry]]\nlocation = "{self.where}"\ninsecure = true\n'
        )
        self.start()

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["docker-registry", "serve", self._config], stdout=log, stderr=subprocess.STDOUT
            )
        deadline_s = time.monotonic() + within_s(30.0)
        with socket.socket() as probe:
            while probe.connect_ex(("127.0.0.1", self.port)):
                assert time.monotonic() < deadline_s, (self._folder / "log").read_text()
                time.sleep(0.05)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def requests(self, line: str) -> int:
        return (self._folder / "log").read_text().count(f'"{line}')


@pytest.fixture
def registry(contained: Contained) -> Iterator[Registry]:
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is missing")
    registry = Registry(contained)
    try:
        contained.podman("push", "--quiet", "py:1", f"{registry.where}/py:1")
        yield registry
    finally:
        registry.stop()


def test_images_come_from_a_registry(contained: Contained, registry: Registry) -> None:
    """Once for two jobs; while it does not answer, they wait and say for what."""
    registry.process.send_signal(signal.SIGSTOP)
    image = f"{registry.where}/py:1"
    first, second = (contained.run("id", image=image) for _ in range(2))
    contained.await_explained(first, f"its image comes to h1: pulling: Trying to pull {image}")
    contained.await_explained(second, "its image comes to h1: waits for another job's pull of it")
    registry.process.send_signal(signal.SIGCONT)
    for job in (first, second):
        assert len(contained.await_phase(job, Phase.DONE, Phase.FAILED).attempts) == 1
        assert contained.shown(job).job.exit_code == 0
    assert registry.requests("GET /v2/py/manifests/1 ") == 1

    unknown = contained.run("id", image=f"{registry.where}/none:1")
    assert "manifest unknown" in contained.await_phase(unknown, Phase.FAILED).job.reason

    registry.stop()
    contained.podman("rmi", "--force", image)
    away = contained.run("id", image=image)
    shown = contained.await_phase(away, Phase.HELD)  # As after any four failures of infrastructure.
    assert "connection refused" in shown.job.reason
    assert {each.outcome for each in shown.attempts} == {"infra-failed"}
    assert [each.state for each in contained.client.ask(wire.ListNodes()).nodes] == ["ok"]
    registry.start()
    contained.client.ask(wire.ChangeJobs(job_ids=(away,), verb="release"))
    contained.await_phase(away, Phase.DONE)
    contained.await_nothing_left()
