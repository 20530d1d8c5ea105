"""A message, the ways that it goes, and what a receiver gets of it. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from cotenant.controller.domain import JobId, SecretValues, texts
from cotenant.controller.system.sections import NotifySettings
from cotenant.controller.system.webhooks import read_webhook
from cotenant.controller.wire import utc

OUTPUT_LINES: Final = 20
OUTPUT_BYTES: Final = 16 * 1024
LINE_MAX: Final = 400
COMMAND, WEBHOOK, OWN_WEBHOOK, MAIL = "command", "site webhook", "own webhook", "mail to "
"""The ways. Mail's is followed by its address."""
MAIL_LANE: Final = "mail"
WAITS, SENT, FAILED = "waits", "sent", "failed"
"""How a way stands, before a colon and why."""
_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SENDER: Final = (sys.executable, "-m", "cotenant.controller.system.notice_sender")


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A message to a person, as it is kept until every way has taken it or was given up."""

    notice_id: str
    """From journal, job, attempt and kind: the same however often it is sent."""
    kind: str
    user: str
    subject: str
    lines: tuple[str, ...]
    at_s: float
    """When it happened, by the wall clock."""
    ways: dict[str, str]
    """How each stands: `waits`, `sent`, or `failed` and why."""
    job_id: JobId | None = None
    attempt: int = 0
    has_output: bool = False

    @property
    def is_open(self) -> bool:
        return any(state.startswith(WAITS) for state in self.ways.values())


def ways_of(
    words: Iterable[str], user: str, settings: NotifySettings, *, has_webhook: bool
) -> tuple[str, ...]:
    """The ways by which a user is told. `words`: of the job's `notify`. Whoever names no address has mail
    where the site says; where it says nothing, only if there is no other way."""
    ways = [COMMAND] if settings.command else []
    ways += [WEBHOOK] if settings.site_webhook_file else []
    ways += [OWN_WEBHOOK] if has_webhook else []
    addresses = [word for word in words if "@" in word]
    if not addresses and settings.mail_domain:
        addresses = [f"{user}@{settings.mail_domain}"]
    elif not addresses and not ways:
        addresses = [user]
    return (*ways, *(f"{MAIL}{each}" for each in addresses if settings.smtp))


def mail_problem(words: Iterable[str], settings: NotifySettings) -> str:
    """Why an address among these words gets no mail from this site; empty: each may."""
    own = (settings.mail_domain,) if settings.mail_domain else ()
    allowed = {each.lower() for each in (*(settings.mail_domains or own or ("*",)), *own)}
    for word in words:
        domain = word.rpartition("@")[2].lower()
        if "@" in word and not {"*", domain} & allowed:
            return (
                f"{word}: this site's mail goes to {', '.join(sorted(allowed))} alone (notify.mail_domains)"
            )
    return ""


def setting_of(lane: str, settings: NotifySettings) -> str:
    """Where it is said how a lane's messages go."""
    known = {COMMAND: "notify.command", WEBHOOK: "notify.site_webhook_file"}
    return f"notify.smtp = {settings.smtp}" if lane == MAIL_LANE else known.get(lane, "notify.webhook_file")


def lane_of(way: str, url: str) -> str:
    """What a way shares with others: of these one is busy at a time, and rests when it cannot be reached."""
    if way == OWN_WEBHOOK:
        return f"webhook at {read_webhook(url).host}"
    return MAIL_LANE if way.startswith(MAIL) else way


def site_lanes(settings: NotifySettings) -> tuple[str, ...]:
    """The lanes of the ways that the site has."""
    lanes = {COMMAND: settings.command, WEBHOOK: settings.site_webhook_file, MAIL_LANE: settings.smtp}
    return tuple(lane for lane, is_set in lanes.items() if is_set)


def order_of(
    way: str, url: str, payload: dict[str, Any], settings: NotifySettings
) -> tuple[Sequence[str], bytes]:
    """The program that sends a message by a way, and what it reads. `url`: of the user's own webhook."""
    if way == COMMAND:
        return settings.command, msgspec.json.encode(payload)
    to = way.removeprefix(MAIL) if way.startswith(MAIL) else ""
    order = {**msgspec.to_builtins(settings), "notice": payload, "to": to}
    order["url"] = url if way == OWN_WEBHOOK else ""
    return SENDER, msgspec.json.encode(order)


def payload_of(notice: Notice, output: bytes, why: str, secrets: Iterable[str]) -> dict[str, Any]:
    """What a receiver gets, without secrets. `why`: there is no output."""
    values = SecretValues(secrets)
    lines = last_lines(output, values)
    end = ["", "The last lines of its output:", *lines] if lines else ["", why] if why else []
    return {
        "schema": "cotenant.notice/1",
        "id": notice.notice_id,
        "kind": notice.kind,
        "user": notice.user,
        "job": notice.job_id,
        "attempt": notice.attempt,
        "at": utc(notice.at_s),
        "at_s": notice.at_s,
        "subject": values.hide(notice.subject),
        "text": values.hide("\n".join((*notice.lines, *end)).strip("\n")),
    }


def last_lines(data: bytes, secrets: SecretValues) -> list[str]:
    """The last lines of output, of which `data` is the end. A line whose beginning may be missing is left
    out: a secret in it could not be told. Of a line that was written over, its last state."""
    text = secrets.hide(_COLOURS.sub("", data.decode(errors="surrogateescape")))
    lines = text.rstrip().split("\n")[1 if len(data) >= OUTPUT_BYTES else 0 :]
    shown = [line.rstrip().rpartition("\r")[2] for line in lines] if data.strip() else []
    return [f"  {texts.one_line(line)[:LINE_MAX]}" for line in shown[-OUTPUT_LINES:]]
