"""What an earlier version wrote is read: `make_fixtures.py` and `make_journal.py` made the files, once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from cotenant.agent.daemon.spool import Spool
from cotenant.agent.ipc import Order, Result, forgotten_on_disk, read_record
from cotenant.checkpoint.disk.layout import verify
from cotenant.checkpoint.resuming import load_newest
from cotenant.controller.engine import JobRecord
from cotenant.controller.system import keys
from cotenant.controller.wire import agents, clients, decode, unpack_struct
from tests.agent.daemon.test_spool import NOTES
from tests.compat.make_fixtures import frames

HERE = Path(__file__).parent
FRAMES = {
    (version, name): bytes.fromhex(frame)
    for version in (1, 2)
    for name, frame in json.loads((HERE / f"wire-{version}.json").read_text()).items()
}


def test_keys(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    shutil.copytree(HERE / "keys-1", folder)
    folder.chmod(0o700)
    for path in folder.iterdir():
        path.chmod(0o600)
    users = keys.Users(folder)
    alice = users.get(keys.read_key(folder / "user-alice.key").public)
    agent = users.get(keys.find_key(folder, host="h1").public)
    assert alice is not None and (alice.name, alice.role, alice.uid) == ("alice", "user", 1001)
    assert agent is not None and (agent.role, agent.host) == ("agent", "h1")
    controller = keys.read_key(folder / keys.CONTROLLER_KEY)
    assert keys.read_key(folder / keys.ADMIN_KEY).server == controller.public == controller.server


def test_a_job_that_only_the_journal_knows() -> None:
    record = unpack_struct((HERE / "past-job-1.bin").read_bytes(), JobRecord)
    assert (record.job.job_id, record.job.phase, record.job.spec.name) == ("1", "done", "first")
    ((attempt,), notes) = record.attempts, [note.what for note in record.notes]
    assert (attempt.attempt, attempt.outcome, notes[-1]) == (1, "finished", "attempt 1 finished")


def test_a_checkpoint(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    shutil.copytree(HERE / "checkpoint-1", root, symlinks=True)
    manifest = verify(root / "a1-s3")
    assert (manifest.step, manifest.job) == (3, "j1")
    loaded = load_newest(root, attempt=2, resume=None, rank=0, world_size=1)
    assert loaded is not None and loaded.manifest.step == 3
    saved = json.loads((root / "parameters.json").read_text())
    found = [each.reshape(-1).tolist() for each in tensors(loaded.shared)]
    assert [values for values in saved if values in found] == saved


def tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [each for part in parts for each in tensors(part)]


@pytest.mark.parametrize("version", ["1", "2"])
def test_an_attempts_records(version: str) -> None:
    order = read_record(HERE / f"attempt-{version}" / "order.json", Order)
    assert order is not None and (order.version, order.launch.argv) == (2, ("python", "train.py"))
    assert (order.start.memory_cap_mib, order.gang[0].host_id, order.is_first_host) == (4_000, "h1", True)
    result = read_record(HERE / f"attempt-{version}" / "result.json", Result)
    assert result is not None and (result.outcome, result.step) == ("finished", 7)


@pytest.mark.parametrize(("name", "kind"), [("order.json", Order), ("result.json", Result)])
def test_a_record_of_the_version_before_says_what_one_of_today_says(name: str, kind: type) -> None:
    before, today = (read_record(HERE / f"attempt-{version}" / name, kind) for version in (1, 2))
    assert before == today


def test_secrets_in_an_order_of_the_version_before_go_and_nothing_else_does(tmp_path: Path) -> None:
    """Who waits for that supervisor's end is of its version, too, and still has to read it."""
    said = json.loads((HERE / "attempt-1" / "order.json").read_text())
    (tmp_path / "order.json").write_text(json.dumps({**said, "secrets": {"A_TOKEN": "hush"}}))
    forgotten_on_disk(tmp_path)
    assert json.loads((tmp_path / "order.json").read_text()) == said


def test_an_agents_spool(tmp_path: Path) -> None:
    shutil.copy(HERE / "spool-1.bin", tmp_path / "spool")
    spool = Spool(tmp_path / "spool")
    assert spool.load() == NOTES
    spool.close()


@pytest.mark.parametrize(("version", "name"), FRAMES)
def test_a_frame(version: int, name: str) -> None:
    kinds: dict[str, Any] = {"submit": clients.Request, "stop": agents.ToAgent, "start": agents.ToAgent}
    is_answer = name == "failure" or name.startswith("answer: ")
    kind = clients.AnyReply if is_answer else kinds.get(name, agents.FromAgent)
    said: Any = decode(FRAMES[version, name], kind)
    assert said == decode(frames()[name], kind)
