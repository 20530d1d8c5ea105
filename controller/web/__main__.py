"""Serves the page on 127.0.0.1 or on a Unix socket, until it is asked to end.

Rule: nobody but this machine reaches it: there is no option to listen elsewhere. What it prints is the link.
"""

from __future__ import annotations

import argparse
import os
import socket as sockets
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import uvicorn

from cotenant.controller.cli.frame.asking import loaded_settings
from cotenant.controller.cli.frame.problem import OK, Problem, listening
from cotenant.controller.cli.frame.screen import say
from cotenant.controller.client import Client
from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import socket_path
from cotenant.controller.web.access import Access
from cotenant.controller.web.app import application
from cotenant.controller.web.connections import TIMEOUT_S, Connections

HERE: Final = "127.0.0.1"
ENDING_S: Final = 2
REQUESTS_MAX: Final = 64


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m cotenant.controller.web")
    asked.add_argument("--endpoint", default="")
    asked.add_argument("--port", type=int, default=0)
    asked.add_argument("--socket", default="")
    asked.add_argument("--ssh", default="")
    words = asked.parse_args()
    try:
        socket = bound(words.socket, words.port)
    except OSError as error:
        where = words.socket or f"{HERE}:{words.port}"
        print(
            Problem("failed", f"cannot listen on {where}: {error.strerror or error}", "choose another"),
            file=sys.stderr,
        )
        return 1
    try:
        with listening(), suppress(KeyboardInterrupt):  # SIGTERM ends it as Ctrl-C does, in order.
            serve(socket, words.endpoint, words.ssh)
    finally:
        socket.close()
        if words.socket:
            Path(words.socket).unlink(missing_ok=True)
    return OK


def bound(path: str, port: int) -> sockets.socket:
    """Listens already: who has the link before the server has started waits a moment.

    Raises:
        OSError: something is there.
    """
    found = sockets.socket(sockets.AF_UNIX if path else sockets.AF_INET)
    before = os.umask(0o177)
    try:
        if path:
            remove_if_left(Path(path))
            found.bind(path)
        else:
            found.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
            found.bind((HERE, port))
        found.listen()
    except OSError:
        found.close()
        raise
    finally:
        os.umask(before)
    return found


def remove_if_left(path: Path) -> None:
    """The socket of a server that was killed, which nobody hears any more."""
    if not path.is_socket():
        return
    with sockets.socket(sockets.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()


def serve(socket: sockets.socket, endpoint: str, ssh: str) -> None:
    settings = loaded_settings(endpoint or None).settings
    where = paths.client_endpoint(settings)
    keys = paths.keys_dir(settings) if socket_path(where) is None else None
    name = socket.getsockname()
    port = 0 if isinstance(name, str) else name[1]
    connections = Connections(lambda: Client(where, keys, timeout_s=TIMEOUT_S))
    access = Access(Printed(name, port, ssh))
    app = application(connections, access, f"cotenant-{port}" if port else "cotenant")
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=REQUESTS_MAX,
            timeout_graceful_shutdown=ENDING_S,
        )
    )
    app.state.is_ending = lambda: server.should_exit
    try:
        server.run(sockets=[socket])
    finally:
        connections.close()


class Printed:
    """Prints each new link; the first one with how to get there."""

    def __init__(self, name: str | tuple[str, int], port: int, ssh: str) -> None:
        self._port = port
        self._path = name if isinstance(name, str) else ""
        self._ssh = ssh
        self._is_first = True

    def __call__(self, token: str) -> None:
        link = f"http://{HERE}:{self._port or LOCAL_PORT}/enter?token={token}"
        if not self._is_first:
            say(f"opened; for another browser: {link}", flush=True)
            return
        self._is_first = False
        if self._ssh or self._path:
            far = self._path or f"{HERE}:{self._port}"
            say(f"on your own machine:  ssh -N -L {self._port or LOCAL_PORT}:{far} {self._ssh or 'HOST'}")
        say(f"page ready        {link}", flush=True)


LOCAL_PORT: Final = 7080
"""At the near end of a port-forward to a Unix socket."""

if __name__ == "__main__":
    sys.exit(main())
