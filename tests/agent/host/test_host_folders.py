"""The folders an agent prepares: the job-side packages, the checkpoint root, a job's own folder."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from cotenant.agent.host import jobside
from cotenant.agent.host.checkpoint_root import NAME_FILE, BadRoot, domain_of, make_checkpoint_folder
from cotenant.agent.host.facts import (
    BadHostName,
    closed_folder,
    host_name,
    memory_mib,
    now_s,
    usable_cores,
)


def test_a_job_sees_the_two_packages_and_nothing_else(tmp_path: Path) -> None:
    folder = jobside.prepare_jobside(tmp_path / "jobside")
    assert sorted(path.name for path in (folder / "cotenant").iterdir()) == [
        "__init__.py", "__pycache__", "checkpoint", "gradaccum",
    ]  # fmt: skip
    program = (
        "import importlib.util as i; print(i.find_spec('cotenant.checkpoint').origin);"
        "print(i.find_spec('cotenant.agent'))"
    )
    # -S: without the environment in which cotenant itself is installed.
    words = [sys.executable, "-S", "-c", program]
    lines = subprocess.check_output(words, env={"PYTHONPATH": str(folder)}, text=True).split()
    assert lines == [str(folder / "cotenant" / "checkpoint" / "__init__.py"), "None"]


def test_every_user_can_read_them_whatever_our_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        folder = jobside.prepare_jobside(tmp_path / "jobside")
    finally:
        os.umask(before)
    for path in (tmp_path / "jobside", folder, *folder.rglob("*")):
        if path.suffix == ".py" and "cotenant" in path.parts:
            compiled = Path(importlib.util.cache_from_source(str(path))).read_bytes()
            assert int.from_bytes(compiled[8:12], "little") == int(path.stat().st_mtime), path
        wanted = 0o755 if path.is_dir() or path.parent.name == "bin" else 0o644
        assert path.stat().st_mode & 0o777 == wanted, path


def test_the_folder_is_named_after_its_content(tmp_path: Path) -> None:
    first = jobside.prepare_jobside(tmp_path)
    assert jobside.prepare_jobside(tmp_path) == first
    fake = tmp_path / "upgraded"
    fake.mkdir()
    (fake / "__init__.py").write_text("version = 2")
    second = jobside.prepare_jobside(tmp_path / "jobside", lambda name: fake)
    assert second.name != first.name
    jobside.remove_other_jobsides(tmp_path / "jobside", {second})
    assert second.is_dir()


def test_versions_that_no_attempt_uses_go(tmp_path: Path) -> None:
    for name in ("old", "used", "new"):
        (tmp_path / name).mkdir()
    jobside.remove_other_jobsides(tmp_path, {tmp_path / "used", tmp_path / "new"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "used"]


def test_hosts_that_see_one_root_read_one_name(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    assert domain_of(shared, "h1") == domain_of(shared, "h2")
    assert domain_of(own, "h3") != domain_of(shared, "h1")
    assert sorted(path.name for path in (shared / ".cotenant-hosts").iterdir()) == ["h1", "h2"]
    assert [path.name for path in shared.iterdir() if path.name.startswith(".") and len(path.name) > 30] == []


def test_hosts_that_come_at_once_agree(tmp_path: Path) -> None:
    names: list[str] = []
    gate = threading.Barrier(8)

    def join(number: int) -> None:
        gate.wait()
        names.append(domain_of(tmp_path / "root", f"h{number}"))

    threads = [threading.Thread(target=join, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names) == 8
    assert len(set(names)) == 1


def test_a_root_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRoot, match=r"set checkpoint\.root to a folder that this agent can write to"):
        domain_of(tmp_path / "file" / "root", "h1")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / NAME_FILE).write_text("")
    with pytest.raises(BadRoot, match="damaged"):
        domain_of(tmp_path / "root", "h1")


def test_a_jobs_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "journal" / "7"
    make_checkpoint_folder(folder, os.getuid(), os.getgid())
    make_checkpoint_folder(folder, os.getuid(), os.getgid())
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives a folder to another user")
def test_root_gives_it_to_the_jobs_user_and_follows_no_link(tmp_path: Path) -> None:
    make_checkpoint_folder(tmp_path / "journal" / "7", 12345, 12345)
    assert (tmp_path / "journal" / "7").stat().st_uid == 12345
    (tmp_path / "treasure").mkdir()
    (tmp_path / "journal" / "8").symlink_to(tmp_path / "treasure")
    with pytest.raises(NotADirectoryError):
        make_checkpoint_folder(tmp_path / "journal" / "8", 12345, 12345)
    assert (tmp_path / "treasure").stat().st_uid == 0


def test_facts_about_this_machine() -> None:
    assert host_name("gpu-07.rack2") == "gpu-07.rack2"
    assert host_name("")
    for bad in ("a/b", ".hidden", "x" * 65, "a b"):
        with pytest.raises(BadHostName):
            host_name(bad)
    assert len(usable_cores()) == len(os.sched_getaffinity(0))
    assert memory_mib() > 100
    assert now_s() <= now_s()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root has jobs of other users")
def test_a_folder_that_others_cannot_enter_is_found(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        inner = top / "a" / "b"
        inner.mkdir(parents=True)
        top.chmod(0o755)
        assert closed_folder(inner) is None
        top.joinpath("a").chmod(0o700)
        assert closed_folder(inner) == top / "a"
