"""A controller with thousands of agents: its share of a core, its memory, how quickly words get through.

    python bench/control_plane.py [--agents 1000 5000] [--seconds 30] [--write PAGE.md]

The controller is the real one, over TCP with CURVE. The agents are simulated, all in one process: each
greets, sends a heartbeat a second, runs one job and reports its progress in every heartbeat. Meanwhile
jobs are submitted at a steady rate, and each is started, confirmed, reported and ended by an agent.

heartbeat: an agent's heartbeat until the lease renewal that answers it; no disk in between.
command: `Submit` leaves the client until `StartAttempt` reaches the agent; a flushed commit in between.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
import zmq

from cotenant.controller.client.connection import Client
from cotenant.controller.domain import (
    AttemptNo,
    CommandId,
    Device,
    DeviceId,
    ExitVerdict,
    HostId,
    HostReport,
    JobId,
    JobSpec,
    Launch,
    StartAttempt,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.system import keys
from cotenant.controller.wire import (
    AttemptProgress,
    CommandAck,
    CommandDelivery,
    Heartbeat,
    Hello,
    Renew,
    Report,
    ReportAck,
    ToAgent,
    Welcome,
    decode,
    encode,
)
from cotenant.controller.wire import clients as wire

SUBMISSIONS_PER_S = 10.0
JOIN_S_MAX = 120.0
PROBE = "probe"
"""Name of the jobs whose way is timed; they end as soon as they have started."""


@dataclass
class Measured:
    """What one run saw."""

    agents: int
    join_s: float = 0.0
    heartbeat_ms: list[float] = field(default_factory=list)
    command_ms: list[float] = field(default_factory=list)
    cpu_percent: float = 0.0
    io_percent: float = 0.0
    """The part of it that ZeroMQ's thread takes, for sockets and encryption."""
    rss_mib: float = 0.0
    events_per_s: float = 0.0
    missed: int = 0
    own_cpu_percent: float = 0.0


class SimulatedAgent:
    """One host of two devices."""

    def __init__(self, fleet: Fleet, number: int, key: keys.KeyFile) -> None:
        self.host_id = HostId(f"host{number:05d}")
        self._fleet = fleet
        self._beat = 0
        self._beat_at_s = 0.0
        self._reports = 0
        self._step, self._began_s = 0, time.monotonic()
        self.jobs: list[tuple[JobId, AttemptNo]] = []
        self.welcomed = False
        self._obeyed: set[CommandId] = set()
        self.socket = fleet.context.socket(zmq.DEALER)
        for option, value in ((zmq.LINGER, 0), (zmq.RECONNECT_IVL, 200), (zmq.RECONNECT_IVL_MAX, 2_000)):
            self.socket.setsockopt(option, value)
        self.socket.curve_publickey, self.socket.curve_secretkey = key.public.encode(), key.secret.encode()
        self.socket.curve_serverkey = key.server.encode()
        self.socket.connect(fleet.endpoint)

    def greet(self) -> None:
        devices = tuple(
            Device(
                device_id=DeviceId(f"{self.host_id}/{at}"),
                host_id=self.host_id,
                kind="cuda",
                type="NVIDIA-H200",
                local=f"GPU-{at}",
                memory_mib=140_000,
            )
            for at in range(2)
        )
        report = HostReport(host_id=self.host_id, devices=devices, cpus=64, address="10.0.0.1")
        self._say(Hello(session="s", report=report, attempts=()))

    def beat(self, now_s: float) -> None:
        """Count one that was not answered in a second as missed."""
        self._fleet.measured.missed += self._beat_at_s > 0
        self._beat, self._beat_at_s = self._beat + 1, now_s
        self._step = int(2.0 * (now_s - self._began_s)) + 1
        progress = tuple(
            AttemptProgress(
                job_id=job_id,
                attempt=attempt,
                step=self._step,
                step_s=0.5,
                loss=1 / self._step,
                memory_mib=30_000.0,
                duty_cycle=0.7,
            )
            for job_id, attempt in self.jobs
        )
        self._say(Heartbeat(beat=self._beat, session="s", progress=progress))

    def _say(self, message: Any) -> None:
        self.socket.send(encode(message))
        self._fleet.again.append(self)  # Sending may have swallowed the edge that says "readable".

    def drain(self) -> None:
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._take(decode(self.socket.recv(), ToAgent))

    def _take(self, message: Any) -> None:
        match message:
            case Renew(beat=beat) if beat == self._beat:
                self._fleet.measured.heartbeat_ms.append(1000 * (time.monotonic() - self._beat_at_s))
                self._beat_at_s = 0.0
            case CommandDelivery(command=command, epoch=epoch):
                self._say(CommandAck(command_id=command.command_id, epoch=epoch))
                if isinstance(command, StartAttempt) and command.command_id not in self._obeyed:
                    self._obeyed.add(command.command_id)  # It comes again where our "seen" was late.
                    self._start(command, epoch)
            case Welcome():
                self.welcomed = True
            case Renew() | ReportAck():
                pass
            case other:
                raise AssertionError(other)

    def _start(self, command: StartAttempt, epoch: str) -> None:
        named: dict[str, Any] = {
            "job_id": command.job_id, "attempt": command.attempt, "host_id": self.host_id,
        }  # fmt: skip
        self._report(ev.AttemptStarted(**named), epoch, command.job_epoch)
        self._report(ev.FirstStepDone(**named, step=1), epoch, command.job_epoch)
        if command.name == PROBE:
            sent_s = self._fleet.submitted_s.pop(command.launch.argv[1])
            self._fleet.measured.command_ms.append(1000 * (time.monotonic() - sent_s))
            ended = ev.AttemptEnded(**named, verdict=ExitVerdict(outcome="finished", exit_code=0), step=2)
            self._report(ended, epoch, command.job_epoch)
        else:
            self.jobs.append((command.job_id, command.attempt))

    def _report(self, event: Any, epoch: str, job_epoch: str) -> None:
        self._reports += 1
        self._say(Report(sequence=self._reports, event=event, epoch=epoch, job_epoch=job_epoch))


