"""What a submission becomes: numbers, owners, dependencies; and what is refused, with the reason."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from cotenant.controller.api.submissions import Denied, accept
from cotenant.controller.domain import (
    Dependency,
    JobId,
    JobSpec,
    Launch,
    OrganisationSettings,
    SharingSettings,
)
from cotenant.controller.system.secrets import BadSecrets, Secrets
from cotenant.controller.wire import clients, wall_s
from tests.controller.station import ALICE, Station, job


def batch(*after: str, **more: Any) -> tuple[JobSpec, ...]:
    """One job per argument; each argument is what that job waits for ("" = nothing)."""
    return tuple(
        job(
            job_id=JobId(f"new-{at}"),
            after=(Dependency(job_id=JobId(wanted)),) if wanted else (),
            **more,
        )
        for at, wanted in enumerate(after)
    )


def test_jobs_are_numbered_in_order() -> None:
    accepted = accept(clients.Submit(specs=batch("", "", "")), ALICE, 7, {})
    assert [spec.job_id for spec in accepted.specs] == ["7", "8", "9"]


def test_the_tasks_of_an_array_share_a_number() -> None:
    accepted = accept(clients.Submit(specs=batch("", "", ""), array_indices=(0, 5, 10)), ALICE, 7, {})
    assert [spec.job_id for spec in accepted.specs] == ["7_0", "7_5", "7_10"]


def test_a_job_may_wait_for_an_earlier_one_of_its_batch() -> None:
    accepted = accept(clients.Submit(specs=batch("", "new-0")), ALICE, 7, {})
    assert accepted.specs[1].after[0].job_id == "7"


@pytest.mark.parametrize("wanted", ["new-1", "99", "x"])
def test_a_job_cannot_wait_for_a_later_or_unknown_one(wanted: str) -> None:
    with pytest.raises(Denied, match=f"after job {wanted}, which is not known"):
        accept(clients.Submit(specs=batch(wanted, "")), ALICE, 7, {})


def test_jobs_of_no_class_get_that_of_their_organisation() -> None:
    organisations = {"vision": OrganisationSettings(job_class="hp"), "speech": OrganisationSettings()}

    def class_of(organisation: str, **more: Any) -> str:
        request = clients.Submit(specs=(job(organisation=organisation),), **more)
        return accept(request, ALICE, 1, {}, organisations).specs[0].job_class

    assert class_of("vision", default_class=True) == "hp"
    assert class_of("vision") == "spot", "somebody has named a class"
    assert class_of("speech", default_class=True) == class_of("others", default_class=True) == "spot"


@pytest.mark.parametrize(
    ("organisation", "cluster", "words"),
    [
        ("vision", "auto", ("accumulate", "equivalent")),
        ("speech", "equivalent", ("accumulate",)),
        ("others", "equivalent", ("accumulate", "equivalent")),
        ("others", "auto", ("accumulate",)),
    ],
)
def test_other_random_numbers_are_allowed_by_an_organisation_or_the_cluster(
    organisation: str, cluster: Literal["auto", "equivalent"], words: tuple[str, ...]
) -> None:
    organisations = {
        "vision": OrganisationSettings(accumulate="equivalent"),
        "speech": OrganisationSettings(accumulate="auto"),
    }
    specs = tuple(
        job(
            job_id=JobId(f"new-{at}"),
            organisation=organisation,
            launch=Launch(argv=("x",), workdir="/", zero_code=(word,)),
        )
        for at, word in enumerate(("accumulate", "progress"))
    )
    request = clients.Submit(specs=specs)
    sharing = SharingSettings(accumulate=cluster)
    accepted = accept(request, ALICE, 1, {}, organisations, sharing=sharing).specs
    assert [spec.launch.zero_code for spec in accepted] == [words, ("progress",)], "one is never split"


def test_the_owner_comes_from_the_key_not_from_the_message() -> None:
    forged = Launch(argv=("x",), workdir="/", uid=0, gid=0, groups=(0,))
    (spec,) = accept(clients.Submit(specs=(job(user="root", launch=forged),)), ALICE, 1, {}).specs
    assert (spec.user, spec.launch.uid, spec.launch.gid, spec.launch.groups) == (
        "alice",
        1001,
        1001,
        (1001, 2000),
    )


def test_variables_that_look_secret_are_taken_for_secrets() -> None:
    launch = Launch(argv=("x",), workdir="/", env={"WANDB_API_KEY": "hush", "LANG": "C"})
    accepted = accept(clients.Submit(specs=(job(launch=launch),)), ALICE, 1, {})
    assert accepted.secrets == {"WANDB_API_KEY": "hush"}
    assert accepted.specs[0].launch.env == {"LANG": "C"}
    assert accepted.specs[0].launch.secrets == ("WANDB_API_KEY",)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (clients.Submit(specs=()), "1 to 10000 jobs, this one has 0"),
        (clients.Submit(specs=batch("", ""), array_indices=(1,)), "as many different indices"),
        (clients.Submit(specs=batch("", ""), array_indices=(1, 1)), "as many different indices"),
        (clients.Submit(specs=batch(""), array_indices=(-1,)), "array indices are 0 to"),
        (clients.Submit(specs=(job(launch=Launch(workdir="/")),)), "there is no command to run"),
        (clients.Submit(specs=(job(launch=Launch(argv=("x",), workdir="here")),)), "not an absolute path"),
        (clients.Submit(specs=(job(launch=Launch(argv=("x" * 2_000_000,), workdir="/")),)), "larger than"),
        (
            clients.Submit(specs=(job(launch=Launch(argv=("x",), workdir="/", env={"A": "x" * 2_000_000})),)),
            "larger than",
        ),
        (clients.Submit(specs=(job(), job())), "two jobs of one submission are called new-0"),
    ],
)
def test_what_is_refused(request_: clients.Submit, why: str) -> None:
    with pytest.raises(Denied, match=why) as caught:
        accept(request_, ALICE, 1, {})
    assert caught.value.code == "usage"


def test_a_whole_array_can_be_waited_for(station: Station) -> None:
    station.ask(clients.Submit(specs=batch("", "", ""), array_indices=(0, 1, 2)))
    answer = station.ask(clients.Submit(specs=batch("1")))
    waiting = station.core.state.engine.jobs[answer.job_ids[0]]
    assert [d.job_id for d in waiting.spec.after] == ["1_0", "1_1", "1_2"]
    assert waiting.phase == "blocked"


@pytest.mark.parametrize("number", ["\u0661", "\u00b9", "1_\u0660"])
def test_digits_of_another_script_name_no_job(station: Station, number: str) -> None:
    station.ask(clients.Submit(specs=batch("", ""), array_indices=(0, 1)))
    asked = (clients.ShowJob(job_id=JobId(number)), clients.Submit(specs=batch(number)))
    assert [station.ask(each).code for each in asked] == ["usage", "usage"]


def test_dependencies_are_bounded(station: Station) -> None:
    tasks = batch(*[""] * 500)
    station.ask(clients.Submit(specs=tasks, array_indices=tuple(range(500))))
    with pytest.raises(Denied, match="more than 100000 dependencies"):
        accept(clients.Submit(specs=batch(*["1"] * 201)), ALICE, 600, station.core.state.engine.jobs)


# --- Secrets on disk -------------------------------------------------------------------------------


def test_secrets_stay_until_the_last_task_of_their_submission_has_ended(tmp_path: Any) -> None:
    secrets = Secrets(tmp_path / "s")
    tasks = [JobId("7_0"), JobId("7_1")]
    secrets.keep(tasks, {"A_TOKEN": "x", "OTHER": "y"})
    (path,) = (tmp_path / "s").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert secrets.read(JobId("7_1"), ["A_TOKEN"]) == {"A_TOKEN": "x"}
    with pytest.raises(BadSecrets, match=r"8\.json: No such file"):
        secrets.read(JobId("8"), ["A_TOKEN"])
    secrets.release(lambda job_id: job_id == "7_0")
    secrets.release(lambda job_id: True)
    secrets.close()
    assert not path.exists()


def test_jobs_of_one_submission_share_a_file_and_older_files_are_read(tmp_path: Path) -> None:
    """One file per job took a hundred flushes per submission, and a hundred removals."""
    (tmp_path / "3.json").write_text('{"A": "old"}')  # As versions before this one wrote it.
    secrets = Secrets(tmp_path)
    jobs = [JobId(str(number)) for number in range(7, 107)]
    secrets.keep(jobs, {"A": "x"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.json", "7-106.json"]
    again = Secrets(tmp_path)
    again.used_by([JobId("3"), *jobs])
    assert again.read(JobId("3"), ["A"]) == {"A": "old"}
    assert again.read(JobId("106"), ["A"]) == {"A": "x"}
    with pytest.raises(BadSecrets):
        again.read(JobId("107"), ["A"])
    again.release(lambda job_id: job_id != "50")
    again.close()
    assert [path.name for path in tmp_path.iterdir()] == ["7-106.json"]


def test_files_of_ended_jobs_are_taken_away_by_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 files of cancelled jobs took a disk 21 s, in which the controller started nothing."""
    secrets, removers = Secrets(tmp_path), set()
    for number in range(1, 21):
        secrets.keep([JobId(str(number))], {"A": "x"})
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        removers.add(threading.current_thread().name)
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    secrets.release(lambda job_id: True)
    with pytest.raises(BadSecrets):  # Nobody gets them any more, whether or not they are gone.
        secrets.read(JobId("1"), ["A"])
    secrets.close()
    assert removers == {"secrets"} and not list(tmp_path.iterdir())


