"""Who is who: CURVE keys, and the table that binds each public key to a name, a uid and a role.

Rule: identity comes from the key alone, never from what a message says. Key files are 0600 in a 0700 folder;
only `force` overwrites an existing one. A key file is all that its holder needs: it carries the controller's
public key too.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec
import zmq

from cotenant.controller.system.files import write_whole

Role = Literal["admin", "user", "agent"]

CONTROLLER_KEY: Final = "controller.key"
ADMIN_KEY: Final = "admin.key"
USERS_FILE: Final = "users.toml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class KeyProblem(Exception):
    """Keys that are missing, damaged or badly guarded; one line with what to do."""


class KeyFile(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of keys; `server` is the controller's public key (its own, in the controller's file)."""

    public: str
    secret: str
    server: str


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a public key belongs to, and as whom that person's jobs run."""

    name: str
    role: Role
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    host: str = ""
    """Agents only: the one host this key may speak for."""


class _Entry(Identity, frozen=True, kw_only=True):
    public: str


class _UsersFile(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    key: tuple[_Entry, ...] = ()


def local_identity() -> Identity:
    """The peer of an `ipc` socket: its owner, who is this process's user, as admin."""
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return Identity(name=name, role="admin", uid=uid, gid=os.getgid(), groups=tuple(sorted(os.getgroups())))


# --- Making keys -----------------------------------------------------------------------------------


def init_cluster(folder: Path, *, force: bool = False) -> Path:
    """A controller key pair and an admin key for the calling user; returns the admin's key file.

    Raises:
        KeyProblem: there are keys already, and `force` was not given.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    existing = [name for name in (CONTROLLER_KEY, ADMIN_KEY, USERS_FILE) if (folder / name).exists()]
    if existing and not force:
        raise KeyProblem(
            f"{folder / existing[0]} exists: `cotenant init --force` replaces it, and all keys given out "
            "become worthless"
        )
    public, secret = _pair()
    write_key_file(
        folder / CONTROLLER_KEY, _key_text(KeyFile(public=public, secret=secret, server=public)), force
    )
    write_key_file(folder / USERS_FILE, _users_text(()), force)
    me = local_identity()
    return _add(folder, ADMIN_KEY, me, force=force)


def add_user(
    folder: Path,
    name: str,
    uid: int | None = None,
    role: Literal["admin", "user"] = "user",
    *,
    force: bool = False,
) -> Path:
    """A key for a person; returns the file to hand over. Without `uid` the machine's user database gives it.

    Raises:
        KeyProblem: no cluster here, a bad name, an unknown user, or a name that is taken.
    """
    _check_name(name)
    gid = 0
    groups: tuple[int, ...] = ()
    try:
        entry = pwd.getpwnam(name) if uid is None else pwd.getpwuid(uid)
        uid, gid = entry.pw_uid, entry.pw_gid
        groups = tuple(sorted(os.getgrouplist(entry.pw_name, gid)))
    except KeyError:
        if uid is None:
            raise KeyProblem(f"this machine has no user {name!r}: add --uid N") from None
        gid = uid
    if uid == 0 and role != "admin":
        raise KeyProblem(f"{name}: only an admin may have uid 0")
    person = Identity(name=name, role=role, uid=uid, gid=gid, groups=groups)
    return _add(folder, f"user-{name}.key", person, force=force)


def add_agent(folder: Path, host: str, *, force: bool = False) -> Path:
    """A key for the agent of one host; returns the file to copy there.

    Raises:
        KeyProblem: no cluster here, a bad name, or a host that has a key.
    """
    _check_name(host)
    agent = Identity(name=f"agent@{host}", role="agent", uid=65534, gid=65534, host=host)
    return _add(folder, f"agent-{host}.key", agent, force=force)


def remove(folder: Path, name: str) -> bool:
    """Take a person's or an agent's (`agent@HOST`) right away; a running controller notices."""
    entries = _read_users(folder)
    left = tuple(entry for entry in entries if entry.name != name)
    write_key_file(folder / USERS_FILE, _users_text(left), force=True)
    return len(left) < len(entries)


def _add(folder: Path, file_name: str, who: Identity, *, force: bool) -> Path:
    server = read_key(folder / CONTROLLER_KEY).public
    entries = _read_users(folder)
    if not force and any(entry.name == who.name for entry in entries):
        raise KeyProblem(f"{who.name} has a key already: --force replaces it")
    public, secret = _pair()
    path = folder / file_name
    write_key_file(path, _key_text(KeyFile(public=public, secret=secret, server=server)), force)
    kept = tuple(entry for entry in entries if entry.name != who.name)
    entry = _Entry(**msgspec.structs.asdict(who), public=public)
    write_key_file(folder / USERS_FILE, _users_text((*kept, entry)), force=True)
    return path


# --- Reading them ----------------------------------------------------------------------------------


def read_key(path: Path) -> KeyFile:
    """Reads a key file. Raises KeyProblem: missing, damaged, or readable by others."""
    import tomllib

    try:
        mode = path.stat().st_mode
        text = path.read_text()
    except OSError as error:
        raise KeyProblem(f"no key at {path} ({error.strerror}): `cotenant init` makes keys") from None
    except UnicodeDecodeError:
        raise KeyProblem(f"{path} is not a key file: it is not a text file") from None
    if mode & 0o077:
        raise KeyProblem(f"others may read {path}: run `chmod 600 {path}`")
    try:
        key = msgspec.convert(tomllib.loads(text), KeyFile)
        if zmq.curve_public(key.secret.encode()).decode() != key.public or len(key.server) != 40:
            raise KeyProblem(f"{path} is damaged: its two halves do not belong together")
    except (ValueError, RecursionError, zmq.ZMQError) as error:
        raise KeyProblem(f"{path} is not a key file: {error}") from None
    return key


def find_key(place: Path, *, host: str = "") -> KeyFile:
    """The key in a folder (or the file itself): a host's with `host`, else a person's.

    Raises:
        KeyProblem: none, or several and no way to choose.
    """
    return read_key(find_key_file(place, host=host))


def find_key_file(place: Path, *, host: str = "") -> Path:
    """The file of that key. Raises KeyProblem as well."""
    maker = f"an admin makes it with `cotenant init --{f'host {host}' if host else 'user NAME'}`"
    whose = f"agent {host}" if host else "you"
    setting = "agent.keys_dir" if host else "controller.keys_dir"
    if not place.exists():
        raise KeyProblem(f"no key for {whose} at {place}: {maker}; put it there, or set {setting}")
    if not place.is_dir():
        return place
    if host:
        wanted = [place / f"agent-{host}.key", place / "agent.key"]
        found = [path for path in wanted if path.exists()][:1]
    else:
        found = [place / ADMIN_KEY] if (place / ADMIN_KEY).exists() else sorted(place.glob("user-*.key"))
    if len(found) != 1:
        if found:
            raise KeyProblem(f"{len(found)} keys for {whose} in {place}: set {setting} to one of the files")
        raise KeyProblem(
            f"no key for {whose} in {place}: {maker}; put it there, or set {setting} to the file"
        )
    return found[0]


class Users:
    """The table of keys; follows changes of its file, so that `remove` works at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamp: tuple[int, int] | None = None
        self._by_key: Mapping[str, Identity] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the file again if it changed.

        Raises:
            KeyProblem: it is missing or damaged.
        """
        try:
            status = (self._folder / USERS_FILE).stat()
        except OSError as error:
            raise KeyProblem(
                f"no {USERS_FILE} in {self._folder} ({error.strerror}): run `cotenant init`"
            ) from None
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._stamp:
            self._by_key = {entry.public: entry for entry in _read_users(self._folder)}
            self._stamp = stamp

    def get(self, public: str) -> Identity | None:
        return self._by_key.get(public)


def _read_users(folder: Path) -> tuple[_Entry, ...]:
    import tomllib

    path = folder / USERS_FILE
    try:
        text = path.read_text()
    except OSError as error:
        raise KeyProblem(f"no {path} ({error.strerror}): run `cotenant init`") from None
    except UnicodeDecodeError:
        raise KeyProblem(f"{path} is damaged: it is not a text file") from None
    try:
        users = msgspec.convert(tomllib.loads(text), _UsersFile)
    except (ValueError, RecursionError) as error:  # Those of the TOML and of the types are of the first.
        raise KeyProblem(f"{path} is damaged: {error}") from None
    if users.version != 1:
        raise KeyProblem(f"{path} has version {users.version}, this program reads 1: upgrade cotenant here")
    return users.key


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise KeyProblem(f"{name!r} cannot be a name: letters, digits, '.', '_' and '-' only, 64 at most")


def _pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def _key_text(key: KeyFile) -> str:
    # The alphabet of Z85 has neither quotes nor backslashes.
    return f'public = "{key.public}"\nsecret = "{key.secret}"\nserver = "{key.server}"\n'


def _users_text(entries: tuple[_Entry, ...]) -> str:
    lines = [
        "# Who may talk to the controller. Written by `cotenant init`; a change takes effect at once.",
        "version = 1",
    ]
    for e in entries:
        lines += ["", "[[key]]", f'name = "{e.name}"', f'role = "{e.role}"', f'public = "{e.public}"']
        lines += [f"uid = {e.uid}", f"gid = {e.gid}", f"groups = {list(e.groups)}"]
        lines += [f'host = "{e.host}"'] if e.host else []
    return "\n".join(lines) + "\n"


def write_key_file(path: Path, text: str, force: bool) -> None:
    """Whole or not at all, 0600 from the first byte on. What root writes belongs to the folder's owner: the
    controller, which is not root, reads it.

    Raises:
        KeyProblem: the file exists and `force` is False.
    """
    if path.exists() and not force:
        raise KeyProblem(f"{path} exists: --force replaces it")
    folder = path.parent.stat()
    write_whole(path, text.encode(), owner=(folder.st_uid, folder.st_gid) if os.geteuid() == 0 else None)
