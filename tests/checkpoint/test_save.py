"""Saving: all or nothing under every failure, in the background as at once, several ranks through files."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from cotenant.checkpoint.disk import durable, layout, memory
from cotenant.checkpoint.disk.layout import CheckpointError
from cotenant.checkpoint.disk.saver import Saver, SaveTarget, ready
from cotenant.checkpoint.resuming import load_newest
from cotenant.checkpoint.talk import protocol
from cotenant.checkpoint.training.snapshot import Staging, plain, reference_tensor
from cotenant.checkpoint.training.state import TrainingState, tensors_sha256
from tests.building.limits import within_s

MANIFEST: dict[str, Any] = {"job": "j1", "facts": {}, "history": ((0, 1),), "exact": True, "note": ""}


class Crash(BaseException):
    """Stands for kill -9: nothing in our code handles it."""


class Heard(list[tuple[str, dict[str, Any]]]):
    """Collects what a saver tells its supervisor."""

    def __call__(self, message: str, /, **fields: Any) -> None:
        self.append((message, fields))

    def named(self, message: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self if name == message]


def net(rows: int = 4) -> torch.nn.Module:
    return torch.nn.Linear(rows, 3)


def place(
    root: Path, rank: int = 0, world_size: int = 1, attempt: int = 1, idle_s: float = within_s(20.0)
) -> SaveTarget:
    return SaveTarget(
        root=root, job="j1", attempt=attempt, rank=rank, world_size=world_size, keep=2, idle_s_max=idle_s
    )


def saver_for(
    where: SaveTarget, model: torch.nn.Module, heard: Heard
) -> tuple[Saver, Callable[[], dict[str, Any]]]:
    state = TrainingState(model, torch.optim.Adam(model.parameters()), None, None, None)
    assert ready(where) is None
    return Saver(where, state, heard), lambda: {**state.own(where.rank), "position": {}}


def newest(root: Path) -> int:
    loaded = load_newest(root, attempt=99, resume=None, rank=0, world_size=1)
    return loaded.manifest.step if loaded else 0


@contextmanager
def crash_at(operation: int) -> Iterator[list[str]]:
    """Raise `Crash` in place of the n-th change to the file system."""
    names = ("open", "write", "fsync", "fdatasync", "rename", "unlink", "makedirs", "rmdir", "symlink")
    originals = {name: getattr(os, name) for name in names}
    done: list[str] = []
    here = threading.Lock()

    def counting(name: str) -> Callable[..., Any]:
        def operate(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR):
                return originals[name](*args, **kwargs)
            with here:
                done.append(name)
                if len(done) >= operation:
                    raise Crash(name)
            return originals[name](*args, **kwargs)

        return operate

    for name in names:
        setattr(os, name, counting(name))
    try:
        yield done
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder where forcing data to disk costs nothing, if there is one."""
    shared_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        dir=shared_memory if os.access(shared_memory, os.W_OK) else None
    ) as folder:
        yield Path(folder)


def test_a_crash_at_any_change_to_the_file_system_leaves_a_loadable_newest(in_memory: Path) -> None:
    heard = Heard()
    saver, own = saver_for(place(in_memory), net(), heard)
    assert saver.save(1, own(), MANIFEST, wait=True)
    seen: list[str] = []
    for operation in range(1, 200):
        step = 1 + operation
        before = newest(in_memory)
        try:
            with crash_at(operation):
                saver.save(step, own(), MANIFEST, wait=True)
            break
        except Crash as crash:
            seen.append(str(crash))
        after = newest(in_memory)
        assert after in (before, step), f"crash in operation {operation} ({seen[-1]})"
        told = [fields["step"] for fields in heard.named(protocol.DURABLE)]
        assert max(told) <= after, "durable was said too early"
    else:
        pytest.fail("the save never came through")
    assert newest(in_memory) == step
    assert {"open", "write", "fsync", "rename"} <= set(seen)


