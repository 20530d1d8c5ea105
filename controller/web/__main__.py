"""Serves the page on an address of 127.0.0.0/8 or on a Unix socket, until it is asked to end; and gives its
owner a link whenever they ask for one.

Rule: nobody but this machine reaches it: there is no option to listen elsewhere. Who asks for a link connects
to a second socket, in a folder that only the owner can enter. A link is printed only on a terminal, to the
person who has just asked for the page; other output may be kept, and read by others.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import secrets
import socket as sockets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import uvicorn

from cotenant.controller.client.asking import loaded_settings
from cotenant.controller.client.connection import Client
from cotenant.controller.present.interruption import listening
from cotenant.controller.present.problem import OK, Problem
from cotenant.controller.present.screen import is_terminal, say
from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import socket_path
from cotenant.controller.system.web_link import link_socket
from cotenant.controller.web.access import ENTRANCE, LINK_S, OUR_NAMES, Access
from cotenant.controller.web.app import application
from cotenant.controller.web.connections import TIMEOUT_S, Connections
from cotenant.controller.web.strangers import BACKLOG, server_config

HERE: Final = "127.0.0.1"
LOCAL_PORT: Final = 7080
"""At the near end of a port-forward to a Unix socket."""


class PageAddress(NamedTuple):
    """The address where the page is served."""

    host: str
    """Or the path of a Unix socket."""
    port: int = 0
    """0: on a Unix socket."""
    ssh: str = ""
    """How the machine of the browser calls this one."""

    @property
    def is_forwarded(self) -> bool:
        return bool(self.ssh) or not self.port

    @property
    def url(self) -> str:
        """The page's address as the browser's machine sees it."""
        return f"http://{HERE if self.is_forwarded else self.host}:{self.port or LOCAL_PORT}"

    @property
    def port_forward(self) -> str:
        far = f"{self.host}:{self.port}" if self.port else self.host
        return f"ssh -N -L {self.port or LOCAL_PORT}:{far} {self.ssh or 'HOST'}"


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m cotenant.controller.web")
    asked.add_argument("--endpoint", default="")
    asked.add_argument("--port", type=int, default=0)
    asked.add_argument("--socket", default="")
    asked.add_argument("--ssh", default="")
    words = asked.parse_args()
    with ExitStack() as held:
        try:
            if words.socket:
                address = PageAddress(words.socket, ssh=words.ssh)
                page = held.enter_context(listen_on_path(Path(words.socket)))
            else:
                page = held.enter_context(listen_on_port(words.port, own_address()))
                host, port = page.getsockname()
                address = PageAddress(host, port, words.ssh)
            found = link_socket(paths.runtime_dir(), address.port, words.socket)
            links = held.enter_context(listen_on_path(found))
        except paths.PathError as error:
            print(Problem("config", str(error)), file=sys.stderr)
            return 1
        except OSError as error:
            where = words.socket or f"port {words.port}"
            why = f"cannot listen on {where}: {error.strerror or error}"
            print(Problem("failed", why, "choose another"), file=sys.stderr)
            return 1
        with listening(), suppress(KeyboardInterrupt):  # SIGTERM ends it as Ctrl-C does, in order.
            serve(page, links, address, words.endpoint)
    return OK


def own_address() -> str:
    """An address that no other server is likely to have: a browser sends a cookie to every port of an
    address."""
    return f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"


def listen_on_port(port: int, address: str) -> sockets.socket:
    """Opens a socket that listens already: who has the link before the server has started waits a moment. On
    systems where only 127.0.0.1 exists (macOS) the socket is there.

    Raises:
        OSError: something is there.
    """
    found = sockets.socket(sockets.AF_INET)
    try:
        found.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        found.bind((address, port))
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRNOTAVAIL and address != HERE:
            return listen_on_port(port, HERE)
        raise
    return found


@contextmanager
def listen_on_path(path: Path) -> Iterator[sockets.socket]:
    """A socket that only its owner can open; removed at the end.

    Raises:
        OSError: something is there.
    """
    remove_if_left(path)
    with sockets.socket(sockets.AF_UNIX) as found:
        before = os.umask(0o177)
        try:
            found.bind(os.fspath(path))
        finally:
            os.umask(before)
        try:
            found.listen(BACKLOG)
            yield found
        finally:
            path.unlink(missing_ok=True)


def remove_if_left(path: Path) -> None:
    """The socket of a server that was killed, which nobody hears any more."""
    if not path.is_socket():
        return
    with sockets.socket(sockets.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()


def serve(page: sockets.socket, links: sockets.socket, address: PageAddress, endpoint: str) -> None:
    settings = loaded_settings(endpoint or None).settings
    where = paths.client_endpoints(settings)
    keys = paths.keys_dir(settings) if socket_path(where[0]) is None else None
    connections = Connections(lambda: Client(where, keys, timeout_s=TIMEOUT_S))
    access = Access()
    app = application(
        connections,
        access,
        f"cotenant-{address.port}" if address.port else "cotenant",
        names=(*OUR_NAMES, address.host) if address.port else OUR_NAMES,
        on_enter=lambda: say(f"a browser has come in; {ANOTHER}", flush=True),
    )
    server = uvicorn.Server(server_config(app))
    app.state.is_ending = lambda: server.should_exit

    def new_link() -> str:
        return f"{address.url}{ENTRANCE}?token={access.new_token()}"

    for line in greeting(address, new_link() if is_terminal() else ""):
        say(line, flush=True)
    try:
        asyncio.run(serve_both(server, page, links, new_link))
    finally:
        connections.close()


async def serve_both(
    server: uvicorn.Server, page: sockets.socket, links: sockets.socket, new_link: Callable[[], str]
) -> None:
    def give(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{new_link()}\n".encode())
        writer.close()

    async with await asyncio.start_unix_server(give, sock=links):
        await server.serve(sockets=[page])


ANOTHER: Final = "for another: cotenant web --link"


def greeting(address: PageAddress, link: str) -> Iterator[str]:
    """Yields the lines that say where the page is. `link`: empty where others might read it."""
    if address.is_forwarded:
        yield f"on your own machine:  {address.port_forward}"
    elif address.host == HERE:
        yield f"this system has {HERE} alone, and a browser sends cookies to all of its ports: see --socket"
    if link:
        yield f"page ready        {link}"
        yield f"                  opens one browser within {LINK_S / 60:g} minutes; {ANOTHER}"
    else:
        yield f"page ready        {address.url}"
        yield "                  a link that lets a browser in: cotenant web --link"


if __name__ == "__main__":
    sys.exit(main())
