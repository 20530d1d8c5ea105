"""The program that sends one message, against real servers."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.controller.notices import ChildDeliveries, DeliveryResult
from cotenant.controller.notices.notice import SENDER, Notice, order_of, payload_of
from cotenant.controller.system.sections import NotifySettings
from cotenant.controller.system.webhooks import read_secret
from tests.building.limits import within_s
from tests.building.receivers import Hook, MailRelay

NOTICE = Notice(
    notice_id="j-7-1-end", kind="end", user="anna", subject="job 7 (zug nach Köln) finished", lines=("gut",),
    at_s=1_000_000.0, ways={},
)  # fmt: skip
PAYLOAD = payload_of(NOTICE, b"epoch 1\n", "", ())


@pytest.fixture
def relay() -> Iterator[MailRelay]:
    made = MailRelay()
    yield made
    made.close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.close()


def send(way: str, settings: NotifySettings, url: str = "", **environ: str) -> DeliveryResult:
    argv, data = order_of(way, url, PAYLOAD, settings)
    done = subprocess.run(argv, input=data, stdout=subprocess.PIPE, env={**os.environ, **environ}, check=True)
    return DeliveryResult(*json.loads(done.stdout))


def secret_file(folder: Path, text: str) -> str:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_mail_has_a_stable_id_and_says_everything(relay: MailRelay) -> None:
    settings = NotifySettings(smtp=f"127.0.0.1:{relay.port}", sender="gpu@lab.example")
    for _ in range(2):
        assert send("mail to anna@lab.example", settings).sent
    first, second = relay.next(), relay.next()
    assert first["Subject"] == "[cotenant] job 7 (zug nach Köln) finished"
    assert (first["From"], first["To"]) == ("gpu@lab.example", "anna@lab.example")
    assert first["Message-ID"] == second["Message-ID"] == "<j-7-1-end@cotenant.invalid>"
    assert first["X-Cotenant-Notice"] == "j-7-1-end"
    assert first.get_content().replace("\r", "") == "gut\n\nThe last lines of its output:\n  epoch 1\n"


def test_a_recipient_that_is_refused_was_still_a_relay_that_answers(relay: MailRelay) -> None:
    relay.refuses = b"550 who is that\r\n"
    result = send("mail to nobody@lab.example", NotifySettings(smtp=f"127.0.0.1:{relay.port}"))
    assert result == (False, True, "nobody@lab.example was refused: 550 who is that")


@pytest.mark.parametrize("prefix", ["", "slack+"])
def test_a_webhook_gets_json_or_slack_s_text(hook: Hook, tmp_path: Path, prefix: str) -> None:
    url = f"{prefix}http://127.0.0.1:{hook.port}/of/site?token=t"
    settings = NotifySettings(site_webhook_file=secret_file(tmp_path, url))
    assert send("site webhook", settings) == (True, True, "")
    headers, body = hook.next()
    assert headers["X-Cotenant-Notice"] == "j-7-1-end"
    if prefix:
        assert set(body) == {"text"} and "Köln" in body["text"] and "epoch 1" in body["text"]
    else:
        assert body == json.loads(json.dumps(PAYLOAD))


@pytest.mark.parametrize("status", [302, 404, 500])
def test_only_a_webhook_that_says_yes_has_taken_it(hook: Hook, tmp_path: Path, status: int) -> None:
    """A redirection leads nowhere: its target is not one that anybody allowed."""
    hook.status = status
    settings = NotifySettings(site_webhook_file=secret_file(tmp_path, f"http://127.0.0.1:{hook.port}/t0ken"))
    assert send("site webhook", settings) == (False, True, f"127.0.0.1 answered {status}")
    hook.next()
    assert hook.got.empty()


def test_nobody_there_is_said_without_the_url(hook: Hook, tmp_path: Path) -> None:
    hook.close()
    settings = NotifySettings(site_webhook_file=secret_file(tmp_path, f"http://127.0.0.1:{hook.port}/t0ken"))
    assert send("site webhook", settings) == (False, False, "Connection refused")
    hook.__init__()  # type: ignore[misc] # To be closed once more.


def test_a_secret_that_others_can_read_is_not_taken(tmp_path: Path) -> None:
    place = secret_file(tmp_path, "s3cret")
    assert read_secret(place) == "s3cret"
    Path(place).chmod(0o640)
    with pytest.raises(ValueError, match="can be read by others") as caught:
        read_secret(place)
    assert "s3cret" not in str(caught.value)
    result = send("site webhook", NotifySettings(site_webhook_file=place))
    assert not result.sent and "chmod 600" in result.why


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of localhost that signs itself, with its key behind it."""
    folder = tmp_path_factory.mktemp("certificate")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext "
        "subjectAltName=DNS:localhost -keyout key.pem -out cert.pem"
    )
    try:
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed: no certificate to test with")
    return folder / "cert.pem"


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return context


