"""A job handle: which job it is, the questions about it, and how a notebook shows it; several jobs at once:
as they end, all their results, and an end for the rest when one fails.

Rule: a handle keeps nothing that the controller knows better; each property is a question. It asks only once
for what cannot change any more (how the job ended). It can be pickled, and `cotenant.job(id)` makes it anew
in another shell. Of several, only `cancel_rest` cancels any, and never a job that has ended. Every text of a
notebook's card may be foreign (names, reasons): we escape all of them, and the card has no script, no link
and nothing that a browser would fetch. Colours are the page's own.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from html import escape
from typing import Any, Final, Generic, Literal, TypeVar, cast, overload

from cotenant.controller.domain import ENDED, JobId, Phase, texts
from cotenant.controller.python.connection import ask_controller, connect, ended_jobs
from cotenant.controller.python.errors import BadCall, CotenantError, RequestRefused
from cotenant.controller.python.folders import CallPlace, ResultReference
from cotenant.controller.python.packing import place_of
from cotenant.controller.python.results import LOG_TAIL_LINES, outcome
from cotenant.controller.wire import clients

T = TypeVar("T")

LISTED_MAX: Final = 1_000_000
_CARD: Final = "border:1px solid #8886;border-radius:6px;padding:.5em .8em;max-width:46em;font-size:.95em"
_BAR: Final = "height:6px;border-radius:3px;background:#8883"
_FULL: Final = "height:6px;border-radius:3px;background:currentColor;opacity:.6;width:{percent}%"


class JobHandle(Generic[T]):
    """The handle of a submitted job. `result()`, or `await`, is what the job's function returned."""

    def __init__(
        self, job_id: str = "", *, endpoint: str | None = None, name: str = "", place: CallPlace | None = None
    ) -> None:
        """Makes a handle of the job `job_id`. `place`: where the job's results lie, if that is known; else
        the controller is asked for the job's command."""
        self._id = job_id
        self.endpoint = endpoint
        self.name = name
        self.notes: tuple[str, ...] = ()
        """The controller's notes at its submission, such as why it cannot start yet."""
        self.placeholder = ""
        """What others of its batch call it before it has a number."""
        self._place = place
        self._place_known = place is not None
        self._end: clients.JobView | None = None
        """Its last view, that will not change."""

    # --- Which one it is ---------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The number of the job. Raises BadCall: the job is in a batch that has not been sent yet, or never
        was."""
        if not self._id:
            raise BadCall(f"{self.name or 'this job'} has no number", "its batch is sent as the block ends")
        return self._id

    @property
    def after_text(self) -> str:
        """The job as `after=` has it."""
        return self.id

    def note_submission(self, job_id: str, notes: tuple[str, ...], *, place_is_known: bool) -> None:
        """Gives the handle the number of its job and the notes on it. `place_is_known`: the place is this
        submission's, not an earlier one's of its key."""
        self._id, self.notes = job_id, notes
        self._place_known = place_is_known

    def __repr__(self) -> str:
        return f"<cotenant job {self._id or '(not submitted)'}{f' {self.name}' if self.name else ''}>"

    def _repr_html_(self) -> str:
        try:
            return card(self.view())
        except CotenantError as error:
            return card(None, repr(self), str(error))

    # --- Questions ---------------------------------------------------------------------------------

    def view(self) -> clients.JobView:
        """All that `cotenant queue -o json` has of it."""
        if self._end is not None and not self._end.is_given_up:
            return self._end
        question = clients.ListJobs(job_ids=(JobId(self.id),), include_ended=True)
        return texts.escape_texts(ask_controller(question, self.endpoint).jobs[0])

    def details(self) -> clients.JobDetails:
        """All that `cotenant show -o json` has of it: what was asked for, each attempt, its profile."""
        return texts.escape_texts(ask_controller(clients.ShowJob(job_id=JobId(self.id)), self.endpoint).job)

    @property
    def state(self) -> str:
        """`queued`, `running`, `done`, ...: see docs/cli.md."""
        return self.view().phase.value

    @property
    def preemptions(self) -> int:
        """How often it had to make room."""
        return self.view().preemptions

    @property
    def steps(self) -> int:
        """How many optimizer steps it has done; 0 where it does not tell."""
        return self.view().step

    @property
    def loss(self) -> float | None:
        """The last that it reported."""
        return self.view().loss

    @property
    def metrics(self) -> dict[str, float]:
        """The last values that it reported or printed, by name; the loss among them."""
        return {each.name: each.value for each in self.view().metrics}

    @property
    def link(self) -> str | None:
        """Its page at W&B or MLflow, as it printed, or as `link=` said."""
        return self.view().link

    def explain(self) -> str:
        """Why it is where it is, then the decisions about it, newest first; a line each."""
        found = texts.escape_texts(
            ask_controller(clients.Explain(job_id=JobId(self.id)), self.endpoint).explanation
        )
        return "\n".join((*found.lines[: found.lines_now], *found.ahead, *found.lines[found.lines_now :]))

    def eta(self) -> clients.EtaView | None:
        """Returns when the job starts and ends; None for a job that has ended."""
        etas = ask_controller(clients.ListEtas(job_ids=(JobId(self.id),)), self.endpoint).etas
        return texts.escape_texts(etas[0]) if etas else None

    # --- Changes -----------------------------------------------------------------------------------

    def cancel(self) -> bool:
        """Cancels the job; False: the job had ended before."""
        try:
            ask_controller(clients.ChangeJobs(verb="cancel", job_ids=(JobId(self.id),)), self.endpoint)
        except RequestRefused as refused:
            if refused.code != "refused":
                raise
            return False
        return True

    def requeue(self) -> None:
        """Makes the job save, if it can, and queue again, with its time limit from the beginning."""
        self._change("requeue")

    def preempt(self) -> None:
        """Makes the job save, leave its devices and queue again. Raises RequestRefused: the job cannot
        resume."""
        self._change("preempt")

    def hold(self) -> None:
        """Keeps the job from starting before `release()`. Raises RequestRefused: the job does not wait."""
        self._change("hold")

    def release(self) -> None:
        """Lets the job queue again, after `hold()` or because hosts failed under it too often."""
        self._change("release")

    def set(self, **options: Any) -> None:
        """Other options, as of `cotenant set`; None takes back what was said. All or none.

        Raises:
            BadCall: there is no such option, or its value makes no sense.
            RequestRefused: it has ended, or this cannot be changed now, or not by its owner.
        """
        from cotenant.controller.python.keywords import changes_of

        ask_controller(clients.SetJobs(job_ids=(JobId(self.id),), changes=changes_of(options)), self.endpoint)

    def _change(self, verb: Literal["hold", "release", "preempt", "requeue"]) -> None:
        ask_controller(clients.ChangeJobs(verb=verb, job_ids=(JobId(self.id),)), self.endpoint)

    # --- Its end -----------------------------------------------------------------------------------

    @property
    def ended_view(self) -> clients.JobView | None:
        """How it ended, if that has been seen."""
        return self._end

    @property
    def has_finished(self) -> bool:
        """Whether it has been seen to end well."""
        return self._end is not None and self._end.phase is Phase.DONE

    def saw_end(self, view: clients.JobView) -> JobHandle[T]:
        self._end = view
        return self

    def done(self) -> bool:
        """Whether it has ended, however it did."""
        return self.view().phase in ENDED

    def wait(self, timeout: float | None = None) -> str:
        """Until it has ended; its state then. Raises StillRunning after `timeout` seconds."""
        return self._wait_end(timeout).phase.value

    def result(self, timeout: float | None = None) -> T:
        """What its function returned (with `results="all"` of each rank); of a command, 0.

        Raises:
            StillRunning: not within `timeout` seconds; JobPreempted if it waits because it had to make room.
            JobFailed: or one of its kinds, if it ended otherwise than by its function.
            Exception: what its function raised, with the remote traceback.
        """
        return self.outcome_of(self._wait_end(timeout))

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Returns what `result` would raise; None: the job finished. Raises StillRunning."""
        view = self._wait_end(timeout)
        try:
            self.outcome_of(view)
        except Exception as error:  # noqa: BLE001  # Whatever the function raised.
            return error
        return None

    def outcome_of(self, view: clients.JobView) -> T:
        return cast(T, outcome(view, self._results(), self._log_tail))

    def __await__(self) -> Generator[Any, None, T]:
        return self._await_result().__await__()

    async def _await_result(self) -> T:
        from cotenant.controller.python.connection import watch

        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def deliver(value: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(value)

        def told(end: clients.JobView | Exception) -> None:
            value: Any = None
            problem: Exception | None = None
            try:
                if isinstance(end, Exception):
                    raise end
                value = self.saw_end(end).outcome_of(end)
            except Exception as error:  # noqa: BLE001  # It is raised where it is awaited.
                problem = error
            try:
                loop.call_soon_threadsafe(deliver, value, problem)
            except RuntimeError:  # The loop is closed: nobody waits.
                return

        watching = watch(self.endpoint)
        watching.tell(JobId(self.id), told)
        try:
            return await future
        finally:
            watching.forget(JobId(self.id), told)

    def _wait_end(self, timeout: float | None) -> clients.JobView:
        if self._end is None or self._end.is_given_up:  # Somebody may have released it.
            ((self._end,),) = ended_jobs([JobId(self.id)], self.endpoint, timeout)
        return self._end

    def reference(self) -> ResultReference:
        """Stands for its result among another job's arguments."""
        return self._id or self.name, self._results()

    def _results(self) -> CallPlace | None:
        if not self._place_known and not self.placeholder:  # A batch has not sent its commands yet.
            spec = self.details().spec
            if spec.launch.uid != os.getuid():
                raise RequestRefused(
                    "not-allowed", f"job {self.id} is {spec.user}'s: its result is not loaded"
                )
            self._place, self._place_known = place_of(spec.launch.argv), True
        return self._place

    # --- Its output --------------------------------------------------------------------------------

    @overload
    def logs(self, follow: Literal[False] = False, rank: int = 0) -> str: ...
    @overload
    def logs(self, follow: Literal[True], rank: int = 0) -> Iterator[str]: ...
    def logs(self, follow: bool = False, rank: int = 0) -> str | Iterator[str]:
        """What it has printed, over all its attempts; `follow`: lines as they come, until it has ended."""
        if follow:
            return self._lines(rank)
        from cotenant.controller.client.output import read_all

        with connect(self.endpoint) as client:
            pieces = read_all(client, self.view(), rank)
            return str(b"".join(each for each in pieces if isinstance(each, bytes)), errors="replace")

    def _lines(self, rank: int) -> Iterator[str]:
        from cotenant.controller.client.output import Follower

        rest = b""
        with connect(self.endpoint, patient=True) as client:
            for piece in Follower(client, JobId(self.id), rank).pieces():
                if isinstance(piece, bytes):
                    *whole, rest = (rest + piece).split(b"\n")
                    yield from (str(line + b"\n", errors="replace") for line in whole)
        if rest:
            yield str(rest, errors="replace")

    def _log_tail(self) -> str:
        try:
            lines = self.logs().splitlines()
        except CotenantError:  # Its host is gone, or silent: the end is known without.
            return ""
        return "\n".join(lines[-LOG_TAIL_LINES:])


def jobs(
    *,
    ended: bool = False,
    user: str | None = None,
    array: str | int | None = None,
    endpoint: str | None = None,
) -> list[JobHandle[Any]]:
    """Yours that have not ended, in order of arrival. `ended`: with those that have and are still known;
    `user`: somebody else's, or everybody's (`user=""`); `array`: all tasks of this one, whoever's they are,
    those that have ended too. Raises RequestRefused: there is no such array.
    """
    from cotenant.controller.client.pages import pages
    from cotenant.controller.submission.recording import user_name

    owner = user_name() if user is None else user
    question = clients.ListJobs(user=owner, include_ended=ended, limit=LISTED_MAX)
    if array is not None:
        question = clients.ListJobs(job_ids=(JobId(str(array)),), include_ended=True, limit=LISTED_MAX)
    found: list[JobHandle[Any]] = []
    with connect(endpoint) as client:
        for reply in pages(client, question):
            found += [JobHandle(each.job_id, endpoint=endpoint, name=each.name) for each in reply.jobs]
    return found


def job(job_id: str | int, *, endpoint: str | None = None) -> JobHandle[Any]:
    """Returns the handle of a job that was submitted before, by whatever shell. Raises RequestRefused: there
    is no such job, or it is an array."""
    found: JobHandle[Any] = JobHandle(str(job_id), endpoint=endpoint)
    try:
        found.name = found.details().name
    except RequestRefused as refused:
        if refused.code != "not-found":
            raise
        tasks = jobs(array=job_id, endpoint=endpoint)  # Refused as well where it is no array.
        call = f"cotenant.jobs(array={found.id}) has its tasks, cotenant.job({tasks[0].id!r}) is the first"
        raise RequestRefused(refused.code, f"{found.id} is an array, not one job", call) from None
    return found


def as_completed(
    jobs: Iterable[JobHandle[T]], timeout: float | None = None, *, cancel_rest: bool = False
) -> Iterator[JobHandle[T]]:
    """The jobs as they end. `cancel_rest`: when one does not finish, or Ctrl-C ends the wait, those that
    have not ended are cancelled; after a failure they are still yielded.

    Raises:
        StillRunning: `timeout` seconds are over and some have not ended.
    """
    waiting: dict[JobId, list[JobHandle[T]]] = defaultdict(list)
    for job in jobs:
        if job.ended_view is None:
            waiting[JobId(job.id)].append(job)
        else:
            yield job
    everyone = [job for each in waiting.values() for job in each]
    failed = False
    try:
        for views in ended_jobs(list(waiting), endpoint_of(everyone), timeout) if waiting else ():
            ended = [job.saw_end(view) for view in views for job in waiting[view.job_id]]
            if cancel_rest and not failed and any(view.phase is not Phase.DONE for view in views):
                failed = True
                cancel(everyone)
            yield from ended
    except KeyboardInterrupt:
        if cancel_rest:
            cancel(everyone)
        raise


def gather(
    jobs: Iterable[JobHandle[T]], timeout: float | None = None, *, cancel_rest: bool = False
) -> list[T]:
    """All results, in the order of the jobs; the first failure is raised as soon as it is there.
    `cancel_rest`: it, an interrupt (Ctrl-C), or `timeout` cancels those that have not ended.
    """
    jobs = list(jobs)
    results: dict[int, T] = {}
    try:
        for job in as_completed(jobs, timeout):
            results[id(job)] = job.result()
    except BaseException:
        if cancel_rest:
            cancel(jobs)
        raise
    return [results[id(job)] for job in jobs]


def cancel(jobs: Iterable[JobHandle[Any]]) -> None:
    """Cancels those of the jobs that have not ended."""
    left = [job for job in jobs if job.ended_view is None]
    if left:
        ids = tuple(dict.fromkeys(JobId(job.id) for job in left))
        try:
            ask_controller(clients.ChangeJobs(verb="cancel", job_ids=ids), endpoint_of(left))
        except RequestRefused as refused:
            if refused.code != "refused":  # Else all of them have ended meanwhile.
                raise


def endpoint_of(jobs: Sequence[JobHandle[Any]]) -> str | None:
    """Returns the endpoint that all of the jobs have in common. Raises BadCall: the jobs are of different
    controllers."""
    endpoints = {job.endpoint for job in jobs}
    if len(endpoints) > 1:
        raise BadCall("these jobs are of different controllers", "wait for those of each by themselves")
    return endpoints.pop() if endpoints else None


def card(job: clients.JobView | None, title: str = "", problem: str = "") -> str:
    """Returns a job's card in HTML. `job`: None where there is no answer; the card then shows title and
    problem."""
    if job is None:
        return f'<div style="{_CARD}"><b>{_text(title)}</b><br>{_text(problem)}</div>'
    head = f"<b>job {_text(job.job_id)}</b> {_text(job.name)} &middot; {_text(job.phase.value)}"
    lines = [head, _text(job.reason), *(_text(each) for each in _facts(job) if each)]
    total = job.iterations or job.total_steps
    bar = ""
    if total:
        percent = max(0, min(100, round(100 * job.step / total)))
        full = _FULL.format(percent=percent)
        bar = f'<div style="{_BAR}" role="img" aria-label="{percent} %"><div style="{full}"></div></div>'
    return f'<div style="{_CARD}">{"<br>".join(lines)}{bar}</div>'


def _facts(job: clients.JobView) -> list[str]:
    from cotenant.controller.present.etas import describe_eta

    where = ", ".join(job.devices)
    beside = f" beside job {', '.join(job.co_tenants)}" if job.co_tenants else ""
    total = job.iterations or job.total_steps
    steps = f"step {job.step}" + (f" of {total}" if total else "")
    pace = f", {job.step_s:.3g} s each" if job.step_s else ""
    loss = f", loss {job.loss:.4g}" if job.loss is not None else ""
    waits = job.phase not in ENDED and job.eta is not None
    return [
        f"on {where}{beside}" if where else "",
        f"{steps}{pace}{loss}" if job.step else "",
        f"preempted {job.preemptions} x" if job.preemptions else "",
        describe_eta(job.eta) if waits and job.eta is not None else "",
        f"exit code {job.exit_code}" if job.phase is Phase.FAILED and job.exit_code is not None else "",
    ]


def _text(text: str) -> str:
    return escape(texts.one_line(text))
