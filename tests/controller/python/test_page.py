"""The pages: their examples run, in order, in one shell; the table names each error that there is."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cotenant
from cotenant.controller.domain import JobId
from cotenant.controller.wire import clients as wire
from tests.controller.cli import replies

if TYPE_CHECKING:
    from tests.controller.python.conftest import FakeCluster

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "python.md").read_text()


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_page_run(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    def explain(request: wire.Explain) -> wire.Explained:
        explained: wire.Explained = replies.explained(cluster.views[request.job_id], "first in line")
        return explained

    cluster.controller.says(wire.Explain, explain)
    shell: dict[str, Any] = {"__name__": "__main__"}
    shown = blocks(PAGE)
    assert len(shown) == 3
    for block in shown:
        exec(block, shell)
    said = capsys.readouterr().out
    assert said.startswith("7 queued first in line\n{'rate': 0.1, ")
    assert [each["rate"] for each in shell["losses"]] == [0.1, 0.01, 0.001]
    assert asyncio.run(shell["main"]())["rate"] == 0.2
    assert cluster.specs[JobId("7")].time_limit_s == 4 * 3600.0


def test_what_a_user_of_submitit_reads_runs(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = blocks((DOCS / "submitit.md").read_text())
    exec(shown, {"__name__": "__main__"})
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"7 { ({'rate': 0.1, 'loss': 1 / 2.1}) } [0.1, 0.01]"
    assert rest == [str({"rate": 0.5, "loss": 1 / 4.5})]
    assert {(spec.gpus, spec.time_limit_s) for spec in cluster.specs.values()} == {(1, 4 * 3600.0)}


def test_the_page_names_each_error() -> None:
    errors = [
        name
        for name in cotenant.__all__
        if isinstance(found := getattr(cotenant, name), type) and issubclass(found, cotenant.CotenantError)
    ]
    assert [name for name in errors if name != "CotenantError" and f"`{name}`" not in PAGE] == []
