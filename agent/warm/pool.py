"""Which attempts may share a fork server (those of one key), which servers there are, for how long. Pure.

Rule: everything that an interpreter or an import could have read is in the key, but for a short list of names
that scripts read late. The server, which has the user's rights, checks what lies on disk (packages, the
interpreter itself) before each fork.

Rule: one server per key, started after a cold run of its kind has told what it imported, and only if all
servers together stay within their memory. The agent does not try a refused kind again; it tries one that only
went stale, or was ended, after the next cold run.

| now | event | then |
| --- | --- | --- |
| none | a cold run tells | coming, if there is room: else the longest idle end first |
| coming | ready | ready |
| coming | refused, or it ends | refused for good; none |
| ready | idle too long, no memory left, too large | none |
| ready | it ends (stale, killed) | none |
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

import msgspec

from cotenant.agent.ipc.records import WarmOffer

# --- Who may share one -----------------------------------------------------------------------------


LATE: Final = frozenset(
    (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "NODE_RANK",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "CUDA_VISIBLE_DEVICES",
        "PWD",
        "OLDPWD",
        "SLURM_ARRAY_TASK_ID",
        "ROLE_NAME",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    )
)
"""Differ from rank to rank or job to job. An import that asks for one all the same is refused."""
LATE_PREFIXES: Final = (
    "MASTER_",
    "NCCL_",
    "GLOO_",
    "COTENANT_",
    "CUDA_MPS_",
    "PET_",
    "TORCHELASTIC_",
)


class ServerKind(msgspec.Struct, frozen=True, kw_only=True):
    """What a fork server is for."""

    interpreter: str
    options: tuple[str, ...]
    uid: int
    gid: int
    groups: tuple[int, ...]
    env: dict[str, str]
    """Without what is late."""

    @property
    def key(self) -> str:
        told = json.dumps(
            [
                self.interpreter,
                self.options,
                self.uid,
                self.gid,
                sorted(self.groups),
                sorted(self.env.items()),
            ]
        )
        return hashlib.sha256(told.encode()).hexdigest()


def early(env: Mapping[str, str]) -> dict[str, str]:
    """What a server gets of a rank's environment."""
    return {
        name: value for name, value in env.items() if name not in LATE and not name.startswith(LATE_PREFIXES)
    }


# --- Which there are -------------------------------------------------------------------------------


IDLE_S: Final = 600.0
READY_S: Final = 120.0
"""The agent ends a server that is not ready by then."""
EXPECTED_MIB: Final = 512.0
"""Of a server that is not ready yet."""
PRESSURE: Final = 0.1
"""Of the host's memory: with less available, the longest idle server goes at each look."""
SERVERS_MAX: Final = 8
YOUNG_S: Final = 60.0
"""A server used so lately is not ended to make room for another."""
REFUSED_MAX: Final = 256


class ServerStart(msgspec.Struct, frozen=True, kw_only=True):
    kind: ServerKind
    modules: tuple[str, ...]


