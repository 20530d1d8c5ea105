"""A connection to the controller by the settings in force; what goes wrong on it leaves as a Problem.

Rule: only this module turns what the client may raise into a `Problem`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from cotenant.controller.client.connection import Client, Refusal, Unreachable
from cotenant.controller.present import problem, screen, units
from cotenant.controller.system import paths, settings
from cotenant.controller.system.endpoint import (
    LOCK_SUFFIX,
    BadEndpoint,
    is_system_socket,
    socket_path,
    user_endpoint,
)
from cotenant.controller.system.keys import KeyProblem
from cotenant.controller.system.sections import Settings
from cotenant.controller.wire import BadMessage
from cotenant.controller.wire import clients as wire

PATIENCE_S: Final = 600.0
"""How long a wait for a job outlasts a restart or an upgrade of the controller."""
RECENT_S: Final = 60.0
ANSWERS: Final = "cotenant.controller.from_journal"
"""Comes in by name: it has the controller's own code, which no command line loads for a question."""


def loaded_settings(endpoint: str | None = None) -> settings.LoadedSettings:
    """Raises Problem where a settings file or variable is wrong."""
    try:
        return settings.load({"controller.endpoint": endpoint or None})
    except settings.SettingsError as error:
        raise problem.Problem("config", str(error)) from None


def may_return(loaded: Settings) -> bool:
    """Whether a controller that is not there may be starting again: a service, one on another machine, or one
    of this account that has written to its journal just now."""
    path = socket_path(paths.client_endpoints(loaded)[0])
    if path is None or is_system_socket(path):
        return True
    if not path.with_name(path.name + LOCK_SUFFIX).exists():  # None was ever there.
        return False
    try:
        files = list(paths.controller_state_dir(loaded).iterdir())
        return any(each.stat().st_mtime > time.time() - RECENT_S for each in files)
    except OSError:
        return False


def own_journal(settings: Settings) -> Path | None:
    """The folder with the journal of the controller that this account would start; None: there is none, or it
    may be another's than the endpoint's."""
    folder, endpoints = paths.controller_state_dir(settings), paths.client_endpoints(settings)
    path = socket_path(endpoints[0])
    if len(endpoints) > 1 or path is None or isinstance(paths.controller_journal(settings), str):
        return None
    if not settings.controller.state_dir and (is_system_socket(path) or endpoints[0] != user_endpoint()):
        return None
    try:
        status = (folder / paths.JOURNAL_NAME).stat()
    except OSError:
        return None
    return folder if status.st_uid == os.geteuid() else None


def answers_of_journal(
    loaded: Settings, until: ExitStack
) -> Callable[[wire.Question[Any]], wire.Reply | None]:
    """Answers from this account's journal, opened at the first question and closed with `until`."""

    @cache
    def opened() -> Any:
        folder = own_journal(loaded)
        if folder is None:
            return None
        return until.enter_context(closing(import_module(ANSWERS).JournalAnswers(folder, loaded, tell_old)))

    def ask(question: wire.Question[Any]) -> wire.Reply | None:
        answers = opened()
        found: wire.Reply | None = None if answers is None else answers.ask(question)
        return found

    return ask


def tell_old(wall_s: float) -> None:
    screen.tell(f"no controller is running; from the journal of {units.local_time(wall_s)}")


@contextmanager
def asking(
    endpoint: str | None = None,
    *,
    timeout_s: float = 10.0,
    patience_s: float = 0.0,
    from_journal: bool = False,
) -> Iterator[Client]:
    """Opens a client; whatever goes wrong between here and the controller leaves as a Problem.

    `patience_s`: for a verb that lasts as long as a job does, and so outlives the controller's restarts, or
    that has something to hand over. `from_journal`: for a verb that only reads, which has its answers from
    this account's journal where no controller runs.
    """
    loaded = loaded_settings(endpoint)
    try:
        where = paths.client_endpoints(loaded.settings)
        keys = paths.keys_dir(loaded.settings) if socket_path(where[0]) is None else None
        with Client(where, keys, timeout_s=timeout_s) as client:
            client.patience_s, client.on_silence = patience_s, screen.tell
            client.is_expected = patience_s > 0.0 and may_return(loaded.settings)
            with ExitStack() as journal:
                if from_journal:
                    client.stand_in = answers_of_journal(loaded.settings, journal)
                yield client
    except Unreachable as error:
        raise problem.Problem("unreachable", str(error), error.hint) from None
    except Refusal as error:
        raise problem.Problem(error.failure.code, error.failure.message, error.failure.hint) from None
    except KeyProblem as error:
        raise problem.Problem("not-allowed", str(error)) from None
    except (BadEndpoint, paths.PathError) as error:
        raise problem.Problem("config", str(error)) from None
    except BadMessage as error:
        raise problem.Problem("usage", str(error)) from None
