"""Decides what is told, keeps it in the journal, and sends it until every way has taken it or was given up.

Rule: of what shares an endpoint one message is on its way at a time, and an endpoint that cannot be reached
rests; so a dead one holds up nothing else. Secrets of a job are kept until its messages are through: they are
looked for in what is sent.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

import msgspec

from cotenant.controller.api import Denied, logs_of
from cotenant.controller.domain import WEBHOOK_VARIABLE, Job, JobId, JobSpec, array_of
from cotenant.controller.domain import events as ev
from cotenant.controller.executors.agents import AgentExecutor
from cotenant.controller.notices.deliveries import DeliversNotices, DeliveryResult
from cotenant.controller.notices.notice import (
    COMMAND,
    FAILED,
    MAIL,
    OUTPUT_BYTES,
    OWN_WEBHOOK,
    SENT,
    WAITS,
    WEBHOOK,
    Notice,
    lane_of,
    last_lines,
    order_of,
    payload_of,
    ways_of,
)
from cotenant.controller.notices.occasions import Occasion, compose_text, occasions, wants
from cotenant.controller.store import Core, Decided, StorageError
from cotenant.controller.system.secrets import BadSecrets, Secrets
from cotenant.controller.system.sections import NotifySettings
from cotenant.controller.system.webhooks import webhook_problem
from cotenant.controller.wire import BadMessage, LogReply, ReadLog, utc
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
    output: list[str] | None
    """Its last lines; None: they have not come."""
    taken_s: float
    """When this controller took it up."""
    is_asked: bool = False
    tries: Counter[str] = msgspec.field(default_factory=Counter)
    due_s: dict[str, float] = {}
    """By way: before then it is not tried again."""
    url: str | None = None
    """Its user's webhook, where no job holds it. Such a message is tried once."""
    own_lane: str = ""
    """That of its user's webhook; empty: not known yet."""


class Came(NamedTuple):
    """What came of a delivery, until the next tick."""

    notice_id: str
    way: str
    lane: str
    result: DeliveryResult


class Lane(msgspec.Struct, kw_only=True):
    """An endpoint, or several that are one to us."""

    is_busy: bool = False
    failures: int = 0
    """In a row, for which it could not be reached."""
    rests_until_s: float = 0.0


