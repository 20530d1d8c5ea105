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
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Annotated, Final, NoReturn

from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.frame.output import EndpointFlag
from cotenant.controller.cli.setup import owners
from cotenant.controller.cli.setup.web import cannot_serve, page_command
from cotenant.controller.client.asking import asking, loaded_settings
from cotenant.controller.domain import HostState
from cotenant.controller.performance import INTERFERENCE_MODELS
from cotenant.controller.present.problem import FAILED, NEVER_FITS, NOT_ALLOWED, OK, USAGE, Problem
from cotenant.controller.present.screen import say, tell
from cotenant.controller.present.units import plural, size
from cotenant.controller.submission.flags import value_of
from cotenant.controller.submission.quantities import duration_s
from cotenant.controller.system.paths import client_endpoint
from cotenant.controller.wire import clients as wire

CONTROLLER: Final = "cotenant.controller"
AGENT: Final = "cotenant.agent"

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
    os.execv(sys.executable, [*command_line(module, flags), *words])


def command_line(module: str, flags: Mapping[str, object]) -> list[str]:
    """How a daemon is started with these settings; a value of None was not given."""
    words = [sys.executable, "-m", module]
    for key, value in flags.items():
        if value is not None:
            words += ["--set", f"{key}={'true' if value is True else value}"]
    return words


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
STOP_WITHIN_S: Final = 15.0
LOOK_EVERY_S: Final = 0.05

StartedProcess = subprocess.Popen[bytes]


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
    started: dict[str, StartedProcess] = {}
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
                stop(name, started[name])
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
    elif answers(where):
        whose = f" (`cotenant up`, pid {found.pid})" if found else ""
        hint = "use it, or end it: cotenant down" if found else "use it, or add this host: cotenant agent"
        raise Problem("refused", f"a controller already answers at {where}{whose}", hint)


def keep_up(
    started: dict[str, StartedProcess], where: str, flags: Mapping[str, object], *, with_page: bool = False
) -> int:
    """Starts both and waits until one ends. The page may come to its end alone."""
    started["controller"] = start(CONTROLLER, flags)
    status = controller_ready(started["controller"], where)
    say(f"controller ready  {where}  policy {status}", flush=True)
    started["agent"] = start(AGENT, flags)
    node = agent_ready(started, where, watch_ready_line(started["agent"]))
    say(f"agent ready       {describe_node(node)}", flush=True)
    say("submit with `cotenant submit -- python train.py`; Ctrl-C stops both, jobs go on", flush=True)
    if with_page:
        # In a session of its own as well; what it prints comes out here.
        started["page"] = subprocess.Popen(
            page_command(where), stdin=subprocess.DEVNULL, start_new_session=True
        )
    ended = first_to_end(started)
    if ended == "page":
        code = started.pop("page").wait()
        tell(f"the page ended with exit code {code}; all else goes on. Open it again: cotenant web")
        ended = first_to_end(started)
    code = started[ended].wait()
    if ended == "controller" and code == 0:
        tell("the controller ended (idle); stopping the agent")
        return OK
    tell(f"the {ended} ended with exit code {code}")
    return FAILED


def start(module: str, flags: Mapping[str, object]) -> StartedProcess:
    """Starts a daemon in a session of its own: Ctrl-C here reaches `up` alone, which then stops it in
    order."""
    return subprocess.Popen(
        command_line(module, flags),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if module == AGENT else subprocess.DEVNULL,
        start_new_session=True,
    )


def controller_ready(process: StartedProcess, where: str) -> str:
    """Waits for the controller and returns its policy, once it answers."""
    deadline_s = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline_s:
        still_there("controller", process)
        try:
            with asking(where, timeout_s=2.0) as client:
                return client.ask(wire.GetStatus()).policy
        except Problem as problem:
            if problem.code != "unreachable":
                raise
        time.sleep(LOOK_EVERY_S)
    raise Problem("failed", f"the controller did not answer within {READY_WITHIN_S:.0f} s")


def watch_ready_line(agent: StartedProcess) -> threading.Event:
    """Set by the agent's ready line: a controller with a journal may list the host before it has joined."""
    ready = threading.Event()

    def read() -> None:
        assert agent.stdout is not None
        for line in agent.stdout:
            if b" ready: " in line:
                ready.set()

    threading.Thread(target=read, daemon=True).start()
    return ready


def agent_ready(started: Mapping[str, StartedProcess], where: str, ready: threading.Event) -> wire.NodeView:
    """Waits for the agent and returns this host as the controller sees it, once it has joined."""
    deadline_s = time.monotonic() + AGENT_READY_WITHIN_S
    while time.monotonic() < deadline_s:
        for name, process in started.items():
            still_there(name, process)
        if not ready.wait(LOOK_EVERY_S):
            continue
        with asking(where, timeout_s=5.0) as client:
            joined = [node for node in client.ask(wire.ListNodes()).nodes if node.state is HostState.OK]
        if joined:
            return joined[0]
        time.sleep(LOOK_EVERY_S)
    raise Problem(
        "failed", f"the agent did not join within {AGENT_READY_WITHIN_S:.0f} s", "try `cotenant doctor`"
    )


def still_there(name: str, process: StartedProcess) -> None:
    """Raises Problem with the meaning of its exit code; what exactly is wrong it said itself."""
    code = process.poll()
    if code is not None:
        known = {USAGE: "usage", NOT_ALLOWED: "not-allowed", NEVER_FITS: "never-fits"}
        raise Problem(known.get(code, "failed"), f"the {name} could not start", "see its message above")


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


def answers(where: str) -> bool:
    try:
        with asking(where, timeout_s=2.0) as client:
            client.ask(wire.GetStatus())
    except Problem as problem:
        if problem.code == "unreachable":
            return False
        raise
    return True


def first_to_end(started: Mapping[str, StartedProcess]) -> str:
    by_descriptor = {os.pidfd_open(process.pid): name for name, process in started.items()}
    try:
        ready, _, _ = select.select(list(by_descriptor), [], [])
        return by_descriptor[ready[0]]
    finally:
        for descriptor in by_descriptor:
            os.close(descriptor)


def stop(name: str, process: StartedProcess) -> None:
    """Ask the process to end; if it does not in time, kill it."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        tell(f"the {name} did not stop within {STOP_WITHIN_S:.0f} s; ending it")
        process.kill()
        process.wait()
