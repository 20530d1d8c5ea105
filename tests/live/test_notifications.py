"""Messages to people from a controller that is a process, and is killed at every point of the way."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId, Launch
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.building.receivers import Hook, MailRelay, Receiver
from tests.controller.station import job
from tests.live.cluster import Daemon


class Site:
    """A controller that tells people by mail and by a webhook; both may be dead."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoint = f"ipc://{folder}/c.sock"
        self.config = folder / "cotenant.toml"
        self.hook_file = folder / "hook"
        words = (sys.executable, "-m", "cotenant.controller")
        self.controller = Daemon(words, {**os.environ, "COTENANT_CONFIG": str(self.config)}, folder / "log")
        self._clients: list[Client] = []
        self.receivers: list[Receiver] = []

    def configure(self, *, hook: int, relay: int) -> None:
        self.hook_file.write_text(f"http://127.0.0.1:{hook}/hook")
        self.hook_file.chmod(0o600)
        self.config.write_text(
            f'[controller]\nendpoint = "{self.endpoint}"\nstate_dir = "{self.folder}/state"\n'
            f'[notify]\nsite_webhook_file = "{self.hook_file}"\nsmtp = "127.0.0.1:{relay}"\n'
            'mail_domain = "lab.example"\n'
        )

    def hook(self, port: int = 0, **more: Any) -> Hook:
        made = Hook(port, **more)
        self.receivers.append(made)
        return made

    def relay(self) -> MailRelay:
        made = MailRelay()
        self.receivers.append(made)
        return made

    def ask(self, body: Any) -> Any:
        client = Client(self.endpoint, timeout_s=within_s(30.0))
        try:
            return client.ask(body)
        finally:
            client.close()

    def end_a_job(self) -> JobId:
        """A job that ends, durably, without an agent."""
        launch = Launch(argv=("a",), workdir="/tmp", secrets=("HF_TOKEN",))
        spec = job("train", notify=("end",), launch=launch)
        reply = self.ask(wire.Submit(specs=(spec,), secrets={"HF_TOKEN": "hunter2"}))
        self.ask(wire.ChangeJobs(verb="cancel", job_ids=reply.job_ids))
        return JobId(reply.job_ids[0])

    def state_of(self, job_id: JobId) -> str:
        told: str = self.ask(wire.ShowJob(job_id=job_id)).job.told
        return told

    def close(self) -> None:
        self.controller.stop()
        for receiver in self.receivers:
            receiver.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


@pytest.fixture
def reserved_port() -> Iterator[tuple[int, Callable[[], None]]]:
    """A port at which nobody answers until it is set free."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    yield holder.getsockname()[1], holder.close
    holder.close()


def test_each_way_takes_it_once_and_show_says_so(site: Site) -> None:
    hook, relay = site.hook(), site.relay()
    site.configure(hook=hook.port, relay=relay.port)
    site.controller.start()
    job_id = site.end_a_job()
    _, posted = hook.next()
    mail = relay.next()
    user = posted["user"]
    assert mail["X-Cotenant-Notice"] == posted["id"]
    assert mail["To"] == f"{user}@lab.example"
    assert posted["subject"] == "job 1 (train) was cancelled"
    sent = f"end by site webhook, mail to {user}@lab.example; the last (end): site webhook sent, mail to"
    until_s = time.monotonic() + within_s(30.0)
    while not site.state_of(job_id).endswith("lab.example sent"):
        assert time.monotonic() < until_s, site.state_of(job_id)
    assert site.state_of(job_id).startswith(sent)
    site.controller.kill()
    site.controller.start()
    assert site.state_of(job_id).endswith("lab.example sent")
    assert hook.got.empty() and relay.got.empty()
    assert "hunter2" not in (site.folder / "log").read_text()


def test_killed_between_the_commit_and_the_sending(
    site: Site, reserved_port: tuple[int, Callable[[], None]]
) -> None:
    port, set_free = reserved_port
    relay = site.relay()
    site.configure(hook=port, relay=relay.port)
    site.controller.start()
    site.end_a_job()
    mail = relay.next()
    site.controller.kill()
    set_free()
    hook = site.hook(port)
    site.controller.start()
    assert hook.next()[1]["id"] == mail["X-Cotenant-Notice"]


def test_killed_while_it_is_sent(site: Site) -> None:
    hook, relay = site.hook(), site.relay()
    hook.may_answer.clear()
    site.configure(hook=hook.port, relay=relay.port)
    site.controller.start()
    site.end_a_job()
    _, first = hook.next()
    site.controller.kill()
    hook.may_answer.set()
    site.controller.start()
    _, again = hook.next()
    assert again == first  # Sent twice, and whoever got it can tell.


def test_a_server_that_answers_for_ever_holds_up_nothing(site: Site) -> None:
    hook, relay = site.hook(drips=True), site.relay()
    site.configure(hook=hook.port, relay=relay.port)
    site.controller.start()
    jobs = [site.end_a_job() for _ in range(3)]
    hook.next()
    assert {relay.next()["Subject"] for _ in jobs} == {
        f"[cotenant] job {job_id} (train) was cancelled" for job_id in jobs
    }
    assert site.ask(wire.GetStatus()).counters["notices_sent"] >= 2


def test_notify_test_says_which_way_is_broken(
    site: Site, reserved_port: tuple[int, Callable[[], None]]
) -> None:
    hook = site.hook()
    site.configure(hook=hook.port, relay=reserved_port[0])
    site.controller.start()
    environ = {**os.environ, "COTENANT_CONFIG": str(site.config), "COTENANT_NOTIFY__MAIL": "anna@lab.example"}
    command = (sys.executable, "-m", "cotenant.controller.cli.main", "notify", "test")
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=within_s(60.0))
    assert done.returncode == 1, done.stderr
    assert "site webhook              sent" in done.stdout
    assert (
        f"mail to anna@lab.example  failed: Connection refused (notify.smtp = 127.0.0.1:{reserved_port[0]})"
        in done.stdout
    )
    assert hook.next()[1]["kind"] == "test"
    ways = site.ask(wire.GetNotice()).ways
    assert ways["site webhook"] == "sent" and ways["mail"].startswith("failed: Connection refused")
