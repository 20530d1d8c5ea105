"""The connection to the controller, for every verb that has a question, and for a shell that completes a
word.

Rule: only this module turns what the client may raise into a `Problem`. Completing never shows an error and
never takes long: a controller that does not answer at once completes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from cotenant.controller.cli.frame.screen import tell
from cotenant.controller.client import Client, Refusal, Unreachable
from cotenant.controller.domain import texts
from cotenant.controller.present.problem import Problem
from cotenant.controller.system import paths, settings
from cotenant.controller.system.endpoint import BadEndpoint, socket_path
from cotenant.controller.system.keys import KeyProblem
from cotenant.controller.wire import BadMessage
from cotenant.controller.wire import clients as wire

ANSWER_WITHIN_S: Final = 1.0
PATIENCE_S: Final = 600.0
"""How long a wait for a job outlasts a restart or an upgrade of the controller."""


def loaded_settings(endpoint: str | None = None) -> settings.LoadedSettings:
    """Raises Problem where a settings file or variable is wrong."""
    try:
        return settings.load({"controller.endpoint": endpoint or None})
    except settings.SettingsError as error:
        raise Problem("config", str(error)) from None


@contextmanager
def asking(
    endpoint: str | None = None, *, timeout_s: float = 10.0, patience_s: float = 0.0
) -> Iterator[Client]:
    """A client; whatever goes wrong between here and the controller leaves as a Problem.

    `patience_s`: for a verb that lasts as long as a job does, and so outlives the controller's restarts.
    """
    loaded = loaded_settings(endpoint)
    try:
        where = paths.client_endpoint(loaded.settings)
        keys = paths.keys_dir(loaded.settings) if socket_path(where) is None else None
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


# --- What can be completed from a running controller ------------------------------------------------


def complete_job(incomplete: str) -> list[tuple[str, str]]:
    jobs = _quietly(lambda client: client.ask(wire.ListJobs(include_ended=True, limit=200)).jobs)
    return [(j.job_id, f"{j.name} {j.phase.value}") for j in jobs if j.job_id.startswith(incomplete)]


def complete_host(incomplete: str) -> list[str]:
    nodes = _quietly(lambda client: client.ask(wire.ListNodes()).nodes)
    return [n.host for n in nodes if n.host.startswith(incomplete)]


def complete_policy(incomplete: str) -> list[tuple[str, str]]:
    policies = _quietly(lambda client: client.ask(wire.GetPolicy()).offers)
    return [(p.policy, p.about) for p in policies if p.available and p.policy.startswith(incomplete)]


def _quietly(question: Callable[[Any], Any]) -> Any:
    try:
        with asking(timeout_s=ANSWER_WITHIN_S) as client:
            return texts.for_people(question(client))
    except Problem:
        return ()
