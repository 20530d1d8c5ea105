"""How whoever submits is told of jobs, as their own settings say it."""

from __future__ import annotations

from collections.abc import Mapping

from cotenant.controller.domain import WEBHOOK_VARIABLE, read_notify
from cotenant.controller.present.problem import Problem
from cotenant.controller.system.sections import NotifySettings
from cotenant.controller.system.webhooks import read_secret


def usual_words(settings: NotifySettings) -> tuple[str, ...]:
    """The words that `--notify` has where it is not given."""
    return read_notify((*settings.kinds, *([settings.mail] if settings.mail else [])))


def own_webhook(settings: NotifySettings, environ: Mapping[str, str]) -> str:
    """The URL of one's own webhook: in a job that of whoever submitted it; empty: there is none. Raises
    Problem."""
    if not settings.webhook_file:
        return environ.get(WEBHOOK_VARIABLE, "")
    try:
        return read_secret(settings.webhook_file)
    except ValueError as error:
        raise Problem("config", f"notify.webhook_file: {error}") from None
