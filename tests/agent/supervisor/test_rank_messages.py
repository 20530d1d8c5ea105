"""What ranks say is foreign: it is understood, or dropped, and never a crash."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.supervisor.core.rank_messages import (
    AnyRankWord,
    RankFailed,
    RankHello,
    StepDone,
    ToRank,
    datagram,
    parse,
)
from cotenant.checkpoint.talk import protocol

FROM_RANK = sorted(str(each.__struct_config__.tag) for each in get_args(AnyRankWord))


def said(**fields: object) -> bytes:
    return json.dumps({"v": 1, "rank": 0, **fields}).encode()


def test_every_word_of_the_protocol_is_understood() -> None:
    fields: dict[str, dict[str, object]] = {
        protocol.HELLO: {"world_size": 2, "resumable": True, "accumulates": False, "step": 7},
        protocol.WATCHED: {},
        protocol.FIRST_STEP: {"step": 1},
        protocol.STEP: {"step": 2, "count": 1, "elapsed_s": 0.5, "s": 1, "loss": None},
        protocol.LENGTH: {"total": None, "note": "length not seen: train.py line 3 is a while loop"},
        protocol.BATCH: {"rows": 32, "note": "read from its loader, train.py line 41"},
        protocol.SAVING: {"step": 3},
        protocol.DURABLE: {"step": 3, "name": "a1-s3", "exact": True, "note": ""},
        protocol.CONFIRM: {"proposal": 1, "step": 3, "ok": True},
        protocol.STOPPED: {"step": 3},
        protocol.STRETCH: {"first": 1, "step": 3, "s": 2, "memory_mib": None, "static_mib": 80.5},
        protocol.STANDING: {"look": 3, "place": 2**32 - 1},
        protocol.FAILED: {"what": "save", "error": "No space left on device"},
    }
    assert set(fields) == set(FROM_RANK)
    for name, own in fields.items():
        assert parse(said(m=name, **own)) is not None, name


@pytest.mark.parametrize("loss", ["NaN", "Infinity", "-Infinity"])
def test_a_loss_that_is_no_number_is_missing_and_the_step_still_counts(loss: str) -> None:
    for colon in (":", ": "):
        text = f'{{"v":1,"m":"step","rank":0,"step":5,"count":1,"elapsed_s":0.1,"s":1,"loss"{colon}{loss}}}'
        assert parse(text.encode()) == StepDone(v=1, rank=0, step=5, count=1, elapsed_s=0.1, loss=None)


def test_unknown_fields_are_ignored() -> None:
    word = parse(said(m="failed", what="load", error="x", mood="bad"))
    assert word == RankFailed(v=1, rank=0, what="load", error="x")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"[" * 4000,
        said(m="sing", step=1),
        said(m="first_step"),
        said(m="first_step", step=-1),
        said(m="first_step", step=2**60),
        said(m="first_step", step="1"),
        said(m="step", step=1, elapsed_s=-1.0),
        said(m="durable", step=1, name="../../etc"),
        said(m="durable", step=1, name="a1-s1/../x"),
        said(m="length", total=-1),
        said(m="batch", rows=0),
        said(m="length", total=5, note="x" * 1001),
        said(m="failed", what="save", error="x" * protocol.DATAGRAM_BYTES_MAX),
        json.dumps({"v": 2, "m": "first_step", "rank": 0, "step": 1}).encode(),
        json.dumps({"m": "first_step", "rank": 0, "step": 1}).encode(),
    ],
)
def test_what_does_not_fit_is_dropped(data: bytes) -> None:
    assert parse(data) is None


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_garbage_is_dropped(data: bytes) -> None:
    assert parse(data) is None


@given(
    st.dictionaries(
        st.sampled_from(["v", "m", "rank", "step", "world_size", "loss"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(FROM_RANK),
    )
)
def test_almost_right_is_dropped_or_understood(fields: dict[str, object]) -> None:
    word = parse(json.dumps(fields).encode())
    assert word is None or not isinstance(word, RankHello)


def test_what_we_say_is_one_small_datagram() -> None:
    data = datagram(ToRank(kind="save", proposal=2**53, step=2**53, phase="withdraw"))
    assert len(data) < protocol.DATAGRAM_BYTES_MAX
    assert json.loads(data) == {
        "v": 1, "m": "save_at", "proposal": 2**53, "step": 2**53, "phase": "withdraw"
    }  # fmt: skip
