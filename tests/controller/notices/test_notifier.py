"""What is told of jobs, when, and what becomes of a message that does not arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.controller.domain import WEBHOOK_VARIABLE, ExitVerdict, HostId, JobId, JobWords, Launch
from cotenant.controller.domain import events as ev
from cotenant.controller.notices import DeliveryResult
from cotenant.controller.notices.notifier import GIVE_UP_S, OPEN_PER_USER, OUTPUT_WITHIN_S, RETRY_S
from cotenant.controller.store import SqliteDatabase, SqliteWriting, StorageError
from cotenant.controller.system.sections import NotifySettings
from cotenant.controller.wire import LogReply, ReadLog, agents, clients
from tests.building.journals import NO_RESERVE
from tests.controller.station import ALICE, BOB, Station, hello, job, run_one

SENT = DeliveryResult(True, True, "")
DEAD = DeliveryResult(False, False, "Connection refused")
REFUSED = DeliveryResult(False, True, "it does not want it")
BY_COMMAND = NotifySettings(command=("tell",), smtp="")
ENDS = ("end",)
MakesStation = Callable[..., Station]


@pytest.fixture
def open_station(tmp_path: Path) -> Iterator[MakesStation]:
    made: list[Station] = []

    def make(notify: NotifySettings = BY_COMMAND, **more: Any) -> Station:
        while made:
            made.pop().close()
        made.append(Station(tmp_path, notify=notify, **more))
        return made[-1]

    yield make
    while made:
        made.pop().close()


def take(station: Station, result: DeliveryResult = SENT) -> list[dict[str, Any]]:
    """Carries out all deliveries that are due now; returns what they carried."""
    found: list[dict[str, Any]] = []
    while True:
        station.tick(0.5)
        waiting, station.deliveries.waiting = station.deliveries.waiting, []
        if not waiting:
            return found
        for data, then in waiting:
            found.append(data.get("notice", data) | {"to": data.get("to", "")})
            then(result)


def take_all(station: Station) -> list[dict[str, Any]]:
    """As `take`, when no output is to be waited for any more."""
    station.tick(OUTPUT_WITHIN_S)
    return take(station)


def subjects(notices: list[dict[str, Any]]) -> list[str]:
    return [notice["subject"] for notice in notices]


def end(station: Station, address: bytes, job_id: JobId, **verdict: Any) -> None:
    run_one(station, address, job_id, until="step")
    attempt = station.core.state.engine.jobs[job_id].attempt.number
    host_id = HostId(address.decode().removeprefix("agent-"))
    event = ev.AttemptEnded(
        job_id=job_id, attempt=attempt, host_id=host_id, verdict=ExitVerdict(**verdict), step=9
    )
    sequence = station.journal.reports().get(host_id, 0) + 1
    assert station.agent_says(address, agents.Report(sequence=sequence, event=event))


def finish(station: Station, address: bytes, job_id: JobId) -> None:
    end(station, address, job_id, outcome="finished", exit_code=0)


def fail(station: Station, address: bytes, job_id: JobId, detail: str = "exit code 3") -> None:
    end(station, address, job_id, outcome="user-failed", exit_code=3, detail=detail)


def cancel(station: Station, job_id: JobId) -> None:
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(job_id,)), ALICE)


# --- What follows from what -------------------------------------------------------------------------

OCCASIONS: dict[str, tuple[Callable[[Station, bytes, JobId], None], dict[str, str]]] = {
    "it starts": (
        lambda station, address, job_id: run_one(station, address, job_id, until="start"),
        {"start": "job 1 (train) started on h1"},
    ),
    "it finishes": (
        finish,
        {"start": "job 1 (train) started on h1", "end": "job 1 (train) finished on h1 after 0s"},
    ),
    "it fails": (
        fail,
        {"start": "job 1 (train) started on h1", "fail": "job 1 (train) failed on h1 after 0s"},
    ),
    "it is cancelled": (
        lambda station, address, job_id: cancel(station, job_id),
        {},  # It has its devices still: the host has not said that its processes are gone.
    ),
}


@pytest.mark.parametrize(("happens", "told"), OCCASIONS.values(), ids=OCCASIONS.keys())
def test_which_message_follows(
    open_station: MakesStation, happens: Callable[[Station, bytes, JobId], None], told: dict[str, str]
) -> None:
    station = open_station()
    address = station.join()
    job_id = station.submit(name="train", notify=("start", "end", "fail", "preempt", "idle"))
    happens(station, address, job_id)
    assert {notice["kind"]: notice["subject"] for notice in take_all(station)} == told


def test_a_message_has_the_link_that_the_job_printed(open_station: MakesStation) -> None:
    station = open_station()
    address = station.join()
    job_id = station.submit(name="train", notify=("end",))
    run_one(station, address, job_id, until="step")
    attempt = station.core.state.engine.jobs[job_id].attempt.number
    told = ev.OutputSeen(
        job_id=job_id, attempt=attempt, host_id=HostId("h1"), words=JobWords(link="https://a.example/r/1")
    )
    sequence = station.journal.reports().get(HostId("h1"), 0) + 1
    assert station.agent_says(address, agents.Report(sequence=sequence, event=told))
    finish(station, address, job_id)
    (notice,) = take_all(station)
    assert "its page: https://a.example/r/1" in notice["text"]


def test_each_step_about_an_idle_job_is_told_and_that_it_works_again_is_not(
    open_station: MakesStation,
) -> None:
    station = open_station()
    address = station.join()
    job_id = station.submit(name="train", notify=("idle",))
    run_one(station, address, job_id, until="step")
    attempt = station.core.state.engine.jobs[job_id].attempt.number
    seen = ev.IdleSeen(job_id=job_id, attempt=attempt, since_s=0.0)
    for stage in ("warn", "word"):
        station.core.happen(msgspec.structs.replace(seen, stage=stage))
    station.core.happen(msgspec.structs.replace(seen, since_s=None))
    station.settle()
    told = take_all(station)
    assert subjects(told) == [f"job {job_id} (train) holds devices on h1 and uses none"] * 2
    assert len({notice["id"] for notice in told}) == 2


@pytest.mark.parametrize(
    ("asked", "ended", "fails"),
    [((), 0, 0), (("start",), 0, 0), (("end",), 1, 1), (("fail",), 0, 1), (("end", "fail"), 1, 1)],
    ids=str,
)
def test_only_what_was_asked_for_is_told(
    open_station: MakesStation, asked: tuple[str, ...], ended: int, fails: int
) -> None:
    station = open_station()
    address = station.join()
    finish(station, address, station.submit(notify=asked))
    fail(station, address, station.submit(notify=asked))
    told = [notice["kind"] for notice in take_all(station)]
    assert (told.count("end"), told.count("fail")) == (ended, fails)


def test_a_preempted_job_is_told_of_with_its_step_and_again_at_the_next_attempt(
    open_station: MakesStation,
) -> None:
    station = open_station()
    address = station.join()
    job_id = station.submit(name="train", notify=("preempt",), resumable=True)
    for attempt in (1, 2):
        run_one(station, address, job_id, until="step")
        station.ask(clients.ChangeJobs(verb="preempt", job_ids=(job_id,)))
        sequence = station.journal.reports()[HostId("h1")] + 1
        left = ev.AttemptEnded(
            job_id=job_id,
            attempt=station.core.state.engine.jobs[job_id].attempt.number,
            host_id=HostId("h1"),
            verdict=ExitVerdict(outcome="stopped"),
        )
        station.agent_says(address, agents.Report(sequence=sequence, event=left))
        (told,) = take_all(station)
        assert told["subject"].startswith("job 1 (train) left its devices on h1 after ")
        assert told["subject"].endswith("s and waits again")
        assert "preempted" in told["text"] and told["id"].endswith(f"-1-{attempt}-preempt")


def test_an_array_is_told_of_once_at_its_end_and_at_its_first_failure(open_station: MakesStation) -> None:
    station = open_station(keep_ended=2)  # Earlier tasks are known to the journal alone.
    address = station.join()
    specs = tuple(job("sweep", job_id=JobId(f"new-{at}"), notify=("start", "end")) for at in range(5))
    answer = station.ask(clients.Submit(specs=specs, array_indices=tuple(range(5))), ALICE)
    for at, job_id in enumerate(answer.job_ids):
        (fail if at in (1, 3) else finish)(station, address, job_id)
    assert subjects(take_all(station)) == [
        "array 1 (sweep) started on h1",
        "array 1 (sweep): task 1_1 failed on h1, the first",
        "array 1 (sweep) ended: 3 done, 2 failed",
    ]


def test_whoever_holds_a_device_outside_of_jobs_can_be_told_once_an_hour(open_station: MakesStation) -> None:
    station = open_station()
    note = "in use by pid 71 of carol (python3) of root (, 900 MiB), pid 72 of dave (vim)"
    greeting = hello("a", 2)
    first, other = greeting.report.devices
    held = msgspec.structs.replace(first, note=note)
    report = msgspec.structs.replace(greeting.report, devices=(held, other))
    station.agent_says(b"agent-a", msgspec.structs.replace(greeting, report=report))
    ask = clients.TellOwner(device_id=held.device_id)
    assert isinstance(station.ask(ask), clients.NoticeReply)
    (told,) = take(station)
    assert (told["user"], told["subject"]) == ("carol", "others wait for a/0, which a process of yours holds")
    for asked in (ask, clients.TellOwner(device_id=other.device_id)):
        answer = station.ask(asked)
        assert isinstance(answer, clients.Failure) and answer.code == "refused", answer


def test_something_else_than_a_job_is_told(open_station: MakesStation) -> None:
    station = open_station(NotifySettings(mail_domain="lab.example"))
    station.notifier.tell("carl", "foreign", "your process holds gpu 3", "and uses none of it")
    assert station.deliveries.waiting == []
    station.settle()
    (told,) = take(station)
    assert (told["to"], told["subject"]) == ("carl@lab.example", "your process holds gpu 3")


# --- What it says -----------------------------------------------------------------------------------


def end_with_output(station: Station, data: bytes, detail: str = "exit code 3") -> dict[str, Any]:
    """Lets alice's job with a secret fail; returns what is told."""
    address = station.join()
    launch = Launch(argv=("python", "train.py"), workdir="/tmp", secrets=("HF_TOKEN", "TAB_KEY"))
    request = clients.Submit(
        specs=(job("train", notify=ENDS, launch=launch),),
        secrets={"HF_TOKEN": "hunter2\nsecond-line", "TAB_KEY": "ta\tb"},
    )
    (job_id,) = station.ask(request, ALICE).job_ids
    fail(station, address, job_id, detail)
    station.tick(0.5)
    (read,) = station.told(address, ReadLog)
    assert read.offset == -read.limit
    reply = LogReply(request=read.request, data=data, next_offset=len(data), at_end=True, closed=True)
    station.agent_says(address, reply)
    (told,) = take(station)
    return told


