"""`cotenant controller` and `cotenant agent`: the two daemons alone, as on a cluster.

Rule: this process becomes the daemon (exec), so that systemd and its user watch one process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Annotated, Final, NoReturn

from cotenant.controller.cli.frame.asking import loaded_settings
from cotenant.controller.cli.frame.parameters import option
from cotenant.controller.cli.frame.problem import Problem
from cotenant.controller.cli.submission.quantities import duration_s

CONTROLLER: Final = "cotenant.controller"
AGENT: Final = "cotenant.agent"

DevicesFlag = Annotated[
    str | None,
    option("--devices", metavar="WHICH", help="auto, cuda, cuda:0,2 or cpu:N (N CPU slots)."),
]
OversubscribeFlag = Annotated[
    bool, option("--oversubscribe", help="Allow more CPU slots than there are cores.")
]
StateFlag = Annotated[str | None, option("--state-dir", metavar="DIR", help="Where its state lies.")]
PredictorFlag = Annotated[
    str | None,
    option("--predictor", metavar="MODEL", help="Interference model from `cotenant predictor train`."),
]
IdleExitFlag = Annotated[
    str | None, option("--idle-exit", metavar="TIME", help="End after so long without jobs.")
]
KeysFlag = Annotated[str | None, option("--keys-dir", metavar="DIR", help="Keys from `cotenant init`.")]


def controller(
    endpoint: Annotated[
        str | None, option("--endpoint", metavar="URL", help="ipc:///PATH or tcp://HOST:PORT.")
    ] = None,
    state_dir: StateFlag = None,
    keys_dir: KeysFlag = None,
    idle_exit: IdleExitFlag = None,
    predictor: PredictorFlag = None,
) -> None:
    """The controller alone, in the foreground. One per cluster, its journal on a local disk.

    For example:

      cotenant controller --endpoint tcp://0.0.0.0:7070 --keys-dir /etc/cotenant/keys
    """
    become(
        CONTROLLER,
        {
            "controller.endpoint": endpoint,
            "controller.state_dir": state_dir,
            "controller.keys_dir": keys_dir,
            "controller.idle_exit_s": idle_seconds(idle_exit),
            "controller.predictor": absolute(predictor),
        },
    )


def agent(
    controller_endpoint: Annotated[
        str | None, option("--controller", metavar="URL", help="Where the controller is.")
    ] = None,
    host: Annotated[str | None, option("--host", metavar="NAME", help="This host's name.")] = None,
    devices: DevicesFlag = None,
    oversubscribe: OversubscribeFlag = False,
    state_dir: StateFlag = None,
    keys_dir: KeysFlag = None,
) -> None:
    """The agent of this host alone, in the foreground. One per server.

    For example:

      cotenant agent --controller tcp://head:7070 --keys-dir /etc/cotenant/keys
      cotenant agent --devices cpu:2
    """
    become(
        AGENT,
        {
            "agent.controller": controller_endpoint,
            "agent.host": host,
            "agent.devices": devices,
            "agent.oversubscribe": True if oversubscribe else None,
            "agent.state_dir": state_dir,
            "agent.keys_dir": keys_dir,
        },
    )


def become(module: str, flags: Mapping[str, object]) -> NoReturn:
    loaded_settings()  # a mistake in a file is said here, by the command that was typed
    sys.stdout.flush()
    os.execv(sys.executable, command_line(module, flags))


def command_line(module: str, flags: Mapping[str, object]) -> list[str]:
    """How a daemon is started with these settings; a value of None was not given."""
    words = [sys.executable, "-m", module]
    for key, value in flags.items():
        if value is not None:
            words += ["--set", f"{key}={'true' if value is True else value}"]
    return words


def absolute(path: str | None) -> str | None:
    """The daemon may run elsewhere."""
    return os.path.abspath(os.path.expanduser(path)) if path else path


def idle_seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return duration_s(text)
    except ValueError as error:
        raise Problem("usage", f"--idle-exit {error}") from None
