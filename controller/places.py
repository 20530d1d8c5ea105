"""Where things lie on this machine: the user's one socket, and the folders for state.

Rule: a socket's folder belongs to this user and nobody else can enter it (0700, checked): whoever can
reach an embedded controller's socket is taken for its owner.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cotenant.controller.domain.settings import Settings

SOCKET_BYTES_MAX: Final = 107
"""The kernel's limit on the path of a Unix socket."""
SOCKET_NAME: Final = "controller.sock"


class PlaceError(OSError):
    """A folder or a socket path that cannot be used; the text says which and what to do."""


def runtime_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The user's folder for sockets and locks; made if it is not there.

    XDG_RUNTIME_DIR/cotenant, or a folder by uid in the temporary folder where there is no session.

    Raises:
        PlaceError: it belongs to someone else, or others can enter it and we cannot change that.
    """
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_RUNTIME_DIR")
    if base and Path(base).is_dir() and os.access(base, os.W_OK):
        return private_dir(Path(base) / "cotenant")
    return private_dir(Path(environ.get("TMPDIR") or tempfile.gettempdir()) / f"cotenant-{os.getuid()}")


def private_dir(path: Path) -> Path:
    """A folder of ours with mode 0700.

    Raises:
        PlaceError: it cannot be made, is a link, or belongs to someone else.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise PlaceError(f"{path}: cannot be made: {error.strerror}; set XDG_RUNTIME_DIR") from None
    if not stat.S_ISDIR(found.st_mode):
        raise PlaceError(f"{path}: not a folder; remove it, or set XDG_RUNTIME_DIR")
    if found.st_uid != os.getuid():
        raise PlaceError(f"{path}: belongs to uid {found.st_uid}, not to you; set XDG_RUNTIME_DIR")
    if found.st_mode & 0o077:
        path.chmod(0o700)
    return path


def user_endpoint(environ: Mapping[str, str] | None = None) -> str:
    """`ipc://` and the path of the user's one socket.

    Raises:
        PlaceError: the path is longer than a socket's path can be.
    """
    path = runtime_dir(environ) / SOCKET_NAME
    if len(os.fsencode(path)) > SOCKET_BYTES_MAX:
        raise PlaceError(
            f"{path}: longer than {SOCKET_BYTES_MAX} bytes, too long for a socket; shorten XDG_RUNTIME_DIR"
        )
    return f"ipc://{path}"


def controller_endpoint(settings: Settings) -> str:
    """Where the controller listens."""
    return settings.controller.endpoint or user_endpoint()


def client_endpoint(settings: Settings) -> str:
    """Where command lines find the controller: a wildcard address means this host."""
    endpoint = controller_endpoint(settings)
    for wildcard in ("tcp://*:", "tcp://0.0.0.0:"):
        if endpoint.startswith(wildcard):
            return "tcp://127.0.0.1:" + endpoint.removeprefix(wildcard)
    return endpoint


def agent_endpoint(settings: Settings) -> str:
    """Where the agent finds its controller."""
    return settings.agent.controller or user_endpoint()


def controller_state_dir(settings: Settings) -> Path:
    """Journal, snapshots, secrets (not made here)."""
    return Path(settings.controller.state_dir or _state_dir() / "controller").expanduser()


def agent_state_dir(settings: Settings) -> Path:
    """Attempts, logs, unacknowledged reports (not made here)."""
    return Path(settings.agent.state_dir or _state_dir() / "agent").expanduser()


def checkpoint_root(settings: Settings) -> Path:
    """Where jobs' checkpoints go (not made here)."""
    return Path(settings.checkpoint.root or agent_state_dir(settings) / "checkpoints").expanduser()


def _state_dir() -> Path:
    from platformdirs import user_state_path

    return user_state_path("cotenant", appauthor=False)
