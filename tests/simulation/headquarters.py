"""The controller as a process: its real loop, core and agents' link; it can be killed at any moment.

What is ours here is what `controller/server.py` is to the loop: a clock, a network, a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from cotenant.controller.domain import AnyCommand, ComputeRequest, StartAttempt
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig, Ledger
from cotenant.controller.executors.agents import AgentExecutor
from cotenant.controller.loop import ControllerLoop
from cotenant.controller.policies import registry
from cotenant.controller.store import Clock, Core, Decided, Effect, Fatal, Journal, StorageError
from cotenant.controller.system.keys import Identity
from cotenant.controller.system.secrets import Secrets
from cotenant.controller.wire import agents as wire
from cotenant.controller.wire import clients, decode
from tests.simulation.clockwork import Alarm, Clockwork
from tests.simulation.network import Network
from tests.simulation.paper import Pages, PaperJournal

ADMIN = Identity(name="root", role="admin", uid=0, gid=0)
TICK_S = 1.0
SNAPSHOT_EVERY = 60


class Headquarters:
    def __init__(
        self,
        clock: Clockwork,
        network: Network,
        config: EngineConfig,
        *,
        lease_s: float,
        silent_after_s: float,
        make_loop: type[ControllerLoop] = ControllerLoop,
    ) -> None:
        self._make_loop = make_loop
        self.pages = Pages()
        self.starts = 0
        self.fatal: Fatal | None = None
        self.watch: Callable[[ev.AnyEvent, Sequence[AnyCommand]], None] | None = None
        self._clock = clock
        self._network = network
        self._config = config
        self._lease_s = lease_s
        self._silent_after_s = silent_after_s
        self._journal: PaperJournal | None = None
        self._core: Core | None = None
        self._link: AgentExecutor | None = None
        self._loop: ControllerLoop | None = None
        self._has_changed = False
        self._checked = 0
        self._decided_in: dict[tuple[object, ...], int] = {}
        """The entry of the journal that a start is in, or will be once it is written."""
        self._alarm = Alarm(clock, self._ring)

    # --- Living and dying --------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self._core is not None

    def start(self) -> None:
        if self._core is not None:
            return
        self.starts += 1
        self._has_changed, self._checked = False, 0
        began_s = self._clock.now_s
        self._journal = PaperJournal(self._clock, self.pages, self._durable, self._commit_failed)
        self._core = core = Core(
            cast(Journal, self._journal),
            registry.make,
            self._config,
            package="simulated",
            wall_s=began_s,
            snapshot_every=SNAPSHOT_EVERY,
            clock=lambda start_s: Clock(
                start_s, monotonic=lambda: self._clock.now_s, wall=lambda: self._clock.now_s
            ),
            token=lambda: f"{self._clock.chance.getrandbits(32):08x}",
        )
        self._link = AgentExecutor(
            core,
            self.send,
            Secrets(Path("/nonexistent")),
            lease_s=self._lease_s,
            silent_after_s=self._silent_after_s,
        )
        self._loop = self._make_loop(core, self._link, NoClients(), self)
        self._network.controller = self._receive
        self._clock.say(f"controller starts ({core.recovered_entries} entries)")
        self._clock.after(TICK_S, self._tick, self.starts)
        self.loop.set_alarm()

    def crash(self) -> None:
        if self._core is None:
            return
        assert self._journal is not None
        self._clock.say("controller is killed")
        self._journal.is_dead = True
        self._journal = self._core = self._link = self._loop = None
        self._network.controller = None
        self._alarm.clear()

    @property
    def engine(self) -> Engine:
        assert self._core is not None
        return self._core.state.engine

    @property
    def core(self) -> Core:
        assert self._core is not None
        return self._core

    @property
    def link(self) -> AgentExecutor:
        assert self._link is not None
        return self._link

    @property
    def loop(self) -> ControllerLoop:
        assert self._loop is not None
        return self._loop

    def fill_disk(self, full: bool) -> None:
        if self._journal is not None:
            self._clock.say(f"the journal's disk is {'full' if full else 'free again'}")
            self._journal.is_full = full

    # --- What happens ------------------------------------------------------------------------------

    def happen(self, event: ev.AnyEvent, then: Callable[[], None] | None = None) -> bool:
        """As a user's request does; `then` runs when it is durable."""
        if self._core is None:
            return False
        core, done = self._core, []

        def work() -> None:
            core.happen(event)
            if then is not None:
                core.run_after_commit(then)
            done.append(True)

        self.loop.guard(work)
        self._check()
        return bool(done)

    def _receive(self, address: bytes, frame: bytes) -> None:
        self.loop.receive(address, ADMIN, False, frame)
        self._check()

    def _tick(self, life: int) -> None:
        if life != self.starts or self._core is None:
            return
        self.loop.write_again()
        self.loop.tick()
        self._check()
        self._clock.after(TICK_S, self._tick, life)

    def _ring(self) -> None:
        if self._core is not None:
            self.loop.ring()
            self._check()

    def _commit_failed(self, error: StorageError) -> None:
        if self._core is not None:
            self.loop.commit_failed(error)

    def _durable(self, effects: Sequence[Effect]) -> None:
        self.loop.durable(effects)

    def _check(self) -> None:
        """The ledger holds what it promises after whatever has changed it; and nothing was dropped."""
        core = self._core
        if core is None:
            return
        assert self.fatal is None, self.fatal
        broken = (
            core.counters["internal_errors"] + core.counters["quarantined"] + core.counters["bad_messages"]
        )
        assert not broken, dict(core.counters)
        if self._has_changed or core.rebuilds != self._checked:
            self._has_changed, self._checked = False, core.rebuilds
            ledger = core.state.engine.ledger
            assert isinstance(ledger, Ledger)
            ledger.check()

    # --- What the loop asks for (`ControllerEdges`) --------------------------------------------------------

    def send(self, address: bytes, frame: bytes) -> bool:
        self._check_durable(decode(frame, wire.ToAgent))
        if not self._network.is_open(address):
            return False
        self._network.to_agent(address, frame)
        return True

    def wake_at(self, at_s: float | None) -> None:
        offset_s = self._clock.now_s - self.core.clock.now_s()
        self._alarm.set(None if at_s is None else at_s + offset_s + 1e-6)

    def pause_reading(self, paused: bool) -> None:
        """The network of a simulation waits for nobody."""

    def start_computing(self, request: ComputeRequest) -> None:
        """Nothing is computed in a simulation: the policies of its plans ask for nothing."""

    def _check_durable(self, message: wire.ToAgent) -> None:
        """Nobody is told to start what a crash could make the controller forget."""
        if isinstance(message, wire.CommandDelivery) and isinstance(message.command, StartAttempt):
            seq = self._decided_in.get(_key(message.command))
            assert seq is not None and seq <= len(self.pages.entries), (
                f"told to start before that is durable: {message.command.job_id}-{message.command.attempt}"
            )

    def take_note(self, decided: Sequence[Decided]) -> None:
        self._has_changed |= bool(decided)
        for each in decided:
            starts = (command for command in each.commands if isinstance(command, StartAttempt))
            self._decided_in.update({_key(command): self.core.journal.last_seq for command in starts})
            if self.watch is not None:
                self.watch(each.event, each.commands)

    def end(self, fatal: Fatal) -> None:
        self.fatal = fatal


def _key(command: StartAttempt) -> tuple[object, ...]:
    return command.command_id, command.job_id, command.attempt, command.epoch, command.host_id


class NoClients:
    """Nobody asks: what users do is let happen."""

    def affords(self, who: Identity, size: int) -> bool:
        return True

    def ask(self, address: bytes, who: Identity, request: clients.Request) -> None:
        raise AssertionError("no client is connected")

    def settle(self, decided: Sequence[Decided] = ()) -> None:
        pass

    def rebuilt(self) -> None:
        pass

    def tick(self) -> None:
        pass
