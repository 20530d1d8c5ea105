"""`cotenant web`: the live page, as a process of its own.

Rule: nothing of the page is imported here: this process becomes it (exec), so that Ctrl-C and a service
manager reach it, and so that whatever happens to it happens to nobody else. A link is made by the page's
server alone; here it is only asked for, on a socket in a folder that nobody else can enter.
"""

from __future__ import annotations

import os
import socket as sockets
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.frame.output import EndpointFlag
from cotenant.controller.client.asking import asking
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.screen import say
from cotenant.controller.system import paths
from cotenant.controller.system.web_link import link_socket
from cotenant.controller.wire import clients as wire

PAGE: Final = "cotenant.controller.web"
NEEDS: Final = ("starlette", "uvicorn", "jinja2")
LINK_WITHIN_S: Final = 5.0
ADVICE: Final = "pip install '.[web]' in the source folder, or uv tool install 'PATH[web]'"


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
    link: Annotated[
        bool,
        option("--link", help="A link to the page that runs: opens one browser within five minutes."),
    ] = False,
    endpoint: EndpointFlag = None,
) -> None:
    """A live page of jobs, devices and why, in a browser. Ctrl-C ends it.

    It shows what you may see and does what you may do, as the command line. A browser needs a link, which
    opens one and lasts five minutes: on a terminal the first is printed, and `cotenant web --link` makes
    another at any time. Nobody but this machine reaches the page.

    For example:

      cotenant web
      cotenant web --link                       from another terminal, for one more browser
      cotenant web --ssh ann@login1             and how to reach it from your own machine
      cotenant web --socket ~/cotenant.sock     on a machine that others use as well
    """
    if port is not None and socket is not None:
        raise Problem("usage", "--port and --socket exclude each other", "`cotenant web --help`")
    if link and ssh is not None:
        raise Problem("usage", "--ssh is for the start of a page, not for its links", "`cotenant web --help`")
    if link:
        say(new_link(paths.runtime_dir(), port, socket))
        return
    if (problem := cannot_serve()) is not None:
        raise problem
    with asking(endpoint) as client:  # What is wrong is said here, by the command that was typed.
        client.ask(wire.GetStatus())
    sys.stdout.flush()
    os.execv(sys.executable, page_command(endpoint, port, socket, ssh))


def cannot_serve(find: Callable[[str], object | None] = find_spec) -> Problem | None:
    """What is not installed, and how to install it; nothing is imported."""
    lacking = [name for name in NEEDS if find(name) is None]
    return Problem("failed", f"the page needs {' and '.join(lacking)}", ADVICE) if lacking else None


def new_link(folder: Path, port: int | None, socket: str | None) -> str:
    """Gets a new link from the one server that is meant.

    Raises:
        Problem: there is none, or more than one.
    """
    said = link_socket(folder, port, socket)
    found = [said] if port or socket else sorted(folder.glob("web-*.sock"))
    links = [link for path in found if (link := _link_from(path))]
    if not links:
        where = f"at port {port}" if port else f"on {socket}" if socket else "on this machine"
        raise Problem("not-found", f"no page of yours is served {where}", "start it: cotenant web")
    if len(links) > 1:
        places = ", ".join(link.partition("/enter")[0] for link in links)
        raise Problem("usage", f"{len(links)} pages are served: {places}", "say --port N or --socket PATH")
    return links[0]


def _link_from(path: Path) -> str:
    """The link that the server at a socket gives. Empty: its server has ended."""
    with sockets.socket(sockets.AF_UNIX) as asked:
        asked.settimeout(LINK_WITHIN_S)
        try:
            asked.connect(os.fspath(path))
            with asked.makefile() as said:
                return said.readline().strip()
        except OSError:
            return ""


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
