"""Answers command lines: one request, one reply.

Rule: takes no decision. Whatever a reply says is durable before it leaves. A user sees every job and
touches only their own; nodes, policy and preemption are for admins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, get_type_hints

import msgspec

from cotenant.controller.api import permissions
from cotenant.controller.api.arrivals import Arrivals, TellsOwners
from cotenant.controller.api.changes import Changing
from cotenant.controller.api.etas import EtaBoard, EtaRequests
from cotenant.controller.api.foresight import Foresee, ForesightRequests, WidthRequests
from cotenant.controller.api.job_settings import JobSettings
from cotenant.controller.api.logs import AsksHost, LogRequests
from cotenant.controller.api.past import AccountingRequests, ProfileRequests, TimelineRequests
from cotenant.controller.api.queries import About, Queries, StatusRequests
from cotenant.controller.api.reservations import ReservationRequests
from cotenant.controller.api.shadow import ShadowRequests
from cotenant.controller.api.streams import StreamRequests
from cotenant.controller.api.submissions import Denied
from cotenant.controller.api.trees import TreeRequests
from cotenant.controller.api.withholding import AnswerReader, withhold
from cotenant.controller.domain import ENDED, USER_BYTES_MAX, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.executors.agents import AgentExecutor, AgentNews
from cotenant.controller.store import Core, Decided, Poisoned, ReadingCore, StorageError, Stuck
from cotenant.controller.system.keys import Identity
from cotenant.controller.system.secrets import Secrets
from cotenant.controller.wire import FROM_CLIENTS, BadMessage, Inadmissible, admit, encode
from cotenant.controller.wire import clients as wire

WAITS_MAX: Final = 5_000
WAITS_PER_USER: Final = 1_000
AWAITED_PER_USER: Final = 200_000
"""Jobs that one user waits for, over all waits: each is kept in memory."""
WAIT_S_MAX: Final = 60.0
FORESIGHT_COST: Final = 200
"""A question that is rolled out counts as so many others: it takes seconds of a core."""
FRAME_OVER_DATA: Final = 4 / 3
"""Bytes of a frame for each byte of data in it."""
ENDING: Final = (ev.AttemptEnded, ev.CancelRequested, ev.JobArrived)
"""Events that can end a job without a command (a command makes us look as well)."""


class Asked(NamedTuple):
    """Who asked, and where the answer goes."""

    address: bytes
    who: Identity
    request_id: int


class PendingWait(NamedTuple):
    """A `WaitJobs` that is not answered yet."""

    asked: Asked
    job_ids: tuple[JobId, ...]
    deadline_s: float
    first: bool
    """Answer when one of them has ended, not all."""


AnswersRequest = Callable[[int, Any, Identity], wire.AnyReply]
"""Called with the request's number, the request and its sender."""


def answers_of(*answering: object) -> dict[type, AnswersRequest]:
    """Public methods with a parameter `request`, by its annotated type."""
    found = [getattr(each, name) for each in answering for name in vars(type(each)) if name[0] != "_"]
    hints = [(get_type_hints(each), each) for each in found if callable(each)]
    return {hint["request"]: each for hint, each in hints if "request" in hint}


class JournalQueries:
    """The queries that change nothing, over a state in which nothing happens: no agent is heard."""

    def __init__(self, core: ReadingCore, ask_host: AsksHost) -> None:
        self._core = core
        mine = Queries(core, AgentNews(), EtaBoard(core), reads_commands=True)
        self._logs = LogRequests(core, ask_host)
        self._answers = answers_of(mine, AccountingRequests(core, mine), TimelineRequests(core, mine))

    def ask(self, body: wire.Question[Any], who: Identity, say: Callable[[Any], None]) -> None:
        """Calls `say` with the answer, unless this is no question that is answered here. Raises Denied."""
        if isinstance(body, wire.ReadJobLog):
            permissions.must_own(who, permissions.one_job(self._core, body.job_id).job, "read the log of")
            self._logs.read(b"", 0, msgspec.structs.replace(body, wait_s=0.0), say)
        elif type(body) in self._answers:
            say(self._answers[type(body)](0, body, who))


TRIES_AGAIN: Final = "running jobs go on; it tries again every two seconds"
MAKE_ROOM: Final = "make room on its disk, then try again"


