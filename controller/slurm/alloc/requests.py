"""Hosts that are asked of Slurm: queues added, paused, resumed and removed, and what became of them.

Rule: only admins may: what is asked for runs under the controller's own account, and counts against it.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from typing import Final

import msgspec

from cotenant.controller.api import Denied, Now, must_be_admin
from cotenant.controller.domain import Allocation, AllocationQueue, HostId
from cotenant.controller.domain import events as ev
from cotenant.controller.slurm.alloc.deciding import COMING
from cotenant.controller.store import Core
from cotenant.controller.system.endpoint import endpoints_of
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import clients as wire

NOT_LOOKED: Final = "the controller has not asked Slurm yet"
LOG_LINES_MAX: Final = 500


class AllocationRequests:
    def __init__(self, core: Core, endpoint: str, why: Mapping[str, str]) -> None:
        """Answers requests about the queues of `core`. `endpoint`: the controller's own. `why`: what was
        decided last, by queue."""
        self._core, self._endpoint, self._why = core, endpoint, why

    def add(self, request_id: int, request: wire.AddAllocations, who: Identity) -> wire.Done:
        must_be_admin(who, "ask Slurm for hosts")
        self._must_be_reachable()
        terms = request.terms
        if terms.name in self._core.state.allocations.queues:
            hint = f"`cotenant alloc remove {terms.name}` first, or give this one another --name"
            raise Denied("refused", f"there is a queue {terms.name} already", hint)
        taken = [host for host in self._core.state.engine.hosts.values() if not host.lost]
        queue = AllocationQueue(terms=terms, python=sys.executable, added_by=who.name)
        names = {queue.host(slot) for slot in range(1, queue.terms.max_hosts + 1)}
        if both := sorted(host.host_id for host in taken if host.host_id in names):
            raise Denied("refused", f"a host {both[0]} is here already", "give the queue another --name")
        self._happen(queue, who, f"added by {who.name}")
        line = f"{queue.name}: up to {queue.terms.max_hosts} hosts are asked of Slurm as jobs need them"
        return wire.Done(
            request_id=request_id, lines=(line, "`cotenant alloc list` says what is asked and why")
        )

    def change(self, request_id: int, request: wire.ChangeAllocations, who: Identity) -> wire.Done:
        must_be_admin(who, f"{request.verb} what is asked of Slurm")
        queue = self._find_queue(request.name)
        if queue.is_removed:
            raise Denied("refused", f"queue {queue.name} is being removed")
        changes: dict[str, object]
        if request.verb == "pause":
            changes, line = {"paused": f"by {who.name}"}, "nothing more is asked for; what is there stays"
        elif request.verb == "resume":
            changes = {"paused": "", "is_checked": False, "failures": 0, "failure": "", "retry_at_s": 0.0}
            line = "hosts are asked for again as jobs need them"
        else:
            changes = {"is_removed": True}
            line = "requests are taken back, jobs save and leave its hosts, and then it is gone"
        self._happen(msgspec.structs.replace(queue, **changes), who, f"{request.verb}d by {who.name}")
        return wire.Done(request_id=request_id, lines=(f"{queue.name}: {line}",))

    def list_queues(
        self, request_id: int, request: wire.ListAllocations, who: Identity
    ) -> wire.AllocationQueues:
        now = Now(self._core.clock.now_s(), self._core.clock.wall())
        queues = sorted(self._core.state.allocations.queues.values(), key=lambda each: each.name)
        return wire.AllocationQueues(
            request_id=request_id, queues=tuple(self._view(each, now) for each in queues), now=now.at
        )

    def log(self, request_id: int, request: wire.GetAllocationLog, who: Identity) -> wire.AllocationLog:
        now = Now(self._core.clock.now_s(), self._core.clock.wall())
        notes = [n for n in self._core.state.allocations.notes if request.name in ("", n.queue)]
        if request.name and not notes:
            self._find_queue(request.name)
        shown = notes[-max(1, min(request.limit, LOG_LINES_MAX)) :]
        lines = (wire.AllocationLine(at=now.utc(n.at_s), queue=n.queue, text=n.text) for n in shown)
        return wire.AllocationLog(request_id=request_id, lines=tuple(lines), now=now.at)

    def _must_be_reachable(self) -> None:
        if not endpoint_for_others(self._endpoint):
            raise Denied(
                "refused",
                f"hosts of a cluster cannot reach {self._endpoint}",
                "`cotenant init`, then `cotenant controller --endpoint tcp://0.0.0.0:7070`",
            )

    def _find_queue(self, name: str) -> AllocationQueue:
        queue = self._core.state.allocations.queues.get(name)
        if queue is None:
            raise Denied("not-found", f"there is no queue {name}", "`cotenant alloc list` lists them")
        return queue

    def _happen(self, queue: AllocationQueue, who: Identity, why: str) -> None:
        self._core.happen(ev.AllocationQueueChanged(name=queue.name, queue=queue, by=who.name, why=why))
        self._core.audit(who, "alloc", queue.name, why)

    def _view(self, queue: AllocationQueue, now: Now) -> wire.AllocationQueueView:
        open_ = self._core.state.allocations.allocations_of(queue.name)
        why = self._why.get(queue.name, NOT_LOOKED)
        return wire.AllocationQueueView(
            name=queue.name,
            is_paused=bool(queue.paused),
            is_removed=queue.is_removed,
            why=why,
            decided=why != NOT_LOOKED,
            working=sum(each.state == "working" for each in open_),
            coming=sum(each.state in COMING for each in open_),
            terms=queue.terms,
            failures=queue.failures,
            added_by=queue.added_by,
            allocations=tuple(self._allocation(each, now) for each in open_),
        )

    def _allocation(self, each: Allocation, now: Now) -> wire.AllocationView:
        engine = self._core.state.engine
        host = engine.hosts.get(each.host_id) if each.state in ("working", "ending") else None
        return wire.AllocationView(
            host=each.host_id,
            state=each.state,
            slurm_id=each.slurm_id or None,
            node=each.node or None,
            why=each.why,
            asked_at=now.utc(each.asked_s),
            leaves_at=now.utc_if(host.clears_at_s if host is not None else None),
            jobs=self._jobs_on(each.host_id) if host is not None else (),
        )

    def _jobs_on(self, host_id: HostId) -> tuple[str, ...]:
        engine = self._core.state.engine
        devices = engine.hosts[host_id].report.devices
        return tuple(dict.fromkeys(job for each in devices for job in engine.tenants(each.device_id)))


def endpoint_for_others(endpoint: str) -> str:
    """The endpoint as agents on other hosts reach it; empty: they cannot. Several are such already."""
    if len(endpoints_of(endpoint)) > 1:
        return endpoint
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme != "tcp":
        return ""
    return f"tcp://{socket.getfqdn() if host in ('0.0.0.0', '*', '[::]') else host}:{port}"
