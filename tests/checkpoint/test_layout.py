"""Which directories count as checkpoints, and what a damaged or foreign one is taken for."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cotenant.checkpoint.disk import layout
from cotenant.checkpoint.disk.layout import Damaged, FileEntry, Manifest, TooNew
from cotenant.checkpoint.resuming import load_newest


def manifest(attempt: int, step: int, files: dict[str, FileEntry]) -> Manifest:
    return Manifest(
        job="j1",
        attempt=attempt,
        step=step,
        world_size=1,
        files=files,
        parameters_sha256="0" * 64,
        facts={"world_size": 1},
        history=((0, 2), (7, 1)),
        exact=True,
        note="",
    )


def made(root: Path, attempt: int, step: int, content: bytes = b"some bytes") -> Path:
    directory = root / layout.checkpoint_name(attempt, step)
    directory.mkdir(parents=True)
    (directory / "model.pt").write_bytes(content)
    entry = FileEntry(size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    (directory / "manifest.json").write_bytes(manifest(attempt, step, {"model.pt": entry}).to_json())
    return directory


def flip_bit(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def test_a_manifest_survives_the_way_to_disk_and_back(tmp_path: Path) -> None:
    wanted = manifest(3, 120, {"model.pt": FileEntry(size_bytes=1, sha256="a" * 64)})
    assert Manifest.from_json(wanted.to_json(), tmp_path) == wanted


def test_the_newest_is_the_greatest_attempt_then_step_and_never_above_the_readers(tmp_path: Path) -> None:
    for attempt, step in ((1, 900), (2, 30), (2, 4), (10, 1), (3, 5)):
        made(tmp_path, attempt, step)
    (tmp_path / ".a3-s9.tmp").mkdir()
    (tmp_path / "latest").symlink_to("a1-s900")
    (tmp_path / "a4-s1.old").mkdir()
    assert layout.names_newest_first(tmp_path, 9) == ["a3-s5", "a2-s30", "a2-s4", "a1-s900"]
    assert layout.names_newest_first(tmp_path)[0] == "a10-s1"
    assert layout.names_newest_first(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: truncate(d / "model.pt"), "bytes, the manifest says"),
        (lambda d: flip_bit(d / "model.pt", 4), "does not match its sha256"),
        (lambda d: (d / "model.pt").unlink(), "cannot be read"),
        (lambda d: (d / "manifest.json").unlink(), "no readable manifest"),
        (lambda d: truncate(d / "manifest.json"), "not a manifest"),
        (lambda d: (d / "manifest.json").write_bytes(b"[]"), "not a manifest"),
        (lambda d: (d / "manifest.json").write_bytes(b"\xff\x00"), "not a manifest"),
        (lambda d: d.rename(d.with_name("a1-s11")), "is of a1-s10"),
    ],
)
def test_damage_of_every_kind_is_noticed(
    tmp_path: Path, damage: Callable[[Path], object], reason: str
) -> None:
    directory = made(tmp_path, 1, 10)
    layout.verify(directory)
    damage(directory)
    [name] = layout.names_newest_first(tmp_path)
    with pytest.raises(Damaged, match=reason):
        layout.verify(tmp_path / name)


def test_no_single_bit_of_a_manifest_can_flip_unnoticed(tmp_path: Path) -> None:
    directory = made(tmp_path, 1, 10)
    path = directory / "manifest.json"
    whole = path.read_bytes()
    for position in range(len(whole)):
        data = bytearray(whole)
        data[position] ^= 1 << position % 7
        path.write_bytes(data)
        try:
            found = layout.verify(directory)
        except (Damaged, TooNew):
            continue
        assert found == Manifest.from_json(whole, path), f"byte {position}"


def test_a_newer_manifest_is_refused_with_what_to_upgrade(tmp_path: Path) -> None:
    made(tmp_path, 1, 5)
    path = made(tmp_path, 1, 10) / "manifest.json"
    path.write_text(json.dumps({"version": 2, "whatever": "it holds"}))
    with pytest.raises(TooNew, match=r"manifest version 2.*upgrade cotenant on this host"):
        load_newest(tmp_path, attempt=2, resume=None, rank=0, world_size=1)


def test_keeping_the_newest_two_leaves_later_attempts_alone(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        made(tmp_path, 2, step)
    made(tmp_path, 1, 99)
    truncate(tmp_path / "a2-s30" / "model.pt")
    assert sorted(layout.keep_newest(tmp_path, 2, keep=2)) == ["a1-s99", "a2-s10"]
    assert layout.names_newest_first(tmp_path) == ["a2-s40", "a2-s30", "a2-s20"], (
        "a damaged one does not count"
    )


def test_an_attempt_that_has_a_successor_deletes_nothing(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        made(tmp_path, 2, step)
    layout.announce_reader(tmp_path, 3)
    assert layout.keep_newest(tmp_path, 2, keep=1) == []
    assert len(layout.names_newest_first(tmp_path)) == 3


def test_sweeping_removes_what_older_attempts_left_half_written(tmp_path: Path) -> None:
    for name in (".a1-s5.tmp", ".a2-s5.tmp", ".a2-s50.tmp", ".a3-s1.tmp", ".other.tmp"):
        (tmp_path / name).mkdir()
    made(tmp_path, 1, 4)
    layout.sweep_temporaries(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == [".a2-s5.tmp", ".a2-s50.tmp", ".a3-s1.tmp", ".other.tmp", "a1-s4"]
    layout.sweep_temporaries(tmp_path, 2, before_step=50)
    assert sorted(os.listdir(tmp_path)) == [".a2-s50.tmp", ".a3-s1.tmp", ".other.tmp", "a1-s4"]
