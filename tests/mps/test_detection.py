"""Detection looks without touching a daemon, and every no has its one reason."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from cotenant.mps.answers import control_version
from cotenant.mps.detection import (
    CONTROL,
    DetectedHost,
    look,
    verdict,
    version_line,
)
from cotenant.profiler.driver.facts import GpuFacts
from tests.mps.conftest import host

UUID = "GPU-11111111-2222-3333-4444-555555555555"
HOPPER = GpuFacts(index=0, uuid=UUID, capability=(9, 0), compute_mode=0, mig=False)


def device(**changes: Any) -> GpuFacts:
    return GpuFacts(**{"index": 0, "uuid": UUID, "capability": (9, 0), **changes})


def test_a_hopper_with_a_driver_is_fine() -> None:
    found = verdict(host(), HOPPER)
    assert found.usable
    assert found.reason == f"{CONTROL} at /usr/bin/{CONTROL} (CUDA 13.0)"


def test_a_front_end_that_does_not_tell_its_version_is_fine_too() -> None:
    assert verdict(host(version=None), HOPPER).reason.endswith("(version unknown)")


NO = {
    "an operator who does not want it": (host(allowed=False), HOPPER, "switched off"),
    "another system": (host(system="Darwin"), HOPPER, "needs 64-bit Linux, this is Darwin"),
    "a 32-bit machine": (host(machine="armv7l"), HOPPER, "on armv7l"),
    "no driver": (host(control_path=None, version=None), HOPPER, "is not on PATH"),
    "no place for the daemon": (host(runtime_writable=False), HOPPER, "not writable for user 1000"),
    "an unknown device": (host(), device(capability=None), "unknown"),
    "a device before Volta": (host(), device(capability=(6, 1)), "6.1, and client limits need 7.0"),
    "MIG": (host(), device(mig=True), "split by MIG"),
    "a prohibited device": (host(), device(compute_mode=2), "PROHIBITED"),
    "a runtime folder that is too deep": (host(runtime=PurePosixPath("/" + "x" * 80)), HOPPER, "at most 87"),
}


@pytest.mark.parametrize(("where", "what", "reason"), NO.values(), ids=NO.keys())
def test_a_no_says_why(where: DetectedHost, what: GpuFacts, reason: str) -> None:
    found = verdict(where, what)
    assert not found.usable
    assert reason in found.reason


def test_the_hosts_own_obstacles_show_without_a_device() -> None:
    assert not verdict(host(control_path=None)).usable
    assert verdict(host()).usable


def control(folder: Path, script: str) -> str:
    """A stand-in for the control program, at the process boundary: a script of this name on PATH."""
    folder.mkdir(exist_ok=True)
    path = folder / CONTROL
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_looking_finds_program_and_version(tmp_path: Path) -> None:
    path = control(tmp_path / "bin", 'echo "CUDA MPS Control binary version: 13030"')
    found = look(PurePosixPath(tmp_path / "run"), search_path=str(tmp_path / "bin"))
    assert (found.control_path, found.version) == (path, (13, 3))
    assert found.runtime_writable
    assert found.uid == os.getuid()


def test_looking_where_there_is_none(tmp_path: Path) -> None:
    found = look(PurePosixPath(tmp_path), search_path=str(tmp_path))
    assert found.control_path is None
    assert not verdict(found).usable


def test_an_old_program_says_no_version(tmp_path: Path) -> None:
    path = control(tmp_path, 'echo "Cannot find MPS control daemon process" >&2; exit 1')
    assert control_version(version_line(path)) is None


def test_a_program_that_does_not_start_says_no_version(tmp_path: Path) -> None:
    broken = tmp_path / CONTROL
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o700)
    assert version_line(str(broken)) == ""


def test_a_wedged_program_is_given_up(tmp_path: Path) -> None:
    """`exec`, so that the process that is ended is the one that hangs."""
    assert version_line(control(tmp_path, "exec sleep 30"), timeout_s=0.05) == ""


def test_the_question_never_reaches_a_live_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/someone-elses-daemon")
    seen = tmp_path / "seen"
    version_line(control(tmp_path, f'printf %s "$CUDA_MPS_PIPE_DIRECTORY" > {seen}'))
    assert seen.read_text() not in ("", "/run/someone-elses-daemon")
    assert not Path(seen.read_text()).exists(), "and its folder is gone afterwards"


def test_a_file_in_the_place_of_the_runtime_folder_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    assert not look(PurePosixPath(tmp_path / "run" / "cotenant"), search_path="").runtime_writable


def test_the_stand_in_of_our_tests_cannot_pass_as_the_real_one(stub: str, tmp_path: Path) -> None:
    found = look(PurePosixPath(tmp_path), search_path=str(Path(stub).parent))
    assert found.is_fake
    assert "stand-in" in verdict(found, HOPPER).reason
