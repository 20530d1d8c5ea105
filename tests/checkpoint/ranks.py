"""Ranks of a training script as real processes, started from one warm process, and a supervisor to talk to.

Rule: every wait has a deadline and fails with the ranks' output; nothing sleeps for a fixed time.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotenant.agent.supervisor.core import rank_messages
from tests.building.limits import within_s
from tests.ports import free_port
from tests.processes import IMPORT_S

HERE = Path(__file__).resolve().parent
DEADLINE_S = within_s(90.0)
MODULES = ("torch._dynamo", "sklearn.datasets")
"""Each would take a second or two in every rank of a script that needs it; who has none such says so."""


class Warm:
    """The warm process; `start` forks a rank from it. Beside torch it has imported `modules`; `path` comes
    first on its PYTHONPATH."""

    def __init__(self, modules: Sequence[str] = MODULES, path: str = "") -> None:
        self.users = 0
        python_path = os.pathsep.join(p for p in (path, *sys.path) if p)
        env = {**os.environ, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"}
        words = [sys.executable, str(HERE / "warm.py"), *modules]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self._codes: dict[int, int] = {}
        self._pending = b""
        self._is_ready = False

    def start(self, argv: Sequence[str], env: Mapping[str, str], output: Path) -> int:
        request = {"argv": list(argv), "env": dict(env), "output": str(output)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        if not self._is_ready:
            assert "ready" in self._next(time.monotonic() + IMPORT_S)
            self._is_ready = True
        give_up_at_s = time.monotonic() + DEADLINE_S
        while True:
            message = self._next(give_up_at_s)
            if "started" in message:
                return int(message["started"])

    def wait(self, pid: int, deadline_s: float = DEADLINE_S) -> int:
        give_up_at_s = time.monotonic() + deadline_s
        while pid not in self._codes:
            self._next(give_up_at_s)
        return self._codes[pid]

    def ended(self, pid: int) -> bool:
        """Whether it has ended, as far as we have been told by now."""
        assert self._process.stdout is not None
        while pid not in self._codes and (b"\n" in self._pending or select.select([self], [], [], 0)[0]):
            self._next(time.monotonic() + DEADLINE_S)
        return pid in self._codes

    def fileno(self) -> int:
        """Something to read here may be the end of a rank."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)
        self._process.stdout.close()

    def _next(self, give_up_at_s: float) -> dict[str, int]:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._pending:
            ready, _, _ = select.select([fd], [], [], max(0.0, give_up_at_s - time.monotonic()))
            if not ready:
                raise TimeoutError("no answer from the warm process in time")
            data = os.read(fd, 65536)
            if not data:
                raise RuntimeError(f"the warm process ended with {self._process.wait()}")
            self._pending += data
        line, self._pending = self._pending.split(b"\n", 1)
        message: dict[str, int] = json.loads(line)
        if "ended" in message:
            self._codes[message["ended"]] = message["code"]
        return message