def test_the_last_lines_of_its_output_come_with_it(open_station: MakesStation) -> None:
    lines = "".join(f"line {at}\n" for at in range(30))
    told = end_with_output(open_station(), f"{lines}\x1b[31m 1%\r50%\r99%\x1b[0m\n".encode())
    assert told["text"].splitlines() == [
        "failed: exit code 3",
        "",
        "  cotenant logs 1",
        "  cotenant requeue 1",
        "",
        "The last lines of its output:",
        *(f"  line {at}" for at in range(11, 30)),
        "  99%",
    ]


def test_no_secret_is_in_it(open_station: MakesStation) -> None:
    output = b"key hunter2 and \x1b[1mhun\x1b[0mter2\nthen second-line\n"
    told = end_with_output(open_station(), output, detail="exit code 3: bad keys hunter2, ta\tb")
    assert [word for word in ("hunter2", "second-line", "ta\tb", "ta\\tb") if word in told["text"]] == []
    assert told["text"].count("[secret]") == 5


def test_a_line_that_may_have_lost_its_beginning_is_left_out(open_station: MakesStation) -> None:
    told = end_with_output(open_station(), b"unter2 " + b"x" * 16_384 + b"\nlast\n")
    assert "unter2" not in told["text"] and told["text"].endswith("output:\n  last")