def test_starttls_and_a_login_and_no_relay_that_cannot_be_trusted(certificate: Path, tmp_path: Path) -> None:
    relay = MailRelay(context=server_context(certificate))
    settings = NotifySettings(
        smtp=f"localhost:{relay.port}",
        smtp_security="starttls",
        smtp_user="gpu",
        smtp_password_file=secret_file(tmp_path, "pa55\n"),
    )
    try:
        result = send("mail to anna@lab.example", settings)
        assert not result.sent and "certificate" in result.why.lower() and relay.logins == []
        assert send("mail to anna@lab.example", settings, SSL_CERT_FILE=str(certificate)).sent
        assert relay.logins == ["gpu pa55"] and relay.next()["To"] == "anna@lab.example"
    finally:
        relay.close()


def test_a_user_s_own_webhook_by_https(certificate: Path) -> None:
    hook = Hook(context=server_context(certificate))
    url = f"https://localhost:{hook.port}/mine"
    try:
        assert not send("own webhook", NotifySettings(), url).sent
        assert send("own webhook", NotifySettings(), url, SSL_CERT_FILE=str(certificate)).sent
        assert hook.next()[1]["id"] == "j-7-1-end"
    finally:
        hook.close()


# --- The child --------------------------------------------------------------------------------------


def deliver(argv: tuple[str, ...], data: bytes, limit_s: float) -> DeliveryResult:
    async def run() -> DeliveryResult:
        came: asyncio.Future[DeliveryResult] = asyncio.get_running_loop().create_future()
        deliveries = ChildDeliveries(limit_s)
        deliveries.start(argv, data, came.set_result)
        result = await came
        await deliveries.close()
        return result

    return asyncio.run(run())


def test_an_answer_without_an_end_is_cut_off(tmp_path: Path) -> None:
    hook = Hook(drips=True)
    settings = NotifySettings(site_webhook_file=secret_file(tmp_path, f"http://127.0.0.1:{hook.port}/"))
    _, data = order_of("site webhook", "", PAYLOAD, settings)
    try:
        result = deliver(SENDER, data, within_s(2.0))
    finally:
        hook.close()
    assert result == (False, False, f"no answer within {within_s(2.0):g} s")


COMMANDS: dict[str, tuple[str, tuple[bool, bool, str]]] = {
    "takes it": ("cat > /dev/null", (True, True, "")),
    "does not read it": ("true", (True, True, "")),
    "fails": (
        "cat > /dev/null; echo first >&2; echo no such list >&2; exit 4",
        (False, True, "exit code 4: no such list"),
    ),
}


@pytest.mark.parametrize(("script", "result"), COMMANDS.values(), ids=COMMANDS.keys())
def test_a_command_of_the_site(script: str, result: tuple[bool, bool, str]) -> None:
    assert deliver(("sh", "-c", script), b"{}" * 100_000, within_s(30.0)) == result


def test_a_command_that_is_not_there() -> None:
    result: Any = deliver(("/nowhere/tell",), b"{}", within_s(30.0))
    assert result == (False, False, "/nowhere/tell cannot be run: No such file or directory")


def test_the_sender_imports_nothing_of_the_controller_s() -> None:
    """It starts once per message."""
    code = "import sys, cotenant.controller.system.notice_sender; print('msgspec' in sys.modules)"
    found = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
