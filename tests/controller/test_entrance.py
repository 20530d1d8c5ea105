"""What comes in is bounded and clean, or refused: each text of each message, and all that a key can hold."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.api import BYTES_BURST, BYTES_PER_SECOND
from cotenant.controller.domain import (
    USER_BYTES_MAX,
    AttemptNo,
    Capabilities,
    Dependency,
    ExitVerdict,
    HostId,
    HostState,
    JobId,
    JobMetric,
    JobWords,
    Launch,
    held_bytes,
    job_spec,
    texts,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Ledger
from cotenant.controller.knowledge import COMMAND_CHARACTERS_MAX, beginning, pairs
from cotenant.controller.submission.options import BY_KEY
from cotenant.controller.wire import (
    FROM_AGENTS,
    FROM_CLIENTS,
    LIMITS,
    MESSAGE_BYTES_MAX,
    Inadmissible,
    admit,
    agents,
    clients,
    decode,
    encode,
    request_in,
)
from tests.controller.station import ADMIN, ALICE, BOB, Station, hello, job, report

HOSTILE = "a\x1b[2J\u202e\x9b\nb"


@pytest.fixture
def station(tmp_path: Path) -> Any:
    made = Station(tmp_path)
    yield made
    made.close()


# --- The table --------------------------------------------------------------------------------------


def reachable(kind: Any, found: dict[type, None]) -> dict[type, None]:
    """All types of messages within a type."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind not in found:
            found[kind] = None
            for field in msgspec.structs.fields(kind):
                reachable(field.type, found)
    elif get_origin(kind) in (Union, UnionType, tuple, dict):
        for each in get_args(kind):
            reachable(each, found)
    return found


def test_every_line_of_the_table_is_about_a_text_that_can_come_in() -> None:
    kinds = reachable(clients.AnyRequest, reachable(agents.FromAgent, {}))
    for kind, name in LIMITS:
        assert kind in kinds, kind
        assert name in texts.text_fields(kind), f"{kind.__name__}.{name}"


REQUESTS: tuple[clients.AnyRequest, ...] = (
    clients.ListJobs(user="{}"),
    clients.ListJobs(job_ids=(JobId("{}"),)),
    clients.ShowJob(job_id=JobId("{}")),
    clients.Explain(job_id=JobId("{}")),
    clients.ChangeJobs(verb="cancel", job_ids=(JobId("{}"),)),
    clients.WaitJobs(job_ids=(JobId("{}"),)),
    clients.ReadJobLog(job_id=JobId("{}")),
    clients.ChangeNode(verb="drain", host_id=HostId("{}")),
    clients.SetPolicy(name="{}"),
    clients.SetPolicy(name="fifo", parameters={"{}": 1}),
    clients.SetPolicy(name="fifo", parameters={"x": "{}"}),
    clients.ForgetProfiles(keys=("{}",)),
    clients.GetDecisions(job_id=JobId("{}")),
    clients.Submit(specs=(), idempotency_key="{}"),
    clients.Submit(specs=(job("{}"),)),
    clients.Submit(specs=(job(gpu_type="{}"),)),
    clients.Submit(specs=(job(features=("{}",)),)),
    clients.Submit(specs=(job(organisation="{}"),)),
    clients.Submit(specs=(job(code_sha256="{}"),)),
    clients.Submit(specs=(job(after=(Dependency(job_id=JobId("{}")),)),)),
    clients.Submit(specs=(job(launch=Launch(argv=("x",), zero_code=("{}",))),)),
)


def put(value: Any, text: str) -> Any:
    """The text in place of `{}`."""
    if value == "{}":
        return text
    if isinstance(value, msgspec.Struct):
        fields = {name: put(getattr(value, name), text) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, tuple):
        return tuple(put(each, text) for each in value)
    if isinstance(value, dict):
        return {put(key, text): put(each, text) for key, each in value.items()}
    return value


def texts_in(value: msgspec.Struct) -> Iterator[str]:
    """All texts of a message, those of the values in it too."""
    for name in texts.text_fields(type(value)):
        match getattr(value, name):
            case str() as text:
                yield text
            case msgspec.Struct() as inner:
                yield from texts_in(inner)


