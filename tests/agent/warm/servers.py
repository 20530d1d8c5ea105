"""A fork server as an agent has one, and ranks from it as a supervisor has them, beside a cold start of the
same.

Rule: every wait has a deadline; what is started ends with its fixture.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cotenant.agent.host import jobside
from cotenant.agent.host.cgroups import RANKS, AttemptCgroup, find_cgroups, group_tag
from cotenant.agent.ipc.records import Order, WarmOffer
from cotenant.agent.warm.client import Nanny, start_warm
from cotenant.agent.warm.pool import ServerKind, early
from cotenant.agent.warm.refusals import program_of
from cotenant.agent.warm.spawn import ForkServer, ServerWord
from cotenant.controller.domain import Launch, LaunchMode
from tests.building.orders import input_file, order_of
from tests.processes import IMPORT_S

MARK = "COTENANT_TEST_RUN"
STARTUP = "cotenant/gradaccum/startup"


@dataclass
class Ended:
    """How the ranks of a command went."""

    codes: dict[int, int]
    outputs: dict[int, str]

    @property
    def one(self) -> tuple[int, str]:
        assert list(self.codes) == [0], self
        return self.codes[0], self.outputs[0]


class Environment:
    """What jobs of one kind have: the interpreter, its variables, the job-side folder."""

    def __init__(self, folder: Path, interpreter: str = sys.executable, **more: str) -> None:
        self.folder = folder
        self.jobside = jobside.prepare_jobside(folder / "jobside")
        self.interpreter = interpreter
        self.first_word_s = IMPORT_S
        self.late: dict[str, str] = {}
        """Of ranks alone."""
        self.cgroup = ""
        """That of the next attempts."""
        self.input: Path | None = None
        """What the next ones read."""
        path = f"{self.jobside / STARTUP}:{self.jobside}"
        if "PYTHONPATH" in more:
            path += ":" + more.pop("PYTHONPATH")
        self.env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": path,
            MARK: os.environ.get(MARK, ""),
            **more,
        }

    def kind(self, *options: str) -> ServerKind:
        return ServerKind(
            interpreter=self.interpreter,
            options=options,
            uid=os.geteuid(),
            gid=os.getegid(),
            groups=tuple(os.getgroups()),
            env=early(self.env),
        )

    def rank_env(self, rank: int, ranks: int, port: int = 0) -> dict[str, str]:
        return {
            **self.env,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "COTENANT_SOCKET": str(self.folder / "nobody.sock"),
            **self.late,
        }

    @contextmanager
    def server(self, *modules: str, options: Sequence[str] = ()) -> Iterator[ForkServer]:
        address = self.folder / f"{uuid.uuid4().hex}.sock"
        server = ForkServer(self.kind(*options), modules, self.jobside, address)
        try:
            yield server
        finally:
            server.close()

    def cold(self, argv: Sequence[str], workdir: Path, ranks: int = 1, port: int = 0) -> Ended:
        stdin = os.open(self.input or os.devnull, os.O_RDONLY)
        processes = [
            subprocess.Popen(
                argv,
                env=self.rank_env(rank, ranks, port),
                cwd=workdir,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for rank in range(ranks)
        ]
        os.close(stdin)
        outputs = {rank: each.communicate(timeout=IMPORT_S)[0] for rank, each in enumerate(processes)}
        codes = {rank: each.returncode for rank, each in enumerate(processes)}
        return Ended(codes, {rank: data.decode() for rank, data in outputs.items()})

    @contextmanager
    def control_group(self) -> Iterator[str]:
        """A group for the attempts within, and its part for ranks; empty: there is none."""
        found = find_cgroups()
        self.cgroup = f"{found.track}/7-a1" if found.track else ""
        group = self._group()
        group.make()
        self.late = {"COTENANT_GROUP": f"{group_tag(self.folder)}/{RANKS}"} if group else {}
        try:
            yield self.late.get("COTENANT_GROUP", "")
        finally:
            group.remove()
            self.cgroup, self.late = "", {}

    def _group(self) -> AttemptCgroup:
        return AttemptCgroup(order_of(cgroup=self.cgroup), self.folder)

    def order(
        self, server: ForkServer, argv: Sequence[str], workdir: Path, ranks: int, mode: LaunchMode
    ) -> Order:
        return order_of(
            ranks,
            launch=Launch(
                argv=tuple(argv),
                workdir=str(workdir),
                mode=mode,
                uid=os.geteuid(),
                input=None if self.input is None else input_file(self.input),
            ),
            warm=WarmOffer(server=str(server.address), first_word_s=self.first_word_s),
        )

    def start(
        self,
        server: ForkServer,
        argv: Sequence[str],
        workdir: Path,
        ranks: int = 1,
        port: int = 0,
        mode: LaunchMode = "worker",
    ) -> Running:
        """Raises WarmRefused."""
        order = self.order(server, argv, workdir, ranks, mode)
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(ranks)]
        envs: list[Mapping[str, str]] = [self.rank_env(rank, ranks, port) for rank in range(ranks)]
        wanted = [(each, envs[each.rank], pipes[each.rank][1], pipes[each.rank][1]) for each in order.ranks]
        try:
            nanny = start_warm(order, program_of(order.launch.argv), wanted, self._group())
        except BaseException:
            for reading, _ in pipes:
                os.close(reading)
            raise
        finally:
            for _, writing in pipes:
                os.close(writing)
        return Running(nanny, [reading for reading, _ in pipes])

    def warm(
        self,
        server: ForkServer,
        argv: Sequence[str],
        workdir: Path,
        ranks: int = 1,
        port: int = 0,
        mode: LaunchMode = "worker",
    ) -> Ended:
        running = self.start(server, argv, workdir, ranks, port, mode)
        try:
            return running.wait()
        finally:
            running.close()


class Running:
    """Ranks that run."""

    def __init__(self, nanny: Nanny, pipes: list[int]) -> None:
        self.nanny = nanny
        self.codes: dict[int, int] = {}
        self.outputs = [b""] * len(pipes)
        self._open = dict(enumerate(pipes))

    def wait(self) -> Ended:
        """Until all have ended."""
        self.wait_until(lambda: len(self.codes) == len(self.outputs) and not self._open)
        return Ended(self.codes, {rank: data.decode() for rank, data in enumerate(self.outputs)})

    def wait_until(self, reached: Callable[[], bool]) -> None:
        until_s = time.monotonic() + IMPORT_S
        while not reached():
            assert time.monotonic() < until_s, (self.codes, self.outputs)
            waiting = list(self._open.values())
            if not self.nanny.is_gone:
                waiting.append(self.nanny.fileno())
            ready = select.select(waiting, [], [], 1.0)[0]
            for rank, pipe in list(self._open.items()):
                if pipe in ready:
                    self._read(rank, pipe)
            if not self.nanny.is_gone:
                self.codes.update({each.rank: each.code for each in self.nanny.read()})

    def _read(self, rank: int, pipe: int) -> None:
        data = os.read(pipe, 65536)
        self.outputs[rank] += data
        if not data:
            os.close(pipe)
            del self._open[rank]

    def close(self) -> None:
        for pipe in self._open.values():
            os.close(pipe)
        self._open = {}
        if not self.nanny.is_gone:
            self.nanny.clear()
            self.wait_until(lambda: self.nanny.is_gone)
        self.nanny.close()


def bare_environment(folder: Path, base: Path | None = None, **modules: str) -> Path:
    """An interpreter with an environment of its own that has these modules and no others."""
    base = base or Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = folder / "lib" / base.resolve().name / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    for name, text in modules.items():
        (packages / f"{name}.py").write_text(text)
    return folder / "bin" / "python"


def packages_of(interpreter: Path) -> Path:
    return next(interpreter.parent.parent.glob("lib/*/site-packages"))


def said(server: ForkServer) -> ServerWord:
    """Its next word."""
    until_s = time.monotonic() + IMPORT_S
    while (word := server.read()) is None:
        left_s = until_s - time.monotonic()
        assert left_s > 0 and select.select([server.fileno(), server.output], [], [], left_s)[0], "no word"
        server.drain()
    return word
