"""What was printed belongs to who may read the log: every question, asked by the owner, an admin and a
stranger, about a job in which every text of its own has a marker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_args

import msgspec
import pytest

from cotenant.controller.domain import (
    AttemptNo,
    Capabilities,
    Dependency,
    ExitVerdict,
    HostId,
    JobId,
    JobMetric,
    JobWords,
    Launch,
    SeenLength,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.knowledge import public_kind
from cotenant.controller.performance import SeenBatch
from cotenant.controller.present.job_page import asked_for
from cotenant.controller.server import reads_commands
from cotenant.controller.system.sections import ControllerSettings, PrivacySettings, Settings
from cotenant.controller.wire import AttemptProgress, agents, clients
from tests.controller.station import ADMIN, ALICE, BOB, Station, run_one

PRINTED, COMMAND, ENV = "Marker-printed", "Marker-command", "Marker-env"
FAILED, RUNS, WAITS, MINE = JobId("1"), JobId("2"), JobId("3"), JobId("4")
WORDS = JobWords(
    metrics=(JobMetric(name=f"{PRINTED}-metric", value=123456.5),), link=f"https://wandb.ai/{PRINTED}-link"
)
LINE = f"exit code 3: {PRINTED} line"


def private(**more: Any) -> dict[str, Any]:
    """A job all of whose own texts have a marker."""
    launch = Launch(
        argv=(f"/home/{COMMAND}/bin/python", "train.py", "--hf_token", f"{COMMAND}-argument"),
        workdir=f"/home/{COMMAND}/project",
        env={"X": f"{ENV}-value", ENV: "1"},
        output=f"/home/{COMMAND}/out",
        zero_code=("progress",),
    )
    return {
        "name": "train",
        "launch": launch,
        "parameters": (("lr", f"{COMMAND}-grid"),),
        "link": f"https://example.org/{PRINTED}-own-link",
        "notify": ("fail", f"{PRINTED}@example.org"),
        **more,
    }


def says(station: Station, address: bytes, event: ev.FromAttempt) -> None:
    sequence = station.journal.reports().get(HostId("h1"), 0) + 1
    assert station.agent_says(address, agents.Report(sequence=sequence, event=event))


def fill(station: Station) -> None:
    """One of alice's jobs has failed, one runs and tells of itself, one waits; bob has one."""
    address = station.join(devices=1)
    assert station.submit(ALICE, **private()) == FAILED
    run_one(station, address, FAILED, until="step")
    named: dict[str, Any] = {"job_id": FAILED, "attempt": 1, "host_id": HostId("h1")}
    says(station, address, ev.OutputSeen(**named, words=WORDS))
    says(station, address, ev.TroubleSeen(**named, what=f"{PRINTED} trouble"))
    verdict = ExitVerdict(outcome="user-failed", exit_code=3, detail=LINE, ours="exit code 3")
    says(station, address, ev.AttemptEnded(**named, verdict=verdict, step=9))
    assert station.submit(ALICE, **private()) == RUNS
    run_one(station, address, RUNS, until="start")
    named["job_id"] = RUNS
    can = Capabilities(resumable_note=f"{PRINTED} note", accumulates_note=f"{PRINTED} whole")
    says(station, address, ev.CapabilitiesSeen(**named, resumable=False, capabilities=can, step=0))
    says(station, address, ev.FirstStepDone(**named, step=1))
    progress = AttemptProgress(
        job_id=RUNS,
        attempt=AttemptNo(1),
        step=3,
        loss=98765.25,
        words=WORDS,
        length=SeenLength(steps=9, note=f"{PRINTED} length"),
        batch=SeenBatch(rows=4, note=f"{PRINTED} batch"),
    )
    station.agent_says(address, agents.Heartbeat(beat=1, session="s1", progress=(progress,)))
    assert station.submit(ALICE, **private(after=(Dependency(job_id=RUNS),))) == WAITS
    assert station.submit(BOB, name="mine") == MINE
    station.settle()