class Notifier:
    """Follows events, and is ticked, as an executor of the loop."""

    def __init__(
        self,
        core: Core,
        link: AgentExecutor,
        secrets: Secrets,
        settings: NotifySettings,
        deliveries: DeliversNotices,
    ) -> None:
        """Takes up what the journal holds."""
        self._core, self._link, self._secrets = core, link, secrets
        self._settings, self._deliveries = settings, deliveries
        self._open: dict[str, OpenNotice] = {}
        self._done: dict[str, Notice] = {}
        self._lanes: dict[str, Lane] = {}
        self._came: list[Came] = []
        self._is_unread = False
        """The state was read back, and what the journal holds was not."""
        self._last_by_way: dict[str, str] = {}
        self._read()
        core.keep_beside = self._observe

    # --- What is told ------------------------------------------------------------------------------

    def _observe(self, event: ev.AnyEvent) -> None:
        """Adds the messages that follow from an event to its transaction."""
        for occasion in occasions(event, self._core.state):
            if wants(occasion.job, occasion.kind):
                self._tell_of_job(occasion)

    def _tell_of_job(self, occasion: Occasion) -> None:
        kind, job, attempt = occasion
        text = compose_text(occasion, self._core.state, self._core.journal.count_past_tasks)
        if text is None:
            return
        number = attempt.attempt if attempt is not None else 0
        self._add(
            Notice(
                notice_id=f"{self._core.journal.name}-{job.job_id}-{number}-{kind}",
                kind=kind,
                user=job.spec.user,
                subject=text.subject,
                lines=text.lines,
                at_s=self._core.clock.wall(),
                ways=dict.fromkeys(self._ways_of_job(job.spec), WAITS),
                job_id=job.job_id,
                attempt=number,
                has_output=text.has_output,
            )
        )

    def tell(self, user: str, kind: str, subject: str, text: str) -> None:
        """Tells a user of something that is no job of theirs, once the open group of the journal is durable."""
        self._add(
            Notice(
                notice_id=f"{self._core.journal.name}-{self._core.journal.last_seq}-{user}-{kind}",
                kind=kind,
                user=user,
                subject=subject,
                lines=tuple(text.splitlines()),
                at_s=self._core.clock.wall(),
                ways=dict.fromkeys(ways_of((), user, self._settings, has_webhook=False), WAITS),
            )
        )

    def send_test(self, user: str, mail: str, url: str) -> Notice:
        """Sends a message to a user once, now; nothing of it is kept. Raises Denied: it may not go there."""
        if any(each.url is not None and each.notice.user == user for each in self._open.values()):
            raise Denied("refused", "a test is under way", "wait for it")
        if url and (problem := webhook_problem(url, self._settings.webhook_hosts)):
            raise Denied("refused", problem)
        notice = Notice(
            notice_id=f"{self._core.journal.name}-{self._core.clock.now_s():.3f}-{user}-test",
            kind="test",
            user=user,
            subject=f"a test for {user}",
            lines=("This is how you are told of your jobs.",),
            at_s=self._core.clock.wall(),
            ways=dict.fromkeys(self._ways((mail,) if mail else (), user, has_webhook=bool(url)), WAITS),
        )
        self._open[notice.notice_id] = OpenNotice(
            notice=notice, output=[], taken_s=self._core.clock.now_s(), url=url
        )
        return notice

    def _ways_of_job(self, spec: JobSpec) -> tuple[str, ...]:
        return self._ways(spec.notify, spec.user, has_webhook=WEBHOOK_VARIABLE in spec.launch.secrets)

    def _ways(self, words: tuple[str, ...], user: str, *, has_webhook: bool) -> tuple[str, ...]:
        return ways_of(words, user, self._settings, has_webhook=has_webhook)

    def check(self, spec: JobSpec, secrets: Mapping[str, str]) -> None:
        """Checks that somebody can be told of a job. Raises Denied."""
        if not spec.notify:
            return
        url = secrets.get(WEBHOOK_VARIABLE, "")
        if url and (problem := webhook_problem(url, self._settings.webhook_hosts)):
            raise Denied("refused", problem, "see notify.webhook_file, or submit with --notify none")
        if not self._ways_of_job(spec):
            raise Denied(
                "refused",
                "--notify: this controller has no way to tell anybody",
                "an admin sets notify.smtp, notify.command or notify.site_webhook_file",
            )

    def _add(self, notice: Notice) -> None:
        """Writes a message with the open group, and sends it when that is durable."""
        mine = sum(each.notice.user == notice.user for each in self._open.values())
        if notice.notice_id in self._open:
            return
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
        output: list[str] | None = None if notice.has_output else []
        taken_s = self._core.clock.now_s()
        self._open[notice.notice_id] = OpenNotice(notice=notice, output=output, taken_s=taken_s)

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
        kept = self._core.journal.notices()
        self._open = {key: each for key, each in self._open.items() if each.url is not None}
        self._done = {}
        for data in kept.values():
            notice = msgspec.json.decode(data, type=Notice)
            if notice.is_open:
                self._take(notice)
            else:
                self._done[notice.notice_id] = notice

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
        results, self._came = self._came, []
        for result in results:
            self._take_result(result)
        for notice_id, each in list(self._open.items()):
            if each.output is None:
                self._ask_output(each)
            if each.output is not None:
                self._start(each)
            if not each.notice.is_open:
                self._finish(notice_id)

    # --- Output ------------------------------------------------------------------------------------

    def _ask_output(self, asked: OpenNotice) -> None:
        """Asks the host of rank 0 for the end of its output; without an answer in time the message goes without."""
        if self._core.clock.now_s() >= asked.taken_s + OUTPUT_WITHIN_S:
            asked.output = ["", "Its output could not be had in time."]
            return
        notice = asked.notice
        if asked.is_asked or notice.job_id is None:
            return
        try:
            record = self._core.record(notice.job_id)
        except (BadMessage, StorageError):
            record = None
        attempts = record.attempts if record is not None else ()
        attempt = next((each for each in attempts if each.attempt == notice.attempt), None)
        if record is None or attempt is None:
            asked.output = ["", "Its output could not be had: nothing is known of it any more."]
            return
        host_id, rank = logs_of(record.job, attempt)[0]
        asked.is_asked = True
        read = ReadLog(
            request=0,
            job_id=notice.job_id,
            attempt=attempt.attempt,
            rank=rank,
            offset=-OUTPUT_BYTES,
            limit=OUTPUT_BYTES,
            job_epoch=record.job.epoch,
        )
        self._link.logs.ask(host_id, read, partial(self._output_came, asked))

    def _output_came(self, asked: OpenNotice, reply: LogReply) -> None:
        if asked.output is not None:
            return
        if reply.missing and not reply.request:  # Its host is not there: perhaps it is soon, after a restart.
            asked.is_asked = False
            return
        secrets = self._secrets_of(asked.notice)
        if secrets is None or not reply.at_end:
            asked.output = ["", "Its output could not be had."]
        elif lines := last_lines(reply.data, secrets.values()):
            asked.output = ["", "The last lines of its output:", *lines]
        else:
            asked.output = ["", f"It has no output{f': {reply.missing}' if reply.missing else '.'}"]

    def _secrets_of(self, notice: Notice) -> dict[str, str] | None:
        """The secrets of a message's job; None: they cannot be read."""
        try:
            if notice.job_id is None:
                return {}
            record = self._core.record(notice.job_id)
            names = None if record is None else record.job.spec.launch.secrets
            return self._secrets.read(notice.job_id, names) if names else None if names is None else {}
        except (BadSecrets, BadMessage, StorageError):
            return None

    # --- Sending -----------------------------------------------------------------------------------

    def _start(self, sending: OpenNotice) -> None:
        """Starts what is due, by ways that are free."""
        now_s = self._core.clock.now_s()
        waiting = [way for way, state in sending.notice.ways.items() if state.startswith(WAITS)]
        if now_s - sending.taken_s >= GIVE_UP_S:
            for way in waiting:
                self._give_up(sending, way, "its turn has not come for a day")
            return
        due = [way for way in waiting if sending.due_s.get(way, 0.0) <= now_s and self._is_free(sending, way)]
        secrets = self._secrets_of(sending.notice) if due else {}
        for way in due:
            self._start_way(sending, way, secrets)

    def _is_free(self, sending: OpenNotice, way: str) -> bool:
        name = sending.own_lane if way == OWN_WEBHOOK else lane_of(way, "")
        lane = self._lanes.get(name)
        return lane is None or not (lane.is_busy or lane.rests_until_s > self._core.clock.now_s())

    def _start_way(self, sending: OpenNotice, way: str, secrets: dict[str, str] | None) -> None:
        notice, known, url = sending.notice, secrets or {}, ""
        if way == OWN_WEBHOOK:
            url = sending.url or known.get(WEBHOOK_VARIABLE, "")
            if problem := webhook_problem(url, self._settings.webhook_hosts):
                self._give_up(sending, way, problem if url else "its URL cannot be read any more")
                return
            sending.own_lane = lane_of(way, url)
            if not self._is_free(sending, way):
                return
        name = sending.own_lane if way == OWN_WEBHOOK else lane_of(way, "")
        self._lanes.setdefault(name, Lane()).is_busy = True
        shown = notice if secrets is not None else msgspec.structs.replace(notice, lines=())
        payload = payload_of(shown, sending.output or (), known.values())
        argv, data = order_of(way, url, payload, self._settings)
        self._deliveries.start(argv, data, partial(self._note_result, notice.notice_id, way, name))

    def _note_result(self, notice_id: str, way: str, lane: str, result: DeliveryResult) -> None:
        self._came.append(Came(notice_id, way, lane, result))

    def _take_result(self, came: Came) -> None:
        now_s, lane, result = self._core.clock.now_s(), self._lanes[came.lane], came.result
        lane.is_busy = False
        lane.failures = 0 if result.is_reached else lane.failures + 1
        lane.rests_until_s = 0.0
        if lane.failures:
            lane.rests_until_s = now_s + min(RETRY_S * 2 ** (lane.failures - 1), REST_S_MAX)
        if came.way != OWN_WEBHOOK:
            name = "mail" if came.way.startswith(MAIL) else came.way
            self._last_by_way[name] = SENT if result.is_sent else f"{FAILED}: {result.why}"
        sending = self._open.get(came.notice_id)
        if sending is None:
            return  # Its row was never durable, or is read back.
        way, notice = came.way, sending.notice
        if result.is_sent:
            notice.ways[way] = SENT
            self._core.counters["notices_sent"] += 1
            if sending.url is None:
                self._keep(notice)
        elif sending.url is not None or self._core.clock.wall() - notice.at_s >= GIVE_UP_S:
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
        if sending.url is None:
            self._keep(notice)

    def _finish(self, notice_id: str) -> None:
        sending = self._open.pop(notice_id)
        self._done[notice_id] = sending.notice
        while len(self._done) > DONE_KEPT:
            oldest = next(iter(self._done))
            del self._done[oldest]
            self._core.journal.keep_notice(oldest, None)

    # --- Asking about it ---------------------------------------------------------------------------

    def ways_used(self) -> dict[str, str]:
        """What came of the last message by each way of the site."""
        settings = self._settings
        ways = {COMMAND: settings.command, WEBHOOK: settings.site_webhook_file, "mail": settings.smtp}
        return {way: self._last_by_way.get(way, "") for way, given in ways.items() if given}

    def find(self, notice_id: str, user: str) -> Notice | None:
        """A message to this user."""
        sending = self._open.get(notice_id)
        found = self._done.get(notice_id) if sending is None else sending.notice
        return found if found is not None and found.user == user else None

    def view(self, job: Job) -> wire.ToldView | None:
        """Of what a job's owner is told; None: of nothing."""
        if not job.spec.notify:
            return None
        array = array_of(job.job_id)
        all_of_it = [*self._done.values(), *(each.notice for each in self._open.values())]
        mine = [each for each in all_of_it if each.job_id is not None and array_of(each.job_id) == array]
        last = max(mine, key=lambda each: each.at_s, default=None)
        return wire.ToldView(
            kinds=tuple(word for word in job.spec.notify if "@" not in word),
            ways=self._ways_of_job(job.spec),
            last_kind=last.kind if last else None,
            last_at=utc(last.at_s) if last else None,
            last=dict(last.ways) if last else {},
        )
