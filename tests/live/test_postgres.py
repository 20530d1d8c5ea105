"""The private PostgreSQL that other tests stand on: its kills, freezes, replicas and TLS; it ends with us."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.building.limits import within_s
from tests.building.postgres import Postgres, one_postgres, one_replica, program

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with one_postgres() as running:
        yield running


def test_what_was_committed_outlives_kill_and_freeze_and_every_kind_of_stop(server: Postgres) -> None:
    with server.database() as name:
        server.run_sql("CREATE TABLE entry (number int)", name, role="cotenant")
        for how in ("killed", "fast", "immediate"):
            server.run_sql("INSERT INTO entry VALUES (1)", name, role="cotenant")
            server.kill() if how == "killed" else server.stop(how)
            server.start()
        server.freeze()
        words = (program("psql"), "-XAtd", server.url(name), "-c", "SELECT count(*) FROM entry")
        with subprocess.Popen(words, stdout=subprocess.PIPE) as asked:
            with pytest.raises(subprocess.TimeoutExpired):
                asked.wait(0.2)
            server.thaw()
            assert asked.communicate(timeout=within_s(30.0))[0].strip() == b"3"


def test_each_database_is_the_tests_own_and_gone_afterwards(server: Postgres) -> None:
    with server.database() as template:
        server.run_sql("CREATE TABLE entry (number int)", template, role="cotenant")
        with server.database(template) as name:
            assert server.run_sql("SELECT count(*) FROM entry", name, role="cotenant") == "0"
    assert "test_" not in server.run_sql("SELECT string_agg(datname, ' ') FROM pg_database")


def test_a_synchronous_replica_has_all_that_was_committed_when_it_is_promoted(server: Postgres) -> None:
    with server.database() as name, one_replica(server, "second") as replica:
        server.set("synchronous_standby_names", "second")
        server.run_sql("CREATE TABLE entry (number int)", name, role="cotenant")
        server.run_sql("INSERT INTO entry SELECT generate_series(1, 100)", name, role="cotenant")
        server.kill()
        replica.promote()
        assert replica.run_sql("SELECT count(*) FROM entry", name, role="cotenant") == "100"
        replica.run_sql("INSERT INTO entry VALUES (101)", name, role="cotenant")
        server.start()
        server.set("synchronous_standby_names", "")  # Else nothing is ever committed there again.


def test_by_tcp_it_wants_tls_and_a_password_which_a_file_holds(tmp_path: Path) -> None:
    with one_postgres(listen="127.0.0.1") as server:
        words = (program("psql"), "-XAtwd", server.tcp_url("postgres"), "-c", "SELECT current_user")
        env = {**os.environ, "PGPASSFILE": str(tmp_path / "pgpass")}
        assert b"no password supplied" in subprocess.run(words, env=env, capture_output=True).stderr
        server.write_password_file(tmp_path / "pgpass")
        assert subprocess.run(words, env=env, capture_output=True).stdout.strip() == b"cotenant"
        plain = server.tcp_url("postgres", sslmode="disable")
        done = subprocess.run((program("psql"), "-Xwd", plain, "-c", ""), env=env, capture_output=True)
        assert b"no pg_hba.conf entry" in done.stderr


def test_it_ends_with_the_process_that_started_it_however_that_ends() -> None:
    script = (
        "from tests.building.postgres import one_postgres\n"
        "with one_postgres() as server:\n"
        "    print(server.data, *(each.pid for each in server.processes()), flush=True)\n"
        "    input()\n"
    )
    words = (sys.executable, "-c", script)
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        data, *pids = process.stdout.readline().split()
        if not pids:
            pytest.skip("no PostgreSQL here")
        there = [psutil.Process(int(pid)) for pid in pids]
        process.kill()
    assert len(there) > 3 and not psutil.wait_procs(there, timeout=within_s(30.0))[1]
    assert Path(data).parent.name.startswith("pg-")
    subprocess.run(("rm", "-rf", str(Path(data).parent)), check=True)
