"""`cotenant queue`: what runs, what waits and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Annotated, Final, NoReturn

from msgspec import structs

from cotenant.controller.cli.frame import output
from cotenant.controller.cli.frame.command import argument, option
from cotenant.controller.client.asking import asking
from cotenant.controller.client.connection import Client, Refusal, Unreachable
from cotenant.controller.client.pages import PAGE, pages
from cotenant.controller.domain import ENDED, WAITING, JobId, Phase, texts
from cotenant.controller.present import screen, units
from cotenant.controller.present.jobs import COLUMNS, ENDED_COLUMNS, WIDE_COLUMNS, add_values
from cotenant.controller.present.problem import Problem, suggestion
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s

LIMIT_MAX: Final = 1_000_000
WATCH_TIMEOUT_S: Final = 5.0
CLEAR: Final = "\x1b[H\x1b[2J"
"""Home, and an empty screen."""

OnlyArgument = Annotated[list[str] | None, argument(metavar="JOB", help="Only these.")]
AllFlag = Annotated[bool, option("-a", "--all", help="Also jobs that have ended.")]
EndedFlag = Annotated[bool, option("--ended", help="Only jobs that have ended, the newest first.")]
NameFlag = Annotated[str, option("--name", metavar="TEXT", help="Only those with this in their names.")]
FoldFlag = Annotated[
    bool | None,
    option(
        "--fold/--tasks",
        help="An array in one row, or each of its tasks. A table folds arrays unless JOB is given.",
    ),
]
UserFlag = Annotated[str, option("-u", "--user", metavar="NAME", help="Only this user's.")]
StateFlag = Annotated[
    str, option("-t", "--state", metavar="STATE,...", help="Only these, such as running,queued or failed.")
]
MineFlag = Annotated[bool, option("-m", "--mine", help="Only yours.")]
LimitFlag = Annotated[str, option("--limit", metavar="N", show_default="all", help="At most N jobs.")]
WatchFlag = Annotated[bool, option("-w", "--watch", help="Again and again, in place, until Ctrl-C.")]
EveryFlag = Annotated[
    float, option("-d", "--every", min=0.2, max=3600, metavar="S", help="With --watch: seconds between.")
]


def queue(
    jobs: OnlyArgument = None,
    everything: AllFlag = False,
    ended: EndedFlag = False,
    user: UserFlag = "",
    name: NameFlag = "",
    state: StateFlag = "",
    mine: MineFlag = False,
    limit: LimitFlag = "1000000",
    fold: FoldFlag = None,
    watch: WatchFlag = False,
    every: EveryFlag = 2.0,
    form: output.ListFormFlag = "table",
    endpoint: output.EndpointFlag = None,
) -> None:
    """List the jobs that run and those that wait, and why.

    WITH is the job that shares its devices, S its gradient accumulation steps, LEFT the training time still
    expected. A table has one row for an array; with the array's number as JOB it has a row for each task.

    For example:

      cotenant queue --mine
      cotenant queue 38
      cotenant queue --ended --state failed --name eval
      cotenant queue --all -o wide
      cotenant queue --state running,blocked --user ann
      cotenant queue --mine --watch
      cotenant queue --all -o csv > jobs.csv
      cotenant queue --json | jq '.jobs[] | select(.state == "queued") | .reason'
    """
    if mine:
        from cotenant.controller.submission.recording import user_name

        user = user_name()
    request = wire.ListJobs(
        job_ids=tuple(JobId(each) for each in jobs or ()),
        include_ended=everything or bool(jobs),
        user=user,
        states=states_of(state, is_ended=ended),
        ended=ended,
        name=name,
        fold=fold if fold is not None else form in ("table", "wide") and not jobs,
        limit=output.whole_number("--limit", limit, LIMIT_MAX),
        brief=form in ("table", "id"),
    )
    if watch:
        if form not in ("table", "wide"):
            raise Problem("usage", f"--watch is for people, not for -o {form}", "top -o jsonl -d 10 follows")
        with asking(endpoint) as client:
            watch_page(lambda: watched_page(client, request, form), every)
    show_jobs(request, form, endpoint)


def show_jobs(request: wire.ListJobs, form: output.Format, endpoint: str | None) -> None:
    """Page by page, and below a table what is not in it."""
    some_wait, left_out, forgotten = False, 0, 0
    with asking(endpoint, from_journal=True) as client:

        def listings() -> Iterator[output.Listing]:
            nonlocal some_wait, left_out, forgotten
            for reply in pages(client, request):
                some_wait |= any(job.phase in WAITING for job in reply.jobs)
                left_out, forgotten = reply.more, reply.forgotten_jobs
                yield listing(reply, request)

        output.show_pages(listings(), form)
    if form in ("table", "wide"):
        tell_rest(left_out, forgotten, "row" if request.fold else "job")
    if form == "table" and some_wait:
        screen.hint("`cotenant explain JOB` gives the whole reason")


def tell_rest(left_out: int, forgotten: int, noun: str = "job") -> None:
    """What is not in a table, below it."""
    if left_out:
        screen.tell(f"{units.plural(left_out, f'more {noun}')}: see --limit")
    if forgotten:
        older = units.plural(forgotten, "older job")
        screen.tell(f"{older} in no list (controller.keep_ended): `show` and `logs` answer by number")


def watched_page(client: Client, request: wire.ListJobs, form: output.Format) -> str:
    """The first page, as it is now."""
    reply = client.ask(structs.replace(request, page=PAGE), WATCH_TIMEOUT_S)
    found = listing(reply, request)
    columns = found.wide_columns if form == "wide" else found.columns
    more = [f"{units.plural(reply.more, 'more row' if request.fold else 'more job')}"] if reply.more else []
    count = sum(reply.by_state.values()) - (0 if request.fold else reply.more)
    head = f"{units.plural(count, 'job')} at {units.local_time(wall_s(reply.now))}"
    if not reply.jobs:
        return f"{head}: {found.nothing}"
    room = None if form == "wide" else screen.terminal_width()
    return "\n".join([head, screen.table(columns, found.rows, room), *more])


def watch_page(
    ask: Callable[[], str], every_s: float, pause: Callable[[float], None] = time.sleep
) -> NoReturn:
    """Drawn anew in place, or one below the other where nobody looks at a screen; a controller that is away
    for a while does not end it.

    Raises:
        Unreachable: at the very first question.
    """
    page = ask()
    began_s = answered_s = time.monotonic()
    in_place = screen.is_terminal()
    while True:
        screen.say(f"{CLEAR}{page}" if in_place else f"{page}\n", flush=True)
        pause(every_s)
        try:
            page, answered_s = ask(), time.monotonic()
        except (Unreachable, Refusal) as error:
            since_s = max(answered_s, began_s)
            page = f"no answer for {time.monotonic() - since_s:.0f} s: {texts.one_line(str(error))}"


def states_of(text: str, *, is_ended: bool = False) -> tuple[Phase, ...]:
    """The phases that the text of --state names. `is_ended`: only jobs that have ended are asked for. Raises
    Problem: one of them is no such state."""
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    known = [phase.value for phase in Phase]
    for word in words:
        if word not in known:
            raise Problem("usage", f"--state {word!r} is none of {', '.join(known)}", suggestion(word, known))
        if is_ended and Phase(word) not in ENDED:
            raise Problem("usage", f"{word} is no state of jobs that have ended", "see cotenant queue")
    return tuple(map(Phase, words))


def listing(reply: wire.Jobs, request: wire.ListJobs) -> output.Listing:
    several = len({job.user for job in reply.jobs}) > 1 or bool(reply.next or reply.next_before)
    columns = ENDED_COLUMNS if request.ended else COLUMNS
    made = output.Listing(
        noun="job",
        identity=lambda job: job.job_id,
        # With more to come, others' jobs may be among them.
        columns=[column for column in add_values(columns, reply.jobs) if column.title != "USER" or several],
        wide_columns=add_values(WIDE_COLUMNS, reply.jobs),
        nothing=nothing_of(request),
    )
    return made.fill(reply.jobs, now=reply.now, more=reply.more)


def nothing_of(request: wire.ListJobs) -> str:
    if request.ended:
        return "no such job has ended"
    if request.include_ended:
        return "no jobs; start one with: cotenant submit -- python train.py"
    return "no jobs wait or run; `cotenant queue --ended` lists those that have ended"
