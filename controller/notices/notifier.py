"""Decides what is told, keeps it in the journal, and sends it until every way has taken it or was given up.

Rule: of what shares an endpoint one message is on its way at a time, and an endpoint that cannot be reached
rests; so a dead one holds up nothing else. Secrets of a job are kept until its messages are through: they are
looked for in what is sent.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from cotenant.controller.api import Denied, logs_of
from cotenant.controller.domain import WEBHOOK_VARIABLE, Job, JobId, JobSpec, array_of, is_mail_address, texts
from cotenant.controller.domain import events as ev
from cotenant.controller.executors.agents import AgentExecutor
from cotenant.controller.notices import notice as ways
from cotenant.controller.notices.deliveries import ChildDeliveries, DeliveryResult
from cotenant.controller.notices.notice import FAILED, OUTPUT_BYTES, OWN_WEBHOOK, SENT, WAITS, Notice
from cotenant.controller.notices.occasions import Occasion, compose_text, occasions, wants
from cotenant.controller.store import Core, Decided, StorageError
from cotenant.controller.system.keys import Identity
from cotenant.controller.system.secrets import BadSecrets, Secrets
from cotenant.controller.system.sections import NotifySettings
from cotenant.controller.system.webhooks import webhook_problem
from cotenant.controller.wire import BadMessage, LogReply, ReadLog, decode_json
from cotenant.controller.wire import clients as wire

GIVE_UP_S: Final = 24 * 3600.0
RETRY_S: Final = 10.0
"""Before a message is tried again; doubled each time."""
RETRY_S_MAX: Final = 3600.0
REST_S_MAX: Final = 300.0
"""An endpoint that cannot be reached rests at most so long, however many messages wait for it."""
OUTPUT_WITHIN_S: Final = 5.0
OPEN_MAX: Final = 10_000
OPEN_PER_USER: Final = 1_000
DONE_KEPT: Final = 1_000
"""Messages that are through and can still be asked about."""

log = logging.getLogger("cotenant.controller")


class OpenNotice(msgspec.Struct, kw_only=True):
    """A message on its way, with what can be forgotten."""

    notice: Notice
    taken_s: float
    """When this controller took it up."""
    is_test: bool = False
    """It is tried once, now, and nothing of it is kept."""
    payload: dict[str, Any] | None = None
    """What is sent; None: the output that belongs to it has not come."""
    url: str = ""
    """Its user's own webhook."""
    is_asked: bool = False
    tries: Counter[str] = msgspec.field(default_factory=Counter)
    due_s: dict[str, float] = {}
    """By way: before then it is not tried again."""


class NoticeLane(msgspec.Struct):
    """What shares an endpoint."""

    is_busy: bool = False
    failures: int = 0
    """In a row, for which it could not be reached."""
    rests_until_s: float = 0.0


