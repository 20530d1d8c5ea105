"""`cotenant web`: the live page, as a process of its own.

Rule: nothing of the page is imported here: this process becomes it (exec), so that Ctrl-C and a service
manager reach it, and so that whatever happens to it happens to nobody else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Annotated, Final

from cotenant.controller.cli.frame.asking import asking
from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.frame.output import EndpointFlag
from cotenant.controller.cli.frame.problem import Problem
from cotenant.controller.wire import GetStatus

PAGE: Final = "cotenant.controller.web"
NEEDS: Final = ("starlette", "uvicorn", "jinja2")
ADVICE: Final = "pip install '.[web]' in the source folder"


def web(
    port: Annotated[
        int | None,
        option("--port", min=1, max=65535, metavar="N", help="On 127.0.0.1 (default: a free one)."),
    ] = None,
    socket: Annotated[
        str | None,
        option("--socket", metavar="PATH", help="On a Unix socket that only you can open, instead."),
    ] = None,
    ssh: Annotated[
        str | None,
        option(
            "--ssh",
            metavar="HOST",
            help="Also print the port-forward from your own machine to HOST, this one.",
        ),
    ] = None,
    endpoint: EndpointFlag = None,
) -> None:
    """A live page of jobs, devices and why, in a browser. Ctrl-C ends it.

    It shows what you may see and does what you may do, as the command line. The link that it prints opens
    one browser; after that it prints the next one. Nobody but this machine reaches it.

    For example:

      cotenant web
      cotenant web --ssh ann@login1             and how to reach it from your own machine
      cotenant web --socket ~/cotenant.sock     on a machine that others use as well
    """
    if port is not None and socket is not None:
        raise Problem("usage", "--port and --socket exclude each other", "`cotenant web --help`")
    if (problem := cannot_serve()) is not None:
        raise problem
    with asking(endpoint) as client:  # What is wrong is said here, by the command that was typed.
        client.ask(GetStatus())
    sys.stdout.flush()
    os.execv(sys.executable, page_command(endpoint, port, socket, ssh))


def cannot_serve(find: Callable[[str], object | None] = find_spec) -> Problem | None:
    """What is not installed, and how to install it; nothing is imported."""
    lacking = [name for name in NEEDS if find(name) is None]
    return Problem("failed", f"the page needs {' and '.join(lacking)}", ADVICE) if lacking else None


def page_command(
    endpoint: str | None, port: int | None = None, socket: str | None = None, ssh: str | None = None
) -> list[str]:
    """How the page is started."""
    flags = {
        "--endpoint": endpoint,
        "--port": port,
        "--socket": socket and os.path.abspath(socket),
        "--ssh": ssh,
    }
    words = [f"{flag}={value}" for flag, value in flags.items() if value is not None]
    return [sys.executable, "-m", PAGE, *words]
