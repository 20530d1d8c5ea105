"""The controller as a process: real core, real agents' link; it can be killed at any moment.

What is ours here is only what `controller/server.py` does around them: decode, guard, seal, tick, ring.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from cotenant.controller.domain import AnyCommand
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig, Ledger
from cotenant.controller.executors.agents import AgentExecutor
from cotenant.controller.policies import registry
from cotenant.controller.store import Clock, Core, Effect, Journal, Stuck, let_follow
from cotenant.controller.system.keys import Identity
from cotenant.controller.system.secrets import Secrets
from cotenant.controller.wire import agents as wire
from cotenant.controller.wire import decode
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
    ) -> None:
        self.pages = Pages()
        self.starts = 0
        self._rebuilds = 0
        self.watch: Callable[[ev.AnyEvent, Sequence[AnyCommand]], None] | None = None
        self._clock = clock
        self._network = network
        self._config = config
        self._lease_s = lease_s
        self._silent_after_s = silent_after_s
        self._journal: PaperJournal | None = None
        self._core: Core | None = None
        self._link: AgentExecutor | None = None
        self._alarm = Alarm(clock, self._ring)

    # --- Living and dying --------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self._core is not None

    def start(self) -> None:
        if self._core is not None:
            return
        self.starts += 1
        self._rebuilds = 0
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
            self._send,
            Secrets(Path("/nonexistent")),
            lease_s=self._lease_s,
            silent_after_s=self._silent_after_s,
        )
        self._network.controller = self._receive
        self._clock.say(f"controller starts ({core.recovered_entries} entries)")
        self._clock.after(TICK_S, self._tick, self.starts)
        self._set_alarm()

    def crash(self) -> None:
        if self._core is None:
            return
        assert self._journal is not None
        self._clock.say("controller is killed")
        self._journal.is_dead = True
        self._journal = self._core = self._link = None
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

    def fill_disk(self, full: bool) -> None:
        if self._journal is not None:
            self._clock.say(f"the journal's disk is {'full' if full else 'free again'}")
            self._journal.is_full = full

    # --- The loop ----------------------------------------------------------------------------------

    def happen(self, event: ev.AnyEvent, then: Callable[[], None] | None = None) -> bool:
        """As a user's request does; `then` runs when it is durable."""
        if self._core is None:
            return False
        core, done = self._core, []

        def work() -> None:
            core.happen(event)
            if then is not None:
                core.after_commit(then)
            done.append(True)

        self._guarded(work)
        return bool(done)

    def _guarded(self, work: Callable[[], None]) -> None:
        core = self._core
        if core is None:
            return
        with suppress(Stuck):
            work()
        decided, rebuilt = core.decided(), core.rebuilds != self._rebuilds
        for each in decided:
            if self.watch is not None:
                self.watch(each.event, each.commands)
        self._believe(core)
        let_follow(core.seal(), self.link.carry_out)
        if decided or rebuilt:  # Whatever else was heard changes no ledger.
            ledger = core.state.engine.view()
            assert isinstance(ledger, Ledger)
            ledger.check()
        self._set_alarm()

    def _receive(self, address: bytes, frame: bytes) -> None:
        message: wire.FromAgent = decode(frame, wire.FromAgent)
        link = self.link
        self._guarded(lambda: void(link.heard(address, ADMIN, message)))

    def _send(self, address: bytes, frame: bytes) -> bool:
        if not self._network.is_open(address):
            return False
        self._network.to_agent(address, frame)
        return True

    def _tick(self, life: int) -> None:
        if life != self.starts or self._core is None:
            return
        if self._core.stuck:
            self._core.try_again()
        self._guarded(self.link.tick)
        self._clock.after(TICK_S, self._tick, life)

    def _set_alarm(self) -> None:
        if self._core is not None and not self._core.stuck:
            alarm_s = self.engine.next_alarm_s
            offset_s = self._clock.now_s - self._core.clock.now_s()
            self._alarm.set(None if alarm_s is None else alarm_s + offset_s + 1e-6)

    def _ring(self) -> None:
        if self._core is not None and self._core.ring():
            self.happen(ev.AlarmRang())
        self._set_alarm()

    def _commit_failed(self, error: sqlite3.Error) -> None:
        if self._core is not None:
            instead = self._core.commit_failed(error)
            self._believe(self._core)
            let_follow(instead, self.link.carry_out)

    def _durable(self, effects: Sequence[Effect]) -> None:
        let_follow(effects, self.link.carry_out)

    def _believe(self, core: Core) -> None:
        if core.rebuilds != self._rebuilds:
            self._rebuilds = core.rebuilds
            self.link.rebuilt()


def void(_: object) -> None:
    """For lambdas."""
