"""Losing the primary database loses nothing acknowledged where a replica has to confirm each commit."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlencode

import psycopg
import pytest

from cotenant.controller.client.connection import Client, Refusal, Unreachable
from cotenant.controller.domain import JobId, JobSpec, Launch
from cotenant.controller.store import PostgresDatabase
from cotenant.controller.system import keys
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.building.postgres import Postgres, one_postgres, one_replica
from tests.live.cluster import Cluster, Daemon
from tests.ports import free_port

PATIENCE_S = within_s(60.0)
BEFORE, AFTER = 20, 10
"""Submissions that are acknowledged before the primary dies, and after."""


@pytest.fixture
def servers() -> Iterator[tuple[Postgres, Postgres]]:
    """A primary, and a replica without which it commits nothing."""
    with one_postgres(durable=True) as primary, one_replica(primary, "second") as replica:
        primary.set("synchronous_standby_names", "second")
        yield primary, replica


class Submitter(threading.Thread):
    """Submits one job after the other, and keeps those that were acknowledged, by key."""

    def __init__(self, endpoints: tuple[str, ...], key: Path) -> None:
        super().__init__()
        self._client = Client(endpoints, key)
        self.acknowledged: dict[str, str] = {}
        self.ending = threading.Event()
        self._grew = threading.Condition()

    def run(self) -> None:
        launch = Launch(argv=("true",), workdir="/", env={}, uid=0, gid=0)
        spec = JobSpec(job_id=JobId("new-0"), name="n", launch=launch, gpus_min=1, gpus_max=1)
        with self._client:
            while not self.ending.is_set():
                key = uuid.uuid4().hex
                while not self.ending.is_set():
                    with suppress(Unreachable, Refusal):
                        body = wire.Submit(specs=(spec,), idempotency_key=key)
                        job = self._client.ask(body, timeout_s=3.0).job_ids[0]
                        with self._grew:
                            self.acknowledged[key] = job
                            self._grew.notify_all()
                        break

    def await_more(self, count: int) -> None:
        with self._grew:
            wanted = len(self.acknowledged) + count
            assert self._grew.wait_for(lambda: len(self.acknowledged) >= wanted, PATIENCE_S)

    def stop(self) -> None:
        self.ending.set()
        if self.ident is not None:
            self.join()


def test_nothing_acknowledged_is_lost_with_the_primary(
    tmp_path: Path, servers: tuple[Postgres, Postgres]
) -> None:
    primary, replica = servers
    primary.run_sql("CREATE DATABASE journal OWNER cotenant")
    where = {"host": f"{primary.socket_folder},{replica.socket_folder}"}
    where |= {"port": f"{primary.port},{replica.port}", "target_session_attrs": "read-write"}
    journal = f"postgresql://cotenant@/journal?{urlencode(where)}"
    PostgresDatabase(journal).migrate()
    endpoints = tuple(f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    with ExitStack() as stack:
        cluster = stack.enter_context(closing(Cluster(tmp_path)))
        cluster.keys = tmp_path / "keys"
        keys.init_cluster(cluster.keys)
        for number, endpoint in enumerate(endpoints):
            daemon = controller(cluster, ",".join(endpoints), endpoint, journal, number)
            stack.callback(daemon.stop)
            daemon.launch()
        submitter = Submitter(endpoints, cluster.keys)
        stack.callback(submitter.stop)
        submitter.start()
        submitter.await_more(BEFORE)
        primary.kill()
        replica.promote()
        submitter.await_more(AFTER)
        submitter.stop()
    with psycopg.connect(replica.url("journal")) as connection:
        rows = connection.execute("SELECT key, job_ids FROM cotenant.submissions").fetchall()
    kept: dict[str, str] = dict(rows)
    assert {key: kept.get(key) for key in submitter.acknowledged} == submitter.acknowledged


def controller(cluster: Cluster, endpoints: str, own: str, journal: str, number: int) -> Daemon:
    made = cluster.add_controller(
        f"controller.listen={own}", f"controller.journal={journal}", "controller.leader_lease_s=4"
    )
    cluster.controller = None
    at = made.words.index("--endpoint")
    made.words[at + 1] = endpoints
    made.words[made.words.index("--state-dir") + 1] += f"-{number}"
    assert made.words[0] == sys.executable
    made.words.append("--standby")
    made.log = made.log.with_name(f"controller-{number}.log")
    return made
