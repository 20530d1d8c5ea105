"""How whoever submits is told of jobs, as their own settings say it."""

from __future__ import annotations

from cotenant.controller.domain import read_notify
from cotenant.controller.present.problem import Problem
from cotenant.controller.system.sections import NotifySettings
from cotenant.controller.system.webhooks import read_secret


def usual_words(settings: NotifySettings) -> tuple[str, ...]:
    """The words that `--notify` has where it is not given."""
    return read_notify((*settings.kinds, *([settings.mail] if settings.mail else [])))


def own_webhook(settings: NotifySettings) -> str:
    """The URL of one's own webhook; empty: there is none. Raises Problem: it cannot be read."""
    try:
        return read_secret(settings.webhook_file) if settings.webhook_file else ""
    except ValueError as error:
        raise Problem("config", f"notify.webhook_file: {error}") from None
