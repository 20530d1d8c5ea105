"""Sends one message by mail or to a webhook, as a process of its own (`python -m` this module): it reads an
order and writes what came of it, as JSON.

Rule: whoever starts it kills it when it takes too long, so nothing here has to bound a server that answers
for ever. It follows no redirection and uses no proxy. What it says of a failure names hosts, never a URL or
a password. What identifies a message goes along in a header, for receivers who get it twice.
"""

from __future__ import annotations

import json
import smtplib
import socket
import ssl
import sys
from email.message import EmailMessage
from email.utils import formatdate
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final

from cotenant.controller.system.webhooks import read_secret, read_webhook

TIMEOUT_S: Final = 15.0
"""Of one step of a conversation."""
HEADER: Final = "X-Cotenant-Notice"
TEXT_MAX: Final = 30_000
"""Characters of Slack's text; it takes 40,000."""


class NotTaken(Exception):
    """It was reached, and did not take the message; the text says what it said."""


def send_mail(order: dict[str, Any]) -> None:
    """Hands a message to the relay. Raises OSError, ValueError, SMTPException, NotTaken."""
    notice: dict[str, Any] = order["notice"]
    host, _, port = order["smtp"].rpartition(":")
    mail = EmailMessage()
    mail["From"] = order["sender"] or f"cotenant@{socket.getfqdn()}"
    mail["To"] = order["to"]
    mail["Subject"] = f"[cotenant] {notice['subject']}"
    mail["Date"] = formatdate(notice["at_s"])
    mail["Message-ID"] = f"<{notice['id']}@cotenant.invalid>"
    mail[HEADER] = notice["id"]
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(notice["text"] + "\n")
    where, context = (host.strip("[]"), int(port)), ssl.create_default_context()
    relay = (
        smtplib.SMTP_SSL(*where, timeout=TIMEOUT_S, context=context)
        if order["smtp_security"] == "tls"
        else smtplib.SMTP(*where, timeout=TIMEOUT_S)
    )
    with relay:
        if order["smtp_security"] == "starttls":
            relay.starttls(context=context)
        if order["smtp_user"]:
            relay.login(order["smtp_user"], read_secret(order["smtp_password_file"]))
        relay.send_message(mail)


def post(order: dict[str, Any]) -> None:
    """Posts a message to a webhook. Raises OSError, ValueError, HTTPException, NotTaken."""
    notice, target = order["notice"], read_webhook(order["url"] or read_secret(order["site_webhook_file"]))
    text = f"*{notice['subject']}*\n{notice['text']}"[:TEXT_MAX]
    body = json.dumps({"text": text} if target.is_slack else notice).encode()
    made = HTTPSConnection if target.is_secure else HTTPConnection
    connection = made(target.host, target.port, timeout=TIMEOUT_S)
    headers = {"Content-Type": "application/json", "User-Agent": "cotenant", HEADER: notice["id"]}
    connection.request("POST", target.path, body, headers)
    status = connection.getresponse().status
    if not 200 <= status < 300:
        raise NotTaken(f"{target.host} answered {status}")


def main() -> None:
    order = json.load(sys.stdin)
    reached, why = True, ""
    try:
        (send_mail if order["to"] else post)(order)
    except smtplib.SMTPRecipientsRefused as error:
        code, said = next(iter(error.recipients.values()))
        why = f"{order['to']} was refused: {code} {_decoded(said)}"
    except smtplib.SMTPDataError as error:
        why = f"it was refused: {error.smtp_code} {_decoded(error.smtp_error)}"
    except (NotTaken, ValueError) as error:
        why = str(error)
    except smtplib.SMTPResponseException as error:
        reached, why = False, f"{error.smtp_code} {_decoded(error.smtp_error)}"
    except (OSError, HTTPException) as error:
        reached, why = False, getattr(error, "strerror", "") or str(error) or type(error).__name__
    print(json.dumps([not why, reached, why]))


def _decoded(said: bytes | str) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said


if __name__ == "__main__":
    main()
