"""Two controllers, their database and three agents, each on a host of its own, and two clients who note all.

Rule: whatever is started, mounted or built here is gone after `close`, also if only half of it was made.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psycopg

from cotenant.controller.client.connection import Client, Refusal, Unreachable
from cotenant.controller.domain import ENDED, HostId, HostState, JobId, JobSpec, Launch, Phase
from cotenant.controller.store import PostgresDatabase
from cotenant.controller.system import keys
from cotenant.controller.wire import clients as wire
from tests.building.postgres import Postgres
from tests.live.cluster import Cluster, Daemon, Training
from tests.live.failover_judge import Arrived, Asked, Listed, Reign, Submitted, Written
from tests.live.failover_plan import AGENTS, CONTROLLERS, LEASE_S, LEASES_OF_HOST
from tests.live.partitions import Partitions
from tests.live.wall_clock import NoShim, WallClocks
from tests.ports import free_port

DATABASE: Final = "database"
DISK_MIB: Final = 400
ASK_S: Final = 3.0
NOTED_JOB: Final = str(Path(__file__).with_name("noted_job.py"))
UNFENCED: Final = str(Path(__file__).with_name("unfenced.py"))
OPEN_MAX: Final = 8
"""So many of the clients' small jobs are open at once."""
WATCHING: Final = """
CREATE SCHEMA storm;
CREATE TABLE storm.reigns(term BIGINT, backend BIGINT, at TIMESTAMPTZ DEFAULT clock_timestamp());
CREATE TABLE storm.written(seq BIGINT, term BIGINT, backend BIGINT);
CREATE FUNCTION storm.note_reign() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO storm.reigns VALUES(NEW.term, NEW.backend); RETURN NEW; END';
CREATE FUNCTION storm.note_entry() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO storm.written SELECT NEW.seq, term, pg_backend_pid() FROM cotenant.leader;
     RETURN NEW; END';
CREATE TABLE storm.signs(term BIGINT, backend BIGINT, PRIMARY KEY(term, backend));
CREATE FUNCTION storm.note_sign() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO storm.signs SELECT term, pg_backend_pid() FROM cotenant.leader ON CONFLICT DO NOTHING;
     RETURN NEW; END';
CREATE TRIGGER note_sign AFTER UPDATE ON cotenant.beats FOR EACH ROW EXECUTE FUNCTION storm.note_sign();
CREATE TRIGGER note_reign AFTER UPDATE ON cotenant.leader FOR EACH ROW EXECUTE FUNCTION storm.note_reign();
CREATE TRIGGER note_entry AFTER INSERT ON cotenant.entries FOR EACH ROW EXECUTE FUNCTION storm.note_entry();
"""
"""The database itself writes down who led and who wrote what."""