class Fleet:
    """All agents, and one client that submits."""

    def __init__(self, endpoint: str, key: keys.KeyFile, count: int) -> None:
        self.endpoint = endpoint
        self.measured = Measured(agents=count)
        self.submitted_s: dict[str, float] = {}
        self.again: list[SimulatedAgent] = []
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, count + 100)
        self._poll = select.epoll()
        self._agents = [SimulatedAgent(self, number, key) for number in range(count)]
        self._by_descriptor = {agent.socket.FD: agent for agent in self._agents}
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        self._client = self.context.socket(zmq.DEALER)
        self._client.curve_publickey, self._client.curve_secretkey = key.public.encode(), key.secret.encode()
        self._client.curve_serverkey = key.server.encode()
        self._client.connect(endpoint)
        self._submissions = 0

    def join(self) -> None:
        began_s = time.monotonic()
        for agent in self._agents:
            agent.greet()
        while not all(agent.welcomed for agent in self._agents):
            self._serve(time.monotonic() + 0.2)
            assert time.monotonic() - began_s < JOIN_S_MAX, "agents were not welcomed"
        self.measured.join_s = time.monotonic() - began_s

    def occupy(self, client: Client) -> None:
        """As many running jobs as agents; each host has room for two."""
        count = len(self._agents)
        for first in range(0, count, 500):
            specs = tuple(job("long", str(at)) for at in range(first, min(first + 500, count)))
            client.ask(wire.Submit(specs=specs))
            self._serve(time.monotonic() + 0.05)
        deadline_s = time.monotonic() + JOIN_S_MAX
        while sum(len(agent.jobs) for agent in self._agents) < count:
            self._serve(time.monotonic() + 0.2)
            assert time.monotonic() < deadline_s, "jobs were not started"

    def run(self, seconds: float) -> None:
        """Heartbeats of every agent once a second, spread evenly; submissions at a steady rate."""
        began_s = time.monotonic()
        gap_s = 1.0 / len(self._agents)
        beats = submissions = 0
        while (now_s := time.monotonic()) - began_s < seconds:
            while began_s + beats * gap_s <= now_s:
                self._agents[beats % len(self._agents)].beat(time.monotonic())
                beats += 1
            while began_s + submissions / SUBMISSIONS_PER_S <= now_s:
                self._submit()
                submissions += 1
            self._serve(min(began_s + beats * gap_s, now_s + 0.005))
        self._serve(time.monotonic() + 1.0)

    def _submit(self) -> None:
        self._submissions += 1
        mark = f"p{self._submissions}"
        self.submitted_s[mark] = time.monotonic()
        request = wire.Request(request_id=self._submissions, body=wire.Submit(specs=(job(PROBE, mark),)))
        self._client.send_multipart([wire.CLIENT_MARK, encode(request)])

    def _serve(self, until_s: float) -> None:
        while True:
            again, self.again = self.again, []
            for agent in again:
                agent.drain()
            while self._client.poll(0):
                assert isinstance(decode(self._client.recv(), wire.AnyReply), wire.Submitted)
            left_s = until_s - time.monotonic()
            for descriptor, _ in self._poll.poll(0 if self.again else max(0.0, min(left_s, 0.001)), 1_000):
                self._by_descriptor[descriptor].drain()
            if left_s <= 0 and not self.again:
                return

    def close(self) -> None:
        self._poll.close()
        self.context.destroy(0)


def job(name: str, mark: str) -> JobSpec:
    launch = Launch(
        argv=("train", mark), workdir="/home/somebody", env={f"V{n}": "x" * 20 for n in range(20)}
    )
    return JobSpec(job_id=JobId(f"new-{mark}"), name=name, iterations=100_000, launch=launch)


# --- One run ---------------------------------------------------------------------------------------