class RequestHandlers:
    """The handlers of the requests of all clients."""

    def __init__(
        self,
        core: Core,
        link: AgentExecutor,
        send: Callable[[bytes, bytes], bool],
        secrets: Secrets,
        about: About,
        stop: Callable[[], None],
        *,
        foresee: Foresee = lambda questions, told, within_s: False,
        more: Sequence[object] = (),
        tells: TellsOwners | None = None,
        trees: TreeRequests | None = None,
        awaited_per_user: int = AWAITED_PER_USER,
        user_bytes_max: int = USER_BYTES_MAX,
        reads_commands: bool = False,
    ) -> None:
        """Prepares the handlers of requests. `foresee`: rolls out what users ask about. `more`: other objects
        that answer, such as an executor's requests. `tells`: who tells owners of their jobs; None: nobody.
        `trees`: one of those that answer, which knows users' packed trees. `reads_commands`: everybody reads
        the command lines of all."""
        self._core = core
        self._reads_commands = reads_commands
        self._awaited_per_user = awaited_per_user
        self._send_frame = send
        self._stop = stop
        self._rates = permissions.Rates()
        self._byte_rates = permissions.Rates(permissions.BYTES_PER_SECOND, permissions.BYTES_BURST)
        self._trees = trees
        board = EtaBoard(core)
        self._reading = reading = Queries(core, link, board, tells, reads_commands=reads_commands)
        self._logs = LogRequests(core, link.logs.ask)
        self._streams = StreamRequests(core, link)
        self._widths = WidthRequests(core, foresee)
        self._waits: dict[tuple[bytes, int], PendingWait] = {}
        self._look_again = False
        self._stuck_hint = TRIES_AGAIN if core.journal.database.is_shared else MAKE_ROOM
        self.asked_s = core.clock.now_s()
        """When the last request came."""
        self._arrivals = Arrivals(core, secrets, tells, user_bytes_max, trees)
        self._foresight = ForesightRequests(core, foresee)
        self.shadow = ShadowRequests(core)
        """Where the shadow worker asks and reports."""
        self._answers: dict[type, AnswersRequest] = {
            wire.Stop: self._stop_asked,
            **answers_of(
                self._arrivals,
                reading,
                StatusRequests(core, link, about),
                Changing(core),
                ProfileRequests(core),
                EtaRequests(core, board),
                AccountingRequests(core, reading),
                TimelineRequests(core, reading),
                JobSettings(core, tells),
                ReservationRequests(core),
                self.shadow,
                *more,
            ),
        }

    # --- In and out --------------------------------------------------------------------------------

    def affords(self, who: Identity, size: int) -> bool:
        """Whether a user may send a message of so many bytes now. Asked before it is read: reading is what
        takes memory."""
        return who.role != "user" or self._byte_rates.allow(who.name, self._core.clock.now_s(), size)

    def ask(self, address: bytes, who: Identity, request: wire.Request) -> None:
        """Answer, now or later, exactly once per question."""
        asked = Asked(address, who, request.request_id)
        self.asked_s = self._core.clock.now_s()
        try:
            if self._core.is_ahead:
                raise Denied("refused", f"nothing can be told now: {self._core.stuck}", self._stuck_hint)
            self._answer(asked, admit(request.body, FROM_CLIENTS))
        except Inadmissible as refused:
            self._fail(asked, Denied("usage", str(refused)))
        except Denied as denied:
            if denied.code == "not-allowed":
                self._core.audit(who, "not-allowed", type(request.body).__name__, str(denied))
            self._fail(asked, denied)
        except Stuck as stuck:
            self._fail(asked, Denied("refused", f"nothing can be changed now: {stuck}", self._stuck_hint))
        except StorageError as error:
            text = f"the journal {self._core.journal.place} cannot be read now: {error}"
            self._fail(asked, Denied("refused", text, self._stuck_hint))
        except Poisoned as poisoned:
            hint = "nothing was changed; please report it with the controller's log"
            self._fail(asked, Denied("internal", f"this request broke the scheduler: {poisoned}", hint))

    def _answer(self, asked: Asked, body: wire.AnyRequest) -> None:
        if asked.who.role == "agent":
            raise Denied("not-allowed", f"the key of {asked.who.name} is an agent's: it cannot ask for this")
        if asked.who.role == "user" and not self._rates.allow(asked.who.name, self.asked_s, cost_of(body)):
            raise Denied("refused", "too many requests", "wait a few seconds and try again")
        if isinstance(body, wire.WaitJobs):
            self._wait(asked, body)
        elif isinstance(body, wire.ForeseeArrival):
            answered = partial(self._foreseen, asked)
            self._foresight.ask(asked.address, asked.request_id, body, asked.who, answered)
        elif isinstance(body, wire.ForeseeWidths):
            number = asked.request_id
            self._widths.ask(
                body,
                asked.who,
                lambda found: self._reply(asked, msgspec.structs.replace(found, request_id=number)),
            )
        elif isinstance(body, wire.ReadJobLog):
            job = permissions.one_job(self._core, body.job_id).job
            permissions.must_own(asked.who, job, "read the log of")
            self._logs.read(asked.address, asked.request_id, body, partial(self._say, asked))
        elif isinstance(body, wire.UseStream):
            reader, number = asked.address, asked.request_id
            self._streams.ask(reader, number, body, asked.who, partial(self._say, asked))
        elif type(body) in self._answers:
            self._reply(asked, self._answers[type(body)](asked.request_id, body, asked.who))
            if isinstance(body, wire.PutSnapshot) and self._trees is not None:
                size = self._trees.repaid_bytes(body, asked.who)
                self._byte_rates.give_back(asked.who.name, size * FRAME_OVER_DATA)
        else:
            raise Denied("refused", "this controller keeps no snapshots")

    def _foreseen(self, asked: Asked, answer: wire.Foreseen | Denied) -> None:
        if isinstance(answer, Denied):
            self._fail(asked, answer)
        else:
            self._reply(asked, answer)

    def _reply(self, asked: Asked, message: wire.AnyReply) -> None:
        """Once all that happened before is durable."""
        not_written = wire.Failure(
            request_id=asked.request_id,
            code="refused",
            message=f"the journal {self._core.journal.place} could not be written: nothing was changed",
            hint=self._stuck_hint,
        )
        elsewhere = wire.Failure(
            request_id=asked.request_id,
            code="standby",
            message=f"the journal {self._core.journal.place} cannot be reached: another controller may lead",
        )
        self._core.run_after_commit(
            partial(self._say, asked, message),
            otherwise=partial(self._say, asked, not_written),
            unknown=partial(self._say, asked, elsewhere),
        )

    def _fail(self, asked: Asked, denied: Denied) -> None:
        self._core.counters["refused_requests"] += 1
        failure = wire.Failure(
            request_id=asked.request_id, code=denied.code, message=str(denied), hint=denied.hint
        )
        self._core.run_after_commit(partial(self._say, asked, failure))

    def _say(self, asked: Asked, message: wire.AnyReply) -> None:
        """The one exit of answers."""
        if asked.who.role != "admin":
            message = withhold(message, AnswerReader(asked.who.name, self._owner_of, self._reads_commands))
        try:
            frame = encode(message)
        except BadMessage as error:
            too_large = wire.Failure(
                request_id=asked.request_id,
                code="refused",
                message=f"the answer is too large: {error}",
                hint="ask for less",
            )
            frame = encode(too_large)
        self._send_frame(asked.address, frame)

    def _owner_of(self, job_id: JobId) -> str:
        record = self._core.record(job_id)
        return "" if record is None else record.job.spec.user

    def _stop_asked(self, request_id: int, request: wire.Stop, who: Identity) -> wire.Done:
        permissions.must_be_admin(who, "stop the controller")
        self._core.audit(who, "stop", "controller")
        self._core.run_after_commit(self._stop)
        return wire.Done(request_id=request_id, lines=("the controller ends; jobs go on",))

    # --- Waiting -----------------------------------------------------------------------------------

    def _wait(self, asked: Asked, request: wire.WaitJobs) -> None:
        jobs = permissions.jobs_named(self._core, request.job_ids)
        mine = [wait for wait in self._waits.values() if wait.asked.who.name == asked.who.name]
        awaited = len(jobs) + sum(len(wait.job_ids) for wait in mine)
        if len(self._waits) >= WAITS_MAX or len(mine) >= WAITS_PER_USER or awaited > self._awaited_per_user:
            raise Denied("refused", "too many clients are waiting", "ask `cotenant queue` instead")
        now_s = self._core.clock.now_s()
        deadline_s = now_s + min(max(0.0, request.timeout_s), WAIT_S_MAX)
        # The same question again (clients repeat themselves) neither adds an answer nor prolongs the wait.
        wait = PendingWait(asked, tuple(job.job_id for job in jobs), deadline_s, request.first)
        self._waits.setdefault((asked.address, asked.request_id), wait)
        self._answer_waits(now_s)

    def _answer_waits(self, now_s: float) -> None:
        jobs = self._core.state.engine.jobs
        for key, wait in list(self._waits.items()):
            ended = [each for each in wait.job_ids if each not in jobs or jobs[each].phase in ENDED]
            if wait.deadline_s <= now_s or len(ended) == len(wait.job_ids) or (wait.first and ended):
                del self._waits[key]
                records = map(self._core.record, ended if wait.first else wait.job_ids)
                shown = [record.job for record in records if record is not None]
                self._reply(wait.asked, self._reading.job_list(wait.asked.request_id, shown, wait.asked.who))

    def settle(self, decided: Sequence[Decided] = ()) -> None:
        """After each message and its consequences, before they are sealed: an answer may be due."""
        self._look_again |= any(each.commands or isinstance(each.event, ENDING) for each in decided)
        if self._look_again:
            self._look_again = False
            now_s = self._core.clock.now_s()
            self._answer_waits(now_s)
            self._core.run_after_commit(self._logs.look_again)

    def rebuilt(self) -> None:
        """The state was read back from the journal."""
        self._arrivals.rebuilt()

    def tick(self) -> None:
        """About twice a second, for deadlines."""
        self._look_again = True
        self.settle()
        if self._trees is not None:
            self._trees.tick()


def cost_of(body: wire.AnyRequest) -> int:
    """What a request costs its user's bucket."""
    if isinstance(body, wire.ForeseeArrival):
        return FORESIGHT_COST
    return len(body.specs) if isinstance(body, wire.Submit) else 1
