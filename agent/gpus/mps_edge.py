"""MPS at the agent's edge: daemons at the start, news of them to the state machine, their end.

Rule: daemons outlive the agent while jobs live, and go when it leaves a host without jobs. News of them
reaches the state machine as events like any other: a device that changed how it is shared, a fault that ended
what ran on it, an attempt that is not the client it should be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cotenant.agent.daemon.core import edge, remembered
from cotenant.agent.daemon.core.state import AgentState
from cotenant.agent.gpus import gpu_watch, mps_rules, mps_watch
from cotenant.agent.host.user_files import find_exposed
from cotenant.agent.ipc.files import BadRecord, read_record
from cotenant.agent.ipc.records import FOLDER_NAME, ORDER, RESULT, Order, job_socket
from cotenant.controller.domain import Device, DeviceId, sharing_in_words
from cotenant.controller.system import paths, sections
from cotenant.mps import detection, environment, process, servers
from cotenant.mps.daemon import sweep
from cotenant.profiler.driver.facts import GpuFacts

PERIOD_S: Final = 2.0
SERVE_S: Final = 15.0
"""How long a start waits for the daemon of its user."""
LEAVE_S: Final = 20.0
"""How long an agent that leaves waits for its daemons to end."""


class Mps(msgspec.Struct, frozen=True, kw_only=True):
    """The MPS setup that the agent starts with."""

    setup: mps_rules.Setup
    watch: mps_watch.MpsWatch
    devices: tuple[Device, ...]
    """With how each is shared."""
    serving: Mapping[str, tuple[str, ...]] = {}
    """As in `MpsWatchReport`."""
    said: tuple[str, ...] = ()


def prepare(
    settings: sections.MpsSettings,
    devices: tuple[Device, ...],
    gpus: Sequence[GpuFacts],
    *,
    state_dir: Path,
    attempts: Path,
    owner: str,
) -> Mps:
    """Decide about MPS on this host and look at its daemons once: start them, or go on with our own.

    Blocks for as long as starting them takes. `owner`: the name of the agent's state folder.

    Raises:
        PathError: the user's runtime folder belongs to another user, or root's is open to others.
    """
    if not any(device.kind == "cuda" for device in devices):
        return Mps(setup=mps_rules.Setup(), watch=mps_watch.MpsWatch(()), devices=devices)
    runtime = paths.mps_runtime_dir(settings)
    if (where := find_exposed(Path(environment.daemons_folder(runtime)))) is not None:
        raise paths.PathError(f"others than root can change {where}: set mps.runtime_dir to another folder")
    host = detection.look(runtime, allowed=settings.mode != "off")
    setup = mps_rules.plan(settings, host, devices, gpus, logs=state_dir, owner=owner, one_uid=host.uid != 0)
    watch = mps_watch.MpsWatch(setup.specs)
    left = tuple(_left_behind(attempts))
    swept: list[str] = []
    if not left:
        needed = {spec.pipe_directory for spec in setup.specs}
        swept = sweep(
            environment.daemons_folder(runtime), owner, needed, host.control_path or process.CONTROL
        )
    plain = _uuids(devices, [order for order in left if not _is_served(order, setup)])
    seen = watch.look(_use_of(devices, left, setup))
    return Mps(
        setup=setup,
        watch=watch,
        devices=mps_rules.mark_shared(devices, setup, seen.why_not, plain=plain),
        serving=seen.serving,
        said=(
            *swept,
            *((f"MPS: {detection.verdict(host).reason}", setup.reason) if setup.specs else ()),
            *seen.said,
        ),
    )


def usable_gpus(devices: Sequence[Device]) -> frozenset[str]:
    """GPUs that are ours, and neither lost nor in need of a reset, for which nothing may hold them open."""
    ours = (d for d in devices if d.kind == "cuda" and not d.note.startswith(gpu_watch.TAKEN))
    return frozenset(d.local for d in ours if d.state not in ("lost", "draining"))


class MpsEdge:
    """The agent's part in MPS from `run` to `leave`, in the agent's loop."""

    def __init__(
        self,
        mps: Mps,
        state: AgentState,
        *,
        folder: Callable[[str, int], Path],
        post: Callable[[edge.AnyAgentEvent], None],
        log: Callable[[str], None],
        period_s: float = PERIOD_S,
    ) -> None:
        self._setup, self._watch, self._state = mps.setup, mps.watch, state
        self._folder, self._post, self._log = folder, post, log
        self._period_s = period_s
        self._orders: dict[remembered.AttemptKey, Order] = {}
        self._looks: dict[remembered.AttemptKey, int] = {}
        """How often an attempt was looked for among the clients."""
        self._proven: set[remembered.AttemptKey] = set()
        """Attempts about which that is settled."""
        self._reach = mps_rules.FaultReach()
        self._serving = mps.serving
        self.wrong: Mapping[str, str] = {}
        """By UUID of each device that has a daemon: what is wrong with that, as it was last seen; empty if
        nothing is."""
        self._asked: list[asyncio.Future[None]] = []
        """Who waits for a round that begins from now on."""
        self._is_asked = asyncio.Event()

    async def leave(self) -> None:
        """Leaves the daemons because the agent ends. The wait is bounded: a daemon that does not end is left
        to the next agent."""
        idle = not self._state.running
        try:
            said = await asyncio.wait_for(self._watch.leave(quit_daemons=idle), LEAVE_S)
        except TimeoutError:
            said = f"its MPS daemons did not end within {LEAVE_S:.0f} s"
        if said:
            self._log(said)

    async def run(self) -> None:
        """Looks at the daemons until it is cancelled, before `leave`."""
        while True:
            asked, self._asked = self._asked, []
            self._is_asked.clear()
            try:
                await self.look(ask=bool(asked))
            finally:  # Whoever asked does not wait for a round that will never be over.
                for each in asked:
                    if not each.done():
                        each.set_result(None)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_asked.wait(), self._period_s)

    async def wait_for_look(self) -> None:
        """Returns when a round in which every daemon was asked after the call is over, and all that it saw
        was posted."""
        answer = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        self._is_asked.set()
        await answer

    async def look(self, *, ask: bool = False) -> None:
        """Makes one round: what runs goes out, what was seen comes back. `ask`: every daemon, also one that
        seems well."""
        facts = msgspec.structs.replace(self.facts(), ask=ask)
        seen = await self._watch.round(facts)
        self.wrong, self._serving = seen.why_not, seen.serving
        for line in seen.said:
            self._log(line)
        self._tell_faults(seen, facts)
        self._tell_devices(seen)
        for key, processes in seen.attachments.items():
            self._tell_attachment(key, processes)

    def serves(self, order: Order) -> bool:
        """Whether the daemon that its processes are told to use runs, as far as that is known; that of a user
        who had no job here yet is still to be started."""
        wanted = {client.pipe_directory for client in order.mps}
        return self._setup.spec_of_user(order.launch.uid) is None or wanted <= self._serving.keys()

    def number(self, order: Order) -> Order:
        """Returns the order as it can be started now, with the numbers of the daemon that was last seen."""
        self._orders[order.job_id, order.attempt] = order = mps_rules.number_devices(order, self._serving)
        return order

    async def serve(self, order: Order) -> None:
        """Returns when that daemon was seen to, or took too long."""
        self._orders[order.job_id, order.attempt] = order
        with suppress(TimeoutError):
            await asyncio.wait_for(self.look(), SERVE_S)

    # --- What runs ---------------------------------------------------------------------------------

    def facts(self) -> mps_watch.GpuUse:
        running = {attempt.key: attempt for attempt in self._state.running}
        self._orders = {key: order for key, order in self._orders.items() if key in running}
        self._looks = {key: looks for key, looks in self._looks.items() if key in running}
        self._proven &= running.keys()
        orders = {key: order for key in running if (order := self._order(key)) is not None}
        waiting = (
            mps_watch.client_of(order, str(job_socket(self._folder(*key))))
            for key, order in orders.items()
            if running[key].first_step and key not in self._proven
        )
        use = _use_of(self._state.found_devices, tuple(orders.values()), self._setup)
        return msgspec.structs.replace(use, unproven=tuple(filter(None, waiting)))

    def _plain(self) -> frozenset[str]:
        """Devices with jobs on them that were not told to be clients of the daemons that serve them now."""
        used = {
            device
            for attempt in self._state.running
            if (order := self._order(attempt.key)) is None or not _is_served(order, self._setup)
            for device in attempt.devices
        }
        return _select_devices(self._state.found_devices, used)

    def _order(self, key: remembered.AttemptKey) -> Order | None:
        """Returns the order of an attempt. None: the order is not written yet, or cannot be read."""
        if key not in self._orders:
            with suppress(BadRecord, OSError):
                order = read_record(self._folder(*key) / ORDER, Order)
                if order is not None:
                    self._orders[key] = order
        return self._orders.get(key)

    # --- What was seen -----------------------------------------------------------------------------

    def _tell_faults(self, seen: mps_watch.MpsWatchReport, facts: mps_watch.GpuUse) -> None:
        for pipe, daemon in seen.daemons.items():
            gone = tuple(sorted(frozenset().union(*facts.clients.get(pipe, ()))))
            for why in daemon.losses:
                self._post(edge.GpuFault(uuids=gone, why=why, one_server=True))
        in_fault = [pipe for pipe, daemon in seen.daemons.items() if daemon.in_fault]
        faulted = self._state.tenants.list_faulted()
        known = _select_devices(
            self._state.found_devices, {device for each in faulted for device in each.devices}
        )
        for group in self._reach.look(in_fault, facts.clients, known, decide=facts.ask):
            by_xid = tuple(
                each.key
                for each in faulted
                if each.fault is not None
                and each.fault.is_by_xid
                and not group.isdisjoint(_select_devices(self._state.found_devices, {*each.devices}))
            )  # They already know what they did, or who did it to them.
            uuids = tuple(sorted(group))
            self._post(
                edge.GpuFault(
                    uuids=uuids, why=servers.IN_FAULT, culprits=by_xid, spared=by_xid, one_server=True
                )
            )

    def _tell_devices(self, seen: mps_watch.MpsWatchReport) -> None:
        before = self._state.found_devices
        after = mps_rules.mark_shared(before, self._setup, seen.why_not, plain=self._plain())
        if after == before:
            return
        for old, new in zip(before, after, strict=True):
            if (old.sharing, old.sharing_note) != (new.sharing, new.sharing_note):
                self._log(f"{new.device_id}: {sharing_in_words(new)}")
        self._post(edge.DevicesChanged(devices=after))

    def _tell_attachment(self, key: remembered.AttemptKey, processes: int | None) -> None:
        self._looks[key] = self._looks.get(key, 0) + 1
        said = mps_watch.verdict(self._looks[key], processes)
        if said is None:
            return
        self._proven.add(key)
        if said:
            self._post(edge.TroubleNoticed(job_id=key[0], attempt=key[1], what=said))
        if processes is not None and processes > 1:
            self._post(edge.ClientsCounted(job_id=key[0], attempt=key[1], processes=processes))


def clients_in(devices: Sequence[Device], orders: Sequence[Order]) -> dict[str, tuple[frozenset[str], ...]]:
    """Returns, by pipe directory of a daemon, the devices of each of its clients."""
    found: dict[str, tuple[frozenset[str], ...]] = {}
    for order in orders:
        for client in order.mps:
            where = frozenset((client.device_uuid,)) if client.device_uuid else _uuids(devices, [order])
            found[client.pipe_directory] = (*found.get(client.pipe_directory, ()), where)
    return found


def _use_of(devices: Sequence[Device], orders: Sequence[Order], setup: mps_rules.Setup) -> mps_watch.GpuUse:
    """What these orders use, with the daemons of the users who have clients here in a fixed order."""
    uids = sorted({order.launch.uid for order in orders if order.mps})
    of_users = tuple(filter(None, map(setup.spec_of_user, uids)))
    return mps_watch.GpuUse(
        usable=usable_gpus(devices), clients=clients_in(devices, orders), of_users=of_users
    )


def _is_served(order: Order, setup: mps_rules.Setup) -> bool:
    """Whether its processes are clients of daemons as they are here now: under another `mps.mode` they may
    have been started as clients of others."""
    user = setup.spec_of_user(order.launch.uid)
    here = {str(spec.pipe_directory) for spec in ((user,) if user is not None else setup.specs)}
    return bool(order.mps) and {client.pipe_directory for client in order.mps} <= here


def _select_devices(devices: Sequence[Device], wanted: set[DeviceId]) -> frozenset[str]:
    return frozenset(device.local for device in devices if device.device_id in wanted)


def _uuids(devices: Sequence[Device], orders: Sequence[Order]) -> frozenset[str]:
    wanted = {
        device
        for order in orders
        for member in order.gang
        if member.host_id == order.host_id
        for device in member.devices
    }
    return _select_devices(devices, wanted)


def _left_behind(attempts: Path) -> Iterator[Order]:
    """Orders of attempts that have no result: they may run."""
    if not attempts.is_dir():
        return
    for folder in attempts.iterdir():
        if FOLDER_NAME.fullmatch(folder.name) and not (folder / RESULT).exists():
            with suppress(BadRecord, OSError):
                order = read_record(folder / ORDER, Order)
                if order is not None:
                    yield order