def measure(count: int, seconds: float) -> Measured:
    with (
        tempfile.TemporaryDirectory(prefix="cotenant-bench-") as name,
        controller(Path(name)) as (pid, endpoint),
    ):
        key = keys.find_key(Path(name) / "keys")
        fleet = Fleet(endpoint, key, count)
        with Client(endpoint, key, timeout_s=60.0) as client:
            fleet.join()
            fleet.occupy(client)
            fleet.run(3.0)  # Warm up.
            measured = fleet.measured
            measured.heartbeat_ms.clear()
            measured.command_ms.clear()
            measured.missed = 0
            events = client.ask(wire.GetStatus()).counters["events"]
            began_s, cpu_s, own_s = time.monotonic(), cpu_of(pid), time.process_time()
            io_s = cpu_of(pid, "ZMQbg/IO/0")
            fleet.run(seconds)
            passed_s = time.monotonic() - began_s
            measured.cpu_percent = 100 * (cpu_of(pid) - cpu_s) / passed_s
            measured.io_percent = 100 * (cpu_of(pid, "ZMQbg/IO/0") - io_s) / passed_s
            measured.own_cpu_percent = 100 * (time.process_time() - own_s) / passed_s
            measured.events_per_s = (client.ask(wire.GetStatus()).counters["events"] - events) / passed_s
            measured.rss_mib = rss_of(pid)
        fleet.close()
        return measured


@contextmanager
def controller(folder: Path) -> Iterator[tuple[int, str]]:
    keys.init_cluster(folder / "keys")
    command = [sys.executable, "-m", "cotenant.controller", "--state-dir", str(folder / "state")]
    process = subprocess.Popen(
        [*command, "--keys-dir", str(folder / "keys"), "--endpoint", "tcp://127.0.0.1:*"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.pid, process.stdout.readline().split()[1]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def cpu_of(pid: int, thread: str | None = None) -> float:
    """Seconds on a core so far, of all threads or of those with this name."""
    seconds = 0.0
    for stat in Path(f"/proc/{pid}").glob("task/*/stat" if thread else "stat"):
        named, _, rest = stat.read_text().rpartition(")")
        if thread is None or named.endswith(f"({thread}"):
            seconds += sum(map(int, rest.split()[11:13])) / os.sysconf("SC_CLK_TCK")
    return seconds


def rss_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


# --- The page --------------------------------------------------------------------------------------


def row(m: Measured) -> str:
    heartbeat, command = quantiles(m.heartbeat_ms), quantiles(m.command_ms)
    return (
        f"| {m.agents:,} | {m.cpu_percent:.0f} % | {m.io_percent:.0f} % | {m.rss_mib:.0f} "
        f"| {heartbeat[0]:.1f} / {heartbeat[1]:.1f} | {command[0]:.1f} / {command[1]:.1f} "
        f"| {m.events_per_s:.0f} | {m.join_s:.1f} | {m.missed} | {m.own_cpu_percent:.0f} % |"
    )


def quantiles(values: list[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    cuts = statistics.quantiles(values, n=100)
    return cuts[49], cuts[98]


PAGE = """# A controller with thousands of agents

With {most:,} agents the controller takes {cpu:.0f} % of one core and {rss:.0f} MiB, and answers half of all
heartbeats within {heartbeat:.1f} ms.

| agents | CPU | ZeroMQ | RSS, MiB | heartbeat, ms | command, ms | events/s | joined, s | missed | fleet |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

TCP with CURVE on 127.0.0.1. Every agent runs a job and sends a heartbeat a second; {rate:g} more jobs a
second are submitted, started and ended. *CPU* is of one core; *ZeroMQ*: the part of it for sockets and
encryption. Times are p50 / p99. *heartbeat*: until the renewal that answers it. *command*: from the
submission until its start command reaches an agent, with a flushed commit in between. *joined*: until all are
welcomed. *missed*: not answered within a second. *fleet*: CPU of the simulated agents, on the same machine.

Command: `python bench/control_plane.py --agents {agents} --seconds {seconds:g}`
{machine} {note}
"""


def report(found: list[Measured], options: Any) -> str:
    last = found[-1]
    return PAGE.format(
        rows="\n".join(map(row, found)),
        most=last.agents,
        cpu=last.cpu_percent,
        rss=last.rss_mib,
        heartbeat=quantiles(last.heartbeat_ms)[0],
        rate=SUBMISSIONS_PER_S,
        agents=" ".join(map(str, options.agents)),
        seconds=options.seconds,
        machine=machine.sentences(libzmq=zmq.zmq_version()),
        note=options.note,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, nargs="+", default=[1_000, 5_000])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--write", type=Path, default=None, help="a page for experiments/results")
    parser.add_argument("--note", default="", help="a line about the circumstances, for the page")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found = []
    for count in options.agents:
        found.append(measure(count, options.seconds))
        print(row(found[-1]), flush=True)
    page = report(found, options)
    print(page)
    if options.write:
        options.write.write_text(page)


if __name__ == "__main__":
    main()