class FailoverCluster(Cluster):
    """Both controllers are asked, in order; each is started as a standby, and one of them leads."""

    def __init__(
        self, folder: Path, net: Partitions, server: Postgres, clocks: WallClocks | None, *, is_fenced: bool
    ) -> None:
        super().__init__(folder)
        self.freezes = True
        self.net, self.server, self.clocks = net, server, clocks
        ports = {name: free_port() for name in CONTROLLERS}
        self.endpoint_of = {name: f"tcp://{net.address(name)}:{ports[name]}" for name in CONTROLLERS}
        self.endpoint = ",".join(self.endpoint_of.values())
        self.keys = folder / "keys"
        keys.init_cluster(self.keys)
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.controllers: dict[str, Daemon] = {}
        self._passwords = folder / "pgpass"
        server.write_password_file(self._passwords)
        for name in CONTROLLERS:
            self._add(name, is_fenced)
        for host in AGENTS:
            self.add_agent(
                host,
                "agent.devices=cpu:2",
                "agent.heartbeat_s=0.5",
                f"agent.keys_dir={folder / 'keys' / keys.add_agent(self.keys, host).name}",
                f"checkpoint.root={folder / 'checkpoints'}",
                before=net.inside(host),
            )

    def _add(self, name: str, is_fenced: bool) -> None:
        program = ("-m", "cotenant.controller") if is_fenced else (UNFENCED,)
        words = [*self.net.inside(name), sys.executable, *program, "--standby"]
        words += ["--endpoint", self.endpoint, "--keys-dir", str(self.keys)]
        words += ["--state-dir", str(self.folder / f"controller-{name}")]
        # Encrypted and not verified: by a clock that jumped, a certificate is not valid yet, or no more.
        journal = self.server.tcp_url("journal", sslmode="require", sslrootcert="")
        for setting in (
            f"controller.listen={self.endpoint_of[name]}",
            f"controller.journal={journal}",
            f"controller.leader_lease_s={LEASE_S}",
            f"controller.lease_s={LEASE_S * LEASES_OF_HOST}",
            "controller.silent_after_s=2",
            "controller.snapshot_every=50",
            "controller.eta_share=0",
            "profiler.seconds=0",
            "policy.back_off_s=0.2",
            "checkpoint.every_s=1",
        ):
            words += ["--set", setting]
        env = {**self._env(""), "PGPASSFILE": str(self._passwords)}
        env |= self.clocks.environment(name) if self.clocks else {}
        self.controllers[name] = Daemon(words, env, self.folder / f"controller-{name}.log")

    def start(self) -> None:
        self.server.run_sql("CREATE DATABASE journal OWNER cotenant")
        PostgresDatabase(self.local_journal).migrate()
        self.server.run_sql(WATCHING, "journal", role="cotenant")
        for daemon in (*self.controllers.values(), *self.agents.values()):
            daemon.launch()

    @property
    def local_journal(self) -> str:
        return self.server.url("journal")

    def new_client(self) -> Client:
        return Client(tuple(self.endpoint_of.values()), self.keys, timeout_s=ASK_S)

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = self.new_client()
            self._client.timeout_s = 60.0
        return self._client

    def close(self) -> None:
        for daemon in self.controllers.values():
            daemon.stop()
        super().close()

    # --- What the database wrote --------------------------------------------------------------------

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """By the Unix socket, which no cut reaches."""
        with psycopg.connect(self.local_journal, autocommit=True, connect_timeout=5) as connection:
            connection.execute("SET statement_timeout = '10s'")
            return connection.execute(sql.encode()).fetchall()

    def reigns(self) -> list[Reign]:
        return [Reign(*row) for row in self.rows("SELECT DISTINCT term, backend FROM storm.reigns")]

    def written(self) -> list[Written]:
        return [Written(*row) for row in self.rows("SELECT seq, term, backend FROM storm.written")]

    def signs(self) -> list[Reign]:
        return [Reign(*row) for row in self.rows("SELECT term, backend FROM storm.signs")]

    def arrived(self) -> list[Arrived]:
        rows = self.rows("SELECT seq, key, job_ids FROM cotenant.submissions ORDER BY seq")
        return [Arrived(seq, key, job) for seq, key, jobs in rows for job in jobs.split()]