def test_a_number_that_is_given_out_again_has_the_secrets_of_its_new_job(tmp_path: Path) -> None:
    secrets = Secrets(tmp_path)
    secrets.keep([JobId("7"), JobId("8"), JobId("9")], {"A": "failed"})  # Its commit fails.
    secrets.keep([JobId("7")], {"A": "x"})
    secrets.keep([JobId("8")], {"A": "y"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7.json", "8.json"]
    secrets.release(lambda job_id: job_id == "7")
    secrets.keep([JobId("7")], {"A": "z"})
    secrets.close()
    assert secrets.read(JobId("7"), ["A"]) == {"A": "z"}
    with pytest.raises(BadSecrets):
        secrets.read(JobId("9"), ["A"])


@pytest.mark.parametrize("data", [b"", b'{"A_TOKEN": "x', b'{"A_TOKEN": "\xff"}', b'{"OTHER": "y"}', b"[1]"])
def test_a_secrets_file_that_is_not_whole_is_an_error_that_names_it(tmp_path: Any, data: bytes) -> None:
    secrets = Secrets(tmp_path)
    secrets.keep([JobId("7")], {"A_TOKEN": "x"})
    (tmp_path / "7.json").write_bytes(data)
    with pytest.raises(BadSecrets, match=r"/7\.json .*submit the job again"):
        secrets.read(JobId("7"), ["A_TOKEN"])


def test_secrets_of_a_submission_that_never_became_durable_are_swept(tmp_path: Any) -> None:
    before = Secrets(tmp_path)
    before.keep([JobId("7")], {"A": "x"})
    before.keep([JobId("8")], {"A": "x"})
    again = Secrets(tmp_path)
    again.used_by([JobId("8")])
    again.release(lambda job_id: False)
    again.close()
    assert [path.name for path in tmp_path.iterdir()] == ["8.json"]
    assert again.read(JobId("8"), ["A"]) == {"A": "x"}


def test_secrets_are_gone_when_the_job_is(station: Station) -> None:
    launch = Launch(argv=("x",), workdir="/", env={"A_TOKEN": "x"})
    station.ask(clients.Submit(specs=(msgspec.structs.replace(job(), launch=launch),)), ALICE)
    assert station.secrets.read(JobId("1"), ["A_TOKEN"]) == {"A_TOKEN": "x"}


# --- Promised ends ----------------------------------------------------------------------------------


def promising(station: Station, asked: clients.PromiseAsked, **more: Any) -> Any:
    specs = (job(**{"expected_s": 100.0, "load_s": 10.0, **more}),)
    return station.ask(clients.Submit(specs=specs, promise=asked))


def test_the_earliest_end_is_promised_and_shown(station: Station) -> None:
    station.join()
    reply = promising(station, clients.PromiseAsked())
    view = station.ask(clients.ShowJob(job_id=reply.job_ids[0])).job
    assert view.promised.state == "open"
    assert view.promised.by_at == reply.promised_at
    assert station.ask(clients.ListEtas()).promises.open == 1


def test_an_end_that_is_too_early_is_refused_with_the_earliest(station: Station) -> None:
    station.join()
    refused = promising(station, clients.PromiseAsked(within_s=60.0))
    assert (refused.code, refused.hint) == ("refused", "--by +3m, or --promise for the earliest")
    assert "the earliest that can be is 2 min from now" in refused.message
    assert not station.ask(clients.ListJobs()).jobs
    later = promising(station, clients.PromiseAsked(within_s=3600.0))
    assert wall_s(later.promised_at) - station.core.clock.wall() == pytest.approx(3600.0, abs=1.0)


def test_if_possible_submits_without_a_promise_and_says_why(station: Station) -> None:
    station.join()
    reply = promising(station, clients.PromiseAsked(is_optional=True), expected_s=None)
    assert len(reply.job_ids) == 1
    assert reply.promised_at is None
    assert "nothing tells how long" in reply.notes[0]


def test_nobody_promises_himself(station: Station) -> None:
    station.join()
    (job_id,) = station.ask(clients.Submit(specs=(job(promised_s=1.0),))).job_ids
    assert station.ask(clients.ShowJob(job_id=job_id)).job.promised is None


def test_a_dry_run_says_what_would_be_promised(station: Station) -> None:
    station.join()
    request = clients.Submit(specs=(job(expected_s=100.0),), promise=clients.PromiseAsked(), dry_run=True)
    assert station.ask(request).promised_at is not None
    assert not station.ask(clients.ListJobs()).jobs