def questions() -> Iterator[clients.AnyRequest]:
    """All that only reads."""
    for job_id in (FAILED, RUNS, WAITS, MINE):
        yield clients.ShowJob(job_id=job_id)
        yield clients.Explain(job_id=job_id)
        yield clients.GetDecisions(job_id=job_id)
        yield clients.ReadJobLog(job_id=job_id)
        yield clients.WaitJobs(job_ids=(job_id,), timeout_s=0.0)
        yield clients.ListEtas(job_ids=(job_id,))
    yield clients.ListJobs(include_ended=True)
    yield clients.ListJobs(ended=True, page=10)
    yield clients.ListJobs(include_ended=True, brief=True, fold=True)
    yield from (clients.GetUsage(by=by) for by in ("user", "kind", "organisation"))
    yield clients.GetDecisions(limit=1_000)
    yield clients.GetTimeline()
    yield clients.ListPastJobs()
    for kind in (
        clients.ListEtas, clients.ListNodes, clients.ListPairs, clients.GetReport, clients.ListProfiles,
        clients.GetStatus, clients.GetPolicy, clients.GetShadow, clients.ListReservations,
        clients.ListAllocations, clients.GetAllocationLog, clients.GetNotice,
    ):  # fmt: skip
        yield kind()


CHANGES = {
    clients.Submit, clients.ChangeJobs, clients.SetJobs, clients.ChangeNode, clients.ForgetProfiles,
    clients.Stop, clients.SetPolicy, clients.PreviewPolicy, clients.SetShadow, clients.AddAllocations,
    clients.ChangeAllocations, clients.SendTestNotice, clients.TellOwner, clients.AskSnapshot,
    clients.PutSnapshot, clients.ReserveDevices, clients.CancelReservations, clients.HandOver,
    clients.UseStream, clients.ForeseeArrival, clients.ForeseeWidths, clients.GetControllers,
}  # fmt: skip
"""They are answered about the asker's own, or are an admin's, or (the last) have no job in them."""


def heard(station: Station, who: Any) -> str:
    """All that an asker is told, in one text."""
    told = b""
    for question in questions():
        address = station.post(question, who)
        station.settle()
        told += b"".join(msgspec.json.encode(answer) for answer in station.answers(address))
    return told.decode()


def test_every_question_is_asked_here() -> None:
    asked = {type(each) for each in questions()}
    assert asked | CHANGES == set(get_args(clients.AnyRequest))
    assert not asked & CHANGES


def test_a_stranger_reads_nothing_of_what_a_job_has_of_its_own(station: Station) -> None:
    fill(station)
    told = heard(station, BOB)
    assert "Marker" not in told, told[told.index("Marker") - 300 :][:400]
    assert "123456" not in told and "98765" not in told, "values of metrics"
    assert "failed: exit code 3" in told
    assert '"argv":["python"]' in told


def owned_texts() -> tuple[str, ...]:
    said = ("line", "trouble", "note", "whole", "length", "batch", "metric", "own-link")
    return (*(f"{PRINTED}{'-' if each in ('metric', 'own-link') else ' '}{each}" for each in said),)


@pytest.mark.parametrize("who", [ALICE, ADMIN], ids=lambda who: who.name)
def test_the_owner_and_admins_read_it(station: Station, who: Any) -> None:
    fill(station)
    told = heard(station, who)
    wanted = (*owned_texts(), f"{COMMAND}-argument", f"{COMMAND}-grid", f"{ENV}-value", f"{PRINTED}@example")
    assert [text for text in wanted if text not in told] == []


def test_command_lines_are_everybodys_where_the_site_says_so(stations: Callable[..., Station]) -> None:
    station = stations(reads_commands=True)
    fill(station)
    told = heard(station, BOB)
    assert f"{COMMAND}-argument" in told and f"{COMMAND}-grid" in told
    assert PRINTED not in told and ENV not in told


def test_a_text_that_is_looked_for_in_jobs_is_not_found_in_commands_of_others(station: Station) -> None:
    fill(station)

    def found(who: Any, text: str) -> int:
        return len(station.ask(clients.ListJobs(include_ended=True, text=text), who).jobs)

    assert found(ALICE, "hf_token") == found(ADMIN, "hf_token") == 3
    assert found(BOB, "hf_token") == found(BOB, f"/home/{COMMAND}") == 0
    assert found(BOB, "alice train") == 3, "names are everybody's"


