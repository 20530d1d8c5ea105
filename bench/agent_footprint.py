"""What an agent costs: CPU share and memory of a real agent process, idle and with busy attempts.

    python bench/agent_footprint.py [--seconds 60] [--attempts 4] [--write experiments/results/bench-agent.md]

The agent is the real one, with real supervisors; the controller is a stub that answers heartbeats. Each
attempt is a process that speaks the job-side protocol as fast as it may: a `step` every 0.1 s. CPU is time on
a core over the interval, all threads, as the scheduler counts it; memory is RSS at its end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import msgspec
import zmq

from cotenant.controller.domain import (
    AttemptNo,
    CommandId,
    DeviceId,
    GangMember,
    HostId,
    JobId,
    Launch,
    StartAttempt,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.wire import (
    CommandDelivery,
    FromAgent,
    Heartbeat,
    Hello,
    Renew,
    Report,
    ReportAck,
    Welcome,
    decode,
    encode,
)

HOST = "bench"
WARM_UP_S = 5.0
JOB = """
import json, os, socket, time
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
def say(**message):
    out.sendto(json.dumps({"v": 1, "rank": 0, **message}).encode(), os.environ["COTENANT_SOCKET"])
say(m="hello", world_size=1, resumable=True, accumulates=True, step=0)
say(m="first_step", step=1)
for step in range(2, 1_000_000):
    time.sleep(0.1)
    say(m="step", step=step, count=1, elapsed_s=0.1, s=1, loss=1.0 / step)
"""


@dataclass(frozen=True, kw_only=True)
class Cost:
    cpu_percent: float
    """Of one core."""
    rss_mb: float


class Stub:
    """Answers what an agent needs to hear."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket: Any = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(endpoint)
        self._agent = b""
        self.running = 0
        self.beats = 0

    def serve(self, seconds: float, enough: int | None = None) -> None:
        """Answer for so long, or until so many attempts have made their first step."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and (enough is None or self.running < enough):
            if self._socket.poll(max(1, int(left_s * 1000))):
                address, frame = self._socket.recv_multipart()
                self._take(address, decode(frame, FromAgent))

    def _take(self, address: bytes, message: FromAgent) -> None:
        self._agent = address
        match message:
            case Hello(session=session):
                self.say(Welcome(session=session, lease_s=300.0, reports_seen=0, journal="bench"))
            case Heartbeat(beat=beat):
                self.beats += 1
                self.say(Renew(beat=beat))
            case Report(sequence=sequence, event=event):
                self.running += isinstance(event, ev.FirstStepDone)
                self.say(ReportAck(sequence=sequence))

    def say(self, message: Any) -> None:
        self._socket.send_multipart([self._agent, encode(message)])

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def start_of(number: int, workdir: str) -> StartAttempt:
    device = DeviceId(f"{HOST}/cpu{(number - 1) // 2}")
    return StartAttempt(
        command_id=CommandId(number),
        host_id=HostId(HOST),
        job_id=JobId(str(number)),
        attempt=AttemptNo(1),
        launch=Launch(
            argv=(sys.executable, "-S", "-c", JOB), workdir=workdir, uid=os.getuid(), gid=os.getgid()
        ),
        gang=(GangMember(host_id=HostId(HOST), devices=(device,), first_rank=0),),
        master_address="127.0.0.1",
        master_port=29500,
        sub_batch=None,
        accumulation_steps=1,
        memory_cap_mib=None,
        host_memory_mib=0,
        cpus=0,
        resume_step=0,
        checkpoint_every_s=0.0,
    )


def cpu_s(pid: int) -> float:
    """Time on a core over all threads, to the nanosecond: the ticks of /proc/PID/stat are too coarse here."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in threads) / 1e9


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(stub: Stub, pids: list[int], seconds: float) -> list[Cost]:
    before, began_s = [cpu_s(pid) for pid in pids], time.monotonic()
    stub.serve(seconds)
    passed_s = time.monotonic() - began_s
    return [
        Cost(cpu_percent=100 * (cpu_s(pid) - was) / passed_s, rss_mb=rss_mb(pid))
        for pid, was in zip(pids, before, strict=True)
    ]


