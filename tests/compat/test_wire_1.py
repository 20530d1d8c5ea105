"""Version 1 of the wire: its commands and its controllers are understood, and what is printed is what it was.

`wire-1-answers.json` was written by the last version that spoke it: what a controller answered, and what its
commands printed of that.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgpack
import msgspec
import pytest
import zmq

from cotenant.agent.daemon.connections import ControllerLink
from cotenant.controller.cli.main import main
from cotenant.controller.domain import Profile
from cotenant.controller.wire import (
    SPEAKS,
    BadMessage,
    PeerVersions,
    agents,
    clients,
    decode,
    encode,
    heard,
    in_version,
    utc,
    version_of,
    wall_s,
)
from tests.compat.make_fixtures import a_start
from tests.controller.station import Station

HERE: Final = Path(__file__).parent
SAID: Final = json.loads((HERE / "wire-1-answers.json").read_text())
ANSWERS: Final = {name: bytes.fromhex(frame) for name, frame in SAID["answers"].items()}


class ControllerOf1:
    """Answers the questions of version 1, and says to others what version 1 said to them."""

    def __init__(self, endpoint: str) -> None:
        self.answers: dict[str, bytes] = {}
        self.heard: list[int] = []
        self.refusal = b""
        """Of whatever is said, in ours."""
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(endpoint)
        self._ender = self._context.socket(zmq.PAIR)
        self._ender.bind("inproc://end")
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        end = self._context.socket(zmq.PAIR)
        end.connect("inproc://end")
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(end, zmq.POLLIN)
        while end not in (ready := dict(poller.poll())):
            if self._router in ready:
                who, *_, frame = self._router.recv_multipart()
                self._router.send_multipart([who, self._answer(frame)])
        end.close(0)

    def _answer(self, frame: bytes) -> bytes:
        version, request = msgpack.unpackb(frame)
        self.heard.append(version)
        if self.refusal:
            return in_version(self.refusal, version)
        if version != 1:
            why = f"{SPEAKS.format(1)}, you speak {version}: upgrade the controller, which comes first"
            refusal = {"m": "failure", "request_id": 0, "code": "version", "message": why, "hint": ""}
            return bytes(msgpack.packb([version, refusal]))
        _, body = msgpack.unpackb(self.answers[request["body"]["m"]])
        return bytes(msgpack.packb([1, {**body, "request_id": request["request_id"]}]))

    def close(self) -> None:
        self._ender.send(b"")
        self._thread.join(10)
        self._router.close(0)
        self._ender.close(0)
        self._context.term()


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where its controller is."""
    endpoint = f"ipc://{tmp_path / 'c.sock'}"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setenv("COTENANT_CONFIG", str(tmp_path / "none.toml"))
    (tmp_path / "none.toml").write_text("")
    monkeypatch.setenv("COTENANT_CONTROLLER__ENDPOINT", endpoint)
    yield endpoint
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def controller_of_1(at_home: str) -> Iterator[ControllerOf1]:
    controller = ControllerOf1(at_home)
    yield controller
    controller.close()


@pytest.fixture
def controller_of_2(at_home: str) -> Iterator[ControllerOf2]:
    controller = ControllerOf2(at_home)
    yield controller
    controller.close()


ADDED: Final = frozenset(
    (
        *(
            "total_steps",
            "total_note",
            "batch_rows",
            "batch_note",
            "start_assumed",
            "start_assumed_at",
            "fork_servers",
            "launch_why",
            "warm",
        ),
        *("shared", "promises", "won_device_s", "first_predicted_xi", "second_predicted_xi"),
        *("alone_device_s", "measured_device_s", "priority", "organisation", "eta", "ahead"),
        *("guaranteed_h", "broken_promises", "classes", "organisations"),
        *("group", "choose", "promised", "promised_at"),
        *("gpus_range", "resizes", "speedups", "speedups_source", "gpu_fraction", "parts"),
        *("jobs_planned_mib", "policy_state", "cpus_asked", "memory_asked_mib", "cause"),
        *("verbs", "settable", "asker", "asker_is_admin"),
        *("array", "next_before", "by_state", "forgotten_jobs"),
    )
)
"""What people and commands are told since then; so are an attempt's `launch` and wide columns of nodes."""


def of_then(value: Any) -> Any:
    """Without what was added since."""
    if isinstance(value, list):
        return [of_then(each) for each in value]
    if not isinstance(value, dict):
        return value
    known = {key: each for key, each in value.items() if key not in ADDED}
    if isinstance(known.get("launch"), str):  # Of an attempt; a specification has more behind it.
        del known["launch"]
    if "points" in known:  # A profile.
        known.pop("step_s", None)
    return {key: of_then(each) for key, each in known.items()}