def test_a_disk_that_fills_up_fails_the_save_and_keeps_the_old_one(tmp_path: Path) -> None:
    heard = Heard()
    saver, own = saver_for(place(tmp_path), net(4000), heard)
    assert saver.save(1, own(), MANIFEST, wait=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores SIGXFSZ, so a write beyond the limit fails with EFBIG as one on a full disk with ENOSPC.
    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        assert not saver.save(2, own(), MANIFEST, wait=True)
        assert saver.save(3, own(), MANIFEST, wait=False), "on its way"
        saver.join()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    errors = heard.named(protocol.FAILED)
    assert [fields["what"] for fields in errors] == ["save", "save"]
    assert os.strerror(errno.EFBIG) in errors[0]["error"]
    assert newest(tmp_path) == 1
    assert saver.save(4, own(), MANIFEST, wait=True), "with room again, saving works again"
    assert not list(tmp_path.glob(".a*.tmp"))


@pytest.mark.root
@pytest.mark.parametrize("full", [True, False], ids=["full disk", "read-only"])
def test_a_real_full_or_read_only_file_system(tmp_path: Path, full: bool) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        heard = Heard()
        saver, own = saver_for(place(tmp_path), net(), heard)
        assert saver.save(1, own(), MANIFEST, wait=True)
        if full:
            fill(tmp_path / "ballast")
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
            assert "Read-only" in str(ready(place(tmp_path, attempt=2)))
        assert not saver.save(2, own(), MANIFEST, wait=True)
        reason = os.strerror(errno.ENOSPC if full else errno.EROFS)
        assert reason in heard.named(protocol.FAILED)[0]["error"]
        assert newest(tmp_path) == 1
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def fill(path: Path) -> None:
    """Leave no room on a small file system."""
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def test_a_background_save_equals_one_at_once_even_if_training_goes_on(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = net(64)
    saver, own = saver_for(place(tmp_path), model, Heard())
    mine = own()
    assert saver.save(1, mine, MANIFEST, wait=True)
    saver.prepare(mine)
    assert saver.save(2, mine, MANIFEST, wait=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)  # the next optimizer step, while the save is under way
    saver.join()
    at_once, later = tmp_path / "a1-s1", tmp_path / "a1-s2"
    assert layout.verify(at_once).parameters_sha256 == layout.verify(later).parameters_sha256
    for name in ("model.pt", "rank-0.pt"):
        left, right = durable.load_tensors(at_once / name), durable.load_tensors(later / name)
        assert durable.first_difference(left, right) is None


def test_background_work_gives_way_to_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, priorities = torch.save, []

    def noting(*args: Any) -> None:
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        real(*args)

    monkeypatch.setattr(torch, "save", noting)
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    saver, own = saver_for(place(tmp_path), net(), Heard())
    assert saver.save(1, own(), MANIFEST, wait=False)
    saver.join()
    assert saver.save(2, own(), MANIFEST, wait=True)
    assert list(dict.fromkeys(priorities)) == [min(memory.NICE_MAX, before + memory.NICE), before]


def test_a_second_save_waits_for_the_first_and_two_are_kept(tmp_path: Path) -> None:
    heard = Heard()
    saver, own = saver_for(place(tmp_path), net(2000), heard)
    for step in (1, 2, 3, 4):
        assert saver.save(step, own(), MANIFEST, wait=False)
    saver.join()
    assert [fields["step"] for fields in heard.named(protocol.DURABLE)] == [1, 2, 3, 4]
    assert layout.names_newest_first(tmp_path) == ["a1-s4", "a1-s3"]
    assert os.readlink(tmp_path / "latest") == "a1-s4"


def test_what_is_loaded_needs_no_code_from_the_file(tmp_path: Path) -> None:
    class Anything:
        pass

    model = net()
    state = TrainingState(model, None, None, None, {"thing": Anything()})
    heard = Heard()
    saver = Saver(place(tmp_path), state, heard)
    assert not saver.save(1, state.own(0), MANIFEST, wait=True)
    assert "cannot save own.extra.thing" in heard.named(protocol.FAILED)[0]["error"]


SaverAndState = tuple[Saver, Callable[[], dict[str, Any]]]


def together(savers: list[SaverAndState], step: int) -> list[bool]:
    """All ranks of one save, each in its own thread."""
    results = [False] * len(savers)

    def run(rank: int) -> None:
        saver, own = savers[rank]
        results[rank] = saver.save(step, own(), MANIFEST, wait=True)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(savers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(within_s(60))
        assert not thread.is_alive()
    return results


def gang(
    root: Path, world_size: int, models: list[torch.nn.Module], step: int
) -> tuple[list[bool], list[Heard]]:
    heard = [Heard() for _ in range(world_size)]
    places = [place(root, rank, world_size) for rank in range(world_size)]
    return together([saver_for(*each) for each in zip(places, models, heard, strict=True)], step), heard


def test_ranks_meet_through_files_and_all_know_the_outcome(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = net()
    results, heard = gang(tmp_path, 3, [model] * 3, step=7)
    assert results == [True] * 3
    manifest = layout.verify(tmp_path / "a1-s7")
    assert sorted(manifest.files) == ["model.pt", "rank-0.pt", "rank-1.pt", "rank-2.pt"]
    assert sorted(os.listdir(tmp_path / "a1-s7")) == ["manifest.json", *sorted(manifest.files)]
    assert manifest.parameters_sha256 == tensors_sha256(model.named_parameters())
    assert [len(h.named(protocol.DURABLE)) for h in heard] == [1, 0, 0]


def test_ranks_outside_ddp_that_have_drifted_apart_are_not_saved(tmp_path: Path) -> None:
    results, heard = gang(tmp_path, 2, [net(), net()], step=7)
    assert results == [False, False]
    assert "ranks [1] hold other parameters" in heard[0].named(protocol.FAILED)[0]["error"]
    assert newest(tmp_path) == 0


def break_disk(patch: pytest.MonkeyPatch, name: str, fails: Iterator[bool]) -> None:
    """Files of that name cannot be opened for writing, as often as `fails` says so."""
    real = os.open

    def failing(path: Any, flags: int, *more: Any, **others: Any) -> int:
        if os.path.basename(path) == name and flags & os.O_CREAT and next(fails, False):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, flags, *more, **others)

    patch.setattr(os, "open", failing)


def test_a_rank_that_fails_fails_the_save_for_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_disk(monkeypatch, "rank-2.pt", itertools.repeat(True))
    results, heard = gang(tmp_path, 3, [net()] * 3, step=7)
    assert results == [False] * 3
    assert all("Input/output error" in h.named(protocol.FAILED)[0]["error"] for h in heard)


def test_a_rank_that_never_comes_is_named_after_the_deadline(tmp_path: Path) -> None:
    heard = Heard()
    saver, own = saver_for(place(tmp_path, 0, 2, idle_s=0.3), net(), heard)
    assert not saver.save(7, own(), MANIFEST, wait=True)
    assert "missing ranks [1]" in heard.named(protocol.FAILED)[0]["error"]


def test_what_an_earlier_try_at_the_same_step_left_does_not_count(tmp_path: Path) -> None:
    temporary = tmp_path / ".a1-s7.tmp"
    temporary.mkdir()
    durable.write_json(temporary / "rank-1.json", {"trial": 1, "files": {}, "parameters_sha256": ""})
    heard = Heard()
    saver, own = saver_for(place(tmp_path, 0, 2, idle_s=0.3), net(), heard)
    assert not saver.save(7, {**own(), "extra": object()}, MANIFEST, wait=True), "the first try fails at once"
    assert not saver.save(7, own(), MANIFEST, wait=True), "the second waits in vain for rank 1"
    assert "missing ranks" in heard.named(protocol.FAILED)[1]["error"]
    assert newest(tmp_path) == 0


def test_a_failed_save_is_tried_again_by_all_ranks_and_then_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_disk(monkeypatch, "rank-1.pt", iter([True]))
    model = net()
    savers = [saver_for(place(tmp_path, rank, 2), model, Heard()) for rank in (0, 1)]
    assert together(savers, 7) == [False, False]
    assert together(savers, 7) == [True, True]
    assert together(savers, 7) == [True, True], "and is not done a third time"
    assert together(savers, 8) == [True, True]


def test_a_file_that_reads_back_differently_is_not_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = {"w": torch.arange(100.0), "n": [1, 2.5, None, float("nan")]}
    durable.write_tensors(tmp_path / "good.pt", tree)
    changed = {"w": torch.arange(100.0).index_fill(0, torch.tensor([57]), 0.5), "n": tree["n"]}
    monkeypatch.setattr(torch, "load", lambda *_, **__: changed)
    with pytest.raises(CheckpointError, match=r"differs from memory at \.w"):
        durable.write_tensors(tmp_path / "bad.pt", tree)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_tensors_of_every_kind_come_back(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    base = (torch.randn(6, 5) * 10).to(dtype)
    tied = base.clone()
    tree: dict[str, Any] = {
        "transposed": base.t(),
        "channels": base[None, None].to(memory_format=torch.channels_last),
        "part": base[1:3, ::2],
        "empty": base[:0],
        "scalar": base[0, 0],
        "tied": [tied, tied],
    }
    entry = durable.write_tensors(tmp_path / "x.pt", plain(tree, reference_tensor))
    assert layout.file_sha256(tmp_path / "x.pt") == entry.sha256
    staged, arrived = Staging().copy(tree)
    arrived()
    for found in (durable.load_tensors(tmp_path / "x.pt"), staged):
        assert durable.first_difference(tree, found) is None
        assert found["channels"].stride() == tree["channels"].stride()
        assert found["tied"][0].data_ptr() == found["tied"][1].data_ptr()


def test_torch_keeps_its_own_checksums_for_the_users_saves(tmp_path: Path) -> None:
    if not hasattr(torch.serialization, "get_crc32_options"):
        pytest.skip("this torch always computes them")
    before = torch.serialization.get_crc32_options()
    durable.write_tensors(tmp_path / "x.pt", {"w": torch.ones(3)})
    assert torch.serialization.get_crc32_options() is before is True