class Notifier:
    """Follows events, and is ticked, as an executor of the loop; answers what people ask about messages."""

    def __init__(
        self,
        core: Core,
        link: AgentExecutor,
        secrets: Secrets,
        settings: NotifySettings,
        deliveries: ChildDeliveries,
        why_unreached: Callable[[str], str] = lambda smtp: "",
    ) -> None:
        """Takes up what the journal holds. `why_unreached`: of a relay of this machine, at once."""
        self._why_unreached = why_unreached
        self._core, self._link, self._secrets = core, link, secrets
        self._settings, self._deliveries = settings, deliveries
        self._open: dict[str, OpenNotice] = {}
        self._done: dict[str, Notice] = {}
        self._lanes: dict[str, NoticeLane] = {}
        self._results: list[tuple[str, str, str, DeliveryResult]] = []
        """By message, way and lane: what is taken in at the next tick."""
        self._last_by_way: dict[str, str] = {}
        self._is_unread = False
        """The state was read back, and what the journal holds was not."""
        self._read()
        core.keep_beside = self._observe

    # --- What is told ------------------------------------------------------------------------------

    def _observe(self, event: ev.AnyEvent) -> None:
        """Adds the messages that follow from an event to its transaction."""
        for occasion in occasions(event, self._core.state):
            if wants(occasion.job, occasion.kind):
                try:
                    self._tell_of_job(occasion)
                except (BadMessage, StorageError):
                    log.exception("not told: %s of job %s", occasion.kind, occasion.job.job_id)

    def _tell_of_job(self, occasion: Occasion) -> None:
        kind, job, attempt, _, mark = occasion
        if text := compose_text(occasion, self._core.state, self._core.forgotten_tasks):
            number = attempt.attempt if attempt is not None else 0
            key = "-".join(filter(None, (job.job_id, str(number), kind, mark)))
            about = {"job_id": job.job_id, "attempt": number}
            goes = self._ways_of(job.spec)
            self._add(self._make(key, goes, kind=kind, user=job.spec.user, **text._asdict(), **about))

    def tell(self, user: str, kind: str, subject: str, text: str) -> Notice:
        """Tells a user of something that is no job of theirs, once the open group is durable."""
        goes = ways.ways_of((), user, self._settings, has_webhook=False)
        key = f"{self._core.journal.last_seq}-{user}-{kind}"
        lines = tuple(map(texts.one_line, text.splitlines()))
        subject = texts.one_line(subject)
        notice = self._make(key, goes, kind=kind, user=user, subject=subject, lines=lines)
        if goes:
            self._add(notice)
        return notice

    def _make(self, key: str, goes: Sequence[str], **fields: Any) -> Notice:
        notice_id, at_s = f"{self._core.journal.name}-{key}", self._core.clock.wall()
        return Notice(notice_id=notice_id, at_s=at_s, ways=dict.fromkeys(goes, WAITS), **fields)

    def _ways_of(self, spec: JobSpec) -> tuple[str, ...]:
        has_webhook = WEBHOOK_VARIABLE in spec.launch.secrets
        return ways.ways_of(spec.notify, spec.user, self._settings, has_webhook=has_webhook)

    def _add(self, notice: Notice) -> None:
        """Writes a message with the open group, and sends it when that is durable."""
        if notice.notice_id in self._open:
            return
        mine = sum(each.notice.user == notice.user for each in self._open.values())
        if mine >= OPEN_PER_USER or len(self._open) >= OPEN_MAX:
            log.error("not told, for %d messages wait already: %s: %s", mine, notice.user, notice.subject)
            self._core.counters["notices_failed"] += 1
            return
        self._keep(notice)
        self._core.run_after_commit(partial(self._take, notice))

    def _keep(self, notice: Notice) -> None:
        self._core.journal.keep_notice(notice.notice_id, msgspec.json.encode(notice).decode())

    def _take(self, notice: Notice) -> None:
        self._done.pop(notice.notice_id, None)
        self._open[notice.notice_id] = OpenNotice(notice=notice, taken_s=self._core.clock.now_s())

    # --- As an executor ----------------------------------------------------------------------------

    def carry_out(self, decided: Decided) -> None:
        """Nothing: what is told is in the journal already."""

    @property
    def undelivered(self) -> int:
        """Messages that wait for a way to take them."""
        return len(self._open)

    @property
    def jobs_waiting(self) -> set[JobId]:
        """Jobs of which something is still to be told: their secrets are needed."""
        return {each.notice.job_id for each in self._open.values() if each.notice.job_id is not None}

    def rebuilt(self) -> None:
        """The state was read back: what the journal holds is what is to be told."""
        self._is_unread = True

    def _read(self) -> None:
        """Takes up what the journal holds. Raises StorageError."""
        kept: list[Notice] = [decode_json(data.encode(), Notice) for data in self._core.journal.notices()]
        self._open = {key: each for key, each in self._open.items() if each.is_test}
        self._done = {each.notice_id: each for each in kept if not each.is_open}
        for notice in kept:
            if notice.is_open:
                self._take(notice)

    def tick(self) -> None:
        """Takes in what came of deliveries, and starts others."""
        if self._core.stuck:
            return
        if self._is_unread:
            try:
                self._read()
            except StorageError:
                return
            self._is_unread = False
        results, self._results = self._results, []
        for result in results:
            self._take_result(*result)
        for each in list(self._open.values()):
            if each.payload is None:
                self._ask_output(each)
            if each.payload is not None:
                self._start(each)
            if not each.notice.is_open:
                self._finish(each)

    # --- What it says ------------------------------------------------------------------------------

    def _ask_output(self, asked: OpenNotice) -> None:
        """Asks the host of rank 0 for the end of its output; a message goes without what does not come."""
        notice = asked.notice
        record = None
        if notice.job_id is not None and notice.has_output:
            with suppress(BadMessage, StorageError):
                record = self._core.record(notice.job_id)
        attempts = record.attempts if record is not None else ()
        attempt = next((each for each in attempts if each.attempt == notice.attempt), None)
        if record is None or attempt is None or not notice.has_output:
            self._compose(asked)
        elif self._core.clock.now_s() >= asked.taken_s + OUTPUT_WITHIN_S:
            self._compose(asked, f"Its output could not be had from {attempt.hosts[0]} in time.")
        elif not asked.is_asked:
            host_id, rank = logs_of(record.job, attempt)[0]
            asked.is_asked = True
            read = ReadLog(
                request=0,
                job_id=record.job.job_id,
                attempt=attempt.attempt,
                rank=rank,
                offset=-OUTPUT_BYTES,
                limit=OUTPUT_BYTES,
                job_epoch=record.job.epoch,
            )
            self._link.logs.ask(host_id, read, partial(self._take_output, asked))

    def _take_output(self, asked: OpenNotice, reply: LogReply) -> None:
        if reply.missing and not reply.request:  # Its host is not there: perhaps it is soon, after a restart.
            asked.is_asked = False
        elif asked.payload is None:
            why = reply.missing if reply.at_end else "its agent is older, or it was cut there"
            self._compose(asked, f"Its output could not be had: {why}" if why else "", reply.data)

    def _compose(self, sending: OpenNotice, why: str = "", output: bytes = b"") -> None:
        """Puts together what is sent. A text in which secrets cannot be looked for is left out."""
        notice, secrets = sending.notice, dict[str, str]()
        try:
            record = None if notice.job_id is None else self._core.record(notice.job_id)
            if record is not None and (names := record.job.spec.launch.secret_variables):
                secrets = self._secrets.read(record.job.job_id, names)
            elif record is None and notice.job_id is not None:
                raise BadSecrets("its job is not known any more")
        except (BadSecrets, BadMessage, StorageError) as error:
            why, output, notice = f"It says no more: {error}", b"", msgspec.structs.replace(notice, lines=())
        if OWN_WEBHOOK in notice.ways and notice.job_id is not None:
            with suppress(BadSecrets):  # A job that was queued again has lost it.
                sending.url = self._secrets.read(notice.job_id, [WEBHOOK_VARIABLE])[WEBHOOK_VARIABLE]
        sending.payload = ways.payload_of(notice, output, why, secrets.values())

    # --- Sending -----------------------------------------------------------------------------------

    def _start(self, sending: OpenNotice) -> None:
        """Starts what is due, by ways that are free."""
        now_s, url = self._core.clock.now_s(), sending.url
        assert sending.payload is not None, "it was not composed"
        for way, state in sending.notice.ways.items():
            if not state.startswith(WAITS) or sending.due_s.get(way, 0.0) > now_s:
                continue
            problem = ""
            if way == OWN_WEBHOOK:
                hosts, unknown = self._settings.webhook_hosts, "its URL is not known any more"
                problem = webhook_problem(url, hosts) if url else unknown
            elif way.startswith(ways.MAIL):
                problem = ways.mail_problem((way.removeprefix(ways.MAIL),), self._settings)
            if now_s - sending.taken_s >= GIVE_UP_S:
                problem = problem or state.partition(": ")[2] or "its turn has not come for a day"
            if problem:
                self._give_up(sending, way, problem)
                continue
            name = ways.lane_of(way, url)
            lane = self._lanes.setdefault(name, NoticeLane())
            if not lane.is_busy and (sending.is_test or lane.rests_until_s <= now_s):
                lane.is_busy = True
                argv, data = ways.order_of(way, url, sending.payload, self._settings)
                took = partial(self._note_result, sending.notice.notice_id, way, name)
                self._deliveries.start(argv, data, took)

    def _note_result(self, notice_id: str, way: str, lane: str, result: DeliveryResult) -> None:
        self._results.append((notice_id, way, lane, result))

    def _take_result(self, notice_id: str, way: str, name: str, result: DeliveryResult) -> None:
        now_s, lane = self._core.clock.now_s(), self._lanes[name]
        if not result.sent:
            result = result._replace(why=f"{result.why} ({ways.setting_of(name, self._settings)})")
        failures = 0 if result.reached else lane.failures + 1
        rest_s = min(RETRY_S * 2 ** (failures - 1), REST_S_MAX) if failures else 0.0
        self._lanes[name] = NoticeLane(failures=failures, rests_until_s=now_s + rest_s)
        self._last_by_way[name] = SENT if result.sent else f"{FAILED}: {result.why}"
        sending = self._open.get(notice_id)
        if sending is None:
            return  # Its row was never durable, or is read back.
        notice = sending.notice
        if result.sent:
            notice.ways[way] = SENT
            self._core.counters["notices_sent"] += 1
            if not sending.is_test:
                self._keep(notice)
        elif sending.is_test:
            self._give_up(sending, way, result.why)
        else:
            sending.tries[way] += 1
            notice.ways[way] = f"{WAITS}: {result.why}"
            sending.due_s[way] = now_s + min(RETRY_S * 2 ** (sending.tries[way] - 1), RETRY_S_MAX)

    def _give_up(self, sending: OpenNotice, way: str, why: str) -> None:
        notice = sending.notice
        notice.ways[way] = f"{FAILED}: {why}"
        self._core.counters["notices_failed"] += 1
        log.error("not told: %s, %s by %s: %s", notice.user, notice.notice_id, way, why)
        if not sending.is_test:
            self._keep(notice)

    def _finish(self, sent: OpenNotice) -> None:
        del self._open[sent.notice.notice_id]
        self._done[sent.notice.notice_id] = sent.notice
        while len(self._done) > DONE_KEPT:
            oldest = next(iter(self._done))
            del self._done[oldest]
            self._core.journal.keep_notice(oldest, None)

    # --- What people ask ---------------------------------------------------------------------------

    def check(self, spec: JobSpec, secrets: Mapping[str, str]) -> str:
        """Checks that somebody can be told of a job; returns what speaks against it at present. Raises
        Denied."""
        if problem := ways.mail_problem(spec.notify, self._settings):
            raise Denied("refused", f"--notify {problem}", "name an address there, or none")
        if spec.notify and (url := secrets.get(WEBHOOK_VARIABLE)):
            self._check_webhook(url)
        if spec.notify and not self._ways_of(spec):
            raise Denied("refused", "--notify: this controller has no way to tell anybody", "ask an admin")
        goes = self._ways_of(spec) if spec.notify else ()
        if not goes or not all(way.startswith(ways.MAIL) for way in goes):
            return ""
        why = self._why_unreached(self._settings.smtp)
        why = f"{FAILED}: {why}" if why else self._last_by_way.get(ways.MAIL_LANE, "")
        if not why.startswith(FAILED):
            return ""
        why, setting = why.partition(" (notify.")[0], ways.setting_of(ways.MAIL_LANE, self._settings)
        return f"you may not be told: mail {why} ({setting}); try `cotenant notify test`"

    def _check_webhook(self, url: str) -> None:
        if problem := webhook_problem(url, self._settings.webhook_hosts):
            raise Denied("refused", problem, "see notify.webhook_file; --notify none does without")

    def test(self, request_id: int, request: wire.SendTestNotice, who: Identity) -> wire.NoticeReply:
        """Sends a message to the asker once, now; what comes of it is asked for. Raises Denied."""
        if any(each.is_test and each.notice.user == who.name for each in self._open.values()):
            raise Denied("refused", "a test of yours is under way", "wait until it is through")
        if request.webhook:
            self._check_webhook(request.webhook)
        if request.mail and not is_mail_address(request.mail):
            raise Denied("usage", "that is no mail address")
        if problem := ways.mail_problem((request.mail,), self._settings):
            raise Denied("refused", problem, "set notify.mail to an address there")
        words = (request.mail,) if request.mail else ()
        goes = ways.ways_of(words, who.name, self._settings, has_webhook=bool(request.webhook))
        key = f"{self._core.clock.now_s():.3f}-{who.name}-test"
        text = {"subject": f"a test for {who.name}", "lines": ("This is how you are told of your jobs.",)}
        notice = self._make(key, goes, kind="test", user=who.name, **text)
        self._take(notice)
        self._open[notice.notice_id].is_test = True
        self._open[notice.notice_id].url = request.webhook
        return wire.NoticeReply(request_id=request_id, notice_id=notice.notice_id, ways=notice.ways)

    def notice(self, request_id: int, request: wire.GetNotice, who: Identity) -> wire.NoticeReply:
        """What became of a message to the asker. Raises Denied: there is none such."""
        if not request.notice_id:
            sites = ways.site_lanes(self._settings)
            stand = {lane: self._last_by_way.get(lane, "") for lane in sites}
            return wire.NoticeReply(request_id=request_id, notice_id="", ways=stand)
        sending = self._open.get(request.notice_id)
        found = sending.notice if sending is not None else self._done.get(request.notice_id)
        if found is None or found.user != who.name:
            raise Denied("not-found", f"no message {request.notice_id} to you")
        return wire.NoticeReply(request_id=request_id, notice_id=found.notice_id, ways=found.ways)

    def describe(self, job: Job) -> str:
        """Of what a job's owner is told, how, and what became of the last message; empty: of nothing."""
        if not job.spec.notify:
            return ""
        known = [*self._done.values(), *(each.notice for each in self._open.values())]
        mine = [each for each in known if array_of(each.job_id or "") == array_of(job.job_id)]
        told = f"{', '.join(word for word in job.spec.notify if '@' not in word)} by "
        told += ", ".join(self._ways_of(job.spec))
        if not mine:
            return told
        last = max(mine, key=lambda each: each.at_s)
        return f"{told}; the last ({last.kind}): {', '.join(map(' '.join, last.ways.items()))}"
