"""What one user may have on the disk of the state folder, and what is done about more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from cotenant.agent.daemon.core.disk_shares import LOG_BYTES_MIN, MIB, DiskUse, share_of
from cotenant.agent.daemon.disk_use import DiskShares
from cotenant.agent.ipc.records import LOGS
from cotenant.controller.domain import AttemptNo, JobId, Launch, job_spec
from tests.building.orders import changed, order_of

GIB = 1024 * MIB
ANN, BOB = 1001, 1002
ONE, TWO, THREE = ((JobId(str(number)), AttemptNo(1)) for number in (1, 2, 3))
RUNNING = {ONE: "1", TWO: "2", THREE: "3"}
"""All of them below copies; of 4 nothing runs any more."""


def use(*, free: float, ann: int = 0, bob: int = 0) -> DiskUse:
    copies = {"1": (ANN, ann // 4), "2": (ANN, ann // 2), "3": (BOB, bob), "4": (ANN, ann // 4)}
    return DiskUse(share_bytes=10 * GIB, free=free, users={ANN: ann, BOB: bob}, copies=copies)


@pytest.mark.parametrize(
    ("disk_gib", "share_gib"), [(2, 1), (6, 3), (20, 4), (100, 10), (2000, 200)], ids=lambda each: f"{each}G"
)
def test_a_tenth_of_the_disk_is_a_users_share_of_a_small_one_more(disk_gib: int, share_gib: int) -> None:
    assert share_of(disk_gib * GIB) == share_gib * GIB


@pytest.mark.parametrize(
    ("seen", "told", "ends"),
    [
        (use(free=0.01, ann=10 * GIB, bob=1), [], []),
        (use(free=0.5, ann=11 * GIB, bob=1), [ONE, TWO], []),
        (use(free=0.04, ann=11 * GIB, bob=1), [ONE, TWO], [TWO]),
        (use(free=0.04, ann=11 * GIB, bob=30 * GIB), [ONE, TWO, THREE], [THREE]),
    ],
    ids=["nobody is over", "there is room", "nearly full", "the one furthest over"],
)
def test_who_is_told_and_who_ends(seen: DiskUse, told: list[object], ends: list[object]) -> None:
    found = seen.judge(RUNNING)
    assert [(each.job_id, each.attempt) for each in found] == told
    assert [(each.job_id, each.attempt) for each in found if each.ends] == ends
    assert all("10240 MiB" in each.what and "agent.user_share_mib" in each.what for each in found)


def test_logs_get_half_of_what_is_left_and_never_nothing() -> None:
    seen = use(free=0.5, ann=10 * GIB - 64 * MIB)
    assert seen.log_bytes_max(64 * MIB, BOB, 4) == 64 * MIB
    assert seen.log_bytes_max(64 * MIB, ANN, 4) == 8 * MIB
    assert use(free=0.5, ann=90 * GIB).log_bytes_max(64 * MIB, ANN, 4) == LOG_BYTES_MIN


def write(path: Path, mib: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * mib * MIB)


def shares_in(folder: Path, share_mib: int) -> DiskShares:
    """With copies of jobs 7 and 8, and the log of one attempt."""
    write(folder / "copies" / "7" / "deep" / "big", 3)
    write(folder / "copies" / "8" / "part", 1)
    write(folder / "attempts" / "7-a1" / LOGS / "rank-0.log", 2)
    return DiskShares(folder / "attempts", folder / "copies", share_mib, log=pytest.fail)


def test_what_is_there_is_measured_and_kept_to_the_share(tmp_path: Path) -> None:
    shares, uid = shares_in(tmp_path, 8), tmp_path.stat().st_uid
    seen = asyncio.run(shares.measure())
    assert seen.share_bytes == 8 * MIB
    assert {name: size // MIB for name, (_, size) in seen.copies.items()} == {"7": 3, "8": 1}
    assert seen.users[uid] // MIB == 6
    tree = job_spec.CodeSnapshot(
        sha256="0" * 64, size_bytes=1, content_bytes=MIB, kind="copy", top="/p", files=1
    )
    order = order_of(launch=Launch(argv=("true",), uid=uid, snapshot=tree), log_bytes_max=64 * MIB)
    assert shares.refuse_copy(order, "9") == ""
    tree = msgspec.structs.replace(tree, content_bytes=2 * MIB)
    large = msgspec.structs.replace(order.launch, snapshot=tree)
    refusal = shares.refuse_copy(changed(order, launch=large), "9")
    assert "take 6 MiB, and 2 MiB more are over the 8 MiB that one user may have" in refusal
    assert shares.refuse_copy(changed(order, launch=large), "7") == "", "it has its copy"
    bounded = shares.bound_logs(order)
    assert LOG_BYTES_MIN < bounded.log_bytes_max < MIB
    assert any("a log is cut beyond" in note for note in bounded.notes)


def test_nobody_is_bounded_before_it_is_known_what_is_there(tmp_path: Path) -> None:
    shares = shares_in(tmp_path, 1)
    order = order_of(log_bytes_max=64 * MIB)
    assert shares.bound_logs(order) is order
    assert shares.refuse_copy(order, "9") == ""