class ServerEnd(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    why: str


class ColdRunTold(msgspec.Struct, frozen=True, kw_only=True):
    kind: ServerKind
    modules: tuple[str, ...]


class ServerReady(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    memory_mib: float


class ServerRefused(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    code: str
    detail: str = ""


class ServerEnded(msgspec.Struct, frozen=True, kw_only=True):
    key: str


class PoolTicked(msgspec.Struct, frozen=True, kw_only=True):
    available_mib: float
    sizes_mib: Mapping[str, float] = {}


PoolEvent = ColdRunTold | ServerReady | ServerRefused | ServerEnded | PoolTicked
PoolEffect = ServerStart | ServerEnd


class PooledServer(msgspec.Struct, kw_only=True):
    """A server that is there, or coming."""

    since_s: float
    used_s: float
    memory_mib: float = EXPECTED_MIB
    is_ready: bool = False
    starts: int = 0


class Pool:
    def __init__(self, *, memory_mib: float, share: float) -> None:
        """Starts with no servers. `memory_mib`: the host's; `share` of it is for servers."""
        self._host_mib, self._share = memory_mib, share
        self.servers: dict[str, PooledServer] = {}
        self._refused: dict[str, tuple[str, str]] = {}
        self._waiting: set[str] = set()
        """Those for which there was no room."""

    @property
    def allowed_mib(self) -> float:
        return self._host_mib * self._share

    @property
    def ready_count(self) -> int:
        """Servers that can fork now; one that still imports is not among them."""
        return sum(each.is_ready for each in self.servers.values())

    @property
    def used_mib(self) -> float:
        return sum(each.memory_mib for each in self.servers.values())

    def offer(self, key: str, now_s: float) -> tuple[bool, WarmOffer]:
        """Whether the attempt may ask the server of this key, and else why not."""
        server = self.servers.get(key)
        if server is not None and server.is_ready:
            server.used_s = now_s
            server.starts += 1
            return True, WarmOffer()
        if key in self._refused:
            code, detail = self._refused[key]
            return False, WarmOffer(why=code, detail=detail)
        if server is not None:
            return False, WarmOffer(why="coming")
        return False, WarmOffer(why="memory" if key in self._waiting else "first", learns=True)

    def handle(self, event: PoolEvent, now_s: float) -> list[PoolEffect]:
        match event:
            case ColdRunTold():
                return self._take_word(event, now_s)
            case ServerReady(key=key, memory_mib=memory_mib):
                if server := self.servers.get(key):
                    server.is_ready, server.memory_mib, server.used_s = True, memory_mib, now_s
                return self._fit(now_s)
            case ServerRefused(key=key, code=code, detail=detail):
                self.servers.pop(key, None)
                if len(self._refused) >= REFUSED_MAX:
                    del self._refused[next(iter(self._refused))]
                self._refused[key] = (code, detail)
            case ServerEnded(key=key):
                self.servers.pop(key, None)
            case PoolTicked():
                return self._tick(event, now_s)
        return []

    def _take_word(self, event: ColdRunTold, now_s: float) -> list[PoolEffect]:
        key = event.kind.key
        if key in self.servers or key in self._refused or not event.modules:
            return []
        if any(not each.is_ready for each in self.servers.values()):
            return []  # One at a time: importing takes a core for seconds. The next cold run tells again.
        ended: list[PoolEffect] = []
        while self.used_mib + EXPECTED_MIB > self.allowed_mib or len(self.servers) >= SERVERS_MAX:
            oldest = self._longest_idle(now_s - YOUNG_S)
            if oldest is None:
                if len(self._waiting) < REFUSED_MAX:
                    self._waiting.add(key)
                return ended
            ended.append(self._end(oldest, "another needs its room"))
        self._waiting.discard(key)
        self.servers[key] = PooledServer(since_s=now_s, used_s=now_s)
        return [*ended, ServerStart(kind=event.kind, modules=event.modules)]

    def _tick(self, event: PoolTicked, now_s: float) -> list[PoolEffect]:
        for key, size_mib in event.sizes_mib.items():
            if key in self.servers:
                self.servers[key].memory_mib = size_mib
        ended: list[PoolEffect] = []
        for key, server in list(self.servers.items()):
            if server.is_ready and now_s >= server.used_s + IDLE_S:
                ended.append(self._end(key, "idle"))
            elif not server.is_ready and now_s >= server.since_s + READY_S:
                ended.append(self._end(key, "it does not become ready"))
        if event.available_mib < PRESSURE * self._host_mib and (oldest := self._longest_idle(now_s)):
            ended.append(self._end(oldest, "the host is short of memory"))
        return [*ended, *self._fit(now_s)]

    def _fit(self, now_s: float) -> list[PoolEffect]:
        """Ends servers until the rest fit: they may have grown, or have been larger than expected."""
        ended: list[PoolEffect] = []
        while self.used_mib > self.allowed_mib and (oldest := self._longest_idle(now_s)):
            ended.append(self._end(oldest, "servers have more memory than they may"))
        return ended

    def _longest_idle(self, before_s: float) -> str | None:
        ready = {key: each.used_s for key, each in self.servers.items() if each.is_ready}
        oldest = min(ready, key=lambda key: (ready[key], key), default=None)
        return oldest if oldest is not None and ready[oldest] <= before_s else None

    def _end(self, key: str, why: str) -> ServerEnd:
        del self.servers[key]
        return ServerEnd(key=key, why=why)
