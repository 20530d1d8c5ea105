"""`cotenant mcp`: a server of MCP on standard input and output.

Rule: standard output carries the protocol alone; all else goes to standard error.
"""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.frame.output import EndpointFlag
from cotenant.controller.client.asking import asking, loaded_settings
from cotenant.controller.present.problem import OK, Problem
from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import BadEndpoint, socket_path

ADVICE: Final = "pip install '.[mcp]' in the source folder, or uv tool install 'PATH[mcp]'"


def mcp(
    allow_writes: Annotated[
        bool, option("--allow-writes", help="Also submit, cancel and set, each after a preview.")
    ] = False,
    key: Annotated[str, option("--key", metavar="FILE", help="Ask with this key file.")] = "",
    endpoint: EndpointFlag = None,
) -> None:
    """Let programs that write code ask about jobs and, if you allow it, change them: a server of the Model
    Context Protocol on standard input and output, which such a program starts itself.

    It may do what its key may do. Give an agent a user of its own, and limits.

    For example:

      cotenant mcp                    queue, job, explain, logs, nodes, eta, what_if, report
      cotenant mcp --allow-writes --key ~/.config/cotenant/user-ann-agent.key
    """
    if find_spec("mcp") is None:
        raise Problem("failed", "the server needs the package mcp", ADVICE)
    runtime = Path(f"/run/user/{os.getuid()}")
    if "XDG_RUNTIME_DIR" not in os.environ and runtime.is_dir():  # Many clients start it without.
        os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    if endpoint:
        os.environ["COTENANT_CONTROLLER__ENDPOINT"] = endpoint
    if key:
        os.environ["COTENANT_CONTROLLER__KEYS_DIR"] = os.path.abspath(os.path.expanduser(key))
        where = paths.client_endpoint(loaded_settings().settings)
        try:
            has_socket = socket_path(where) is not None
        except BadEndpoint as error:
            raise Problem("config", str(error)) from None
        if has_socket:
            why = f"--key means nothing to {where}: on a Unix socket the account decides who asks"
            raise Problem("usage", why, "name a controller on TCP: --endpoint tcp://HOST:PORT")
    with asking():  # A setting or a key that is wrong ends it here; a controller that is away does not.
        pass
    from cotenant.controller.integrations.mcp.server import make_server

    for number in (signal.SIGTERM, signal.SIGINT):  # A thread that reads standard input cannot be woken.
        signal.signal(number, signal.SIG_DFL)
    make_server(allow_writes=allow_writes).run("stdio")
    os._exit(OK)  # Threads that still wait for an answer have nobody to give it to.
