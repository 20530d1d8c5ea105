"""How long nobody decides when the controller that leads is killed or frozen, with a standby on PostgreSQL.

    python bench/takeover.py [--kills 50] [--freezes 10] [--write experiments/results/bench-takeover.md]

Two controllers, a PostgreSQL that flushes each commit, and one agent, all on this machine. At each SIGKILL or
SIGSTOP of the leader a client submits one job, and asks on until somebody acknowledges it. The first command
of the successor starts this job: what is measured ends with the first line that the job runs.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import machine
import psycopg

from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId, JobSpec, Launch, Phase
from cotenant.controller.store import PostgresDatabase
from cotenant.controller.system import keys
from cotenant.controller.wire import clients as wire
from tests.building.postgres import one_postgres
from tests.live.cluster import Cluster, Daemon
from tests.ports import free_port

WAIT_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--freezes", type=int, default=10)
    parser.add_argument("--write", type=Path, help="where the page goes; else it is printed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="takeover-") as folder, a_pair(Path(folder)) as pair:
        killed = [pair.stop_leader(number, signal.SIGKILL) for number in range(options.kills)]
        frozen = [pair.stop_leader(-1 - number, signal.SIGSTOP) for number in range(options.freezes)]
    page = report(killed, frozen, options)
    if options.write:
        options.write.write_text(page)
    else:
        print(page)


class Pair:
    """Two controllers, of which one leads."""

    def __init__(self, cluster: Cluster, endpoints: tuple[str, ...], journal: str) -> None:
        self._cluster, self._endpoints, self._journal = cluster, endpoints, journal
        self.daemons = {endpoint: self._controller(endpoint) for endpoint in endpoints}

    def _controller(self, own: str) -> Daemon:
        made = self._cluster.add_controller(f"controller.listen={own}", f"controller.journal={self._journal}")
        self._cluster.controller = None
        made.words[made.words.index("--state-dir") + 1] += own[-5:]
        made.words.append("--standby")
        made.log = made.log.with_name(f"controller-{own[-5:]}.log")
        return made

    def client(self) -> Client:
        return Client(self._endpoints, self._cluster.keys, timeout_s=WAIT_S)

    def stop_leader(self, number: int, how: signal.Signals) -> tuple[float, float]:
        """Seconds from the signal until a submission is acknowledged, and until its job's process runs."""
        with self.client() as client:
            leader = self._await_both(client)
        mark = self._cluster.folder / f"mark-{number}"
        words = (
            sys.executable,
            "-S",
            "-E",
            "-c",
            f"import time; open({str(mark)!r}, 'w').write(repr(time.monotonic()))",
        )
        launch = Launch(argv=words, workdir="/", env={}, uid=os.getuid(), gid=os.getgid())
        spec = JobSpec(job_id=JobId("new-0"), name="first", launch=launch, gpus_min=1, gpus_max=1)
        process = self.daemons[leader].process
        assert process is not None
        with self.client() as client:
            process.send_signal(how)
            killed_s = time.monotonic()
            (job_id,) = client.ask(wire.Submit(specs=(spec,))).job_ids
            acknowledged_s = time.monotonic() - killed_s
            ended = client.ask(wire.WaitJobs(job_ids=(job_id,), timeout_s=WAIT_S)).jobs
            assert ended and ended[0].phase is Phase.DONE, ended
        process.send_signal(signal.SIGCONT)
        self.daemons[leader].kill()
        self.daemons[leader].launch()
        return acknowledged_s, float(mark.read_text()) - killed_s

    def _await_both(self, client: Client) -> str:
        """The leader's endpoint, once the other follows it without a rest."""
        until_s = time.monotonic() + WAIT_S
        sql = "SELECT endpoint, (SELECT max(seq) FROM entries) = (SELECT max(seq) FROM standbys) FROM leader"
        while time.monotonic() < until_s:
            leader = client.ask(wire.GetControllers()).leader
            with psycopg.connect(self._journal, options="-c search_path=cotenant") as connection:
                found = connection.execute(sql).fetchone()
            if leader and found == (leader, True):
                return leader
            time.sleep(0.05)
        raise AssertionError("no leader with a standby that has caught up")


@contextmanager
def a_pair(folder: Path) -> Iterator[Pair]:
    endpoints = tuple(f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    with ExitStack() as stack:
        server = stack.enter_context(one_postgres(durable=True))
        journal = server.url(stack.enter_context(server.database()))
        PostgresDatabase(journal).migrate()
        cluster = stack.enter_context(closing(Cluster(folder)))
        cluster.endpoint, cluster.keys = ",".join(endpoints), folder / "keys"
        keys.init_cluster(cluster.keys)
        agent_key = keys.add_agent(cluster.keys, "a")
        pair = Pair(cluster, endpoints, journal)
        for daemon in pair.daemons.values():
            stack.callback(daemon.stop)
            daemon.launch()
        cluster.add_agent("a", "agent.devices=cpu:2", f"agent.keys_dir={agent_key.parent}").start()
        yield pair


def report(killed: list[tuple[float, float]], frozen: list[tuple[float, float]], options: Any) -> str:
    rows = []
    for what, times in ((f"{len(killed)} kills", killed), (f"{len(frozen)} freezes", frozen)):
        for until, at in (("a submission is acknowledged", 0), ("its job's process runs", 1)):
            of = [each[at] for each in times]
            if of:
                quantiles = (quantile(of, 0.5), quantile(of, 0.99), max(of))
                rows.append(f"| {what} | {until} | " + " | ".join(f"{each:.2f}" for each in quantiles) + " |")
    lines = [
        "# Taking over from a leader that is killed or frozen",
        "",
        answer(killed, frozen),
        "",
        "Seconds from SIGKILL or SIGSTOP of the leader until",
        "",
        "| after | until | p50 | p99 | max |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
        "The process is started by the first command of the successor. A frozen leader is replaced after",
        "`controller.leader_lease_s`, 10 s.",
        "",
        f"Command: `python bench/takeover.py --kills {options.kills} --freezes {options.freezes}`",
        machine.sentences(psycopg=psycopg.__version__),
    ]
    return "\n".join(lines) + "\n"


def answer(killed: list[tuple[float, float]], frozen: list[tuple[float, float]]) -> str:
    """The page in a sentence."""
    started_s = [each[1] for each in killed] or [0.0]
    text = "After a kill of the leader the successor's first command is carried out "
    text += f"within {max(started_s):.1f} s"
    return text + (f", after a freeze within {max(each[1] for each in frozen):.1f} s." if frozen else ".")


def quantile(values: list[float], share: float) -> float:
    """The nearest rank: of fifty, the 99th percentile is the largest."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


if __name__ == "__main__":
    main()
