"""Gangs over several hosts: the first host's supervisor agrees with all ranks, by a relay that may lose,
repeat and reorder what it carries, and whatever is lost, all hosts stop at one step."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.ipc.channel import GangIn, GangOut, SaveNow, StopNow
from cotenant.agent.ipc.records import Order
from cotenant.agent.supervisor.core.coordination import (
    GangSays,
    MemberConfirm,
    MemberNow,
    RankNow,
    parse_payload,
    payload,
)
from cotenant.agent.supervisor.core.edge import (
    AnyHappening,
    AnySupervisorEffect,
    EndRanks,
    RankMessageCame,
    Started,
    SupervisorTicked,
    TellRank,
)
from cotenant.agent.supervisor.core.rank_messages import (
    FirstStepReached,
    RankHello,
    Saving,
    StepConfirmed,
    StepDone,
    Stopped,
    ToRank,
)
from cotenant.agent.supervisor.core.supervision import Supervision
from cotenant.controller.domain import HostId, Launch
from tests.building.orders import order_of

TICK_S = 0.1


def gang_order(hosts: int, host_no: int, ranks_each: int) -> Order:
    return order_of(
        ranks_each, hosts=hosts, host_no=host_no, launch=Launch(argv=("python",)), start_deadline_s=1e9
    )


class World:
    """Hosts, ranks in lock step (one step per tick), and a relay between the hosts."""

    def __init__(
        self, *, hosts: int, ranks_each: int, loss: float = 0.0, seed: int = 0, cut: bool = False
    ) -> None:
        self.random = random.Random(seed)
        self.loss = loss
        self.cut = cut
        self.now_s = 0.0
        self.each = ranks_each
        self.hosts = {
            HostId(f"h{no}"): Supervision(gang_order(hosts, no, ranks_each), 0.0) for no in range(hosts)
        }
        self.completed = dict.fromkeys(range(hosts * ranks_each), 0)
        self.promises: dict[int, dict[tuple[str, int], list[Any]]] = {rank: {} for rank in self.completed}
        self.stopped: dict[int, int] = {}
        self.saved: list[tuple[int, int]] = []
        self.mail: list[tuple[HostId, GangIn]] = []
        self.signalled: set[HostId] = set()
        self.waits = 0
        for host in self.hosts:
            self.tell(host, Started())
        for rank in self.completed:
            hello = RankHello(
                v=1, rank=rank, world_size=len(self.completed), resumable=True, accumulates=True, step=0
            )
            self.tell(self.host_of(rank), RankMessageCame(word=hello))

    def host_of(self, rank: int) -> HostId:
        return HostId(f"h{rank // self.each}")

    def tell(self, host: HostId, event: AnyHappening) -> None:
        self.carry_out(host, self.hosts[host].handle(event, self.now_s))

    def carry_out(self, host: HostId, effects: list[AnySupervisorEffect]) -> None:
        for effect in effects:
            match effect:
                case TellRank(rank=rank, data=data):
                    self.to_rank(rank, msgspec.json.decode(data))
                case GangOut(to_host=to_host, payload=data):
                    copies = 0 if self.cut else 1 + (self.random.random() < self.loss)
                    for _ in range(copies):
                        if self.random.random() >= self.loss:
                            self.mail.append((to_host, GangIn(from_host=host, payload=data)))
                case EndRanks():
                    self.signalled.add(host)
                case _:
                    pass

    def to_rank(self, rank: int, word: dict[str, Any]) -> None:
        key, promises = (word["m"], word["proposal"]), self.promises[rank]
        if word["phase"] == "propose":
            if key not in promises and word["step"] > self.completed[rank]:
                promises[key] = [word["step"], False]
            answer = StepConfirmed(
                v=1, rank=rank, proposal=word["proposal"], step=self.completed[rank], ok=key in promises
            )
            self.tell(self.host_of(rank), RankMessageCame(word=answer))
        elif key in promises and word["phase"] == "commit":
            promises[key][1] = True
        elif key in promises and not promises[key][1]:
            del promises[key]

    def tick(self) -> None:
        self.now_s += TICK_S
        self.random.shuffle(self.mail)
        mail, self.mail = self.mail, []
        for host, word in mail:
            self.tell(host, word)
        for host, supervision in self.hosts.items():
            if supervision.next_alarm_s <= self.now_s:
                self.tell(host, SupervisorTicked())
                assert supervision.next_alarm_s > self.now_s
        self.step()

    def step(self) -> None:
        """Every rank obeys what is due; if all may go on, they do one step together."""
        for rank in self.completed:
            self.obey(rank)
        waiting = [rank for rank in self.completed if self.due(rank)]
        self.waits += bool(waiting)
        if waiting or self.stopped:
            return
        for rank in self.completed:
            self.completed[rank] += 1
            step = self.completed[rank]
            word = FirstStepReached(v=1, rank=rank, step=1) if step == 1 else None
            self.tell(
                self.host_of(rank),
                RankMessageCame(word=word or StepDone(v=1, rank=rank, step=step, count=1, elapsed_s=TICK_S)),
            )

    def due(self, rank: int) -> list[tuple[str, int]]:
        return [key for key, (step, _) in self.promises[rank].items() if step <= self.completed[rank]]

    def obey(self, rank: int) -> None:
        if rank in self.stopped:
            return
        for key in self.due(rank):
            step, is_committed = self.promises[rank][key]
            if not is_committed:
                continue
            del self.promises[rank][key]
            self.tell(self.host_of(rank), RankMessageCame(word=Saving(v=1, rank=rank, step=step)))
            if key[0] == "stop_at":
                self.stopped[rank] = step
                self.tell(self.host_of(rank), RankMessageCame(word=Stopped(v=1, rank=rank, step=step)))
            else:
                self.saved.append((rank, step))

    def ticks(self, count: int) -> World:
        for _ in range(count):
            self.tick()
        return self


def stop_all(world: World, deadline_s: float = 1000.0) -> None:
    for host in world.hosts:
        world.tell(host, StopNow(save=True, deadline_s=deadline_s, reason="preempted"))


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_all_hosts_stop_at_one_step(hosts: int) -> None:
    world = World(hosts=hosts, ranks_each=2).ticks(20)
    stop_all(world)
    world.ticks(60)
    assert len(world.stopped) == 2 * hosts
    assert len(set(world.stopped.values())) == 1
    assert not world.signalled
    assert {supervision.status.stop_step for supervision in world.hosts.values()} == set(
        world.stopped.values()
    )


@given(st.integers(2, 3), st.integers(1, 2), st.floats(0.0, 0.4), st.integers(0, 2**32))
def test_whatever_the_relay_loses_all_hosts_stop_at_one_step(
    hosts: int, ranks_each: int, loss: float, seed: int
) -> None:
    world = World(hosts=hosts, ranks_each=ranks_each, loss=loss, seed=seed).ticks(20)
    stop_all(world)
    world.ticks(1500)
    assert len(set(world.stopped.values())) <= 1
    assert len(world.stopped) == hosts * ranks_each or world.signalled


def test_a_member_does_not_start_a_stop_by_itself() -> None:
    world = World(hosts=2, ranks_each=1).ticks(20)
    world.tell(HostId("h1"), StopNow(save=True, deadline_s=5.0, reason="x"))
    world.ticks(40)
    assert not world.stopped
    world.ticks(20)
    assert world.signalled == {HostId("h1")}, "at its deadline it ends its own ranks"


def test_while_the_relay_is_cut_no_rank_is_kept_waiting() -> None:
    """A controller that is away for a while is not noticed by training."""
    world = World(hosts=2, ranks_each=2).ticks(20)
    world.cut = True
    before = dict(world.completed)
    world.tell(HostId("h0"), SaveNow())
    world.ticks(400)
    assert world.waits == 0
    assert all(world.completed[rank] == before[rank] + 400 for rank in before)
    assert any("could not agree" in line for line in world.hosts[HostId("h0")].status.failed)


def test_saves_are_agreed_over_all_hosts() -> None:
    world = World(hosts=2, ranks_each=2).ticks(20)
    world.tell(HostId("h0"), SaveNow())
    world.ticks(50)
    assert sorted(rank for rank, _ in world.saved) == [0, 1, 2, 3]
    assert len({step for _, step in world.saved}) == 1


def test_ranks_that_were_not_heard_of_yet_are_waited_for_but_not_for_long() -> None:
    world = World(hosts=2, ranks_each=1, cut=True).ticks(20)
    stop_all(world)
    world.ticks(40)
    assert HostId("h0") not in world.signalled
    world.cut = False
    world.ticks(70)
    assert len(set(world.stopped.values())) == 1

    world = World(hosts=2, ranks_each=1, cut=True).ticks(20)
    stop_all(world)
    world.ticks(101)
    assert HostId("h0") in world.signalled


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 10, payload(MemberConfirm(rank=0, proposal=1, step=1, ok=True))[:-1]]
)
def test_damaged_words_are_dropped(data: bytes) -> None:
    assert parse_payload(data) is None
    world = World(hosts=2, ranks_each=1)
    for host in world.hosts:
        world.tell(host, GangIn(from_host=HostId("h1"), payload=data))


def test_words_survive_the_wire() -> None:
    words = (
        MemberNow(sequence=3, ranks=(RankNow(rank=1, step=2, world_size=2, resumable=True),), step_s=None),
        MemberConfirm(rank=0, proposal=1, step=1, ok=True),
        GangSays(ranks=(2, 3), word=ToRank(kind="stop", proposal=1, step=5, phase="commit")),
    )
    assert tuple(parse_payload(payload(word)) for word in words) == words
