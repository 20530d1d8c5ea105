"""`cotenant up`: controller and agent of this machine as two processes, in the foreground; `agent`: alone, as
on a cluster.

Rule: `up` stops both by their process id when it ends, the agent first. Jobs that run go on: their
supervisors belong to neither, and the next `up` finds them. Alone, this process becomes the daemon (exec), so
that systemd and its user watch one process.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import Annotated, Final, NoReturn, TypeVar

from cotenant.controller.cli.frame import daemons
from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.frame.daemons import AGENT, CONTROLLER, DaemonProcess
from cotenant.controller.cli.frame.output import EndpointFlag
from cotenant.controller.cli.setup import owners
from cotenant.controller.cli.setup.web import cannot_serve, page_command
from cotenant.controller.client.asking import asking, loaded_settings
from cotenant.controller.performance import INTERFERENCE_MODELS
from cotenant.controller.present.problem import FAILED, NEVER_FITS, NOT_ALLOWED, OK, USAGE, Problem
from cotenant.controller.present.screen import say, tell
from cotenant.controller.present.units import plural, size
from cotenant.controller.submission.flags import value_of
from cotenant.controller.submission.quantities import duration_s
from cotenant.controller.system.paths import client_endpoint
from cotenant.controller.wire import clients as wire

T = TypeVar("T")

DevicesFlag = Annotated[
    str | None,
    option(
        "--devices",
        metavar="WHICH",
        help="auto, cuda, cuda:0,2, cpu:N (N CPU slots) or cpu:0-1/4 (two of four).",
    ),
]
OversubscribeFlag = Annotated[
    bool, option("--oversubscribe", help="Allow more CPU slots than there are cores.")
]
StateDirFlag = Annotated[str | None, option("--state-dir", metavar="DIR", help="Where its state lies.")]
PredictorFlag = Annotated[
    str | None,
    option(
        "--predictor",
        metavar="MODEL",
        help="An interference model: a file, or an installed package's by name.",
    ),
]
IdleExitFlag = Annotated[
    str | None, option("--idle-exit", metavar="TIME", help="End after so long without jobs.")
]
KeysFlag = Annotated[str | None, option("--keys-dir", metavar="DIR", help="Keys from `cotenant init`.")]


def agent(
    controller_endpoint: Annotated[
        str | None, option("--controller", metavar="URL", help="Where the controller is.")
    ] = None,
    host: Annotated[str | None, option("--host", metavar="NAME", help="This host's name.")] = None,
    devices: DevicesFlag = None,
    oversubscribe: OversubscribeFlag = False,
    state_dir: StateDirFlag = None,
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


def become(module: str, flags: Mapping[str, object], *words: str) -> NoReturn:
    loaded_settings()  # a mistake in a file is said here, by the command that was typed
    sys.stdout.flush()
    os.execv(sys.executable, [*daemons.command_line(module, flags), *words])


def model_file(path: str | None) -> str | None:
    """The path of the model file in full: the daemon may run elsewhere; or the name of an installed package's
    model. Raises Problem: there is none."""
    if not path or path in entry_points(group=INTERFERENCE_MODELS).names:
        return path
    found = os.path.abspath(os.path.expanduser(path))
    if not os.path.exists(found):
        raise Problem(
            "not-found",
            f"{path}: there is no such file",
            "`python -m experiments.castor.predictor train` makes one",
        )
    return found


def idle_seconds(text: str | None) -> float | None:
    return None if text is None else value_of("--idle-exit", text, duration_s)


READY_WITHIN_S: Final = 60.0
AGENT_READY_WITHIN_S: Final = 240.0
"""It may have to wait three minutes for a driver that is being loaded, and says so meanwhile."""


def up(
    devices: DevicesFlag = None,
    oversubscribe: OversubscribeFlag = False,
    state_dir: StateDirFlag = None,
    idle_exit: IdleExitFlag = None,
    predictor: PredictorFlag = None,
    web: Annotated[bool, option("--web", help="Also the live page; `cotenant web --link` opens it.")] = False,
    of_run: Annotated[bool, option("--of-run", hidden=True, help="`cotenant run` starts it.")] = False,
    endpoint: EndpointFlag = None,
) -> int:
    """Controller and agent on this machine, in the foreground. Ctrl-C stops both; jobs go on.

    Where `cotenant run` has started both in the background, they end and these take over, with the queue
    and the jobs that run. `cotenant down` ends them from elsewhere.

    For example:

      cotenant up                   the GPUs of this machine, or CPU slots where there are none
      cotenant up --devices cpu:2
      cotenant up --web             with the page in a browser
    """
    if web and (problem := cannot_serve()) is not None:
        raise problem
    where = client_endpoint(loaded_settings(endpoint).settings)
    adopt(where)
    owned = owners.own(where, "run" if of_run else "up")
    flags: dict[str, object] = {
        "controller.endpoint": where,
        "controller.idle_exit_s": idle_seconds(idle_exit),
        "controller.predictor": model_file(predictor),
        "agent.controller": where,
        "agent.devices": devices,
        "agent.oversubscribe": True if oversubscribe else None,
    }
    if state_dir:
        flags["controller.state_dir"] = os.path.join(os.path.abspath(state_dir), "controller")
        flags["agent.state_dir"] = os.path.join(os.path.abspath(state_dir), "agent")
    started: dict[str, DaemonProcess] = {}
    try:
        return keep_up(started, where, flags, with_page=web)
    except KeyboardInterrupt:
        tell("stopping; jobs that run go on, and the next `cotenant up` finds them")
        return OK
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):  # stopping takes a moment, and is not to be cut short
            signal.signal(number, signal.SIG_IGN)
        for name in ("page", "agent", "controller"):
            if name in started:
                late = f"the {name} did not stop within {daemons.STOP_WITHIN_S:.0f} s; ending it"
                started[name].end(partial(tell, late))
        owned.release()


def adopt(where: str) -> None:
    """End the controller and agent that `run` has started; `up` goes on with their journal and jobs.

    Raises:
        Problem: a controller answers that is not `run`'s.
    """
    found = owners.owner(where)
    if found is not None and found.verb == "run":
        tell(f"taking over what `cotenant run` started (pid {found.pid}); jobs that run go on")
        owners.end(found)
    elif daemons.joined_hosts(where) is not None:
        whose = f" (`cotenant up`, pid {found.pid})" if found else ""
        hint = "use it, or end it: cotenant down" if found else "use it, or add this host: cotenant agent"
        raise Problem("refused", f"a controller already answers at {where}{whose}", hint)


def keep_up(
    started: dict[str, DaemonProcess], where: str, flags: Mapping[str, object], *, with_page: bool = False
) -> int:
    """Starts both and waits daemons.until one ends. The page may come to its end alone."""
    started["controller"] = controller = DaemonProcess(daemons.command_line(CONTROLLER, flags))
    wait_for(started, lambda: controller.is_ready, READY_WITHIN_S, "the controller did not answer")
    with asking(where) as client:
        say(f"controller ready  {where}  policy {client.ask(wire.GetStatus()).policy}", flush=True)
    started["agent"] = agent = DaemonProcess(daemons.command_line(AGENT, flags))

    def own_node() -> wire.NodeView | None:
        # A controller with a journal may list the host before it has joined.
        joined = daemons.joined_hosts(where) if agent.is_ready else None
        return joined[0] if joined else None

    hint = "try `cotenant doctor`"
    node = wait_for(started, own_node, AGENT_READY_WITHIN_S, "the agent did not join", hint)
    say(f"agent ready       {describe_node(node)}", flush=True)
    say("submit with `cotenant submit -- python train.py`; Ctrl-C stops both, jobs go on", flush=True)
    if with_page:
        started["page"] = DaemonProcess(page_command(where), is_heard=False)
    ended = first_to_end(started)
    if ended == "page":
        code = started.pop("page").process.wait()
        tell(f"the page ended with exit code {code}; all else goes on. Open it again: cotenant web")
        ended = first_to_end(started)
    code = started[ended].process.wait()
    if ended == "controller" and code == 0:
        tell("the controller ended (idle); stopping the agent")
        return OK
    tell(f"the {ended} ended with exit code {code}")
    return FAILED


def wait_for(
    started: Mapping[str, DaemonProcess],
    look: Callable[[], T | None],
    within_s: float,
    late: str,
    hint: str = "",
) -> T:
    """What `look` finds, while all that was started is there. Raises Problem."""

    def look_around() -> T | None:
        for name, daemon in started.items():
            if (code := daemon.process.poll()) is not None:  # What exactly is wrong it said itself.
                known = {USAGE: "usage", NOT_ALLOWED: "not-allowed", NEVER_FITS: "never-fits"}
                why = f"the {name} could not start"
                raise Problem(known.get(code, "failed"), why, "see its message above")
        return look()

    found = daemons.wait_until(look_around, within_s)
    if found is None:
        raise Problem("failed", f"{late} within {within_s:.0f} s", hint)
    return found


def describe_node(node: wire.NodeView) -> str:
    """A line on a host and its devices, `laptop: 2 CPU slots (7.7G each)`; a device that is not offered is
    named with its reason."""
    offered = [device for device in node.devices if device.healthy]
    refused = [device for device in node.devices if not device.healthy]
    parts = [f"{node.host}: no device is offered"]
    if offered:
        noun = "GPU" if offered[0].kind == "cuda" else "CPU slot"
        what = f"{offered[0].type}, " if offered[0].kind == "cuda" else ""
        parts = [f"{node.host}: {plural(len(offered), noun)} ({what}{size(offered[0].memory_mib)} each)"]
    parts += [f"{device.device_id} {device.note}" for device in refused]
    return "; ".join(parts)


def first_to_end(started: Mapping[str, DaemonProcess]) -> str:
    by_descriptor = {os.pidfd_open(daemon.process.pid): name for name, daemon in started.items()}
    try:
        ready, _, _ = select.select(list(by_descriptor), [], [])
        return by_descriptor[ready[0]]
    finally:
        for descriptor in by_descriptor:
            os.close(descriptor)
