"""A policy that needs a library which the controller does not have: listed, and refused with the reason."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

from cotenant.controller.wire import clients as wire

LACKS = 'it learns with botorch, which is not installed: pip install ".[bo]" in the source folder'


def test_policy_list_says_what_is_missing(controller: Any, replies: ModuleType, cotenant: Any) -> None:
    controller.says(wire.GetPolicy, replies.policy(unavailable={"lazer": LACKS}))
    lines = cotenant("policy", "list").out.splitlines()
    assert any("lazer" in line and "not available: it learns with botorch" in line for line in lines)
    listed = json.loads(cotenant("policy", "list", "--json").out)["policies"]
    assert {each["policy"]: each["available"] for each in listed} == {
        "castor": True,
        "fifo": True,
        "lazer": False,
    }


def test_policy_set_refuses_it_and_says_what_to_install(
    controller: Any, replies: ModuleType, cotenant: Any
) -> None:
    controller.says(wire.GetPolicy, replies.policy(unavailable={"lazer": LACKS}))
    result = cotenant("policy", "set", "lazer")
    assert result.code == 2
    assert 'pip install ".[bo]"' in result.err
