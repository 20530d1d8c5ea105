"""What must hold of reservations whatever arrived before, under every policy.

at its start    a reserved device is free, its owner's, or being left by somebody who was asked in time
while it is on  no job of anybody else holds it that could not be asked to leave; and the owner's next job
                starts at once
afterwards      the same history gives the same state, in whatever way that was reached
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import LEAVING, Booking, Decision, Job, Phase, ReservationSettings, bookings
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, Snapshot
from cotenant.controller.planning import hard_s
from cotenant.controller.policies import registry
from cotenant.controller.wire import pack, unpack
from tests.controller.building import engine as made
from tests.controller.building import report, spec
from tests.controller.driver import Driver, Truth
from tests.controller.histories import HOSTS, WAITS_S, event_of

POLICIES = tuple(registry.ours_available())
LEND_S = 60.0
PAUSE_S = 3.0
"""As `Truth` has it, and as jobs say."""


class Arrival(NamedTuple):
    """A job, or (`length_s` above 0) a reservation, that arrives."""

    at_s: int
    gpus: int
    user: str
    train_s: int
    limit_s: int
    is_resumable: bool
    job_class: str
    ahead_s: int
    length_s: int


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        at_s=st.integers(0, 600),
        gpus=st.integers(1, 3),
        user=st.sampled_from(("ann", "bob", "bob", "eve")),
        train_s=st.integers(5, 400),
        limit_s=st.sampled_from((0, 0, 50, 200)),
        is_resumable=st.booleans(),
        job_class=st.sampled_from(("spot", "spot", "spot", "hp")),
        ahead_s=st.integers(0, 400),
        length_s=st.sampled_from((0, 0, 0, 100, 300)),
    ),
    min_size=3,
    max_size=14,
)


class Lab(Driver):
    """A small cluster in which people also reserve devices."""

    def __init__(self, policy: str) -> None:
        settings_ = ReservationSettings(lend_after_s=LEND_S)
        hosts = (report("a", 2, memory_mib=1000), report("b", 2, memory_mib=1000))
        self.started: set[str] = set()
        super().__init__(made(policy, reservations=settings_), hosts)

    def tell(self, event: ev.AnyEvent) -> None:
        super().tell(event)
        self._check()

    def reserve(self, booking_id: str, each: Arrival) -> None:
        def do() -> None:
            from_s = self.now_s + each.ahead_s
            booking = Booking(
                booking_id=booking_id,
                user=each.user,
                gpus=each.gpus,
                from_s=from_s,
                until_s=from_s + each.length_s,
                every_s=bookings.DAY_S if each.is_resumable else 0.0,
            )
            if isinstance(self.engine.bookings.offer(booking, self.now_s), tuple):
                self.tell(ev.BookingMade(booking=booking, by=each.user))

        self._at(float(each.at_s), do)

    def _check(self) -> None:
        engine, now_s = self.engine, self.now_s
        for each in engine.ledger.bookings.open.values():
            if now_s < each.from_s:
                continue
            assert each.is_closed and len(each.devices) == each.booking.gpus, (now_s, each)
            has_begun = each.booking_id in self.started
            self.started.add(each.booking_id)
            for device_id in each.devices:
                others = [job for job in self._on(device_id) if job.spec.user != each.user]
                for job in others:
                    assert job.phase in LEAVING or not hard_s(job, now_s), (each, job)
                    if device_id in each.lent:
                        continue
                    assert job.phase in LEAVING, f"{job.job_id} stays on {device_id} of {each}"
                    waited_s = now_s - job.phase_since_s
                    assert has_begun or each.booking.from_s - now_s < PAUSE_S + 1.0 or waited_s > 0.0
            self._check_owner(each)

    def _on(self, device_id: Any) -> list[Job]:
        return [self.engine.jobs[job_id] for job_id in self.engine.tenants(device_id)]

    def _check_owner(self, each: Any) -> None:
        """No device of theirs is free while a job of theirs waits that it would be enough for."""
        claimed = {
            device_id
            for job in self.engine.jobs.values()
            if job.phase is Phase.RESERVED and job.placement is not None
            for device_id in job.placement.devices
        }
        idle = [
            device_id
            for device_id in each.devices
            if device_id not in claimed and all(job.spec.user != each.user for job in self._on(device_id))
        ]
        next_s = min(
            (
                other.from_s
                for other in self.engine.ledger.bookings.open.values()
                if other is not each and not set(other.devices).isdisjoint(idle)
            ),
            default=inf,
        )
        waiting = [
            job.job_id
            for job in self.engine.jobs.values()
            if job.phase is Phase.QUEUED
            and job.spec.user == each.user
            and job.spec.gpus == 1
            and not job.progress.checkpoints  # Else it may have to go where it can read them.
            and self.now_s + 10.0 + hard_s(job, self.now_s) < next_s
        ]
        assert not (idle and waiting), f"{waiting} wait, and {idle} of {each} are idle"


@given(policy=st.sampled_from(POLICIES), arrivals=ARRIVALS)
@settings(max_examples=int(settings().max_examples * 1.5))
def test_reserved_devices_are_there_whatever_arrived_before(policy: str, arrivals: list[Arrival]) -> None:
    lab = Lab(policy)
    for number, each in enumerate(arrivals, start=1):
        if each.length_s:
            lab.reserve(f"r{number}", each)
            continue
        asked = spec(
            number,
            gpus=min(each.gpus, 2),
            user=each.user,
            expected_s=float(each.train_s),
            time_limit_s=float(each.limit_s) if each.limit_s else None,
            resumable=each.is_resumable,
            job_class=each.job_class,
            load_s=2.0,
            pause_s=PAUSE_S,
        )
        truth = Truth(train_s=float(each.train_s), resumable=each.is_resumable)
        lab.submit(asked, truth, float(each.at_s))
    lab.run(until_s=2000.0)


# --- Any history ---------------------------------------------------------------------------------------

Step = tuple[int, int, int, int]
STEPS = st.lists(
    st.tuples(st.integers(0, 119), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
    min_size=5,
    max_size=80,
)


def event_with_bookings(engine: Engine, step: Step) -> ev.AnyEvent:
    """As in other histories; a sixth of the steps make reservations or cancel them."""
    kind, x, y, z = step
    if kind < 100:
        return event_of(engine, step, POLICIES)
    if kind >= 116:
        return ev.BookingCancelled(booking_id=f"r{x % 5}", by="ann")
    from_s = engine.now_s + WAITS_S[y % len(WAITS_S)]
    booking = Booking(
        booking_id=f"r{x % 5}",
        user=("ann", "bob")[x % 2],
        gpus=(1, 2, 3)[y % 3],
        from_s=from_s,
        until_s=from_s + (30.0, 300.0, 5000.0)[z % 3],
        every_s=bookings.DAY_S if z % 5 == 0 else 0.0,
        gpu_type="cpu" if x % 7 == 0 else "",
    )
    return ev.BookingMade(booking=booking, by=booking.user)


def fresh(name: str) -> Engine:
    return made(name, keep_ended=6, reservations=ReservationSettings(lend_after_s=LEND_S))


def state_of(engine: Engine) -> bytes:
    """All that the engine itself keeps; a policy may list what it counts in another order."""
    return msgspec.msgpack.encode(msgspec.structs.replace(engine.snapshot(), policy_state=b""))


def play(name: str, steps: Sequence[Step]) -> list[tuple[ev.AnyEvent, float]]:
    engine = fresh(name)
    told = list[tuple[ev.AnyEvent, float]]()
    for step in (*(ev.HostJoined(report=host) for host in HOSTS), *steps):
        event = event_with_bookings(engine, step) if isinstance(step, tuple) else step
        event = unpack(pack(event), ev.AnyEvent)
        now_s = engine.now_s + (float(WAITS_S[step[3] % len(WAITS_S)]) if isinstance(step, tuple) else 0.0)
        engine.handle(event, now_s)
        told.append((event, now_s))
    return told


@given(name=st.sampled_from(POLICIES), steps=STEPS, cut=st.integers(0, 80))
@settings(max_examples=int(settings().max_examples))
def test_a_history_with_reservations_gives_the_same_state_however_it_was_reached(
    name: str, steps: list[Step], cut: int
) -> None:
    told = play(name, steps)
    first, decided, commands = fresh(name), list[bytes](), list[bytes]()
    for event, now_s in told:
        commands.append(pack(first.handle(event, now_s)))
        decided.append(pack(first.decision))
    folded = fresh(name)
    for (event, now_s), decision, wanted in zip(told, decided, commands, strict=True):
        assert pack(folded.fold(event, unpack(decision, Decision), now_s)) == wanted
    assert state_of(folded) == state_of(first)

    before, restored = fresh(name), fresh(name)
    for event, now_s in told[:cut]:
        before.handle(event, now_s)
    restored.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(before.snapshot()), type=Snapshot))
    assert [pack(restored.handle(event, now_s)) for event, now_s in told[cut:]] == commands[cut:]
    assert state_of(restored) == state_of(first)
