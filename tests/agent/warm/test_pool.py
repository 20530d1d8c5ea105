"""Which fork servers are kept: a table of what happens and what follows, and what holds for every history."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.warm.pool import (
    EXPECTED_MIB,
    IDLE_S,
    READY_S,
    SERVERS_MAX,
    YOUNG_S,
    ColdRunTold,
    Pool,
    PoolEffect,
    PoolTicked,
    ServerEnd,
    ServerEnded,
    ServerKind,
    ServerReady,
    ServerRefused,
    ServerStart,
    early,
)

PLENTY = 50_000.0


def kind(name: str) -> ServerKind:
    return ServerKind(interpreter=name, options=(), uid=1, gid=1, groups=(), env={})


def told(name: str) -> ColdRunTold:
    return ColdRunTold(kind=kind(name), modules=("torch",))


def pool(share: float = 0.1) -> Pool:
    return Pool(memory_mib=100_000.0, share=share)


def ready(kept: Pool, name: str, now_s: float, memory_mib: float = 300.0) -> list[PoolEffect]:
    effects = kept.handle(told(name), now_s)
    kept.handle(ServerReady(key=kind(name).key, memory_mib=memory_mib), now_s)
    return effects


def ends(effects: list[PoolEffect]) -> list[str]:
    return [each.why for each in effects if isinstance(each, ServerEnd)]


def test_a_server_starts_after_a_cold_run_and_once() -> None:
    kept = pool()
    (start,) = kept.handle(told("a"), 0.0)
    assert start == ServerStart(kind=kind("a"), modules=("torch",))
    assert kept.handle(told("a"), 1.0) == []
    assert kept.handle(told("b"), 1.0) == [], "one at a time"
    assert kept.ready_count == 0, "it still imports"
    kept.handle(ServerReady(key=kind("a").key, memory_mib=300.0), 2.0)
    assert kept.ready_count == 1
    assert kept.handle(ColdRunTold(kind=kind("c"), modules=()), 2.0) == [], "nothing to import"
    assert len(kept.handle(told("b"), 2.0)) == 1


def test_an_idle_server_ends_and_one_of_use_does_not() -> None:
    kept = pool()
    ready(kept, "a", 0.0)
    assert kept.offer(kind("a").key, IDLE_S - 1)[0]
    assert kept.handle(PoolTicked(available_mib=PLENTY), IDLE_S) == []
    assert ends(kept.handle(PoolTicked(available_mib=PLENTY), 2 * IDLE_S)) == ["idle"]
    assert kept.offer(kind("a").key, 2 * IDLE_S)[1].learns, "the next cold run starts another"


def test_one_that_does_not_become_ready_ends() -> None:
    kept = pool()
    kept.handle(told("a"), 0.0)
    assert ends(kept.handle(PoolTicked(available_mib=PLENTY), READY_S)) == ["it does not become ready"]


def test_under_memory_pressure_the_longest_idle_ends_first() -> None:
    kept = pool()
    for number, name in enumerate("ab"):
        ready(kept, name, float(number))
    short = PoolTicked(available_mib=5_000.0)
    assert kept.handle(short, 10.0) == [ServerEnd(key=kind("a").key, why="the host is short of memory")]
    assert kept.handle(short, 11.0) == [ServerEnd(key=kind("b").key, why="the host is short of memory")]
    assert kept.handle(short, 12.0) == []


def test_what_has_grown_too_large_ends() -> None:
    kept = pool(share=0.01)
    ready(kept, "a", 0.0)
    grown = PoolTicked(available_mib=PLENTY, sizes_mib={kind("a").key: 1_001.0})
    assert ends(kept.handle(grown, 5.0)) == ["servers have more memory than they may"]


def test_one_that_was_of_use_lately_does_not_make_room() -> None:
    kept = pool(share=0.006)
    ready(kept, "a", 0.0)
    assert kept.handle(told("b"), YOUNG_S - 1) == []
    assert kept.offer(kind("b").key, YOUNG_S - 1)[1].why == "memory"
    effects = kept.handle(told("b"), YOUNG_S)
    assert ends(effects) == ["another needs its room"]
    assert isinstance(effects[-1], ServerStart)


def test_what_was_refused_is_not_tried_again_and_what_ended_is() -> None:
    kept = pool()
    kept.handle(told("a"), 0.0)
    kept.handle(ServerRefused(key=kind("a").key, code="threads"), 1.0)
    assert kept.handle(told("a"), 2.0) == []
    ready(kept, "b", 3.0)
    kept.handle(ServerEnded(key=kind("b").key), 4.0)
    assert len(kept.handle(told("b"), 5.0)) == 1


EVENTS = st.one_of(
    st.sampled_from("abcdefghijkl").map(told),
    st.builds(
        lambda name, size: ServerReady(key=kind(name).key, memory_mib=size),
        st.sampled_from("abcdefghijkl"),
        st.floats(1.0, 5_000.0),
    ),
    st.sampled_from("abcdef").map(lambda name: ServerEnded(key=kind(name).key)),
    st.sampled_from("gh").map(lambda name: ServerRefused(key=kind(name).key, code="cuda")),
    st.builds(PoolTicked, available_mib=st.floats(0.0, 100_000.0)),
)


@given(st.lists(st.tuples(EVENTS, st.floats(0.0, 100.0)), max_size=60))
def test_servers_stay_within_their_memory_and_start_once(history: list[tuple[object, float]]) -> None:
    kept, now_s, alive = pool(share=0.05), 0.0, set[str]()
    for event, wait_s in history:
        now_s += wait_s
        if isinstance(event, ServerEnded | ServerRefused):
            alive.discard(event.key)
        for effect in kept.handle(event, now_s):  # type: ignore[arg-type]
            if isinstance(effect, ServerStart):
                assert effect.kind.key not in alive
                alive.add(effect.kind.key)
            else:
                alive.remove(effect.key)
        assert set(kept.servers) == alive
        assert len(alive) <= SERVERS_MAX
        is_coming = any(not each.is_ready for each in kept.servers.values())
        assert kept.used_mib <= kept.allowed_mib + EXPECTED_MIB * is_coming


def test_only_what_is_read_late_is_left_out_of_a_key() -> None:
    late = {"RANK": "1", "MASTER_PORT": "2", "NCCL_DEBUG": "3", "COTENANT_JOB": "4", "PET_NNODES": "5"}
    kept = {"OMP_NUM_THREADS": "1", "PYTHONPATH": "/a", "LD_LIBRARY_PATH": "/b", "TORCH_LOGS": "c", "MY": "d"}
    assert early({**late, **kept}) == kept
    others: list[dict[str, object]] = [
        {"interpreter": "b"},
        {"options": ("-u",)},
        {"uid": 2},
        {"gid": 2},
        {"groups": (3,)},
        {"env": {"A": ""}},
    ]
    assert len({kind("a").key, *(msgspec.structs.replace(kind("a"), **each).key for each in others)}) == 7
