"""Who is who on a Unix socket that several accounts of one machine share.

Rule: identity comes from the kernel alone (SO_PEERCRED, as ZeroMQ reports it of a connection), never from
what a message says. Root and the socket's owner are admins; every other account is itself, as a user.
"""

from __future__ import annotations

import os
import pwd
import re
from typing import Final

from cotenant.controller.system.endpoint import BadEndpoint
from cotenant.controller.system.keys import Identity, local_identity

EVERYBODY: Final = "*"
"""The value of `controller.users` that lets every account of this machine in."""
IDENTITIES_MAX: Final = 10_000
_PEER: Final = re.compile(r":([0-9]{1,10}):[0-9]+:[0-9]+\Z")


class LocalUsers:
    """The accounts that may use a shared socket. An account is looked up again after each `refresh`, so one
    that leaves the group, or is removed, loses its access within seconds."""

    def __init__(self, allowed: str) -> None:
        """`allowed` is a value of `controller.users`.

        Raises:
            BadEndpoint: there is no such group.
        """
        self._allowed = allowed
        self._owner = local_identity()
        self._by_uid: dict[str, Identity | None] = {}
        if allowed != EVERYBODY and _group_id(allowed) is None:
            raise BadEndpoint(
                f"controller.users: this machine has no group {allowed!r}: `groupadd {allowed}`"
            )

    def admit(self, peer: str) -> str:
        """The name under which `get` knows a connection's peer; empty: it may not connect. `peer` is the
        kernel's word in ZeroMQ's form, `...:UID:GID:PID`."""
        named = _PEER.search(peer)
        return named[1] if named is not None and self.get(named[1]) is not None else ""

    def get(self, uid: str) -> Identity | None:
        """The identity of an account that was admitted; None: it has no access any more."""
        if uid not in self._by_uid:
            if len(self._by_uid) >= IDENTITIES_MAX:
                self._by_uid.clear()
            self._by_uid[uid] = self._look_up(int(uid))
        return self._by_uid[uid]

    def refresh(self) -> None:
        """Look every account up again when it is next asked for."""
        self._by_uid.clear()

    def _look_up(self, uid: int) -> Identity | None:
        if uid == self._owner.uid:
            return self._owner
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            return None
        groups = tuple(sorted(os.getgrouplist(entry.pw_name, entry.pw_gid)))
        if uid and self._allowed != EVERYBODY and _group_id(self._allowed) not in groups:
            return None
        return Identity(
            name=entry.pw_name, role="user" if uid else "admin", uid=uid, gid=entry.pw_gid, groups=groups
        )


def _group_id(name: str) -> int | None:
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None