def test_it_goes_without_output_that_does_not_come(open_station: MakesStation) -> None:
    station = open_station()
    finish(station, station.join(), station.submit(notify=ENDS))
    assert take(station) == []
    (told,) = take_all(station)
    assert told["text"].endswith("Its output could not be had from h1 in time.")


def test_secrets_are_kept_until_it_is_sent(open_station: MakesStation) -> None:
    station = open_station(NotifySettings(webhook_hosts=("hooks.example",), smtp=""))
    launch = Launch(argv=("a",), workdir="/tmp", secrets=(WEBHOOK_VARIABLE,))
    url = "https://hooks.example/of-alice"
    request = clients.Submit(specs=(job(notify=ENDS, launch=launch),), secrets={WEBHOOK_VARIABLE: url})
    (job_id,) = station.ask(request, ALICE).job_ids
    cancel(station, job_id)
    assert station.notifier.jobs_waiting == {job_id}
    station.tick(0.5)
    ((order, then),) = station.deliveries.waiting
    assert order["url"] == url and url not in str(order["notice"])
    assert url.encode() not in (Path(station.journal.place)).read_bytes()
    then(SENT)
    station.tick(0.5)
    assert station.notifier.jobs_waiting == set()


def test_a_job_does_not_get_its_owner_s_webhook_and_can_run_again_without_it(
    open_station: MakesStation,
) -> None:
    station = open_station(NotifySettings(webhook_hosts=("hooks.example",), smtp=""))
    address = station.join()
    launch = Launch(argv=("a",), workdir="/tmp", secrets=(WEBHOOK_VARIABLE,))
    url = "https://hooks.example/of-alice"
    request = clients.Submit(specs=(job(notify=ENDS, launch=launch),), secrets={WEBHOOK_VARIABLE: url})
    (job_id,) = station.ask(request, ALICE).job_ids
    finish(station, address, job_id)
    assert len(take_all(station)) == 1
    station.secrets.release(lambda each: True)
    station.ask(clients.ChangeJobs(verb="requeue", job_ids=(job_id,)), ALICE)
    finish(station, address, job_id)
    assert url not in str(station.told(address, agents.CommandDelivery))
    assert take_all(station) == []
    shown = station.ask(clients.ShowJob(job_id=job_id)).job.told
    assert shown.endswith("own webhook failed: its URL is not known any more")