def supervisors(state: Path) -> list[int]:
    found = sorted(state.glob("attempts/*/supervisor.json"))
    return [msgspec.json.decode(path.read_bytes())["pid"] for path in found]


def run(folder: Path, attempts: int, seconds: float) -> tuple[Cost, Cost, list[Cost]]:
    """The agent idle, the agent with attempts, and their supervisors."""
    stub, state = Stub(f"ipc://{folder}/c.sock"), folder / "state"
    (folder / "none.toml").touch()
    env = {
        **os.environ,
        "COTENANT_CONFIG": str(folder / "none.toml"),
        "COTENANT_LOCK_DIR": str(folder / "locks"),
    }
    words = ["--controller", f"ipc://{folder}/c.sock", "--host", HOST, "--state-dir", str(state)]
    words += ["--devices", f"cpu:{(attempts + 1) // 2}", "--oversubscribe"]
    agent = subprocess.Popen(
        [sys.executable, "-m", "cotenant.agent", *words], env=env, stdout=subprocess.DEVNULL
    )
    try:
        stub.serve(WARM_UP_S)
        [idle] = measure(stub, [agent.pid], seconds)
        for number in range(1, attempts + 1):
            stub.say(CommandDelivery(command=start_of(number, str(folder))))
        stub.serve(60.0, enough=attempts)
        stub.serve(WARM_UP_S)
        busy, *others = measure(stub, [agent.pid, *supervisors(state)], seconds)
        if len(others) != attempts or stub.running != attempts:
            raise SystemExit(f"{stub.running} of {attempts} attempts run: no measurement")
        return idle, busy, others
    finally:
        agent.terminate()
        agent.wait()
        for pid in supervisors(state):
            os.killpg(pid, signal.SIGKILL)
        stub.close()


def table(idle: Cost, busy: Cost, others: list[Cost], options: argparse.Namespace) -> str:
    each = Cost(
        cpu_percent=sum(c.cpu_percent for c in others) / len(others),
        rss_mb=sum(c.rss_mb for c in others) / len(others),
    )
    rows = (
        ("agent, no attempts", idle),
        (f"agent, {options.attempts} attempts that report every 0.1 s", busy),
        ("one supervisor of those (mean)", each),
    )
    lines = [
        (
            f"An agent with {options.attempts} busy attempts takes {busy.cpu_percent:.2f} % of one core and "
            f"{busy.rss_mb:.1f} MB; the aims are under 1 % and under 60 MB."
        ),
        "",
        "| process | CPU, % of one core | RSS, MB |",
        "| --- | --- | --- |",
    ]
    return "\n".join([*lines, *(f"| {name} | {c.cpu_percent:.2f} | {c.rss_mb:.1f} |" for name, c in rows)])


def page(text: str, options: argparse.Namespace) -> str:
    command = f"python bench/agent_footprint.py --seconds {options.seconds:g} --attempts {options.attempts}"
    return f"""# What an agent costs

{text}

The agent and its supervisors are real; the controller is a stub that answers heartbeats (1 Hz) and reports.
Attempts speak the job-side protocol at its highest rate. RSS counts shared pages in full.

Command: `{command}`
{machine.sentences(pyzmq=zmq.__version__)}
"""


def main() -> None:
    known = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known.add_argument("--seconds", type=float, default=60.0)
    known.add_argument("--attempts", type=int, default=4)
    known.add_argument("--write", type=Path, help="also write a page")
    options = known.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="agent-bench-"))
    try:
        text = table(*run(folder, options.attempts, options.seconds), options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(text)
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(page(text, options))


if __name__ == "__main__":
    main()
