"""Scripts of the plain pattern are stopped and resumed without knowing it; others say why they cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from cotenant.checkpoint.zerocode.pattern import NotPlain, Plan, plan_of
from tests.checkpoint.ranks import Gang, Supervisor, Warm, launch

HERE = Path(__file__).parent
HOOKED = HERE.parent / "gradaccum" / "hooked.py"


def start(warm: Warm, folder: Path, name: str, env: Mapping[str, str] | None = None) -> Gang:
    script = HERE / "scripts" / f"{name}.py"
    return launch(warm, HOOKED, folder, str(script), str(folder / "saved.pt"), env=env)


def assert_equal(left: Path, right: Path) -> None:
    a, b = torch.load(left, weights_only=True), torch.load(right, weights_only=True)
    assert a.keys() == b.keys()
    for key in a:
        assert torch.equal(a[key], b[key]), f"{key}: {a[key]} and {b[key]}"


@pytest.mark.parametrize(
    ("name", "stop", "batches"), [("plain", 3, 7), ("plain", 16, 7), ("toplevel", 8, 5)], ids=str
)
def test_a_stopped_script_resumes_bit_for_bit(
    warm: Warm, tmp_path: Path, name: str, stop: int, batches: int
) -> None:
    start(warm, tmp_path / "whole", name).wait()
    root = tmp_path / "root"
    with Supervisor(tmp_path / "s", 1) as supervisor:
        zero = {"COTENANT_ZERO_CODE": "accumulate,checkpoint"}
        first = start(warm, tmp_path / "first", name, supervisor.env(root, 1, **zero))
        supervisor.wait_for("hello", gang=first)
        stopped_at = supervisor.agree("stop_at", stop)
        first.wait()
        second = start(warm, tmp_path / "second", name, supervisor.env(root, 2, **zero))
        second.wait()
        hellos = supervisor.wait_for("hello", 3)
    assert [hello["resumable"] for hello in hellos] == [True] * 3
    resumed = hellos[-1]
    assert (resumed["step"], resumed["exact"], resumed["note"]) == (stopped_at, True, "")
    assert 0 < stopped_at < 4 * batches
    assert_equal(tmp_path / "whole" / "saved.pt", tmp_path / "second" / "saved.pt")