def test_the_site_s_webhook_is_not_the_user_s(open_station: MakesStation) -> None:
    settings = NotifySettings(webhook_hosts=("hooks.example",), smtp="", site_webhook_file="/site")
    station = open_station(settings)
    launch = Launch(argv=("a",), workdir="/tmp", secrets=(WEBHOOK_VARIABLE,))
    url = "https://hooks.example/of-alice"
    request = clients.Submit(specs=(job(notify=ENDS, launch=launch),), secrets={WEBHOOK_VARIABLE: url})
    cancel(station, station.ask(request, ALICE).job_ids[0])
    station.tick(0.5)
    assert sorted(order["url"] for order, _ in station.deliveries.waiting) == ["", url]


REFUSALS = {
    "https://elsewhere.example/x": "this site allows hooks.example",
    "http://hooks.example/x": "must be https",
    "https://hooks.example:8443/x": "this site allows hooks.example",
    "https://u:p@hooks.example/x": "a webhook must be",
    "https://hooks.example@169.254.169.254/x": "a webhook must be",
    "ftp://hooks.example/": "a webhook must be",
    "https://[::1": "cannot be read",
}


@pytest.mark.parametrize(("url", "why"), REFUSALS.items())
def test_a_webhook_that_the_site_does_not_allow_is_refused(
    open_station: MakesStation, url: str, why: str
) -> None:
    station = open_station(NotifySettings(webhook_hosts=("hooks.example",)))
    launch = Launch(argv=("a",), workdir="/tmp", secrets=(WEBHOOK_VARIABLE,))
    request = clients.Submit(specs=(job(notify=ENDS, launch=launch),), secrets={WEBHOOK_VARIABLE: url})
    answers = [station.ask(request, ALICE), station.ask(clients.SendTestNotice(webhook=url), ALICE)]
    assert all(isinstance(answer, clients.Failure) and why in answer.message for answer in answers)
    assert url not in str(answers)


