"""A PostgreSQL of its own for a test: Debian's programs, a folder of its own, a Unix socket in it.

Rule: nothing of the machine's own PostgreSQL is read or touched, and no server outlives the process that
started it, however that one ends: the kernel kills it (PR_SET_PDEATHSIG, by `setpriv`). Servers refuse to run
as root; there they run as the user `postgres`, in a folder outside pytest's, which other users may not enter.

A role `cotenant`, which is no superuser, owns each database that a test gets: what a site would grant.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

import psutil
import pytest

from tests.building.limits import within_s
from tests.ports import free_port

PROGRAMS: Final = ("postgres", "initdb", "psql", "pg_basebackup", "pg_rewind")
PACKAGE: Final = "postgresql"
ROLE: Final = "cotenant"
PASSWORD: Final = "not-a-secret-in-tests"
SERVER_USER: Final = "postgres"
"""Who runs servers for root; Debian's package makes this user."""
START_S: Final = within_s(60.0)
STOP_S: Final = within_s(60.0)
COMMAND_S: Final = within_s(60.0)
POLL_S: Final = 0.02
SOCKET_CHARS_MAX: Final = 90

SMALL: Final = {
    "shared_buffers": "16MB",
    "max_connections": "60",
    "max_wal_senders": "4",
    "max_worker_processes": "2",
    "max_parallel_workers": "0",
    "jit": "off",
    "autovacuum": "off",
    "log_min_messages": "warning",
    "unix_socket_permissions": "0777",
}
NOT_DURABLE: Final = {"fsync": "off", "full_page_writes": "off"}
"""What is committed outlives every kill of the server, but not the machine's end."""
TRUSTED: Final = "local all all trust\nlocal replication all trust\n"
STOP_SIGNALS: Final = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class NoPostgres(Exception):
    """Why there can be no server here."""


def program(name: str) -> str:
    """Its path: Debian keeps the server's programs out of PATH, one folder for each version."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: int(each.parent.name))
    for folder in reversed(folders):
        if (folder / name).is_file():
            return str(folder / name)
    found = shutil.which(name)
    if found is None:
        raise NoPostgres(f"no {name} here: apt-get install --no-install-recommends {PACKAGE}")
    return found


def check_possible() -> None:
    """Raises NoPostgres with the reason where no server can be started."""
    for name in PROGRAMS:
        program(name)
    if shutil.which("setpriv") is None:
        raise NoPostgres("no setpriv here, which ends the server with its test (util-linux)")
    if os.geteuid() == 0:
        try:
            pwd.getpwnam(SERVER_USER)
        except KeyError:
            raise NoPostgres(f"root may not run a server, and there is no user {SERVER_USER} here") from None


def as_server_user(*words: str) -> tuple[str, ...]:
    """The command as one that dies with us, and that is not root's."""
    who = ("--reuid", SERVER_USER, "--regid", SERVER_USER, "--init-groups") if os.geteuid() == 0 else ()
    return ("setpriv", *who, "--pdeathsig", "KILL", "--", *words)


