"""Each format's present version is read, as `make_fixtures.py` wrote it; an unknown one is refused with what
to do."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from cotenant.agent.daemon.spool import Spool, SpoolProblem
from cotenant.agent.ipc.files import BadRecord, read_record
from cotenant.agent.ipc.records import Order, Result
from cotenant.agent.supervisor.core import rank_messages
from cotenant.checkpoint.disk.layout import Manifest, TooNew, verify
from cotenant.checkpoint.resuming import load_newest
from cotenant.controller.domain import JobId, Phase
from cotenant.controller.engine import Engine, EngineConfig
from cotenant.controller.history import JobRecord
from cotenant.controller.policies import registry
from cotenant.controller.store import Core, Journal, JournalError, RecoveredState, recover
from cotenant.controller.system import keys
from cotenant.controller.wire import BadMessage, WrongVersion, agents, clients, decode, unpack_struct
from tests.agent.daemon.test_spool import NOTES
from tests.building import journals
from tests.compat.make_fixtures import frames

HERE = Path(__file__).parent
FRAMES = {
    name: bytes.fromhex(frame) for name, frame in json.loads((HERE / "wire-1.json").read_text()).items()
}
KINDS: dict[str, Any] = {
    "hello": agents.FromAgent,
    "beat": agents.FromAgent,
    "stop": agents.ToAgent,
    "start": agents.ToAgent,
    "submit": clients.Request,
    "failure": clients.AnyReply,
}


def a_journal(folder: Path, *, read_from: Path, version: int = 1) -> Journal:
    """The journal of a fixture, opened."""
    database = sqlite3.connect(folder / "journal.sqlite")
    database.executescript(read_from.read_text())
    database.execute(f"PRAGMA user_version={version}")
    database.close()
    return journals.a_journal(folder)


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


def test_an_attempts_records() -> None:
    order = read_record(HERE / "attempt-1" / "order.json", Order)
    assert order is not None and (order.version, order.launch.argv) == (1, ("python", "train.py"))
    assert (order.start.memory_cap_mib, order.gang[0].host_id, order.is_first_host) == (4_000, "h1", True)
    result = read_record(HERE / "attempt-1" / "result.json", Result)
    assert result is not None and (result.verdict.outcome, result.step) == ("finished", 7)


def test_an_agents_spool(tmp_path: Path) -> None:
    shutil.copy(HERE / "spool-1.bin", tmp_path / "spool")
    spool = Spool(tmp_path / "spool")
    assert spool.load() == NOTES
    spool.close()


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame(name: str) -> None:
    assert decode(FRAMES[name], KINDS[name]) == decode(frames()[name], KINDS[name])


def test_a_journal(tmp_path: Path) -> None:
    journal = a_journal(tmp_path, read_from=HERE / "journal-1.sql")
    core = Core(journal, registry.make, EngineConfig(), package="later", wall_s=5_000.0)
    engine = core.state.engine
    phases = {job_id: job.phase for job_id, job in engine.jobs.items()}
    assert phases == {"1": Phase.DONE, "2": Phase.RUNNING, "3": Phase.QUEUED, "4": Phase.CANCELLED}
    assert [record.outcome for record in core.state.history.attempts(JobId("1"))] == ["finished"]
    assert journal.submission("root", "compat") == ("1",)
    assert journal.name == "c0ffee00c0ffee00"
    assert (engine.ledger.epoch.number, len(engine.ledger.epochs_past)) == (2, 1)
    journal.close()


# --- An unknown version is refused, with what to do ------------------------------------------------------


def test_a_frame_of_an_unknown_version() -> None:
    with pytest.raises(WrongVersion, match="speaks version 99, this is 1: upgrade cotenant here"):
        decode(of_version_99(FRAMES["beat"], b"\x01"), agents.FromAgent)


def test_a_journal_of_an_unknown_version(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="journal version 99, this program reads 1: upgrade cotenant here"):
        a_journal(tmp_path, read_from=HERE / "journal-1.sql", version=99)


def test_a_snapshot_of_an_unknown_version_is_left_out_and_the_entries_read(tmp_path: Path) -> None:
    journal = a_journal(tmp_path, read_from=HERE / "journal-1.sql")
    ((_, data),) = journal.snapshots()
    image = msgspec.msgpack.decode(data)
    image["engine"]["version"] = 99
    with pytest.raises(BadMessage, match="snapshot of version 99"):
        RecoveredState(Engine(registry.make)).load(msgspec.msgpack.encode(image))
    journal.keep_snapshot(msgspec.msgpack.encode(image))
    journal.flush()
    assert len(recover(journal, registry.make, EngineConfig()).engine.jobs) == 4
    journal.close()


@pytest.mark.parametrize(("name", "kind"), [("order.json", Order), ("result.json", Result)])
def test_a_record_of_an_unknown_version(tmp_path: Path, name: str, kind: type) -> None:
    data = (HERE / "attempt-1" / name).read_bytes()
    (tmp_path / name).write_bytes(of_version_99(data, b'"version": 1'))
    with pytest.raises(BadRecord, match="has version 99, this cotenant reads 1: upgrade it"):
        read_record(tmp_path / name, kind)


def test_a_spool_of_an_unknown_version(tmp_path: Path) -> None:
    (tmp_path / "spool").write_bytes(of_version_99((HERE / "spool-1.bin").read_bytes(), b"ctspool\x01"))
    with pytest.raises(SpoolProblem, match="has version 99, this cotenant reads 1: upgrade it here"):
        Spool(tmp_path / "spool").load()


@pytest.mark.parametrize("version", ["99", "0"])
def test_a_manifest_of_an_unknown_version(version: str) -> None:
    path = HERE / "checkpoint-1" / "a1-s3" / "manifest.json"
    data = path.read_bytes().replace(b'"version": 1', b'"version": ' + version.encode())
    with pytest.raises(TooNew, match=f"manifest version {version}, this cotenant reads 1: upgrade"):
        Manifest.from_json(data, path)


def test_keys_of_an_unknown_version(tmp_path: Path) -> None:
    data = (HERE / "keys-1" / keys.USERS_FILE).read_bytes()
    (tmp_path / keys.USERS_FILE).write_bytes(of_version_99(data, b"version = 1"))
    with pytest.raises(keys.KeyProblem, match="has version 99, this program reads 1: upgrade cotenant here"):
        keys.Users(tmp_path)


def test_a_rank_of_an_unknown_job_protocol_is_not_heard() -> None:
    word = b'{"v":1,"m":"watched","rank":0}'
    assert rank_messages.parse(word) is not None
    assert rank_messages.parse(of_version_99(word, b'"v":1')) is None


def of_version_99(data: bytes, version: bytes) -> bytes:
    """The data with 99 in place of the 1 at the end of its first `version`."""
    one = version[-1:]
    return data.replace(version, version[:-1] + (b"99" if one == b"1" else bytes((99,))), 1)
