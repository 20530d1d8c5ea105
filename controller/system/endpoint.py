"""Where the controller listens: one Unix socket per user, or TCP with CURVE keys.

Rule: an `ipc` socket is 0600 in a folder that only its owner may write to, so only its owner (or root) can
connect; or, in a folder of /run, accounts share it, each as the one that the kernel names. A `tcp` endpoint
is never open without keys. There is no other kind.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

SOCKET_NAME: Final = "controller.sock"
LOCK_SUFFIX: Final = ".lock"
"""Of the file beside a socket that its controller holds, and leaves."""
SYSTEM_ENDPOINT: Final = "ipc:///run/cotenant-controller/controller.sock"
"""Where the controller of one machine listens that serves all its accounts."""
SOCKET_PATH_MAX: Final = 107
"""`sun_path` has 108 bytes with its end mark."""
_BETWEEN: Final = re.compile(r",(?=\s*[a-z]+://)")
"""Between two endpoints: the path of a socket may have a comma too."""
_OF_A_MACHINE: Final = re.compile(r"tcp://[^\s:/]+:\d+|tcp://\[[0-9a-fA-F:.]+\]:\d+")


class BadEndpoint(ValueError):
    """An endpoint that cannot or must not be used; the text says why and what to do."""


def check_endpoints(key: str, given: str | tuple[str, ...]) -> None:
    """Checks a setting that may list several endpoints; a single one is checked where it is used.

    Raises:
        BadEndpoint: they are not different ones that may be of different machines.
    """
    listed = endpoints_of(given)
    for each in listed if len(listed) > 1 else ():
        if not _OF_A_MACHINE.fullmatch(each) or any_address(each) or listed.count(each) > 1:
            raise BadEndpoint(
                f"{key} must be one endpoint, or a list of different tcp://HOST:PORT, got {each!r}"
            )


def endpoints_of(given: str | tuple[str, ...]) -> tuple[str, ...]:
    """Returns the endpoints that a setting or a flag lists; text separates them by commas."""
    listed = _BETWEEN.split(given) if isinstance(given, str) else given
    return tuple(filter(None, map(str.strip, listed)))


def any_address(endpoint: str) -> bool:
    """Whether the endpoint is one of all addresses of a machine: to listen at, not to connect to."""
    return endpoint.startswith(("tcp://*:", "tcp://0.0.0.0:", "tcp://[::]:"))


def host_of(endpoint: str) -> str:
    """The name or address in a `tcp` endpoint."""
    return endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")


def this_host(wanted: str) -> str:
    """What an agent calls its host: as its settings want, else the first part of the machine's own name."""
    import socket

    return wanted or socket.gethostname().partition(".")[0]


def has_name(endpoint: str) -> bool:
    """Whether the host of a `tcp` endpoint is given by name, not by address."""
    from ipaddress import ip_address

    try:
        ip_address(host_of(endpoint))
    except ValueError:
        return True
    return False


def is_of_this_machine(endpoint: str) -> bool:
    """Whether the host of a `tcp` endpoint is an address of this machine: only such a one can be bound."""
    import socket

    try:
        for family, kind, _, _, address in socket.getaddrinfo(host_of(endpoint), 0, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as probe:
                probe.bind(address)
    except OSError:
        return False
    return True


def user_endpoint() -> str:
    """The one socket of this user: under XDG_RUNTIME_DIR, or a private folder in the temporary one."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir():
        folder = Path(runtime) / "cotenant"
    else:
        import tempfile

        folder = Path(tempfile.gettempdir()) / f"cotenant-{os.getuid()}"
    return f"ipc://{folder / SOCKET_NAME}"


def socket_path(endpoint: str) -> Path | None:
    """The path of an `ipc` endpoint, None for `tcp`.

    Raises:
        BadEndpoint: neither of the two, or a path that no socket can have.
    """
    scheme, _, rest = endpoint.partition("://")
    if scheme == "tcp" and ":" in rest:
        return None
    if scheme != "ipc" or not rest.startswith("/"):
        raise BadEndpoint(f"endpoint {endpoint!r} is neither ipc:///PATH nor tcp://HOST:PORT")
    if len(os.fsencode(rest)) > SOCKET_PATH_MAX:
        raise BadEndpoint(
            f"socket path {rest} is longer than {SOCKET_PATH_MAX} bytes: choose a shorter folder"
        )
    return Path(rest)


def prepare_folder(path: Path) -> None:
    """Make the socket's folder, 0700; one that others can write to is refused, and so is another's link.

    Raises:
        BadEndpoint: the folder cannot be made, belongs to someone else, or others may write to it.
    """
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status, linked_by = folder.stat(), folder.lstat().st_uid
    except OSError as error:
        raise BadEndpoint(f"{folder}: cannot be made: {error.strerror}: choose another endpoint") from None
    owner = status.st_uid if linked_by in (0, os.getuid()) else linked_by
    if owner != os.getuid():
        raise BadEndpoint(f"{folder} belongs to uid {owner}, not to you: choose another endpoint")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadEndpoint(
            f"others may write to {folder}: run `chmod go-w {folder}` or choose another endpoint"
        )


def is_system_socket(path: Path) -> bool:
    """Whether a socket lies in a folder of /run, which root alone can have made or given away."""
    return path.parent.parent == Path("/run")


def check_owner(path: Path) -> None:
    """A client's side of the rule: never talk to someone else's socket, unless root gave that one its folder.

    Raises:
        FileNotFoundError: there is no socket.
        BadEndpoint: it is not ours.
    """
    owner = path.stat().st_uid
    if is_system_socket(path):
        folder = path.parent.lstat()
        is_given = folder.st_uid == owner and stat.S_ISDIR(folder.st_mode) and not folder.st_mode & 0o022
    else:
        is_given = False
    if owner != os.getuid() and os.getuid() != 0 and not is_given:
        raise BadEndpoint(f"{path} belongs to uid {owner}, not to you: set another endpoint")


def check_address(address: str) -> str:
    """Returns an address of PostgreSQL that may be written into settings and messages.

    Raises:
        ValueError: it holds a password, or it is none.
    """
    from urllib.parse import parse_qs, urlsplit  # Most command lines have no need of it.

    parts = urlsplit(address)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ValueError("must be postgresql://USER@HOST/DATABASE")
    if parts.password is not None or {"password", "passfile", "sslpassword"} & set(parse_qs(parts.query)):
        raise ValueError(
            "must not hold a password, which others could read: put it into ~/.pgpass (mode 0600), or into "
            "the file that PGPASSFILE names"
        )
    return address
