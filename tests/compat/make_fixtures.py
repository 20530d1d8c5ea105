"""Write one fixture of each format in its present version.

    python -m tests.compat.make_fixtures journal past-job    # others: keys checkpoint records spool wire

Run it once per version of a format, before that version is released, and never again: the files are the
promise. The keys are nobody's.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
from pathlib import Path

import torch

from cotenant.agent.daemon.spool import Spool
from cotenant.agent.ipc.files import write_record
from cotenant.agent.ipc.records import Order, Result, Status
from cotenant.checkpoint.disk.saver import Saver, SaveTarget
from cotenant.checkpoint.training.state import TrainingState
from cotenant.controller.domain import (
    AttemptNo,
    CommandId,
    Device,
    DeviceId,
    ExitVerdict,
    GangMember,
    HostId,
    HostReport,
    JobId,
    JobSpec,
    Launch,
    StartAttempt,
    StopAttempt,
    because,
)
from cotenant.controller.store import JOURNAL_VERSION
from cotenant.controller.system import keys
from cotenant.controller.wire import WIRE_VERSION, agents, clients, encode
from tests.agent.daemon.test_spool import NOTES
from tests.controller.station import Station, job, run_one

HERE = Path(__file__).parent
HOST, JOB, ONE = HostId("h1"), JobId("1"), AttemptNo(1)
DEVICE = Device(
    device_id=DeviceId("h1/0"), host_id=HOST, kind="cpu", type="cpu", local="0-1", memory_mib=8_000
)


def write_keys() -> None:
    folder = HERE / "keys-1"
    keys.init_cluster(folder)
    keys.add_user(folder, "alice", 1001)
    keys.add_agent(folder, "h1")


def write_checkpoint() -> None:
    """A model and its optimizer after three steps, with the numbers that came of them beside it."""
    folder = HERE / "checkpoint-1"
    torch.manual_seed(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
    place = SaveTarget(root=folder, job="j1", attempt=1, rank=0, world_size=1, keep=2, idle_s_max=20.0)
    state = TrainingState(model, optimizer, None, None, None)
    manifest = {"job": "j1", "facts": {}, "history": ((0, 1),), "exact": True, "note": ""}
    saver = Saver(place, state, lambda message, /, **fields: None)
    assert saver.save(3, {**state.own(0), "position": {}}, manifest, wait=True)
    values = [each.detach().reshape(-1).tolist() for each in model.parameters()]
    (folder / "parameters.json").write_text(json.dumps(values) + "\n")


def a_start() -> StartAttempt:
    return StartAttempt(
        command_id=CommandId(0),
        job_id=JOB,
        attempt=ONE,
        host_id=HOST,
        launch=Launch(argv=("python", "train.py"), workdir="/work", env={"A": "1"}),
        gang=(GangMember(host_id=HOST, devices=(DEVICE.device_id,), first_rank=0),),
        master_address="127.0.0.1",
        master_port=29_500,
        sub_batch=8,
        accumulation_steps=4,
        memory_cap_mib=4_000,
        host_memory_mib=0,
        cpus=0,
        resume_step=3,
        checkpoint_every_s=600.0,
    )


def write_records() -> None:
    order = Order(
        start=a_start(),
        world_size=1,
        ranks=(),
        checkpoint_root="/c",
        lease_s=300.0,
        start_deadline_s=60.0,
        log_bytes_max=1 << 20,
        jobside_path="/j",
    )
    status = Status(job_id=JOB, attempt=ONE, step=7)
    result = Result(status=status, verdict=ExitVerdict(outcome="finished", exit_code=0, detail="exit code 0"))
    folder = HERE / "attempt-1"
    folder.mkdir(exist_ok=True)
    write_record(folder / "order.json", order, mode=0o644)
    write_record(folder / "result.json", result, mode=0o644)


def write_spool() -> None:
    with tempfile.TemporaryDirectory() as name:
        spool = Spool(Path(name) / "spool")
        spool.load()
        spool.append(NOTES)
        spool.close()
        (HERE / "spool-1.bin").write_bytes((Path(name) / "spool").read_bytes())


def live(station: Station) -> None:
    """Four jobs on one device: finished, running, queued, cancelled; a policy change in between."""
    address = station.join("h1", devices=1)
    station.ask(clients.Submit(specs=(job("first"),), idempotency_key="compat"))
    for name in ("second", "third", "fourth"):
        station.submit(name=name, memory_mib=4_000, expected_s=100.0)
    run_one(station, address, JobId("1"))
    station.ask(clients.SetPolicy(name="sjf"))
    station.core.snapshot()
    station.time_s += 5.0
    run_one(station, address, JobId("2"), until="step")
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(JobId("4"),)))


def lived(folder: Path, keep_ended: int = 10_000) -> sqlite3.Connection:
    """The journal of a station that has lived and closed."""
    station = Station(folder, keep_ended=keep_ended)
    live(station)
    station.close()
    return sqlite3.connect(folder / "journal.sqlite")


def write_past_job() -> None:
    """A job that only the journal knows."""
    with tempfile.TemporaryDirectory() as name:
        database = lived(Path(name), keep_ended=0)
        ((data,),) = database.execute("SELECT data FROM past_jobs WHERE job = '1'")
        database.close()
    (HERE / "past-job-1.bin").write_bytes(data)


def write_journal() -> None:
    with tempfile.TemporaryDirectory() as name:
        database = lived(Path(name))
        database.execute("UPDATE meta SET value = 'c0ffee00c0ffee00' WHERE key = 'name'")
        database.execute("UPDATE runs SET pid = 1")
        lines = [*database.iterdump(), f"PRAGMA user_version={JOURNAL_VERSION};"]
        database.close()
    (HERE / f"journal-{JOURNAL_VERSION}.sql").write_text("\n".join(lines) + "\n")


def frames() -> dict[str, bytes]:
    stop = StopAttempt(
        command_id=CommandId(9),
        host_id=HOST,
        job_id=JOB,
        attempt=ONE,
        save=True,
        deadline_s=60.0,
        reason=because("submitted", "alice"),
    )
    report = HostReport(host_id=HOST, devices=(DEVICE,))
    submit = clients.Submit(
        specs=(JobSpec(job_id=JobId(""), name="first", launch=Launch(argv=("true",))),), idempotency_key="k"
    )
    return {
        "hello": encode(agents.Hello(session="s", report=report, attempts=())),
        "stop": encode(agents.CommandDelivery(command=stop)),
        "beat": encode(agents.Heartbeat(beat=4, session="s")),
        "submit": encode(clients.Request(request_id=1, body=submit)),
        "failure": encode(clients.Failure(request_id=1, code="refused", message="no", hint="")),
        "start": encode(agents.CommandDelivery(command=a_start())),
    }


def write_wire() -> None:
    text = json.dumps({name: frame.hex() for name, frame in frames().items()}, indent=1)
    (HERE / f"wire-{WIRE_VERSION}.json").write_text(text + "\n")


MAKERS = {
    "keys": write_keys,
    "checkpoint": write_checkpoint,
    "records": write_records,
    "spool": write_spool,
    "journal": write_journal,
    "past-job": write_past_job,
    "wire": write_wire,
}


if __name__ == "__main__":
    for each in sys.argv[1:]:
        MAKERS[each]()
