"""Valid bytes that were damaged: whatever reads them answers as it always does to what it cannot use.

Each row is one kind of thing from outside, a valid one of it, who reads it, and the errors that reader
promises.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.agent.daemon.core.notes import Aged, Obeyed
from cotenant.agent.daemon.spool import Spool, SpoolProblem
from cotenant.agent.gpus.device_states import DeviceStateStore, NotedCause
from cotenant.agent.gpus.probe_results import ProbeFailed
from cotenant.agent.gpus.watchers import WatchLineCodec
from cotenant.agent.host import folders
from cotenant.agent.ipc.channel import Deframer, frame_message
from cotenant.agent.ipc.files import BadRecord, read_record
from cotenant.agent.ipc.records import Durable, ProcessIdentity, Status
from cotenant.agent.supervisor.core import coordination, rank_messages
from cotenant.agent.supervisor.processes import termination
from cotenant.checkpoint.disk.layout import Damaged, Manifest, TooNew
from cotenant.controller.domain import AttemptNo, CommandId, JobId, StopAttempt, because
from cotenant.controller.submission import options
from cotenant.controller.system.keys import KeyProblem, read_key
from cotenant.controller.system.secrets import BadSecrets, Secrets
from cotenant.controller.system.settings import SettingsError, load
from cotenant.controller.wire import (
    BadMessage,
    clients,
    decode,
    decode_json,
    decode_text,
    encode,
    pack,
    unpack,
)
from cotenant.controller.wire import agents as wire
from cotenant.mps.ownership import Ownership
from cotenant.profiler.driver.facts import DriverFacts, GpuFacts
from cotenant.profiler.indicators.device_process import DeviceAnswer
from tests.agent.test_user_files import of
from tests.building.orders import stop
from tests.building.results import result

KEY: dict[str, Any] = {"job_id": JobId("7"), "attempt": AttemptNo(1)}
RESULT = result(detail="größer", durable=(Durable(step=9, name="a1-s9", exact=True),))
STATUS = Status(**KEY, started=True, step=4, loss=0.5, note="ü", failed=("save: No space left on device",))
MARKS = DeviceStateStore(
    boot_id="b",
    marks=(
        NotedCause(
            uuid="GPU-1", state="suspect", why="ß", since_s=3.5, concerned=((JobId("7"), AttemptNo(1)),)
        ),
    ),
)
STOP = stop("7", 1, 7, host="a", reason=because("preempted-for", "9", 1.5, 900.0))
MANIFEST = Manifest(
    job="7",
    attempt=1,
    step=9,
    world_size=1,
    files={},
    parameters_sha256="0" * 64,
    facts={"torch": "2"},
    history=((0, 1),),
    exact=True,
    note="ü",
)
SAID = b'{"v": 1, "m": "step", "rank": 0, "step": 5, "count": 1, "elapsed_s": 0.5, "s": 1, "loss": 0.25}'
HELLO = json.dumps(
    {
        "v": 1,
        "m": "hello",
        "rank": 0,
        "world_size": 1,
        "resumable": True,
        "accumulates": True,
        "step": 0,
        "note": "ü",
    },
    ensure_ascii=False,
).encode()


class Kind(NamedTuple):
    valid: bytes
    read: Callable[[bytes, Path], object]
    errors: tuple[type[Exception], ...] = ()
    """None: it answers None, or what stands for nothing."""


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    def write_and_read(data: bytes, folder: Path) -> object:
        path = folder / name
        path.write_bytes(data)
        path.chmod(0o600)
        return read(path)

    return write_and_read


def record(value: msgspec.Struct) -> Kind:
    return Kind(
        msgspec.json.format(msgspec.json.encode(value)),
        in_file("record.json", lambda path: read_record(path, type(value))),
        (BadRecord,),
    )


def spool_in(path: Path) -> object:
    spool = Spool(path)
    try:
        return spool.load()
    finally:
        spool.close()


def secrets_in(path: Path) -> object:
    return Secrets(path.parent).read(JobId("7"), ["A_TOKEN"])


def mps_record_in(path: Path) -> object:
    owned = Ownership(PurePosixPath(path.with_suffix("")), "me")
    owned.release()
    return owned.record


def a_spool() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        spool = Spool(Path(name) / "spool")
        spool.load()
        spool.append([Aged(age_s=1.0), Obeyed(command_id=CommandId(3)), Aged(age_s=2.0)])
        spool.close()
        return (Path(name) / "spool").read_bytes()


WORD = coordination.MemberNow(
    sequence=4, ranks=(coordination.RankNow(rank=0, step=5, world_size=2, resumable=True),), step_s=0.5
)
PUBLIC, SECRET = (half.decode() for half in zmq.curve_keypair())
KINDS: dict[str, Kind] = {
    "a frame of an agent": Kind(
        encode(wire.Heartbeat(beat=1, session="ü", progress=(wire.AttemptProgress(**KEY, step=3),))),
        lambda data, _: decode(data, wire.FromAgent),
        (BadMessage,),
    ),
    "a frame for an agent": Kind(
        encode(wire.CommandDelivery(command=STOP, secrets={"TOKEN": "ß"})),
        lambda data, _: decode(data, wire.ToAgent),
        (BadMessage,),
    ),
    "a question of a client": Kind(
        encode(clients.Request(request_id=1, body=clients.Submit(specs=()))),
        lambda data, _: decode(data, clients.Request),
        (BadMessage,),
    ),
    "frames on a stream": Kind(
        frame_message(wire.Renew(beat=3)) * 2,
        lambda data, _: Deframer(wire.ToAgent).feed(data),
        (BadMessage,),
    ),
    "a journal's value": Kind(pack(STOP), lambda data, _: unpack(data, StopAttempt), (BadMessage,)),
    "a rank's hello": Kind(HELLO, lambda data, _: rank_messages.parse(data)),
    "a rank's step": Kind(SAID, lambda data, _: rank_messages.parse(data)),
    "a gang's word": Kind(coordination.payload(WORD), lambda data, _: coordination.parse_payload(data)),
    "an order": record(of(1000)),
    "a result": record(RESULT),
    "a status": record(STATUS),
    "an identity": record(ProcessIdentity(pid=1, start_ticks=2, boot_id="b")),
    "marks of GPUs": record(MARKS),
    "a spool": Kind(a_spool(), in_file("spool", spool_in), (SpoolProblem,)),
    "a token": Kind(b"0123456789abcdef\n", in_file("token", lambda path: folders.token_in(path.parent))),
    "a daemon's owner": Kind(
        json.dumps(
            {
                "version": 1,
                "owner": "me",
                "holder": "pid 1",
                "daemon": {"pid": 1, "start_ticks": 2, "boot_id": "b"},
                "socket": [1, 2],
                "compute_modes": {"GPU-ü": 0},
            },
            ensure_ascii=False,
        ).encode(),
        in_file("gpu.owner", mps_record_in),
    ),
    "a watcher's line": Kind(
        msgspec.json.encode(ProbeFailed(problem="not loaded")),
        lambda data, _: WatchLineCodec.decode(data),
        (BadMessage,),
    ),
    "the driver's facts": Kind(
        msgspec.json.encode(DriverFacts(driver="555", gpus=(GpuFacts(index=0, uuid="GPU-1", name="ü"),))),
        lambda data, _: decode_json(data, DriverFacts),
        (BadMessage,),
    ),
    "a source's trouble": Kind(
        msgspec.json.encode(DeviceAnswer(problem="ü")),
        lambda data, _: decode_json(data, DeviceAnswer),
        (BadMessage,),
    ),
    "a daemon's outcomes": Kind(
        '{"12": "done", "13": "gone: ü"}'.encode(), lambda data, _: termination._parse_answer(data)
    ),
    "a text": Kind("größer".encode(), lambda data, _: decode_text(data), (BadMessage,)),
    "secrets": Kind('{"A_TOKEN": "süß"}'.encode(), in_file("7.json", secrets_in), (BadSecrets,)),
    "a manifest": Kind(
        MANIFEST.to_json(), lambda data, folder: Manifest.from_json(data, folder), (Damaged, TooNew)
    ),
    "settings": Kind(
        '[agent]\nhost = "hü"\ndevices = "cpu:2"\n[checkpoint]\nevery_s = 5.0\n'.encode(),
        in_file("cotenant.toml", lambda path: load({}, [path], {})),
        (SettingsError,),
    ),
    "a key": Kind(
        f'public = "{PUBLIC}"\nsecret = "{SECRET}"\nserver = "{PUBLIC}"\n# ü\n'.encode(),
        in_file("ann.key", read_key),
        (KeyProblem,),
    ),
    "a measured profile": Kind(
        '{"profile": {"points": [], "steps": 4, "name": "ü"}}'.encode(),
        in_file("profile.json", lambda path: options.profile(str(path))),
        (ValueError,),
    ),
}

HOW = ("flip", "cut", "drop", "repeat", "text", "deep", "number", "byte")
TEXTS = (b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\\ud800", b"\0")
DEPTHS = (b"[", b'{"a":', b"\x91", b"\x81\xa1a", b"a=[")
NUMBERS = (b"9" * 5000, b"1e999", b"-1", b"NaN", b"\xcf" + b"\xff" * 8)
CHANGES = st.lists(
    st.tuples(st.sampled_from(HOW), st.integers(0, 2**16), st.integers(0, 2**16)), min_size=1, max_size=4
)


def damaged(data: bytes, changes: list[tuple[str, int, int]]) -> bytes:
    for how, place, other in changes:
        at = place % (len(data) + 1)
        end = min(len(data), at + other % 40)
        middle, rest = {
            "flip": (bytes(byte ^ (1 << other % 8) for byte in data[at : at + 1]), data[at + 1 :]),
            "cut": (b"", b""),
            "drop": (b"", data[end:]),
            "repeat": (data[at:end] * (1 + other % 3), data[at:]),
            "text": (TEXTS[other % len(TEXTS)], data[at:]),
            "deep": (DEPTHS[other % len(DEPTHS)] * 3000, data[at:]),
            "number": (NUMBERS[other % len(NUMBERS)], data[at:]),
            "byte": (bytes([other % 256]), data[at + 1 :]),
        }[how]
        data = data[:at] + middle + rest
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("foreign")


def read_as(name: str, data: bytes, folder: Path) -> object:
    for each in folder.iterdir():
        each.unlink()
    return KINDS[name].read(data, folder)


IDS = [name.replace(" ", "-") for name in KINDS]


@pytest.mark.parametrize("name", KINDS, ids=IDS)
@settings(max_examples=60)
@given(changes=CHANGES)
def test_only_the_promised_errors_come_of_damaged_bytes(
    name: str, folder: Path, changes: list[tuple[str, int, int]]
) -> None:
    with suppress(*KINDS[name].errors):
        read_as(name, damaged(KINDS[name].valid, changes), folder)


@pytest.mark.parametrize("name", KINDS, ids=IDS)
def test_nor_of_the_usual_suspects(name: str, folder: Path) -> None:
    valid = KINDS[name].valid
    half = len(valid) // 2
    suspects = [
        b"",
        valid[:half],
        valid[:half] + b"\xff" + valid[half:],
        valid.replace(b"\xc3", b"\xff"),
        valid.replace("ü".encode(), b"\xed\xa0\x80"),
        *(piece * 100_000 for piece in DEPTHS),
    ]
    for each in suspects:
        with suppress(*KINDS[name].errors):
            read_as(name, each, folder)


@pytest.mark.parametrize("name", KINDS, ids=IDS)
def test_the_undamaged_one_is_understood(name: str, folder: Path) -> None:
    assert read_as(name, KINDS[name].valid, folder)
