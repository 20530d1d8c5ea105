"""Where things lie on this machine: the user's one socket, and the folders for state.

Rule: a socket's folder belongs to this user and no other can enter it (0700, checked): a process that can
reach an embedded controller's socket is taken for its owner's.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Final

from cotenant.controller.system import endpoint
from cotenant.controller.system.sections import MpsSettings, Settings
from cotenant.controller.system.settings import SettingsError


class PathError(OSError):
    """A folder or a socket path that cannot be used; the text says which and what to do."""


def runtime_dir() -> Path:
    """The user's folder for sockets and locks; made if it is not there.

    Raises:
        PlaceError: it belongs to someone else, or it cannot be made.
    """
    path = endpoint.socket_path(endpoint.user_endpoint())
    assert path is not None  # the user's endpoint is a Unix socket
    return private_dir(path.parent)


def mps_runtime_dir(mps: MpsSettings) -> PurePosixPath:
    """A short place for the pipe directories of MPS daemons, which their owner's jobs can reach: root's may
    be of any user.

    Raises:
        PlaceError: the user's runtime folder belongs to another user.
    """
    if mps.runtime_dir:
        return PurePosixPath(os.path.abspath(os.path.expanduser(mps.runtime_dir)))
    if os.geteuid() == 0:
        return PurePosixPath("/run/cotenant")
    return PurePosixPath(runtime_dir())


def private_dir(path: Path) -> Path:
    """A folder of ours with mode 0700.

    Raises:
        PlaceError: it cannot be made, is a link, or belongs to someone else.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileExistsError, NotADirectoryError):
        raise PathError(f"{path}: not a folder; remove it, or set XDG_RUNTIME_DIR") from None
    except OSError as error:
        raise PathError(f"{path}: cannot be made: {error.strerror}; set XDG_RUNTIME_DIR") from None
    try:
        found = os.fstat(folder)
        if found.st_uid != os.getuid():
            raise PathError(f"{path}: belongs to uid {found.st_uid}, not to you; set XDG_RUNTIME_DIR")
        if found.st_mode & 0o077:
            os.fchmod(folder, 0o700)
    finally:
        os.close(folder)
    return path


def controller_journal(settings: Settings) -> Path | str:
    """Where the controller's journal is kept: an address of PostgreSQL, or a folder."""
    return settings.controller.journal or controller_state_dir(settings)


def controller_endpoint(settings: Settings) -> str:
    """The endpoint at which the controller of this machine listens.

    Raises:
        SettingsError: it cannot be told which of several endpoints is this machine's.
    """
    listed = endpoint.endpoints_of(settings.controller.endpoint)
    if settings.controller.listen or len(listed) < 2:
        return settings.controller.listen or next(iter(listed), endpoint.user_endpoint())
    ours = own_endpoint(settings)
    if not ours:
        raise SettingsError(
            f"none or several of {', '.join(listed)} are of this machine: set controller.listen to where its "
            "controller is to listen"
        )
    # A name cannot be listened at, and /etc/hosts may say that this machine's name is 127.0.1.1.
    return f"tcp://*:{ours.rpartition(':')[2]}" if endpoint.has_name(ours) else ours


def own_endpoint(settings: Settings) -> str:
    """Where others reach the controller of this machine; of several endpoints the one of this machine, and
    of several of this machine the one with the port of `controller.listen`. Empty: it cannot be told."""
    listed = endpoint.endpoints_of(settings.controller.endpoint) or (endpoint.user_endpoint(),)
    if len(listed) == 1:
        return "" if endpoint.any_address(listed[0]) or listed[0].endswith(":*") else listed[0]
    ours = [each for each in listed if endpoint.is_of_this_machine(each)]
    if len(ours) > 1:
        port = settings.controller.listen.rpartition(":")[2]
        ours = [each for each in ours if each.rpartition(":")[2] == port]
    return ours[0] if len(ours) == 1 else ""


def client_endpoints(settings: Settings) -> tuple[str, ...]:
    """Where command lines find the controllers, in the order in which they ask: the address of all of a
    machine means this one."""
    given = endpoint.endpoints_of(settings.controller.endpoint) or (
        settings.controller.listen or endpoint.user_endpoint(),
    )
    if len(given) == 1 and endpoint.any_address(given[0]):
        return (f"tcp://127.0.0.1:{given[0].rpartition(':')[2]}",)
    return given


def client_endpoint(settings: Settings) -> str:
    """The same in one text, as a flag or a variable has it."""
    return ",".join(client_endpoints(settings))


def agent_endpoints(settings: Settings) -> tuple[str, ...]:
    """Where the agent finds its controllers, in the order in which it tries them."""
    return endpoint.endpoints_of(settings.agent.controller) or client_endpoints(settings)


def controller_state_dir(settings: Settings) -> Path:
    """Journal, snapshots, secrets (not made here)."""
    return Path(settings.controller.state_dir or _state_dir() / "controller").expanduser()


def snapshot_store(settings: Settings) -> Path:
    """The packed trees that the controller keeps (not made here)."""
    given = settings.snapshot.folder
    return Path(given).expanduser() if given else controller_state_dir(settings) / "trees"


def packed_trees() -> Path:
    """Where a submission leaves its packed tree until the controller has it (not made here)."""
    from platformdirs import user_cache_path

    return user_cache_path("cotenant", appauthor=False) / "trees"


def agent_state_dir(settings: Settings) -> Path:
    """Attempts, logs, unacknowledged reports (not made here)."""
    return Path(settings.agent.state_dir or _state_dir() / "agent").expanduser()


def checkpoint_root(settings: Settings) -> Path:
    """Where jobs' checkpoints go (not made here)."""
    return Path(settings.checkpoint.root or agent_state_dir(settings) / "checkpoints").expanduser()


def submitted_scripts() -> Path:
    """Copies of the scripts that `sbatch` submitted (not made here)."""
    return _state_dir() / "scripts"


def steer_file(cluster: str) -> Path:
    """Which jobs of a Slurm cluster have a priority of ours (not made here)."""
    name = "".join(each if each.isalnum() or each in "-_" else "_" for each in cluster)
    return _state_dir() / "steer" / f"{name}.json"


def keys_dir(settings: Settings) -> Path:
    """Where `cotenant init` writes keys, and where command lines look for theirs (not made here)."""
    if settings.controller.keys_dir:
        return Path(settings.controller.keys_dir).expanduser()
    from platformdirs import user_config_path

    return user_config_path("cotenant", appauthor=False) / "keys"


def _state_dir() -> Path:
    from platformdirs import user_state_path

    return user_state_path("cotenant", appauthor=False)


JOURNAL_NAME: Final = "journal.sqlite"
NETWORK_DISKS: Final = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "lustre",
        "beegfs",
        "gpfs",
        "ceph",
        "fuse.sshfs",
        "fuse.glusterfs",
        "afs",
    )
)


def mount_of(path: str, mounts: str) -> tuple[str, str]:
    """Where the file system that holds a path is mounted, and its kind, from the text of /proc/self/mounts;
    both are empty if it does not say."""
    best, kind = "", ""
    # Users name the folders that they mount on: in any bytes, but blanks and newlines are escaped.
    for line in mounts.split("\n"):
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].encode().decode("unicode_escape", errors="replace")
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, fields[2]
    return best, kind