def test_kinds_of_jobs_are_named_by_their_programs(station: Station) -> None:
    """Unless the asker has such a job."""
    fill(station)

    def kinds(who: Any) -> list[str]:
        return [row.name for row in station.ask(clients.GetUsage(by="kind"), who).rows]

    assert kinds(BOB) == ["python ...", "python train.py"]
    (whole,) = set(kinds(ALICE)) - {"python ..."}
    assert whole.startswith("python train.py --hf_token")


def test_show_says_that_a_command_goes_on(station: Station) -> None:
    fill(station)
    shown = {who: station.ask(clients.ShowJob(job_id=RUNS), who).job.spec for who in (ALICE, BOB)}
    words = {who.name: dict(asked_for(spec, wide=True)) for who, spec in shown.items()}
    assert words["bob"]["command"] == "python (the rest is its owner's)"
    assert words["alice"]["command"].endswith(f"--hf_token {COMMAND}-argument")
    assert not words["bob"]["in"] and not words["bob"]["variables"] and not words["bob"]["grid"]


@pytest.mark.parametrize(
    ("kind", "public"),
    [
        ("python train.py --hf_token hf_1 x4, batch 32, bound 1.2", "python ... x4, batch 32, bound 1.2"),
        ("python train.py --lr 0.1", "python ..."),
        ("train", "train ..."),
        ("sh -c a, batch b, batch 2", "sh ..., batch 2"),
    ],
)
def test_a_kind_for_everybody_keeps_what_it_asks_for(kind: str, public: str) -> None:
    assert public_kind(kind) == public


@pytest.mark.parametrize(
    ("commands", "users", "is_local", "reads"),
    [
        ("", "", True, True),
        ("", "*", True, False),
        ("", "", False, False),
        ("everyone", "*", True, True),
        ("owner", "", True, False),
    ],
)
def test_commands_are_their_owners_where_several_accounts_share_a_controller(
    commands: Any, users: str, is_local: bool, reads: bool
) -> None:
    settings = Settings(
        controller=ControllerSettings(users=users), privacy=PrivacySettings(commands=commands)
    )
    assert reads_commands(settings, is_local=is_local) is reads


def test_pairs_are_named_by_their_programs(station: Station) -> None:
    """A word that is looked for in them is not found in what the asker may not read."""
    fill(station)
    jobs, pairs = station.core.state.engine.jobs, station.core.state.engine.ledger.pairs
    pairs.observe(jobs[FAILED], jobs[MINE], 1.5)

    def seen(who: Any, containing: str = "") -> list[set[str]]:
        found = station.ask(clients.ListPairs(containing=containing), who).pairs
        return [{each.first, each.second} for each in found]

    assert seen(BOB) == [{"python ...", "python train.py"}]
    assert seen(BOB, "hf_token") == [] and len(seen(ADMIN, "hf_token")) == 1


def test_an_old_record_is_its_owners_as_a_whole(station: Station) -> None:
    """Journals from before verdicts said what is ours."""
    address = station.join()
    assert station.submit(ALICE) == FAILED
    run_one(station, address, FAILED, until="step")
    verdict = ExitVerdict(outcome="user-failed", exit_code=3, detail=LINE)
    named: dict[str, Any] = {"job_id": FAILED, "attempt": 1, "host_id": HostId("h1")}
    says(station, address, ev.AttemptEnded(**named, verdict=verdict, step=9))
    assert PRINTED in heard_of(station, ALICE)
    assert PRINTED not in heard_of(station, BOB)
    assert station.ask(clients.ShowJob(job_id=FAILED), BOB).job.reason == "failed: exit code 3"


def heard_of(station: Station, who: Any) -> str:
    shown, explained = clients.ShowJob(job_id=FAILED), clients.Explain(job_id=FAILED)
    return "".join(msgspec.json.encode(station.ask(each, who)).decode() for each in (shown, explained))
