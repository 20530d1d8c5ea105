"""`cotenant notify`: whether messages reach you."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

from cotenant.controller.cli.frame.command import argument, group
from cotenant.controller.cli.frame.output import EndpointFlag, FormFlag, show_one
from cotenant.controller.client.asking import asking, loaded_settings
from cotenant.controller.client.submitter import own_webhook
from cotenant.controller.domain import DeviceId, texts
from cotenant.controller.present.problem import FAILED, OK, Problem
from cotenant.controller.present.screen import tell
from cotenant.controller.wire import clients as wire

WITHIN_S: Final = 45.0
"""A delivery is given 30 s, and others may be before it."""
LOOK_S: Final = 0.3


@group()
def notify() -> None:
    """How you are told of your jobs: docs/notifications.md.

    \b
    For example:
      cotenant notify test
      cotenant notify owner gpu07/2    whose process keeps jobs off that device
    """


@notify.part("test")
def send_test(form: FormFlag = "table", endpoint: EndpointFlag = None) -> int:
    """Send yourself a message by every way, and say what came of it. Exit code 1 if one failed.

    Your own settings count (notify.mail, notify.webhook_file), and the controller's.

    \b
    For example:
      cotenant notify test
      COTENANT_NOTIFY__MAIL=anna@example.org cotenant notify test
    """
    own = loaded_settings(endpoint).settings.notify
    with asking(endpoint) as client:
        reply = client.ask(wire.SendTestNotice(mail=own.mail, webhook=own_webhook(own)))
        if not reply.ways:
            raise Problem("refused", "this controller has no way to tell you", "see docs/notifications.md")
        tell(f"sending by: {', '.join(map(texts.one_line, reply.ways))}")
        until_s = time.monotonic() + WITHIN_S
        while "waits" in reply.ways.values() and time.monotonic() < until_s:
            time.sleep(LOOK_S)
            reply = client.ask(wire.GetNotice(notice_id=reply.notice_id))
    value: dict[str, Any] = {"schema": "notify-test/1", "id": reply.notice_id, "ways": reply.ways}
    show_one(form, value, reply.notice_id, value, page)
    if all(state == "sent" for state in reply.ways.values()):
        return OK
    tell("next: mend the setting that it names, restart the controller if it is not yours, and test again")
    return FAILED


@notify.part("owner")
def owner(
    device: Annotated[str, argument(metavar="HOST/DEVICE", help="As `nodes --foreign` has them.")],
    form: FormFlag = "table",
    endpoint: EndpointFlag = None,
) -> None:
    """Tell whoever holds a device outside of jobs that others wait for it, at most once an hour.

    \b
    For example:
      cotenant nodes --foreign
      cotenant notify owner gpu07/2
    """
    with asking(endpoint) as client:
        reply = client.ask(wire.TellOwner(device_id=DeviceId(device)))
    value: dict[str, Any] = {"schema": "notify-owner/1", "id": reply.notice_id, "ways": reply.ways}
    show_one(form, value, reply.notice_id, value, page)


def page(value: dict[str, Any]) -> str:
    """A line for each way."""
    ways = texts.escape_texts(value["ways"])
    width = max(map(len, ways))
    return "\n".join(f"{way:<{width}}  {state}" for way, state in ways.items())