class Postgres:
    """One server. `close` ends it and removes its folder."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        durable: bool = False,
        settings: Mapping[str, str] | None = None,
        listen: str = "",
        before: Sequence[str] = (),
    ) -> None:
        """`folder`: an empty one, for its data; of its own unless given. `durable`: it calls fsync, as that
        of a site does. `listen`: an address for TCP, too, with TLS and a password. `before`: words in front
        of the server's command, such as those that put it into a namespace."""
        check_possible()
        self._home = Path(tempfile.mkdtemp(prefix="pg-"))
        """Of the socket, the log and the certificate; the data may lie elsewhere (on a small disk)."""
        self.data = folder or self._home / "data"
        assert len(f"{self._home}/.s.PGSQL.12345") < SOCKET_CHARS_MAX, f"{self._home}: too long for a socket"
        self.data.mkdir(exist_ok=True)
        self.listen, self.port, self._before = listen, free_port(), tuple(before)
        self._settings = {**SMALL, **({} if durable else NOT_DURABLE), **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._own(self._home, 0o755)
        self._own(self.data, 0o700)

    # --- Where it is -------------------------------------------------------------------------------

    @property
    def socket_folder(self) -> Path:
        return self._home

    @property
    def certificate(self) -> Path:
        """Its own, and so the one that clients trust. Only with `listen`."""
        return self._home / "server.crt"

    def url(self, database: str, role: str = ROLE, **options: str) -> str:
        """By the Unix socket, where everybody on this machine is trusted."""
        where = {"host": str(self.socket_folder), "port": str(self.port), **options}
        return f"postgresql://{role}@/{quote(database)}?{urlencode(where)}"

    def tcp_url(self, database: str, role: str = ROLE, **options: str) -> str:
        """By TCP, verified by the certificate; the password has to come from elsewhere."""
        verified = {"sslmode": "verify-full", "sslrootcert": str(self.certificate), **options}
        return f"postgresql://{role}@{self.listen}:{self.port}/{quote(database)}?{urlencode(verified)}"

    def write_password_file(self, path: Path) -> None:
        """As `~/.pgpass`, for the role's own."""
        path.write_text(f"{self.listen}:{self.port}:*:{ROLE}:{PASSWORD}\n")
        path.chmod(0o600)

    # --- Its life ----------------------------------------------------------------------------------

    def create(self) -> None:
        """Its folders, empty of databases, and a role that owns those to come. It runs afterwards."""
        options = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        self._run(*as_server_user(program("initdb"), "-D", str(self.data), *options))
        self._configure()
        self.start()
        self.run_sql(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")

    def create_replica(self, primary: Postgres, name: str) -> None:
        """A copy of a running server that follows it from now on. It runs afterwards."""
        source = f"host={primary.socket_folder} port={primary.port} user=postgres application_name={name}"
        slot = ("--create-slot", f"--slot={name}", "--wal-method=stream", "--checkpoint=fast", "--no-sync")
        words = (program("pg_basebackup"), "-D", str(self.data), "-d", source, "--write-recovery-conf", *slot)
        self._run(*as_server_user(*words))
        self._configure()
        self.start()

    def promote(self) -> None:
        assert self.run_sql(f"SELECT pg_promote(true, {int(START_S)})") == "t"

    def start(self) -> None:
        """And wait until it takes connections, after whatever it has to repair."""
        self.launch()
        deadline_s = time.monotonic() + START_S
        while not self.is_ready():
            assert self.is_alive and time.monotonic() < deadline_s, f"no server:\n{self.said()}"
            time.sleep(POLL_S)

    def launch(self) -> None:
        """Start it and wait for nothing."""
        assert not self.is_alive, "it runs already"
        words = (*self._before, *as_server_user(program("postgres"), "-D", str(self.data)))
        with (self._home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                words,
                env=self._environment(),
                cwd=self.data,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def is_ready(self) -> bool:
        """As its own file says, which pg_ctl reads, too."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        mine = self._process is not None and lines[:1] == [str(self._process.pid)]
        return mine and len(lines) > 7 and lines[7].strip() in ("ready", "standby")

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, how: str = "fast") -> None:
        """As `pg_ctl stop -m`: smart, fast or immediate."""
        assert self._process is not None
        self._process.send_signal(STOP_SIGNALS[how])
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def restart(self, how: str = "fast") -> None:
        self.stop(how)
        self.start()

    def kill(self) -> None:
        """SIGKILL to each of its processes, frozen or not, and wait until all are gone."""
        assert self._process is not None
        processes = self.processes()
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait()
        psutil.wait_procs(processes, timeout=STOP_S)
        self._process = None

    def freeze(self) -> None:
        """SIGSTOP to each of its processes: connections stay, and nobody answers."""
        for each in self.processes():
            with suppress(psutil.NoSuchProcess):
                each.suspend()

    def thaw(self) -> None:
        for each in self.processes():
            with suppress(psutil.NoSuchProcess):
                each.resume()

    def close(self) -> None:
        if self.is_alive:
            self.kill()
        shutil.rmtree(self._home, ignore_errors=True)
        for each in self.data.iterdir() if self.data.exists() else ():
            shutil.rmtree(each) if each.is_dir() else each.unlink()

    def said(self) -> str:
        return (self._home / "server.log").read_text(errors="replace")[-4000:]

    # --- What is in it -----------------------------------------------------------------------------

    def run_sql(self, text: str, database: str = "postgres", *, role: str = "postgres") -> str:
        """Rows a line, columns apart by `|`. As the superuser, unless it is to be another."""
        url = self.url(database, role)
        return self._run(program("psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", text).strip()

    def set(self, name: str, value: str) -> None:
        """A setting of the running server that needs no restart. A replica made afterwards has it, too."""
        self.run_sql(f"ALTER SYSTEM SET {name} = '{value}'")
        self.run_sql("SELECT pg_reload_conf()")

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """The name of a new one, a copy of the template, that is gone afterwards, whoever is connected."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.run_sql(f"CREATE DATABASE {name} OWNER {ROLE} TEMPLATE {template}")
        try:
            yield name
        finally:
            if self.is_alive:
                self.run_sql(f"DROP DATABASE {name} WITH (FORCE)")

    # --- Inside ------------------------------------------------------------------------------------

    def _configure(self) -> None:
        """What is written here comes before what `set` says later. A replica has a port of its own, too."""
        settings = {**self._settings, "unix_socket_directories": str(self._home), "port": str(self.port)}
        access = TRUSTED
        if self.listen:
            self._make_certificate()
            key = self.certificate.with_suffix(".key")
            settings |= {"ssl": "on", "ssl_cert_file": str(self.certificate), "ssl_key_file": str(key)}
            access += "hostssl all all all scram-sha-256\n"
        settings["listen_addresses"] = self.listen
        lines = (f"{name} = '{value}'\n" for name, value in settings.items())
        (self.data / "postgresql.conf").write_text("".join(lines))
        (self.data / "pg_hba.conf").write_text(access)
        for name in ("postgresql.conf", "pg_hba.conf"):
            self._own(self.data / name, 0o600)

    def _make_certificate(self) -> None:
        if shutil.which("openssl") is None:
            raise NoPostgres("no openssl here, which makes the server's certificate")
        key = self.certificate.with_suffix(".key")
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-days", "2")
        name = ("-subj", f"/CN={self.listen}", "-addext", f"subjectAltName=IP:{self.listen}")
        self._run("openssl", "req", "-x509", *kind, *name, "-keyout", str(key), "-out", str(self.certificate))
        self._own(key, 0o600)
        self._own(self.certificate, 0o644)

    def processes(self) -> list[psutil.Process]:
        assert self._process is not None
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _environment(self) -> dict[str, str]:
        """Without the mark of this test run: a server that a session shares is no process left behind."""
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "HOME": str(self._home)}

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            words,
            env=self._environment(),
            cwd=self._home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.returncode}: {done.stderr}"
        return done.stdout

    def _own(self, path: Path, mode: int) -> None:
        path.chmod(mode)
        if os.geteuid() == 0:
            shutil.chown(path, SERVER_USER, SERVER_USER)


@contextmanager
def one_postgres(
    *, durable: bool = False, settings: Mapping[str, str] | None = None, listen: str = ""
) -> Iterator[Postgres]:
    """A running server, or a skip that says what is missing."""
    try:
        server = Postgres(durable=durable, settings=settings, listen=listen)
    except NoPostgres as why:
        pytest.skip(str(why))
    try:
        try:
            server.create()
        except NoPostgres as why:
            pytest.skip(str(why))
        yield server
    finally:
        server.close()


@contextmanager
def one_replica(primary: Postgres, name: str = "replica") -> Iterator[Postgres]:
    """A server that follows the primary, from which it is copied."""
    server = Postgres()
    try:
        server.create_replica(primary, name)
        yield server
    finally:
        server.close()