@pytest.mark.parametrize("request_", REQUESTS, ids=repr)
def test_a_name_that_is_not_seen_as_it_is_or_too_long_is_refused_in_every_request(
    request_: clients.AnyRequest,
) -> None:
    good = put(request_, "gpu-07")
    assert admit(good, FROM_CLIENTS) is good
    for text, why in ((HOSTILE, "visible"), ("x" * 5_000, "bytes of"), ("é" * 300, "bytes of")):
        with pytest.raises(Inadmissible, match=why) as caught:
            admit(put(request_, text), FROM_CLIENTS)
        assert texts.is_one_line(str(caught.value))
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "launch",
    [
        Launch(argv=("{}",), workdir="/w"),
        Launch(argv=("x",), workdir="{}"),
        Launch(argv=("x",), workdir="/w", output="{}"),
        Launch(argv=("x",), workdir="/w", env={"{}": "1"}),
        Launch(argv=("x",), workdir="/w", env={"A": "{}"}),
        Launch(argv=("x",), workdir="/w", secrets=("{}",)),
    ],
    ids=repr,
)
def test_a_program_s_own_data_stays_as_it_is_but_for_a_nul(launch: Launch) -> None:
    """A command may have lines and colours in it; no path, argument or variable can have a NUL."""
    kept = clients.Submit(specs=(job(launch=put(launch, HOSTILE)),))
    assert admit(kept, FROM_CLIENTS) is kept
    for text, why in (("a\0b", "has a NUL in it"), ("x" * 200_000, "bytes of")):
        with pytest.raises(Inadmissible, match=why):
            admit(clients.Submit(specs=(job(launch=put(launch, text)),)), FROM_CLIENTS)


def test_a_client_hears_what_is_wrong_and_nothing_is_changed(station: Station) -> None:
    for launch in (
        Launch(argv=("x",), workdir="/w", output="\0"),
        Launch(argv=("x", "\0"), workdir="/w"),
        Launch(argv=("x",), workdir="/\0"),
        Launch(argv=("x",), workdir="/w", env={"A": "\0"}),
    ):
        answer = station.ask(clients.Submit(specs=(job(launch=launch),)), ALICE)
        assert isinstance(answer, clients.Failure)
        assert answer.code == "usage", "exit code 2"
        assert "has a NUL in it" in answer.message
    answer = station.ask(clients.Submit(specs=(job("evil\nFAKE ROW"),)), ALICE)
    assert (answer.code, answer.message) == (
        "usage",
        "name must be one line of visible characters, got 'evil\\nFAKE ROW'",
    )
    assert not station.core.state.engine.jobs


# --- Numbers, and what the command line refuses ------------------------------------------------------

entrance = import_module(admit.__module__)
NO_NUMBERS = (math.inf, -math.inf, math.nan, 1e308, -1e308)


def numbers_of(question: type[msgspec.Struct]) -> Iterator[str]:
    for field in msgspec.structs.fields(question):
        if field.type in (float, float | None):
            yield field.name


def test_every_number_of_every_question_has_a_limit() -> None:
    kinds = list(reachable(clients.AnyRequest, {}))
    limited = {(kind, name): most for kind in kinds for name, most in entrance._numbers_of(kind)}
    assert {(kind, name) for kind in kinds for name in numbers_of(kind)} <= set(limited)
    assert {limited[kind, name] for kind, name in limited if name.endswith("_s")} == {entrance.SECONDS_MAX}