def assert_as_then(now: str, then: str, words: list[str]) -> None:
    """Documents have the same keys in the same order. A wide table has a column more, and so other widths."""
    if "wide" in words:
        assert {word for word in then.split() if not word.endswith("…")} <= set(now.split())
    elif then.startswith("{"):
        documents = [[now], [then]] if then.startswith("{\n") else [now.splitlines(), then.splitlines()]
        one, other = ([json.dumps(of_then(json.loads(each))) for each in texts] for texts in documents)
        assert one == other
    else:
        assert now == then


@pytest.mark.parametrize("case", SAID["printed"], ids=lambda case: " ".join(case["words"]))
def test_a_command_prints_of_a_controller_of_version_1_what_that_versions_own_did(
    controller_of_1: ControllerOf1, case: dict[str, Any], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    asked = {"policy": "policy-view", **case["answers"]}  # `top` asks more than it did.
    controller_of_1.answers = {kind: ANSWERS[name] for kind, name in asked.items()}
    assert main(case["words"]) == 0
    assert_as_then(capsysbinary.readouterr().out.decode(), case["printed"], case["words"])
    assert controller_of_1.heard == [2, *[1] * (len(case["answers"]) + (case["words"][0] == "top"))], (
        "it was asked once in ours, and then in its own"
    )


class ControllerOf2(ControllerOf1):
    """Says the same in ours."""

    def _answer(self, frame: bytes) -> bytes:
        request: clients.Request = decode(frame, clients.Request)
        kind = msgpack.unpackb(frame)[1]["body"]["m"]
        answer: clients.AnyReply = decode(self.answers[kind], clients.AnyReply, heard)
        return encode(msgspec.structs.replace(answer, request_id=request.request_id))


@pytest.mark.parametrize("case", SAID["printed"], ids=lambda case: " ".join(case["words"]))
def test_what_is_printed_is_what_it_was(
    controller_of_2: ControllerOf2, case: dict[str, Any], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    asked = {"policy": "policy-view", **case["answers"]}  # `top` asks more than it did.
    controller_of_2.answers = {kind: ANSWERS[name] for kind, name in asked.items()}
    assert main(case["words"]) == 0
    assert_as_then(capsysbinary.readouterr().out.decode(), case["printed"], case["words"])


def test_a_command_that_is_refused_in_both_versions_says_so(
    controller_of_1: ControllerOf1, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "this controller speaks version 7 of the wire, you speak 2: upgrade cotenant where you are"
    refusal = clients.Failure(request_id=0, code="version", message=why)
    controller_of_1.refusal = encode(refusal)
    assert main(["queue"]) == 1
    assert why in capsys.readouterr().err


# --- Commands of version 1 --------------------------------------------------------------------------


def without_time(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """A body of version 1 with its times as a command reads them: of the wall clock, to the millisecond."""
    offset_s = body.pop("wall_s", 0.0) - body.pop("now_s", 0.0)
    times = {
        "submitted_s", "started_s", "ended_s", "launched_s", "first_step_s", "stop_requested_s", "learned_s",
    }  # fmt: skip

    def read(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {key: read(each, key) for key, each in value.items() if key != "schema"}
        if isinstance(value, list):
            return [read(each) for each in value]
        return utc(offset_s + value) if key in times and value is not None else value

    return dict(read(body))


def as_read(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Less what a command of version 1 never showed, and what we say of it is lost."""
    body = without_time(name, body)
    for job in [*body.get("jobs", []), *([body["job"]] if "job" in body else [])]:
        if job["ended_s"] is not None:
            job.update(
                dict.fromkeys(("remaining_s", "expected_load_s", "expected_pause_s")), estimate_source=""
            )
    for holder in [body, *body.get("profiles", [])]:
        if holder.get("profile") is not None:
            known = msgspec.convert(holder["profile"], Profile)
            holder["profile"] = msgspec.structs.replace(known, throughput=None)
    for node in body.get("nodes", []):
        for name in ("port_first", "port_count"):
            node["report"].pop(name, None)
        for device in node["report"]["devices"]:
            device.pop("limits_jobs", None)
    return body


@pytest.mark.parametrize("name", ANSWERS)
def test_a_command_of_version_1_hears_what_it_heard_from_its_own_controller(name: str) -> None:
    ours: Any = decode(ANSWERS[name], clients.AnyReply, heard)
    again = in_version(encode(ours), 1)
    assert version_of(again) == 1
    then, now = (msgpack.unpackb(frame)[1] for frame in (ANSWERS[name], again))
    assert of_then(as_read(now, name)) == of_then(as_read(then, name))


@pytest.mark.parametrize("name", ["job-list", "shown", "node-list", "profile-list", "policy-view"])
@pytest.mark.parametrize("wrong", [None, 3, "x", [], {}, [3], {"x": 1}, 1e300])
def test_an_answer_of_version_1_that_makes_no_sense_is_a_bad_message(name: str, wrong: object) -> None:
    _, body = msgpack.unpackb(ANSWERS[name])
    for field in set(body) - {"m", "request_id", "more", "next", "unavailable", "profile_given"}:
        for worse in ({**body, field: wrong}, {key: each for key, each in body.items() if key != field}):
            with suppress(BadMessage):
                decode(msgpack.packb([1, worse]), clients.AnyReply, heard)


# --- Agents ----------------------------------------------------------------------------------------


def test_an_agent_of_version_1_is_told_to_start_in_its_words_and_one_of_ours_in_fewer() -> None:
    order = agents.CommandDelivery(command=a_start())
    said = {version: msgpack.unpackb(encode(order, version))[1]["command"] for version in (1, 2)}
    assert said[1]["resume_attempt"] is None and "resume_attempt" not in said[2]
    assert in_version(encode(order), 1) == encode(order, 1)
    understood: Any = decode(encode(order, 1), agents.ToAgent)
    assert understood == order
    assert wall_s(utc(12.5)) == 12.5


class AgentsOf1(ControllerOf1):
    """A controller of version 1 as its agents know it."""

    refuses = False

    def _answer(self, frame: bytes) -> bytes:
        version, _ = msgpack.unpackb(frame)
        self.heard.append(version)
        if version != 1 or self.refuses:
            why = f"{SPEAKS.format(1)}, you speak {version}: upgrade the controller, which comes first"
            return encode(agents.HostRefused(why=why), version)
        return encode(agents.Welcome(session="s", lease_s=None, reports_seen=0), 1)


def test_an_agent_speaks_the_version_of_a_controller_that_refused_ours(tmp_path: Path) -> None:
    """And ours again on its next connection: the controller may have been upgraded."""
    controller = AgentsOf1(endpoint := f"ipc://{tmp_path / 'c.sock'}")
    posted: list[agents.ToAgent] = []

    async def answered(link: ControllerLink, came: asyncio.Event) -> agents.ToAgent:
        came.clear()
        while not came.is_set():  # It greets until it is heard.
            link.send(agents.Heartbeat(beat=1, session="s"))
            with suppress(TimeoutError):
                await asyncio.wait_for(came.wait(), 0.1)
        return posted[-1]

    async def talk() -> None:
        came = asyncio.Event()

        def post(message: agents.ToAgent) -> None:
            posted.append(message)
            came.set()

        link = ControllerLink(endpoint, "agent", None, post=post, log=lambda text: None)
        link.open()
        assert isinstance(await answered(link, came), agents.Welcome) and controller.heard[0] == 2
        link.reconnect()
        controller.heard.clear()
        assert isinstance(await answered(link, came), agents.Welcome) and controller.heard[0] == 2
        controller.refuses = True
        while not isinstance(await answered(link, came), agents.HostRefused):
            pass  # An answer from before.
        assert controller.heard[-1] == 1, "what is refused in its own version is said"
        link.end()

    try:
        asyncio.run(talk())
    finally:
        controller.close()


def test_a_command_of_version_1_is_answered_in_it_by_a_whole_controller(tmp_path: Path) -> None:
    station = Station(tmp_path / "state")
    station.join("h1")
    job_id = station.submit()
    sent: list[bytes] = []

    def send(address: bytes, frame: bytes) -> bool:
        sent.append(frame)
        return True

    peers = PeerVersions(send)
    peers.heard(b"old", encode(clients.Request(request_id=5, body=clients.ListJobs()), 1))
    peers.send(b"old", encode(station.ask(clients.ListJobs())))
    version, body = msgpack.unpackb(sent[0])
    (job,) = body["jobs"]
    assert (version, job["job_id"], job["phase"], job["ended_s"]) == (1, job_id, "loading", None)
    assert body["wall_s"] - body["now_s"] + job["submitted_s"] == station.wall_s + station.time_s
    station.close()


def test_a_refusal_of_an_agent_of_ours_says_to_version_1_all_that_had_to_be_there() -> None:
    said = agents.NotFollowed(epoch="a")
    assert msgpack.unpackb(encode(said, 1))[1] == {"m": "not-followed", "epoch": "a", "follows": {}}
    understood: Any = decode(encode(said, 1), agents.FromAgent)
    assert understood == said
