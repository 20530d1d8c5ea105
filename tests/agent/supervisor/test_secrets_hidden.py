"""Values of secrets do not leave a job's host in what its supervisor makes of output, words and errors."""

from __future__ import annotations

import json
import shlex
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from cotenant.agent.supervisor.core.edge import (
    AllGone,
    AnyHappening,
    CouldNotStart,
    Finish,
    Noted,
    RankExited,
    RankMessageCame,
    Sampled,
    Started,
)
from cotenant.agent.supervisor.core.exit_classifier import TAIL_BYTES
from cotenant.agent.supervisor.core.exits import StartProblem
from cotenant.agent.supervisor.core.printed import PrintedFacts
from cotenant.agent.supervisor.core.rank_messages import (
    BatchSeen,
    DurableSaid,
    LengthSeen,
    RankFailed,
    RankHello,
    StepDone,
)
from cotenant.agent.supervisor.core.supervision import Supervision
from cotenant.controller.domain import SecretValues
from tests.building.orders import order_of

VALUE = "s3cr3t'value &99\"\\x"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANB\nkqhkiG9w0BAQ\n}\n"
SECRETS = {"API_TOKEN": VALUE, "SSH_KEY": KEY}
FORMS = {
    "as it is": VALUE,
    "of Python": repr(VALUE),
    "of JSON": json.dumps({"token": VALUE}),
    "of a shell": shlex.quote(VALUE),
    "of a web address": f"https://host/?{quote(VALUE)}",
    "a line of it": "error near MIIEvQIBADANB",
}
PIECES = ("s3cr3t", "value%20", "MIIEvQ", "kqhkiG")


def told(*events: AnyHappening) -> str:
    """All that comes out of a supervision, in one text."""
    supervision, found = Supervision(order_of(secrets=SECRETS), 0.0), []
    for at_s, event in enumerate(events):
        found += supervision.handle(event, float(at_s))
    assert any(isinstance(each, Finish) for each in found)
    return msgspec.json.encode(found).decode()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_no_value_of_a_secret_comes_out(form: str) -> None:
    says: dict[str, Any] = {"v": 1, "rank": 0}
    printed = PrintedFacts(metrics=((f"acc-{form}", 1.0),), link=form)
    words = (
        RankHello(
            **says,
            world_size=1,
            resumable=False,
            accumulates=False,
            step=0,
            exact=False,
            note=form,
            resumable_note=form,
            accumulates_note=form,
        ),
        LengthSeen(**says, total=9, note=form),
        BatchSeen(**says, rows=4, note=form),
        StepDone(**says, step=2, metrics={f"acc-{form}": 1.0}),
        DurableSaid(**says, step=3, name="step-3", note=form),
        RankFailed(**says, what=form, error=form),
    )
    text = told(
        Started(launch="cold", launch_why=form),
        *(RankMessageCame(word=word) for word in words),
        Noted(text=form),
        Sampled(printed=printed),
        RankExited(rank=0, exit_code=1),
        AllGone(tails={0: f"epoch 1\nval={form}\n"}, printed=printed),
    )
    assert "exit code 1" in text and "[secret]" in text
    assert [piece for piece in PIECES if piece in text] == []


def test_no_value_is_in_the_error_of_a_start() -> None:
    problem = StartProblem(rank=0, stage="workdir", code=2, text=f"No such file: {VALUE}")
    text = told(CouldNotStart(problem=problem), AllGone())
    assert "[secret]" in text and "s3cr3t" not in text


def test_a_line_whose_beginning_is_lost_is_left_out() -> None:
    lost = VALUE[3:] + "x" * TAIL_BYTES
    text = told(Started(), RankExited(rank=0, exit_code=1), AllGone(tails={0: lost}))
    assert "r3t'value" not in text and "exit code 1" in text


def test_what_only_looks_like_a_line_of_a_secret_stays() -> None:
    hide = SecretValues(SECRETS.values()).hide
    assert hide("{'lr': 1}\n}") == "{'lr': 1}\n}"
    assert hide(f"a {VALUE} b") == "a [secret] b"
    assert SecretValues([]).hide(VALUE) == VALUE
    assert SecretValues(["ab\n"]).hide("cab") == "c[secret]"