@pytest.mark.parametrize("since_s", NO_NUMBERS)
def test_a_question_about_all_time_is_refused_in_words(
    station: Station, since_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    for question in (
        clients.GetReport(since_s=since_s),
        clients.GetUsage(since_s=since_s),
        clients.GetTimeline(since_s=since_s),
        clients.GetTimeline(since_s=1.0, until_s=since_s),
        clients.ReserveDevices(gpus=1, from_unix_s=since_s, length_s=60.0),
        clients.WaitJobs(job_ids=(JobId("1"),), timeout_s=since_s),
        clients.SetPolicy(name="fifo", parameters={"x": math.nan}),
    ):
        answer = station.ask(question)
        assert (answer.code, " must be " in answer.message) == ("usage", True)
    assert not caplog.records


SPELLED: dict[str, Callable[[str], Any]] = {
    "name": lambda text: {"name": text},
    "organisation": lambda text: {"organisation": text},
    "gpu_type": lambda text: {"gpu_type": text},
    "features": lambda text: {"features": (text,)},
    "share": lambda text: {"share": text},
    "idle": lambda text: {"idle": text},
    "notify": lambda text: {"notify": (text,)},
    "link": lambda text: {"link": text},
}
OPTION_OF = {"features": "constraint"}
NOT_TYPED = {"job_id", "user", "after", "profile", "parameters", "code_sha256", "launch"}
"""Fields that no option's text becomes: numbers that the controller gives, and what has types of its own."""


def test_each_text_of_a_job_is_compared_with_its_option() -> None:
    assert set(texts.text_fields(job_spec.JobSpec)) == {*SPELLED, *NOT_TYPED}


@pytest.mark.parametrize("field", SPELLED)
@given(
    text=st.one_of(
        st.text(min_size=1, max_size=140),
        st.sampled_from(("x" * 128, "x" * 129, "é" * 129, "a b", "-5", "a,b", "max=nan", "warn:1m")),
    )
)
def test_the_wire_refuses_what_the_command_line_refuses(field: str, text: str) -> None:
    try:
        BY_KEY[OPTION_OF.get(field, field)].parse(text)
        return
    except ValueError:
        pass
    with pytest.raises((Inadmissible, ValueError)):
        admit(clients.Submit(specs=(job(**SPELLED[field](text)),)), FROM_CLIENTS)


def test_a_name_has_128_characters_whatever_their_bytes() -> None:
    admit(clients.Submit(specs=(job("é" * 128),)), FROM_CLIENTS)
    with pytest.raises(Inadmissible, match="name must be at most 128 characters, it has 129"):
        admit(clients.Submit(specs=(job("x" * 129),)), FROM_CLIENTS)


def test_set_is_held_to_the_same_limits(station: Station) -> None:
    number = station.submit(hold=True)
    wrong: tuple[dict[str, str | int | float | None], ...] = (
        {"name": "x" * 129},
        {"organisation": "a b"},
        {"gpu_type": "a,b"},
    )
    for changes in wrong:
        answer = station.ask(clients.SetJobs(job_ids=(number,), changes=changes), ALICE)
        assert (answer.code, " must be " in answer.message) == ("usage", True)


# --- Of agents --------------------------------------------------------------------------------------

OF: dict[str, Any] = {"job_id": JobId("1"), "attempt": AttemptNo(1), "host_id": HostId("h1")}
EVENTS: tuple[ev.FromAttempt, ...] = (
    ev.AttemptEnded(**OF, verdict=ExitVerdict(outcome="infra-failed", detail="{}")),
    ev.TroubleSeen(**OF, what="{}"),
    ev.OutputSeen(**OF, words=JobWords(metrics=(JobMetric(name="{}", value=1.0),))),
    ev.CapabilitiesSeen(**OF, resumable=True, step=0, note="{}"),
    ev.CapabilitiesSeen(**OF, resumable=True, step=0, capabilities=Capabilities(accumulates_note="{}")),
    ev.CapabilitiesSeen(**OF, resumable=True, step=0, capabilities=Capabilities(resumable_note="{}")),
)


@pytest.mark.parametrize("event", EVENTS, ids=repr)
@given(text=st.text(st.characters(exclude_categories=["Cs"])) | st.just("\x1b" * 9_000))
def test_what_happened_is_known_however_it_is_worded(event: ev.FromAttempt, text: str) -> None:
    said = agents.Report(sequence=1, event=put(event, text))
    kept = admit(said, FROM_AGENTS)
    assert type(kept.event) is type(event)
    for said_there in texts_in(kept.event):
        assert texts.is_one_line(said_there)
        assert texts.bytes_in(said_there) <= 4_096


def test_an_agent_s_words_are_clean_in_every_answer(station: Station) -> None:
    address = station.join("h1")
    job_id = station.submit(ALICE)
    ended = ev.AttemptEnded(
        job_id=job_id,
        attempt=AttemptNo(1),
        host_id=HostId("h1"),
        verdict=ExitVerdict(outcome="user-failed", detail=HOSTILE),
    )
    assert station.agent_says(address, agents.Report(sequence=1, event=ended))
    answer = station.ask(clients.ListJobs(include_ended=True))
    assert answer.jobs[0].reason.endswith("a\\x1b[2J\\u202e\\x9b\\nb")
    for body in (clients.ShowJob(job_id=job_id), clients.Explain(job_id=job_id), clients.GetDecisions()):
        frame = encode(station.ask(body))
        assert HOSTILE.encode() not in frame


def test_a_host_with_a_name_that_is_none_is_refused_and_hears_why(station: Station) -> None:
    bad = hello("h1")
    bad = msgspec.structs.replace(bad, report=report("h1", features=("fast\x1b[31m",)))
    assert not station.agent_says(b"agent", bad)
    (refused,) = station.told(b"agent", agents.HostRefused)
    assert "features must be one line of visible characters" in refused.why
    notes = report("h2")
    device = msgspec.structs.replace(notes.devices[0], note=HOSTILE)
    notes = msgspec.structs.replace(notes, devices=(device,))
    assert station.agent_says(b"other", msgspec.structs.replace(hello("h2"), report=notes))
    host = station.core.state.engine.hosts[HostId("h2")]
    assert host.state is HostState.OK
    assert host.report.devices[0].note == "a\\x1b[2J\\u202e\\x9b\\nb"


@given(st.text(), st.integers(min_value=8, max_value=64))
def test_a_cut_text_fits_and_is_a_text(text: str, bytes_max: int) -> None:
    assert texts.bytes_in(texts.cut_to(text, bytes_max)) <= bytes_max
    assert texts.cut_to(text, 10_000_000) == text


# --- Memory -----------------------------------------------------------------------------------------


def large(seed: random.Random, size: int) -> clients.Submit:
    """A submission of about so many bytes, in a shape of its own."""
    words = seed.choice((1, 7, 40))
    argv = tuple("x" * min(130_000, size // (2 * words)) for _ in range(words))
    env = {f"V{at}": "y" * min(100_000, size // (2 * words)) for at in range(words)}
    launch = Launch(argv=argv, env=env, workdir="/tmp")
    return clients.Submit(specs=(job(launch=launch),), idempotency_key=str(seed.random()))


def test_one_key_cannot_make_the_controller_hold_more_than_its_bound(
    stations: Callable[..., Station], seed: int
) -> None:
    """The largest things that it may say, faster than it may: counted, not timed. The bound is a small one,
    so that it is met soon."""
    bound = USER_BYTES_MAX // 8
    station = stations(user_bytes_max=bound)
    chance, admitted_bytes, sent_bytes = random.Random(seed), 0, 0
    for _ in range(150):
        body = large(chance, chance.choice((900_000, 300_000, 500_000)))
        size = sum(map(len, body.specs[0].launch.argv)) + sum(map(len, body.specs[0].launch.env.values()))
        sent_bytes += size
        station.time_s += 0.05
        if not station.desk.affords(ALICE, size):
            continue
        admitted_bytes += size
        station.ask(body, ALICE)
    assert sent_bytes > 1.3 * admitted_bytes, "the rate counts bytes"
    assert admitted_bytes <= BYTES_BURST + 150 * 0.05 * BYTES_PER_SECOND
    jobs = station.core.state.engine.jobs.values()
    held = sum(held_bytes(each.spec) for each in jobs)
    assert 0.9 * bound < held <= bound, "it tried, and was stopped there"
    assert isinstance(station.ask(large(chance, 900_000), ALICE), clients.Failure)
    assert isinstance(station.ask(large(chance, 900_000), BOB), clients.Submitted), "nobody else is"


def test_a_user_at_the_bound_goes_on_when_jobs_have_ended(
    stations: Callable[..., Station],
) -> None:
    station = stations(user_bytes_max=held_bytes(job(user=ALICE.name)) + job_spec.JOB_BYTES)
    first = station.submit(ALICE)
    assert isinstance(station.ask(clients.Submit(specs=(job(),)), ALICE), clients.Failure)
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(first,)), ALICE)
    station.time_s += 6.0
    assert isinstance(station.ask(clients.Submit(specs=(job(),)), ALICE), clients.Submitted)


def test_ended_jobs_are_forgotten_by_size_as_well_as_by_number(
    station: Station,
) -> None:
    ledger: Ledger = station.core.state.engine.ledger
    ledger.phases.ended_bytes_max = bound = job_spec.ENDED_BYTES_MAX // 16
    big = Launch(argv=("x",), workdir="/tmp", env={f"V{at}": "é" * 60_000 for at in range(8)})
    each = held_bytes(job(launch=big, user=ADMIN.name))
    for _ in range(bound // each + 5):
        job_id = station.submit(ADMIN, launch=big)
        station.ask(clients.ChangeJobs(verb="cancel", job_ids=(job_id,)), ADMIN)
    assert sum(ledger.phases.ended.sizes.values()) <= bound
    assert len(ledger.phases.ended.sizes) == bound // each


def test_waits_of_one_user_are_bounded_together(stations: Callable[..., Station]) -> None:
    station = stations(awaited_per_user=5)
    job_ids = tuple(station.submit(ALICE) for _ in range(3))
    station.post(clients.WaitJobs(job_ids=job_ids, timeout_s=30.0), ALICE)
    assert isinstance(station.ask(clients.WaitJobs(job_ids=job_ids, timeout_s=30.0), ALICE), clients.Failure)
    station.post(clients.WaitJobs(job_ids=job_ids, timeout_s=30.0), BOB)


RESTS = st.recursive(st.none() | st.text(max_size=9), st.lists, max_leaves=9)


@given(st.integers(min_value=0, max_value=2**40), RESTS)
def test_the_number_of_a_request_is_found_without_reading_the_rest(number: int, rest: Any) -> None:
    for body in ({"request_id": number, "body": rest}, {"body": rest, "request_id": number}):
        assert request_in(msgpack.packb([1, body])) == number
    assert request_in(msgpack.packb([1, {"body": rest}])) is None
    assert request_in(msgpack.packb([1, {"request_id": True, "body": rest}])) is None
    assert request_in(b"\xc1") is None
    assert request_in(msgpack.packb([1, {"request_id": number}])[:-1]) in (None, number)


def test_the_largest_submission_that_fits_a_message_is_admitted() -> None:
    spec = job(launch=Launch(argv=("python", "train.py"), workdir="/tmp", env={"PATH": "/bin"}))
    specs = tuple(msgspec.structs.replace(spec, job_id=JobId(f"new-{at}")) for at in range(2_000))
    frame = encode(clients.Request(request_id=1, body=clients.Submit(specs=specs)))
    assert len(frame) <= MESSAGE_BYTES_MAX
    request: clients.Request = decode(frame, clients.Request)
    assert admit(request.body, FROM_CLIENTS) == request.body


def test_a_kept_profile_holds_no_more_of_a_command_than_a_person_reads() -> None:
    assert beginning(("python", "train.py")) == ("python", "train.py")
    long = beginning(("python", *("x" * 1_000 for _ in range(900))))
    assert sum(map(len, long)) <= COMMAND_CHARACTERS_MAX + len("...")
    assert long[-1].endswith("...")
    assert len(beginning(("x" * 130_000,))[0]) == COMMAND_CHARACTERS_MAX + len("...")


def test_long_commands_stay_in_no_cache() -> None:
    before = pairs._signature.cache_info().currsize
    spec = job(launch=Launch(argv=("x" * 100_000,), workdir="/"))
    assert pairs.signature(spec) == pairs.signature(spec)
    assert pairs._signature.cache_info().currsize == before
