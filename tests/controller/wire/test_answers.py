"""A client decodes the one type that its question asks for."""

from __future__ import annotations

from typing import get_args

from cotenant.controller.wire.clients import AnyReply, AnyRequest, answer_to


def test_every_question_names_one_of_the_replies() -> None:
    known = set(get_args(AnyReply))
    wrong = [kind.__name__ for kind in get_args(AnyRequest) if answer_to(kind) not in known]
    assert wrong == []