class Clients:
    """One submits, one at a time, and one lists; both note what they were told, and when."""

    def __init__(self, cluster: FailoverCluster) -> None:
        self._cluster = cluster
        self.submitted: list[Submitted] = []
        self.listed: list[Listed] = []
        self.refusals: list[str] = []
        self.jobs: dict[JobId, wire.JobView] = {}
        self.states: dict[str, HostState] = {}
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._submit_on, self._list_on)]
        self.failed: list[BaseException] = []

    def start(self) -> None:
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        self._ending.set()
        for each in self._threads:
            if each.ident is not None:
                each.join()

    @property
    def open(self) -> int:
        return sum(job.phase not in ENDED for job in self.jobs.values())

    def _submit_on(self) -> None:
        with self._kept(), self._cluster.new_client() as client:
            number = 0
            while not self._ending.wait(0.3):
                if self.open < OPEN_MAX:
                    number += 1
                    self._submit(client, number)

    def _submit(self, client: Client, number: int) -> None:
        """Asks again with the same key until it is acknowledged."""
        key, began_s = uuid.uuid4().hex, time.monotonic()
        body = wire.Submit(specs=(self._spec(number),), idempotency_key=key)
        while not self._ending.is_set():
            try:
                job = client.ask(body, ASK_S).job_ids[0]
            except Unreachable:
                continue
            except Refusal as refusal:
                self.refusals.append(str(refusal))
                self._ending.wait(0.3)
                continue
            self.submitted.append(Submitted(Asked(began_s, time.monotonic()), key, job))
            return

    def _spec(self, number: int) -> JobSpec:
        seconds = 0.5 + number % 4
        launch = Launch(
            argv=(sys.executable, "-S", "-E", NOTED_JOB, str(self._cluster.notes), str(seconds)),
            workdir=str(self._cluster.folder),
            env={"PATH": os.environ["PATH"], "COTENANT_TEST_RUN": os.environ.get("COTENANT_TEST_RUN", "")},
            uid=os.getuid(),
            gid=os.getgid(),
        )
        more: dict[str, Any] = {"expected_s": seconds, "time_limit_s": 600.0, "retries": 50}
        return JobSpec(
            job_id=JobId("new-0"), name=f"n{number}", launch=launch, gpus_min=1, gpus_max=1, **more
        )

    def _list_on(self) -> None:
        with self._kept(), self._cluster.new_client() as client:
            while not self._ending.wait(0.4):
                began_s = time.monotonic()
                with suppress(Unreachable, Refusal):
                    jobs = client.ask(wire.ListJobs(include_ended=True), timeout_s=ASK_S).jobs
                    asked = Asked(began_s, time.monotonic())
                    self.listed.append(Listed(asked, frozenset(job.job_id for job in jobs)))
                    self.jobs = {job.job_id: job for job in jobs}
                    self.help(client)

    def help(self, client: Client) -> None:
        """What a person has to do: hosts that are suspected, jobs that are held."""
        for node in client.ask(wire.ListNodes(), timeout_s=ASK_S).nodes:
            self.states[node.host] = node.state
            if node.state is HostState.SUSPECT:
                client.ask(wire.ChangeNode(verb="resume", host_id=HostId(node.host)), timeout_s=ASK_S)
        held = tuple(job.job_id for job in self.jobs.values() if job.phase is Phase.HELD)
        if held:
            client.ask(wire.ChangeJobs(verb="release", job_ids=held), timeout_s=ASK_S)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """An error of a thread is the storm's."""
        try:
            yield
        except BaseException as error:
            self.failed.append(error)
            raise


def submit_trainings(cluster: FailoverCluster, trainings: list[Training]) -> None:
    """Each accepted exactly once, whoever leads."""
    for training in trainings:
        key = uuid.uuid4().hex
        began_s = time.monotonic()
        while time.monotonic() < began_s + 120.0:
            with suppress(Unreachable, Refusal):
                cluster.submit(training, idempotency_key=key, timeout_s=ASK_S)
                break


@contextmanager
def a_small_disk(mib: int) -> Iterator[Path]:
    """A folder that holds so much, and nothing more."""
    folder = Path(tempfile.mkdtemp(prefix="pgdisk-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "storm", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


@contextmanager
def a_failover_cluster(folder: Path, *, is_fenced: bool = True) -> Iterator[FailoverCluster]:
    """Raises NoNetwork, NoPostgres."""
    with ExitStack() as stack:
        net = Partitions((*CONTROLLERS, DATABASE, *AGENTS))
        stack.callback(net.close)
        disk = stack.enter_context(a_small_disk(DISK_MIB))
        server = Postgres(
            disk / "data",
            durable=True,
            settings={"max_wal_size": "64MB", "min_wal_size": "32MB"},
            listen=net.address(DATABASE),
            before=net.inside(DATABASE),
        )
        stack.callback(server.close)
        disk.chmod(0o755)
        server.create()
        clocks = None
        with suppress(NoShim):
            clocks = WallClocks(folder, CONTROLLERS)
        cluster = FailoverCluster(folder, net, server, clocks, is_fenced=is_fenced)
        stack.callback(cluster.close)
        cluster.start()
        yield cluster
