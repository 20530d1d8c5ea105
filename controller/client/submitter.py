"""Who submits from this machine, and how they are told of jobs, as their own settings say it."""

from __future__ import annotations

import os
from pathlib import Path

from cotenant.controller.domain import read_notify
from cotenant.controller.present.problem import Problem
from cotenant.controller.submission.build import Submitter
from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import socket_path
from cotenant.controller.system.keys import KeyProblem, find_key_file
from cotenant.controller.system.sections import NotifySettings, Settings
from cotenant.controller.system.webhooks import read_secret


def own_submitter(settings: Settings, folder: Path) -> Submitter:
    """The one who submits from a folder with these settings. Raises Problem: their webhook cannot be read."""
    notify = settings.notify
    return Submitter(
        folder=folder,
        environ=os.environ,
        key_file=_key_file(settings),
        same_machine=socket_path(paths.client_endpoint(settings)) is not None,
        saves_scripts=settings.checkpoint.scripts == "auto",
        notify=read_notify((*notify.kinds, *([notify.mail] if notify.mail else []))),
        webhook=own_webhook(notify),
        snapshots=paths.packed_trees(),
        snapshot_size_max_mib=settings.snapshot.size_max_mib,
    )


def own_webhook(settings: NotifySettings) -> str:
    """The URL of one's own webhook; empty: there is none. Raises Problem: it cannot be read."""
    try:
        return read_secret(settings.webhook_file) if settings.webhook_file else ""
    except ValueError as error:
        raise Problem("config", f"notify.webhook_file: {error}") from None


def _key_file(settings: Settings) -> str:
    """The file with the key that this account shows its controller; empty: there is none, or none is
    needed."""
    if socket_path(paths.client_endpoints(settings)[0]) is not None:
        return ""
    try:
        return os.path.abspath(find_key_file(paths.keys_dir(settings)))
    except KeyProblem:
        return ""
