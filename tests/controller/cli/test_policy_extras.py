"""What is said of policies: when to choose which; of one whose library is missing, why it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from cotenant.controller.policies import registry
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


def test_policy_set_takes_a_configuration_from_a_file_and_words_go_before_it(
    controller: Any, replies: ModuleType, cotenant: Any, tmp_path: Path
) -> None:
    defaults = registry.defaults("pcs")
    pcs = wire.PolicyOffer(policy="pcs", about="", current=False, available=True, defaults=defaults)
    controller.says(wire.GetPolicy, msgspec.structs.replace(replies.policy(), offers=(pcs,)))
    controller.says(wire.SetPolicy, wire.Done(request_id=0))
    one = {"class_thresholds": [1000, "inf"], "class_rates": [0.9, 0.1], "delta": 0.3}
    front = tmp_path / "front.json"
    front.write_text(json.dumps({"configs": {"p01": {**one, "class_thresholds": [7, "inf"]}, "p02": one}}))
    assert cotenant("policy", "set", "pcs", f"config={front}#p02", "delta=0.5", "elastic=true").code == 0
    (request,) = controller.asked_for(wire.SetPolicy)
    assert request.name == "pcs"
    assert request.parameters == {
        "thresholds_gpu_s": "1000", "weights": "0.9,0.1", "zeta_min": 0.01, "delta": 0.5, "elastic": True,
    }  # fmt: skip
    result = cotenant("policy", "set", "pcs", f"config={front}#p03")
    assert result.code == 2 and "name one of its configurations after a #: p01, p02" in result.err
    assert cotenant("policy", "set", "castor", f"config={front}#p02").code == 2, "it has no form of its own"


def offer(name: str, heading: str, choose: str, *, current: bool = False) -> wire.PolicyOffer:
    return wire.PolicyOffer(
        policy=name, about=f"about {name}", current=current, available=True, defaults={}, group=heading,
        choose=choose,
    )  # fmt: skip


def test_policies_stand_under_headings_each_with_when_to_choose_it(
    controller: Any, replies: ModuleType, cotenant: Any
) -> None:
    offers = (
        offer("castor", "Sharing", "devices are half idle"),
        offer("fifo", "First", "you have no idea", current=True),
        offer("mine:Own", "", ""),
    )
    known = msgspec.structs.replace(replies.policy(), offers=offers, groups=("First", "Sharing"))
    controller.says(wire.GetPolicy, known)
    assert cotenant("policy", "list").out.splitlines() == [
        "First",
        "* fifo      about fifo",
        "            when: you have no idea",
        "",
        "Sharing",
        "  castor    about castor",
        "            when: devices are half idle",
        "",
        "Of other packages",
        "  mine:Own  about mine:Own",
    ]
    assert json.loads(cotenant("policy", "list", "--json").out)["policies"][0]["choose"].startswith("devices")


@pytest.mark.parametrize("name", registry.ours())
def test_each_of_ours_is_told_in_plain_words_with_when_to_choose_it(name: str) -> None:
    entry = registry.ours()[name]
    assert entry.group in registry.GROUPS
    assert 10 < len(entry.choose) <= 110, name
    assert not {"Theorem", "eta", "xi", "oracle"} & set(entry.about.split()), entry.about
    assert not entry.choose.endswith(".") and not entry.about.endswith(".")
