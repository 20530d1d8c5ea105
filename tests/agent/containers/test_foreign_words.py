"""A container program runs for its user, with that user's settings: it may say anything, for any time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cotenant.agent.containers.processes import find_mains, remove_containers
from cotenant.agent.ipc.records import ContainerRuntime, Order, RankOrder
from cotenant.controller.domain import Container, Launch
from tests.building.orders import PLAIN, changed


def order_with(program: Path) -> Order:
    return changed(
        PLAIN,
        launch=Launch(container=Container(image="py:1"), uid=os.geteuid(), gid=os.getegid()),
        ranks=(RankOrder(rank=0, local_rank=0),),
        runtime=ContainerRuntime(name="podman", program=str(program), image="py:1"),
    )


ENDS = {
    "good": ("exit 0", ""),
    "none": ("echo 'Error: No such container: x' >&2; exit 1", ""),
    "words": ("echo one >&2; echo two >&2; exit 3", "its containers cannot be removed: two"),
    "no words": ("exit 3", "its containers cannot be removed: 3"),
    "many words": (
        "yes x | head -c 500000 >&2; exit 3",
        "its containers cannot be removed: x",
    ),
    "no text": ("printf '\\377\\376' >&2; exit 3", "its containers cannot be removed: \ufffd"),
    "endless words": ("exec yes >&2", "timed out"),
    "no end": ("exec sleep 600", "timed out"),
    "no end, no words": ("exec sleep 600 2>&-", "timed out"),
}


@pytest.mark.parametrize(("script", "says"), ENDS.values(), ids=ENDS.keys())
def test_any_end_of_a_removal_is_one_short_line(tmp_path: Path, script: str, says: str) -> None:
    program = tmp_path / "podman"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    wait_s = 1.0 if says == "timed out" else 60.0
    said = remove_containers(order_with(program), tmp_path, wait_s)
    assert says in said and len(said) < 1000 and bool(said) == bool(says)


def test_processes_without_the_sign_are_nobodys_main() -> None:
    assert list(find_mains(Path("/nowhere/job.sock"), ())) == []