DOMAINS = {
    "the site's own": (NotifySettings(mail_domain="Lab.example"), "lab.example"),
    "a list": (NotifySettings(mail_domains=("lab.example", "x.org")), "lab.example, x.org"),
    "both": (NotifySettings(mail_domain="lab.example", mail_domains=("x.org",)), "lab.example, x.org"),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_mail_goes_to_the_sites_domains_alone(open_station: MakesStation, name: str) -> None:
    settings, domains = DOMAINS[name]
    station = open_station(settings)
    elsewhere = "victim@elsewhere.example"
    for dry_run in (False, True):
        submit = clients.Submit(specs=(job(notify=("fail", elsewhere)),), dry_run=dry_run)
        answer = station.ask(submit, ALICE)
        assert isinstance(answer, clients.Failure) and answer.code == "refused"
        assert f"{elsewhere}: this site's mail goes to {domains} alone" in answer.message
    answer = station.ask(clients.SendTestNotice(mail=elsewhere), ALICE)
    assert isinstance(answer, clients.Failure) and answer.code == "refused"
    station.submit(notify=("end", "bob@LAB.example"))


def test_an_address_that_was_taken_before_gets_no_mail_from_a_site_that_keeps_to_its_domains(
    open_station: MakesStation,
) -> None:
    station = open_station(NotifySettings(mail_domain="lab.example", mail_domains=("*",)))
    cancel(station, station.submit(notify=("end", "victim@elsewhere.example")))
    station.settle()
    station = open_station(NotifySettings(mail_domain="lab.example"))
    assert take(station) == []
    assert station.core.counters["notices_failed"] == 1


def test_a_submission_says_that_its_mail_cannot_be_sent(open_station: MakesStation) -> None:
    mail, both = NotifySettings(), NotifySettings(command=("tell",), mail_domain="lab.example")
    submit = clients.Submit(specs=(job(notify=ENDS),))
    for settings, why, notes in (
        (mail, "Connection refused", 1),
        (mail, "", 0),
        (both, "Connection refused", 0),
    ):
        station = open_station(settings, why_unreached=lambda smtp, why=why: why)
        said = [each for each in station.ask(submit, ALICE).notes if "may not be told" in each]
        assert len(said) == notes
        assert all("Connection refused (notify.smtp = 127.0.0.1:25); try `cotenant" in each for each in said)


def test_a_relay_that_has_failed_is_said_at_submission(open_station: MakesStation) -> None:
    station = open_station(NotifySettings(smtp="relay.example:25"))
    station.ask(clients.SendTestNotice(), ALICE)
    take(station, DEAD)
    (said,) = [
        each for each in station.ask(clients.Submit(specs=(job(notify=ENDS),)), ALICE).notes if "told" in each
    ]
    assert said.count("notify.smtp = relay.example:25") == 1


@pytest.mark.parametrize("word", ["often", "anna@", "a@b\nBcc: c@d", "@", "<a@b>", "a b@c"])
def test_words_that_are_neither_kind_nor_address_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match="notify must be of"):
        job(notify=(word,))


def test_who_cannot_be_told_is_not_left_to_wait_for_it(open_station: MakesStation) -> None:
    answer = open_station(NotifySettings(smtp="")).ask(clients.Submit(specs=(job(notify=ENDS),)), ALICE)
    assert isinstance(answer, clients.Failure) and "no way to tell" in answer.message


WAYS = {
    "mail to the relay's own user, where there is nothing else": (NotifySettings(), (), ["alice"]),
    "mail at the site's domain": (NotifySettings(mail_domain="lab.example"), (), ["alice@lab.example"]),
    "mail at her own address": (
        NotifySettings(mail_domain="lab.example", mail_domains=("x.org",)),
        ("al@x.org",),
        ["al@x.org"],
    ),
    "command alone": (BY_COMMAND, (), [""]),
    "command and webhook of the site": (NotifySettings(command=("c",), site_webhook_file="/f"), (), ["", ""]),
}


@pytest.mark.parametrize(("settings", "addresses", "goes"), WAYS.values(), ids=WAYS.keys())
def test_by_which_ways_somebody_is_told(
    open_station: MakesStation, settings: NotifySettings, addresses: tuple[str, ...], goes: list[str]
) -> None:
    station = open_station(settings)
    cancel(station, station.submit(notify=(*ENDS, *addresses)))
    assert [notice["to"] for notice in take(station)] == goes


# --- When it goes wrong -----------------------------------------------------------------------------


def test_nothing_is_told_before_it_is_durable(open_station: MakesStation) -> None:
    station = open_station()
    job_id = station.submit(notify=ENDS)
    station.post(clients.ChangeJobs(verb="cancel", job_ids=(job_id,)), ALICE)
    station.notifier.tick()
    assert station.deliveries.waiting == []
    station.settle()
    assert len(take(station)) == 1


def test_a_restart_sends_what_was_not_sent_under_the_same_id(open_station: MakesStation) -> None:
    station = open_station()
    cancel(station, station.submit(notify=ENDS))
    station.tick(0.5)
    ((before, _),) = station.deliveries.waiting  # It is on its way, or has arrived: nobody knows.
    (after,) = take(open_station())
    assert after["id"] == before["id"] and after["subject"] == before["subject"]
    assert take(open_station()) == []


class FullNowAndThen:
    """A connection to a disk that can be full."""

    def __init__(self, inner: SqliteWriting) -> None:
        self._inner = inner
        self.is_full = False
        self.begin, self.provide = inner.begin, inner.provide
        self.leave, self.close = inner.leave, inner.close

    def commit(self, statements: Sequence[Any]) -> None:
        if self.is_full:
            raise StorageError("the disk is full")
        self._inner.commit(statements)


