"""What clients of Slurm ask of the programs with Slurm's names, and what they read in the answers: the words
of each are kept in `clients/`, with the version that they come from. `tests/live/test_slurm_clients.py` runs
the clients themselves."""

from __future__ import annotations

import io
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from cotenant.controller.domain import JobId, Phase
from cotenant.controller.present.problem import Problem
from cotenant.controller.slurm.aliases import programs
from cotenant.controller.wire import clients as wire

if TYPE_CHECKING:
    from tests.controller.cli.conftest import StandIn

CLIENTS = {
    path.stem: tomllib.loads(path.read_text()) for path in Path(__file__).parent.glob("clients/*.toml")
}
PINS = Path(__file__).parents[3] / "requirements-slurm-clients.txt"


def cases(kind: str) -> list[Any]:
    return [
        pytest.param(case, id=f"{name} {' '.join(case['words'])[:60]}")
        for name, client in sorted(CLIENTS.items())
        for case in client[kind]
    ]


def known_jobs(replies: ModuleType) -> list[wire.JobView]:
    return [
        replies.done("7"),
        replies.job_view("8_0"),
        replies.waiting("8_1", "behind job 8_0"),
        replies.done("9", phase=Phase.FAILED, exit_code=3, reason="failed: exit code 3"),
        replies.done("10", phase=Phase.CANCELLED, exit_code=None, reason="cancelled by ada"),
    ]


def lines(text: str) -> str:
    return text.removeprefix("\n")


@pytest.mark.parametrize("case", cases("asks"))
def test_a_client_reads_what_it_expects(
    case: dict[str, Any], controller: StandIn, replies: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(request: wire.ListJobs) -> wire.Jobs:
        wanted = set(request.job_ids)
        found = [job for job in known_jobs(replies) if not wanted or {job.job_id, job.job_id[:1]} & wanted]
        return replies.jobs(*found)  # type: ignore[no-any-return]

    controller.says(wire.ListJobs, listed)
    controller.says(wire.ListNodes, replies.nodes(replies.node("laptop")))
    controller.says(wire.ChangeJobs, wire.Done(request_id=0, lines=()))
    name, *words = case["words"]
    try:
        code, problem = programs.PROGRAMS[name](words), ""
    except Problem as refused:
        code, problem = 2, refused.message
    assert capsys.readouterr().out == lines(case["out"])
    assert code == case.get("code", 0)
    assert case.get("err", "") in problem
    cancelled = [job for request in controller.asked_for(wire.ChangeJobs) for job in request.job_ids]
    assert cancelled == case.get("cancels", [])


@pytest.mark.parametrize("case", cases("sends"))
def test_a_client_submits_what_it_means(
    case: dict[str, Any],
    controller: StandIn,
    at_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = at_home / case["words"][-1]
    if "script" in case:
        script.write_text(lines(case["script"]))
    monkeypatch.setattr("sys.stdin", io.StringIO(lines(case.get("stdin", ""))))
    ids = tuple(JobId(f"12_{at}") for at in range(case["tasks"])) if "tasks" in case else (JobId("12"),)
    controller.says(wire.Submit, wire.Submitted(request_id=0, job_ids=ids))
    name, *words = case["words"]
    assert programs.PROGRAMS[name](words) == 0
    out = capsys.readouterr().out
    assert out == case["out"]
    found = re.search(case["read"], out)
    assert found is not None and found["id"] == "12"
    (request,) = controller.asked_for(wire.Submit)
    assert len(request.specs) == case.get("tasks", 1)
    spec = request.specs[0]
    assert {key: getattr(spec, key) for key in case["job"]} == case["job"]
    if "script" in case:
        script.unlink()  # As clients do: the job has a copy of its own.
        assert Path(spec.launch.argv[-1]).read_text() == lines(case["script"])


def test_the_versions_are_those_that_are_run() -> None:
    pins = dict(line.split("==") for line in PINS.read_text().splitlines() if "==" in line)
    for name, client in CLIENTS.items():
        if name != "nextflow":  # Needs a JVM, and no package index has it.
            assert f"{name} {pins[name]}" in client["client"]
