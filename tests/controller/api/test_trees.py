"""Packed trees on the controller: they come in parts, are checked, stay their user's own, are given to hosts
of that user's jobs alone, and go when nobody needs them."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.client.snapshots import send_tree
from cotenant.controller.domain import AttemptNo, JobId, Launch, job_spec
from cotenant.controller.system import paths
from cotenant.controller.system.keys import Identity
from cotenant.controller.system.sections import SnapshotSettings
from cotenant.controller.system.trees import GRACE_S, KeptTree, list_surplus, make_room
from cotenant.controller.wire import agents, clients
from tests.controller.station import ALICE, BOB, Station, run_one

DATA = bytes(range(256)) * 64
DAY_S = 86_400.0


@pytest.fixture
def station(tmp_path: Path) -> Iterator[Station]:
    station = Station(tmp_path, snapshots=SnapshotSettings(size_max_mib=1, user_max_mib=1))
    yield station
    station.close()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def ask(station: Station, data: bytes = DATA, who: Identity = ALICE) -> Any:
    return station.ask(clients.AskSnapshot(sha256=sha256(data), size_bytes=len(data)), who)


def put(station: Station, offset: int, part: bytes, data: bytes = DATA, who: Identity = ALICE) -> Any:
    question = clients.PutSnapshot(sha256=sha256(data), size_bytes=len(data), offset=offset, data=part)
    return station.ask(question, who)


def upload(station: Station, data: bytes = DATA, who: Identity = ALICE) -> None:
    assert put(station, 0, data, data, who).offset == len(data)
    assert not ask(station, data, who).is_complete, "it is checked first"
    assert ask(station, data, who).is_complete


def snapshot(data: bytes = DATA) -> job_spec.CodeSnapshot:
    return job_spec.CodeSnapshot(
        sha256=sha256(data), kind="git", size_bytes=len(data), content_bytes=9, files=1, top="/p"
    )


def launch(data: bytes = DATA) -> Launch:
    return Launch(argv=("x",), workdir="/p", snapshot=snapshot(data))


def test_it_comes_in_parts_from_where_the_last_ended(station: Station) -> None:
    assert (ask(station).offset, put(station, 0, DATA[:5000]).offset) == (0, 5000)
    assert put(station, 0, DATA[:5000]).offset == 5000, "a repeat changes nothing"
    assert put(station, 9000, DATA[9000:]).offset == 5000, "nor does a part behind a hole"
    assert put(station, 5000, DATA[5000:]).offset == len(DATA)
    ask(station)
    assert ask(station).is_complete
    path = station.trees.path(("alice", sha256(DATA)))
    assert path.read_bytes() == DATA and path.stat().st_mode & 0o777 == 0o600


def test_what_is_not_what_its_sha256_says_is_gone(station: Station) -> None:
    put(station, 0, DATA[::-1])
    ask(station)
    assert (ask(station).offset, ask(station).is_complete) == (0, False)


def test_to_know_a_sha256_is_not_enough(station: Station) -> None:
    upload(station)
    assert ask(station, who=BOB).offset == 0, "bob is asked to upload it"
    refused = station.ask(clients.Submit(specs=(station_job(),)), BOB)
    assert refused.code == "not-found" and "you have not uploaded snapshot" in refused.message
    assert isinstance(station.ask(clients.Submit(specs=(station_job(),)), ALICE), clients.Submitted)


def station_job() -> Any:
    from tests.controller.station import job

    return job(launch=launch())


def test_a_host_gets_the_tree_of_its_own_attempt_alone(station: Station) -> None:
    upload(station)
    here, other = station.join("h1"), station.join("h2")
    job_id = station.submit(launch=launch())
    address = here if station.commands(here) else other
    stranger = other if address == here else here

    def fetch(to: bytes, offset: int = 0, attempt: int = 1, number: JobId = job_id) -> agents.SnapshotPart:
        asked = agents.FetchSnapshot(job_id=number, attempt=AttemptNo(attempt), offset=offset)
        station.agent_says(to, asked)
        part: agents.SnapshotPart = station.told(to, agents.SnapshotPart)[-1]
        return part

    assert fetch(address).data == DATA and fetch(address, 16_000).data == DATA[16_000:]
    for refused in (fetch(stranger), fetch(address, attempt=2), fetch(address, number=JobId("99"))):
        assert not refused.data and refused.missing
    run_one(station, address, job_id)
    assert "is over" in fetch(address).missing


def test_a_loading_job_says_how_far_its_tree_has_come(station: Station) -> None:
    upload(station)
    address = station.join()
    tree = msgspec.structs.replace(snapshot(), size_bytes=2**21)
    job_id = station.submit(launch=msgspec.structs.replace(launch(), snapshot=tree))
    station.agent_says(address, agents.FetchSnapshot(job_id=job_id, attempt=AttemptNo(1), offset=0))
    shown = station.ask(clients.ShowJob(job_id=job_id), ALICE).job
    assert shown.reason == "its host fetches its snapshot: 0 of 2 MiB"
    explained = station.ask(clients.Explain(job_id=job_id), ALICE).explanation
    assert explained.lines[0] == shown.reason


def test_a_tree_that_the_controller_lacks_is_said_to_the_host(station: Station) -> None:
    upload(station)
    address = station.join()
    job_id = station.submit(launch=launch())
    station.trees.path(("alice", sha256(DATA))).unlink()
    station.agent_says(address, agents.FetchSnapshot(job_id=job_id, attempt=AttemptNo(1), offset=0))
    (part,) = station.told(address, agents.SnapshotPart)
    assert "has no snapshot" in part.missing and "cotenant submit --snapshot git" in part.missing


REFUSED = {
    "no name of a file": (clients.AskSnapshot(sha256="../x", size_bytes=9), "named by its SHA-256"),
    "too large": (clients.AskSnapshot(sha256="0" * 64, size_bytes=2**21), "2.0 MiB of 1 possible"),
    "empty": (clients.AskSnapshot(sha256="0" * 64, size_bytes=0), "possible here"),
    "behind its end": (
        clients.PutSnapshot(sha256="0" * 64, size_bytes=3, offset=0, data=b"four"),
        "behind its end",
    ),
}


@pytest.mark.parametrize(("question", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_makes_no_sense_is_refused(station: Station, question: Any, says: str) -> None:
    refused = station.ask(question, ALICE)
    assert refused.code == "usage" and says in refused.message


def test_a_user_has_room_for_what_is_needed_and_no_more(station: Station) -> None:
    first, second = b"1" * 600_000, b"2" * 600_000
    upload(station, first)
    refused = ask(station, second)
    assert refused.code == "usage" and "0 of 1 MiB (snapshot.user_max_mib)" in refused.message
    os.utime(station.trees.path(("alice", sha256(first))), (1, 1))
    upload(station, second)
    gone = station.trees.path(("alice", sha256(first)))
    assert not gone.exists(), "it gave way: no job needed it, and it was old"
    station.submit(launch=launch(second))
    os.utime(station.trees.path(("alice", sha256(second))), (1, 1))
    assert ask(station, first).code == "usage", "a job needs the other"
    upload(station, first, BOB)


def test_what_no_job_needs_goes_after_a_while(station: Station) -> None:
    upload(station)
    address = station.join()
    job_id = station.submit(launch=launch())
    path = station.trees.path(("alice", sha256(DATA)))
    os.utime(path, (1, 1))
    station.tick(4000.0)
    assert path.exists() and time.time() - path.stat().st_mtime < DAY_S, "needed now"
    run_one(station, address, job_id)
    station.tick(4000.0)
    assert path.exists()
    os.utime(path, (1, 1))
    station.tick(4000.0)
    assert not path.exists()


def test_a_client_sends_what_is_missing_and_once(
    station: Station, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    packed = paths.packed_trees() / sha256(DATA)
    packed.parent.mkdir(parents=True)
    packed.write_bytes(DATA)
    asked: list[type] = []

    def ask_station(question: Any) -> Any:
        asked.append(type(question))
        return station.ask(question, ALICE)

    put(station, 0, DATA[:7000])
    assert send_tree(snapshot(), ask_station) is None and not packed.exists()
    assert asked.count(clients.PutSnapshot) == 1
    asked.clear()
    assert send_tree(snapshot(), ask_station) is None and asked == [clients.AskSnapshot]
    failure = send_tree(snapshot(b"other"), ask_station)
    assert failure is not None and "was not sent" in failure.message


# --- What may go -------------------------------------------------------------------------------------

KEYS = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["0" * 64, "1" * 64, "2" * 64]))
KEPT = st.builds(
    KeptTree, KEYS, st.integers(0, 9), st.floats(0.0, 1e6), st.sampled_from([Path("x"), Path("x.part")])
)


@given(st.lists(KEPT), st.sets(KEYS), st.integers(0, 20), st.integers(0, 30))
def test_nothing_that_is_needed_goes(kept: list[KeptTree], needed: set[Any], size: int, most: int) -> None:
    now_s = 1e6
    for each in list_surplus(kept, needed, now_s, DAY_S):
        assert each.key not in needed and now_s - each.used_s > DAY_S
    gone = make_room(kept, needed, now_s, size - most)
    assert all(each.key not in needed for each in gone)
    left = sum(each.bytes for each in kept) - sum(each.bytes for each in gone)
    idle = [each for each in kept if each.key not in needed and now_s - each.used_s > GRACE_S]
    assert left + size <= most or len(gone) == len(idle), "all that may go goes before one is refused"
    assert not gone or left + size + gone[-1].bytes > most, "and no more than it takes"