def test_what_a_failed_commit_has_taken_back_is_not_told(open_station: MakesStation, tmp_path: Path) -> None:
    writing = FullNowAndThen(SqliteDatabase(tmp_path, disk_bytes_min=NO_RESERVE).open_writing())
    station = open_station(writing=writing)
    job_id = station.submit(notify=ENDS)
    writing.is_full = True
    cancel_it = clients.ChangeJobs(verb="cancel", job_ids=(job_id,))
    station.post(cancel_it, ALICE)
    station.settle()
    writing.is_full = False
    assert station.core.try_again()
    assert take(station) == []
    station.ask(cancel_it, ALICE)
    assert len(take(station)) == 1


def test_it_is_tried_again_later_and_later_and_given_up_after_a_day(
    open_station: MakesStation, caplog: pytest.LogCaptureFixture
) -> None:
    station = open_station()
    job_id = station.submit(notify=ENDS)
    cancel(station, job_id)
    tries = 0
    while station.notifier.undelivered:
        tries += len(take(station, REFUSED))
        station.tick(RETRY_S)
    shown = station.ask(clients.ShowJob(job_id=job_id), ALICE).job.told
    assert 24 <= tries <= 40 and station.time_s < GIVE_UP_S + 2 * 3600
    assert shown == "end by command; the last (end): command failed: it does not want it (notify.command)"
    assert station.core.counters["notices_failed"] == 1 and "not told: alice" in caplog.text
    assert take(open_station()) == []


def test_a_dead_endpoint_holds_up_no_other(open_station: MakesStation) -> None:
    station = open_station(NotifySettings(command=("c",), mail_domain="lab.example"))
    for _ in range(3):
        cancel(station, station.submit(notify=ENDS))
    station.tick(0.5)
    assert len(station.deliveries.waiting) == 2  # One by mail, which never comes back, and one by command.
    for _ in range(3):
        for order, then in station.deliveries.waiting:
            if not order.get("to"):
                then(SENT)
        station.deliveries.waiting = []
        station.tick(0.5)
    assert station.core.counters["notices_sent"] == 3 and station.notifier.undelivered == 3


def test_an_endpoint_that_cannot_be_reached_rests_and_no_message_is_lost(open_station: MakesStation) -> None:
    station = open_station()
    for _ in range(20):
        cancel(station, station.submit(notify=ENDS))
    assert len(take(station, DEAD)) == 1
    station.tick(RETRY_S)
    (told,) = take(station, DEAD)
    station.tick(4 * RETRY_S)
    assert len({notice["id"] for notice in (*take(station), told)}) == 20


def test_one_user_s_messages_are_bounded(open_station: MakesStation) -> None:
    station = open_station()
    for _ in range(OPEN_PER_USER + 1):
        station.notifier.tell("alice", "note", "x", "y")
        station.core.happen(ev.AlarmRang())
        station.settle()
    station.notifier.tell("bob", "note", "x", "y")
    station.settle()
    assert station.notifier.undelivered == OPEN_PER_USER + 1
    assert station.core.counters["notices_failed"] == 1


def test_a_test_is_sent_once_and_says_what_came_of_it(open_station: MakesStation) -> None:
    station = open_station(NotifySettings(command=("c",)))
    asked = station.ask(clients.SendTestNotice(mail="a@x.org"), ALICE)
    assert asked.ways == {"command": "waits", "mail to a@x.org": "waits"}
    again = station.ask(clients.SendTestNotice(), ALICE)
    assert isinstance(again, clients.Failure)
    station.tick(0.5)
    for order, then in station.deliveries.waiting:
        then(DEAD if order.get("to") else SENT)
    station.tick(0.5)
    get = clients.GetNotice(notice_id=asked.notice_id)
    assert station.ask(get, ALICE).ways == {
        "command": "sent",
        "mail to a@x.org": "failed: Connection refused (notify.smtp = 127.0.0.1:25)",
    }
    assert isinstance(station.ask(get, BOB), clients.Failure)
    assert station.ask(clients.GetNotice(), BOB).ways == {
        "command": "sent",
        "mail": "failed: Connection refused (notify.smtp = 127.0.0.1:25)",
    }
    assert station.journal.notices() == []
    station.deliveries.waiting.clear()
    station.ask(clients.SendTestNotice(mail="a@x.org"), ALICE)  # The relay was just seen to be dead.
    station.tick(0.5)
    assert len(station.deliveries.waiting) == 2
