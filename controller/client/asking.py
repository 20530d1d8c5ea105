"""A connection to the controller by the settings in force; what goes wrong on it leaves as a Problem.

Rule: only this module turns what the client may raise into a `Problem`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cotenant.controller.client.connection import Client, Refusal, Unreachable
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.screen import tell
from cotenant.controller.system import paths, settings
from cotenant.controller.system.endpoint import BadEndpoint, socket_path
from cotenant.controller.system.keys import KeyProblem, find_key_file
from cotenant.controller.system.sections import Settings
from cotenant.controller.wire import BadMessage

PATIENCE_S: Final = 600.0
"""How long a wait for a job outlasts a restart or an upgrade of the controller."""


def loaded_settings(endpoint: str | None = None) -> settings.LoadedSettings:
    """Raises Problem where a settings file or variable is wrong."""
    try:
        return settings.load({"controller.endpoint": endpoint or None})
    except settings.SettingsError as error:
        raise Problem("config", str(error)) from None


def own_key_file(loaded: Settings) -> str:
    """The file with the key that this account shows its controller; empty: there is none, or none is
    needed."""
    if socket_path(paths.client_endpoints(loaded)[0]) is not None:
        return ""
    try:
        return os.path.abspath(find_key_file(paths.keys_dir(loaded)))
    except KeyProblem:
        return ""


@contextmanager
def asking(
    endpoint: str | None = None, *, timeout_s: float = 10.0, patience_s: float = 0.0
) -> Iterator[Client]:
    """Opens a client; whatever goes wrong between here and the controller leaves as a Problem.

    `patience_s`: for a verb that lasts as long as a job does, and so outlives the controller's restarts.
    """
    loaded = loaded_settings(endpoint)
    try:
        where = paths.client_endpoints(loaded.settings)
        keys = paths.keys_dir(loaded.settings) if socket_path(where[0]) is None else None
        with Client(where, keys, timeout_s=timeout_s) as client:
            client.patience_s, client.on_silence = patience_s, tell
            yield client
    except Unreachable as error:
        raise Problem("unreachable", str(error), error.hint) from None
    except Refusal as error:
        raise Problem(error.failure.code, error.failure.message, error.failure.hint) from None
    except KeyProblem as error:
        raise Problem("not-allowed", str(error)) from None
    except (BadEndpoint, paths.PathError) as error:
        raise Problem("config", str(error)) from None
    except BadMessage as error:
        raise Problem("usage", str(error)) from None