@dataclass
class Gang:
    """The ranks of one attempt."""

    warm: Warm
    pids: list[int]
    folder: Path

    def wait(self, code: int = 0, deadline_s: float = DEADLINE_S) -> list[dict[str, Any]]:
        """All ranks end with `code`; what each printed as its last line of JSON."""
        try:
            codes = [self.warm.wait(pid, deadline_s) for pid in self.pids]
        except TimeoutError:
            self.kill()
            raise AssertionError(f"ranks did not end in time\n{self.output()}") from None
        assert codes == [code] * len(self.pids), f"ranks ended with {codes}\n{self.output()}"
        return [self.result(rank) for rank in range(len(self.pids))]

    def result(self, rank: int) -> dict[str, Any]:
        lines = [line for line in self._log(rank).read_text().splitlines() if line.startswith('{"result"')]
        return dict(json.loads(lines[-1])["result"]) if lines else {}

    def output(self) -> str:
        return "\n".join(f"--- rank {r}\n{self._log(r).read_text()}" for r in range(len(self.pids)))

    def wait_for_output(self, text: str) -> None:
        """Until rank 0 has printed `text`."""
        give_up_at_s = time.monotonic() + DEADLINE_S
        while text not in self._log(0).read_text():
            if time.monotonic() > give_up_at_s:
                raise AssertionError(f"rank 0 did not print {text!r}\n{self.output()}")
            time.sleep(0.01)

    def kill(self) -> None:
        for pid in self.pids:
            if not self.warm.ended(pid):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            self.warm.wait(pid)

    def _log(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.log"


def launch(
    warm: Warm, script: Path, folder: Path, *args: str, ranks: int = 1, env: Mapping[str, str] | None = None
) -> Gang:
    """Start all ranks of `script`; their output goes to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    pids = []
    for rank in range(ranks):
        variables = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        pids.append(warm.start([str(script), *args], variables, folder / f"rank-{rank}.log"))
    return Gang(warm=warm, pids=pids, folder=folder)


class Leash:
    """How many steps a run of `trainer.py` may make: so what is to happen at a step is agreed on before the
    run can be past it, on a machine of any speed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "leash"
        self.words = ("--leash", str(self._path))
        self.allow(2)

    def allow(self, steps: int = 1_000_000) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(str(steps))
        fresh.replace(self._path)


@dataclass
class Supervisor:
    """The other end of the protocol, just enough to agree on a step with some ranks."""

    folder: Path
    ranks: int
    heard: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "supervisor.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))

    def env(self, root: Path, attempt: int, **more: str) -> dict[str, str]:
        return {
            "COTENANT_PROTOCOL": "1",
            "COTENANT_JOB": "j1",
            "COTENANT_ATTEMPT": str(attempt),
            "COTENANT_CHECKPOINT_ROOT": str(root),
            "COTENANT_SOCKET": str(self.path),
            **more,
        }

    def fileno(self) -> int:
        """Something to read here is a message of a rank."""
        return self._socket.fileno()

    def tell(self, name: str, **fields: Any) -> None:
        message = json.dumps({"v": 1, "m": name, **fields}).encode()
        for rank in range(self.ranks):
            self._socket.sendto(message, str(self.folder / f"rank-{rank}.sock"))

    def hear(self, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        self._socket.settimeout(deadline_s)
        data = self._socket.recv(8192)
        assert rank_messages.parse(data) is not None, f"a real supervisor would drop {data!r}"
        message: dict[str, Any] = json.loads(data)
        self.heard.append(message)
        return message

    def hear_all(self) -> list[dict[str, Any]]:
        """All that was said, also what nobody has waited for."""
        while select.select([self], [], [], 0.0)[0]:
            self.hear()
        return self.heard

    def wait_for(
        self, name: str, count: int = 1, *, gang: Gang | None = None, **fields: Any
    ) -> list[dict[str, Any]]:
        """The first `count` messages of that name (and with these fields), heard before or from now on."""
        give_up_at_s = time.monotonic() + DEADLINE_S

        def matching() -> list[dict[str, Any]]:
            return [m for m in self.heard if m["m"] == name and all(m.get(k) == v for k, v in fields.items())]

        while len(matching()) < count:
            ended = gang is not None and any(gang.warm.ended(pid) for pid in gang.pids)
            try:
                self.hear(0.0 if ended else 0.5)
            except (TimeoutError, BlockingIOError):
                if ended or time.monotonic() > give_up_at_s:
                    told = gang.output() if gang is not None else ""
                    raise AssertionError(f"no {count} x {name}, only {self.heard[-20:]}\n{told}") from None
        return matching()[:count]

    def agree(self, name: str, step: int, proposal: int = 1, **fields: Any) -> int:
        """Propose steps, later and later, until all ranks confirm one; commit it and return it."""
        while True:
            self.tell(name, proposal=proposal, step=step, phase="propose", **fields)
            answers = self.wait_for("confirm", self.ranks, proposal=proposal)
            if all(answer["ok"] for answer in answers):
                self.tell(name, proposal=proposal, step=step, phase="commit", **fields)
                return step
            self.tell(name, proposal=proposal, step=step, phase="withdraw")
            proposal, step = proposal + 1, max(int(a["step"]) for a in answers) + 3

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


_WARM: dict[tuple[tuple[str, ...], str], Warm] = {}


def one_warm_process(modules: tuple[str, ...] = MODULES, path: str = "") -> Iterator[Warm]:
    """For session fixtures: all that want the same share one process, the last to end closes it."""
    process = _WARM.get((modules, path)) or _WARM.setdefault((modules, path), Warm(modules, path))
    process.users += 1
    yield process
    process.users -= 1
    if not process.users:
        process.close()
        del _WARM[modules, path]
